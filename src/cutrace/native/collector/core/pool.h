// The buffers that CUPTI fills. CUPTI requests them on the application's launching threads.
//
// One reservation of address space is divided into equal buffers. The writer thread touches their pages ahead of need
// (`prepare`), so that a launch does not wait for page faults. At the limit a request is refused: CUPTI then drops records
// and counts them, and so does the capture.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>

namespace cutrace {

// A lock-free stack of small indexes: the free list of the pool and the queue of completed buffers.
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

  // Removes and returns the last pushed index; kNone when empty.
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

  // Removes all indices and calls visit(index) for each, oldest first.
  template <typename Visit>
  void take_all(Visit&& visit) {
    std::uint64_t head = head_.load(std::memory_order_acquire);
    while (!head_.compare_exchange_weak(head, pack(kNone, tag(head) + 1), std::memory_order_acquire,
                                        std::memory_order_acquire)) {
    }
    std::uint32_t oldest = kNone;
    for (std::uint32_t at = top(head); at != kNone;) {  // reverse the chain, because the newest is first
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

// The account of buffers. Each buffer that was handed out is with CUPTI, waits for the writer, or was read or discarded:
//
//   handed out = with CUPTI + waiting + read + discarded
//
// At the end of a recording, unread buffers that CUPTI got before the end count as lost. Only this account decides whether CUPTI
// can be finalised, and gives the numbers of missing records in the capture.
class BufferPool {
 public:
  static constexpr std::size_t kDefaultBufferSize = std::size_t{256} << 10;

  // Reserves address space for `limit` bytes. Later calls only change the limit, because CUPTI may still hold buffers of an earlier
  // recording. The first limit is the largest. False when the reservation fails.
  bool open(std::size_t buffer_size, std::size_t limit) {
    if (base_ == nullptr) {
      const auto count = static_cast<std::uint32_t>(std::clamp<std::size_t>(limit / buffer_size, 2, 1u << 20));
      void* memory = mmap(nullptr, count * buffer_size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) return false;
      base_ = static_cast<std::uint8_t*>(memory);
      buffer_size_ = buffer_size;
      capacity_ = count;
      buffers_ = std::make_unique<Buffer[]>(count);
      free_.reset(count);
      completed_.reset(count);
    }
    limit_.store(static_cast<std::uint32_t>(std::clamp<std::size_t>(limit / buffer_size_, 2, capacity_)));
    return true;
  }

  // Launching threads. Null at the memory limit or while closed.
  std::uint8_t* request() {
    if (!open_.load(std::memory_order_acquire)) return nullptr;
    std::uint32_t index = free_.pop();
    if (index == IndexStack::kNone) index = fresh();
    if (index == IndexStack::kNone) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
    Buffer& buffer = buffers_[index];
    buffer.number.store(handed_out_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    buffer.requested_at.store(time_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    buffer.valid.store(kWithCupti, std::memory_order_release);
    return address(index);
  }
  // Launching threads, CUPTI's worker, the flusher: returns a buffer with `valid` bytes of records.
  void complete(std::uint8_t* buffer, std::size_t valid) {
    if (buffer == nullptr || buffer < base_) return;
    const std::size_t offset = static_cast<std::size_t>(buffer - base_);
    if (offset % buffer_size_ != 0 || offset / buffer_size_ >= capacity_) return;
    const auto index = static_cast<std::uint32_t>(offset / buffer_size_);
    std::size_t state = kWithCupti;
    const std::size_t bytes = std::min(valid, buffer_size_);
    if (!buffers_[index].valid.compare_exchange_strong(state, bytes, std::memory_order_relaxed)) return;
    returned_.fetch_add(1, std::memory_order_relaxed);
    completed_.push(index);
  }

  // Writer thread: calls visit(buffer, valid bytes) for each completed buffer in order, then frees it. When a visit throws,
  // its buffer and the later ones are discarded. Returns the number of buffers.
  template <typename Visit>
  std::size_t drain(Visit&& visit) {
    std::size_t count = 0;
    std::exception_ptr failure;
    completed_.take_all([&](std::uint32_t index) {
      ++count;
      const std::size_t valid = buffers_[index].valid.load(std::memory_order_relaxed);
      try {
        if (valid != 0 && !failure) visit(address(index), valid);
      } catch (...) {
        failure = std::current_exception();
      }
      release(index, valid == 0 || !failure);
    });
    if (failure) std::rethrow_exception(failure);
    return count;
  }
  // Starts a new recording. Discards the buffers that CUPTI returned after the end of the previous recording; that recording has
  // counted them as lost. Call it before the writer drains.
  void begin_recording() {
    completed_.take_all([&](std::uint32_t index) { release(index, buffers_[index].valid.load(std::memory_order_relaxed) == 0); });
    discarded_before_.store(discarded_.load());
    end_.store(kNoEnd);
  }
  // Buffers that are handed out from now on belong to no recording. Call it before the last flush.
  void end_recording() { end_.store(handed_out()); }
  // After end_recording(): buffers belong to this recording again.
  void continue_recording() { end_.store(kNoEnd); }

  // Writer thread: touches pages until `spare` buffers are free.
  void prepare(std::uint32_t spare) {
    for (std::uint32_t have = free_.size(); have < spare; ++have) {
      const std::uint32_t index = fresh();
      if (index == IndexStack::kNone) return;
      std::memset(address(index), 0, buffer_size_);
      free_.push(index);
    }
  }

  // Writer thread, often: sets the request time of later buffers, so that launching threads do not read a clock.
  void set_time(std::uint64_t now) { time_.store(now, std::memory_order_relaxed); }
  // The unread buffers of a recording. CUPTI may still write into a buffer that it got during an earlier recording.
  struct Unread {
    std::uint64_t count = 0;
    std::uint64_t with_cupti = 0;  // the number of these that CUPTI holds
    std::uint64_t oldest;          // request time of the first of them, as set by set_time(); `now` for none
  };
  // Leaves out buffers that were requested before `since`.
  Unread unread(std::uint64_t since, std::uint64_t now) const {
    Unread found{.oldest = now};
    const std::uint32_t touched = std::min(touched_.load(std::memory_order_acquire), capacity_);
    for (std::uint32_t index = 0; index < touched; ++index) {
      const Buffer& buffer = buffers_[index];
      const std::size_t valid = buffer.valid.load(std::memory_order_acquire);
      const std::uint64_t time = buffer.requested_at.load(std::memory_order_relaxed);
      if (valid == kFree || time < since || buffer.number.load(std::memory_order_relaxed) >= end_.load()) continue;
      ++found.count;
      found.with_cupti += valid == kWithCupti;
      found.oldest = std::min(found.oldest, time);
    }
    return found;
  }

  void set_open(bool open) { open_.store(open, std::memory_order_release); }
  std::uint64_t handed_out() const { return handed_out_.load(std::memory_order_relaxed); }
  std::uint64_t completed() const { return returned_.load(std::memory_order_relaxed); }
  // Buffers that CUPTI holds now.
  std::uint64_t outstanding() const { return handed_out() - completed(); }
  // Buffers of this recording that the writer could not read.
  std::uint64_t discarded() const { return discarded_.load() - discarded_before_.load(); }
  // Whether no returned buffer waits for the writer.
  bool none_waits() const { return read_.load(std::memory_order_acquire) + discarded_.load() == completed(); }
  // Whether the writer has read all buffers that CUPTI got in this process.
  bool all_read() const { return read_.load(std::memory_order_acquire) == handed_out(); }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  std::size_t buffer_size() const { return buffer_size_; }
  std::size_t memory() const {
    const std::size_t touched = touched_.load(std::memory_order_acquire);
    return touched != 0 ? touched * buffer_size_ : 0;  // the size is not set before the first buffer is touched
  }

  // Whether the pool zeroes buffers. Otherwise CUPTI zeroes each buffer on the launching thread.
  void set_zeroing(bool zeroing) { zeroing_ = zeroing; }

 private:
  // States of a buffer without records, in place of its number of valid bytes.
  static constexpr std::size_t kFree = ~std::size_t{0}, kWithCupti = kFree - 1;
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};
  struct Buffer {
    std::atomic<std::size_t> valid{kFree};
    std::atomic<std::uint64_t> number{0};  // number of the request that got the buffer, counting up
    std::atomic<std::uint64_t> requested_at{0};
  };

  std::uint8_t* address(std::uint32_t index) const { return base_ + std::size_t{index} * buffer_size_; }
  std::uint32_t fresh() {
    std::uint32_t n = touched_.load(std::memory_order_relaxed);
    while (n < limit_.load(std::memory_order_relaxed))
      if (touched_.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) return n;
    return IndexStack::kNone;
  }
  void release(std::uint32_t index, bool read) {
    const std::size_t valid = buffers_[index].valid.exchange(kFree, std::memory_order_relaxed);
    if (zeroing_ && valid != 0) std::memset(address(index), 0, buffer_size_);
    (read ? read_ : discarded_).fetch_add(1, std::memory_order_release);
    free_.push(index);
  }

  std::uint8_t* base_ = nullptr;
  std::size_t buffer_size_ = 0;
  std::uint32_t capacity_ = 0;
  bool zeroing_ = false;
  std::unique_ptr<Buffer[]> buffers_;
  std::atomic<std::uint64_t> time_{0};
  std::atomic<std::uint64_t> end_{kNoEnd};  // the number of the first buffer after the end of the recording
  IndexStack free_;
  IndexStack completed_;
  std::atomic<std::uint32_t> limit_{0};
  std::atomic<std::uint32_t> touched_{0};
  std::atomic<bool> open_{false};
  std::atomic<std::uint64_t> handed_out_{0};
  std::atomic<std::uint64_t> returned_{0};
  std::atomic<std::uint64_t> read_{0};
  std::atomic<std::uint64_t> discarded_{0}, discarded_before_{0};  // before_: the sum of earlier recordings
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace cutrace
