// The mark and the scheduling of the collector's own threads, calls at the end of a thread, and large values of each thread.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <type_traits>

namespace cutrace {

// The API calls of the collector's threads are not the program's.
inline thread_local constinit bool is_own_thread = false;

// Makes the calling thread of the collector an ordinary one. It has inherited the scheduling of the program's thread that has
// started it, which may be a real-time thread, or have few CPUs that it keeps busy. The CPUs become those of the main thread.
inline void schedule_as_ordinary_thread() {
  const int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  const sched_param no_priority{};
  if (policy == SCHED_FIFO || policy == SCHED_RR) sched_setscheduler(0, SCHED_OTHER, &no_priority);
  cpu_set_t own, of_main, common;
  if (sched_getaffinity(0, sizeof own, &own) != 0 || sched_getaffinity(getpid(), sizeof of_main, &of_main) != 0) return;
  CPU_AND(&common, &own, &of_main);
  const bool wider = CPU_EQUAL(&common, &own) && !CPU_EQUAL(&own, &of_main);
  if (wider) sched_setaffinity(0, sizeof of_main, &of_main);
}

// Calls a function when a thread ends. Uses a pthread key, because its destructor runs after C++ destructors and costs nothing in
// other threads.
class AtThreadEnd {
 public:
  explicit AtThreadEnd(void (*call)(void*)) : created_(pthread_key_create(&key_, call) == 0) {}

  // Sets the argument of the function at the end of the calling thread; null for no call. Has no effect if the program has used
  // up the keys of the process.
  void set(void* value) const {
    if (created_) pthread_setspecific(key_, value);
  }
  // Like set(), but never allocates, so a signal handler may call it. False when the C library would allocate.
  bool set_without_memory(void* value) const {
    constexpr pthread_key_t kWithRoom = 32;  // each thread of glibc has room for the values of this many keys
    return created_ && key_ < kWithRoom && pthread_setspecific(key_, value) == 0;
  }

 private:
  pthread_key_t key_{};
  bool created_;
};

// A value of each thread that is too large for a thread_local variable (see CMakeLists.txt). It has pages of its own.
template <typename Value>
class PerThread {
  static_assert(std::is_trivially_destructible_v<Value>);

 public:
  // The calling thread's value, null when there is no memory for it.
  Value* get() const {
    if (value != nullptr) return value;
    void* const mapped = mmap(nullptr, sizeof(Value), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    value = new (mapped) Value;
    at_end_.set(value);
    return value;
  }
  // The calling thread's value, null before its first get().
  Value* get_if_used() const { return value; }

 private:
  static inline thread_local constinit Value* value = nullptr;
  const AtThreadEnd at_end_{[](void* mapped) {
    value = nullptr;
    munmap(mapped, sizeof(Value));
  }};
};

}  // namespace cutrace
