// Statistics of integers by group: count, sum, extremes, deviation, and a histogram for quantiles. The integers are not kept.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/column.h"
#include "common/table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

class Spreads {
 public:
  // A bin is a float with ten bits of mantissa.
  static constexpr unsigned kDroppedBits = 13;
  static constexpr unsigned kCodeBits = 31 - kDroppedBits;

  struct Spread {
    std::int64_t count = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), greatest = 0;
    unsigned __int128 sum = 0, squares = 0;

    std::uint64_t high() const { return static_cast<std::uint64_t>(sum >> 64); }
    std::uint64_t low() const { return static_cast<std::uint64_t>(sum); }

    // The sum of the squared differences from the mean. The sum for the rounded-down mean is exact, because wrapping cancels.
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

    // Bins below 2,048 have one number each.
    double middle() const {
      const std::uint32_t code = static_cast<std::uint32_t>(key) & ((1u << kCodeBits) - 1);
      const double begin = std::bit_cast<float>(code << kDroppedBits), end = std::bit_cast<float>((code + 1) << kDroppedBits);
      return begin < 2048 ? begin : (begin + end - 1) / 2;
    }
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

  std::size_t size() const { return spreads_.size(); }

  nb::list rows() const {
    std::vector<Bin> bins = bins_;
    std::sort(bins.begin(), bins.end(), [](const Bin& a, const Bin& b) { return a.key < b.key; });
    nb::list out;
    const Bin* bin = bins.data();
    for (const Spread& s : spreads_) {
      const double median = quantile(s, bin, 0.5), third = quantile(s, bin, 0.75);
      out.append(nb::make_tuple(s.count, s.high(), s.low(), median, third, s.deviations(), s.least, s.greatest));
      for (std::int64_t seen = 0; seen < s.count; ++bin) seen += bin->count;
    }
    return out;
  }

 private:
  // A quantile (0 to 1) of a group with its first bin at `bins`. Linear between the middles of bins.
  static double quantile(const Spread& s, const Bin* bins, double part) {
    if (s.count == 0) return 0;
    const auto number = [bins](double index) {
      const Bin* bin = bins;
      for (auto reached = static_cast<double>(bin->count); reached <= index; reached += static_cast<double>(bin->count)) ++bin;
      return bin->middle();
    };
    const double rank = part * static_cast<double>(s.count - 1), whole = std::floor(rank);
    const double low = number(whole), high = number(std::ceil(rank));
    return std::clamp(low + (high - low) * (rank - whole), static_cast<double>(s.least), static_cast<double>(s.greatest));
  }

  std::vector<Spread> spreads_;
  std::vector<Bin> bins_;
  Table numbers_;
};

}  // namespace

void bind_spreads(nb::module_& m) {
  nb::class_<Spreads>(m, "Spreads", "Statistics of numbers by group: count, sum, extremes, deviation and histogram.")
      .def(nb::init<>())
      .def("add", &Spreads::add, nb::arg("groups"), nb::arg("numbers"), "Add non-negative numbers, each with its group.")
      .def("__len__", &Spreads::size, "The largest group plus one.")
      .def("rows", &Spreads::rows,
           "By group: (count, sum >> 64, sum & (2**64 - 1), median, third quartile, sum of squared differences from the mean,\n"
           "least, greatest). The quartiles come from the histogram and are 0 without numbers.");
}

}  // namespace cutrace
