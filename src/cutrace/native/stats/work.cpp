// GPU work over time. StreamTimes measures busy times, reasons of idle times, and lengths of queues of streams. GpuTimes measures
// the time that a GPU ran each kind of work. Both read rows in the order of their start, in little memory.
// docs/reference/statistics.md has the rules.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "stats/launch_queue.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

constexpr std::int64_t kUnset = -1;
constexpr std::size_t kTables = 4;  // tables of GPU work; the first has the kernels
using Times = Column<std::int64_t>;
using Counts = std::array<std::uint64_t, kTables>;

std::uint8_t table_of(std::uint8_t table) {
  if (table >= kTables) throw std::out_of_range("a table of GPU work is 0 to 3");
  return table;
}

// The length of the union of intervals that come in the order of their start.
struct Union {
  std::int64_t reached = kUnset;
  std::int64_t length = 0;

  void add(std::int64_t start, std::int64_t end) {
    if (end <= reached) return;
    length += end - std::max(start, reached);
    reached = end;
  }
};

// The busy time of groups of work, in equal parts of a span.
class BusyParts {
 public:
  BusyParts(std::int64_t first, std::int64_t last, std::size_t parts) : first_(first), parts_(parts) {
    if (parts == 0 || parts > 1 << 16 || first < 0 || last < first) throw std::invalid_argument("parts are 1 to 2**16 of a span");
    width_ = (last - first) / static_cast<std::int64_t>(parts) + 1;
    constexpr std::int64_t kLatest = std::numeric_limits<std::int64_t>::max();
    const auto count = static_cast<std::int64_t>(parts);
    limit_ = width_ > (kLatest - first) / count ? kLatest : first + width_ * count;
  }

  void add(Column<std::uint32_t> groups, Times starts, Times ends) {
    need_rows(starts.size, groups, ends);
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < starts.size; ++row) {
      const std::size_t group = groups[row];
      if (group >= reached_.size()) {
        reached_.resize(group + 1, first_);
        busy_.resize((group + 1) * parts_);
      }
      // Work may overlap earlier work of its group.
      const std::int64_t end = std::min(ends[row], limit_);
      std::int64_t at = std::max(starts[row], reached_[group]);
      reached_[group] = std::max(reached_[group], end);
      while (at < end) {
        const std::int64_t part = (at - first_) / width_, left = width_ - (at - first_) % width_;
        const std::int64_t until = at + std::min(left, end - at);
        busy_[group * parts_ + static_cast<std::size_t>(part)] += until - at;
        at = until;
      }
    }
  }

  std::int64_t width() const { return width_; }
  nb::object busy() const { return to_array(std::vector(busy_)); }

 private:
  std::int64_t first_, limit_, width_ = 1;
  std::size_t parts_;
  std::vector<std::int64_t> reached_;  // by group: the latest end so far
  std::vector<std::int64_t> busy_;     // by group and part
};

class StreamTimes {
 public:
  // A gap below `consecutive` is a kernel wait. Work that starts up to `release` after the end of other work may have waited for
  // that work. A queue is full with `full` launches. Lengths are known up to `longest`. Times are in ns.
  StreamTimes(std::int64_t consecutive, std::int64_t release, std::size_t full, std::size_t longest)
      : consecutive_(consecutive), release_(release), full_(std::min(full, longest)), longest_(longest) {
    if (full == 0) throw std::invalid_argument("full must be 1 or more");
  }
  StreamTimes(const StreamTimes&) = delete;
  StreamTimes& operator=(const StreamTimes&) = delete;

