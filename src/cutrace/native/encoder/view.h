// A one-dimensional column of numbers, seen through Python's buffer protocol: NumPy arrays and fields of packed
// structured arrays alike, without copies. Rows may lie at any stride and need not be aligned.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace cutrace {

enum class Type : std::uint8_t { kU8, kU16, kU32, kU64, kI8, kI16, kI32, kI64, kF32, kF64 };

class View {
 public:
  explicit View(nanobind::handle object, bool writable = false) {
    const int flags = writable ? PyBUF_STRIDED | PyBUF_FORMAT : PyBUF_STRIDED_RO | PyBUF_FORMAT;
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw nanobind::python_error();
    held_ = true;
    try {
      if (buffer_.ndim != 1) throw std::invalid_argument("a column has one dimension");
      type_ = type_of(buffer_.format ? buffer_.format : "B", buffer_.itemsize);
    } catch (...) {
      release();
      throw;
    }
  }
  ~View() { release(); }
  View(View&& other) noexcept : buffer_(other.buffer_), type_(other.type_), held_(other.held_) { other.held_ = false; }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  View& operator=(View&&) = delete;

  std::size_t size() const { return static_cast<std::size_t>(buffer_.shape[0]); }
  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(buffer_.buf); }
  std::uint8_t* mutable_data() const { return static_cast<std::uint8_t*>(buffer_.buf); }
  std::ptrdiff_t stride() const { return buffer_.strides[0]; }
  std::ptrdiff_t item_size() const { return buffer_.itemsize; }
  Type type() const { return type_; }

  // The value of a row, for a caller that has checked the type.
  template <typename T>
  T get(std::size_t row) const {
    return at<T>(data() + static_cast<std::ptrdiff_t>(row) * stride());
  }

  // The bits of a row as 64-bit value; signed numbers keep their sign, floats their bits.
  std::uint64_t operator[](std::size_t row) const {
    return load(data() + static_cast<std::ptrdiff_t>(row) * stride(), type_);
  }

  static std::uint64_t load(const std::uint8_t* p, Type type) {
    switch (type) {
      case Type::kU8: return *p;
      case Type::kU16: return at<std::uint16_t>(p);
      case Type::kU32: case Type::kF32: return at<std::uint32_t>(p);
      case Type::kU64: case Type::kI64: case Type::kF64: return at<std::uint64_t>(p);
      case Type::kI8: return static_cast<std::uint64_t>(std::int64_t{at<std::int8_t>(p)});
      case Type::kI16: return static_cast<std::uint64_t>(std::int64_t{at<std::int16_t>(p)});
      case Type::kI32: return static_cast<std::uint64_t>(std::int64_t{at<std::int32_t>(p)});
    }
    return 0;
  }

 private:
  template <typename T>
  static T at(const std::uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }

  void release() {
    if (held_) PyBuffer_Release(&buffer_);
    held_ = false;
  }

  static Type type_of(const std::string& format, Py_ssize_t size) {
    // The struct module's codes, behind an optional mark of byte order.
    const char code = format.empty() ? 'B' : format.back();
    const bool foreign = !format.empty() && (format.front() == '>' || format.front() == '!');
    const bool is_signed = std::strchr("bhilq", code) != nullptr;
    if (!foreign && std::strchr("?BHILQ", code) != nullptr) {
      if (size == 1) return Type::kU8;
      if (size == 2) return Type::kU16;
      if (size == 4) return Type::kU32;
      if (size == 8) return Type::kU64;
    }
    if (!foreign && is_signed) {
      if (size == 1) return Type::kI8;
      if (size == 2) return Type::kI16;
      if (size == 4) return Type::kI32;
      if (size == 8) return Type::kI64;
    }
    if (!foreign && code == 'f' && size == 4) return Type::kF32;
    if (!foreign && code == 'd' && size == 8) return Type::kF64;
    throw std::invalid_argument("a column holds little-endian integers or floats of 1 to 8 bytes, not '" + format +
                                "'");
  }

  Py_buffer buffer_{};
  Type type_ = Type::kU8;
  bool held_ = false;
};

}  // namespace cutrace
