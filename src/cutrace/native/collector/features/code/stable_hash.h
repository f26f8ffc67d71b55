// A hash of 64 bits that is the same in every process and on every machine, unlike the hash of core/interning.h. It does not
// protect against chosen keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace cutrace {

class StableHash {
 public:
  void add(std::uint64_t number) { state_ = mixed(state_ ^ number, kNumber); }
  void add(std::string_view bytes) {
    const char* at = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= 16; at += 16, left -= 16) state_ = mixed(state_ ^ word(at, 8), word(at + 8, 8));
    const std::size_t first = left < 8 ? left : 8;
    state_ = mixed(state_ ^ word(at, first), word(at + first, left - first));
    add(std::uint64_t{bytes.size()});
  }
  std::uint64_t value() const { return state_; }

 private:
  static constexpr std::uint64_t kFirst = 0x9E3779B97F4A7C15u, kSecond = 0xD1B54A32D192ED03u, kNumber = 0x2545F4914F6CDD1Du;

  static std::uint64_t word(const char* bytes, std::size_t size) {
    std::uint64_t word = 0;
    if (size != 0) std::memcpy(&word, bytes, size);
    return word;
  }
  static std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a ^ kFirst) * (b ^ kSecond);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  std::uint64_t state_ = 0;
};

}  // namespace cutrace
