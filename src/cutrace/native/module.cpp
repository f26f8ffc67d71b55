// cutrace._native: the parts that are too slow in Python. Each folder here binds its own part.
#include <nanobind/nanobind.h>

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "unknown"
#endif

namespace nb = nanobind;

namespace cutrace {
void bind_common(nb::module_&), bind_keys(nb::module_&);                                                    // common
void bind_encoder(nb::module_&), bind_lanes(nb::module_&), bind_submissions(nb::module_&);                 // perfetto
void bind_events(nb::module_&), bind_perfetto(nb::module_&);                                               // import
void bind_levels(nb::module_&), bind_spreads(nb::module_&), bind_calls(nb::module_&), bind_inner_times(nb::module_&),
    bind_path_times(nb::module_&), bind_projections(nb::module_&), bind_range_threads(nb::module_&),
    bind_work(nb::module_&);  // stats
}  // namespace cutrace

NB_MODULE(_native, m) {
  m.doc() = "Native helpers of cutrace: checksums, demangling, protobuf encoding from columns, columns from JSON and protobuf.";
  m.attr("VERSION") = CUTRACE_VERSION;
  // Cached programs live until the interpreter ends, and nanobind would report them as leaks.
  nb::set_leak_warnings(false);
  for (const auto bind : {cutrace::bind_common, cutrace::bind_keys, cutrace::bind_encoder,
                          cutrace::bind_lanes, cutrace::bind_submissions, cutrace::bind_events, cutrace::bind_perfetto,
                          cutrace::bind_levels, cutrace::bind_spreads, cutrace::bind_calls, cutrace::bind_inner_times,
                          cutrace::bind_path_times, cutrace::bind_projections, cutrace::bind_range_threads,
                          cutrace::bind_work})
    bind(m);
}
