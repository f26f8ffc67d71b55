// Recording NVTX: the callbacks that the header-only NVTX v3 library of a program calls.
//
// They put events into the thread's ring (core/rings.h). An event has a header, the parts that its flags name, and the message.
// The writer matches pushes with pops and interns the strings.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/rings.h"

#define NVTX_NO_IMPL
#include "nvtx_constants.h"

namespace cutrace::nvtx {

enum EventFlags : std::uint8_t {
  kText = 1,        // a string of `length` bytes follows
  kRegistered = 2,  // `length` is the number of a registered string
  kAttributes = 4,  // an EventAttributes follows
  kId = 8,          // a 64-bit id follows: range id, category, thread, resource
  kCutrace = 16,    // a mark by cutrace_mark()
  kIncomplete = 32,  // of graph_exec: the ring was full for an earlier node
  kPayload = 64,     // extended payloads follow the string, aligned to 8 bytes: see payload_copy.h
  kUnknownRanges = 128,  // of graph_node: it was created after the recording of NVTX
};

struct EventHeader {
  std::uint32_t size;  // bytes, a multiple of 8
  EventType type;
  std::uint8_t flags;
  std::uint16_t domain;
  std::uint64_t time;
  // Of push and pop: the number of enclosing ranges of this thread and domain, or one of the values below. Of a graph node: the
  // number of all open push/pop ranges of this thread.
  std::uint32_t depth;
  std::uint32_t length;  // bytes of the message; of a graph node: Ring::lost_events
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


// The number of the recording that gets NVTX events, 0 for none. The hot path reads only this value.
extern std::atomic<std::uint32_t> armed;
// The value of `armed` in a forked child of a recorded process before its first event, which starts a recording.
inline constexpr std::uint32_t kForkedChild = 0xFFFFFFFFu;

// Starts to record events in the recording with this number (rings::arm()).
void arm(std::uint32_t recording);
void disarm();

// Calls the function that after_fork_in_child() has set. Returns the number of the recording that the function started, 0 for
// none.
std::uint32_t first_event();
// The calling thread's ring while NVTX is recorded, else null.
inline Ring* ring_if_recording() {
  std::uint32_t number = armed.load(std::memory_order_acquire);
  if (number == kForkedChild) number = first_event();
  return number != 0 ? rings::of_this_thread(number, EventSource::nvtx) : nullptr;
}

// A part of the collector that follows the ranges of the program during a recording, on the threads of the ranges.
class RangeFollower {
 public:
  // `key` identifies the range among all open ranges. The follower gets no ranges of domains without a depth counter.
  virtual void range_began(std::uint64_t key, std::uint16_t domain, std::string_view name) noexcept = 0;
  virtual void range_ended(std::uint64_t key, std::uint64_t time) noexcept = 0;

 protected:
  ~RangeFollower() = default;
};
// Null when nothing follows ranges, the usual case.
extern std::atomic<RangeFollower*> range_follower;

// Registered strings and domains live as long as the process, because a program keeps its handles for the next recording.
// Numbers count from 1; 0 is the default domain, or no string.
std::uint32_t register_string(std::string_view text);
std::uint16_t register_domain(std::string_view name);
std::string_view registered_string(std::uint32_t number);
std::string_view domain_name(std::uint16_t number);
std::uint64_t registrations_refused();

// Around fork(): the child must not inherit the registry's lock from another thread.
void before_fork();
void after_fork_in_parent();  // in the child, too
// The first event of the child calls `start`, unless it is null. `start` may arm.
void after_fork_in_child(void (*start)());

// Record events of CUDA graphs on the thread that makes the nodes, in order with its ranges. For a copied node CUPTI reports two
// events: its creation, then its copying.
void graph_node_created(std::uint64_t node);
void graph_node_copied(std::uint64_t node, std::uint64_t original);
void graph_instantiated(std::uint32_t graph);

// Records a mark of cutrace in the default domain.
void cutrace_mark(std::string_view text);

// A range of cutrace around a function of Python. In the capture it has the default domain. Here it has a separate stack, because
// a program may leave ranges open at the end of a function.
void push(std::string_view name);
void pop();

// Fills NVTX's callback tables. False when there are none.
bool install(NvtxGetExportTableFunc_t get_export_table);
// Fills the tables of an extension module. False for unrecorded modules and versions.
bool install_extension(const nvtxExtModuleInfo_t& module);

}  // namespace cutrace::nvtx
