#include "capture_watch.h"

#include <algorithm>

#include "core/clock.h"

namespace cutrace {

CaptureWatch& capture_watch() {
  static auto& feature = *new CaptureWatch;
  return feature;
}

// captures_ is not a separate handler, because the times must be noted after its changes.
void CaptureWatch::attach(const AttachContext& context) {
  {
    const std::lock_guard lock(mutex_);
    times_used_ = 0;
  }
  captures_.watch(*this, context.callbacks);
}

void CaptureWatch::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  captures_.on_callback(domain, id, data);
  note_times();
}

void CaptureWatch::before_fork() {
  mutex_.lock();
  captures_.before_fork();
}

void CaptureWatch::after_fork_in_parent() {
  captures_.after_fork();
  mutex_.unlock();
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> CaptureWatch::times() const {
  const std::lock_guard lock(mutex_);
  return {times_.begin(), times_.begin() + static_cast<std::ptrdiff_t>(times_used_)};
}

void CaptureWatch::note_times() {
  const std::lock_guard lock(mutex_);
  const bool capturing = captures_.any();
  const bool noted = times_used_ != 0 && times_[times_used_ - 1].second == 0;
  if (capturing == noted) return;
  if (!capturing) {
    times_[times_used_ - 1].second = now_ns();
    return;
  }
  if (times_used_ == times_.size()) {
    times_[1].first = times_[0].first;
    std::move(times_.begin() + 1, times_.end(), times_.begin());
    --times_used_;
  }
  times_[times_used_++] = {now_ns(), 0};
}

}  // namespace cutrace
