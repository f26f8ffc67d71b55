// Hashes for tables in memory. They are seeded with random numbers once a process, so that a program cannot choose keys that
// collide.
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cutrace {

inline const std::array<std::uint64_t, 2> hash_seed = [] {
  std::array<std::uint64_t, 2> seed{};
  if (::getrandom(seed.data(), sizeof seed, GRND_NONBLOCK) != sizeof seed)  // early in the boot
    seed = {reinterpret_cast<std::uintptr_t>(&hash_seed) * 0x9E3779B97F4A7C15u, ::getpid() * 0xD1B54A32D192ED03u};
  return seed;
}();

inline std::uint64_t hash_mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ hash_seed[0]) * (b ^ hash_seed[1]);
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

// For std::unordered_map with integers or pointers as keys.
struct SeededHash {
  std::size_t operator()(std::uint64_t key) const { return hash_mix(key, 0); }
  std::size_t operator()(const void* key) const { return hash_mix(reinterpret_cast<std::uintptr_t>(key), 0); }
};

}  // namespace cutrace
