// The entry points: C API, CUDA injection, NVTX injection; and what happens at fork and at exit.
#include "api.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "cupti_source.h"
#include "driver.h"
#include "dump.h"
#include "nvtx.h"
#include "nvtx_ring.h"
#include "session.h"

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "0"
#endif

namespace cutrace {
namespace {

// Never destroyed: threads of the program may still call in while the process exits. The mutex is held for moments
// only, never while something waits for CUPTI: whoever needs the session takes a share of it.
struct State {
  std::mutex mutex;
  std::shared_ptr<Session> session;            // under mutex
  bool ending = false;                         // under mutex: a thread is inside stop
  struct cutrace_stats last {};                // under mutex: of the session that ended last
  std::string last_notes;                      // under mutex: likewise
  std::vector<std::shared_ptr<Session>> kept;  // under mutex: sessions that threads may use until the process ends
  std::atomic<bool> running{false};
  std::atomic<bool> forked{false};  // this is the child of a recorded process
  bool hooks = false;               // under mutex
};

State& state() {
  static auto* s = new State;
  return *s;
}

// A plain array: exit handlers run after the thread's C++ objects are gone.
thread_local char last_error[1024] = "";

int fail(const std::string& message) {
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
  } catch (const std::exception& e) {
    return fail(std::string("out of memory or threads: ") + e.what());
  }
}

void copy_stats(const Session& session, struct cutrace_stats& out) {
  const SessionStats& s = session.stats();
  out.rows_written = s.rows;
  out.bytes_written = s.bytes;
  out.records_dropped = s.dropped;
  out.records_discarded = s.discarded;
  out.nvtx_events = s.nvtx_events;
  out.memory_bytes = s.memory;
  out.blocks_written = s.blocks;
}

std::shared_ptr<Session> current_session() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.ending ? nullptr : s.session;
}

int no_session() { return fail("no recording is running in this process; start one first"); }

std::string join_notes(Session& session) {
  std::string text;
  for (const std::string& note : session.notes()) text += (text.empty() ? "" : "\n") + note;
  return text;
}

int stop(bool at_exit) {
  State& s = state();
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(s.mutex);
    if (s.session == nullptr || s.ending) return no_session();
    s.ending = true;
    session = s.session;
  }
  s.running.store(false);
  const bool orderly = session->stop(at_exit);
  const std::string notes = join_notes(*session);
  const std::lock_guard lock(s.mutex);
  copy_stats(*session, s.last);
  s.last_notes = notes;
  s.session = nullptr;
  s.ending = false;
  if (!orderly || at_exit) s.kept.push_back(session);
  if (!orderly)
    return fail("the recording ended, but a part of it did not answer in time; the capture may lack its last records");
  return session->close_error().empty() ? succeed() : fail(session->close_error());
}

// Nothing happens when another thread is inside stop: exit() does not wait for it.
void at_exit() {
  guarded([] {
    const bool running = state().running.load();
    const int failed = stop(true);
    if (failed && running) std::fprintf(stderr, "cutrace: %s\n", last_error);
    return failed;
  });
}

void before_fork() {
  state().mutex.lock();
  nvtx::before_fork();
}
void after_fork_in_parent() {
  nvtx::after_fork_in_parent();
  state().mutex.unlock();
}
// The child has none of the collector's threads, and CUPTI would hang in it. It forgets the recording: no CUPTI
// call, no flush, no join. Should CUDA start in the child, so does a recording of its own; NVTX alone starts none,
// or each worker process of a data loader would leave a file.
void after_fork_in_child() {
  State& s = state();
  nvtx::after_fork_in_child();
  DumpSignal::forget();
  CuptiSource::instance().forget();
  if (s.session != nullptr) {
    const int fd = s.session->descriptor();
    if (fd >= 0) ::close(fd);
    s.forked.store(true);
    s.kept.push_back(std::move(s.session));
  }
  s.session = nullptr;
  s.ending = false;
  s.running.store(false);
  s.mutex.unlock();
}

void install_hooks_locked(State& s) {
  if (s.hooks) return;
  s.hooks = true;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  std::atexit(at_exit);
}

