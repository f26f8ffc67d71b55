#include "process.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "blocked_signals.h"
#include "cupti_source.h"
#include "cuda/driver.h"
#include "feature.h"
#include "own_thread.h"
#include "features/nvtx/nvtx.h"

namespace cutrace::process {
namespace {

// The mutex is held only briefly, so that fork() never waits for a disk or for CUPTI: a recording starts and stops without
// it, while `changing` is set.
struct ProcessState {
  std::mutex mutex;
  std::shared_ptr<Recording> recording;  // under mutex, like all members below
  std::shared_ptr<Recording> last;       // the previous recording, while its threads run
  bool changing = false;                 // a thread starts or stops the recording
  struct cutrace_stats last_stats {};    // of the recording that ended last
  std::vector<std::string> last_notes;   // of the recording that ended last
  const char* inherited = nullptr;       // in a forked child: the options of the parent's recording
  sigset_t held_back {};                 // the signals that a running fork() holds back
  std::atomic<bool> handlers{false};     // the handlers of fork and exit are installed
  std::atomic<pid_t> process{::getpid()};  // the process that owns the recording
};

// Never destroyed: threads of the program may still call in while the process exits. Constructed when the library is
// loaded: if another thread were inside the constructor of a function-local static at fork, the child would wait forever.
ProcessState& state = *new ProcessState;

const PerThread<ThreadStrings> thread_strings;

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
    const std::lock_guard lock(state.mutex);
    state.recording.swap(recording);
  }
  // Ends the recording. Fails when the end was incomplete.
  int stop(bool at_exit) const {
    const std::shared_ptr<Recording> ending = state.recording;
    const std::string_view error = ending->stop(at_exit);
    const std::lock_guard lock(state.mutex);
    state.last_stats = ending->statistics();
    state.last_notes = ending->notes().take_sentences();
    state.last = ending->writes() ? ending : nullptr;
    state.recording = nullptr;
    return error.empty() ? succeed() : fail(error);
  }

 private:
  static bool set_changing(bool changing) {
    const std::lock_guard lock(state.mutex);
    return std::exchange(state.changing, changing) != changing;
  }
  bool held_ = false;
};

// Whether this thread is between the handlers of fork().
thread_local constinit bool is_forking = false;

// Holds back the signals that tell a program to end. Their handlers may call exit(), and glibc's exit() waits for fork() in
// processes with several threads, such as the collector's. Other signals may have to be handled: some runtimes stop their threads by
// signals, and their handlers of fork() wait for that.
sigset_t hold_back_signals() {
  sigset_t before, held_back;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  sigemptyset(&held_back);
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM})
    if (sigismember(&before, number) == 0) sigaddset(&held_back, number);
  pthread_sigmask(SIG_BLOCK, &held_back, nullptr);
  return held_back;
}

void before_fork() {
  const sigset_t held_back = hold_back_signals();
  is_forking = true;
  state.mutex.lock();
  state.held_back = held_back;
  for (Feature* const feature : features()) feature->before_fork();
  nvtx::before_fork();
}
void end_fork() {
  const sigset_t held_back = state.held_back;
  state.mutex.unlock();
  is_forking = false;
  pthread_sigmask(SIG_UNBLOCK, &held_back, nullptr);
}
void after_fork_in_parent() {
  nvtx::after_fork_in_parent();
  for (Feature* const feature : features()) feature->after_fork_in_parent();
  if (state.recording != nullptr) state.recording->count_fork();
  end_fork();
}
// The first NVTX event of a forked child starts a new recording in the folder of the parent's recording.
void start_in_child() {
  const int failed = guarded([] {
    const int status = start(state.inherited);
    if (const auto recording = current()) recording->note_nvtx();
    return status;
  });
  if (failed) tell(last_error());
}
// The child does not have the collector's threads, and CUPTI would hang in it. So the child drops the recording without a
// CUPTI call, a flush or a join.
void after_fork_in_child() {
  const BlockedCancellation whole;
  for (Feature* const feature : features()) feature->after_fork_in_child();
  CuptiSource::instance().forget();
  if (state.recording != nullptr) state.inherited = Recording::forget(std::move(state.recording));
  rings::after_fork_in_child();
  nvtx::after_fork_in_parent();  // frees its lock
  nvtx::after_fork_in_child(state.inherited != nullptr ? start_in_child : nullptr);
  state.last = nullptr;
  state.changing = false;
  state.process.store(::getpid());
  end_fork();
}

}  // namespace

