// Protobuf's wire format, written into memory that the caller knows to be large enough.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cutrace {

inline constexpr std::size_t kVarintMax = 10;
inline constexpr std::size_t kLengthMax = 5;

// Where the functions below may write behind what they put, and read behind what they copy.
inline constexpr std::size_t kSlack = 16;

// One and two bytes are most of all; beyond them a loop would mispredict its end, since the sizes of neighbouring
// values differ, so the groups of seven bits are spread over eight bytes at once.
inline std::uint8_t* put_varint(std::uint8_t* at, std::uint64_t value) {
  if (value < 0x80) {
    *at = static_cast<std::uint8_t>(value);
    return at + 1;
  }
  if (value < 0x4000) {
    const auto two = static_cast<std::uint16_t>((value & 0x7F) | 0x80 | (value >> 7) << 8);
    std::memcpy(at, &two, sizeof two);
    return at + 2;
  }
  if (value >> 56) [[unlikely]] {
    while (value >= 0x80) {
      *at++ = static_cast<std::uint8_t>(value | 0x80);
      value >>= 7;
    }
    *at++ = static_cast<std::uint8_t>(value);
    return at;
  }
  std::uint64_t x = value;
  x = (x & 0x00FFFFFFF0000000u) << 4 | (x & 0x000000000FFFFFFFu);
  x = (x & 0x0FFFC0000FFFC000u) << 2 | (x & 0x00003FFF00003FFFu);
  x = (x & 0x3F803F803F803F80u) << 1 | (x & 0x007F007F007F007Fu);
  const unsigned last = (63u - static_cast<unsigned>(std::countl_zero(x))) & ~7u;  // first bit of the last byte
  x |= 0x8080808080808080u & ((std::uint64_t{1} << last) - 1);
  std::memcpy(at, &x, sizeof x);
  return at + last / 8 + 1;
}

template <typename Operation>
inline std::uint8_t* put_tag(std::uint8_t* at, const Operation& op) {
  std::memcpy(at, op.tag, sizeof op.tag);
  return at + op.tag_size;
}

// Pieces are short: whole steps of 16 bytes, the last one reaching behind the end, beat a call of memcpy.
inline std::uint8_t* put_piece(std::uint8_t* at, const std::uint8_t* piece, std::size_t size) {
  for (std::size_t done = 0; done < size; done += 16) std::memcpy(at + done, piece + done, 16);
  return at + size;
}

// Fills in the length of a nested message for which one byte was left open.
inline std::uint8_t* close_message(std::uint8_t* body, std::uint8_t* end) {
  const auto length = static_cast<std::uint64_t>(end - body);
  if (length < 0x80) [[likely]] {
    body[-1] = static_cast<std::uint8_t>(length);
    return end;
  }
  std::uint8_t coded[kVarintMax];
  const auto size = put_varint(coded, length) - coded;
  std::memmove(body - 1 + size, body, length);
  std::memcpy(body - 1, coded, static_cast<std::size_t>(size));
  return end + size - 1;
}

}  // namespace cutrace
