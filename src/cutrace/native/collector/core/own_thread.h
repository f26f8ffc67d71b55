// The mark of the collector's own threads, and calls at the end of a thread.
#pragma once

#include <pthread.h>

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

 private:
  pthread_key_t key_{};
  bool created_;
};

}  // namespace cutrace
