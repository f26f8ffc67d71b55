// The GPU work launched in slices of the host: its extent on each queue, its number of pieces, and their times.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "common/table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// The first start and the last end of some work, and the kinds of its launches.
struct Extent {
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = -1;
  std::uint8_t kinds = 0;

  void add(const Extent& other) {
    first = std::min(first, other.first);
    last = std::max(last, other.last);
    kinds |= other.kinds;
  }
};

// Work of one home and one queue, in the order of its calls.
class Batch {
 public:
  struct Work {
    std::int64_t called, start, end;
    std::uint32_t row;
    std::uint8_t kind;
  };

  void add(const Work& work) { works_.push_back(work); }

  void finish() {
    const auto earlier = [](const Work& a, const Work& b) { return a.called < b.called; };
    if (!std::is_sorted(works_.begin(), works_.end(), earlier)) std::stable_sort(works_.begin(), works_.end(), earlier);
    const std::size_t size = works_.size();
    extents_.resize(2 * size);
    spent_.resize(size + 1);
    for (std::size_t i = 0; i < size; ++i) {
      extents_[size + i] = {works_[i].start, works_[i].end, works_[i].kind};
      spent_[i + 1] = spent_[i] + (works_[i].end - works_[i].start);
    }
    for (std::size_t i = size; i-- > 1;) {
      extents_[i] = extents_[2 * i];
      extents_[i].add(extents_[2 * i + 1]);
    }
  }

  std::size_t size() const { return works_.size(); }
  const Work& operator[](std::size_t i) const { return works_[i]; }

  // The first index in [from, to) of work that was called at a time or later.
  std::size_t since(std::int64_t time, std::size_t from, std::size_t to) const {
    const auto begin = works_.begin();
    const auto found = std::lower_bound(begin + static_cast<std::ptrdiff_t>(from), begin + static_cast<std::ptrdiff_t>(to), time,
                                        [](const Work& work, std::int64_t t) { return work.called < t; });
    return static_cast<std::size_t>(found - begin);
  }

  Extent extent(std::size_t from, std::size_t to) const {
    Extent whole;
    for (from += size(), to += size(); from < to; from /= 2, to /= 2) {
      if (from % 2 != 0) whole.add(extents_[from++]);
      if (to % 2 != 0) whole.add(extents_[--to]);
    }
    return whole;
  }

  std::int64_t spent(std::size_t from, std::size_t to) const { return spent_[to] - spent_[from]; }

 private:
  std::vector<Work> works_;
  std::vector<Extent> extents_;       // a segment tree: node i covers the nodes 2i and 2i+1, and the leaves come last
  std::vector<std::int64_t> spent_;  // the sums of the times of the first works
};

// The work of a slice on one queue.
struct Use {
  std::uint32_t queue;
  Extent extent;
  std::int64_t operations, time;
};

struct Slice {
  std::int64_t start, end, number;
  std::vector<Use> uses;
  std::uint32_t outer = 0;  // the index of the latest earlier slice that ends later, or Home::kNone

  Use& use(std::uint32_t queue) {
    for (std::size_t i = uses.size(); i-- > 0;)
      if (uses[i].queue == queue) return uses[i];
    return uses.emplace_back(Use{queue, {}, 0, 0});
  }
};

struct Pairs {
  std::vector<std::int64_t> numbers;
  std::vector<std::uint32_t> rows;
};

// The slices of one home, in the order of their start.
class Home {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  void add(Slice&& slice) { slices_.push_back(std::move(slice)); }

  void project(const Batch& batch, std::uint32_t queue, Pairs* pairs) {
    index();
    project(batch, 0, batch.size(), queue, pairs);
  }

  const std::vector<Slice>& slices() const { return slices_; }

  // Moves the slices that ended before a time, or without it all slices, into `removed`.
  void remove(const std::int64_t* before, std::vector<Slice>& removed) {
    const auto gone = std::stable_partition(slices_.begin(), slices_.end(),
                                            [&](const Slice& slice) { return before != nullptr && slice.end >= *before; });
    std::move(gone, slices_.end(), std::back_inserter(removed));
    slices_.erase(gone, slices_.end());
    indexed_ = 0;
  }

