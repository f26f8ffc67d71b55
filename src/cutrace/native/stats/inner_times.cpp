// The time of slices in their direct inner slices, by group.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "common/table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class InnerTimes {
 public:
  void add(Column<std::uint32_t> threads, Column<std::int64_t> starts, Column<std::int64_t> ends,
           Column<std::uint32_t> groups, std::optional<Column<std::uint16_t>> levels) {
    need_rows(starts.size, threads, ends, groups);
    if (levels) need_rows(starts.size, *levels);
    nb::gil_scoped_release release;
    std::vector<std::size_t> order;
    for (std::size_t begin = 0; begin < starts.size; begin += order.size()) {
      std::size_t end = begin + 1;
      while (end < starts.size && starts[end] == starts[begin]) ++end;
      order.resize(end - begin);
      std::iota(order.begin(), order.end(), begin);
      // If slices have the same start, the longest slice encloses the others. Of equal times, the level decides.
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        if (ends[a] != ends[b]) return ends[a] > ends[b];
        return levels && (*levels)[a] < (*levels)[b];
      });
      for (const std::size_t row : order) begin_slice({starts[row], ends[row], groups[row]}, threads[row]);
    }
  }

  // Drops the open slices before the threads of another process follow.
  void finish() { open_ = {}; }
  const std::vector<std::uint64_t>& times() const { return times_; }

 private:
  struct Slice {
    std::int64_t start, end;
    std::uint32_t group;
  };

  void begin_slice(Slice slice, std::uint32_t thread) {
    std::vector<Slice>& open = open_[thread];
    while (!open.empty() && open.back().end <= slice.start) open.pop_back();
    if (!open.empty()) {
      const Slice& outer = open.back();
      if (outer.group >= times_.size()) times_.resize(std::size_t{outer.group} + 1);
      times_[outer.group] += static_cast<std::uint64_t>(std::min(slice.end, outer.end) - slice.start);
    }
    open.push_back(slice);
  }

  Map<std::vector<Slice>> open_;      // by thread: the slices around the latest one, outermost first
  std::vector<std::uint64_t> times_;  // by group
};

}  // namespace

void bind_inner_times(nb::module_& m) {
  nb::class_<InnerTimes>(m, "InnerTimes", "The time of slices in their direct inner slices, by group.")
      .def(nb::init<>())
      .def("add", &InnerTimes::add, nb::arg("threads"), nb::arg("starts"), nb::arg("ends"), nb::arg("groups"),
           nb::arg("levels") = nb::none(),
           "Add slices in the order of their start (ns). Of slices with equal times, the outer slice has the lower level.")
      .def("finish", &InnerTimes::finish, "Drop the open slices before the slices of another process follow.")
      .def("times", [](const InnerTimes& self) { return to_array(std::vector(self.times())); },
           "The times (ns) by group, up to the last group with a slice that encloses another.");
}

}  // namespace cutrace
