// Results for Python: vectors that become NumPy arrays without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <utility>
#include <vector>

namespace cutrace {

template <typename T>
nanobind::object to_array(std::vector<T>&& values) {
  namespace nb = nanobind;
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  const std::size_t size = owned->size();
  nb::capsule owner(owned.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

}  // namespace cutrace
