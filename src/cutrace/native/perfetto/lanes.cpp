// Layout of the slices of many tracks as begin and end events of properly nested stacks.
//
// A viewer assigns the end of a slice to the slice that started last on its track, so the slices of a track must form a tree of
// limited depth. Lanes lays out the slices of each group, such as a thread: a slice goes to the first lane on which it nests.
// This is lane 0, unless the slice partly overlaps an open one there. Lanes works on windows of time: rows are added in any
// order, close() ends a window and lays out its rows, and take() returns all events of the oldest closed window in the order of
// time. Events with equal times are ordered by group. One thread may add rows and close windows while another one takes windows.
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
#include "common/runs.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

// Perfetto's importer drops slices nested deeper than 512. An instant inside the innermost slice needs a level too, and instants
// at the same time need one level each.
constexpr std::size_t kDeepest = 500, kDeepestInstant = 511;

struct Entry {
  std::uint64_t start;
  std::uint64_t end;
  std::uint32_t row;
  std::uint16_t stream;
  std::uint16_t level : 12;  // among slices of equal times, outer ones have the lower level
  std::uint16_t inner_first : 1;  // of slices with one level, the inner ones are the earlier rows, not the later ones
  std::uint16_t instant : 1;
  std::uint16_t takes_level : 1;  // whether viewers draw an instant inside earlier instants with the same time
  std::uint16_t inside : 1;  // the instant is left out if no slice is open on the first lane
};
static_assert(sizeof(Entry) == 24);

constexpr std::uint16_t kMostLevel = (1 << 12) - 1;

// Of entries with the same start, longer slices come first, because they enclose the shorter ones. Instants come last, inside all
// slices. Other entries keep the order in which they were added.
bool earlier(const Entry& a, const Entry& b) {
  if (a.start != b.start) return a.start < b.start;
  if (a.instant != b.instant) return b.instant;
  if (a.end != b.end) return a.end > b.end;
  if (a.level != b.level) return a.level < b.level;
  if (!a.inner_first || !b.inner_first) return false;
  return a.stream != b.stream ? a.stream > b.stream : a.row > b.row;
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

  // The first lane on which a slice with this end nests, or the size of the tree for none.
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
  std::vector<Lane> nodes_ = std::vector<Lane>(2);  // the root is at 1, the lanes start at size_
};

struct Group {
  std::vector<std::vector<std::uint64_t>> lanes;  // ends of the open slices, the innermost last
  std::size_t open = 0;
  std::uint64_t spilled = 0;
  Tree tree;  // of two lanes or more
  // The last time with instants, and the number of instants on their last lane.
  std::uint64_t instant_time = kNever;
  std::size_t instant_lane = 0, instants = 0;

  // Opens a slice on the first lane on which it nests, or on a new lane. Returns the lane.
  std::size_t push(std::uint64_t end) {
    const bool one = lanes.size() == 1;
    const std::size_t lane = one ? (keys(0).room < end ? 1 : 0) : tree.first_with_room(end);
    if (lane >= lanes.size()) {
      lanes.resize(lane + 1);
      if (one) note(0);
    }
    lanes[lane].push_back(end);
    ++open;
    spilled += lane > 0;
    note(lane);
    return lane;
  }

  // The first lane with a free level for an instant. Times must not decrease.
  std::size_t lane_of_instant(std::uint64_t time, bool takes_level) {
    if (!takes_level) return 0;
    if (time != instant_time) {
      instant_time = time;
      instant_lane = instants = 0;
    }
    const auto depth = [&] { return instant_lane < lanes.size() ? lanes[instant_lane].size() : 0; };
    for (; depth() + instants >= kDeepestInstant; ++instant_lane) instants = 0;
    ++instants;
    spilled += instant_lane > 0;
    return instant_lane;
  }

  // The first lane whose innermost slice ends first.
  std::size_t next_end() const { return lanes.size() == 1 ? 0 : tree.next_end(); }

