// The stream captures of a recording: the contexts that forbid waits, and the times of the captures.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "core/feature.h"
#include "cuda/stream_captures.h"

namespace cutrace {

class CaptureWatch final : public Feature {
 public:
  void cupti_loaded(const CuptiLibrary& cupti, Callbacks&) override { captures_.list_calls(cupti); }
  void attach(const AttachContext& context) override;
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  bool may_wait_for(CUcontext context) const override { return captures_.may_wait_for(context); }
  void before_fork() override;
  void after_fork_in_parent() override;
  void after_fork_in_child() override { after_fork_in_parent(); }

  // The start and the end of each interval with a stream capture, earliest first. A running interval has the end 0. Beyond a
  // limit the two earliest intervals are merged.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> times() const;

 private:
  void note_times();

  StreamCaptures captures_;
  mutable std::mutex mutex_;
  std::array<std::pair<std::uint64_t, std::uint64_t>, 64> times_{};  // under mutex_
  std::size_t times_used_ = 0;                                       // under mutex_
};

CaptureWatch& capture_watch();
inline Feature& stream_captures_feature() { return capture_watch(); }

}  // namespace cutrace
