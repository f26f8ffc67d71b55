// The streams that the program is capturing into CUDA graphs.
//
// A wait for a context, by any thread and in any mode, invalidates every capture of its streams: the program's next call on such a
// stream fails. So cutrace must not wait then. Captures that started during the recording are known from CUPTI's callbacks; for
// earlier ones see synchronize_contexts().
#pragma once

#include <cuda.h>

#include <mutex>
#include <vector>

#include "callbacks.h"

namespace cutrace {

class StreamCaptures final : public CallbackHandler {
 public:
  // Once per process, before the first watch().
  void list_calls(const CuptiLibrary& cupti);
  // For a new subscriber. `handler` watches the calls, and passes them to on_callback().
  void watch(const CallbackHandler& handler, Callbacks& callbacks);
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  // False while a stream of this context is being captured.
  bool may_wait_for(CUcontext context) const;
  // Whether a stream is, or may be, captured.
  bool any() const;
  // The child must not inherit a lock that another thread holds.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  enum class Effect { begin, end, destroy };
  struct CaptureCall {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    Effect effect;
  };
  struct CapturedStream {
    CUstream stream;
    CUcontext context;  // context of the stream; null when unknown, and then it may be any context
  };
  void remove(CUstream stream, bool all);

  std::vector<CaptureCall> calls_;
  mutable std::mutex mutex_;
  // A capture has an entry for each call that CUPTI reports: the runtime call, and the driver call inside it. A driver call alone
  // may end the capture.
  std::vector<CapturedStream> captures_;  // under mutex_
  bool incomplete_ = false;  // under mutex_: a capture is missing for lack of memory, so any context may have one
};

}  // namespace cutrace
