// Clocks of deferred events and counters, with their relation to BOOTTIME: the predefined clocks of NVTX, and the clocks that a
// program registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#define NVTX_NO_IMPL
#include "nvtx_constants.h"

namespace cutrace::nvtx {

// The program's threads. Ids belong to a domain.
std::uint64_t register_time_domain(std::uint16_t domain, const nvtxTimeDomainAttr_t* attributes);
// Only threads that submit events call `read`, with `data`.
void set_timer(std::uint16_t domain, std::uint64_t id, std::int64_t (*read)(void* data), void* data);
void add_sync_points(std::uint16_t domain, std::uint64_t from, std::uint64_t to, const nvtxSyncPoint_t* points, std::size_t count);
void set_conversion(std::uint16_t domain, std::uint64_t from, std::uint64_t to, double slope, std::int64_t from_time, std::int64_t to_time);
// Reads a clock that the collector can read, and BOOTTIME with it, as a point of their relation.
void note_time(std::uint16_t domain, std::uint64_t id);

// Converts times of one clock to BOOTTIME.
class TimeConverter {
 public:
  // Any thread. The converter of a clock without a known relation to BOOTTIME converts nothing.
  static TimeConverter of(std::uint16_t domain, std::uint64_t id);

  std::optional<std::uint64_t> convert(std::int64_t time) const;

 private:
  friend class TimeDomains;
  struct ClockPoint {
    std::int64_t time;
    std::int64_t boottime;
  };
  std::vector<ClockPoint> points_;    // in ascending order, except with `either_`
  std::optional<double> slope_;  // nanoseconds a unit, for a single point
  bool either_ = false;          // the clock is REALTIME or MONOTONIC: points_ has one point for each
};

}  // namespace cutrace::nvtx
