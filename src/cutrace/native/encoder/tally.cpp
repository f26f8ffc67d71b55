#include "tally.h"

#include <nanobind/nanobind.h>

#include <stdexcept>

#include "arrays.h"
#include "encoder.h"
#include "values.h"
#include "view.h"

namespace nb = nanobind;

namespace cutrace {

Tally::Tally(std::uint64_t first, std::uint64_t last, unsigned bits, std::size_t exact) : first_(first), exact_(exact) {
  if (last < first || bits > 20) throw std::invalid_argument("a tally is of some time, in at most 2**20 parts");
  while ((last - first) >> shift_ >> bits) ++shift_;
  parts_ = static_cast<std::size_t>((last - first) >> shift_) + 1;
}

void Tally::open(std::uint32_t series) {
  if (series >= kMostSeries) throw std::out_of_range("too many counters");
  if (series >= series_.size()) series_.resize(series + 1);
  series_[series].parts.resize(parts_);
}

void Tally::keep(Change one) {
  if (!series_.empty()) return change(one.series, one.time, one.by);
  changes_.push_back(one);
  sorted_ = false;
  if (changes_.size() <= exact_) return;
  series_.resize(1);
  for (const Change& c : changes_) change(c.series, c.time, c.by);
  changes_ = {};
}

void Tally::values(std::uint32_t series, std::vector<std::uint64_t>& times, std::vector<double>& values,
                   std::vector<double>& highest) {
  std::int64_t value = 0;
  if (exact()) {
    const auto earlier = [](const Change& a, const Change& b) {
      return a.series != b.series ? a.series < b.series : a.time < b.time;
    };
    if (!sorted_) std::stable_sort(changes_.begin(), changes_.end(), earlier);
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
}

namespace {

// The counter of each row.
class Keyed {
 public:
  Keyed(const View& keys, const View& series, std::size_t rows) : keys_(keys), series_(series), size_(series.size()) {
    if (keys.type() != Type::kU32 || series.type() != Type::kU32)
      throw std::invalid_argument("keys and series are uint32");
    if (keys.size() != rows) throw std::invalid_argument("columns of equal lengths are needed");
  }

  std::uint32_t key(std::size_t row) const {
    const auto k = keys_[row];
    if (k >= size_) throw std::out_of_range("no counter for a key");
    return k;
  }
  std::uint32_t series(std::uint32_t key) const { return series_[key]; }

 private:
  Values<std::uint32_t> keys_, series_;
  std::size_t size_;
};

void times(const View& view, std::size_t rows) {
  if (view.type() != Type::kU64 || view.size() != rows)
    throw std::invalid_argument("times and amounts are uint64, as many as rows");
}

void add(Tally& tally, nb::handle keys, nb::handle series, nb::handle factors, nb::handle when, nb::handle amounts) {
  View time(when), amount(amounts), factor(factors), key(keys), counter(series);
  const std::size_t rows = time.size();
  const Keyed of(key, counter, rows);
  times(time, rows);
  times(amount, rows);
  if (factor.type() != Type::kI64 || factor.size() != counter.size())
    throw std::invalid_argument("as many factors, int64, as series");
  nb::gil_scoped_release release;
  const Values<std::uint64_t> time_of(time), amount_of(amount), factor_of(factor);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto k = of.key(row), s = of.series(k);
    if (s != Tally::kNone)
      tally.change(s, time_of[row], static_cast<std::int64_t>(factor_of[k] * amount_of[row]));
  }
}

void add_stretches(Tally& tally, nb::handle keys, nb::handle series, nb::handle begins, nb::handle ends,
                   nb::handle amounts) {
  View begin(begins), end(ends), amount(amounts), key(keys), counter(series);
  const std::size_t rows = begin.size();
  const Keyed of(key, counter, rows);
  times(begin, rows);
  times(end, rows);
  times(amount, rows);
  nb::gil_scoped_release release;
  const Values<std::uint64_t> begin_of(begin), end_of(end), amount_of(amount);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto s = of.series(of.key(row));
    if (s != Tally::kNone)
      tally.stretch(s, begin_of[row], end_of[row], static_cast<std::int64_t>(amount_of[row]));
  }
}

nb::tuple values(Tally& tally, std::uint32_t series) {
  std::vector<std::uint64_t> when;
  std::vector<double> means, highest;
  tally.values(series, when, means, highest);
  return nb::make_tuple(to_array(std::move(when)), to_array(std::move(means)), to_array(std::move(highest)),
                        tally.exact());
}

}  // namespace

void register_tally(nb::module_& m) {
  nb::class_<Tally>(m, "Tally", "Counters from what changes them, in memory that does not grow.")
      .def(nb::init<std::uint64_t, std::uint64_t, unsigned, std::size_t>(), nb::arg("first"), nb::arg("last"),
           nb::arg("bits"), nb::arg("exact"),
           "Of the time from ``first`` to ``last``, in at most 2**bits parts once there are more than ``exact`` changes.")
      .def_ro_static("MOST", &Tally::kMostSeries, "So many counters at most.")
      .def("add", &add, nb::arg("keys"), nb::arg("series"), nb::arg("factors"), nb::arg("times"), nb::arg("amounts"),
           "Row i changes counter ``series[keys[i]]`` (2**32 - 1: none) by ``factors[keys[i]] * amounts[i]``.")
      .def("add_stretches", &add_stretches, nb::arg("keys"), nb::arg("series"), nb::arg("begins"), nb::arg("ends"),
           nb::arg("amounts"), "Counter ``series[keys[i]]`` is higher by ``amounts[i]`` from begin to end.")
      .def("values", &values, nb::arg("series"),
           "(times, values, highest, exact): every value where exact, else means over equal parts of the time.");
}

}  // namespace cutrace
