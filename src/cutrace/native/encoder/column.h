// A column of one call of the encoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "encoder.h"
#include "view.h"

namespace cutrace {

// A column, ready to be read: eight bytes at once, of which the shifts leave the value. The last rows, behind which
// eight bytes might not be there, are read by type.
struct Column {
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;
  Type type = Type::kU64;
  unsigned shift = 0;
  bool is_signed = false;
  std::size_t size = 0;
  std::size_t wide = 0;  // rows that can be read wide
  const Blobs* blobs = nullptr;

  Column() = default;
  explicit Column(const View& v) : data(v.data()), stride(v.stride()), type(v.type()), size(v.size()) {
    shift = 64u - 8u * static_cast<unsigned>(v.item_size());
    is_signed = type >= Type::kI8 && type <= Type::kI64;
    if (v.item_size() == 8) {
      wide = size;
    } else if (stride > 0) {
      const auto last = static_cast<std::size_t>(8 - v.item_size() + stride - 1) / static_cast<std::size_t>(stride);
      wide = size > last ? size - last : 0;
    }
  }

  // `all_wide`: the caller knows that the row can be read wide.
  template <bool all_wide>
  std::uint64_t at(std::size_t row) const {
    const std::uint8_t* p = data + static_cast<std::ptrdiff_t>(row) * stride;
    if (!all_wide && row >= wide) return View::load(p, type);
    std::uint64_t value;
    std::memcpy(&value, p, sizeof value);
    value <<= shift;
    return is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> shift) : value >> shift;
  }
};

}  // namespace cutrace
