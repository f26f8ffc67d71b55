// The stacks that a thread has taken, as numbers: tables of fixed size, and the guards around a capture.
//
// A known stack costs a walk over the frames and one look-up. A new stack is first defined to a StackSink: its frames and the
// nodes of the tree of stacks, each node after its parent. Numbers count from 1 and belong to the thread. When a table is full or
// a code object has died, the thread forgets all numbers and starts again after StackSink::forget().
//
// A capture takes no lock, not even Python's. It allocates only the thread's first tables, and larger tables when these are full.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "python_frames.h"

namespace cutrace::python {

// The receiver of definitions. Each function returns false for lack of room.
class StackSink {
 public:
  // Makes all earlier numbers invalid.
  virtual bool forget() = 0;
  virtual bool define_frame(std::uint32_t number, const FrameText& text) = 0;
  // `parent` 0: the outermost frame.
  virtual bool define_stack(std::uint32_t number, std::uint32_t parent, std::uint32_t frame) = 0;

 protected:
  ~StackSink() = default;
};

// The result of a capture.
enum class Captured : std::uint8_t {
  stack,
  no_python,    // the thread runs no Python code
  closing,      // the interpreter ends
  nested,       // in a signal handler that interrupted a capture
  unreadable,   // the frames are not as expected, or may belong to another interpreter
  no_memory,    // memory is short for the tables of the thread
  sink_is_full,
  count
};

struct CapturedStack {
  std::uint32_t number = 0;  // 0 unless `result` is `stack`
  Captured result = Captured::no_python;
  bool truncated = false;  // frames beyond kMostFrames are missing
};

// Identifies the reader of the definitions. Numbers are valid for one reader only.
struct StackReader {
  const void* sink = nullptr;
  std::uint32_t recording = 0;

  bool operator==(const StackReader&) const = default;
};

// Captures the calling thread's stack. The caller has checked the interpreter (interpreter_check.h). `memory` limits the tables
// of all threads.
CapturedStack capture_stack(StackSink& sink, const StackReader& reader, std::size_t memory);

// Call it before the interpreter frees the states of other threads. From then on only the calling thread takes stacks. Waits for
// running captures, for a second at most.
void close_captures();

// Bytes of all tables.
std::size_t stack_tables_memory();

// In the child: forgets the parent's threads and their captures.
void forget_threads_after_fork();

}  // namespace cutrace::python
