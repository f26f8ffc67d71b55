// Counters from what changes them: memory taken and given back, work launched and finished. Changes may come in any
// order. As long as there are few, each is kept, so that a counter has all its values; when there are more, what is kept
// is how much a counter changed in each of many equal parts of the time, and the changes' share of the part, which gives
// the exact mean over it. So memory does not grow with the capture.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "arrays.h"
#include "encoder.h"
#include "view.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class Tally {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kMostSeries = 256;

  Tally(std::uint64_t first, std::uint64_t last, unsigned bits, std::size_t exact) : first_(first), exact_(exact) {
    if (last < first || bits > 20) throw std::invalid_argument("a tally is of some time, in at most 2**20 parts");
    while ((last - first) >> shift_ >> bits) ++shift_;
    parts_ = static_cast<std::size_t>((last - first) >> shift_) + 1;
  }
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  // Row i changes counter series[keys[i]] at times[i] by factors[keys[i]] * amounts[i] (1 without amounts).
  void add(nb::handle keys, nb::handle series, nb::handle factors, nb::handle times, nb::object amounts) {
    View key(keys), counter(series), factor(factors), time(times), amount(amounts.is_none() ? times : nb::handle(amounts));
    const bool counts = amounts.is_none();
    if (key.type() != Type::kU32 || counter.type() != Type::kU32 || factor.type() != Type::kI64 ||
        time.type() != Type::kU64 || amount.type() != Type::kU64)
      throw std::invalid_argument("keys and series are uint32, factors int64, times and amounts uint64");
    if (key.size() != time.size() || amount.size() != time.size() || factor.size() != counter.size())
      throw std::invalid_argument("columns of equal lengths are needed");
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < time.size(); ++row) {
      const auto k = key.get<std::uint32_t>(row);
      if (k >= counter.size()) throw std::out_of_range("no counter for a key");
      const auto s = counter.get<std::uint32_t>(k);
      if (s == kNone) continue;
      if (s >= kMostSeries) throw std::out_of_range("too many counters");
      // Sums wrap around as those of unsigned numbers do: a damaged capture must not do harm.
      const auto by = static_cast<std::int64_t>((counts ? 1 : amount.get<std::uint64_t>(row)) *
                                                static_cast<std::uint64_t>(factor.get<std::int64_t>(k)));
      change(s, time.get<std::uint64_t>(row), by);
    }
  }

  // The values of a counter as (times, values, highest, exact). Exact: each moment of change, with the value from then
  // on. Else the begin of each part of the time, with the mean over it, and the highest value in it as far as changes
  // came in the order of their times.
  nb::tuple values(std::uint32_t series) {
    std::vector<std::uint64_t> times;
    std::vector<double> values;
    std::vector<double> highest;
    const bool exact = series_.empty();
    if (exact) {
      all(series, times, values);
      highest = values;
    } else if (series < series_.size() && !series_[series].parts.empty()) {
      means(series_[series], times, values, highest);
    }
    return nb::make_tuple(to_array(std::move(times)), to_array(std::move(values)), to_array(std::move(highest)), exact);
  }

 private:
  struct Change {
    std::uint32_t series;
    std::uint64_t time;
    std::int64_t by;
  };
  struct Part {
    std::int64_t by = 0;
    double weighted = 0;  // sum of changes times what was left of the part
    std::int64_t highest = std::numeric_limits<std::int64_t>::min();
  };
  struct Series {
    std::int64_t value = 0;
    std::vector<Part> parts;
  };

  static std::int64_t sum(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }

  void change(std::uint32_t series, std::uint64_t time, std::int64_t by) {
    if (!series_.empty()) return change_part(series, time, by);
    changes_.push_back({series, time, by});
    sorted_ = false;
    if (changes_.size() <= exact_) return;
    series_.resize(1);
    for (const Change& c : changes_) change_part(c.series, c.time, c.by);
    changes_ = {};
  }

  void change_part(std::uint32_t number, std::uint64_t time, std::int64_t by) {
    if (number >= series_.size()) series_.resize(number + 1);
    Series& series = series_[number];
    if (series.parts.empty()) series.parts.resize(parts_);
    const std::uint64_t into = time > first_ ? time - first_ : 0;
    const std::size_t at = std::min(static_cast<std::size_t>(into >> shift_), parts_ - 1);
    Part& part = series.parts[at];
    const std::uint64_t end = (std::uint64_t{at} + 1) << shift_;
    part.by = sum(part.by, by);
    part.weighted += static_cast<double>(by) * static_cast<double>(end > into ? end - into : 0);
    series.value = sum(series.value, by);
    part.highest = std::max(part.highest, series.value);
  }

  void all(std::uint32_t series, std::vector<std::uint64_t>& times, std::vector<double>& values) {
    const auto earlier = [](const Change& a, const Change& b) {
      return a.series != b.series ? a.series < b.series : a.time < b.time;
    };
    if (!sorted_) std::stable_sort(changes_.begin(), changes_.end(), earlier);
    sorted_ = true;
    std::int64_t value = 0;
    for (auto at = std::lower_bound(changes_.begin(), changes_.end(), Change{series, 0, 0}, earlier);
         at != changes_.end() && at->series == series; ++at) {
      value = sum(value, at->by);
      if (times.empty() || times.back() != at->time) {
        times.push_back(at->time);
        values.push_back(0);
      }
      values.back() = static_cast<double>(value);
    }
  }

  void means(const Series& series, std::vector<std::uint64_t>& times, std::vector<double>& values,
             std::vector<double>& highest) const {
    const double width = static_cast<double>(std::uint64_t{1} << shift_);
    std::int64_t value = 0;
    for (std::size_t i = 0; i < series.parts.size(); ++i) {
      const Part& part = series.parts[i];
      const double begin = static_cast<double>(value);
      value = sum(value, part.by);
      times.push_back(first_ + (std::uint64_t{i} << shift_));
      values.push_back(begin + part.weighted / width);
      highest.push_back(std::max({begin, static_cast<double>(value), static_cast<double>(part.highest)}));
    }
  }

  std::uint64_t first_;
  std::size_t exact_;
  unsigned shift_ = 0;
  std::size_t parts_ = 0;
  std::vector<Change> changes_;
  bool sorted_ = false;
  std::vector<Series> series_;  // empty as long as all changes are kept
};

}  // namespace

void register_tally(nb::module_& m) {
  nb::class_<Tally>(m, "Tally", "Counters from what changes them, in memory that does not grow.")
      .def(nb::init<std::uint64_t, std::uint64_t, unsigned, std::size_t>(), nb::arg("first"), nb::arg("last"),
           nb::arg("bits"), nb::arg("exact"),
           "Of the time from ``first`` to ``last``, in at most 2**bits parts once there are more than ``exact`` changes.")
      .def_ro_static("MOST", &Tally::kMostSeries, "So many counters at most.")
      .def("add", &Tally::add, nb::arg("keys"), nb::arg("series"), nb::arg("factors"), nb::arg("times"),
           nb::arg("amounts") = nb::none(),
           "Row i changes counter ``series[keys[i]]`` (2**32 - 1: none) by ``factors[keys[i]] * amounts[i]``.")
      .def("values", &Tally::values, nb::arg("series"),
           "(times, values, highest, exact): every value where exact, else means over equal parts of the time.");
}

}  // namespace cutrace
