#include "pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace cutrace {

bool BufferPool::open(std::size_t buffer_size, std::size_t limit) {
  if (base_ == nullptr) {
    const auto count = static_cast<std::uint32_t>(std::clamp<std::size_t>(limit / buffer_size, 2, 1u << 20));
    void* memory = mmap(nullptr, count * buffer_size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    base_ = static_cast<std::uint8_t*>(memory);
    buffer_size_ = buffer_size;
    capacity_ = count;
    valid_ = std::make_unique<std::atomic<std::size_t>[]>(count);
    free_.reset(count);
    completed_.reset(count);
  }
  limit_.store(static_cast<std::uint32_t>(std::clamp<std::size_t>(limit / buffer_size_, 2, capacity_)));
  return true;
}

std::uint32_t BufferPool::fresh() {
  std::uint32_t n = touched_.load(std::memory_order_relaxed);
  while (n < limit_.load(std::memory_order_relaxed))
    if (touched_.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) return n;
  return IndexStack::kNone;
}

std::uint8_t* BufferPool::request() {
  if (!open_.load(std::memory_order_acquire)) return nullptr;
  std::uint32_t index = free_.pop();
  if (index == IndexStack::kNone) index = fresh();
  if (index == IndexStack::kNone) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  requested_.fetch_add(1, std::memory_order_relaxed);
  return address(index);
}

void BufferPool::complete(std::uint8_t* buffer, std::size_t valid) {
  if (buffer == nullptr || buffer < base_) return;
  const std::size_t offset = static_cast<std::size_t>(buffer - base_);
  if (offset % buffer_size_ != 0 || offset / buffer_size_ >= capacity_) return;
  const auto index = static_cast<std::uint32_t>(offset / buffer_size_);
  valid_[index].store(std::min(valid, buffer_size_), std::memory_order_relaxed);
  returned_.fetch_add(1, std::memory_order_relaxed);
  completed_.push(index);
}

void BufferPool::recycle(std::uint32_t index, std::size_t valid) {
  if (zeroing_ && valid != 0) std::memset(address(index), 0, buffer_size_);
  free_.push(index);
}

void BufferPool::prepare(std::uint32_t spare) {
  for (std::uint32_t have = free_.size(); have < spare; ++have) {
    const std::uint32_t index = fresh();
    if (index == IndexStack::kNone) return;
    std::memset(address(index), 0, buffer_size_);
    free_.push(index);
  }
}

}  // namespace cutrace
