// Results for Python: bytes, and vectors and uninitialized arrays that become NumPy arrays without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace cutrace {

inline nanobind::bytes to_bytes(std::string_view text) { return nanobind::bytes(text.data(), text.size()); }

template <typename T>
nanobind::object to_array(std::vector<T>&& values) {
  namespace nb = nanobind;
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  const std::size_t size = owned->size();
  nb::capsule owner(owned.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

// An uninitialized array for results of a known size.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t size) : values_(std::make_unique_for_overwrite<T[]>(size)), size_(size) {}
  T& operator[](std::size_t i) { return values_[i]; }
  const T& operator[](std::size_t i) const { return values_[i]; }
  std::size_t size() const { return size_; }
  void shrink(std::size_t size) { size_ = size; }  // drops the last values
  T* release() { return values_.release(); }

 private:
  std::unique_ptr<T[]> values_;
  std::size_t size_;
};

template <typename T>
nanobind::object to_array(Array<T>&& values) {
  namespace nb = nanobind;
  const std::size_t size = values.size();
  T* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

}  // namespace cutrace
