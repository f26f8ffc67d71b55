// Checksums, demangling and tables of pieces for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "common/blobs.h"
#include "common/column.h"
#include "common/crc32c.h"
#include "common/demangle.h"

namespace nb = nanobind;

namespace cutrace {

void bind_common(nb::module_& m) {
  m.def("crc32c", [](Bytes bytes) { return crc32c(bytes.data, bytes.size); }, nb::arg("data"),
        nb::call_guard<nb::gil_scoped_release>(), "CRC-32C (Castagnoli) of a contiguous bytes-like object.");
  m.def("demangle", &demangle, nb::arg("name"),
        "The C++ name of an Itanium-ABI mangled name. Returns any other name unchanged, and a name whose plain form would be\n"
        "too large.");
  nb::class_<Blobs>(m, "Blobs", "Encoded pieces by id, for the operation that copies pieces into rows.")
      .def(nb::init<>())
      .def("add", [](Blobs& self, nb::bytes piece) { return self.add(piece.c_str(), piece.size()); }, nb::arg("piece"),
           "Append a piece and return its id.")
      .def("__len__", &Blobs::size);
}

}  // namespace cutrace