ThreadStrings* strings_of_thread() { return thread_strings.get(); }
const char* last_error() {
  const ThreadStrings* const own = thread_strings.get_if_used();
  return own != nullptr ? own->error : "";
}
int fail(std::string_view message) {
  ThreadStrings* const own = thread_strings.get();
  if (own != nullptr) own->error[message.copy(own->error, sizeof own->error - 1)] = '\0';
  return 1;
}
int succeed() {
  if (ThreadStrings* const own = thread_strings.get_if_used()) own->error[0] = '\0';
  return 0;
}
int none_running() { return fail("no recording is running in this process; start one first"); }

std::shared_ptr<Recording> current() {
  const std::lock_guard lock(state.mutex);
  return state.changing ? nullptr : state.recording;
}

bool ignores_exit() { return is_forking || state.process.load() != ::getpid(); }
// Does nothing while another thread starts or stops the recording: exit() does not wait for that thread.
void at_exit() {
  if (ignores_exit()) return;
  const BlockedCancellation whole;
  const bool recording = current() != nullptr;
  if (stop(true) != 0 && recording) tell(last_error());
  for (Feature* const feature : features()) feature->at_exit();
}

void install_handlers() {
  if (state.handlers.exchange(true)) return;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  std::atexit(at_exit);
  std::at_quick_exit(at_exit);
}

int start(const char* text) {
  Options options;
  std::string error;
  if (!parse_options(text != nullptr ? text : "", options, error)) return fail(error);
  if (options.standby) return fail("standby=1 starts no recording; it belongs into CUTRACE_OPTIONS");
  const StartStopGuard guard(options.patience_ms);
  if (!guard.held()) return fail("another thread is starting or stopping the recording of this process; try again later");
  if (state.recording != nullptr && state.recording->running())
    return fail("a recording is already running in this process; stop it before starting another");
  if (state.recording != nullptr) guard.stop(false);  // a failed recording
  if (state.last != nullptr && state.last->writes())
    return fail("the previous recording has not ended, because its disk does not respond; start again when it does");
  install_handlers();
  state.process.store(::getpid());
  const auto recording = std::make_shared<Recording>(options);
  guard.set_recording(recording);  // stored before start(), because the program may fork during start()
  try {
    if (recording->start(error)) return succeed();
  } catch (const std::exception&) {
    guard.set_recording(nullptr);
    throw;
  }
  guard.set_recording(nullptr);
  return fail(error);
}

int start_now(const char* text) {
  if (const int failed = start(text)) return failed;
  if (const auto recording = current(); recording != nullptr && driver_is_loaded()) recording->attach_cupti(false);
  return succeed();
}

int stop(bool at_exit) {
  const BlockedCancellation whole;
  const StartStopGuard guard(0);
  return guard.held() && state.recording != nullptr ? guard.stop(at_exit) : none_running();
}

struct cutrace_stats statistics() {
  const std::lock_guard lock(state.mutex);
  const auto& recording = state.recording;
  struct cutrace_stats now = recording != nullptr ? recording->statistics() : state.last_stats;
  auto& source = CuptiSource::instance();
  now.buffers_requested = source.pool().handed_out();
  now.buffers_completed = source.pool().completed();
  now.state = recording != nullptr && recording->running() ? 1 : 0;
  now.cupti_active = recording != nullptr && recording->uses_cupti() && source.active() ? 1 : 0;
  return now;
}

std::vector<std::string> notes() {
  std::unique_lock lock(state.mutex);
  const auto recording = state.recording;
  if (recording == nullptr) return state.last_notes;
  lock.unlock();
  return recording->notes().sentences();
}

}  // namespace cutrace::process
