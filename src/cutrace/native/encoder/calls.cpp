// The newest API calls of a process by correlation id: when the work that the GPU reports was launched, and by which
// thread. What is remembered does not grow with the capture: a call makes room for a later one whose id falls into the
// same place, and work whose call was forgotten (or never recorded) is told apart.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "arrays.h"
#include "encoder.h"
#include "tally.h"
#include "view.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class Calls {
 public:
  explicit Calls(unsigned bits) : mask_((std::uint32_t{1} << bits) - 1) {
    if (bits > 24) throw std::invalid_argument("that many calls are not remembered");
    calls_.resize(std::size_t{mask_} + 1);
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Of calls with one id (a runtime call and the driver calls in it), the one that began first counts.
  void add(nb::handle correlations, nb::handle starts, nb::handle threads) {
    View correlation(correlations), start(starts), thread(threads);
    check(correlation, Type::kU32, start.size());
    check(thread, Type::kU32, start.size());
    check(start, Type::kU64, start.size());
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < start.size(); ++row) {
      const auto id = correlation.get<std::uint32_t>(row);
      const auto time = start.get<std::uint64_t>(row);
      if (id == 0) continue;
      Call& call = calls_[id & mask_];
      if (call.id == id && call.start <= time) continue;
      call = {time, id, thread.get<std::uint32_t>(row)};
    }
  }

  // Notes work: counter series[queue] of the tally is higher by one from the launch (the work's begin, where that comes
  // first or the call is not known) to the end; and, if wanted, what calls launched into each queue, for take().
  void launch(nb::handle correlations, nb::handle starts, nb::handle ends, nb::handle queues, Tally& tally,
              nb::handle series, bool wanted) {
    View correlation(correlations), start(starts), end(ends), queue(queues), counter(series);
    check(correlation, Type::kU32, start.size());
    check(queue, Type::kU32, start.size());
    check(start, Type::kU64, start.size());
    check(end, Type::kU64, start.size());
    check(counter, Type::kU32, counter.size());
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < start.size(); ++row) {
      const auto id = correlation.get<std::uint32_t>(row);
      const auto begin = start.get<std::uint64_t>(row);
      const auto stop = end.get<std::uint64_t>(row);
      const auto q = queue.get<std::uint32_t>(row);
      const Call& call = calls_[id & mask_];
      const bool known = call.id == id && id != 0;
      if (q >= counter.size()) throw std::out_of_range("no counter for a queue");
      const auto s = counter.get<std::uint32_t>(q);
      if (s != Tally::kNone) tally.stretch(s, known ? std::min(call.start, begin) : begin, stop, 1);
      if (known && wanted) note(call, q, begin, stop);
    }
  }

  // How much was noted for take().
  std::size_t noted() const { return noted_; }

  // What was launched into each queue by each thread: a list of (thread, queue, launches, first begins, last ends), with
  // one entry a call in the order in which work was noted.
  nb::list take() {
    nb::list out;
    for (auto& [key, group] : groups_) {
      if (group.launches.empty()) continue;
      out.append(nb::make_tuple(static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>(key),
                                to_array(std::move(group.launches)), to_array(std::move(group.begins)),
                                to_array(std::move(group.ends))));
    }
    groups_.clear();
    last_ = nullptr;
    noted_ = 0;
    return out;
  }

 private:
  struct Call {
    std::uint64_t start = 0;
    std::uint32_t id = 0;
    std::uint32_t thread = 0;
  };
  // What one thread launched into one queue. Work of a call (of a graph, say) that comes behind each other is one entry.
  struct Group {
    std::vector<std::uint64_t> launches, begins, ends;
  };

  static void check(const View& view, Type type, std::size_t size) {
    if (view.type() != type || view.size() != size)
      throw std::invalid_argument("columns are ids and threads, uint32, and times, uint64, of equal lengths");
  }

  void note(const Call& call, std::uint32_t queue, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t key = std::uint64_t{call.thread} << 32 | queue;
    if (last_ == nullptr || key != last_key_) {
      last_ = &groups_[key];  // stays where it is when others are added
      last_key_ = key;
    }
    if (!last_->launches.empty() && last_->launches.back() == call.start) {
      last_->begins.back() = std::min(last_->begins.back(), begin);
      last_->ends.back() = std::max(last_->ends.back(), end);
      return;
    }
    last_->launches.push_back(call.start);
    last_->begins.push_back(begin);
    last_->ends.push_back(end);
    ++noted_;
  }

  std::uint32_t mask_;
  std::vector<Call> calls_;
  std::unordered_map<std::uint64_t, Group> groups_;
  Group* last_ = nullptr;
  std::uint64_t last_key_ = 0;
  std::size_t noted_ = 0;
};

}  // namespace

void register_calls(nb::module_& m) {
  nb::class_<Calls>(m, "Calls", "The newest API calls of a process by correlation id.")
      .def(nb::init<unsigned>(), nb::arg("bits"), "Remembers 2**bits calls.")
      .def("add", &Calls::add, nb::arg("correlations"), nb::arg("starts"), nb::arg("threads"), "Note calls.")
      .def("launch", &Calls::launch, nb::arg("correlations"), nb::arg("starts"), nb::arg("ends"), nb::arg("queues"),
           nb::arg("tally"), nb::arg("series"), nb::arg("wanted"),
           "Note work: counter ``series[queue]`` of a tally is higher by one from the launch to the end; with ``wanted``,\n"
           "what each call launched is kept for take().")
      .def_prop_ro("noted", &Calls::noted, "How many entries take() has.")
      .def("take", &Calls::take,
           "What was noted: a list of (thread, queue, launches, first begins, last ends), one entry a call.");
}

}  // namespace cutrace
