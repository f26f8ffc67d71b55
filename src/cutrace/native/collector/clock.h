// The clock of every timestamp in a capture, and snapshots that tie it to the machine's other clocks.
#pragma once

#include <time.h>

#include <cstdint>

#include "cutrace/rows.h"

namespace cutrace {

inline std::uint64_t read_clock(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

// BOOTTIME never steps, counts through suspend, and is the clock that Perfetto sorts by. Reading it takes no system call from
// Linux 5.3 on.
inline std::uint64_t now_ns() { return read_clock(CLOCK_BOOTTIME); }

// What REALTIME is ahead of BOOTTIME just now; it can step.
inline std::uint64_t realtime_ahead() {
  const std::uint64_t before = now_ns(), realtime = read_clock(CLOCK_REALTIME);
  return realtime - (before + (now_ns() - before) / 2);
}

inline rows::Clocks clock_snapshot() {
  rows::Clocks row;
  row.boottime = now_ns();
  row.monotonic = read_clock(CLOCK_MONOTONIC);
  row.monotonic_raw = read_clock(CLOCK_MONOTONIC_RAW);
  row.realtime = read_clock(CLOCK_REALTIME);
  row.spread = now_ns() - row.boottime;
  return row;
}

}  // namespace cutrace
