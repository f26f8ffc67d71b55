// What GPU work makes of time: StreamTimes tells when streams ran work, what they waited for when they ran none and how
// long their queues were, GpuTimes in how much of the time a GPU ran work of some kinds. Both take in rows in the order
// of their begin and remember little of them. docs/stats.md has the rules.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

constexpr std::int64_t kNever = -1;
constexpr std::size_t kTables = 4;  // of GPU work; the first is that of kernels
using Times = Column<std::int64_t>;
using Counts = std::array<std::uint64_t, kTables>;

std::uint8_t table_of(std::uint8_t table) {
  if (table >= kTables) throw std::out_of_range("there is no such table of GPU work");
  return table;
}

// The time in which any of some intervals lies, which come in the order of their begin.
struct Union {
  std::int64_t reached = kNever;
  std::int64_t length = 0;

  void add(std::int64_t start, std::int64_t end) {
    if (end <= reached) return;
    length += end - std::max(start, reached);
    reached = end;
  }
};

class StreamTimes {
 public:
  // A gap below `consecutive` is a kernel wait; work that begins up to `release` behind other work may have waited for it;
  // `full` launches fill a queue, of which `longest` are kept. Times in ns.
  StreamTimes(std::int64_t consecutive, std::int64_t release, std::size_t full, std::size_t longest)
      : consecutive_(consecutive), release_(release), full_(std::min(full, longest)), longest_(longest) {
    if (full == 0) throw std::invalid_argument("a queue is full with one launch or more");
  }
  StreamTimes(const StreamTimes&) = delete;
  StreamTimes& operator=(const StreamTimes&) = delete;

  // The stream of each launch, and the length of its queue then.
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
        // A graph is one launch, however many of its nodes the stream runs.
        const bool first = correlations[row] != s.correlation;
        s.correlation = correlations[row];
        if (first && work.known) {
          queues.push_back(number);
          lengths.push_back(queue(s, work));
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
    std::int64_t first = kNever;
    Union ran;
    std::array<std::int64_t, kReasons> idle{};
    std::uint64_t gaps = 0;
    std::uint32_t correlation = 0;
    std::deque<std::int64_t> begins;  // of the work behind the moment at which the last launch was queued, itself included
    std::int64_t first_queued = kNever, queued = kNever, begun = kNever;
    unsigned __int128 waited = 0;  // the times between queueing and begin, added
    std::int64_t full = 0;
  };

  void run(Stream& s, const Work& work) {
    while (!ends_.empty() && ends_.top() <= work.start) {
      latest_ = ends_.top();
      ends_.pop();
    }
    if (work.end > work.start) ends_.push(work.end);
    if (s.first == kNever) {
      s.first = s.ran.reached = work.start;
    } else if (work.start > s.ran.reached) {
      ++s.gaps;
      s.idle[reason(work, s.ran.reached)] += work.start - s.ran.reached;
    }
    s.ran.add(work.start, work.end);
  }

  // Why a stream ran nothing from the end of earlier work to the begin of this.
  Reason reason(const Work& work, std::int64_t before) const {
    if (work.known && work.called > before) return kHost;
    if (work.start - before < consecutive_) return kKernel;
    // If work ended last in the gap, it was another stream's.
    const bool released = latest_ > before && work.returned <= latest_ && work.start - latest_ <= release_;
    return work.known && released ? kDependency : kOther;
  }

  // Queues a launch; the length of the queue then. A stream runs its work in the order in which it was queued: what ran
  // later was queued no earlier. Clocks that differ make nothing be queued after its begin.
  std::int64_t queue(Stream& s, const Work& work) {
    s.queued = std::max(s.queued, std::min(work.called, work.start));
    if (s.first_queued == kNever) s.first_queued = s.queued;
    s.begun = work.start;
    s.waited += static_cast<std::uint64_t>(work.start - s.queued);
    s.begins.push_back(work.start);
    while (!s.begins.empty() && s.begins.front() <= s.queued) s.begins.pop_front();
    // One more than counts: from its begin on, the queue is no fuller than that.
    if (s.begins.size() > longest_ + 1) s.begins.pop_front();
    const std::size_t length = s.begins.size();
    if (length >= full_) {
      // From this launch on the queue is full until the work at its head begins.
      const std::int64_t since = length > full_ ? s.begins[length - full_ - 1] : s.queued;
      s.full += s.begins[length - full_] - since;
    }
    return static_cast<std::int64_t>(std::min(length, longest_));
  }

  std::int64_t consecutive_, release_;
  std::size_t full_, longest_;
  std::vector<Stream> streams_;
  // Ends of work that is running, and the latest end of work that is not.
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> ends_;
  std::int64_t latest_ = kNever;
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
      if (gpu->first == kNever) gpu->first = begin;
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
  static constexpr std::size_t kSets = 16;  // of the four kinds, which are bits
  struct Device {
    Counts counts{}, spent{};
    std::int64_t first = kNever, last = 0;
    std::array<Union, kSets> times;
  };

  std::map<std::uint32_t, Device> devices_;
};

}  // namespace

void bind_work(nb::module_& m) {
  nb::class_<StreamTimes>(m, "StreamTimes", "What streams did and waited for, and their queues.")
      .def(nb::init<std::int64_t, std::int64_t, std::size_t, std::size_t>(), nb::arg("consecutive"), nb::arg("release"),
           nb::arg("full"), nb::arg("longest"),
           "Gaps below ``consecutive`` are kernel waits; work may have waited for what ended up to ``release`` before (ns).\n"
           "``full`` launches fill a queue, whose length is known up to ``longest``.")
      .def("add", &StreamTimes::add, nb::arg("starts"), nb::arg("ends"), nb::arg("tables"), nb::arg("streams"),
           nb::arg("correlations"), nb::arg("known"), nb::arg("called"), nb::arg("returned"),
           "Take in work in the order of its begin, of streams by number; ``known`` says whether its call is, which lasted\n"
           "from ``called`` to ``returned``. The stream of each launch, and the length of the queue that it made.")
      .def("uses", &StreamTimes::uses,
           "By stream: (counts by table, first begin, last end, busy time, idle times by reason (host, kernel, dependency,\n"
           "other), gaps, waiting times added (>> 64, & (2**64 - 1)), time from the first launch to the last begin, time in\n"
           "which the queue was full). The first begin is -1 for a stream without work.");
  nb::class_<GpuTimes>(m, "GpuTimes", "In how much of the time GPUs ran work of some kinds, which are the bits 1, 2, 4 and 8.")
      .def(nb::init<>())
      .def("add", &GpuTimes::add, nb::arg("devices"), nb::arg("starts"), nb::arg("ends"), nb::arg("tables"),
           nb::arg("kinds"), "Take in work in the order of its begin.")
      .def("uses", &GpuTimes::uses,
           "Rising by device: (device, counts by table, times added by table, first begin, last end, time by set of kinds).");
}

}  // namespace cutrace
