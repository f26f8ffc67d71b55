// cutrace._native
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "column.h"
#include "common/crc32c.h"
#include "demangle.h"
#include "encoder.h"

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "unknown"
#endif

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "Native helpers of cutrace: checksums, demangling, protobuf encoding from columns, columns from JSON.";
  m.attr("VERSION") = CUTRACE_VERSION;
  m.def(
      "crc32c",
      [](cutrace::Bytes bytes) { return cutrace::crc32c(bytes.data, bytes.size); }, nb::arg("data"),
      nb::call_guard<nb::gil_scoped_release>(), "CRC-32C (Castagnoli) of a contiguous bytes-like object.");
  m.def("demangle", &cutrace::demangle, nb::arg("name"),
        "The C++ name behind an Itanium-ABI mangled one. Any other name comes back as it is, and one whose plain form would\n"
        "be out of proportion.");
  // Programs are kept in caches up to the end of the interpreter: that is no leak to speak of.
  nb::set_leak_warnings(false);
  cutrace::register_encoder(m);
  cutrace::register_keys(m);
  cutrace::register_lanes(m);
  cutrace::register_events(m);
  cutrace::register_unpack(m);
  cutrace::register_json_rows(m);
  cutrace::register_calls(m);
  cutrace::register_tally(m);
  cutrace::register_spreads(m);
  cutrace::register_work(m);
}
