#include "stats/levels.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "common/runs.h"

namespace nb = nanobind;

namespace cutrace {

Levels::Levels(std::uint64_t first, std::uint64_t last, unsigned bits, std::size_t exact, bool means)
    : first_(first), exact_(exact), means_(means) {
  if (last < first || bits > 20) throw std::invalid_argument("levels need last >= first and at most 2**20 parts");
  while ((last - first) >> shift_ >> bits) ++shift_;
  parts_ = static_cast<std::size_t>((last - first) >> shift_) + 1;
}

void Levels::open(std::uint32_t series) {
  if (series >= kMostSeries) throw std::out_of_range("too many counters");
  if (series >= series_.size()) series_.resize(series + 1);
  series_[series].parts.resize(parts_);
}

void Levels::keep(Change one) {
  if (!series_.empty()) return change(one.series, one.time, one.by);
  changes_.push_back(one);
  sorted_ = false;
  if (changes_.size() <= exact_) return;
  series_.resize(1);
  for (const Change& c : changes_) change(c.series, c.time, c.by);
  changes_ = {};
}

void Levels::values(std::uint32_t series, std::vector<std::uint64_t>& times, std::vector<double>& values,
                   std::vector<double>& highest) {
  std::int64_t value = 0;
  if (exact()) {
    const auto earlier = [](const Change& a, const Change& b) {
      return a.series != b.series ? a.series < b.series : a.time < b.time;
    };
    if (!sorted_) sort_runs(changes_.begin(), changes_.end(), earlier);
    sorted_ = true;
    for (auto at = std::lower_bound(changes_.begin(), changes_.end(), Change{series, 0, 0}, earlier);
         at != changes_.end() && at->series == series; ++at) {
      value = sum(value, at->by);
      if (times.empty() || times.back() != at->time) {
        times.push_back(at->time);
        values.push_back(0);
      }
      values.back() = static_cast<double>(value);
    }
    highest = values;
    return;
  }
  if (series >= series_.size()) return;
  const double width = static_cast<double>(std::uint64_t{1} << shift_);
  const std::vector<Part>& parts = series_[series].parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double begin = static_cast<double>(value);
    value = sum(value, parts[i].by);
    times.push_back(first_ + (std::uint64_t{i} << shift_));
    values.push_back(begin + parts[i].weighted / width);
    highest.push_back(std::max({begin, static_cast<double>(value), static_cast<double>(parts[i].highest)}));
  }
  if (!means_) values = highest;
}

namespace {

// A counter for each key, or kNone.
struct Counters {
  Levels* levels;
  Column<std::uint32_t> series;

