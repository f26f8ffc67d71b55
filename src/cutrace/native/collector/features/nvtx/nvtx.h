// Recording NVTX: the callbacks that the header-only NVTX v3 library of a program calls, and the rings that pass events from
// the program's threads to the writer.
//
// Each thread that uses NVTX has a ring of bytes. Only the thread fills it and only the writer empties it, so there is no
// lock, and no allocation after the thread's first event. An event is a header, optional parts by its flags, and the message.
// The writer matches pushes with pops and interns the text.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

namespace cutrace::nvtx {

enum class EventType : std::uint8_t {
  skip, push, pop, start, end, mark, category, thread_name, resource_name,
  graph_node, graph_node_copy, graph_exec  // CUDA graphs: see graph_nodes.h
};

enum EventFlags : std::uint8_t {
  kText = 1,        // a text of `length` bytes follows
  kRegistered = 2,  // `length` is the number of a registered string
  kAttributes = 4,  // an EventAttributes follows
  kId = 8,          // a 64-bit id follows: range id, category, thread, resource
  kCutrace = 16,    // a mark by cutrace_mark()
  kIncomplete = 32,  // of graph_exec: the ring was full for a node before it
};

struct EventHeader {
  std::uint32_t size;  // bytes, a multiple of 8
  EventType type;
  std::uint8_t flags;
  std::uint16_t domain;
  std::uint64_t time;
  // Of push and pop: enclosing ranges of this thread and domain, or one of the values below. Of a graph node: all open
  // push/pop ranges of this thread.
  std::uint32_t depth;
  std::uint32_t length;  // of the message; of a graph node: Ring::lost_events
};
static_assert(sizeof(EventHeader) == 24);

inline constexpr std::uint32_t kUnmatched = 0xFFFFFFFFu;  // a pop without a push
inline constexpr std::uint32_t kNoDepth = 0xFFFFFFFEu;    // a domain without a depth counter

struct EventAttributes {
  std::uint64_t payload;  // of a copied graph node: the id of the original
  std::uint32_t category;
  std::uint32_t color;
  std::uint32_t payload_type;
  std::uint32_t kind;  // of a resource name: its kind and context
};
static_assert(sizeof(EventAttributes) == 24);

class Ring {
 public:
  static constexpr std::size_t kDomains = 256;  // further domains have no depth counter
  static constexpr std::size_t kLongestText = 4096;

  explicit Ring(std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  // Owner thread: space for an event of `size` bytes, null when the ring is full.
  std::uint8_t* reserve(std::size_t size) {
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    const std::size_t at = head & (size_ - 1);
    const std::size_t to_end = size_ - at;
    const std::size_t need = size <= to_end ? size : to_end + size;
    if (need > size_ - (head - seen_tail_)) {
      seen_tail_ = tail_.load(std::memory_order_acquire);
      if (need > size_ - (head - seen_tail_)) return nullptr;
    }
    if (size > to_end) {  // events do not wrap: skip to the start
      auto* filler = reinterpret_cast<std::uint32_t*>(data_ + at);
      filler[0] = static_cast<std::uint32_t>(to_end);
      filler[1] = static_cast<std::uint32_t>(EventType::skip);
      head_.store(head + to_end, std::memory_order_release);
      return data_;
    }
    return data_ + at;
  }
  // Owner thread: publishes the event in the space from reserve(). True when the writer should be woken.
  bool commit(std::size_t size) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    head_.store(head + size, std::memory_order_release);
    return ((head ^ (head + size)) & (size_ / 4)) != 0;
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
  std::uint32_t lost_events = 0;                // of this thread in this recording; owner thread only
  bool lost_graph_nodes = false;                // since the last executable graph; owner thread only
  std::atomic<std::uint64_t> dropped{0};        // events that found the ring full
  std::atomic<std::uint64_t> dropped_graph_nodes{0};
  enum State : std::uint32_t { kFree, kOwned, kRetired };
  std::atomic<std::uint32_t> state{kOwned};
  Ring* next = nullptr;  // fixed once the ring is in the list

 private:
  std::uint8_t* data_;
  std::size_t size_;
  std::uint64_t seen_tail_ = 0;  // owner thread only
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
};

// The number of the recording that NVTX events belong to, 0 for none. The hot path reads only this; a thread's state for
// another number is stale.
extern std::atomic<std::uint32_t> armed;
// The value of `armed` in a forked child of a recorded process before its first event, which starts a recording.
inline constexpr std::uint32_t kForkedChild = 0xFFFFFFFFu;

// Begins a new recording of events.
void arm(std::size_t ring_memory);
void disarm();

// The calling thread's ring for the recording `number`, created at its first event; null at the memory limit.
Ring* this_thread_ring(std::uint32_t number);
inline Ring* ring_if_recording() {
  const std::uint32_t number = armed.load(std::memory_order_acquire);
  return number != 0 ? this_thread_ring(number) : nullptr;
}
// Writer thread: all rings, newest first.
Ring* all_rings();
std::size_t ring_memory();
std::uint64_t events_without_ring();

// Registered strings and domains live as long as the process, because a program keeps its handles for the next recording.
// Numbers count from 1; 0 is the default domain, or no string.
std::uint32_t register_string(std::string_view text);
std::uint16_t register_domain(std::string_view name);
std::string_view registered_string(std::uint32_t number);
std::string_view domain_name(std::uint16_t number);
std::uint64_t registrations_refused();

// Around fork(): the child must not inherit the registry's lock from another thread.
void before_fork();
void after_fork_in_parent();
// Drops the parent's rings. The child's first event calls `first_event`, which may arm; null for no call.
void after_fork_in_child(void (*first_event)());

// Record events of CUDA graphs, on the thread that makes them, in order with its ranges. For each copy CUPTI reports two
// events: the new node is created, then it is a copy.
void graph_node_created(std::uint64_t node);
void graph_node_copied(std::uint64_t node, std::uint64_t original);
void graph_instantiated(std::uint32_t graph);

// Records a mark of cutrace in the default domain.
void cutrace_mark(std::string_view text);

// A range of cutrace around a function of Python. It has the default domain in the capture, but a stack of its own: a program
// may leave ranges open at the end of a function.
void push(std::string_view name);
void pop();

// Fills NVTX's callback tables. False when there are none.
bool install(NvtxGetExportTableFunc_t get_export_table);

}  // namespace cutrace::nvtx
