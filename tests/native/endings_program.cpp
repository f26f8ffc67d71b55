// A recorded program. Its first argument names the way in which it ends (see test_endings.cpp).
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collector_under_test.h"
#include "fake_cupti.h"

// LeakSanitizer reports memory of forked children that only the parent's threads refer to.
extern "C" int __lsan_is_turned_off() { return 1; }
// ThreadSanitizer lets other threads continue for this time at the end of a process, and some tests start twenty processes.
extern "C" const char* __tsan_default_options() { return "atexit_sleep_ms=100"; }

namespace {

thread_local bool in_handler = false;
std::atomic<int> allocations_of_handlers{0};

// Whether the next allocation of this thread raises SIGUSR1.
thread_local bool interrupted = false;
void interrupt() {
  if (std::exchange(interrupted, false)) raise(SIGUSR1);
}

void note_allocation() {
  if (in_handler) allocations_of_handlers.fetch_add(1);
  interrupt();
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The C library and the collector call these functions of the program.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* malloc(std::size_t size) noexcept { return note_allocation(), __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) noexcept { return note_allocation(), __libc_calloc(count, size); }
}
#endif

namespace {

// The driver's actions at cuInit() of a program that runs under CUDA_INJECTION64_PATH.
void initialize_cuda() {
  static Collector* collector = new Collector;
  CHECK_EQUAL(collector->inject(), 1);
  fake_create_context();
  fake_load_module();
}

void launch(int count, const char* name = "k") {
  for (int i = 0; i < count; ++i) fake_launch(name, 1, 1, false);
}

std::atomic<bool> done{false};

void launch_until_done() {
  while (!done.load()) {
    launch(20, "background");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

int wait_for(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// The stderr of the process is a pipe without a reader.
int write_to_nobody() {
  int out[2];
  CHECK(pipe(out) == 0);
  CHECK(dup2(out[1], STDERR_FILENO) >= 0);
  close(out[0]);
  close(out[1]);
  std::signal(SIGPIPE, SIG_DFL);
  fake_fail_subscribe(CUPTI_ERROR_UNKNOWN);
  initialize_cuda();
  return 0;
}

// Sets a low limit on descriptors, and closes the descriptor of stdout.
int close_stdout() {
  const rlimit low{256, 256};
  CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
  close(STDOUT_FILENO);
  initialize_cuda();
  CHECK_EQUAL(fcntl(STDOUT_FILENO, F_GETFD), -1);
  return 0;
}

// Returns the number of keys with changed values.
int use_all_keys() {
  std::vector<pthread_key_t> keys;
  for (pthread_key_t key{}; pthread_key_create(&key, nullptr) == 0;) keys.push_back(key);
  for (pthread_key_t& key : keys) CHECK(pthread_setspecific(key, &key) == 0);
  initialize_cuda();
  const auto range = [] {
    nvtxRangePushA("range");
    nvtxRangePop();
  };
  range();
  std::thread(range).join();
  int changed = 0;
  for (pthread_key_t& key : keys) changed += pthread_getspecific(key) != &key;
  return changed;
}

// Threads have their first event in a signal handler, which may have interrupted malloc(). Returns the number of allocations in
// the handlers. The C library allocates for the values of keys beyond the first 32.
int use_nvtx_first_in_handlers() {
  for (pthread_key_t key{}; key < 40;) CHECK(pthread_key_create(&key, nullptr) == 0);
  std::signal(SIGUSR1, [](int) {
    in_handler = true;
    nvtxRangePushA("range");
    nvtxRangePop();
    in_handler = false;
  });
  nvtxMarkA("the injection");
  for (int i = 0; i < 3; ++i) std::thread([] { raise(SIGUSR1); }).join();
  return allocations_of_handlers.load();
}

// Makes more threads, one after the other, than there is memory for rings.
int use_nvtx_in_many_threads() {
  for (pthread_key_t key{}; pthread_key_create(&key, nullptr) == 0;) {
  }
  nvtxMarkA("the injection");
  Collector& collector = *new Collector;
  for (int i = 0; i < 100; ++i) {
    std::thread([] { nvtxMarkA("mark"); }).join();
    for (int part = 0; part < 2; ++part) CHECK_EQUAL(collector.flush(), 0);
  }
  return 0;
}

// A signal handler of the child interrupts the start of the child's recording.
int interrupt_first_event_of_child() {
  std::signal(SIGUSR1, [](int) { nvtxMarkA("handler"); });
  nvtxMarkA("parent");
  const pid_t child = fork();
  if (child != 0) return wait_for(child);
  alarm(15);  // the child may hang
  interrupted = true;
  nvtxMarkA("child");
  interrupt();  // with a sanitizer, whose allocations raise no signal
  std::exit(0);
}

// A thread with a pending cancellation makes its first NVTX call. Returns 0 if it is cancelled after its NVTX calls.
int cancel_a_thread() {
  static std::atomic<bool> popped{false};
  pthread_t thread{};
  const auto work = [](void*) -> void* {
    pthread_cancel(pthread_self());
    nvtxRangePushA("step");
    nvtxRangePop();
    popped = true;
    pthread_testcancel();
    return nullptr;
  };
  CHECK_EQUAL(pthread_create(&thread, nullptr, work, nullptr), 0);
  void* result = nullptr;
  CHECK_EQUAL(pthread_join(thread, &result), 0);
  nvtxMarkA("main");
  return result == PTHREAD_CANCELED && popped.load() ? 0 : 1;
}

struct LaunchesLate {
  explicit LaunchesLate(const char* kernel) : name(kernel) {}
  ~LaunchesLate() { launch(10, name); }
  const char* name;
} late("after the collector");  // constructed before the collector, so destroyed after it

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "untouched") return 0;
  if (how == "fork_then_cuda") {  // neither CUDA nor NVTX before the fork
    const pid_t child = fork();
    initialize_cuda();
    launch(child == 0 ? 10 : 20);
    return child == 0 ? 0 : wait_for(child);
  }
  if (how == "write_to_nobody") return write_to_nobody();
  if (how == "close_stdout") return close_stdout();
  if (how == "use_all_keys") return use_all_keys();
  if (how == "use_nvtx_first_in_handlers") return use_nvtx_first_in_handlers();
  if (how == "use_nvtx_in_many_threads") return use_nvtx_in_many_threads();
  if (how == "interrupt_first_event_of_child") return interrupt_first_event_of_child();
  if (how == "cancel_a_thread") return cancel_a_thread();
  if (how == "cancel_a_thread_later") {
    nvtxMarkA("the injection");
    return cancel_a_thread();
  }
  if (how == "nvtx_only") {
    nvtxRangePushA("range");
    nvtxRangePop();
    return 0;
  }
  if (how == "exit_while_forking") {
    // The handlers of the collector are installed later, so it holds its locks when the signals come.
    std::signal(SIGTERM, [](int) { std::exit(4); });
    pthread_atfork([] { raise(SIGTERM); }, nullptr, nullptr);
  }
  if (how == "exit_in_fork_handler") pthread_atfork([] { std::exit(4); }, nullptr, nullptr);
  initialize_cuda();
  launch(1000);
  if (how == "return") return 0;
  if (how == "static_destructors") {
    static const LaunchesLate early("before the collector");
    return 0;
  }
  if (how == "run_until_killed") {
    std::printf("ready\n");
    std::fflush(stdout);
    launch_until_done();
  }
  if (how == "os_exit") {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    _exit(5);
  }
  if (how == "segfault") {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::signal(SIGSEGV, SIG_DFL);  // sanitizers would catch the signal
    raise(SIGSEGV);
  }
  if (how == "abort") {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::abort();
  }
  if (how == "exit_while_launching") {
    std::vector<std::thread>* threads = new std::vector<std::thread>;  // never joined, like daemon threads
    for (int t = 0; t < 4; ++t) threads->emplace_back(launch_until_done);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::exit(0);
  }
  if (how == "exit_with_stuck_cupti") {
    fake_set_flush_delay(3'600'000);
    std::exit(0);
  }
  if (how == "fork") {  // the child continues normally and ends by itself
    const pid_t child = fork();
    launch(child == 0 ? 500 : 1000);
    nvtxRangePushA(child == 0 ? "child" : "parent");
    nvtxRangePop();
    if (child == 0) std::exit(0);
    return wait_for(child);
  }
  if (how == "clone") {  // no handler of fork() runs
    const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (child == 0) std::exit(0);
    return wait_for(child);
  }
  if (how == "fork_while_busy") {
    fake_set_flush_delay(20);
    std::thread background(launch_until_done);
    for (int i = 0; i < 10; ++i) {
      const pid_t child = fork();
      if (child == 0) std::exit(0);
      CHECK_EQUAL(wait_for(child), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    done = true;
    background.join();
    return 0;
  }
  if (how == "exit_in_fork_handler" || how == "exit_while_forking") return fork() == 0 ? 0 : 3;
  if (how == "exec") {
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", argv[0], "return", nullptr);
      _exit(127);
    }
    return wait_for(child);
  }
  return 2;
}
