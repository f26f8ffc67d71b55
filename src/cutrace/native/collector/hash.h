// A fast hash of bytes for tables in memory; its values never leave the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cutrace {

inline std::uint64_t hash_mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD1B54A32D192ED03u);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t hash_bytes(const void* data, std::size_t size) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t h = hash_mix(size, 0x2545F4914F6CDD1Du);
  std::uint64_t a = 0, b = 0;
  for (; size >= 16; p += 16, size -= 16) {
    std::memcpy(&a, p, 8);
    std::memcpy(&b, p + 8, 8);
    h = hash_mix(h ^ a, b);
  }
  a = b = 0;
  std::memcpy(&a, p, size < 8 ? size : 8);
  if (size > 8) std::memcpy(&b, p + 8, size - 8);
  return hash_mix(h ^ a, b ^ size);
}

}  // namespace cutrace
