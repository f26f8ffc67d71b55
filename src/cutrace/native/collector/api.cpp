// The entry points (C API, CUDA injection, NVTX injection), and the handlers of fork and exit.
#include "api.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
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
#include "recording.h"

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "0"
#endif

namespace cutrace {
namespace {

// The mutex is held only briefly, so that fork() never waits for a disk or for CUPTI: a recording starts and stops without
// it, while `changing` is set.
struct ProcessState {
  std::mutex mutex;
  std::shared_ptr<Recording> recording;  // under mutex, like all members below
  std::shared_ptr<Recording> last;       // the recording before, while its threads run
  bool changing = false;                 // a thread starts or stops the recording
  struct cutrace_stats last_stats {};    // of the recording that ended last
  std::vector<std::string> last_notes;   // of the recording that ended last
  const char* inherited = nullptr;       // in a forked child: options of the parent's recording
  bool hooks = false;
};

// Never destroyed: threads of the program may still call in while the process exits. Constructed when the library is
// loaded: if another thread were inside the constructor of a function-local static at fork, the child would wait forever.
ProcessState& process = *new ProcessState;

// Plain arrays: exit handlers run after the thread's C++ objects are gone.
thread_local char last_error[1024] = "";
thread_local char last_notes[4096] = "";

template <std::size_t N>
void assign(char (&text)[N], std::string_view value) {
  const std::size_t size = std::min(value.size(), N - 1);
  std::memcpy(text, value.data(), size);
  text[size] = '\0';
}

int fail(std::string_view message) { return assign(last_error, message), 1; }
int succeed() { return assign(last_error, ""), 0; }
int none_running() { return fail("no recording is running in this process; start one first"); }

// C callers must not see exceptions. The only possible one is bad_alloc.
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
  const std::lock_guard lock(process.mutex);
  return process.changing ? nullptr : process.recording;
}

bool running() {
  const auto recording = current();
  return recording != nullptr && recording->running();
}

// The exclusive right to start or stop the recording, until the end of a scope.
class StartStopGuard {
 public:
  // Waits up to this long for another thread to release it.
  explicit StartStopGuard(unsigned milliseconds) {
    while (!(held_ = set_changing(true)) && milliseconds-- != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~StartStopGuard() {
    if (held_) set_changing(false);
  }
  StartStopGuard(const StartStopGuard&) = delete;
  StartStopGuard& operator=(const StartStopGuard&) = delete;

  bool held() const { return held_; }
  void set_recording(std::shared_ptr<Recording> recording) const {
    const std::lock_guard lock(process.mutex);
    process.recording.swap(recording);
  }
  // Ends the recording. Fails when it did not end in order.
  int stop(bool at_exit) const {
    const std::shared_ptr<Recording> ending = process.recording;
    const std::string_view error = ending->stop(at_exit);
    const std::lock_guard lock(process.mutex);
    copy_counters(*ending, process.last_stats);
    process.last_notes = ending->notes().take_sentences();
    process.last = ending->writes() ? ending : nullptr;
    process.recording = nullptr;
    return error.empty() ? succeed() : fail(error);
  }

 private:
  static bool set_changing(bool changing) {
    const std::lock_guard lock(process.mutex);
    return std::exchange(process.changing, changing) != changing;
  }
  bool held_ = false;
};

int stop(bool at_exit) {
  const StartStopGuard guard(0);
  return guard.held() && process.recording != nullptr ? guard.stop(at_exit) : none_running();
}

// Does nothing while another thread starts or stops the recording: exit() does not wait for that thread.
void at_exit() {
  const bool recording = current() != nullptr;
  if (stop(true) != 0 && recording) std::fprintf(stderr, "cutrace: %s\n", last_error);
}

int start(const char* text);

void before_fork() {
  process.mutex.lock();
  CuptiSource::instance().before_fork();
  nvtx::before_fork();
}
void after_fork_in_parent() {
  nvtx::after_fork_in_parent();
  CuptiSource::instance().after_fork();
  if (process.recording != nullptr) process.recording->count_fork();
  process.mutex.unlock();
}
// The first NVTX event of a forked child starts a new recording in the folder of the parent's recording.
void start_in_child() {
  const int failed = guarded([] {
    const int status = start(process.inherited);
    if (const auto recording = current()) recording->note_nvtx();
    return status;
  });
  if (failed) std::fprintf(stderr, "cutrace: %s\n", last_error);
}
// The child does not have the collector's threads, and CUPTI would hang in it. So the child drops the recording without a
// CUPTI call, a flush or a join.
void after_fork_in_child() {
  dump_signal::release();
  CuptiSource::instance().after_fork();
  CuptiSource::instance().forget();
  if (process.recording != nullptr) process.inherited = Recording::forget(std::move(process.recording));
  nvtx::after_fork_in_child(process.inherited != nullptr ? start_in_child : nullptr);
  process.last = nullptr;
  process.changing = false;
  process.mutex.unlock();
}

int start(const char* text) {
  Options options;
  std::string error;
  if (!parse_options(text != nullptr ? text : "", options, error)) return fail(error);
  const StartStopGuard guard(options.patience_ms);
  if (!guard.held()) return fail("another thread is starting or stopping the recording of this process; try again later");
  if (process.recording != nullptr && process.recording->running())
    return fail("a recording is already running in this process; stop it before starting another");
  if (process.recording != nullptr) guard.stop(false);  // it has failed
  if (process.last != nullptr && process.last->writes())
    return fail("the previous recording has not ended, because its disk does not respond; start again when it does");
  if (!std::exchange(process.hooks, true)) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    std::atexit(at_exit);
  }
  const auto recording = std::make_shared<Recording>(options);
  guard.set_recording(recording);  // before start(), for a fork meanwhile
  try {
    if (recording->start(error)) return succeed();
  } catch (const std::exception&) {
    guard.set_recording(nullptr);
    throw;
  }
  guard.set_recording(nullptr);
  return fail(error);
}

// Starts a recording with CUTRACE_OPTIONS unless one runs. Returns the running recording, or null.
std::shared_ptr<Recording> start_from_environment() {
  if (auto recording = current()) return recording;
  const char* text = std::getenv("CUTRACE_OPTIONS");
  if (text == nullptr || *text == '\0') return nullptr;
  const bool started = start(text) == 0;
  auto recording = current();
  if (!started && recording == nullptr) std::fprintf(stderr, "cutrace: %s\n", last_error);
  return recording;
}

// The status of a request that had nothing to do.
constexpr int kNothing = 2;

template <typename Request>
int ask(Request&& request) {
  return guarded([&] {
    const auto recording = current();
    if (recording == nullptr) return none_running();
    std::string error;
    const Outcome outcome = std::invoke(request, *recording, error);
    if (outcome == Outcome::failed) return fail(error);
    return succeed(), outcome == Outcome::nothing ? kNothing : 0;
  });
}

// The status of cutrace_cut() and cutrace_dump().
int make_file(const char* path, Outcome (Recording::*make)(const std::string&, std::string&)) {
  if (path == nullptr || *path == '\0') return -fail("a path is needed for the capture");
  const int status = ask([&](Recording& recording, std::string& error) { return (recording.*make)(path, error); });
  return status == kNothing ? 1 : -status;
}

}  // namespace
}  // namespace cutrace

