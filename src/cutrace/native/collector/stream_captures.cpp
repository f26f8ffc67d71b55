#include "stream_captures.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "driver.h"

namespace cutrace {

void StreamCaptures::watch(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber) {
  {
    const std::lock_guard lock(mutex_);
    captures_.clear();
  }
  if (cupti.EnableCallback == nullptr) return;
  driver_is_loaded();  // finds it for stream_context()
  constexpr std::pair<std::string_view, Does> kCalls[] = {{"StreamBeginCapture", Does::begin},
                                                          {"StreamBeginRecapture", Does::begin},
                                                          {"StreamEndCapture", Does::end},
                                                          {"StreamDestroy", Does::destroy}};
  if (calls_.empty())
    for (const ApiFunction& function : cupti.api_functions())
      for (const auto& [part, does] : kCalls)
        if (function.name.find(part) != function.name.npos) calls_.push_back({function.domain, function.id, does});
  for (const Call& call : calls_) cupti.EnableCallback(1, subscriber, call.domain, call.id);
}

void StreamCaptures::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API && domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
  const auto call = std::find_if(calls_.begin(), calls_.end(), [&](const Call& c) { return c.domain == domain && c.id == id; });
  if (call == calls_.end() || data == nullptr) return;
  const auto& about = *static_cast<const CUpti_CallbackData*>(data);
  if (about.functionParams == nullptr) return;
  const CUstream stream = *static_cast<const CUstream*>(about.functionParams);  // the first parameter of all of them
  const bool enters = about.callbackSite == CUPTI_API_ENTER;
  // Both CUresult and cudaError_t.
  const int status = enters || about.functionReturnValue == nullptr ? 0 : *static_cast<const int*>(about.functionReturnValue);
  // Before the lock: the driver may wait.
  const CUcontext context = enters && call->does == Does::begin ? stream_context(stream) : nullptr;
  const std::lock_guard lock(mutex_);
  switch (call->does) {
    case Does::begin:
      // Before it begins, so that nobody waits just then.
      if (enters) {
        try {
          captures_.push_back({stream, context});
        } catch (const std::bad_alloc&) {
        }
      } else if (status != 0) {
        remove(stream, false);
      }
      return;
    case Does::end:
      // An end that fails has ended an invalid capture, unless it came from the wrong thread.
      if (!enters && status != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        remove(stream, stream != CU_STREAM_PER_THREAD);  // that one stands for a stream of each thread
      return;
    case Does::destroy:
      if (enters) remove(stream, true);
      return;
  }
}

bool StreamCaptures::any_in(CUcontext context) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(captures_.begin(), captures_.end(),
                     [&](const Capture& c) { return c.context == nullptr || c.context == context; });
}

void StreamCaptures::remove(CUstream stream, bool all) {
  const auto same = [&](const Capture& c) { return c.stream == stream; };
  if (all) {
    std::erase_if(captures_, same);
  } else if (const auto it = std::find_if(captures_.begin(), captures_.end(), same); it != captures_.end()) {
    captures_.erase(it);
  }
}

}  // namespace cutrace
