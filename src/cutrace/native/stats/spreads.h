// What there is to know of many integers by group without keeping them: how many, sum, extremes, deviation, and a
// histogram, from which quantiles come.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/table.h"

namespace cutrace {

class Spreads {
 public:
  // A bin is a float without its last bits: ten of the mantissa stay.
  static constexpr unsigned kDroppedBits = 13;
  static constexpr unsigned kCodeBits = 31 - kDroppedBits;

  struct Spread {
    std::int64_t count = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), greatest = 0;
    unsigned __int128 sum = 0, squares = 0;

    std::uint64_t high() const { return static_cast<std::uint64_t>(sum >> 64); }
    std::uint64_t low() const { return static_cast<std::uint64_t>(sum); }

    // The squares of the differences from the mean, added. Those from the mean rounded down are exact: what wraps around
    // on the way comes back.
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
    std::uint64_t key = 0;  // the group, and behind it the code of the bin
    std::int64_t count = 0;

    std::uint32_t group() const { return static_cast<std::uint32_t>(key >> kCodeBits); }
    float begin() const { return number(code()); }
    float end() const { return number(code() + 1); }

   private:
    std::uint32_t code() const { return static_cast<std::uint32_t>(key) & ((1u << kCodeBits) - 1); }
    static float number(std::uint32_t code) { return std::bit_cast<float>(code << kDroppedBits); }
  };

  // Takes in numbers from 0, of the group beside each; Groups and Numbers have operator[].
  template <typename Groups, typename Numbers>
  void add(const Groups& groups, const Numbers& numbers, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
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
  // In the order in which numbers first fell into them.
  const std::vector<Bin>& bins() const { return bins_; }

 private:
  std::vector<Spread> spreads_;
  std::vector<Bin> bins_;
  Table numbers_;
};

}  // namespace cutrace
