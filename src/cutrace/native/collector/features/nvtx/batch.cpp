#include "batch.h"

#include <atomic>
#include <cstring>
#include <new>
#include <utility>

namespace cutrace::nvtx {
namespace {

std::atomic<std::size_t> most{std::size_t{1} << 20};
std::atomic<std::size_t> taken{0};
std::atomic<std::uint64_t> refused{0};

}  // namespace

void EventBatch::limit(std::size_t bytes) { most.store(bytes); }
std::size_t EventBatch::waiting() { return taken.load(); }
void EventBatch::after_fork_in_child() { taken.store(0); }
std::uint64_t EventBatch::take_refused() { return refused.exchange(0); }

std::unique_ptr<EventBatch> EventBatch::copy(const void* first, std::size_t first_size, const void* second, std::size_t second_size) {
  if (first == nullptr) first_size = 0;
  if (second == nullptr) second_size = 0;
  const std::size_t limit = most.load();
  if (first_size > limit || second_size > limit - first_size) return ++refused, nullptr;
  const std::size_t size = first_size + second_size;
  if (taken.fetch_add(size) + size > limit) {
    taken.fetch_sub(size);
    return ++refused, nullptr;
  }
  std::unique_ptr<std::uint8_t[]> data(new (std::nothrow) std::uint8_t[size]);
  std::unique_ptr<EventBatch> batch;
  if (data != nullptr) batch.reset(new (std::nothrow) EventBatch(std::move(data), first_size, second_size));
  if (batch == nullptr) {
    taken.fetch_sub(size);
    return ++refused, nullptr;
  }
  if (first_size != 0) std::memcpy(batch->data_.get(), first, first_size);
  if (second_size != 0) std::memcpy(batch->data_.get() + first_size, second, second_size);
  batch->memory_ = {CopiedMemory{reinterpret_cast<std::uintptr_t>(first), first_size, 0},
                    CopiedMemory{reinterpret_cast<std::uintptr_t>(second), second_size, first_size}};
  return batch;
}

EventBatch::~EventBatch() { taken.fetch_sub(first_ + second_); }

}  // namespace cutrace::nvtx