using namespace cutrace;

extern "C" {

int cutrace_start(const char* options) {
  return guarded([&] {
    if (const int failed = start(options)) return failed;
    // Without a driver in the process, CUPTI waits for InitializeInjection().
    if (const auto recording = current(); recording != nullptr && driver_is_loaded())
      recording->attach_cupti(false);
    return succeed();
  });
}

int cutrace_stop(void) { return stop(false); }

int cutrace_flush(void) { return ask(&Recording::flush); }
int cutrace_synchronize(void) { return current() == nullptr ? succeed() : ask(&Recording::synchronize); }
int cutrace_cut(const char* path) { return make_file(path, &Recording::cut); }
int cutrace_dump(const char* path) { return make_file(path, &Recording::dump); }

int cutrace_mark(const char* text) {
  if (!running()) return none_running();
  if (nvtx::armed.load() == 0) return fail("marks need NVTX recording; leave nvtx=0 out of the options");
  nvtx::cutrace_mark(text != nullptr ? text : "");
  return succeed();
}

uint64_t cutrace_now(void) { return now_ns(); }

int cutrace_stats(struct cutrace_stats* stats, size_t size) {
  if (stats == nullptr || size < sizeof stats->size) return fail("cutrace_stats() needs a struct to fill");
  const std::lock_guard lock(process.mutex);
  const auto& recording = process.recording;
  struct cutrace_stats now = process.last_stats;
  if (recording != nullptr) copy_counters(*recording, now);
  auto& source = CuptiSource::instance();
  now.size = std::min(size, sizeof now);
  now.buffers_requested = source.pool().requested();
  now.buffers_completed = source.pool().completed();
  now.state = recording != nullptr && recording->running() ? 1 : 0;
  now.cupti_active = recording != nullptr && recording->uses_cupti() && source.active() ? 1 : 0;
  std::memcpy(stats, &now, static_cast<size_t>(now.size));
  return succeed();
}

const char* cutrace_notes(void) {
  assign(last_notes, "");
  guarded([] {
    std::unique_lock lock(process.mutex);
    const auto recording = process.recording;
    std::vector<std::string> notes;
    if (recording == nullptr) notes = process.last_notes;
    lock.unlock();
    if (recording != nullptr) notes = recording->notes().sentences();
    std::string joined;
    for (const std::string& note : notes) joined += (joined.empty() ? "" : "\n") + note;
    assign(last_notes, joined);
    return 0;
  });
  return last_notes;
}

const char* cutrace_last_error(void) { return last_error; }
const char* cutrace_version(void) { return CUTRACE_VERSION; }
int cutrace_running(void) { return running() ? 1 : 0; }

// The driver calls this inside cuInit() of a program started with CUDA_INJECTION64_PATH.
CUTRACE_EXPORT int InitializeInjection(void) {
  guarded([] {
    if (const auto recording = start_from_environment()) recording->attach_cupti(true);
    return 0;
  });
  return 1;
}

// With NVTX_INJECTION64_PATH set, NVTX calls this at the first NVTX call of each shared object. The callbacks are always
// installed, because a recording may start later.
CUTRACE_EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  if (!nvtx::install(get_export_table)) return 0;
  guarded([] {
    if (const auto recording = start_from_environment()) recording->note_nvtx();
    return 0;
  });
  return 1;
}

}  // extern "C"
