// Unpacker and Nesting for Python: see unpack.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "import/unpack.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

using FieldTuple = std::tuple<std::uint32_t, unsigned, std::uint32_t, bool>;
using MessageTuple = std::pair<int, std::vector<FieldTuple>>;

Unpacker* make(const std::vector<MessageTuple>& nodes, std::size_t columns, const std::vector<std::size_t>& group_columns) {
  std::vector<MessagePlan> plan;
  for (const auto& [group, rules] : nodes) {
    plan.push_back({{}, group});
    for (const auto& [number, act, target, row] : rules) {
      if (act > static_cast<unsigned>(Act::kReport)) throw std::invalid_argument("there is no such act");
      plan.back().rules.push_back({number, static_cast<Act>(act), row, target});
    }
  }
  return new Unpacker(std::move(plan), columns, group_columns);
}

nb::list to_arrays(std::vector<std::vector<std::uint64_t>>&& columns) {
  nb::list out;
  for (auto& column : columns) out.append(to_array(std::move(column)));
  return out;
}

nb::tuple read(const Unpacker& self, Bytes bytes) {
  Unpacked found;
  {
    nb::gil_scoped_release release;
    found = self.read(bytes.data, bytes.size);
  }
  nb::list groups;
  for (Entries& entries : found.groups)
    groups.append(nb::make_tuple(to_array(std::move(entries.rows)), to_arrays(std::move(entries.columns))));
  return nb::make_tuple(found.consumed, found.broken, found.bad, to_arrays(std::move(found.columns)), groups,
                        to_array(std::move(found.begins)), to_array(std::move(found.sizes)), to_array(std::move(found.before)));
}

nb::object feed(Nesting& self, Column<std::uint64_t> tracks, Column<std::uint8_t> phases) {
  need_rows(tracks.size, phases);
  Array<std::int64_t> begins(tracks.size);
  {
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < tracks.size; ++row) begins[row] = self.feed(tracks[row], phases[row]);
  }
  return to_array(std::move(begins));
}

}  // namespace

void bind_unpack(nb::module_& m) {
  nb::class_<Unpacker>(m, "Unpacker", "Columns from protobuf, as a plan says; see unpack.h.")
      .def(nb::new_(&make), nb::arg("nodes"), nb::arg("columns"), nb::arg("group_columns"))
      .def("read", &read, nb::arg("data"),
           "Reads the whole messages at the begin of bytes: (bytes consumed, whether no message can follow, messages left\n"
           "out, columns, for each group (rows, columns), and of reported messages the begins, sizes and rows before).");
  nb::class_<Nesting>(m, "Nesting", "Finds the begin that an end ends.")
      .def(nb::init<>())
      .def("feed", &feed, nb::arg("tracks"), nb::arg("phases"),
           "For each event (phase 1 begins, 2 ends) the number, from the first event ever, of the one that it ends, else -1.")
      .def("take_open", [](Nesting& self) { return to_array(self.take_open()); }, "Begins that have not ended; forgotten then.")
      .def_prop_ro("open", &Nesting::open, "How many begins have not ended.");
}

}  // namespace cutrace
