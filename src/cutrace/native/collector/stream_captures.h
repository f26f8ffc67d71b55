// Which streams the program is capturing into CUDA graphs.
//
// A wait for a context makes every capture of its streams invalid, whoever waits and in whatever mode: the program's next call
// on such a stream fails. So whoever waits for the GPU has to know. Captures that began during the recording are known from
// CUPTI's callbacks. For earlier ones the driver is asked, which tells of streams that wait for the default stream: see
// synchronize_contexts().
#pragma once

#include <mutex>
#include <vector>

#include "cupti_library.h"

namespace cutrace {

class StreamCaptures {
 public:
  // Has CUPTI tell of captures from now on. The subscriber's callback must then lead to on_callback().
  void watch(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber);
  // The program's threads, inside CUPTI's callbacks; other calls are passed over.
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept;
  // Whether a stream of this context is being captured.
  bool any_in(CUcontext context) const;
  // Around fork: the child must not inherit the lock of a thread that it lacks.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  enum class Does { begin, end, destroy };
  struct Call {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    Does does;
  };
  struct Capture {
    CUstream stream;
    CUcontext context;  // of the stream; null when the driver does not tell, which stands for any
  };
  void remove(CUstream stream, bool all);

  std::vector<Call> calls_;  // once, before CUPTI calls back
  mutable std::mutex mutex_;
  // A capture is here once for each call that CUPTI tells of: that of the runtime and that of the driver inside it. It may
  // end by one of the driver alone.
  std::vector<Capture> captures_;  // under mutex_
};

}  // namespace cutrace
