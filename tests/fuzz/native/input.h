// The input bytes of one execution as a sequence of numbers. After the last byte, the numbers are 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  template <typename T>
  T number() {
    T value{};
    const std::size_t size = std::min(sizeof value, left());
    if (size) std::memcpy(&value, at_, size);
    at_ += size;
    return value;
  }

  // Returns a number below `limit`.
  std::size_t below(std::size_t limit) { return limit ? number<std::uint16_t>() % limit : 0; }
  bool flip() { return (number<std::uint8_t>() & 1) != 0; }

  std::string text(std::size_t most) {
    const std::size_t size = std::min(most, left());
    std::string out(reinterpret_cast<const char*>(at_), size);
    at_ += size;
    return out;
  }

  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// Checks an invariant; the sanitizers find memory errors.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace fuzz
