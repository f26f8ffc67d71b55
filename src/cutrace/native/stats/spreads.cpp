// Statistics of integers by group, without keeping the integers: count, sum, extremes, deviation, and a histogram for
// quantiles.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "common/table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class Spreads {
 public:
  // A bin is a float without its lowest bits: ten bits of the mantissa stay.
  static constexpr unsigned kDroppedBits = 13;
  static constexpr unsigned kCodeBits = 31 - kDroppedBits;

  struct Spread {
    std::int64_t count = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), greatest = 0;
    unsigned __int128 sum = 0, squares = 0;

    std::uint64_t high() const { return static_cast<std::uint64_t>(sum >> 64); }
    std::uint64_t low() const { return static_cast<std::uint64_t>(sum); }

    // The sum of the squared differences from the mean. The sum for the mean rounded down is exact, because wrapping cancels.
    double deviations() const {
      if (count == 0) return 0;
      const auto numbers = static_cast<unsigned __int128>(count);
      const unsigned __int128 mean = sum / numbers, rest = sum % numbers;
      const double part = static_cast<double>(rest);
      const double above = static_cast<double>(squares - mean * (sum + rest));
      return std::max(above - part * part / static_cast<double>(count), 0.0);  // sums of a damaged capture may wrap around
    }
  };
  struct Bin {
    std::uint64_t key = 0;  // the group, then the code of the bin
    std::int64_t count = 0;

    std::uint32_t group() const { return static_cast<std::uint32_t>(key >> kCodeBits); }
    float begin() const { return number(code()); }
    float end() const { return number(code() + 1); }

   private:
    std::uint32_t code() const { return static_cast<std::uint32_t>(key) & ((1u << kCodeBits) - 1); }
    static float number(std::uint32_t code) { return std::bit_cast<float>(code << kDroppedBits); }
  };

  void add(Column<std::uint32_t> groups, Column<std::int64_t> numbers) {
    need_rows(numbers.size, groups);
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < numbers.size; ++i) {
      const std::uint32_t group = groups[i];
      const std::int64_t number = numbers[i];
      if (group >= spreads_.size()) spreads_.resize(std::size_t{group} + 1);
      Spread& spread = spreads_[group];
      const auto amount = static_cast<std::uint64_t>(number);
      ++spread.count;
      spread.sum += amount;
      spread.squares += static_cast<unsigned __int128>(amount) * amount;
      spread.least = std::min(spread.least, number);
      spread.greatest = std::max(spread.greatest, number);
      const std::uint32_t code = (std::bit_cast<std::uint32_t>(static_cast<float>(number)) & 0x7FFFFFFFu) >> kDroppedBits;
      const std::uint64_t key = std::uint64_t{group} << kCodeBits | code;
      const std::uint32_t bin = numbers_.add(
          hash_of(key), [&](std::uint32_t known) { return bins_[known].key == key; }, [&] { bins_.push_back({key, 0}); });
      ++bins_[bin].count;
    }
  }

  const std::vector<Spread>& spreads() const { return spreads_; }
  // In the order of their first number.
  const std::vector<Bin>& bins() const { return bins_; }

 private:
  std::vector<Spread> spreads_;
  std::vector<Bin> bins_;
  Table numbers_;
};

// An array with one value for each row.
template <typename Rows, typename Get>
nb::object column(const Rows& rows, const Get& get) {
  std::vector<std::remove_cvref_t<decltype(std::invoke(get, rows[0]))>> out(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) out[i] = std::invoke(get, rows[i]);
  return to_array(std::move(out));
}

template <typename Rows, typename... Get>
nb::tuple columns(const Rows& rows, const Get&... get) {
  return nb::make_tuple(column(rows, get)...);
}

}  // namespace

void bind_spreads(nb::module_& m) {
  nb::class_<Spreads>(m, "Spreads", "Statistics of numbers by group: count, sum, extremes, deviation and histogram.")
      .def(nb::init<>())
      .def("add", &Spreads::add, nb::arg("groups"), nb::arg("numbers"), "Add non-negative numbers, each with its group.")
      .def("__len__", [](const Spreads& s) { return s.spreads().size(); }, "The largest group plus one.")
      .def("columns",
           [](const Spreads& s) {
             using Spread = Spreads::Spread;
             return columns(s.spreads(), &Spread::count, &Spread::high, &Spread::low, &Spread::least, &Spread::greatest,
                            &Spread::deviations);
           },
           "By group: (counts, sums >> 64, sums & (2**64 - 1), least, greatest, sums of squared differences from the mean).")
      .def("bins",
           [](const Spreads& s) {
             using Bin = Spreads::Bin;
             return columns(s.bins(), &Bin::group, &Bin::begin, &Bin::end, &Bin::count);
           },
           "The histogram: (groups, begins, ends, counts). A bin counts the numbers, rounded to float32, from its begin to\n"
           "below its end.");
}

}  // namespace cutrace
