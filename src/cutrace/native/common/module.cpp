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
        "The C++ name behind an Itanium-ABI mangled one. Any other name comes back as it is, and one whose plain form would\n"
        "be out of proportion.");
  nb::class_<Blobs>(m, "Blobs", "Encoded pieces by id, for the operation that copies a piece into a row.")
      .def(nb::init<>())
      .def("add", [](Blobs& self, nb::bytes piece) { return self.add(piece.c_str(), piece.size()); }, nb::arg("piece"),
           "Append a piece; its id.")
      .def("__len__", &Blobs::size);
}

}  // namespace cutrace
