// The thread with the NVTX ranges of one domain around a launch. It is the thread of the launch, or the only thread of the
// process with an open range.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "common/table.h"
#include "stats/range_threads.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class RangeThreads {
 public:
  explicit RangeThreads(bool adopts) : adopts_(adopts) {}

  void add(Column<std::uint32_t> threads, Column<std::uint64_t> starts, Column<std::uint64_t> ends) {
    need_rows(starts.size, threads, ends);
    nb::gil_scoped_release release;
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
    for (std::size_t row = 0; row < starts.size; ++row)
      if (starts[row] < ends[row]) pending_.push_back({starts[row], ends[row], threads[row]});
    const auto earlier = [](const Range& a, const Range& b) { return a.start < b.start; };
    if (!std::is_sorted(pending_.begin(), pending_.end(), earlier))
      std::sort(pending_.begin(), pending_.end(), earlier);
  }

  nb::tuple find(Column<std::uint32_t> threads, Column<std::uint64_t> times) {
    need_rows(times.size, threads);
    Array<std::uint32_t> found(times.size);
    Array<std::uint8_t> how(times.size);
    {
      nb::gil_scoped_release release;
      std::uint64_t last = 0;
      for (std::size_t row = 0; row < times.size; ++row) last = std::max(last, times[row]);
      sweep(last);
      for (std::size_t row = 0; row < times.size; ++row) {
        const Owner owner = owner_of(threads[row], times[row]);
        found[row] = owner.thread;
        how[row] = owner.how;
      }
    }
    return nb::make_tuple(to_array(std::move(found)), to_array(std::move(how)));
  }

 private:
  // The number of kept changes. A launch before them is in no range.
  static constexpr std::size_t kKept = 1 << 20;
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  struct Range {
    std::uint64_t start, end;
    std::uint32_t thread;
  };
  struct Owner {
    std::uint32_t thread;
    HowInRange how;
  };
  struct Thread {
    std::uint32_t ranges = 0;          // number of open ranges
    std::vector<std::uint64_t> changes;  // times at which the first range opens or the last one closes, ascending
    bool open_before = false;          // whether a range is open before the first of these times
    std::size_t latest = 0;            // the changes before the time of the previous search
  };
  // The number of threads with an open range from a time on, and the sum of their indices. The sum for one thread is its index.
  struct Point {
    std::uint64_t time;
    std::uint64_t threads, indices;
  };
  using End = std::pair<std::uint64_t, std::size_t>;  // time and index of the thread

  // Opens and closes ranges up to a time. Ends come before starts with the same time.
  void sweep(std::uint64_t until) {
    while (true) {
      const std::uint64_t start = next_ < pending_.size() ? pending_[next_].start : kNever;
      const std::uint64_t end = ends_.empty() ? kNever : ends_.top().first;
      if (std::min(start, end) > until || std::min(start, end) == kNever) break;
      if (end <= start) {
        const std::size_t index = ends_.top().second;
        ends_.pop();
        if (--threads_.at(index).ranges == 0) change(index, end, false);
      } else {
        const Range& range = pending_[next_++];
        const std::size_t index = threads_.index(range.thread);
        ends_.push({range.end, index});
        if (threads_.at(index).ranges++ == 0) change(index, start, true);
      }
    }
    if (points_.size() > 2 * kKept) forget();
  }

  void change(std::size_t index, std::uint64_t time, bool opens) {
    now_ = std::max(now_, time);
    threads_.at(index).changes.push_back(now_);
    open_ += opens ? 1 : -1;
    indices_ += opens ? index : -index;
    if (!points_.empty() && points_.back().time == now_)
      points_.back() = {now_, open_, indices_};
    else
      points_.push_back({now_, open_, indices_});
  }

  void forget() {
    const auto kept = points_.end() - static_cast<std::ptrdiff_t>(kKept);
    known_from_ = kept->time;
    points_.erase(points_.begin(), kept);
    latest_ = 0;
    for (std::size_t i = 0; i < threads_.entries().size(); ++i) {
      Thread& thread = threads_.at(i);
      const auto first = std::lower_bound(thread.changes.begin(), thread.changes.end(), known_from_);
      if ((first - thread.changes.begin()) % 2 != 0) thread.open_before = !thread.open_before;
      thread.changes.erase(thread.changes.begin(), first);
      thread.latest = 0;
    }
  }

  // The number of elements up to a time. `latest` is the result of the previous search, which speeds up a search for a near time.
  template <typename Element, typename Time>
  static std::size_t until(const std::vector<Element>& elements, std::size_t& latest, std::uint64_t time, const Time& time_of) {
    const bool begins = latest == 0 || time_of(elements[latest - 1]) <= time;
    const bool ends = latest == elements.size() || time < time_of(elements[latest]);
    if (begins && ends) return latest;
    const auto after = std::upper_bound(elements.begin(), elements.end(), time,
                                        [&](std::uint64_t t, const Element& element) { return t < time_of(element); });
    latest = static_cast<std::size_t>(after - elements.begin());
    return latest;
  }

  bool has_open(Thread& thread, std::uint64_t time) {
    const std::size_t changes = until(thread.changes, thread.latest, time, [](std::uint64_t change) { return change; });
    return thread.open_before != (changes % 2 != 0);
  }

  Owner owner_of(std::uint32_t number, std::uint64_t time) {
    if (time < known_from_) return {number, kNone};
    const std::uint32_t index = threads_.find_index(number);
    if (index != Table::kNone && has_open(threads_.at(index), time)) return {number, kOwn};
    if (!adopts_) return {number, kNone};
    const std::size_t points = until(points_, latest_, time, [](const Point& point) { return point.time; });
    if (points == 0 || points_[points - 1].threads == 0) return {number, kNone};
    if (points_[points - 1].threads > 1) return {number, kSeveral};
    return {static_cast<std::uint32_t>(threads_.entries()[points_[points - 1].indices].first), kAdopted};
  }

  bool adopts_;
  std::vector<Range> pending_;  // ascending by start; ranges before next_ were opened
  std::size_t next_ = 0;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;  // of the open ranges
  Map<Thread> threads_;
  std::vector<Point> points_;  // ascending by time
  std::size_t latest_ = 0;     // the points before the time of the previous search
  std::uint64_t open_ = 0, indices_ = 0;
  std::uint64_t now_ = 0, known_from_ = 0;
};

}  // namespace

void bind_range_threads(nb::module_& m) {
  nb::class_<RangeThreads> threads(m, "RangeThreads", "The threads with the ranges of one domain around the launches of a\n"
                                                      "process.");
  threads.attr("OWN") = static_cast<int>(kOwn);
  threads.attr("ADOPTED") = static_cast<int>(kAdopted);
  threads.attr("SEVERAL") = static_cast<int>(kSeveral);
  threads.attr("NONE") = static_cast<int>(kNone);
  threads.def(nb::init<bool>(), nb::arg("adopts"))
      .def("add", &RangeThreads::add, nb::arg("threads"), nb::arg("starts"), nb::arg("ends"),
           "Add ranges (ns) in any order. No range starts before a time of an earlier find().")
      .def("find", &RangeThreads::find, nb::arg("threads"), nb::arg("times"),
           "The thread with the ranges around the launches of these threads at these times (ns), and their relation: OWN,\n"
           "ADOPTED, SEVERAL (several threads have an open range) or NONE. All ranges that start up to the last of these times\n"
           "were added. A million changes up to that time are kept.");
}

}  // namespace cutrace
