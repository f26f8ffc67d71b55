// The launch queue of a stream: work that was launched and has not started. docs/reference/statistics.md has the rule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

namespace cutrace {

class LaunchQueue {
 public:
  // Adds the next work of the stream, in the order of its start. Returns the time at which it enters the queue; it leaves at its
  // start. Nothing is queued for work whose call is not recorded, or for a node that follows another node of its graph launch.
  //
  // A stream runs work in the order of queueing, so these times do not decrease. Clocks differ, so a time is limited to the
  // start of its work.
  std::optional<std::int64_t> add(std::uint32_t correlation, bool known, std::int64_t called, std::int64_t start) {
    const bool follows = correlation == correlation_;
    correlation_ = correlation;
    if (follows || !known) return std::nullopt;
    queued_ = std::max(queued_, std::min(called, start));
    return queued_;
  }

 private:
  std::uint32_t correlation_ = 0;
  std::int64_t queued_ = std::numeric_limits<std::int64_t>::min();
};

}  // namespace cutrace
