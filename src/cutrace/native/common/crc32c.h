// CRC-32C (Castagnoli), the checksum of run.bin's blocks. Uses the processor's instruction if it has one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace cutrace {
namespace crc_detail {

// Eight tables, one for each byte of a word, so that the portable version processes a word at a time.
consteval std::array<std::array<std::uint32_t, 256>, 8> make_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) ? 0x82F63B78u : 0u);
    t[0][i] = c;
  }
  for (std::size_t s = 1; s < 8; ++s)
    for (std::size_t i = 0; i < 256; ++i) t[s][i] = (t[s - 1][i] >> 8) ^ t[0][t[s - 1][i] & 0xFF];
  return t;
}

inline std::uint32_t portable(std::uint32_t crc, const unsigned char* p, std::size_t n) {
  static constexpr auto kTables = make_tables();
  for (; n >= 8; p += 8, n -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t b = 0; b < 8; ++b) crc ^= kTables[7 - b][(word >> (8 * b)) & 0xFF];
  }
  for (; n; ++p, --n) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
  return crc;
}

#if defined(__x86_64__)
#define CUTRACE_CRC_TARGET __attribute__((target("sse4.2,crc32")))
CUTRACE_CRC_TARGET inline std::uint64_t add_word(std::uint64_t crc, std::uint64_t word) { return _mm_crc32_u64(crc, word); }
CUTRACE_CRC_TARGET inline std::uint32_t add_byte(std::uint32_t crc, unsigned char byte) {
  return _mm_crc32_u8(crc, byte);
}
inline bool has_hardware() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
#define CUTRACE_CRC_TARGET __attribute__((target("+crc")))
CUTRACE_CRC_TARGET inline std::uint64_t add_word(std::uint64_t crc, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
}
CUTRACE_CRC_TARGET inline std::uint32_t add_byte(std::uint32_t crc, unsigned char byte) { return __crc32cb(crc, byte); }
inline bool has_hardware() { return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; }  // HWCAP_CRC32
#endif

#if defined(CUTRACE_CRC_TARGET)
// The instruction has a latency of three cycles and a throughput of one, so three parts of the data are processed at once.
inline constexpr std::size_t kPart = 2048;

// Tables that append kPart zero bytes to a checksum. The operation is linear, so one table for each byte of the checksum is
// enough.
consteval std::array<std::array<std::uint32_t, 256>, 4> make_shift() {
  const auto step = make_tables()[0];
  std::array<std::array<std::uint32_t, 256>, 4> t{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t c = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < kPart; ++i) c = (c >> 8) ^ step[c & 0xFF];
    for (std::size_t value = 0; value < 256; ++value)
      if (value >> (bit % 8) & 1) t[bit / 8][value] ^= c;
  }
  return t;
}

inline std::uint32_t shifted(std::uint32_t crc) {
  static constexpr auto kShift = make_shift();
  return kShift[0][crc & 0xFF] ^ kShift[1][crc >> 8 & 0xFF] ^ kShift[2][crc >> 16 & 0xFF] ^ kShift[3][crc >> 24];
}

// Checksums are 64-bit numbers in the loops, because the instruction takes and returns such numbers: each conversion would be an
// instruction of its own.
CUTRACE_CRC_TARGET inline std::uint32_t hardware(std::uint32_t before, const unsigned char* p, std::size_t n) {
  const auto word = [](const unsigned char* at) {
    std::uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  std::uint64_t first = before;
  for (; n >= 3 * kPart; p += 3 * kPart, n -= 3 * kPart) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kPart; i += 8) {
      first = add_word(first, word(p + i));
      second = add_word(second, word(p + kPart + i));
      third = add_word(third, word(p + 2 * kPart + i));
    }
    const std::uint64_t both = shifted(static_cast<std::uint32_t>(first)) ^ second;
    first = shifted(static_cast<std::uint32_t>(both)) ^ third;
  }
  for (; n >= 8; p += 8, n -= 8) first = add_word(first, word(p));
  auto crc = static_cast<std::uint32_t>(first);
  for (; n; ++p, --n) crc = add_byte(crc, *p);
  return crc;
}
inline const bool fast = has_hardware();
#undef CUTRACE_CRC_TARGET
#define CUTRACE_CRC_HARDWARE
#endif

}  // namespace crc_detail

// `before`: the checksum of the preceding bytes.
inline std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t before = 0) {
  const auto* p = static_cast<const unsigned char*>(data);
#if defined(CUTRACE_CRC_HARDWARE)
  if (crc_detail::fast) return ~crc_detail::hardware(~before, p, size);
#endif
  return ~crc_detail::portable(~before, p, size);
}
#undef CUTRACE_CRC_HARDWARE

}  // namespace cutrace
