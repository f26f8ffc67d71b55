// Layout of the slices of many tracks as begin and end events of properly nested stacks.
//
// A viewer assigns the end of a slice to the slice that began last on its track, so the slices of a track must form a tree of
// limited depth. Lanes lays out the slices of each group, such as a thread: a slice goes to the first lane on which it nests.
// This is lane 0, unless the slice partly overlaps an open one there. Lanes works on windows of time: rows are added in any
// order, close() ends a window, and take() returns all events of the oldest closed window in the order of time. One thread
// may add rows while another one takes windows.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
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

struct Events {
  std::vector<std::uint8_t> stream;
  std::vector<std::uint32_t> row;
  std::vector<std::uint64_t> time;
  std::vector<std::uint32_t> lane;

  explicit Events(std::size_t most) {
    stream.reserve(most);
    row.reserve(most);
    time.reserve(most);
    lane.reserve(most);
  }

  void add(std::uint8_t s, std::uint32_t r, std::uint64_t t, std::size_t l) {
    stream.push_back(s);
    row.push_back(r);
    time.push_back(t);
    lane.push_back(static_cast<std::uint32_t>(l));
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
                    std::optional<Column<std::uint32_t>> group_of) {
    if (stream >= kEnd) throw std::invalid_argument("the number of a stream must be below 255");
    const bool instant = !given_ends;
    const Column<std::uint64_t> ends = given_ends.value_or(starts);
    need_rows(starts.size, groups, ends);
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
      added_[g].push_back(
          {begin, stop, static_cast<std::uint32_t>(row), static_cast<std::uint8_t>(stream), instant});
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

  nb::tuple take() {
    if (closed_.empty()) throw std::invalid_argument("no window is closed");
    Window window = std::move(closed_.front());
    closed_.pop_front();
    if (groups_.size() < window.entries.size()) groups_.resize(window.entries.size());
    std::vector<std::uint32_t> groups;
    std::vector<std::uint32_t> offsets{0};
    std::size_t most = 0;  // two events a row, and the ends of earlier slices
    for (const auto& entries : window.entries) most += 2 * entries.size();
    for (const Group& group : groups_) most += group.open;
    Events events(most);
    {
      nb::gil_scoped_release release;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        Group& group = groups_[g];
        if (window.entries[g].empty() && group.open == 0) continue;
        lay_out(group, window.entries[g], window.until, events);
        if (events.time.size() == offsets.back()) continue;
        groups.push_back(static_cast<std::uint32_t>(g));
        offsets.push_back(static_cast<std::uint32_t>(events.time.size()));
      }
    }
    for (auto& entries : window.entries) entries.clear();
    spare_.push_back(std::move(window.entries));
    return nb::make_tuple(to_array(std::move(groups)), to_array(std::move(offsets)), to_array(std::move(events.stream)),
                          to_array(std::move(events.row)), to_array(std::move(events.time)),
                          to_array(std::move(events.lane)));
  }

  nb::object spilled() const {
    std::vector<std::uint64_t> counts;
    for (const Group& group : groups_) counts.push_back(group.spilled);
    return to_array(std::move(counts));
  }

 private:
  // The entries that begin before a time, by group.
  struct Window {
    std::uint64_t until;
    std::vector<std::vector<Entry>> entries;
  };

  void lay_out(Group& group, std::vector<Entry>& entries, std::uint64_t until, Events& events) {
    sort_runs(entries.begin(), entries.end(), earlier);
    for (const Entry& entry : entries) {
      if (entry.start >= until) throw std::invalid_argument("a slice begins after the end of its window");
      close_before(group, entry.start, events);
      if (entry.instant) {
        events.add(entry.stream, entry.row, entry.start, 0);
        continue;
      }
      events.add(entry.stream, entry.row, entry.start, group.push(entry.end));
    }
    if (until > 0) close_before(group, until - (until == kNever ? 0 : 1), events);
  }

  // Ends slices up to and including a time: a slice that ends when another begins is not its parent.
  void close_before(Group& group, std::uint64_t moment, Events& events) {
    while (group.open > 0) {
      const std::size_t lane = group.tree.next_end();
      if (group.lanes[lane].back() > moment) return;
      events.add(kEnd, 0, group.pop(lane), lane);
    }
  }

  using Entries = std::vector<std::vector<Entry>>;  // by group
  Entries added_;
  // Both are used only under Python's lock. Memory of taken windows is reused, because the system zeroes new memory.
  std::deque<Window> closed_;
  std::vector<Entries> spare_;
  std::vector<Group> groups_;
};

}  // namespace

void bind_lanes(nb::module_& m) {
  nb::class_<Lanes>(m, "Lanes", "Lays out slices as begin and end events of nested stacks, window by window.")
      .def(nb::init<>())
      .def_prop_ro_static("END", [](nb::handle) { return Lanes::kEnd; }, "The stream of events that end a slice.")
      .def("add", &Lanes::add, nb::arg("stream"), nb::arg("groups"), nb::arg("starts"), nb::arg("ends").none(),
           nb::arg("from_") = 0, nb::arg("until") = kNever, nb::arg("group_of") = nb::none(),
           "Add the slices (instants if ends is None) that begin in [from_, until), for the next close(). Returns\n"
           "the first start at or after until, 2**64 - 1 when there is none. With ``group_of``, the group of a row is\n"
           "``group_of[groups[row]]``.")
      .def("close", &Lanes::close, nb::arg("until"), "End the window: the added slices begin before ``until``.")
      .def("take", &Lanes::take,
           "The events of the oldest closed window that was not taken: (groups, offsets, streams, rows, times,\n"
           "lanes). Those of groups[i] are from offsets[i] to offsets[i + 1]; stream END ends a slice.")
      .def("spilled", &Lanes::spilled, "By group, how many slices did not nest on the first lane.");
}

}  // namespace cutrace
