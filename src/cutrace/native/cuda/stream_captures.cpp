#include "stream_captures.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "driver.h"

namespace cutrace {

void StreamCaptures::list_calls(const CuptiLibrary& cupti) {
  constexpr std::pair<std::string_view, Effect> kCalls[] = {{"StreamBeginCapture", Effect::begin},
                                                            {"StreamBeginRecapture", Effect::begin},
                                                            {"StreamEndCapture", Effect::end},
                                                            {"StreamDestroy", Effect::destroy}};
  for (const ApiFunction& function : cupti.api_functions())
    for (const auto& [part, effect] : kCalls)
      if (function.name.find(part) != function.name.npos) calls_.push_back({function.domain, function.id, effect});
}

void StreamCaptures::watch(const CallbackHandler& handler, Callbacks& callbacks) {
  {
    const std::lock_guard lock(mutex_);
    captures_.clear();
    incomplete_ = false;
  }
  if (!callbacks.available()) return;
  driver_is_loaded();  // stream_context() needs the loaded driver
  for (const CaptureCall& call : calls_) callbacks.watch(handler, call.domain, call.id);
}

void StreamCaptures::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  const auto call =
      std::find_if(calls_.begin(), calls_.end(), [&](const CaptureCall& c) { return c.domain == domain && c.id == id; });
  if (call == calls_.end() || data == nullptr) return;
  const auto& callback = *static_cast<const CUpti_CallbackData*>(data);
  if (callback.functionParams == nullptr) return;
  const CUstream stream = *static_cast<const CUstream*>(callback.functionParams);  // the first parameter of all these calls
  const bool enters = callback.callbackSite == CUPTI_API_ENTER;
  // A CUresult or a cudaError_t.
  const int status =
      enters || callback.functionReturnValue == nullptr ? 0 : *static_cast<const int*>(callback.functionReturnValue);
  // Asks the driver before it takes the lock, because the driver may block.
  const CUcontext context = enters && call->effect == Effect::begin ? stream_context(stream) : nullptr;
  const std::lock_guard lock(mutex_);
  switch (call->effect) {
    case Effect::begin:
      // Adds the capture at the entry of the call, so that no wait starts in between.
      if (enters) {
        try {
          captures_.push_back({stream, context});
        } catch (const std::bad_alloc&) {
          incomplete_ = true;
        }
      } else if (status != 0) {
        remove(stream, false);
      }
      return;
    case Effect::end:
      // A failed call has ended an invalid capture too, unless it came from the wrong thread.
      if (!enters && status != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        remove(stream, stream != CU_STREAM_PER_THREAD);  // this handle means another stream in each thread
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

bool StreamCaptures::any() const {
  const std::lock_guard lock(mutex_);
  return incomplete_ || !captures_.empty();
}

void StreamCaptures::remove(CUstream stream, bool all) {
  const auto same = [&](const CapturedStream& c) { return c.stream == stream; };
  if (all) {
    std::erase_if(captures_, same);
  } else if (const auto it = std::find_if(captures_.begin(), captures_.end(), same); it != captures_.end()) {
    captures_.erase(it);
  }
}

}  // namespace cutrace