 private:
  void index() {
    if (indexed_ == slices_.size()) return;
    const auto earlier = [](const Slice& a, const Slice& b) { return a.start < b.start; };
    const std::size_t sorted = indexed_ > 0 ? indexed_ - 1 : 0;
    if (!std::is_sorted(slices_.begin() + static_cast<std::ptrdiff_t>(sorted), slices_.end(), earlier)) {
      std::stable_sort(slices_.begin(), slices_.end(), earlier);
      indexed_ = 0;
    }
    for (; indexed_ < slices_.size(); ++indexed_) {
      std::uint32_t outer = static_cast<std::uint32_t>(indexed_) - 1;  // kNone for the first slice
      while (outer != kNone && slices_[outer].end <= slices_[indexed_].end) outer = slices_[outer].outer;
      slices_[indexed_].outer = outer;
    }
    ends_.clear();
    for (const Slice& slice : slices_) ends_.push_back(slice.end);
    std::sort(ends_.begin(), ends_.end());
  }

  // The number of slices that start up to a time.
  std::size_t started(std::int64_t time) const {
    const auto after = std::upper_bound(slices_.begin(), slices_.end(), time,
                                        [](std::int64_t t, const Slice& slice) { return t < slice.start; });
    return static_cast<std::size_t>(after - slices_.begin());
  }

  // The number of slices that end up to a time.
  std::size_t ended(std::int64_t time) const {
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), time) - ends_.begin());
  }

  void project(const Batch& batch, std::size_t from, std::size_t to, std::uint32_t queue, Pairs* pairs) {
    const std::int64_t called_first = batch[from].called;
    const std::size_t last = started(batch[to - 1].called);
    const std::size_t middle = from + (to - from) / 2;
    // Few pieces of work between many short slices: look at the slices around each piece. `open` is a sample.
    const std::size_t open = started(batch[middle].called) - ended(batch[middle].called);
    if (to - from > 1 && last - ended(called_first) > 2 * (open + 1) * (to - from)) {
      project(batch, from, middle, queue, pairs);
      project(batch, middle, to, queue, pairs);
      return;
    }
    // Go back over the slices that end after the first call. An ended slice is followed by the next that ends later.
    std::uint32_t at = static_cast<std::uint32_t>(last) - 1;
    while (at != kNone) {
      Slice& slice = slices_[at];
      if (slice.end <= called_first) {
        at = slice.outer;
        continue;
      }
      --at;
      const std::size_t begin = batch.since(slice.start, from, to);
      const std::size_t end = batch.since(slice.end, begin, to);
      if (begin == end) continue;
      Use& use = slice.use(queue);
      use.extent.add(batch.extent(begin, end));
      use.operations += static_cast<std::int64_t>(end - begin);
      use.time += batch.spent(begin, end);
      if (pairs == nullptr) continue;
      for (std::size_t i = begin; i < end; ++i) {
        pairs->numbers.push_back(slice.number);
        pairs->rows.push_back(batch[i].row);
      }
    }
  }

  std::vector<Slice> slices_;
  std::size_t indexed_ = 0;         // the number of slices in order, with an `outer`
  std::vector<std::int64_t> ends_;  // the ends of these slices, ascending
};

class Projections {
 public:
  explicit Projections(std::size_t kept) : kept_(kept), limit_(2 * kept) {}

