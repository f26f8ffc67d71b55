// A column of one call of the encoder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "encoder.h"
#include "view.h"

namespace cutrace {

// A column, or a table of pieces standing in its place.
struct Column {
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;
  Type type = Type::kU64;
  std::size_t size = 0;
  const Blobs* blobs = nullptr;

  Column() = default;
  explicit Column(const View& v) : data(v.data()), stride(v.stride()), type(v.type()), size(v.size()) {}

  std::uint64_t operator[](std::size_t row) const {
    return View::load(data + static_cast<std::ptrdiff_t>(row) * stride, type);
  }
};

}  // namespace cutrace
