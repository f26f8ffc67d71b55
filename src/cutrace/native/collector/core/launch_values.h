// A value of each launch, from the call until the record of its kernel arrives. Writer thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace cutrace {

class LaunchValues {
 public:
  // `limit`: bytes for the values of launches with long-running kernels.
  explicit LaunchValues(std::size_t limit) : limit_(limit) {}

  // Adds the nonzero value of the launch with this correlation id. `recorded`: kernels of earlier launches are recorded, so their
  // values are kept until the records arrive. False when values of earlier launches were dropped.
  bool add(std::uint32_t correlation, std::uint64_t value, bool recorded) {
    if (recent_.empty()) recent_.resize(kRecent);
    LaunchValue& place = recent_[correlation % kRecent];
    bool kept = true;
    if (place.value != 0 && !place.taken && recorded) {
      kept = later_bytes() <= limit_;
      if (!kept) later_.clear();
      later_.emplace(place.correlation, place.value);
    }
    place = {value, correlation, false};
    return kept;
  }
  // Returns the value of a launch, or 0.
  std::uint64_t take(std::uint32_t correlation) {
    if (recent_.empty()) return 0;
    LaunchValue& place = recent_[correlation % kRecent];
    if (place.value != 0 && place.correlation == correlation) {
      place.taken = true;
      return place.value;
    }
    const auto later = later_.extract(correlation);
    return later ? later.mapped() : 0;
  }
  std::size_t memory() const { return recent_.size() * sizeof(LaunchValue) + later_bytes(); }

 private:
  static constexpr std::size_t kRecent = 1 << 15, kLater = 48;  // launches; bytes of an entry of later_
  struct LaunchValue {
    std::uint64_t value = 0;
    std::uint32_t correlation = 0;
    bool taken = false;  // a record of its kernel took the value
  };

  std::size_t later_bytes() const { return later_.size() * kLater; }

  std::size_t limit_;
  // Indexed by the low bits of the correlation id. A new entry moves an older one without a kernel record to later_: the kernel
  // takes long, or the call launched none.
  std::vector<LaunchValue> recent_;
  std::unordered_map<std::uint32_t, std::uint64_t> later_;
};

}  // namespace cutrace
