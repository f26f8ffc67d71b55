// The buffers that CUPTI fills, handed out on the application's launching threads.
//
// One reservation of address space is cut into equal buffers. Its pages become memory only when touched, which a
// helper thread does ahead of need (`prepare`), so that a launch never waits for the kernel to find a page. At
// the limit a request is refused: CUPTI then drops records and counts them, and so does the capture.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "index_stack.h"

namespace cutrace {

class BufferPool {
 public:
  static constexpr std::size_t kDefaultBufferSize = std::size_t{256} << 10;

  // Reserves address space for `limit` bytes. Once a process: later calls may only lower or restore the limit,
  // because CUPTI may still hold buffers of an earlier recording. False when the system refuses.
  bool open(std::size_t buffer_size, std::size_t limit);

  // Launching threads. Null at the memory limit or while closed.
  std::uint8_t* request();
  // Launching threads, CUPTI's worker, the flusher: hands a buffer back with `valid` bytes of records.
  void complete(std::uint8_t* buffer, std::size_t valid);

  // Writer thread: visit(buffer, valid bytes) for each completed buffer in order, then its reuse. When a visit throws, the
  // buffers after it are not visited; they can be used again all the same.
  template <typename Visit>
  std::size_t drain(Visit&& visit) {
    std::size_t count = 0;
    std::exception_ptr failure;
    completed_.take_all([&](std::uint32_t index) {
      ++count;
      const std::size_t valid = valid_[index].load(std::memory_order_relaxed);
      try {
        if (valid != 0 && !failure) visit(address(index), valid);
      } catch (...) {
        failure = std::current_exception();
      }
      recycle(index, valid);
    });
    if (failure) std::rethrow_exception(failure);
    return count;
  }
  // While nobody drains: what came after the recording before this one had ended is no part of this one.
  void discard_completed() {
    read_.fetch_add(drain([](std::uint8_t*, std::size_t) {}));
  }

  // Helper thread: touches pages until `spare` buffers wait to be handed out.
  void prepare(std::uint32_t spare);

  void set_open(bool open) { open_.store(open, std::memory_order_release); }
  // Buffers that CUPTI holds now.
  std::uint64_t outstanding() const { return requested() - completed(); }
  std::uint64_t requested() const { return requested_.load(std::memory_order_relaxed); }
  // Writer thread: so many buffers of a drain are dealt with. Whether all that were handed back are.
  void dealt_with(std::size_t count) { read_.fetch_add(count, std::memory_order_release); }
  bool all_read() const { return read_.load(std::memory_order_acquire) == completed(); }
  std::uint64_t completed() const { return returned_.load(std::memory_order_relaxed); }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  std::size_t buffer_size() const { return buffer_size_; }
  std::size_t memory() const {
    const std::size_t touched = touched_.load(std::memory_order_acquire);
    return touched != 0 ? touched * buffer_size_ : 0;  // the size is not set before the first buffer is touched
  }

  // CUPTI zeroes each buffer on the launching thread unless it is told that buffers come zeroed.
  void set_zeroing(bool zeroing) { zeroing_ = zeroing; }

 private:
  std::uint8_t* address(std::uint32_t index) const { return base_ + std::size_t{index} * buffer_size_; }
  std::uint32_t fresh();
  void recycle(std::uint32_t index, std::size_t valid);

  std::uint8_t* base_ = nullptr;
  std::size_t buffer_size_ = 0;
  std::uint32_t capacity_ = 0;
  bool zeroing_ = false;
  std::unique_ptr<std::atomic<std::size_t>[]> valid_;
  IndexStack free_;
  IndexStack completed_;
  std::atomic<std::uint32_t> limit_{0};
  std::atomic<std::uint32_t> touched_{0};
  std::atomic<bool> open_{false};
  std::atomic<std::uint64_t> requested_{0};
  std::atomic<std::uint64_t> returned_{0};
  std::atomic<std::uint64_t> read_{0};
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace cutrace
