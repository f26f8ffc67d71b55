// The memory pools that the program has used in this recording and not destroyed.
//
// A pool gives memory back to the system when the program waits, and CUPTI does not report it. So the collector asks the driver
// before and after calls that wait. It asks only about pools that certainly exist, because for others the driver would read freed
// memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "core/capture.h"
#include "cuda/cupti_library.h"
#include "live_memory.h"

namespace cutrace {

inline constexpr std::uint8_t kLocalPool = CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL;
inline constexpr std::uint8_t kImportedPool = CUPTI_ACTIVITY_MEMORY_POOL_TYPE_IMPORTED;

// A call that has used a pool.
struct PoolUse {
  std::uint64_t handle = 0;
  std::uint64_t base = 0;   // where the pool starts, if this call shows it
  std::uint32_t ended = 0;  // KnownPools::ended() at a time when the pool certainly existed
  std::uint16_t device = 0;
  std::uint8_t type = 0;
  bool lives = false;       // false: it may have been destroyed before the recording
};

struct SeenPool {
  std::uint64_t base = 0;
  bool unlisted = false;                      // there was no room for it
  std::optional<rows::MemoryPools> created;   // set if it is seen for the first time
};

// The rows have no time and no correlation id yet. In a callback about a resource, only context_ends() may be called.
class KnownPools {
 public:
  // Forgets all pools. From now on at most `limit` bytes are taken.
  void reset(std::size_t limit);
  std::size_t memory() const { return memory_.load(std::memory_order_relaxed); }
  // The number of pools with a started destruction.
  std::uint32_t ended() const { return ended_.load(); }

  // Returns the base address that identifies a pool in rows. It is the first base that was found, because a pool grows by
  // mappings at other addresses.
  SeenPool use(const PoolUse& use);
  // The bytes in use of a pool, by its base. 0 when the pool may be gone.
  std::uint64_t used_of(std::uint64_t base);
  // Before a pool is destroyed: ends all questions to the driver about the pool. `now`: the driver may be asked a last time.
  // Returns the pool's row.
  std::optional<rows::MemoryPools> begin_destroy(std::uint64_t handle, bool now);
  // The pool was not destroyed.
  void undo_destroy(std::uint64_t handle, const rows::MemoryPools& row);
  // After the program has trimmed a pool.
  std::optional<rows::MemoryPools> trimmed(std::uint64_t handle, std::uint64_t minimum);
  // Before a call that waits: notes the sizes of pools that have given memory since the last one.
  void before_wait();
  // After the call: calls write(row) for each pool that has become smaller.
  template <typename Write>
  void after_wait(Write&& write) {
    const std::lock_guard lock(mutex_);
    pools_.each([&](Live& pool) {
      if (const auto row = shrunk(pool)) write(*row);
    });
  }
  // A context ends, and may end pools with it. So the collector asks about a pool at waits only after the next use of the pool.
  void context_ends() { contexts_ended_.fetch_add(1); }

  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  // Under mutex_.
  bool add(std::uint64_t handle, std::uint64_t base, std::uint16_t device, std::uint8_t type);
  void was_used(Live& pool);
  bool may_ask(const Live& pool) const;
  std::optional<rows::MemoryPools> shrunk(Live& pool);

  std::mutex mutex_;  // also held while the driver is asked, and while the destruction of a pool starts
  LiveMemory pools_;  // Space::pool and Space::pool_base
  std::atomic<std::size_t> memory_{0};
  std::atomic<std::uint32_t> ended_{0};
  std::atomic<std::uint16_t> contexts_ended_{0};
};

}  // namespace cutrace
