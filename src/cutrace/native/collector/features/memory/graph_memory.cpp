#include "graph_memory.h"

namespace cutrace {

void GraphMemory::reset() {
  const std::lock_guard lock(mutex_);
  devices_.store(0);
  noted_ = 0;
}

bool GraphMemory::add_node(std::uint32_t device) {
  if (device >= kDevices) return false;
  return devices_.fetch_or(std::uint64_t{1} << device) == 0;
}

void GraphMemory::before_call() {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t left = devices_.load() & ~noted_; left != 0; left &= left - 1) {
    const auto device = static_cast<std::uint32_t>(std::countr_zero(left));
    if (graph_memory(device, kept_[device])) noted_ |= std::uint64_t{1} << device;
  }
}

}  // namespace cutrace
