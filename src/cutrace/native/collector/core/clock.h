// The clock of all timestamps in a capture, and snapshots that relate it to the machine's other clocks.
#pragma once

#include <time.h>

#include <cstdint>

#include "cutrace/rows.h"

namespace cutrace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

inline std::uint64_t read_clock(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

// BOOTTIME never steps, counts during suspend, and is the clock that Perfetto sorts by. Since Linux 5.3 it is read without
// a system call.
inline std::uint64_t now_ns() { return read_clock(CLOCK_BOOTTIME); }

// REALTIME minus BOOTTIME now. It changes when REALTIME steps.
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