int start(const char* text) {
  Options options;
  std::string error;
  if (!parse_options(text != nullptr ? text : "", options, error)) return fail(error);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.session != nullptr)
    return fail("a recording is already running in this process; stop it before starting another");
  install_hooks_locked(s);
  s.session = Session::start(options, error);
  if (s.session == nullptr) return fail(error);
  s.running.store(true);
  return succeed();
}

// Starts what CUTRACE_OPTIONS asks for unless a recording runs. True when one runs afterwards.
bool start_from_environment() {
  if (state().running.load()) return true;
  const char* text = std::getenv("CUTRACE_OPTIONS");
  if (text == nullptr || *text == '\0') return false;
  if (start(text) == 0) return true;
  if (!state().running.load()) std::fprintf(stderr, "cutrace: %s\n", last_error);
  return state().running.load();
}

// What cutrace_cut() and cutrace_dump() return.
int make_file(const char* path, Session::Cut (Session::*make)(const std::string&, std::string&)) {
  constexpr int kNothing = 2;
  const int status = guarded([&] {
    if (path == nullptr || *path == '\0') return fail("a path is needed for the capture");
    const auto session = current_session();
    if (session == nullptr) return no_session();
    std::string error;
    switch ((session.get()->*make)(path, error)) {
      case Session::Cut::done: return succeed();
      case Session::Cut::nothing: return succeed(), kNothing;
      case Session::Cut::failed: break;
    }
    return fail(error);
  });
  return status == kNothing ? 1 : -status;
}

void attach_cupti(bool before_cuda) {
  if (const std::shared_ptr<Session> session = current_session()) session->attach_cupti(before_cuda);
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
    if (cutrace::driver_is_loaded()) cutrace::attach_cupti(false);
    return succeed();
  });
}

int cutrace_stop(void) {
  return guarded([] { return cutrace::stop(false); });
}

int cutrace_flush(void) {
  return guarded([] {
    const auto session = cutrace::current_session();
    if (session == nullptr) return cutrace::no_session();
    return session->flush(10'000) ? succeed() : fail("flushing took longer than 10 s; the recording goes on");
  });
}

int cutrace_synchronize(void) {
  return guarded([] {
    const auto session = cutrace::current_session();
    if (session == nullptr) return succeed();
    return session->synchronize() ? succeed()
                                  : fail("the GPU did not come to an end in time (patience_ms); the recording goes on");
  });
}

int cutrace_cut(const char* path) { return cutrace::make_file(path, &cutrace::Session::cut); }
int cutrace_dump(const char* path) { return cutrace::make_file(path, &cutrace::Session::dump); }

int cutrace_mark(const char* text) {
  return guarded([&] {
    if (!state().running.load()) return cutrace::no_session();
    if (!cutrace::nvtx::recording.load()) return fail("marks need NVTX recording; leave nvtx=0 out of the options");
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
    struct cutrace_stats now = s.last;
    if (s.session != nullptr) cutrace::copy_stats(*s.session, now);
    auto& source = cutrace::CuptiSource::instance();
    now.size = std::min(size, sizeof now);
    now.buffers_requested = source.pool().requested();
    now.buffers_completed = source.pool().completed();
    now.state = s.session != nullptr ? 1 : 0;
    now.cupti_active = source.active() ? 1 : 0;
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
    std::shared_ptr<cutrace::Session> session;
    std::string notes;
    {
      const std::lock_guard lock(s.mutex);
      session = s.session;
      notes = s.last_notes;
    }
    if (session != nullptr) notes = cutrace::join_notes(*session);
    const std::size_t size = std::min(notes.size(), sizeof text - 1);
    std::memcpy(text, notes.data(), size);
    text[size] = '\0';
    return 0;
  });
  return text;
}

const char* cutrace_last_error(void) { return cutrace::last_error; }
const char* cutrace_version(void) { return CUTRACE_VERSION; }
int cutrace_running(void) { return state().running.load() ? 1 : 0; }

// The driver calls this inside cuInit() of a program started with CUDA_INJECTION64_PATH.
CUTRACE_EXPORT int InitializeInjection(void) {
  guarded([] {
    if (cutrace::start_from_environment()) cutrace::attach_cupti(true);
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
    if (installed && (state().running.load() || !state().forked.load()) && cutrace::start_from_environment())
      if (const auto session = cutrace::current_session()) session->note_nvtx();
    return 0;
  });
  return installed;
}

}  // extern "C"
