// How much of what is taken and given back is in use, by group: memory of each kind and device.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/column.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class Levels {
 public:
  Levels(std::uint8_t take, std::uint8_t give) : take_(take), give_(give) {}
  Levels(const Levels&) = delete;
  Levels& operator=(const Levels&) = delete;

  void add(Column<std::uint32_t> groups, Column<std::uint8_t> operations, Column<std::uint64_t> amounts) {
    need_rows(groups.size, operations, amounts);
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < groups.size; ++row) {
      if (groups[row] >= levels_.size()) levels_.resize(std::size_t{groups[row]} + 1);
      Level& level = levels_[groups[row]];
      if (operations[row] == take_) level.change(level.takes, level.taken, amounts[row], amounts[row]);
      if (operations[row] == give_) level.change(level.gives, level.given, amounts[row], 0 - amounts[row]);
    }
  }

  nb::list levels() const {
    nb::list out;
    for (const Level& l : levels_) out.append(nb::make_tuple(l.takes, l.taken, l.gives, l.given, l.highest, l.now));
    return out;
  }

 private:
  // Sums wrap around as those of unsigned numbers do: a damaged capture does no harm.
  struct Level {
    std::uint64_t takes = 0, taken = 0, gives = 0, given = 0;
    std::int64_t highest = 0, now = 0;

    void change(std::uint64_t& times, std::uint64_t& sum, std::uint64_t amount, std::uint64_t by) {
      ++times;
      sum += amount;
      now = static_cast<std::int64_t>(static_cast<std::uint64_t>(now) + by);
      highest = std::max(highest, now);
    }
  };

  std::uint8_t take_, give_;
  std::vector<Level> levels_;
};

}  // namespace

void bind_levels(nb::module_& m) {
  nb::class_<Levels>(m, "Levels", "How much of what is taken and given back is in use, by group.")
      .def(nb::init<std::uint8_t, std::uint8_t>(), nb::arg("take"), nb::arg("give"),
           "The operations that take and give back; others do nothing.")
      .def("add", &Levels::add, nb::arg("groups"), nb::arg("operations"), nb::arg("amounts"),
           "Take in operations in the order of time.")
      .def("levels", &Levels::levels,
           "By group: (times taken, amount taken, times given back, amount given back, highest level, last level).");
}

}  // namespace cutrace
