// Events of stacks in a thread's ring. Each thread has its own numbers of frames and nodes, and `stack_forget` makes them
// invalid. EventHead::number has the lower half of the number of the recording (rings.h), because a thread can add an event after
// its recording.
#pragma once

#include <cstdint>

#include "core/rings.h"

namespace cutrace {

// EventType::stack_forget
struct StackForgetEvent {
  EventHead head;
};

// EventType::stack_frame. The names follow, file first.
struct StackFrameEvent {
  EventHead head;
  std::uint32_t number;
  std::uint32_t line;
  std::uint32_t file_bytes;
  std::uint32_t function_bytes;
};

// EventType::stack_node, after the events of its parent and its frame.
struct StackNodeEvent {
  EventHead head;
  std::uint32_t number;
  std::uint32_t parent;  // 0: the outermost frame
  std::uint32_t frame;
  std::uint32_t unused;
};

// EventType::call_stack, after the event of its node.
struct CallStackEvent {
  EventHead head;
  std::uint32_t correlation;
  std::uint32_t node;
};
static_assert(sizeof(CallStackEvent) == 16);

}  // namespace cutrace
