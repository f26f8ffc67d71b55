// Counters from their changes: memory allocated and released, work launched and finished. Changes may come in any order. Few
// changes are all kept, so that a counter has all its values. With more changes, the time is divided into equal parts. Each part
// keeps the sum of its changes and their weighted sum, which gives the exact mean. So memory is bounded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace cutrace {

class Levels {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kMostSeries = 256;

  // Without `means`, the value of a part is its highest value.
  Levels(std::uint64_t first, std::uint64_t last, unsigned bits, std::size_t exact, bool means);
  Levels(const Levels&) = delete;
  Levels& operator=(const Levels&) = delete;

  // Changes a counter at a time. Sums wrap like unsigned numbers, so that a damaged capture causes no undefined behaviour.
  void change(std::uint32_t series, std::uint64_t time, std::int64_t by) {
    if (series_.empty()) {
      keep({series, time, by});
      return;
    }
    Series& counter = of(series);
    Part& part = means_ ? share(counter, time, by) : counter.parts[part_of(time)];
    part.by = sum(part.by, by);
    counter.value = sum(counter.value, by);
    part.highest = std::max(part.highest, counter.value);
  }

  // Raises a counter from one time to another. Most stretches are short and inside one part.
  void stretch(std::uint32_t series, std::uint64_t begin, std::uint64_t end, std::int64_t by) {
    if (series_.empty()) {
      keep({series, begin, by});
      keep({series, end, negative(by)});
      return;
    }
    Series& counter = of(series);
    const std::uint64_t from = begin - first_, to = end - first_, part = from >> shift_;
    if (begin >= first_ && begin <= end && part < parts_ && to >> shift_ == part) [[likely]] {
      counter.parts[part].weighted += static_cast<double>(by) * static_cast<double>(to - from);
      return;
    }
    Part& up = share(counter, begin, by);
    up.by = sum(up.by, by);
    Part& down = share(counter, end, negative(by));
    down.by = sum(down.by, negative(by));
  }

  // Whether all changes are kept.
  bool exact() const { return series_.empty(); }

  // The values of a counter. If exact: the time of each change, and the value from then on. Otherwise: the start of each part,
  // its mean, and its highest value. The highest value is exact only for changes that came in the order of their times.
  void values(std::uint32_t series, std::vector<std::uint64_t>& times, std::vector<double>& values,
              std::vector<double>& highest);

 private:
  struct Change {
    std::uint32_t series;
    std::uint64_t time;
    std::int64_t by;
  };
  struct Part {
    std::int64_t by = 0;
    double weighted = 0;  // sum of each change times the remaining time of the part
    std::int64_t highest = std::numeric_limits<std::int64_t>::min();
  };
  struct Series {
    std::int64_t value = 0;
    std::vector<Part> parts;
  };

  static std::int64_t sum(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
  static std::int64_t negative(std::int64_t a) {
    return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a));
  }

  std::size_t part_of(std::uint64_t time) const {
    return time > first_ ? std::min(static_cast<std::size_t>((time - first_) >> shift_), parts_ - 1) : 0;
  }

  Series& of(std::uint32_t series) {
    if (series >= series_.size() || series_[series].parts.empty()) open(series);
    return series_[series];
  }

  Part& share(Series& counter, std::uint64_t time, std::int64_t by) {
    const std::size_t at = part_of(time);
    const std::uint64_t end = first_ + ((std::uint64_t{at} + 1) << shift_);
    const std::uint64_t left = end > time ? std::min(end - time, std::uint64_t{1} << shift_) : 0;
    counter.parts[at].weighted += static_cast<double>(by) * static_cast<double>(left);
    return counter.parts[at];
  }

  void open(std::uint32_t series);
  void keep(Change change);

  std::uint64_t first_;
  std::size_t exact_;
  bool means_;
  unsigned shift_ = 0;
  std::size_t parts_ = 0;
  std::vector<Change> changes_;
  bool sorted_ = false;
  std::vector<Series> series_;  // empty while all changes are kept
};

}  // namespace cutrace
