#include "stats/spreads.h"

#include <nanobind/nanobind.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

void add(Spreads& spreads, Column<std::uint32_t> groups, Column<std::int64_t> numbers) {
  need_rows(numbers.size, groups);
  nb::gil_scoped_release release;
  spreads.add(groups, numbers, numbers.size);
}

// An array of a value of each row.
template <typename Rows, typename Get>
nb::object column(const Rows& rows, const Get& get) {
  std::vector<std::remove_cvref_t<decltype(std::invoke(get, rows[0]))>> out(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) out[i] = std::invoke(get, rows[i]);
  return to_array(std::move(out));
}

template <typename Rows, typename... Get>
nb::tuple columns(const Rows& rows, const Get&... get) {
  return nb::make_tuple(column(rows, get)...);
}

}  // namespace

void bind_spreads(nb::module_& m) {
  nb::class_<Spreads>(m, "Spreads", "Numbers by group: how many, sum, extremes, deviation and histogram.")
      .def(nb::init<>())
      .def("add", &add, nb::arg("groups"), nb::arg("numbers"), "Take in numbers from 0 of the group beside each.")
      .def("__len__", [](const Spreads& s) { return s.spreads().size(); }, "One more than the largest group.")
      .def("columns",
           [](const Spreads& s) {
             using Spread = Spreads::Spread;
             return columns(s.spreads(), &Spread::count, &Spread::high, &Spread::low, &Spread::least, &Spread::greatest,
                            &Spread::deviations);
           },
           "By group (counts, sums >> 64, sums & (2**64 - 1), least, greatest, squares of differences from the mean).")
      .def("bins",
           [](const Spreads& s) {
             using Bin = Spreads::Bin;
             return columns(s.bins(), &Bin::group, &Bin::begin, &Bin::end, &Bin::count);
           },
           "The histogram: (groups, begins, ends, counts). A bin has the numbers from its begin to below its\n"
           "end, rounded to a float32.");
}

}  // namespace cutrace
