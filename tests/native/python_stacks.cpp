// A library for tests and benchmarks in Python: captures of the calling thread's stack without a recording. Definitions go into
// memory of the thread and not into a ring.
//
// tests/support/pystacks.py builds and loads it, also for interpreters that cannot load the package.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collector/features/stacks/code_deaths.h"
#include "collector/features/stacks/interpreter_check.h"
#include "collector/features/stacks/python_frames.h"
#include "collector/features/stacks/thread_stacks.h"

using namespace cutrace::python;

namespace {

std::atomic<std::size_t> table_memory{std::size_t{64} << 20};
std::atomic<std::uint64_t> results[static_cast<std::size_t>(Captured::count)];
std::atomic<std::uint64_t> truncated{0};

struct Definitions final : StackSink {
  struct Node {
    std::uint32_t parent, frame;
  };

  bool forget() override {
    frames.assign(1, {});
    nodes.assign(1, {});
    ++forgotten;
    return true;
  }
  bool define_frame(std::uint32_t number, const FrameText& text) override {
    if (number != frames.size()) abort();
    std::string row(text.file_name());
    row += '\t';
    row += text.function_name();
    row += '\t' + std::to_string(text.line) + '\n';
    frames.push_back(std::move(row));
    return true;
  }
  bool define_stack(std::uint32_t number, std::uint32_t parent, std::uint32_t frame) override {
    if (number != nodes.size() || parent >= number || frame >= frames.size()) abort();
    nodes.push_back({parent, frame});
    return true;
  }

