// The launch queue of a stream, which has the launched work that has not started. docs/reference/statistics.md has the rule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

namespace cutrace {

class LaunchQueue {
 public:
  // Adds the next work of the stream, in the order of its start. Returns the time at which the work enters the queue. It leaves
  // the queue at its start. Work without a recorded call is not queued, and only the first node of a graph launch is queued.
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