  std::uint64_t pop(std::size_t lane) {
    const std::uint64_t end = lanes[lane].back();
    lanes[lane].pop_back();
    --open;
    note(lane);
    return end;
  }

 private:
  Tree::Lane keys(std::size_t lane) const {
    const std::uint64_t ends = lanes[lane].empty() ? kNever : lanes[lane].back();
    return {ends, lanes[lane].size() < kDeepest ? ends : 0};
  }

  void note(std::size_t lane) {
    if (lanes.size() > 1) tree.set(lane, keys(lane));
  }
};

constexpr std::uint16_t kEnd = INT16_MAX;  // the stream of events that end a slice

struct TrackEvent {
  std::uint64_t time;
  std::uint32_t row;
  std::uint32_t lane;
  std::uint32_t group;  // the index among the groups of the window
  std::uint16_t stream;

  bool ends_slice() const { return stream == kEnd; }
};

// Events for Python, as columns; `most` is the largest number.
struct Events {
  Array<std::uint16_t> programs;
  Array<std::uint32_t> rows, tracks;
  Array<std::uint64_t> times;
  std::size_t count = 0;

  explicit Events(std::size_t most) : programs(most), rows(most), tracks(most), times(most) {}

  void add(const TrackEvent& event, std::size_t program, std::uint32_t track) {
    programs[count] = static_cast<std::uint16_t>(program);
    rows[count] = event.row;
    tracks[count] = track;
    times[count++] = event.time;
  }

  void shrink() {
    programs.shrink(count);
    rows.shrink(count);
    tracks.shrink(count);
    times.shrink(count);
  }
};

// The events of a window in the order of time, for Python. Python has a program for each stream, then one for the ends of slices.
// The same programs follow again for hosts. A host is the first event at its time, and later events at this time join it if their
// stream allows that.
class TakenEvents {
 public:
  TakenEvents(std::size_t most, Column<std::uint8_t> joins, std::size_t most_joined)
      : placed_(most), joined_(most), joins_(joins), most_joined_(most_joined) {}

  void add(const TrackEvent& event, std::uint32_t track) {
    if (!event.ends_slice() && event.stream >= joins_.size) throw std::invalid_argument("each stream needs an entry");
    const bool first_at_its_time = placed_.count == 0 || host_time_ != event.time;
    if (!first_at_its_time && may_join(event)) {
      join(event, track);
      return;
    }
    if (first_at_its_time) {
      host_ = placed_.count;
      host_time_ = event.time;
      guests_ = 0;
    }
    placed_.add(event, event.ends_slice() ? end_program() : event.stream, track);
  }

  // Ends the columns. offsets_[i] to offsets_[i + 1] are the events that joined event i.
  void finish() {
    placed_.shrink();
    joined_.shrink();
    offsets_.resize(placed_.count + 1);
    for (const std::size_t host : hosts_) ++offsets_[host + 1];
    std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  }

  nb::tuple to_python() {
    return nb::make_tuple(
        nb::make_tuple(to_array(std::move(placed_.programs)), to_array(std::move(placed_.rows)),
                       to_array(std::move(placed_.times)), to_array(std::move(placed_.tracks))),
        nb::make_tuple(to_array(std::move(joined_.programs)), to_array(std::move(joined_.rows)), to_array(std::move(offsets_)),
                       to_array(std::move(joined_.tracks))));
  }

 private:
  std::size_t end_program() const { return joins_.size; }
  std::size_t programs() const { return joins_.size + 1; }  // without the streams of hosts

  bool may_join(const TrackEvent& event) const {
    return !event.ends_slice() && joins_[event.stream] != 0 && guests_ < most_joined_;
  }

  void join(const TrackEvent& event, std::uint32_t track) {
    joined_.add(event, event.stream, track);
    hosts_.push_back(host_);
    std::uint16_t& program = placed_.programs[host_];
    if (guests_ == 0) program = static_cast<std::uint16_t>(program + programs());
    ++guests_;
  }

