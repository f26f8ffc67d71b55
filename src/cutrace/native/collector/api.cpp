// The entry points: C API, CUDA injection, NVTX injection; and what happens at fork and at exit.
#include "api.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "clock.h"
#include "cupti_source.h"
#include "driver.h"
#include "dump.h"
#include "nvtx.h"
#include "nvtx_ring.h"
#include "recording.h"

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "0"
#endif

namespace cutrace {
namespace {

// Never destroyed: threads of the program may still call in while the process exits. The mutex is held for moments only,
// so that fork() never waits for a disk or for CUPTI: a recording starts and stops outside of it, while `changing` is set.
struct State {
  std::mutex mutex;
  std::shared_ptr<Recording> recording;  // under mutex, as all below
  std::shared_ptr<Recording> last;       // the one before: its threads may not have left
  bool changing = false;                 // a thread starts or stops the recording
  struct cutrace_stats last_stats {};    // of the recording that ended last
  std::vector<std::string> last_notes;   // likewise
  const char* inherited = nullptr;       // in a forked child: options of the parent's recording
  bool hooks = false;
};

// Made when the library is loaded, like all that lives as long as the process: a static of a function may be half made by
// another thread when the program forks, and the child would wait for that thread.
State& the_state = *new State;
State& state() { return the_state; }

// A plain array: exit handlers run after the thread's C++ objects are gone.
thread_local char last_error[1024] = "";

int fail(std::string_view message) {
  const std::size_t size = std::min(message.size(), sizeof last_error - 1);
  std::memcpy(last_error, message.data(), size);
  last_error[size] = '\0';
  return 1;
}

int succeed() {
  last_error[0] = '\0';
  return 0;
}

// Calls from C must not see exceptions; the only one left is a lack of memory.
template <typename Body>
int guarded(Body&& body) {
  try {
    return body();
  } catch (const std::exception&) {
    return fail("the collector got no memory; the recording goes on");
  }
}

void copy_counters(const Recording& recording, struct cutrace_stats& out) {
  const Counters& c = recording.counters();
  out.rows_written = c.rows;
  out.bytes_written = c.bytes;
  out.records_dropped = c.dropped;
  out.records_discarded = c.discarded;
  out.nvtx_events = c.nvtx_events;
  out.memory_bytes = c.memory;
  out.blocks_written = c.blocks;
}

std::shared_ptr<Recording> current() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.changing ? nullptr : s.recording;
}

bool running() {
  const auto recording = current();
  return recording != nullptr && recording->running();
}

int none_running() { return fail("no recording is running in this process; start one first"); }

// The right to start or stop the recording, until the end of a scope.
class Change {
 public:
  // Waits so long for another thread to give it back.
  explicit Change(unsigned milliseconds) {
    State& s = state();
    for (unsigned waited = 0; !held_; ++waited) {
      {
        const std::lock_guard lock(s.mutex);
        held_ = !std::exchange(s.changing, true);
      }
      if (held_ || waited == milliseconds) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~Change() {
    const std::lock_guard lock(state().mutex);
    if (held_) state().changing = false;
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  bool held() const { return held_; }
  const std::shared_ptr<Recording>& recording() const { return state().recording; }
  void set_recording(std::shared_ptr<Recording> recording) const {
    const std::lock_guard lock(state().mutex);
    state().recording.swap(recording);
  }
  // False and a sentence in `error` when the recording does not end in order.
  bool stop(bool at_exit, std::string& error) const {
    State& s = state();
    const std::shared_ptr<Recording> ending = s.recording;
    const bool in_order = ending->stop(at_exit, error);
    const std::lock_guard lock(s.mutex);
    copy_counters(*ending, s.last_stats);
    s.last_notes = ending->take_notes();
    s.last = ending->writes() ? ending : nullptr;
    s.recording = nullptr;
    return in_order;
  }

 private:
  bool held_ = false;
};

int stop(bool at_exit) {
  const Change change(0);
  if (!change.held() || change.recording() == nullptr) return none_running();
  std::string error;
  return change.stop(at_exit, error) ? succeed() : fail(error);
}

// Nothing happens when another thread starts or stops the recording: exit() does not wait for it.
void at_exit() {
  guarded([] {
    const bool recording = current() != nullptr;
    const int failed = stop(true);
    if (failed && recording) std::fprintf(stderr, "cutrace: %s\n", last_error);
    return failed;
  });
}

int start(const char* text);

void before_fork() {
  state().mutex.lock();
  CuptiSource::instance().before_fork();
  nvtx::before_fork();
}
void after_fork_in_parent() {
  nvtx::after_fork_in_parent();
  CuptiSource::instance().after_fork();
  if (state().recording != nullptr) state().recording->count_fork();
  state().mutex.unlock();
}
// The first NVTX event of a forked child starts a recording of its own, in the folder of the parent's.
void start_in_child() {
  const int failed = guarded([] {
    const int status = start(state().inherited);
    if (const auto recording = current()) recording->note_nvtx();
    return status;
  });
  if (failed) std::fprintf(stderr, "cutrace: %s\n", last_error);
}
// The child has none of the collector's threads, and CUPTI would hang in it. It forgets the recording: no CUPTI call, no
// flush, no join.
void after_fork_in_child() {
  State& s = state();
  DumpSignal::release();
  CuptiSource::instance().after_fork();
  CuptiSource::instance().forget();
  if (s.recording != nullptr) s.inherited = Recording::forget(std::move(s.recording));
  nvtx::after_fork_in_child(s.inherited != nullptr ? start_in_child : nullptr);
  s.last = nullptr;
  s.changing = false;
  s.mutex.unlock();
}

int start(const char* text) {
  Options options;
  std::string error;
  if (!parse_options(text != nullptr ? text : "", options, error)) return fail(error);
  State& s = state();
  const Change change(options.patience_ms);
  if (!change.held()) return fail("another thread starts or stops the recording of this process; start again after that");
  if (change.recording() != nullptr) {
    if (change.recording()->running())
      return fail("a recording is already running in this process; stop it before starting another");
    change.stop(false, error);  // it has failed
  }
  if (s.last != nullptr && s.last->writes())
    return fail("the recording before this one has not ended, because its disk does not answer; start again when it does");
  if (!std::exchange(s.hooks, true)) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    std::atexit(at_exit);
  }
  const auto recording = std::make_shared<Recording>(options);
  change.set_recording(recording);  // for a fork meanwhile
  try {
    if (Recording::start(recording, error)) return succeed();
  } catch (const std::exception&) {
    change.set_recording(nullptr);
    throw;
  }
  change.set_recording(nullptr);
  return fail(error);
}

// Starts what CUTRACE_OPTIONS asks for unless a recording runs. The one that runs afterwards, or null.
std::shared_ptr<Recording> start_from_environment() {
  if (auto recording = current()) return recording;
  const char* text = std::getenv("CUTRACE_OPTIONS");
  if (text == nullptr || *text == '\0') return nullptr;
  const bool started = start(text) == 0;
  auto recording = current();
  if (!started && recording == nullptr) std::fprintf(stderr, "cutrace: %s\n", last_error);
  return recording;
}

// What cutrace_cut() and cutrace_dump() return.
int make_file(const char* path, Outcome (Recording::*make)(const std::string&, std::string&)) {
  constexpr int kNothing = 2;
  const int status = guarded([&] {
    if (path == nullptr || *path == '\0') return fail("a path is needed for the capture");
    const auto recording = current();
    if (recording == nullptr) return none_running();
    std::string error;
    switch ((recording.get()->*make)(path, error)) {
      case Outcome::done: return succeed();
      case Outcome::nothing: return succeed(), kNothing;
      case Outcome::failed: break;
    }
    return fail(error);
  });
  return status == kNothing ? 1 : -status;
}

}  // namespace
}  // namespace cutrace

using cutrace::fail;
using cutrace::guarded;
using cutrace::state;
using cutrace::succeed;

extern "C" {

int cutrace_start(const char* options) {
  return guarded([&] {
    if (const int failed = cutrace::start(options)) return failed;
    // Without a driver in the process, CUPTI waits for InitializeInjection().
    if (const auto recording = cutrace::current(); recording != nullptr && cutrace::driver_is_loaded())
      recording->attach_cupti(false);
    return succeed();
  });
}

int cutrace_stop(void) {
  return guarded([] { return cutrace::stop(false); });
}

int cutrace_flush(void) {
  return guarded([] {
    const auto recording = cutrace::current();
    if (recording == nullptr) return cutrace::none_running();
    std::string error;
    return recording->flush(error) == cutrace::Outcome::done ? succeed() : fail(error);
  });
}

int cutrace_synchronize(void) {
  return guarded([] {
    const auto recording = cutrace::current();
    std::string error;
    return recording == nullptr || recording->synchronize(error) == cutrace::Outcome::done ? succeed() : fail(error);
  });
}

int cutrace_cut(const char* path) { return cutrace::make_file(path, &cutrace::Recording::cut); }
int cutrace_dump(const char* path) { return cutrace::make_file(path, &cutrace::Recording::dump); }

int cutrace_mark(const char* text) {
  return guarded([&] {
    if (!cutrace::running()) return cutrace::none_running();
    if (cutrace::nvtx::armed.load() == 0) return fail("marks need NVTX recording; leave nvtx=0 out of the options");
    cutrace::nvtx::cutrace_mark(text != nullptr ? text : "");
    return succeed();
  });
}

uint64_t cutrace_now(void) { return cutrace::now_ns(); }

int cutrace_stats(struct cutrace_stats* stats, size_t size) {
  return guarded([&] {
    if (stats == nullptr || size < sizeof stats->size) return fail("cutrace_stats() needs a struct to fill");
    auto& s = state();
    const std::lock_guard lock(s.mutex);
    struct cutrace_stats now = s.last_stats;
    if (s.recording != nullptr) cutrace::copy_counters(*s.recording, now);
    auto& source = cutrace::CuptiSource::instance();
    now.size = std::min(size, sizeof now);
    now.buffers_requested = source.pool().requested();
    now.buffers_completed = source.pool().completed();
    now.state = s.recording != nullptr && s.recording->running() ? 1 : 0;
    now.cupti_active = s.recording != nullptr && s.recording->uses_cupti() && source.active() ? 1 : 0;
    std::memcpy(stats, &now, static_cast<size_t>(now.size));
    return succeed();
  });
}

const char* cutrace_notes(void) {
  // A plain array: exit handlers run after the thread's C++ objects are gone.
  static thread_local char text[4096];
  text[0] = '\0';
  guarded([&] {
    auto& s = state();
    std::shared_ptr<cutrace::Recording> recording;
    std::vector<std::string> notes;
    {
      const std::lock_guard lock(s.mutex);
      recording = s.recording;
      if (recording == nullptr) notes = s.last_notes;
    }
    if (recording != nullptr) notes = recording->notes();
    std::string joined;
    for (const std::string& note : notes) joined += (joined.empty() ? "" : "\n") + note;
    const std::size_t size = std::min(joined.size(), sizeof text - 1);
    std::memcpy(text, joined.data(), size);
    text[size] = '\0';
    return 0;
  });
  return text;
}

const char* cutrace_last_error(void) { return cutrace::last_error; }
const char* cutrace_version(void) { return CUTRACE_VERSION; }
int cutrace_running(void) {
  return guarded([] { return cutrace::running() ? 1 : 0; });
}

// The driver calls this inside cuInit() of a program started with CUDA_INJECTION64_PATH.
CUTRACE_EXPORT int InitializeInjection(void) {
  guarded([] {
    if (const auto recording = cutrace::start_from_environment()) recording->attach_cupti(true);
    return 0;
  });
  return 1;
}

// NVTX calls this at the first NVTX call of each shared object, with NVTX_INJECTION64_PATH set. The callbacks are
// installed in any case: a recording may start later in this process.
CUTRACE_EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  int installed = 0;
  guarded([&] {
    installed = cutrace::nvtx::install(get_export_table) ? 1 : 0;
    if (installed == 0) return 0;
    if (const auto recording = cutrace::start_from_environment()) recording->note_nvtx();
    return 0;
  });
  return installed;
}

}  // extern "C"
