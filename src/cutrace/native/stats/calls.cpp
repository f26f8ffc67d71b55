// The newest API calls of a process by correlation id. They give the time and the thread of the launch of GPU work, and the
// ranges around it. Memory is fixed: a later call replaces an earlier one in the same slot. Work without its call, which was
// replaced or never recorded, is marked as unknown.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "stats/launch_queue.h"
#include "stats/levels.h"
#include "stats/range_threads.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Zeroed memory. Its pages are allocated only when written, so that a process with few calls needs little.
template <typename T>
std::unique_ptr<T[], Free> zeros(std::size_t count) {
  auto* const values = static_cast<T*>(std::calloc(count, sizeof(T)));
  if (values == nullptr) throw std::bad_alloc();
  return std::unique_ptr<T[], Free>(values);
}

class Calls {
 public:
  explicit Calls(unsigned bits) {
    if (bits > 24) throw std::invalid_argument("at most 2**24 calls can be kept");
    const std::size_t slots = std::size_t{1} << bits;
    mask_ = static_cast<std::uint32_t>(slots - 1);
    calls_ = zeros<Call>(slots);
    rest_ = zeros<Rest>(slots);
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // A runtime call and its driver calls have the same id. The call that starts first counts. If several calls start together, the
  // longest call counts. Ends and functions are optional, in all calls or in none. Owners are optional too. An owner is a number
  // for the ranges around a call, and `how` is the relation of the call to these ranges. By default each thread owns its calls.
  void add(Column<std::uint32_t> ids, Column<std::uint64_t> starts, Column<std::uint32_t> threads,
           std::optional<Column<std::uint64_t>> end, std::optional<Column<std::uint16_t>> function,
           std::optional<Column<std::uint32_t>> owner, std::optional<Column<std::uint8_t>> how) {
    need_rows(starts.size, ids, threads);
    if (end.has_value() != function.has_value()) throw std::invalid_argument("ends and functions need each other");
    if (end) need_rows(starts.size, *end, *function);
    if (owner.has_value() != how.has_value()) throw std::invalid_argument("owners and how they own need each other");
    if (owner) need_rows(starts.size, *owner, *how);
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < starts.size; ++row) {
      const std::uint32_t id = ids[row];
      const std::uint64_t time = starts[row];
      if (id == 0) continue;
      Call& call = calls_[id & mask_];
      const std::uint64_t stop = end ? (*end)[row] : 0;
      if (call.id == id && (call.start < time || (call.start == time && (!end || rest_[id & mask_].end >= stop))))
        continue;
      call = {time, id, threads[row]};
      rest_[id & mask_] = {
          .end = stop,
          .owner = owner ? (*owner)[row] : call.thread,
          .function = end ? (*function)[row] : std::uint16_t{0},
          .how = how ? (*how)[row] : std::uint8_t{kOwn},
      };
    }
  }

