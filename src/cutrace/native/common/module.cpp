// Checksums, checks of columns and of strings, demangling and tables of pieces for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "common/blobs.h"
#include "common/column.h"
#include "common/conditions.h"
#include "common/crc32c.h"
#include "common/demangle.h"
#include "common/transpose.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// The loops have no branches, because nearly all calls read all rows.
template <typename T>
bool any_above(Column<T> column, std::uint64_t most) {
  T highest = 0;
  for (std::size_t row = 0; row < column.size; ++row) highest = std::max(highest, column[row]);
  return highest > most;
}

bool exceeds(const AnyColumn& column, std::uint64_t most) {
  switch (column.type) {
    case Type::kU8: return any_above(column.as<std::uint8_t>(), most);
    case Type::kU16: return any_above(column.as<std::uint16_t>(), most);
    case Type::kU32: return any_above(column.as<std::uint32_t>(), most);
    case Type::kU64: return any_above(column.as<std::uint64_t>(), most);
    default: throw std::invalid_argument("the column needs unsigned integers");
  }
}

bool any_outside(Column<std::uint64_t> starts, Column<std::uint64_t> ends, std::uint64_t latest) {
  need_rows(starts.size, ends);
  bool any = false;
  for (std::size_t row = 0; row < starts.size; ++row) {
    const std::uint64_t start = starts[row], end = ends[row];
    any |= (start == 0) | (start > end) | (end > latest);
  }
  return any;
}

nb::bytes transposed(Bytes data, bool back) {
  nb::bytes out(nullptr, data.size);
  auto* const bytes = reinterpret_cast<unsigned char*>(PyBytes_AsString(out.ptr()));
  const nb::gil_scoped_release released;
  transpose_rows(data.data, data.size, bytes, back);
  return out;
}

}  // namespace

void bind_common(nb::module_& m) {
  m.def("crc32c", [](Bytes bytes) { return crc32c(bytes.data, bytes.size); }, nb::arg("data"),
        nb::call_guard<nb::gil_scoped_release>(), "CRC-32C (Castagnoli) of a contiguous bytes-like object.");
  m.def("transposed", &transposed, nb::arg("data"), nb::arg("back") = false,
        "A part of a capture with the rows of its blocks as columns of bytes; with ``back``, with rows again.");
  m.def("exceeds", &exceeds, nb::arg("column"), nb::arg("most"), nb::call_guard<nb::gil_scoped_release>(),
        "Whether any number of a column of unsigned integers is above ``most``.");
  m.def("any_outside", &any_outside, nb::arg("starts"), nb::arg("ends"), nb::arg("latest"),
        nb::call_guard<nb::gil_scoped_release>(), "Whether some rows do not have 0 < start <= end <= ``latest``.");
  m.def("demangle", &demangle, nb::arg("name"),
        "The C++ name of an Itanium-ABI mangled name. Returns any other name unchanged, and a name whose plain form would be\n"
        "too large.");
  m.def("is_condition", [](std::string_view text) { return parse_condition(text).has_value(); }, nb::arg("text"),
        "Whether the collector can read a condition for dumps.");
  nb::class_<Blobs>(m, "Blobs", "Encoded pieces by id, for the operation that copies pieces into rows.")
      .def(nb::init<>())
      .def("add", [](Blobs& self, nb::bytes piece) { return self.add(piece.c_str(), piece.size()); }, nb::arg("piece"),
           "Append a piece and return its id.")
      .def("__len__", &Blobs::size);
}

}  // namespace cutrace
