// Arguments of functions for Python: columns of numbers, and bytes. A column is a NumPy array or a field of a packed
// structured array, used without a copy, with any stride and alignment. Arguments are valid during the call, because the
// caller holds them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "common/blobs.h"

namespace cutrace {

enum class Type : std::uint8_t { kU8, kU16, kU32, kU64, kI8, kI16, kI32, kI64, kF32, kF64, kNone };

// Numbers of one type. A column of unsigned numbers also accepts signed numbers of the same size. Functions use this for numbers
// that are never negative, and for sums that wrap around.
template <typename T>
struct Column {
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;
  std::size_t size = 0;

  T operator[](std::size_t row) const {
    T value;
    std::memcpy(&value, data + static_cast<std::ptrdiff_t>(row) * stride, sizeof value);
    return value;
  }
};

// A column that a function modifies.
template <typename T>
struct Writable : Column<T> {
  void set(std::size_t row, T value) const {
    std::memcpy(const_cast<std::uint8_t*>(this->data) + static_cast<std::ptrdiff_t>(row) * this->stride, &value, sizeof value);
  }
};

// Numbers of any type, or a table of pieces.
struct AnyColumn : Column<std::uint8_t> {
  Type type = Type::kU64;
  const Blobs* blobs = nullptr;
  nanobind::object owner;  // keeps an array alive that a sequence created for the call

  std::ptrdiff_t item_size() const {
    constexpr std::ptrdiff_t kSizes[] = {1, 2, 4, 8, 1, 2, 4, 8, 4, 8};
    return kSizes[static_cast<std::size_t>(type)];
  }

  template <typename T>
  Column<T> as() const {
    return {data, stride, size};
  }

  // The value of a row as 64 bits: signed numbers are sign-extended, floats keep their bits.
  std::uint64_t operator[](std::size_t row) const {
    switch (type) {
      case Type::kU8: return data[static_cast<std::ptrdiff_t>(row) * stride];
      case Type::kU16: return as<std::uint16_t>()[row];
      case Type::kU32: case Type::kF32: return as<std::uint32_t>()[row];
      case Type::kI8: return static_cast<std::uint64_t>(std::int64_t{as<std::int8_t>()[row]});
      case Type::kI16: return static_cast<std::uint64_t>(std::int64_t{as<std::int16_t>()[row]});
      case Type::kI32: return static_cast<std::uint64_t>(std::int64_t{as<std::int32_t>()[row]});
      default: return as<std::uint64_t>()[row];
    }
  }
};

struct Bytes {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// Throws unless all columns have this length.
template <typename... Columns>
void need_rows(std::size_t rows, const Columns&... columns) {
  if (((columns.size != rows) || ...)) throw std::invalid_argument("the columns need equal lengths");
}

namespace column_detail {

// The type of a format of Python's struct module, with an optional byte order.
inline Type type_of(const char* format, Py_ssize_t size) {
  if (format == nullptr) format = "B";
  if (std::strchr("@=<", *format) != nullptr) ++format;
  const int width = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : size == 8 ? 3 : -1;
  if (*format == 0 || format[1] != 0 || width < 0) return Type::kNone;
  if (std::strchr("?BHILQ", *format) != nullptr) return static_cast<Type>(width);
  if (std::strchr("bhilq", *format) != nullptr) return static_cast<Type>(static_cast<int>(Type::kI8) + width);
  return *format == 'f' ? Type::kF32 : *format == 'd' ? Type::kF64 : Type::kNone;
}

template <typename T>
bool fits(Type type) {
  constexpr int kWidth = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  const auto given = static_cast<int>(type);
  return given == 4 + kWidth || (std::is_unsigned_v<T> && given == kWidth);
}

// Reads the buffer of an object into a column. Returns kNone for an unsupported object.
template <typename C>
Type read(nanobind::handle object, int flags, C& column) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, flags | PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return Type::kNone;
  }
  const Type type = buffer.ndim == 1 ? type_of(buffer.format, buffer.itemsize) : Type::kNone;
  if (type != Type::kNone) {
    column.data = static_cast<const std::uint8_t*>(buffer.buf);
    column.stride = buffer.strides[0];
    column.size = static_cast<std::size_t>(buffer.shape[0]);
  }
  PyBuffer_Release(&buffer);
  return type;
}

}  // namespace column_detail
}  // namespace cutrace

namespace nanobind::detail {

template <typename T>
struct type_caster<cutrace::Column<T>> {
  NB_TYPE_CASTER(cutrace::Column<T>, const_name<std::is_unsigned_v<T>>("uint", "int") + const_name<8 * sizeof(T)>() + const_name("[:]"))
  bool from_python(handle object, std::uint32_t, cleanup_list*) noexcept {
    return cutrace::column_detail::fits<T>(cutrace::column_detail::read(object, 0, value));
  }
};

template <typename T>
struct type_caster<cutrace::Writable<T>> {
  NB_TYPE_CASTER(cutrace::Writable<T>, const_name("writable uint") + const_name<8 * sizeof(T)>() + const_name("[:]"))
  bool from_python(handle object, std::uint32_t, cleanup_list*) noexcept {
    return cutrace::column_detail::fits<T>(cutrace::column_detail::read(object, PyBUF_WRITABLE, value));
  }
};

template <>
struct type_caster<cutrace::AnyColumn> {
  NB_TYPE_CASTER(cutrace::AnyColumn, const_name("number[:]"))
  bool from_python(handle object, std::uint32_t, cleanup_list*) noexcept {
    value = {};
    value.owner = borrow(object);
    if (isinstance<cutrace::Blobs>(object)) {
      value.blobs = inst_ptr<cutrace::Blobs>(object);
      return true;
    }
    value.type = cutrace::column_detail::read(object, 0, value);
    return value.type != cutrace::Type::kNone;
  }
};

template <>
struct type_caster<cutrace::Bytes> {
  NB_TYPE_CASTER(cutrace::Bytes, const_name("bytes"))
  bool from_python(handle object, std::uint32_t, cleanup_list*) noexcept {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();
      return false;
    }
    value = {static_cast<const std::uint8_t*>(buffer.buf), static_cast<std::size_t>(buffer.len)};
    PyBuffer_Release(&buffer);
    return true;
  }
};

}  // namespace nanobind::detail