  Events placed_, joined_;
  std::vector<std::size_t> hosts_;  // of the joined events
  std::vector<std::uint32_t> offsets_;
  Column<std::uint8_t> joins_;
  std::size_t most_joined_;
  std::size_t host_ = 0;  // the first event at the time of the last one
  std::uint64_t host_time_ = 0;
  std::size_t guests_ = 0;  // how many events joined it
};

class Lanes {
 public:
  Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  void add(unsigned stream, Column<std::uint32_t> groups, Column<std::uint64_t> starts,
           std::optional<Column<std::uint64_t>> given_ends, std::uint64_t from, std::uint64_t until,
           std::optional<Column<std::uint32_t>> group_of, std::optional<Column<std::uint8_t>> inside,
           std::optional<Column<std::uint16_t>> levels, bool inner_first, bool takes_level) {
    if (stream >= kEnd) throw std::invalid_argument("the number of a stream is too large");
    const bool instant = !given_ends;
    const Column<std::uint64_t> ends = given_ends.value_or(starts);
    need_rows(starts.size, groups, ends);
    if (inside) need_rows(starts.size, *inside);
    if (levels) need_rows(starts.size, *levels);
    const Column<std::uint32_t> used = group_of.value_or(groups);
    Entry entry{};
    entry.stream = static_cast<std::uint16_t>(stream);
    entry.inner_first = inner_first;
    entry.instant = instant;
    entry.takes_level = takes_level;
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < used.size; ++i) {
      if (used[i] > (1u << 24)) throw std::length_error("too many tracks");
      if (used[i] >= added_.size()) added_.resize(std::size_t{used[i]} + 1);
    }
    for (std::size_t row = 0; row < starts.size; ++row) {
      entry.start = starts[row];
      if (entry.start < from || entry.start >= until) continue;
      entry.end = ends[row];
      if (entry.end < entry.start) throw std::invalid_argument("a slice ends before it begins");
      entry.row = static_cast<std::uint32_t>(row);
      if (levels) entry.level = std::min((*levels)[row], kMostLevel) & kMostLevel;
      if (inside) entry.inside = (*inside)[row] != 0;
      std::uint32_t g = groups[row];
      if (group_of) {
        if (g >= group_of->size) throw std::out_of_range("no group for " + std::to_string(g));
        g = (*group_of)[g];
      }
      added_[g].push_back(entry);
    }
  }

  void close(std::uint64_t until) {
    Window window;
    if (!spare_.empty()) {
      window = std::move(spare_.back());
      spare_.pop_back();
    }
    {
      nb::gil_scoped_release release;
      window.clear();
      if (groups_.size() < added_.size()) groups_.resize(added_.size());
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        const std::size_t before = window.events.size();
        const auto number = static_cast<std::uint32_t>(window.groups.size());
        window.lanes.push_back(1);
        window.instant_lanes.push_back(0);
        lay_out(groups_[g], added_[g], until, number, window);
        added_[g].clear();
        if (window.events.size() == before) {
          window.lanes.pop_back();
          window.instant_lanes.pop_back();
          continue;
        }
        window.first = std::min(window.first, window.events[before].time);
        window.groups.push_back(static_cast<std::uint32_t>(g));
        window.counts.push_back(static_cast<std::uint32_t>(window.events.size() - before));
      }
    }
    closed_.push_back(std::move(window));
  }

  nb::tuple groups() const {
    const Window& window = oldest();
    return nb::make_tuple(to_array(std::vector(window.groups)), to_array(std::vector(window.counts)),
                          to_array(std::vector(window.lanes)), window.first);
  }

  nb::object instant_lanes() const { return to_array(std::vector(oldest().instant_lanes)); }

  nb::tuple take(Column<std::uint8_t> joins, std::size_t most_joined, Column<std::uint32_t> tracks) {
    const std::vector<std::uint32_t>& lanes = oldest().lanes;
    if (joins.size >= kEnd || tracks.size != std::accumulate(lanes.begin(), lanes.end(), std::size_t{0}))
      throw std::invalid_argument("each stream needs an entry, and each lane a track");
    Window window = std::move(closed_.front());
    closed_.pop_front();
    TakenEvents taken(window.events.size(), joins, most_joined);
    {
      nb::gil_scoped_release release;
      const std::vector<std::size_t> first_lanes = window.first_lanes();
      std::vector<Run> runs = window.runs();
      in_order(window.events, runs, [&](const TrackEvent& event) {
        taken.add(event, tracks[first_lanes[event.group] + event.lane]);
      });
      taken.finish();
    }
    spare_.push_back(std::move(window));
    return taken.to_python();
  }

  nb::object spilled() const {
    std::vector<std::uint64_t> counts;
    for (const Group& group : groups_) counts.push_back(group.spilled);
    return to_array(std::move(counts));
  }

  std::uint64_t outside() const { return outside_; }

 private:
  // The events of one group, by index.
  struct Run {
    std::size_t next, end;
  };

  // The events of a window, group by group. For each group: its number, its numbers of events and lanes, and its last lane with an
  // instant. `first` is the earliest time.
  struct Window {
    std::vector<TrackEvent> events;
    std::vector<std::uint32_t> groups, counts, lanes, instant_lanes;
    std::uint64_t first = kNever;

    void clear() {
      for (auto* numbers : {&groups, &counts, &lanes, &instant_lanes}) numbers->clear();
      events.clear();
      first = kNever;
    }

    void add(std::uint64_t time, std::uint32_t row, std::size_t lane, std::uint32_t group, std::uint16_t stream) {
      const auto number = static_cast<std::uint32_t>(lane);
      lanes.back() = std::max(lanes.back(), number + 1);
      events.push_back({time, row, number, group, stream});
    }

    // The first lane of each group, among the lanes of all.
    std::vector<std::size_t> first_lanes() const {
      std::vector<std::size_t> first(groups.size());
      std::exclusive_scan(lanes.begin(), lanes.end(), first.begin(), std::size_t{0});
      return first;
    }

    // The events of each group.
    std::vector<Run> runs() const {
      std::vector<Run> out;
      std::size_t begin = 0;
      for (const std::uint32_t count : counts) {
        out.push_back({begin, begin + count});
        begin += count;
      }
      return out;
    }
  };

  const Window& oldest() const {
    if (closed_.empty()) throw std::invalid_argument("no window is closed");
    return closed_.front();
  }

  // Calls put() with the events of all runs in the order of time. `heap` has one run for each group. An event is often followed
  // by events of the same group, so a run stays at the top while it is the earliest.
  template <typename Put>
  static void in_order(const std::vector<TrackEvent>& events, std::vector<Run>& heap, Put put) {
    const auto earlier_run = [&](Run a, Run b) {
      const TrackEvent &first = events[a.next], &second = events[b.next];
      return first.time != second.time ? first.time < second.time : first.group < second.group;
    };
    std::make_heap(heap.begin(), heap.end(), [&](Run a, Run b) { return earlier_run(b, a); });
    while (!heap.empty()) {
      Run run = heap[0];
      // Up to this time, the events of the run are earlier than the second run.
      std::uint64_t until = kNever;
      if (heap.size() > 1) {
        const std::size_t second = heap.size() > 2 && earlier_run(heap[2], heap[1]) ? 2 : 1;
        const TrackEvent& next = events[heap[second].next];
        until = next.time - (events[run.next].group > next.group);
      }
      do put(events[run.next++]);
      while (run.next != run.end && events[run.next].time <= until);
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

  void lay_out(Group& group, std::vector<Entry>& entries, std::uint64_t until, std::uint32_t number, Window& window) {
    if (entries.empty() && group.open == 0) return;
    sort_runs(entries.begin(), entries.end(), earlier);
    for (const Entry& entry : entries) {
      if (entry.start >= until) throw std::invalid_argument("a slice begins after the end of its window");
      close_before(group, entry.start, number, window);
      if (entry.inside && (group.lanes.empty() || group.lanes[0].empty())) {
        ++outside_;
        continue;
      }
      const std::size_t lane = entry.instant ? group.lane_of_instant(entry.start, entry.takes_level) : group.push(entry.end);
      window.add(entry.start, entry.row, lane, number, entry.stream);
      if (entry.instant) window.instant_lanes.back() = std::max(window.instant_lanes.back(), static_cast<std::uint32_t>(lane));
    }
    if (until > 0) close_before(group, until - 1, number, window);
  }

  // Ends slices up to and including a time, because a slice that ends at the start of another is not its parent.
  static void close_before(Group& group, std::uint64_t moment, std::uint32_t number, Window& window) {
    while (group.open > 0) {
      const std::size_t lane = group.next_end();
      if (group.lanes[lane].empty() || group.lanes[lane].back() > moment) return;
      window.add(group.pop(lane), 0, lane, number, kEnd);
    }
  }

  std::vector<std::vector<Entry>> added_;  // by group
  std::vector<Group> groups_;
  // Both members are used only under Python's lock. Memory of taken windows is reused, because the system zeroes new memory.
  std::deque<Window> closed_;
  std::vector<Window> spare_;
  std::uint64_t outside_ = 0;
};

}  // namespace

