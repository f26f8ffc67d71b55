// Layout of the slices of many tracks as begin and end events of properly nested stacks.
//
// A viewer assigns the end of a slice to the slice that began last on its track, so the slices of a track must form a tree of
// limited depth. Lanes lays out the slices of each group, such as a thread: a slice goes to the first lane on which it nests.
// This is lane 0, unless the slice partly overlaps an open one there. Lanes works on windows of time: rows are added in any
// order, close() ends a window, and take() returns all events of the oldest closed window in the order of time, those of equal
// times by group. One thread may add rows while another one takes windows.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "perfetto/runs.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

// Perfetto's importer drops slices nested deeper than 512. Instants inside the innermost slice need a level too.
constexpr std::size_t kDeepest = 500;

struct Entry {
  std::uint64_t start;
  std::uint64_t end;
  std::uint32_t row;
  std::uint8_t stream;
  bool instant;
  bool inside;  // left out where no slice is open on the first lane
};

// At the same time: longer slices first, because they enclose the shorter ones; instants last, inside all of them.
bool earlier(const Entry& a, const Entry& b) {
  if (a.start != b.start) return a.start < b.start;
  if (a.instant != b.instant) return b.instant;
  return a.end > b.end;
}

// A tree over the lanes of a group, for two searches. A capture can have as many lanes as slices, when each slice overlaps all
// earlier ones, and a linear search would then take quadratic time.
class Tree {
 public:
  // The keys of a lane: the end of its innermost slice, and the latest end of a slice that nests on it.
  struct Lane {
    std::uint64_t ends = kNever;
    std::uint64_t room = kNever;
  };

  void set(std::size_t lane, Lane value) {
    if (lane >= size_) grow(lane + 1);
    std::size_t at = size_ + lane;
    nodes_[at] = value;
    while (at >>= 1)
      nodes_[at] = {std::min(nodes_[2 * at].ends, nodes_[2 * at + 1].ends),
                    std::max(nodes_[2 * at].room, nodes_[2 * at + 1].room)};
  }

  // The first lane whose innermost slice ends first.
  std::size_t next_end() const {
    std::size_t at = 1;
    while (at < size_) at = 2 * at + (nodes_[2 * at].ends <= nodes_[2 * at + 1].ends ? 0 : 1);
    return at - size_;
  }

  // The first lane on which a slice with this end nests; the size of the tree if there is none.
  std::size_t first_with_room(std::uint64_t end) const {
    if (nodes_[1].room < end) return size_;
    std::size_t at = 1;
    while (at < size_) at = 2 * at + (nodes_[2 * at].room >= end ? 0 : 1);
    return at - size_;
  }

 private:
  void grow(std::size_t least) {
    std::vector<Lane> lanes(nodes_.begin() + static_cast<std::ptrdiff_t>(size_), nodes_.end());
    while (size_ < least) size_ *= 2;
    nodes_.assign(2 * size_, Lane{});
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) set(lane, lanes[lane]);
  }

  std::size_t size_ = 1;
  std::vector<Lane> nodes_ = std::vector<Lane>(2);  // the root is at 1, the lanes begin at size_
};

struct Group {
  std::vector<std::vector<std::uint64_t>> lanes;  // ends of the open slices, the innermost last
  std::size_t open = 0;
  std::uint64_t spilled = 0;
  Tree tree;

  // Opens a slice on the first lane on which it nests, or on a new lane. Returns the lane.
  std::size_t push(std::uint64_t end) {
    const std::size_t lane = tree.first_with_room(end);
    if (lane >= lanes.size()) lanes.resize(lane + 1);
    lanes[lane].push_back(end);
    ++open;
    spilled += lane > 0;
    note(lane);
    return lane;
  }

  std::uint64_t pop(std::size_t lane) {
    const std::uint64_t end = lanes[lane].back();
    lanes[lane].pop_back();
    --open;
    note(lane);
    return end;
  }

 private:
  void note(std::size_t lane) {
    const std::uint64_t ends = lanes[lane].empty() ? kNever : lanes[lane].back();
    tree.set(lane, {ends, lanes[lane].size() < kDeepest ? ends : 0});
  }
};

struct Event {
  std::uint64_t time;
  std::uint32_t row;
  std::uint32_t track;  // first the lane, at last the index among all lanes of the window
  std::uint32_t group;  // the index among the groups of the window
  std::uint8_t stream;
};

// Events for Python, as columns.
struct Events {
  std::vector<std::uint8_t> streams;
  std::vector<std::uint32_t> rows, tracks;
  std::vector<std::uint64_t> times;

  void reserve(std::size_t most) {
    streams.reserve(most);
    rows.reserve(most);
    tracks.reserve(most);
    times.reserve(most);
  }

  void add(const Event& event) {
    streams.push_back(event.stream);
    rows.push_back(event.row);
    tracks.push_back(event.track);
    times.push_back(event.time);
  }
};

