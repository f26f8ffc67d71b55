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

// Sets `more` to the CPUs of `all` that are not in `some`.
inline void subtract(const cpu_set_t& all, const cpu_set_t& some, cpu_set_t& more) {
  cpu_set_t common;
  CPU_AND(&common, &all, &some);
  CPU_XOR(&more, &all, &common);
}

// Makes a thread of the collector an ordinary one. It has inherited the policy and the CPUs of the calling thread, which has started
// it. The caller may keep its CPUs busy, so the collector's thread also gets those of the main thread. A real-time thread leaves
// nothing of its CPUs, so the collector's thread gets only others. If the main thread has no others, these may be all that the
// process may use. The collector's thread cannot do this itself, because it may get no CPU.
inline void schedule_as_ordinary_thread(pthread_t thread) {
  const int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  const bool real_time = policy == SCHED_FIFO || policy == SCHED_RR;
  const sched_param no_priority{};
  if (real_time) pthread_setschedparam(thread, SCHED_OTHER, &no_priority);
  cpu_set_t own, wanted, others;
  if (sched_getaffinity(0, sizeof own, &own) != 0 || sched_getaffinity(getpid(), sizeof wanted, &wanted) != 0) return;
  subtract(wanted, own, others);
  if (real_time && CPU_COUNT(&others) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &wanted);  // the kernel leaves out CPUs that the process may not use
    subtract(wanted, own, others);
  }
  if (CPU_COUNT(&others) == 0) return;
  CPU_OR(&wanted, &own, &others);
  pthread_setaffinity_np(thread, sizeof wanted, real_time ? &others : &wanted);
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