  // Times and numbers are below 2^63.
  void add(Column<std::uint64_t> homes, Column<std::uint64_t> starts, Column<std::uint64_t> ends, Column<std::uint64_t> numbers) {
    need_rows(starts.size, homes, ends, numbers);
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < starts.size; ++row)
      homes_[homes[row]].add({.start = static_cast<std::int64_t>(starts[row]),
                              .end = static_cast<std::int64_t>(ends[row]),
                              .number = static_cast<std::int64_t>(numbers[row]),
                              .uses = {}});
    size_ += starts.size;
  }

  nb::object launch(Column<std::uint64_t> homes, Column<std::uint64_t> called, Column<std::uint32_t> queues,
                    Column<std::uint64_t> starts, Column<std::uint64_t> ends, Column<std::uint8_t> kinds, bool pairs) {
    need_rows(called.size, homes, queues, starts, ends, kinds);
    Pairs found;
    {
      nb::gil_scoped_release release;
      Map<Map<Batch>> batches;  // by home and queue
      Batch* batch = nullptr;   // of the row before
      for (std::size_t row = 0; row < called.size; ++row) {
        const bool follows = row > 0 && homes[row] == homes[row - 1] && queues[row] == queues[row - 1];
        if (!follows) batch = homes_.find(homes[row]) == nullptr ? nullptr : &batches[homes[row]][queues[row]];
        if (batch == nullptr) continue;
        batch->add({.called = static_cast<std::int64_t>(called[row]),
                    .start = static_cast<std::int64_t>(starts[row]),
                    .end = static_cast<std::int64_t>(ends[row]),
                    .row = static_cast<std::uint32_t>(row),
                    .kind = kinds[row]});
      }
      for (std::size_t i = 0; i < batches.entries().size(); ++i) {
        const std::uint64_t home = batches.entries()[i].first;
        Map<Batch>& of_home = batches.at(i);
        for (std::size_t j = 0; j < of_home.entries().size(); ++j) {
          Batch& of_queue = of_home.at(j);
          of_queue.finish();
          homes_[home].project(of_queue, static_cast<std::uint32_t>(of_home.entries()[j].first), pairs ? &found : nullptr);
        }
      }
    }
    if (!pairs) return nb::none();
    return nb::make_tuple(to_array(std::move(found.numbers)), to_array(std::move(found.rows)));
  }

  nb::tuple take(std::optional<std::int64_t> until) {
    std::vector<std::int64_t> numbers, starts, ends, firsts, lasts, operations, times;
    std::vector<std::uint32_t> queues;
    std::vector<std::uint8_t> kinds;
    std::int64_t before = 0;
    {
      nb::gil_scoped_release release;
      if (until) before = ended_before(*until);
      std::vector<Slice> removed;
      size_ = 0;
      for (std::size_t i = 0; i < homes_.entries().size(); ++i) {
        if (!until || before > 0) homes_.at(i).remove(until ? &before : nullptr, removed);
        size_ += homes_.at(i).slices().size();
      }
      for (const Slice& slice : removed)
        for (const Use& use : slice.uses) {
          numbers.push_back(slice.number);
          starts.push_back(slice.start);
          ends.push_back(slice.end);
          queues.push_back(use.queue);
          firsts.push_back(use.extent.first);
          lasts.push_back(use.extent.last);
          operations.push_back(use.operations);
          times.push_back(use.time);
          kinds.push_back(use.extent.kinds);
        }
    }
    const nb::tuple work =
        nb::make_tuple(to_array(std::move(numbers)), to_array(std::move(starts)), to_array(std::move(ends)),
                       to_array(std::move(queues)), to_array(std::move(firsts)), to_array(std::move(lasts)),
                       to_array(std::move(operations)), to_array(std::move(times)), to_array(std::move(kinds)));
    return nb::make_tuple(before, work);
  }

 private:
  // Slices that end before this time are removed; 0 if there are few. The newest `kept_` slices that ended are kept.
  std::int64_t ended_before(std::int64_t until) {
    if (size_ <= limit_) return 0;
    std::vector<std::int64_t> ended;
    for (const auto& [_, home] : homes_.entries())
      for (const Slice& slice : home.slices())
        if (slice.end < until) ended.push_back(slice.end);
    std::int64_t before = 0;
    if (ended.size() > kept_) {
      const auto oldest = ended.end() - static_cast<std::ptrdiff_t>(kept_) - 1;
      std::nth_element(ended.begin(), oldest, ended.end());
      before = *oldest + 1;
    }
    limit_ = 2 * (size_ - ended.size()) + 2 * kept_;
    return before;
  }

  std::size_t kept_, limit_;
  std::size_t size_ = 0;
  Map<Home> homes_;
};

}  // namespace

void bind_projections(nb::module_& m) {
  nb::class_<Projections>(m, "Projections", "Slices of the host in homes, such as threads, and the GPU work launched in them.")
      .def(nb::init<std::size_t>(), nb::arg("kept"))
      .def("add", &Projections::add, nb::arg("homes"), nb::arg("starts"), nb::arg("ends"), nb::arg("numbers"),
           "Add slices (ns) before the work in them.")
      .def("launch", &Projections::launch, nb::arg("homes"), nb::arg("called"), nb::arg("queues"), nb::arg("starts"),
           nb::arg("ends"), nb::arg("kinds"), nb::arg("pairs") = false,
           "Add work (ns) to the slices of its home that are open when it is called: start <= called < end. ``kinds`` are bits.\n"
           "With ``pairs``, return the number of the slice and the row of the work for each piece of work in a slice.")
      .def("take", &Projections::take, nb::arg("until"),
           "Remove the slices that ended before a time, except the newest ``kept``, or with None all slices. Does nothing while\n"
           "there are few. Returns the time before which the removed slices ended, and for each of these slices and each queue\n"
           "with its work: (numbers, starts, ends, queues, first starts, last ends, numbers of pieces, sums of times, kinds).");
}

}  // namespace cutrace
