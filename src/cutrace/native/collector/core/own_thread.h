// The mark of the collector's own threads, calls at the end of a thread, and large values of each thread.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <new>
#include <type_traits>

namespace cutrace {

// The API calls of the collector's threads are not the program's.
inline thread_local constinit bool is_own_thread = false;

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