  void change(std::uint32_t key, std::uint64_t time, std::int64_t by) const {
    if (series[key] != Levels::kNone) levels->change(series[key], time, by);
  }
};

// Calls change(key, row) for each row.
template <typename Change>
void for_each(Column<std::uint32_t> keys, std::size_t most, const Change& change) {
  nb::gil_scoped_release release;
  for (std::size_t row = 0; row < keys.size; ++row) {
    const std::uint32_t key = keys[row];
    if (key >= most) throw std::out_of_range("no counter for a key");
    change(key, row);
  }
}

// The sums change in the same pass over the rows.
void add(Levels& levels, Column<std::uint32_t> keys, Column<std::uint32_t> series, Column<std::uint64_t> factors,
         Column<std::uint64_t> times, Column<std::uint64_t> amounts,
         std::optional<std::pair<Levels*, Column<std::uint32_t>>> sums) {
  need_rows(keys.size, times, amounts);
  need_rows(series.size, factors);
  if (sums) need_rows(series.size, sums->second);
  const Counters counters{&levels, series};
  const auto change = [&](const auto&... changed) {
    for_each(keys, series.size, [&](std::uint32_t key, std::size_t row) {
      const std::uint64_t time = times[row];
      const auto by = static_cast<std::int64_t>(factors[key] * amounts[row]);
      (changed.change(key, time, by), ...);
    });
  };
  if (sums)
    change(counters, Counters{sums->first, sums->second});
  else
    change(counters);
}

void add_stretches(Levels& levels, Column<std::uint32_t> keys, Column<std::uint32_t> series, Column<std::uint64_t> begins,
                   Column<std::uint64_t> ends, Column<std::uint64_t> amounts) {
  need_rows(keys.size, begins, ends, amounts);
  for_each(keys, series.size, [&](std::uint32_t key, std::size_t row) {
    if (series[key] == Levels::kNone) return;
    levels.stretch(series[key], begins[row], ends[row], static_cast<std::int64_t>(amounts[row]));
  });
}

nb::tuple values(Levels& levels, std::uint32_t series) {
  std::vector<std::uint64_t> when;
  std::vector<double> means, highest;
  levels.values(series, when, means, highest);
  return nb::make_tuple(to_array(std::move(when)), to_array(std::move(means)), to_array(std::move(highest)),
                        levels.exact());
}

// Sums of damaged captures wrap around.
class MemoryTotals {
 public:
  void add(Column<std::uint32_t> groups, Column<std::uint8_t> operations, Column<std::uint64_t> sizes) {
    constexpr std::uint8_t kAllocate = 1, kRelease = 2;
    need_rows(groups.size, operations, sizes);
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < groups.size; ++row) {
      if (groups[row] >= totals_.size()) totals_.resize(std::size_t{groups[row]} + 1);
      Totals& of = totals_[groups[row]];
      const std::uint8_t operation = operations[row];
      if (operation != kAllocate && operation != kRelease) continue;
      const std::uint64_t size = std::min(sizes[row], static_cast<std::uint64_t>(INT64_MAX));
      const bool allocates = operation == kAllocate;
      ++(allocates ? of.allocations : of.releases);
      (allocates ? of.allocated : of.released) += size;
      of.level += allocates ? size : 0 - size;
      of.highest = std::max(of.highest, static_cast<std::int64_t>(of.level));
    }
  }

  nb::list rows() const {
    nb::list out;
    for (const Totals& of : totals_)
      out.append(nb::make_tuple(of.allocations, of.allocated, of.releases, of.released, of.highest,
                                static_cast<std::int64_t>(of.level)));
    return out;
  }

 private:
  struct Totals {
    std::uint64_t allocations = 0, allocated = 0, releases = 0, released = 0, level = 0;
    std::int64_t highest = 0;
  };
  std::vector<Totals> totals_;  // by group
};

}  // namespace

void bind_levels(nb::module_& m) {
  nb::class_<Levels>(m, "Levels", "Counters from their changes, in bounded memory.")
      .def(nb::init<std::uint64_t, std::uint64_t, unsigned, std::size_t, bool>(), nb::arg("first"), nb::arg("last"),
           nb::arg("bits"), nb::arg("exact"), nb::arg("means") = true,
           "Counters for the time from ``first`` to ``last``, in at most 2**bits parts after more than ``exact`` changes. The value\n"
           "of a part is its mean, or without ``means`` its highest value.")
      .def_ro_static("MOST", &Levels::kMostSeries, "The largest number of counters.")
      .def("add", &add, nb::arg("keys"), nb::arg("series"), nb::arg("factors"), nb::arg("times"), nb::arg("amounts"),
           nb::arg("sums") = nb::none(),
           "Row i changes counter ``series[keys[i]]`` (2**32 - 1: none) by ``factors[keys[i]] * amounts[i]``. With ``sums``,\n"
           "(Levels, series), it also changes counter ``sums[1][keys[i]]`` of ``sums[0]``.")
      .def("add_stretches", &add_stretches, nb::arg("keys"), nb::arg("series"), nb::arg("begins"), nb::arg("ends"),
           nb::arg("amounts"), "Raise counter ``series[keys[i]]`` by ``amounts[i]`` from its start to its end.")
      .def("values", &values, nb::arg("series"),
           "(times, values, highest, exact): all values if exact, otherwise one value for each of equal parts of the time.");
  nb::class_<MemoryTotals>(m, "MemoryTotals", "Allocated and released memory by group.")
      .def(nb::init<>())
      .def("add", &MemoryTotals::add, nb::arg("groups"), nb::arg("operations"), nb::arg("sizes"),
           "Add allocations (operation 1) and releases (2) of bytes in the order of time.")
      .def("rows", &MemoryTotals::rows,
           "By group: (allocations, their bytes, releases, their bytes, the highest level, the level).");
}

}  // namespace cutrace