  // Returns the stream of each launch, and the length of its queue after the launch.
  nb::tuple add(Times starts, Times ends, Column<std::uint8_t> tables, Column<std::uint32_t> streams,
                Column<std::uint32_t> correlations, Column<std::uint8_t> known, Times called, Times returned) {
    need_rows(starts.size, ends, tables, streams, correlations, known, called, returned);
    std::vector<std::uint32_t> queues;
    std::vector<std::int64_t> lengths;
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < starts.size; ++row) {
        const std::uint32_t number = streams[row];
        if (number >= streams_.size()) streams_.resize(std::size_t{number} + 1);
        Stream& s = streams_[number];
        const Work work{starts[row], ends[row], called[row], returned[row], known[row] != 0};
        ++s.counts[table_of(tables[row])];
        run(s, work);
        const auto queued = s.queue.add(correlations[row], work.known, work.called, work.start);
        if (queued) {
          queues.push_back(number);
          lengths.push_back(length(s, *queued, work.start));
        }
      }
    }
    return nb::make_tuple(to_array(std::move(queues)), to_array(std::move(lengths)));
  }

  nb::list uses() const {
    nb::list out;
    for (const Stream& s : streams_) {
      const auto waited = nb::make_tuple(static_cast<std::uint64_t>(s.waited >> 64), static_cast<std::uint64_t>(s.waited));
      out.append(nb::make_tuple(s.counts, s.first, s.ran.reached, s.ran.length, s.idle, s.gaps, waited,
                                s.begun - s.first_queued, s.full));
    }
    return out;
  }

 private:
  enum Reason { kHost, kKernel, kDependency, kOther, kReasons };

  struct Work {
    std::int64_t start, end, called, returned;
    bool known;  // whether the call was recorded
  };
  struct Stream {
    Counts counts{};
    std::int64_t first = kUnset;
    Union ran;
    std::array<std::int64_t, kReasons> idle{};
    std::uint64_t gaps = 0;
    LaunchQueue queue;
    std::deque<std::int64_t> begins;  // starts of the work in the queue after the last launch, including that launch
    std::int64_t first_queued = kUnset, begun = kUnset;
    unsigned __int128 waited = 0;  // the sum of the times between queueing and start
    std::int64_t full = 0;
  };

  void run(Stream& s, const Work& work) {
    while (!ends_.empty() && ends_.top() <= work.start) {
      latest_ = ends_.top();
      ends_.pop();
    }
    if (work.end > work.start) ends_.push(work.end);
    if (s.first == kUnset) {
      s.first = s.ran.reached = work.start;
    } else if (work.start > s.ran.reached) {
      ++s.gaps;
      s.idle[reason(work, s.ran.reached)] += work.start - s.ran.reached;
    }
    s.ran.add(work.start, work.end);
  }

  // The reason for the idle time of a stream from `before` to the start of this work.
  Reason reason(const Work& work, std::int64_t before) const {
    if (work.known && work.called > before) return kHost;
    if (work.start - before < consecutive_) return kKernel;
    // Work that ended inside the gap belongs to another stream.
    const bool released = latest_ > before && work.returned <= latest_ && work.start - latest_ <= release_;
    return work.known && released ? kDependency : kOther;
  }

  // The length of the queue after a launch that is queued from `queued` to `start`.
  std::int64_t length(Stream& s, std::int64_t queued, std::int64_t start) {
    if (s.first_queued == kUnset) s.first_queued = queued;
    s.begun = start;
    s.waited += static_cast<std::uint64_t>(start - queued);
    s.begins.push_back(start);
    while (!s.begins.empty() && s.begins.front() <= queued) s.begins.pop_front();
    // Keep one more than `longest`, because `since` below needs it.
    if (s.begins.size() > longest_ + 1) s.begins.pop_front();
    const std::size_t length = s.begins.size();
    if (length >= full_) {
      // From this launch on, the queue is full until the work at its head starts.
      const std::int64_t since = length > full_ ? s.begins[length - full_ - 1] : queued;
      s.full += s.begins[length - full_] - since;
    }
    return static_cast<std::int64_t>(std::min(length, longest_));
  }

  std::int64_t consecutive_, release_;
  std::size_t full_, longest_;
  std::vector<Stream> streams_;
  // Ends of running work, and the latest end of finished work.
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> ends_;
  std::int64_t latest_ = kUnset;
};

