// The values of a column in a loop: what a View knows, without what a compiler has to look up again after each store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "view.h"

namespace cutrace {

// For a caller that has checked the type, as long as the view lives.
template <typename T>
class Values {
 public:
  explicit Values(const View& view) : data_(view.data()), stride_(view.stride()) {}

  T operator[](std::size_t row) const {
    T value;
    std::memcpy(&value, data_ + static_cast<std::ptrdiff_t>(row) * stride_, sizeof value);
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::ptrdiff_t stride_;
};

}  // namespace cutrace
