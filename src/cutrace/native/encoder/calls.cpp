// The newest API calls of a process by correlation id: when the work that the GPU reports was launched, and by which
// thread. What is remembered does not grow with the capture: a call makes room for a later one whose id falls into the
// same place, and work whose call was forgotten (or never recorded) is told apart.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "arrays.h"
#include "encoder.h"
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
    check(correlation, start);
    if (thread.type() != Type::kU32 || thread.size() != start.size())
      throw std::invalid_argument("as many threads, uint32, as starts");
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

  // For each row of work its launch and the thread: its own start, and thread 0, where no call is known.
  nb::tuple find(nb::handle correlations, nb::handle starts) const {
    View correlation(correlations), start(starts);
    check(correlation, start);
    Array<std::uint64_t> launches(start.size());
    Array<std::uint32_t> threads(start.size());
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < start.size(); ++row) {
        const auto id = correlation.get<std::uint32_t>(row);
        const Call& call = calls_[id & mask_];
        const bool known = call.id == id && id != 0;
        launches[row] = known ? call.start : start.get<std::uint64_t>(row);
        threads[row] = known ? call.thread : 0;
      }
    }
    return nb::make_tuple(to_array(std::move(launches)), to_array(std::move(threads)));
  }

 private:
  struct Call {
    std::uint64_t start = 0;
    std::uint32_t id = 0;
    std::uint32_t thread = 0;
  };

  static void check(const View& correlation, const View& start) {
    if (correlation.type() != Type::kU32 || start.type() != Type::kU64)
      throw std::invalid_argument("correlations are uint32 and starts uint64");
    if (correlation.size() != start.size()) throw std::invalid_argument("as many correlations as starts");
  }

  std::uint32_t mask_;
  std::vector<Call> calls_;
};

}  // namespace

void register_calls(nb::module_& m) {
  nb::class_<Calls>(m, "Calls", "The newest API calls of a process by correlation id.")
      .def(nb::init<unsigned>(), nb::arg("bits"), "Remembers 2**bits calls.")
      .def("add", &Calls::add, nb::arg("correlations"), nb::arg("starts"), nb::arg("threads"), "Note calls.")
      .def("find", &Calls::find, nb::arg("correlations"), nb::arg("starts"),
           "For rows of GPU work (launch times, threads); their own starts and thread 0 where the call is not known.");
}

}  // namespace cutrace