class GpuTimes {
 public:
  void add(Column<std::uint32_t> devices, Times starts, Times ends, Column<std::uint8_t> tables,
           Column<std::uint8_t> kinds) {
    need_rows(starts.size, devices, ends, tables, kinds);
    nb::gil_scoped_release release;
    Device* gpu = nullptr;
    for (std::size_t row = 0; row < starts.size; ++row) {
      if (gpu == nullptr || devices[row] != devices[row - 1]) gpu = &devices_[devices[row]];
      const auto begin = starts[row], stop = ends[row];
      const std::uint8_t table = table_of(tables[row]), kind = kinds[row];
      ++gpu->counts[table];
      gpu->spent[table] += static_cast<std::uint64_t>(stop - begin);
      if (gpu->first == kUnset) gpu->first = begin;
      gpu->last = std::max(gpu->last, stop);
      for (std::size_t set = 1; set < kSets; ++set)
        if (set & kind) gpu->times[set].add(begin, stop);
    }
  }

  nb::list uses() const {
    nb::list out;
    for (const auto& [number, gpu] : devices_) {
      nb::list times;
      for (const Union& time : gpu.times) times.append(time.length);
      out.append(nb::make_tuple(number, gpu.counts, gpu.spent, gpu.first, gpu.last, times));
    }
    return out;
  }

 private:
  static constexpr std::size_t kSets = 16;  // sets of the four kinds, as bits
  struct Device {
    Counts counts{}, spent{};
    std::int64_t first = kUnset, last = 0;
    std::array<Union, kSets> times;
  };

  std::map<std::uint32_t, Device> devices_;
};

}  // namespace

void bind_work(nb::module_& m) {
  nb::class_<BusyParts>(m, "BusyParts", "The busy time of groups of work, in equal parts of a span.")
      .def(nb::init<std::int64_t, std::int64_t, std::size_t>(), nb::arg("first"), nb::arg("last"), nb::arg("parts"))
      .def("add", &BusyParts::add, nb::arg("groups"), nb::arg("starts"), nb::arg("ends"),
           "Add work in the order of its start (ns). Time with several pieces of a group counts once.")
      .def_prop_ro("width", &BusyParts::width, "The length of a part (ns).")
      .def("busy", &BusyParts::busy, "The times (ns) of all parts of group 0, then of group 1, and so on.");
  nb::class_<StreamTimes>(m, "StreamTimes", "Busy and idle times of streams, and their queues.")
      .def(nb::init<std::int64_t, std::int64_t, std::size_t, std::size_t>(), nb::arg("consecutive"), nb::arg("release"),
           nb::arg("full"), nb::arg("longest"),
           "Gaps below ``consecutive`` are kernel waits. Work that starts up to ``release`` (ns) after the end of other work may\n"
           "have waited for it. A queue is full with ``full`` launches. Lengths are known up to ``longest``.")
      .def("add", &StreamTimes::add, nb::arg("starts"), nb::arg("ends"), nb::arg("tables"), nb::arg("streams"),
           nb::arg("correlations"), nb::arg("known"), nb::arg("called"), nb::arg("returned"),
           "Add work in the order of its start, with the numbers of its streams. ``known`` marks work with a recorded call, which\n"
           "lasted from ``called`` to ``returned``. Returns the stream of each launch, and the length of its queue.")
      .def("uses", &StreamTimes::uses,
           "By stream: (counts by table, first start, last end, busy time, idle times by reason (host, kernel, dependency,\n"
           "other), gaps, sum of waiting times (>> 64, & (2**64 - 1)), time from the first launch to the last start, time with a\n"
           "full queue). The first start is -1 for a stream without work.");
  nb::class_<GpuTimes>(m, "GpuTimes", "The time that GPUs ran work of each kind. Kinds are the bits 1, 2, 4 and 8.")
      .def(nb::init<>())
      .def("add", &GpuTimes::add, nb::arg("devices"), nb::arg("starts"), nb::arg("ends"), nb::arg("tables"),
           nb::arg("kinds"), "Add work in the order of its start.")
      .def("uses", &GpuTimes::uses,
           "In the order of devices: (device, counts by table, sums of times by table, first start, last end, time by set of\n"
           "kinds).");
}

}  // namespace cutrace
