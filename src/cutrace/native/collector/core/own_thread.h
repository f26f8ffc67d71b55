// Whether the calling thread is one of the collector's, and what happens when a thread ends.
#pragma once

#include <pthread.h>

namespace cutrace {

// The API calls of the collector's threads are not the program's.
inline thread_local constinit bool is_own_thread = false;

// Calls a function when a thread ends. A pthread key, not a C++ destructor: it runs later, and costs nothing for other threads.
class AtThreadEnd {
 public:
  explicit AtThreadEnd(void (*call)(void*)) : created_(pthread_key_create(&key_, call) == 0) {}

  // The value that the function gets when the calling thread ends; null for no call. Without effect if the program has used up the
  // keys of the process.
  void set(void* value) const {
    if (created_) pthread_setspecific(key_, value);
  }

 private:
  pthread_key_t key_{};
  bool created_;
};

}  // namespace cutrace