class Lanes {
 public:
  static constexpr unsigned kEnd = 255;

  Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  std::uint64_t add(unsigned stream, Column<std::uint32_t> groups, Column<std::uint64_t> starts,
                    std::optional<Column<std::uint64_t>> given_ends, std::uint64_t from, std::uint64_t until,
                    std::optional<Column<std::uint32_t>> group_of, std::optional<Column<std::uint8_t>> inside) {
    if (stream >= kEnd) throw std::invalid_argument("the number of a stream must be below 255");
    const bool instant = !given_ends;
    const Column<std::uint64_t> ends = given_ends.value_or(starts);
    need_rows(starts.size, groups, ends);
    if (inside) need_rows(starts.size, *inside);
    nb::gil_scoped_release release;
    std::uint64_t next = kNever;
    for (std::size_t row = 0; row < starts.size; ++row) {
      const std::uint64_t begin = starts[row];
      if (begin < from) continue;
      if (begin >= until) {
        next = std::min(next, begin);
        continue;
      }
      std::uint32_t g = groups[row];
      if (group_of) {
        if (g >= group_of->size) throw std::out_of_range("no group for " + std::to_string(g));
        g = (*group_of)[g];
      }
      if (g >= added_.size()) {
        if (g > (1u << 24)) throw std::length_error("too many tracks");
        added_.resize(std::size_t{g} + 1);
      }
      const std::uint64_t stop = ends[row];
      if (stop < begin || stop == kNever) throw std::invalid_argument("a slice ends before it begins, or never");
      added_[g].push_back({begin, stop, static_cast<std::uint32_t>(row), static_cast<std::uint8_t>(stream), instant,
                           inside && (*inside)[row] != 0});
    }
    return next;
  }

  void close(std::uint64_t until) {
    const std::size_t groups = added_.size();
    closed_.push_back({until, std::move(added_)});
    added_.clear();
    if (!spare_.empty()) {
      added_ = std::move(spare_.back());
      spare_.pop_back();
    }
    added_.resize(groups);
  }

