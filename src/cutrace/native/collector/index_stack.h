// A lock-free stack of small indexes: the free list of the buffer pool and the queue of completed buffers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace cutrace {

class IndexStack {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  // Not thread-safe: before the first use only.
  void reset(std::uint32_t capacity) {
    next_ = std::make_unique<std::atomic<std::uint32_t>[]>(capacity);
    head_.store(pack(kNone, 0));
  }

  void push(std::uint32_t index) {
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    do {
      next_[index].store(top(head), std::memory_order_relaxed);
    } while (!head_.compare_exchange_weak(head, pack(index, tag(head) + 1), std::memory_order_release,
                                          std::memory_order_relaxed));
    size_.fetch_add(1, std::memory_order_relaxed);
  }

  // The index pushed last, kNone when empty.
  std::uint32_t pop() {
    std::uint64_t head = head_.load(std::memory_order_acquire);
    while (top(head) != kNone) {
      // The tag makes the exchange fail when another thread popped and pushed this index in between.
      const std::uint32_t below = next_[top(head)].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, pack(below, tag(head) + 1), std::memory_order_acquire,
                                      std::memory_order_acquire)) {
        size_.fetch_sub(1, std::memory_order_relaxed);
        return top(head);
      }
    }
    return kNone;
  }

  // Takes everything and calls visit(index) for each, oldest first.
  template <typename Visit>
  void take_all(Visit&& visit) {
    std::uint64_t head = head_.load(std::memory_order_acquire);
    while (!head_.compare_exchange_weak(head, pack(kNone, tag(head) + 1), std::memory_order_acquire,
                                        std::memory_order_acquire)) {
    }
    std::uint32_t oldest = kNone;
    for (std::uint32_t at = top(head); at != kNone;) {  // turn the chain round: a stack hands out the newest first
      const std::uint32_t below = next_[at].load(std::memory_order_relaxed);
      next_[at].store(oldest, std::memory_order_relaxed);
      oldest = at;
      at = below;
    }
    while (oldest != kNone) {
      const std::uint32_t at = oldest;
      oldest = next_[at].load(std::memory_order_relaxed);
      size_.fetch_sub(1, std::memory_order_relaxed);
      visit(at);  // may push `at` on another stack, or on this one
    }
  }

  bool empty() const { return top(head_.load(std::memory_order_acquire)) == kNone; }
  // Approximate while other threads push and pop.
  std::uint32_t size() const { return size_.load(std::memory_order_relaxed); }

 private:
  static std::uint64_t pack(std::uint32_t index, std::uint32_t tag) { return (std::uint64_t{tag} << 32) | index; }
  static std::uint32_t top(std::uint64_t head) { return static_cast<std::uint32_t>(head); }
  static std::uint32_t tag(std::uint64_t head) { return static_cast<std::uint32_t>(head >> 32); }

  std::unique_ptr<std::atomic<std::uint32_t>[]> next_;
  std::atomic<std::uint64_t> head_{pack(kNone, 0)};
  std::atomic<std::uint32_t> size_{0};
};

}  // namespace cutrace
