// The memory that the driver holds for allocation nodes of CUDA graphs, by device.
//
// A node allocates when its graph runs, and the driver keeps the memory for the next run. The driver can report the size of this
// memory. So the collector asks it before and after the calls that may change the size.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "cuda/driver.h"

namespace cutrace {

class GraphMemory {
 public:
  void reset();
  // A node of a graph allocates on this device. True for the first such node in the recording.
  bool add_node(std::uint32_t device);
  // Before a call that may change the driver's memory: notes the size, once for each device.
  void before_call();
  // After the call: calls write(device, before, now) for each change. The change is noted if write() returns true.
  template <typename Write>
  void after_call(Write&& write) {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t left = devices_.load() & noted_; left != 0; left &= left - 1) {
      const auto device = static_cast<std::uint32_t>(std::countr_zero(left));
      std::uint64_t& before = kept_[device];
      std::uint64_t now = 0;
      if (graph_memory(device, now) && now != before && write(device, before, now)) before = now;
    }
  }
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  static constexpr std::size_t kDevices = 64;

  std::atomic<std::uint64_t> devices_{0};  // a bit for each device with a node
  std::mutex mutex_;                       // also held while the driver is asked, so that changes are in order
  std::uint64_t noted_ = 0;                // a bit for each device with a known size
  std::array<std::uint64_t, kDevices> kept_{};
};

}  // namespace cutrace
