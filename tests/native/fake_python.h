// Memory that looks like a CPython interpreter: a thread's frames, code objects and strings, at the offsets of a version.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collector/features/stacks/code_deaths.h"
#include "collector/features/stacks/python_frames.h"

namespace fake_python {

using namespace cutrace::python;

using Memory = std::array<std::uint8_t, 1024>;

template <typename T>
void write_at(Memory& memory, std::uint32_t offset, T value) {
  std::memcpy(memory.data() + offset, &value, sizeof value);
}

inline Memory code_type{};
inline Memory runtime{};
inline bool initialized = true;
inline thread_local void* state_of_thread = nullptr;
inline std::vector<void*> freed;  // the arguments of the deallocator

// The interpreter of this version, for all threads.
inline void install(std::uint32_t minor) {
  for (std::uint32_t i = 0; i < std::size(kLayouts); ++i)
    if (kLayouts[i].minor == minor) interpreter.version = i;
  interpreter.this_thread_state = [] { return state_of_thread; };
  interpreter.is_initialized = [] { return int{initialized}; };
  interpreter.runtime = runtime.data();
  interpreter.code_type = code_type.data();
  const std::uint32_t interpreters = kLayouts[interpreter.version].interpreters;
  if (interpreters != kNone) write_at(runtime, interpreters, std::int64_t{1});
  void (*const deallocate)(void*) = [](void* code) { freed.push_back(code); };
  write_at(code_type, kTypeDealloc, deallocate);
}

inline const PythonLayout& layout() { return kLayouts[interpreter.version]; }

// A string of Latin-1, UCS-2 or UCS-4 characters, or of ASCII.
struct String {
  Memory memory{};

  template <typename Unit>
  explicit String(std::basic_string_view<Unit> units, bool ascii = false) {
    const std::uint32_t kind = sizeof(Unit);
    write_at(memory, kStringState, std::uint32_t{kind << 2 | 1u << 5 | (ascii ? 1u << 6 : 0u)});
    write_at(memory, kStringLength, std::uint64_t{units.size()});
    const std::uint32_t head = ascii ? layout().ascii_head : layout().compact_head;
    std::memcpy(memory.data() + head, units.data(), units.size() * sizeof(Unit));
  }
  explicit String(const char* text) : String(std::string_view(text), true) {}
};

// A code object of 20 instructions. Without a table, all instructions are on line `first`.
struct Code {
  static constexpr std::uint32_t kInstructions = 20;

  Code(const char* file, const char* function, std::int32_t first, std::string_view lines = {})
      : file_(file), function_(function) {
    std::string table(lines);
    if (table.empty()) table = layout().minor == 10 ? std::string("\x28\x00", 2) : three_entries();
    write_at(table_, kBytesSize, std::uint64_t{table.size()});
    std::memcpy(table_.data() + kBytesData, table.data(), table.size());
    write_at(memory, kObjectType, static_cast<void*>(code_type.data()));
    write_at(memory, layout().file, static_cast<void*>(file_.memory.data()));
    write_at(memory, layout().name, static_cast<void*>(function_.memory.data()));
    write_at(memory, layout().line_table, static_cast<void*>(table_.data()));
    write_at(memory, layout().first_line, first);
    if (layout().first_traceable != kNone) write_at(memory, layout().first_traceable, std::int32_t{2});
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  void rename(const char* function) {
    function_ = String(function);
    write_at(memory, layout().name, static_cast<void*>(function_.memory.data()));
  }
  // Destroys the object, as Python does after the last reference.
  void die() {
    const auto deallocate = read_at<void (*)(void*)>(code_type.data(), kTypeDealloc);
    deallocate(memory.data());
  }

  Memory memory{};

 private:
  // Kind 13 (no columns), 8, 8 and 4 instructions, no change of line.
  static std::string three_entries() { return {"\xEF\x00\xEF\x00\xEB\x00", 6}; }

  String file_, function_;
  Memory table_{};
};

// The frames of a thread. The last entered frame is the innermost.
class Frames {
 public:
  // `instruction` counts from 0.
  void enter(const Code& code, std::uint32_t instruction = 4, std::uint8_t owner = 0) {
    auto frame = std::make_unique<Memory>();
    void* const previous = frames_.empty() ? nullptr : frames_.back()->data();
    write_at(*frame, layout().previous, previous);
    write_at(*frame, layout().code, reinterpret_cast<std::uint64_t>(code.memory.data()));
    set(*frame, code, instruction);
    if (layout().owner != kNone) write_at(*frame, layout().owner, owner);
    frames_.push_back(std::move(frame));
    publish();
  }
  void leave() {
    frames_.pop_back();
    publish();
  }
  void leave_all() {
    frames_.clear();
    publish();
  }
  // Moves the innermost frame to another instruction.
  void go_on(const Code& code, std::uint32_t instruction) { set(*frames_.back(), code, instruction); }

 private:
  static void set(Memory& frame, const Code& code, std::uint32_t instruction) {
    if (layout().minor == 10) return write_at(frame, layout().instruction, std::uint64_t{instruction});
    const auto bytecode = reinterpret_cast<std::uint64_t>(code.memory.data()) + layout().bytecode;
    write_at(frame, layout().instruction, bytecode + std::uint64_t{2} * instruction);
  }
  // On the calling thread, which is the owner.
  void publish() {
    void* const innermost = frames_.empty() ? nullptr : frames_.back()->data();
    if (layout().in_cframe == kNone) {
      write_at(state_, layout().current_frame, innermost);
    } else {
      write_at(c_frame_, layout().in_cframe, innermost);
      write_at(state_, layout().current_frame, static_cast<void*>(c_frame_.data()));
    }
    state_of_thread = state_.data();
  }

  Memory state_{}, c_frame_{};
  std::vector<std::unique_ptr<Memory>> frames_;
};

}  // namespace fake_python