  nb::tuple find(Column<std::uint32_t> ids) const {
    const std::size_t rows = ids.size;
    Array<bool> known(rows);
    Array<std::int64_t> starts(rows), ends(rows);
    Array<std::uint32_t> threads(rows), owners(rows);
    Array<std::uint16_t> functions(rows);
    Array<std::uint8_t> how(rows);
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < rows; ++row) {
        const std::uint32_t id = ids[row];
        const Call& found = calls_[id & mask_];
        known[row] = found.id == id && id != 0;
        const Call call = known[row] ? found : Call{};
        const Rest rest = known[row] ? rest_[id & mask_] : Rest{};
        starts[row] = static_cast<std::int64_t>(call.start);
        ends[row] = static_cast<std::int64_t>(rest.end);
        threads[row] = call.thread;
        functions[row] = rest.function;
        owners[row] = rest.owner;
        how[row] = rest.how;
      }
    }
    return nb::make_tuple(to_array(std::move(known)), to_array(std::move(starts)), to_array(std::move(ends)),
                          to_array(std::move(threads)), to_array(std::move(functions)), to_array(std::move(owners)),
                          to_array(std::move(how)));
  }

  // Work of one table: ids, starts, ends and queues, in the order of its start.
  using Part = std::tuple<Column<std::uint32_t>, Column<std::uint64_t>, Column<std::uint64_t>, Column<std::uint32_t>>;

  void launch(const std::vector<Part>& parts, Levels& levels, Column<std::uint32_t> counters) {
    std::vector<Cursor> cursors;
    for (const auto& [ids, begins, ends, queues] : parts) {
      need_rows(ids.size, begins, ends, queues);
      if (ids.size > 0) cursors.push_back({ids, begins, ends, queues, 0});
    }
    nb::gil_scoped_release release;
    const auto earlier = [](const Cursor& a, const Cursor& b) { return a.start() < b.start(); };
    while (!cursors.empty()) {
      // Take the rows of the earliest part, up to the start of the second part.
      std::iter_swap(cursors.begin(), std::min_element(cursors.begin(), cursors.end(), earlier));
      const auto second = std::min_element(cursors.begin() + 1, cursors.end(), earlier);
      const std::uint64_t until = second == cursors.end() ? UINT64_MAX : second->start();
      Cursor& first = cursors.front();
      do {
        add_row(first, levels, counters);
        ++first.row;
      } while (first.row < first.ids.size && first.start() <= until);
      if (first.row == first.ids.size) cursors.erase(cursors.begin());
    }
  }

  nb::list shares() const {
    nb::list out;
    for (const Share& share : shares_) out.append(nb::make_tuple(share.operations, share.time));
    return out;
  }

 private:
  struct Cursor {
    Column<std::uint32_t> ids;
    Column<std::uint64_t> starts, ends;
    Column<std::uint32_t> queues;
    std::size_t row;

    std::uint64_t start() const { return starts[row]; }
  };
  struct Call {
    std::uint64_t start = 0;
    std::uint32_t id = 0;
    std::uint32_t thread = 0;
  };
  struct Rest {
    std::uint64_t end = 0;
    std::uint32_t owner = 0;
    std::uint16_t function = 0;
    std::uint8_t how = kNone;
  };
  void add_row(const Cursor& work, Levels& levels, const Column<std::uint32_t>& counters) {
    const std::uint32_t id = work.ids[work.row], queue = work.queues[work.row];
    const std::uint64_t start = work.start();
    if (queue >= counters.size) throw std::out_of_range("no counter for a queue");
    if (queue >= queues_.size()) queues_.resize(counters.size);
    const Call call = calls_[id & mask_];
    const bool known = call.id == id && id != 0;
    const auto queued = queues_[queue].add(id, known, static_cast<std::int64_t>(call.start), static_cast<std::int64_t>(start));
    const Rest rest = known ? rest_[id & mask_] : Rest{};
    const std::uint64_t end = work.ends[work.row];
    Share& share = shares_[std::min<std::size_t>(rest.how, kNone)];
    ++share.operations;
    share.time += end - start;
    const std::uint32_t counter = counters[queue];
    if (queued && counter != Levels::kNone && *queued < static_cast<std::int64_t>(start))
      levels.stretch(counter, static_cast<std::uint64_t>(*queued), start, 1);
  }

  std::uint32_t mask_;
  std::unique_ptr<Call[], Free> calls_;
  std::unique_ptr<Rest[], Free> rest_;  // parallel to calls_
  struct Share {
    std::uint64_t operations = 0, time = 0;
  };
  std::array<Share, kNone + 1> shares_{};  // the amount of work by its relation to ranges
  std::vector<LaunchQueue> queues_;
};

}  // namespace

void bind_calls(nb::module_& m) {
  nb::class_<Calls>(m, "Calls", "The newest API calls of a process by correlation id.")
      .def(nb::init<unsigned>(), nb::arg("bits"), "Keeps 2**bits calls.")
      .def("add", &Calls::add, nb::arg("correlations"), nb::arg("starts"), nb::arg("threads"),
           nb::arg("ends") = nb::none(), nb::arg("functions") = nb::none(), nb::arg("owners") = nb::none(),
           nb::arg("how") = nb::none(),
           "Add calls. Only find() uses their ends and functions. ``owners`` are numbers for the ranges around the calls, by default\n"
           "the threads of the calls. ``how`` is a result of RangeThreads.find().")
      .def("find", &Calls::find, nb::arg("correlations"),
           "The calls with these ids: (known, starts, ends, threads, functions, owners, how). Unknown calls have no owner; their\n"
           "other values are 0.")
      .def("launch", &Calls::launch, nb::arg("parts"), nb::arg("levels"), nb::arg("series"),
           "Add work that starts after all earlier work. A part is (correlations, starts, ends, queues) in the order of starts.\n"
           "Counter ``series[queue]`` of ``levels`` is higher by one while a launch is in the launch queue.")
      .def("shares", &Calls::shares,
           "The work so far by its relation to ranges (OWN, ADOPTED, SEVERAL, NONE): the number of pieces, and the sum of their\n"
           "times.");
}

}  // namespace cutrace
