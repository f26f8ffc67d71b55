// PerfettoReader for Python: see perfetto.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "import/perfetto.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

std::string_view view(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data), bytes.size}; }

nb::list bytes_of(const std::vector<std::string>& strings) {
  nb::list out;
  for (const std::string& one : strings) out.append(to_bytes(one));
  return out;
}

constexpr const char* kLeft[] = {"packets", "track events", "GPU events", "computed", "ends", "first values",
                                 "legacy events"};

}  // namespace

void bind_perfetto(nb::module_& m) {
  nb::class_<PerfettoReader>(m, "PerfettoReader", "Packets of Perfetto traces, as the events of a scanner; see perfetto.h.")
      .def(nb::init<EventScanner&>(), nb::arg("events"), nb::keep_alive<1, 2>())
      .def("read",
           [](PerfettoReader& self, Bytes data, std::size_t at, std::size_t most) {
             std::vector<PerfettoReader::Packed> packed;
             {
               nb::gil_scoped_release released;
               at = self.read(view(data), at, most, packed);
             }
             nb::list groups;
             for (const auto& group : packed) groups.append(nb::make_tuple(group.zstd, to_bytes(group.bytes)));
             return nb::make_tuple(at, groups);
           },
           nb::arg("data"), nb::arg("at"), nb::arg("most"),
           "Read packets from a position on, up to an incomplete one, up to one with compressed packets, or until the scanner has\n"
           "`most` events. Returns the position after the last packet, and the compressed packets as (zstd or deflate, bytes).\n"
           "Raises ValueError at bytes that are not a packet.")
      .def("finish", &PerfettoReader::finish, nb::call_guard<nb::gil_scoped_release>(), "End the trace: add the events and slices that wait for more\n"
                                                                                        "data.")
      .def_static("begins", [](Bytes head) { return PerfettoReader::begins(view(head)); }, nb::arg("head"),
                  "Whether a file that starts with these bytes is a trace.")
      .def("losses",
           [](PerfettoReader& self) {
             nb::list out;
             for (const auto& [loss, count] : self.losses())
               out.append(nb::make_tuple(nb::str(loss.first.data(), loss.first.size()), nb::str(loss.second.data(), loss.second.size()), count));
             return out;
           },
           "The losses since the last call: (kind, reason, count).")
      .def_prop_ro("left",
                   [](const PerfettoReader& self) {
                     nb::list out;
                     for (const auto& [what, count] : self.left())
                       out.append(nb::make_tuple(kLeft[static_cast<std::size_t>(what.first)], what.second, count));
                     return out;
                   },
                   "The data that were left out: (packets, track events, GPU events, computed or ends, number of the field,\n"
                   "count).")
      .def_prop_ro("added", &PerfettoReader::added, "The number of added events.")
      .def_prop_ro("of_cutrace", &PerfettoReader::of_cutrace, "Whether cutrace wrote the trace.")
      .def_prop_ro("carried",
                   [](const PerfettoReader& self) { return bytes_of(self.carried()); },
                   "What cutrace wrote about the losses of the capture, as JSON: one for each trace in the file.")
      .def_prop_ro("of_torch", &PerfettoReader::of_torch, "Whether GPU work has the arguments that torch.profiler writes.")
      .def_prop_ro("devices",
                   [](const PerfettoReader& self) { return bytes_of(self.devices()); },
                   "The names of the GPUs.")
      .def_prop_ro("gpu_processes", &PerfettoReader::gpu_processes, "The processes of GPU work.")
      .def_prop_ro("host", &PerfettoReader::host, "The process of the first event.")
      .def_prop_ro("realtime", &PerfettoReader::realtime, "The real time (ns) at time 0 of BOOTTIME, None if unknown.");
}

}  // namespace cutrace
