// Protobuf's wire format, written into memory that the caller has checked to be large enough.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/blobs.h"

namespace cutrace {

inline constexpr std::size_t kVarintMax = 10;
inline constexpr std::size_t kLengthMax = 5;

// The functions below may write up to this many bytes after their output, and read as many after their input.
inline constexpr std::size_t kSlack = Blobs::kRoom;

// Writes a number below 2^56 without a branch on its size, because the sizes of neighbouring values are unpredictable. The
// groups of seven bits are spread over eight bytes at once.
inline std::uint8_t* put_short_varint(std::uint8_t* at, std::uint64_t value) {
  const unsigned bits = 64u - static_cast<unsigned>(std::countl_zero(value | 1));
  const unsigned size = (bits * 9 + 64) / 64;
  std::uint64_t x = value;
  x = (x & 0x00FFFFFFF0000000u) << 4 | (x & 0x000000000FFFFFFFu);
  x = (x & 0x0FFFC0000FFFC000u) << 2 | (x & 0x00003FFF00003FFFu);
  x = (x & 0x3F803F803F803F80u) << 1 | (x & 0x007F007F007F007Fu);
  x |= 0x0080808080808080u >> (64 - 8 * size);  // the high bit marks all bytes but the last
  std::memcpy(at, &x, sizeof x);
  return at + size;
}

// Writes a number of 2^56 or more.
inline std::uint8_t* put_long_varint(std::uint8_t* at, std::uint64_t value) {
  while (value >= 0x80) {
    *at++ = static_cast<std::uint8_t>(value | 0x80);
    value >>= 7;
  }
  *at++ = static_cast<std::uint8_t>(value);
  return at;
}

// Most columns have only small or only large numbers, so these branches are predictable.
inline std::uint8_t* put_varint(std::uint8_t* at, std::uint64_t value) {
  if (value < 0x80) {
    *at = static_cast<std::uint8_t>(value);
    return at + 1;
  }
  if (value >> 56) [[unlikely]] return put_long_varint(at, value);
  return put_short_varint(at, value);
}

template <typename Operation>
inline std::uint8_t* put_tag(std::uint8_t* at, const Operation& op) {
  std::memcpy(at, op.tag, sizeof op.tag);
  return at + op.tag_size;
}

// Pieces are short, so steps of 32 bytes are faster than a call of memcpy. The last step goes beyond the end.
inline std::uint8_t* put_piece(std::uint8_t* at, const std::uint8_t* piece, std::size_t size) {
  std::memcpy(at, piece, 32);
  for (std::size_t done = 32; done < size; done += 32) [[unlikely]] std::memcpy(at + done, piece + done, 32);
  return at + size;
}

// Whether the length of a nested message takes the one byte that was reserved.
inline bool is_short_message(const std::uint8_t* body, const std::uint8_t* end) { return end - body < 0x80; }

// Fills in the length of a short message.
inline void close_short_message(std::uint8_t* body, const std::uint8_t* end) {
  body[-1] = static_cast<std::uint8_t>(end - body);
}

// Moves a longer message to make room for its length, and fills it in. Returns the new end.
inline std::uint8_t* close_long_message(std::uint8_t* body, const std::uint8_t* end) {
  const auto length = static_cast<std::uint64_t>(end - body);
  std::uint8_t coded[kVarintMax];
  const auto size = put_varint(coded, length) - coded;
  std::memmove(body - 1 + size, body, length);
  std::memcpy(body - 1, coded, static_cast<std::size_t>(size));
  return body - 1 + size + length;
}

}  // namespace cutrace
