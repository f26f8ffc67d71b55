#include "stream_captures.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "core/clock.h"
#include "core/driver.h"

namespace cutrace {

StreamCaptures& stream_captures() {
  static auto& feature = *new StreamCaptures;
  return feature;
}

void StreamCaptures::attach(const AttachContext& context) {
  {
    const std::lock_guard lock(mutex_);
    captures_.clear();
    incomplete_ = false;
    times_used_ = 0;
  }
  if (!context.callbacks.available()) return;
  driver_is_loaded();  // loads it for stream_context()
  constexpr std::pair<std::string_view, Effect> kCalls[] = {{"StreamBeginCapture", Effect::begin},
                                                            {"StreamBeginRecapture", Effect::begin},
                                                            {"StreamEndCapture", Effect::end},
                                                            {"StreamDestroy", Effect::destroy}};
  if (calls_.empty())
    for (const ApiFunction& function : context.cupti.api_functions())
      for (const auto& [part, effect] : kCalls)
        if (function.name.find(part) != function.name.npos) calls_.push_back({function.domain, function.id, effect});
  for (const WatchedCall& call : calls_) context.callbacks.watch(*this, call.domain, call.id);
}

void StreamCaptures::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  const auto call =
      std::find_if(calls_.begin(), calls_.end(), [&](const WatchedCall& c) { return c.domain == domain && c.id == id; });
  if (call == calls_.end() || data == nullptr) return;
  const auto& callback = *static_cast<const CUpti_CallbackData*>(data);
  if (callback.functionParams == nullptr) return;
  const CUstream stream = *static_cast<const CUstream*>(callback.functionParams);  // the first parameter of all these calls
  const bool enters = callback.callbackSite == CUPTI_API_ENTER;
  // A CUresult or a cudaError_t.
  const int status =
      enters || callback.functionReturnValue == nullptr ? 0 : *static_cast<const int*>(callback.functionReturnValue);
  // Before the lock: the driver may block.
  const CUcontext context = enters && call->effect == Effect::begin ? stream_context(stream) : nullptr;
  const std::lock_guard lock(mutex_);
  switch (call->effect) {
    case Effect::begin:
      // At the entry of the call, so that no wait begins in between.
      if (enters) {
        try {
          captures_.push_back({stream, context});
        } catch (const std::bad_alloc&) {
          incomplete_ = true;
        }
        note_times();
      } else if (status != 0) {
        remove(stream, false);
      }
      return;
    case Effect::end:
      // A failed call has ended an invalid capture too, unless it came from the wrong thread.
      if (!enters && status != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        remove(stream, stream != CU_STREAM_PER_THREAD);  // this handle means a different stream in each thread
      return;
    case Effect::destroy:
      if (enters) remove(stream, true);
      return;
  }
}

bool StreamCaptures::may_wait_for(CUcontext context) const {
  const std::lock_guard lock(mutex_);
  const auto may_be_in = [&](const CapturedStream& c) { return c.context == nullptr || c.context == context; };
  return !incomplete_ && std::ranges::none_of(captures_, may_be_in);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> StreamCaptures::times() const {
  const std::lock_guard lock(mutex_);
  return {times_.begin(), times_.begin() + static_cast<std::ptrdiff_t>(times_used_)};
}

// Under mutex_, after a change of captures_.
void StreamCaptures::note_times() {
  const bool capturing = incomplete_ || !captures_.empty();
  const bool noted = times_used_ != 0 && times_[times_used_ - 1].second == 0;
  if (capturing == noted) return;
  if (!capturing) return static_cast<void>(times_[times_used_ - 1].second = now_ns());
  if (times_used_ == times_.size()) {
    times_[1].first = times_[0].first;
    std::move(times_.begin() + 1, times_.end(), times_.begin());
    --times_used_;
  }
  times_[times_used_++] = {now_ns(), 0};
}

void StreamCaptures::remove(CUstream stream, bool all) {
  const auto same = [&](const CapturedStream& c) { return c.stream == stream; };
  if (all) {
    std::erase_if(captures_, same);
  } else if (const auto it = std::find_if(captures_.begin(), captures_.end(), same); it != captures_.end()) {
    captures_.erase(it);
  }
  note_times();
}

}  // namespace cutrace