void bind_lanes(nb::module_& m) {
  nb::class_<Lanes>(m, "Lanes", "Lays out slices as begin and end events of nested stacks, window by window.")
      .def(nb::init<>())
      .def("add", &Lanes::add, nb::arg("stream"), nb::arg("groups"), nb::arg("starts"), nb::arg("ends").none(),
           nb::arg("from_") = 0, nb::arg("until") = kNever, nb::arg("group_of") = nb::none(),
           nb::arg("inside") = nb::none(), nb::arg("levels") = nb::none(), nb::arg("inner_first") = false,
           nb::arg("takes_level") = true,
           "Add the slices (instants if ends is None) that start in [from_, until), for the next close(). With ``group_of``, the\n"
           "group of a row is ``group_of[groups[row]]``. Instants with a true ``inside`` are left out, and counted, unless a\n"
           "slice of their group is open on the first lane. Of slices with equal times, slices with lower ``levels`` are outer.\n"
           "Of slices with one level, the earlier rows, of earlier streams, are outer, or the later ones with ``inner_first``. A\n"
           "slice that ends at 2^64 - 1 never ends. Without ``takes_level``, instants are not slices for viewers.")
      .def("close", &Lanes::close, nb::arg("until"), "End the window and lay out its slices, which start before ``until``.")
      .def("groups", &Lanes::groups,
           "The groups of the oldest closed window, the numbers of their events and lanes, and the earliest time.")
      .def("instant_lanes", &Lanes::instant_lanes, "The last lane with an instant of each of these groups.")
      .def("take", &Lanes::take, nb::arg("joins"), nb::arg("most_joined"), nb::arg("tracks"),
           "Remove the oldest closed window. Returns its events in the order of time (stream, row, time, track), and joined\n"
           "events (stream, row, offsets, track). ``tracks`` has the track of each lane of each group. ``joins`` has an entry for\n"
           "each stream, and the stream ``len(joins)`` ends a slice. An event of a stream with a true entry is joined to the\n"
           "first event at its time, if there is one. The events from offsets[i] to offsets[i + 1], ``most_joined`` at most, are\n"
           "joined to event i. The stream of event i is then higher by ``len(joins) + 1``.")
      .def("spilled", &Lanes::spilled, "The number of slices by group that did not nest on the first lane.")
      .def_prop_ro("outside", &Lanes::outside, "The number of instants that were left out.");
}

}  // namespace cutrace
