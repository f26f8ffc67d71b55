// The reasons why calls of a recording have no stack, or only a part of it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cutrace {

enum class NoStack : std::uint8_t {
  no_python,   // the thread runs no Python code
  unchecked,   // the interpreter is not checked yet, or was refused
  closing,     // the interpreter ends
  nested,      // in a signal handler that interrupted a capture
  unreadable,  // the frames are not as expected
  no_memory,   // memory is short for the thread's tables or its ring
  count
};

// Any thread increments them, and the writer takes them.
struct StackCounts {
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(NoStack::count)> without{};
  std::atomic<std::uint64_t> truncated{0};

  void count(NoStack reason) { without[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed); }
};

}  // namespace cutrace