  std::vector<std::string> frames;
  std::vector<Node> nodes;
  std::uint64_t forgotten = 0;
};

// Not a thread-local C++ object, because a capture may come after the destructors of the thread.
thread_local Definitions* definitions = nullptr;
Definitions& own_definitions() {
  if (definitions == nullptr) definitions = new Definitions;
  return *definitions;
}

std::atomic<std::uint32_t> recording{1};
thread_local volatile bool capturing = false;

std::uint32_t capture() {
  if (trust() != Trust::trusted) return 0;
  const bool nested = capturing;
  capturing = true;
  Definitions& sink = own_definitions();
  const CapturedStack captured = capture_stack(sink, {&sink, recording.load(std::memory_order_relaxed)}, table_memory.load());
  results[static_cast<std::size_t>(captured.result)].fetch_add(1, std::memory_order_relaxed);
  if (captured.truncated) truncated.fetch_add(1, std::memory_order_relaxed);
  capturing = nested;
  return captured.number;
}

std::uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// Looks for the interpreter and checks it; called with Python's lock. Returns the problem, "" for none.
EXPORT const char* stacks_start() {
  static std::string problem;
  problem = find_interpreter();
  if (!problem.empty()) return problem.c_str();
  if (check_interpreter() != Trust::trusted) return refusal().data();
  watch_code_deaths(interpreter.code_type);
  return "";
}
// Requests the check as a recording does. The main thread does the check when it runs Python code again.
EXPORT const char* stacks_ask() {
  static std::string problem;
  problem = find_interpreter();
  if (problem.empty() && !ask_for_check(nullptr)) problem = "the interpreter takes no request now";
  if (problem.empty()) watch_code_deaths(interpreter.code_type);
  return problem.c_str();
}
EXPORT int stacks_trust() { return static_cast<int>(trust()); }
EXPORT void stacks_watch(int on) { on != 0 ? watch_code_deaths(interpreter.code_type) : unwatch_code_deaths(); }
EXPORT void stacks_limit_memory(std::size_t bytes) { table_memory.store(bytes); }
EXPORT void stacks_next_recording() { recording.fetch_add(1); }
EXPORT void stacks_close() { close_captures(); }

EXPORT std::uint32_t stacks_capture() { return capture(); }
// Writes "file\tfunction\tline\n" for each frame of the stack with this number of the calling thread, innermost first. Returns
// the number of bytes.
EXPORT std::size_t stacks_read(std::uint32_t number, char* out, std::size_t room) {
  const Definitions& own = own_definitions();
  std::size_t size = 0;
  for (; number != 0 && number < own.nodes.size(); number = own.nodes[number].parent) {
    const std::string& row = own.frames[own.nodes[number].frame];
    if (size + row.size() > room) abort();
    std::memcpy(out + size, row.data(), row.size());
    size += row.size();
  }
  return size;
}
// Indices are in the order of `Captured`.
EXPORT std::uint64_t stacks_results(int result) { return results[result].load(); }
EXPORT std::uint64_t stacks_truncated() { return truncated.load(); }
EXPORT std::uint64_t stacks_forgotten() { return own_definitions().forgotten; }
EXPORT std::uint32_t stacks_epoch() { return code_epoch(); }
EXPORT std::size_t stacks_memory() { return stack_tables_memory(); }
EXPORT void stacks_after_fork() { forget_threads_after_fork(); }

// Captures until *stop is not 0, without Python's lock if the caller has released it. Returns the last number. *numbers is the
// number of changes of the number.
EXPORT std::uint32_t stacks_capture_until(const volatile int* stop, std::uint32_t* numbers) {
  std::uint32_t last = capture();
  *numbers = 1;
  while (*stop == 0) {
    const std::uint32_t number = capture();
    if (number != last) ++*numbers;
    last = number;
  }
  return last;
}

// Captures on a new thread of C, which has no Python state.
EXPORT std::uint32_t stacks_capture_on_c_thread() {
  std::uint32_t number = 99;
  const auto run = [](void* out) -> void* {
    *static_cast<std::uint32_t*>(out) = capture();
    return nullptr;
  };
  pthread_t thread;
  pthread_create(&thread, nullptr, run, &number);
  pthread_join(thread, nullptr);
  return number;
}
// Calls a function on a new thread of C, as a library with callbacks does. Returns the result of a capture after the call.
EXPORT std::uint32_t stacks_call_on_c_thread(void (*function)()) {
  struct Call {
    void (*function)();
    std::uint32_t after;
  } call{function, 99};
  const auto run = [](void* argument) -> void* {
    auto& own = *static_cast<Call*>(argument);
    own.function();
    own.after = capture();
    return nullptr;
  };
  pthread_t thread;
  pthread_create(&thread, nullptr, run, &call);
  pthread_join(thread, nullptr);
  return call.after;
}

// ---- signals of C that interrupt the interpreter anywhere ----

static std::atomic<bool> signals_on{false};
static std::atomic<std::uint64_t> signals{0};
static pthread_t signal_sender;

// Outside a capture the interpreter may be entering a function, and then its frames cannot be read.
static void on_signal(int) {
  signals.fetch_add(1);
  if (capturing) capture();
}
// A thread sends this one signals until stacks_end_signals().
EXPORT void stacks_begin_signals() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  signals_on.store(true);
  const auto send = [](void* to) -> void* {
    while (signals_on.load()) {
      pthread_kill(reinterpret_cast<pthread_t>(to), SIGUSR1);
      const timespec pause{0, 5000};
      nanosleep(&pause, nullptr);
    }
    return nullptr;
  };
  pthread_create(&signal_sender, nullptr, send, reinterpret_cast<void*>(pthread_self()));
}
EXPORT void stacks_end_signals() {
  signals_on.store(false);
  pthread_join(signal_sender, nullptr);
}
EXPORT std::uint64_t stacks_signals() { return signals.load(); }

// ---- costs: nanoseconds of one capture ----

EXPORT double stacks_time_known(int count) {
  capture();
  const std::uint64_t start = now();
  for (int i = 0; i < count; ++i) capture();
  return static_cast<double>(now() - start) / count;
}
// The program touches `bytes` of memory between two captures.
EXPORT double stacks_time_cold(int count, std::size_t bytes) {
  const auto other = std::make_unique<volatile char[]>(bytes);
  std::uint64_t sum = 0;
  capture();
  for (int i = 0; i < count; ++i) {
    for (std::size_t at = 0; at < bytes; at += 64) other[at] = static_cast<char>(i);
    const std::uint64_t start = now();
    capture();
    sum += now() - start;
  }
  return static_cast<double>(sum) / count;
}
// No frame of the stack is known.
EXPORT double stacks_time_new(int count) {
  std::uint64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    raise_code_epoch();
    const std::uint64_t start = now();
    capture();
    sum += now() - start;
  }
  return static_cast<double>(sum) / count;
}
// One capture.
EXPORT double stacks_time_once() {
  const std::uint64_t start = now();
  capture();
  return static_cast<double>(now() - start);
}
EXPORT double stacks_time_clock(int count) {
  std::uint64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t start = now();
    sum += now() - start;
  }
  return static_cast<double>(sum) / count;
}

}  // extern "C"
