// A wake-up that costs the sender one atomic store and one load while no thread sleeps. CUPTI completes buffers on the
// application's launching threads, where a mutex would be too expensive.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

namespace cutrace {

class Wake {
 public:
  // Any thread, signal-safe, keeps errno.
  void signal() {
    signalled_.store(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
    const int saved = errno;
    syscall(SYS_futex, &signalled_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    errno = saved;
  }

  // One thread only: returns when signalled since the last return, or after `nanoseconds`.
  void wait(std::uint64_t nanoseconds) {
    sleeping_.store(1, std::memory_order_seq_cst);
    if (signalled_.load(std::memory_order_seq_cst) == 0) {
      timespec t{static_cast<time_t>(nanoseconds / 1'000'000'000u), static_cast<long>(nanoseconds % 1'000'000'000u)};
      syscall(SYS_futex, &signalled_, FUTEX_WAIT_PRIVATE, 0, &t, nullptr, 0);
    }
    sleeping_.store(0, std::memory_order_relaxed);
    signalled_.exchange(0, std::memory_order_seq_cst);
  }

 private:
  std::atomic<std::uint32_t> signalled_{0};
  std::atomic<std::uint32_t> sleeping_{0};
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
};

// Shared by all recordings, because a late callback of CUPTI or NVTX, or a late signal, may come after its recording.
inline constinit Wake writer_wake;
inline constinit Wake flusher_wake;

}  // namespace cutrace
