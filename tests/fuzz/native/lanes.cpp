// Lanes: in any windows, each slice is emitted once, starts before it ends, and nests on its lane.
#include <map>
#include <tuple>

#include "python.h"

namespace nb = nanobind;
using fuzz::Columns;
using fuzz::Input;
using fuzz::numbers;
using fuzz::require;

namespace {

constexpr std::uint64_t kNever = UINT64_MAX;

struct Rows {
  std::vector<std::uint32_t> group;
  std::vector<std::uint64_t> start, end;
};

Rows rows(Input& input) {
  Rows out;
  const std::size_t count = input.below(400), groups = 1 + input.below(4);
  const bool staircase = input.flip();
  std::uint64_t time = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = input.number<std::uint16_t>();
    time = staircase ? time + bits % 3 : std::uint64_t{bits} % 97;
    if (bits == 0xFFFF) time = input.number<std::uint64_t>();
    time = std::min(time, kNever - 1);  // no window reaches beyond it
    out.group.push_back(static_cast<std::uint32_t>(bits % groups));
    out.start.push_back(time);
    out.end.push_back(time + (staircase ? 1000 + bits % 7 : bits >> 9));
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::native();
  Input input(data, size);
  const Rows slices = rows(input), instants = rows(input);
  Columns memory;
  nb::object lanes = fuzz::native().attr("Lanes")();
  nb::object group = memory.column(slices.group, 'I'), start = memory.column(slices.start, 'Q');
  nb::object end = memory.column(slices.end, 'Q');
  nb::object other = memory.column(instants.group, 'I'), moment = memory.column(instants.start, 'Q');
  nb::object table = input.flip() ? memory.column(input, 'I', 1 + input.below(4)) : nb::object(nb::none());
  const auto group_of = table.is_none() ? std::vector<std::uint32_t>{} : numbers<std::uint32_t>(table);
  for (std::uint32_t g : group_of)
    if (g > 1000 && g <= 1u << 24) return 0;  // this many tracks would only cost memory

  std::map<std::tuple<std::uint32_t, std::uint32_t>, std::vector<std::uint64_t>> open;
  std::size_t begun = 0, ended = 0, shown = 0;
  std::uint64_t from = 0, last = 0;
  const nb::bytes joins(input.flip() ? "\0\0\1" : "\0\0\0", 3);
  for (int window = 0; window < 4 && from != kNever; ++window) {
    const std::uint64_t step = input.number<std::uint16_t>() % 200;
    const std::uint64_t until = window == 3 || from + step < from ? kNever : from + step;
    const bool added = fuzz::accepted([&] {
      lanes.attr("add")(1, group, start, end, from, until, table);
      lanes.attr("add")(2, other, moment, nb::none(), from, until, table);
    });
    if (!added) return 0;
    lanes.attr("close")(until);
    const auto of_groups = nb::cast<nb::tuple>(lanes.attr("groups")());
    const auto groups = numbers<std::uint32_t>(of_groups[0]), lanes_of = numbers<std::uint32_t>(of_groups[2]);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> keys;
    std::vector<std::uint32_t> key_numbers;
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (std::uint32_t lane = 0; lane < lanes_of[g]; ++lane) {
        key_numbers.push_back(static_cast<std::uint32_t>(keys.size()));
        keys.emplace_back(groups[g], lane);
      }
    const auto taken = nb::cast<nb::tuple>(lanes.attr("take")(joins, 2, memory.column(key_numbers, 'I')));
    const auto events = nb::cast<nb::tuple>(taken[0]), joined = nb::cast<nb::tuple>(taken[1]);
    const auto streams = numbers<std::uint16_t>(events[0]);
    const auto of = numbers<std::uint32_t>(events[1]), tracks = numbers<std::uint32_t>(events[3]);
    const auto times = numbers<std::uint64_t>(events[2]);
    const auto joined_rows = numbers<std::uint32_t>(joined[1]), offsets = numbers<std::uint32_t>(joined[2]);
    require(offsets.size() == times.size() + 1 && offsets.back() == joined_rows.size(), "each event has its joined events");
    for (std::size_t e = 0; e < times.size(); ++e) {
      require(times[e] >= last, "events are in the order of time");
      require(times[e] < until || until == kNever, "events are those of the window");
      last = times[e];
      require((streams[e] > 3) == (offsets[e] < offsets[e + 1]), "events with joined ones have streams of their own");
      auto& stack = open[keys.at(tracks[e])];
      if (streams[e] % 4 == 1) {
        require(slices.start[of[e]] == times[e], "a slice begins when it does");
        require(stack.empty() || stack.back() >= slices.end[of[e]], "slices of a lane nest");
        stack.push_back(slices.end[of[e]]);
        ++begun;
      } else if (streams[e] % 4 == 2) {
        require(instants.start[of[e]] == times[e], "an instant is when it is");
        ++shown;
      } else {
        require(!stack.empty() && stack.back() == times[e], "the slice that began last ends first");
        stack.pop_back();
        ++ended;
      }
      for (std::size_t j = offsets[e]; j < offsets[e + 1]; ++j, ++shown)
        require(instants.start[joined_rows[j]] == times[e], "an instant joins an event at its time");
    }
    from = until;
  }
  require(begun == slices.start.size() && ended == begun && shown == instants.start.size(), "all came out once");
  return 0;
}