  nb::tuple take(Column<std::uint8_t> joins, std::size_t most_joined) {
    if (closed_.empty()) throw std::invalid_argument("no window is closed");
    Window window = std::move(closed_.front());
    closed_.pop_front();
    if (groups_.size() < window.entries.size()) groups_.resize(window.entries.size());
    std::vector<std::uint32_t> groups, counts, lanes, offsets;
    Events alone, joined;
    {
      nb::gil_scoped_release release;
      events_.clear();
      std::vector<std::uint32_t> first{0};  // track of each group
      std::vector<Run> runs;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        const std::size_t before = events_.size();
        deepest_ = 0;
        lay_out(groups_[g], window.entries[g], window.until, static_cast<std::uint32_t>(groups.size()));
        if (events_.size() == before) continue;
        runs.push_back({before, events_.size()});
        groups.push_back(static_cast<std::uint32_t>(g));
        counts.push_back(static_cast<std::uint32_t>(events_.size() - before));
        lanes.push_back(deepest_ + 1);
        first.push_back(first.back() + lanes.back());
      }
      alone.reserve(events_.size());
      offsets.reserve(events_.size() + 1);
      offsets.push_back(0);
      std::size_t host = 0;  // the first event at a time, from 1
      std::uint32_t guests = 0;
      in_order(runs, [&](Event event) {
        event.track += first[event.group];
        const bool again = host > 0 && alone.times[host - 1] == event.time;
        if (again && guests < most_joined && event.stream < joins.size && joins[event.stream] != 0) {
          joined.add(event);
          ++offsets[host];
          ++guests;
          return;
        }
        alone.add(event);
        offsets.push_back(0);
        if (again) return;
        host = alone.times.size();
        guests = 0;
      });
      std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
      for (auto& entries : window.entries) entries.clear();
    }
    spare_.push_back(std::move(window.entries));
    return nb::make_tuple(
        nb::make_tuple(to_array(std::move(groups)), to_array(std::move(counts)), to_array(std::move(lanes))),
        nb::make_tuple(to_array(std::move(alone.streams)), to_array(std::move(alone.rows)), to_array(std::move(alone.times)),
                       to_array(std::move(alone.tracks))),
        nb::make_tuple(to_array(std::move(joined.streams)), to_array(std::move(joined.rows)), to_array(std::move(offsets)),
                       to_array(std::move(joined.tracks))));
  }

  nb::object spilled() const {
    std::vector<std::uint64_t> counts;
    for (const Group& group : groups_) counts.push_back(group.spilled);
    return to_array(std::move(counts));
  }

  std::uint64_t outside() const { return outside_; }

 private:
  // The entries that begin before a time, by group.
  struct Window {
    std::uint64_t until;
    std::vector<std::vector<Entry>> entries;
  };

  // The events of one group, by index.
  struct Run {
    std::size_t next, end;
  };

  bool earlier_run(Run a, Run b) const {
    const Event &first = events_[a.next], &second = events_[b.next];
    return first.time != second.time ? first.time < second.time : first.group < second.group;
  }

  // Calls put() with the events of all runs in the order of time. `heap` has one run for each group. An event is often followed
  // by more of its group, so a run stays at the top while it is the earliest.
  template <typename Put>
  void in_order(std::vector<Run>& heap, Put put) const {
    const auto later = [this](Run a, Run b) { return earlier_run(b, a); };
    std::make_heap(heap.begin(), heap.end(), later);
    while (!heap.empty()) {
      Run run = heap[0];
      const std::size_t second = heap.size() > 2 && earlier_run(heap[2], heap[1]) ? 2 : 1;
      do put(events_[run.next++]);
      while (run.next != run.end && (heap.size() < 2 || earlier_run(run, heap[second])));
      if (run.next == run.end) {
        run = heap.back();
        heap.pop_back();
        if (heap.empty()) return;
      }
      std::size_t at = 0;
      for (std::size_t child = 1; child < heap.size(); child = 2 * at + 1) {
        if (child + 1 < heap.size() && earlier_run(heap[child + 1], heap[child])) ++child;
        if (!earlier_run(heap[child], run)) break;
        heap[at] = heap[child];
        at = child;
      }
      heap[at] = run;
    }
  }

  void lay_out(Group& group, std::vector<Entry>& entries, std::uint64_t until, std::uint32_t number) {
    if (entries.empty() && group.open == 0) return;
    sort_runs(entries.begin(), entries.end(), earlier);
    for (const Entry& entry : entries) {
      if (entry.start >= until) throw std::invalid_argument("a slice begins after the end of its window");
      close_before(group, entry.start, number);
      if (entry.inside && (group.lanes.empty() || group.lanes[0].empty())) {
        ++outside_;
        continue;
      }
      add_event(entry.start, entry.row, entry.instant ? 0 : group.push(entry.end), number, entry.stream);
    }
    if (until > 0) close_before(group, until - (until == kNever ? 0 : 1), number);
  }

  // Ends slices up to and including a time: a slice that ends when another begins is not its parent.
  void close_before(Group& group, std::uint64_t moment, std::uint32_t number) {
    while (group.open > 0) {
      const std::size_t lane = group.tree.next_end();
      if (group.lanes[lane].back() > moment) return;
      add_event(group.pop(lane), 0, lane, number, kEnd);
    }
  }

  void add_event(std::uint64_t time, std::uint32_t row, std::size_t lane, std::uint32_t number, std::uint8_t stream) {
    const auto track = static_cast<std::uint32_t>(lane);
    deepest_ = std::max(deepest_, track);
    events_.push_back({time, row, track, number, stream});
  }

  using Entries = std::vector<std::vector<Entry>>;  // by group
  Entries added_;
  // Both are used only under Python's lock. Memory of taken windows is reused, because the system zeroes new memory.
  std::deque<Window> closed_;
  std::vector<Entries> spare_;
  std::vector<Group> groups_;
  // Of the window that is taken, and the deepest lane of its newest group.
  std::vector<Event> events_;
  std::uint32_t deepest_ = 0;
  std::uint64_t outside_ = 0;
};

}  // namespace

void bind_lanes(nb::module_& m) {
  nb::class_<Lanes>(m, "Lanes", "Lays out slices as begin and end events of nested stacks, window by window.")
      .def(nb::init<>())
      .def_prop_ro_static("END", [](nb::handle) { return Lanes::kEnd; }, "The stream of events that end a slice.")
      .def("add", &Lanes::add, nb::arg("stream"), nb::arg("groups"), nb::arg("starts"), nb::arg("ends").none(),
           nb::arg("from_") = 0, nb::arg("until") = kNever, nb::arg("group_of") = nb::none(),
           nb::arg("inside") = nb::none(),
           "Add the slices (instants if ends is None) that begin in [from_, until), for the next close(). Returns\n"
           "the first start at or after until, 2**64 - 1 when there is none. With ``group_of``, the group of a row is\n"
           "``group_of[groups[row]]``. Instants where ``inside`` is true are left out, and counted, unless a slice of\n"
           "their group is open on the first lane.")
      .def("close", &Lanes::close, nb::arg("until"), "End the window: the added slices begin before ``until``.")
      .def("take", &Lanes::take, nb::arg("joins"), nb::arg("most_joined"),
           "The oldest closed window that was not taken: its groups (number, events, lanes), its events in the order of\n"
           "time (stream, row, time, track), and joined events (stream, row, offsets, track). Stream END ends a slice.\n"
           "A track is an index into all lanes of all these groups. An event of a stream that ``joins`` has no place of\n"
           "its own at the time of an earlier event: those from offsets[i] to offsets[i + 1], ``most_joined`` at most,\n"
           "join event i, the first at their time.")
      .def("spilled", &Lanes::spilled, "By group, how many slices did not nest on the first lane.")
      .def_prop_ro("outside", &Lanes::outside, "How many instants were left out.");
}

}  // namespace cutrace
