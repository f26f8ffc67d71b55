// Which streams the program is capturing into CUDA graphs.
//
// A wait for a context, by any thread and in any mode, invalidates every capture of its streams: the program's next call on
// such a stream fails. So cutrace must not wait then. Captures that began during the recording are known from CUPTI's
// callbacks; for earlier ones see synchronize_contexts().
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "core/feature.h"

namespace cutrace {

class StreamCaptures final : public Feature {
 public:
  void attach(const AttachContext& context) override;
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  // Unless a stream of this context is being captured.
  bool may_wait_for(CUcontext context) const override;
  // When streams were captured: begins and ends, earliest first, with 0 for the end of a running capture. Two early times are
  // one when there were many.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> times() const;
  // The child must not inherit a lock that another thread holds.
  void before_fork() override { mutex_.lock(); }
  void after_fork_in_parent() override { mutex_.unlock(); }
  void after_fork_in_child() override { mutex_.unlock(); }

 private:
  enum class Effect { begin, end, destroy };
  struct WatchedCall {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    Effect effect;
  };
  struct CapturedStream {
    CUstream stream;
    CUcontext context;  // of the stream; null when unknown, which means any context
  };
  void remove(CUstream stream, bool all);
  void note_times();

  std::vector<WatchedCall> calls_;  // filled once, before CUPTI calls back
  mutable std::mutex mutex_;
  // A capture is here once for each call that CUPTI reports: that of the runtime, and that of the driver inside it. A call of
  // the driver alone may end it.
  std::vector<CapturedStream> captures_;  // under mutex_
  bool incomplete_ = false;  // under mutex_: a capture is missing for lack of memory, so any context may have one
  std::array<std::pair<std::uint64_t, std::uint64_t>, 64> times_{};  // under mutex_
  std::size_t times_used_ = 0;                                       // under mutex_
};

StreamCaptures& stream_captures();
inline Feature& stream_captures_feature() { return stream_captures(); }

}  // namespace cutrace
