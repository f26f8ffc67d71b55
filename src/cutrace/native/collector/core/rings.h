// The rings that pass events from the program's threads to the writer.
//
// Each thread that has events has one ring of bytes. Only the thread fills it and only the writer empties it, so there is no
// lock. A ring has pages of its own, because a signal handler that has interrupted malloc() may have the thread's first event. An event starts with an EventHead. The feature that writes and reads
// this type of event defines the rest. The events of a thread are read in the order in which they happened.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cutrace {

// All types of events, by the feature that writes them.
enum class EventType : std::uint8_t {
  skip,
  push, pop, start, end, mark, category, thread_name, resource_name,  // features/nvtx
  counter, deferred, batch,                                           // the same
  graph_node, graph_node_copy, graph_exec,                            // features/graph_nodes
  kernel_name, launch_name, node_name,                                // features/names
  allocation, memory_pool,                                            // features/memory
  stack_forget, stack_frame, stack_node, call_stack,                  // features/stacks
  launch_code,                                                        // features/code
  count
};

// The feature that dropped an event because there was no room for it.
enum class EventSource : std::uint8_t { nvtx, graph_nodes, names, memory, stacks, code, count };

struct EventHead {
  std::uint32_t size;  // in bytes, a multiple of 8
  EventType type;
  std::uint8_t flags;   // the type of event defines the meaning of `depth` and `number`
  std::uint16_t number;
};
static_assert(sizeof(EventHead) == 8);

// The name of a thread, for the writer (ThreadNames).
struct ThreadNote {
  ThreadNote* next = nullptr;
  std::uint32_t thread = 0;
  std::array<char, 16> name{};
  bool in_ring = false;             // it is part of a ring, and is used again
  std::atomic<bool> listed{false};  // the writer will read it
};

class Ring {
 public:
  static constexpr std::size_t kDomains = 256;  // domains above this number have no depth counter
  static constexpr std::size_t kLongestText = 4096;

  explicit Ring(std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  // Owner thread: returns space for an event of `size` bytes, valid until commit(). Null when the ring is full, and in a signal
  // handler that has interrupted the thread between reserve() and commit().
  std::uint8_t* reserve(std::size_t size) {
    if (reserved_.load(std::memory_order_relaxed)) return nullptr;
    reserved_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::uint8_t* const space = find_space(size);
    if (space == nullptr) reserved_.store(false, std::memory_order_relaxed);
    return space;
  }
  // Owner thread: publishes the event in the space from reserve(). A `size` of 0 returns the space without an event. True when
  // the writer should be woken.
  bool commit(std::size_t size) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    head_.store(head + size, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    reserved_.store(false, std::memory_order_relaxed);
    return ((head ^ (head + size)) & (size_ / 4)) != 0;
  }
  // The thread that takes over the ring of an ended thread. Drops an event that the ended thread has not committed.
  void take_over() { reserved_.store(false, std::memory_order_relaxed); }
  // Owner thread: counts an event for which reserve() found no space.
  void drop(EventSource source) { dropped[static_cast<std::size_t>(source)].fetch_add(1, std::memory_order_relaxed); }
  // Writer thread: the number of events of a source that were dropped since the last call.
  std::uint64_t take_dropped(EventSource source) {
    return dropped[static_cast<std::size_t>(source)].exchange(0, std::memory_order_relaxed);
  }

  // Writer thread: calls visit(event bytes) once for each event published before the call, even if visit throws.
  template <typename Visit>
  void drain(Visit&& visit) {
    std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    const std::uint64_t head = head_.load(std::memory_order_acquire);
    while (tail != head) {
      const std::uint8_t* event = data_ + (tail & (size_ - 1));
      std::uint32_t words[2];
      __builtin_memcpy(words, event, sizeof words);
      tail += words[0];
      try {
        if (static_cast<EventType>(words[1] & 0xFF) != EventType::skip) visit(event);
      } catch (...) {
        tail_.store(tail, std::memory_order_release);
        throw;
      }
      tail_.store(tail, std::memory_order_release);
    }
  }

  std::uint32_t thread = 0;
  std::uint32_t recording = 0;                  // the recording that `depth` belongs to; owner thread only
  std::array<std::uint32_t, kDomains> depth{};  // open ranges by domain; owner thread only
  std::uint32_t lost_events = 0;                // dropped in this recording; owner thread only
  bool lost_graph_nodes = false;                // dropped since the last executable graph; owner thread only
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(EventSource::count)> dropped{};
  enum State : std::uint32_t { kFree, kOwned, kRetired };
  std::atomic<std::uint32_t> state{kOwned};
  std::atomic<std::uint32_t> unreported{0};  // the thread, if no function is called at its end
  ThreadNote note;
  Ring* next = nullptr;  // fixed once the ring is in the list

 private:
  std::uint8_t* find_space(std::size_t size) {
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    const std::size_t at = head & (size_ - 1);
    const std::size_t to_end = size_ - at;
    const std::size_t need = size <= to_end ? size : to_end + size;
    if (need > size_ - (head - seen_tail_)) {
      seen_tail_ = tail_.load(std::memory_order_acquire);
      if (need > size_ - (head - seen_tail_)) return nullptr;
    }
    if (size > to_end) {  // an event does not wrap around the end of the ring: skip to the start
      auto* filler = reinterpret_cast<std::uint32_t*>(data_ + at);
      filler[0] = static_cast<std::uint32_t>(to_end);
      filler[1] = static_cast<std::uint32_t>(EventType::skip);
      head_.store(head + to_end, std::memory_order_release);
      return data_;
    }
    return data_ + at;
  }

  std::uint8_t* data_;
  std::size_t size_;
  std::atomic<bool> reserved_{false};  // owner thread only
  std::uint64_t seen_tail_ = 0;  // owner thread only
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
};

namespace rings {

// The number of the recording that gets the events, 0 for none. A thread's state for another number is stale.
extern std::atomic<std::uint32_t> armed;

// The number of the recording that was started last, 0 for none; the next one has the next number.
std::uint32_t latest();
// Starts a recording of events with at most `memory` bytes of rings. Returns its number.
std::uint32_t arm(std::size_t memory);
// Ends the recording with this number, unless a later one has started.
void disarm(std::uint32_t number);

// The calling thread's ring for the recording `number`, created at the thread's first event. At the memory limit the result is
// null, and a dropped event of `source` is counted.
Ring* of_this_thread(std::uint32_t number, EventSource source);
// The calling thread's ring for the running recording; null when none runs.
inline Ring* of_this_thread(EventSource source) {
  const std::uint32_t number = armed.load(std::memory_order_acquire);
  return number != 0 ? of_this_thread(number, source) : nullptr;
}
// Writer thread: all rings, newest first.
Ring* all();
// Writer thread, periodically: retires the rings of threads whose end was not reported.
void retire_unreported();
std::size_t memory();
// The number of events of this source, in all recordings, that were dropped because memory for the thread's ring was missing.
std::uint64_t events_without_ring(EventSource source);

// Drops the parent's rings.
void after_fork_in_child();

}  // namespace rings
}  // namespace cutrace
