// Dense numbers for tuples of column values.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "common/table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// Numbers tuples of `width` values from 0 in the order of their first appearance. A key is the concatenated bytes of its
// values, padded to whole words.
class Keys {
 public:
  explicit Keys(std::size_t width) : width_(width) {
    if (width == 0 || width > 16) throw std::invalid_argument("a key has 1 to 16 columns");
  }

  nb::tuple ids(const std::vector<AnyColumn>& columns) {
    if (columns.size() != width_) throw std::invalid_argument("the number of columns must be the width");
    const std::size_t rows = columns[0].size;
    for (const AnyColumn& column : columns) need_rows(rows, column);
    check_types(columns);
    Array<std::uint32_t> out(rows);
    std::vector<std::uint32_t> first;
    {
      nb::gil_scoped_release release;
      std::vector<std::uint64_t> keys(kBatch * words_);
      for (std::size_t begin = 0; begin < rows; begin += kBatch) {
        const std::size_t count = std::min(kBatch, rows - begin);
        auto* to = reinterpret_cast<std::uint8_t*>(keys.data());
        for (const AnyColumn& column : columns) {
          gather(column, begin, count, to);
          to += column.item_size();
        }
        for_width([&](auto words) {
          for (std::size_t row = 0; row < count; ++row) {
            const std::uint32_t known = numbers_.size();
            out[begin + row] = number(keys.data() + row * words, words);
            if (numbers_.size() > known) first.push_back(static_cast<std::uint32_t>(begin + row));
          }
        });
      }
    }
    return nb::make_tuple(to_array(std::move(out)), to_array(std::move(first)));
  }

  std::size_t size() const { return numbers_.size(); }

 private:
  static constexpr std::size_t kBatch = 256;  // number of keys that are built at a time

  // The first call determines the size of a key. Later calls need columns of the same sizes.
  void check_types(const std::vector<AnyColumn>& columns) {
    std::vector<std::ptrdiff_t> sizes;
    for (const AnyColumn& column : columns) sizes.push_back(column.item_size());
    if (words_ == 0) {
      sizes_ = sizes;
      words_ = (static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::ptrdiff_t{0})) + 7) / 8;
    }
    if (sizes != sizes_) throw std::invalid_argument("the columns need the types of the first call");
  }

  template <typename T>
  void gather_as(Column<T> column, std::size_t begin, std::size_t count, std::uint8_t* to) const {
    for (std::size_t row = 0; row < count; ++row) {
      const T value = column[begin + row];
      std::memcpy(to + row * words_ * 8, &value, sizeof value);
    }
  }

  void gather(const AnyColumn& column, std::size_t begin, std::size_t count, std::uint8_t* to) const {
    switch (column.item_size()) {
      case 1: return gather_as(column.as<std::uint8_t>(), begin, count, to);
      case 2: return gather_as(column.as<std::uint16_t>(), begin, count, to);
      case 4: return gather_as(column.as<std::uint32_t>(), begin, count, to);
      default: return gather_as(column.as<std::uint64_t>(), begin, count, to);
    }
  }

  // Calls a function with the number of words of a key, as a constant for small keys, so that the compiler unrolls loops.
  template <typename Function>
  void for_width(const Function& function) {
    switch (words_) {
      case 1: return function(std::integral_constant<std::size_t, 1>());
      case 2: return function(std::integral_constant<std::size_t, 2>());
      case 3: return function(std::integral_constant<std::size_t, 3>());
      default: return function(words_);
    }
  }

  // For a few words, a loop is faster than memcmp.
  template <typename Words>
  static bool equal(const std::uint64_t* a, const std::uint64_t* b, Words words) {
    std::uint64_t difference = 0;
    for (std::size_t i = 0; i < words; ++i) difference |= a[i] ^ b[i];
    return difference == 0;
  }

  template <typename Words>
  std::uint32_t number(const std::uint64_t* key, Words words) {
    return numbers_.add(
        hash_of(key, words), [&](std::uint32_t known) { return equal(key, keys_.data() + known * words, words); },
        [&] { keys_.insert(keys_.end(), key, key + words); });
  }

  std::size_t width_;
  std::size_t words_ = 0;
  std::vector<std::ptrdiff_t> sizes_;
  std::vector<std::uint64_t> keys_;
  Table numbers_;
};

}  // namespace

void bind_keys(nb::module_& m) {
  nb::class_<Keys>(m, "Keys", "Numbers tuples of column values from 0 in the order of their first appearance.")
      .def(nb::init<std::size_t>(), nb::arg("width"))
      .def("ids", &Keys::ids, nb::arg("columns"),
           "(number of each row's tuple as uint32, rows with new tuples in ascending order)")
      .def("__len__", &Keys::size);
}

}  // namespace cutrace
