// cutrace._native
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "column.h"
#include "common/crc32c.h"
#include "demangle.h"

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "unknown"
#endif

namespace nb = nanobind;

namespace cutrace {
void register_encoder(nb::module_&), register_keys(nb::module_&), register_lanes(nb::module_&), register_events(nb::module_&),
    register_unpack(nb::module_&), register_json_rows(nb::module_&), register_calls(nb::module_&), register_levels(nb::module_&),
    register_tally(nb::module_&), register_spreads(nb::module_&), register_work(nb::module_&);
}  // namespace cutrace

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
  for (const auto add : {cutrace::register_encoder, cutrace::register_keys, cutrace::register_lanes, cutrace::register_events,
                         cutrace::register_unpack, cutrace::register_json_rows, cutrace::register_calls,
                         cutrace::register_levels, cutrace::register_tally, cutrace::register_spreads,
                         cutrace::register_work})
    add(m);
}
