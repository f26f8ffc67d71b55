// The Python frames of the calling thread, read without Python's lock.
//
// The library does not link Python and touches no reference count. A thread reads only its own frames. These frames do not change
// while the thread is in a call of C code, with or without the lock, and they keep their code objects alive. Notes about the
// address of a code object become invalid when the object dies: see code_deaths.h.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "python_layout.h"

namespace cutrace::python {

// A place in the code of a frame. Equal positions have the same file, function and line while their code object lives.
struct FramePosition {
  std::uint64_t code;
  // The address of the instruction, with kInGenerator in frames of generators. In 3.10: the number of the instruction, and in
  // the upper half the line that a tracer has set.
  std::uint64_t instruction;

  static constexpr std::uint64_t kInGenerator = 1;
};

// The largest number of frames of a stack. Only the innermost frames of a deeper stack are read.
inline constexpr std::uint32_t kMostFrames = 256;

struct WalkedFrames {
  std::uint32_t count = 0;
  bool truncated = false;
  // A frame that the interpreter did not make, such as a frame of compiled code. Its instruction has no meaning here.
  bool foreign = false;
};

// Access to the interpreter. Set once, by find_interpreter().
struct InterpreterAccess {
  std::uint32_t version = kNone;  // index into kLayouts
  void* (*this_thread_state)() = nullptr;
  int (*is_initialized)() = nullptr;
  const void* runtime = nullptr;
  void* code_type = nullptr;
};
extern InterpreterAccess interpreter;

// Looks for a CPython interpreter with readable frames. Returns the reason why there is none, or "". Reads no frame.
std::string find_interpreter();

template <typename T>
T read_at(const void* object, std::uint32_t offset) {
  T value;
  std::memcpy(&value, static_cast<const std::uint8_t*>(object) + offset, sizeof value);
  return value;
}

// Before 3.12, the known state of a thread inside a subinterpreter is still its first state, which has other frames.
inline bool may_be_in_subinterpreter() {
  const std::uint32_t offset = kLayouts[interpreter.version].interpreters;
  return offset != kNone && read_at<std::int64_t>(interpreter.runtime, offset) > 1;
}

template <std::size_t version, typename Visit>
WalkedFrames walk_version(const void* state, Visit&& visit) {
  constexpr const PythonLayout& kLayout = kLayouts[version];
  WalkedFrames walked;
  const void* frame = read_at<const void*>(state, kLayout.current_frame);
  if constexpr (kLayout.in_cframe != kNone) frame = frame != nullptr ? read_at<const void*>(frame, kLayout.in_cframe) : nullptr;
  for (; frame != nullptr; frame = read_at<const void*>(frame, kLayout.previous)) {
    FramePosition position{};
    std::uint8_t owner = 0;
    if constexpr (kLayout.owner != kNone) owner = read_at<std::uint8_t>(frame, kLayout.owner);
    if (owner >= kLayout.first_entry) continue;
    if (owner == kOwnedByFrameObject) walked.foreign = true;
    // From 3.13 on the lowest bits of references are tags.
    constexpr std::uint64_t kTags = kLayout.minor >= 13 ? 3 : 0;
    position.code = read_at<std::uint64_t>(frame, kLayout.code) & ~kTags;
    position.instruction = read_at<std::uint64_t>(frame, kLayout.instruction);
    if (owner == kOwnedByGenerator) position.instruction |= FramePosition::kInGenerator;
    if (walked.count == kMostFrames) {
      walked.truncated = true;
      break;
    }
    ++walked.count;
    if (!visit(position)) break;
  }
  return walked;
}

// Calls visit(position) for each frame of the calling thread, innermost first, until it returns false. `state` is the result of
// interpreter.this_thread_state(), not null. Some positions are hidden: see read_frame().
template <typename Visit>
WalkedFrames walk_frames(const void* state, Visit&& visit) {
  switch (kLayouts[interpreter.version].minor) {
    case 10: return walk_version<0>(state, std::forward<Visit>(visit));
    case 11: return walk_version<1>(state, std::forward<Visit>(visit));
    case 12: return walk_version<2>(state, std::forward<Visit>(visit));
    case 13: return walk_version<3>(state, std::forward<Visit>(visit));
    case 14: return walk_version<4>(state, std::forward<Visit>(visit));
    default: return walk_version<5>(state, std::forward<Visit>(visit));
  }
}

// File, function and line of a position, in UTF-8. Longer names are truncated after a whole character.
struct FrameText {
  std::array<char, 4096> file;
  std::array<char, 1024> function;
  std::uint32_t file_bytes = 0;
  std::uint32_t function_bytes = 0;
  std::uint32_t line = 0;  // 0: the instruction has no line

  std::string_view file_name() const { return {file.data(), file_bytes}; }
  std::string_view function_name() const { return {function.data(), function_bytes}; }
};

// `hidden`: Python itself does not show this frame, because it has not started. `unreadable`: the memory is not as expected.
enum class FrameKind : std::uint8_t { shown, hidden, unreadable };

// Reads a position of a frame of the calling thread.
FrameKind read_frame(const FramePosition& position, FrameText& text);

// The UTF-8 of a Python string; a lone surrogate becomes U+FFFD. False when the object is not as expected.
bool read_string(const void* string, char* out, std::size_t room, std::uint32_t& bytes);

}  // namespace cutrace::python
