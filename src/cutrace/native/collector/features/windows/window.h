// Windows: the parts of a program that a recording keeps, with one file for each window (Options::capture_range).
//
// A thread of the program opens and closes a window. The kinds of CUPTI are enabled in between. Records alone do not show which
// rows belong to the window, because other threads continue meanwhile, and GPU work is reported later. So the writer checks each
// row against the window.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "core/clock.h"
#include "core/row_filter.h"

namespace cutrace {

// A moment of the program. CUPTI numbers the calls of all threads in order, and work has the number of its call.
struct Moment {
  std::uint64_t time = 0;
  std::uint32_t correlation = 0;  // number of a call at this moment; 0: unknown
};

// Whether call `a` was after call `b`. The numbers start again after 2^32 calls.
inline bool is_later_call(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }

struct CaptureWindow {
  std::uint64_t number = 0;  // from 1; 0 before the first
  Moment begin;
  Moment end;  // the time of an open window's end is 0

  bool is_open() const { return number != 0 && end.time == 0; }

  // GPU work belongs to the window of its launch. Other rows belong to the window of their start.
  bool has(const RowFilter::Facts& row) const {
    if (number == 0) return false;
    const bool too_early = row.call != 0 && begin.correlation != 0 ? !is_later_call(row.call, begin.correlation)
                                                                   : row.time != 0 && row.time < begin.time;
    if (too_early) return false;
    if (row.call != 0 && end.correlation != 0) return is_later_call(end.correlation, row.call);
    return row.on_gpu || row.time == 0 || end.time == 0 || row.time < end.time;
  }

  // Clips a range of the program to the window. False when no part of it is inside. A `range_end` of 0 means that the range is
  // still open. The table defines the values of `flags`.
  bool clip(std::uint64_t& start, std::uint64_t& range_end, std::uint16_t& flags) const {
    constexpr std::uint16_t kStillOpen = 1;
    constexpr std::uint16_t kBeganBefore = 2;
    constexpr std::uint16_t kWentOn = 4;
    const bool began_later = end.time != 0 && start >= end.time;
    const bool ended_before = range_end != 0 && range_end < begin.time;
    if (number == 0 || began_later || ended_before) return false;
    if (start < begin.time) {
      start = begin.time;
      flags |= kBeganBefore;
    }
    if (end.time != 0 && (range_end == 0 || range_end > end.time)) {
      range_end = end.time;
      flags |= kWentOn;
    }
    flags = static_cast<std::uint16_t>(range_end == 0 ? flags | kStillOpen : flags & ~kStillOpen);
    return true;
  }
};

// The latest window. Any thread may open and close it, and the writer reads it.
class LatestWindow final : public RowFilter {
 public:
  // `begin()` returns the start, or nullopt for no window. The writer waits meanwhile, so it reads no row that could belong to
  // the window.
  template <typename Begin>
  bool open(Begin&& begin) {
    const WindowChange change(*this);
    const std::optional<Moment> moment = begin();
    if (!moment || window_.is_open()) return false;
    window_ = {window_.number + 1, *moment, {}};
    return true;
  }
  // Does nothing when no window is open. A moment with the time 0 means now.
  void close(Moment end) {
    const WindowChange change(*this);
    if (!window_.is_open()) return;
    if (end.time == 0) end.time = now_ns();
    // The start of a window waits for CUPTI, so it can be later than an end that waited less.
    end.time = std::max(end.time, window_.begin.time);
    window_.end = end;
  }

  bool is_open() {
    const std::lock_guard lock(mutex_);
    return window_.is_open();
  }

  // Writer thread, like all functions below. The writer knows the end of a window before it reads later rows.
  const CaptureWindow& get() {
    if (version_.load(std::memory_order_acquire) != seen_) {
      const std::lock_guard lock(mutex_);
      seen_ = version_.load(std::memory_order_relaxed);
      copy_ = window_;
    }
    return copy_;
  }
  // The file has all rows of the window. All rows are skipped until the next window.
  void complete() { completed_ = get().number; }

  bool keeps_nothing() override { return get().number == completed_; }
  bool keeps(const Facts& row) override { return !keeps_nothing() && get().has(row); }
  bool clip(std::uint64_t& start, std::uint64_t& end, std::uint16_t& flags) override {
    return !keeps_nothing() && get().clip(start, end, flags);
  }
  std::uint64_t begin() override { return get().begin.time; }

 private:
  // The version is odd while the window changes, and get() then waits for the lock.
  struct WindowChange {
    explicit WindowChange(LatestWindow& window) : latest(window), lock(window.mutex_) { latest.version_.fetch_add(1); }
    ~WindowChange() { latest.version_.fetch_add(1); }
    LatestWindow& latest;
    const std::lock_guard<std::mutex> lock;
  };

  std::mutex mutex_;
  std::atomic<std::uint32_t> version_{0};
  CaptureWindow window_;  // under mutex_
  std::uint32_t seen_ = 0;  // writer thread only, like copy_
  CaptureWindow copy_;
  std::uint64_t completed_ = 0;  // the number of the latest window with a complete file; writer only
};

}  // namespace cutrace
