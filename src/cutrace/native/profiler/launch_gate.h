// The gate for launches in the second run of `cutrace profile`. It lets many launches in together, or one counted launch alone.
//
// The gate is fair. A launch that wants to be alone keeps later launches out until its turn is over. Then the launches that
// waited meanwhile enter first. A wait ends at a deadline, because a counted kernel may wait for the kernel of a launch that
// waits at the gate.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace cutrace {

template <typename Launch>
class LaunchGate {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::milliseconds;

  // Waits while another launch is alone or waits to be alone. At the deadline it enters anyway, unless that launch is being
  // replayed. Returns the launch that this call disturbed first, or nullopt.
  std::optional<Launch> enter(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const std::uint64_t arrived = turn_;
    ++waiting_;
    const auto may_enter = [&] { return !alone_ && (wanting_alone_ == 0 || arrived < turn_); };
    if (!changed_.wait_until(lock, deadline, may_enter)) changed_.wait(lock, [&] { return may_enter() || !replays_; });
    --waiting_;
    if (arrived < turn_) --first_;
    ++inside_;
    if (!alone_ || disturbed_) return std::nullopt;
    disturbed_ = Clock::now();
    changed_.notify_all();
    return alone_;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) changed_.notify_all();
  }

  // Waits until no other launch is inside, and keeps others out. False when others are still inside at the deadline.
  bool enter_alone(const Launch& launch, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    ++wanting_alone_;
    const bool free = changed_.wait_until(lock, deadline, [&] { return !alone_ && inside_ == 0 && first_ == 0; });
    --wanting_alone_;
    if (free) {
      alone_ = launch;
      since_ = Clock::now();
      disturbed_.reset();
    }
    changed_.notify_all();
    return free;
  }

  // Keeps others out until the launch that entered alone leaves, because restoring memory would undo their writes. False when
  // another launch is already inside.
  bool start_replaying() {
    const std::lock_guard lock(mutex_);
    return replays_ = !disturbed_;
  }

  // Whether the launch that entered alone is still alone.
  bool undisturbed() {
    const std::lock_guard lock(mutex_);
    return !disturbed_;
  }

  void leave_alone() {
    const std::lock_guard lock(mutex_);
    alone_.reset();
    replays_ = false;
    ++turn_;
    first_ = waiting_;
    changed_.notify_all();
  }

  // Waits until a launch is alone for longer than `longest`, or is inside for longer than `patience` after it was disturbed.
  Launch overdue(Duration patience, Duration longest) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return alone_.has_value(); });
      const Clock::time_point deadline = disturbed_ ? *disturbed_ + patience : since_ + longest;
      if (Clock::now() >= deadline) return *alone_;
      changed_.wait_until(lock, deadline);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t turn_ = 0;  // number of launches that were alone so far
  unsigned inside_ = 0;
  unsigned waiting_ = 0;
  unsigned first_ = 0;  // launches that waited for the last turn and have not entered; they enter before the next launch is alone
  unsigned wanting_alone_ = 0;
  std::optional<Launch> alone_;
  bool replays_ = false;
  Clock::time_point since_;
  std::optional<Clock::time_point> disturbed_;  // time when another launch entered
};

}  // namespace cutrace
