#include "stream_captures.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "kinds.h"

namespace cutrace {
namespace {

bool contains(std::string_view name, std::string_view part) { return name.find(part) != name.npos; }

}  // namespace

void StreamCaptures::watch(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber) {
  {
    const std::lock_guard lock(mutex_);
    captures_.clear();
  }
  if (cupti.EnableCallback == nullptr || cupti.GetCallbackName == nullptr) return;
  if (calls_.empty()) find_calls(cupti);
  for (const Call& call : calls_) cupti.EnableCallback(1, subscriber, call.domain, call.id);
}

void StreamCaptures::find_calls(const CuptiLibrary& cupti) {
  for (CUpti_CallbackDomain domain : {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API})
    for_each_call(cupti, domain, [&](std::uint32_t id, std::string_view name) {
      if (contains(name, "StreamBeginCapture") || contains(name, "StreamBeginRecapture"))
        calls_.push_back({domain, id, Does::begin});
      else if (contains(name, "StreamEndCapture"))
        calls_.push_back({domain, id, Does::end});
      else if (contains(name, "StreamDestroy"))
        calls_.push_back({domain, id, Does::destroy});
    });
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
  const bool failed = !enters && about.functionReturnValue != nullptr && *static_cast<const int*>(about.functionReturnValue) != 0;
  const std::lock_guard lock(mutex_);
  switch (call->does) {
    case Does::begin:
      // Before it begins, so that nobody waits just then.
      if (enters) {
        try {
          captures_.push_back({stream, about.context});
        } catch (const std::bad_alloc&) {
        }
      } else if (failed) {
        remove(stream, false);
      }
      return;
    case Does::end:
      // An end that fails has ended an invalid capture, unless it came from the wrong thread.
      if (!enters && !(failed && *static_cast<const int*>(about.functionReturnValue) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD))
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
    captures_.erase(std::remove_if(captures_.begin(), captures_.end(), same), captures_.end());
  } else if (const auto it = std::find_if(captures_.begin(), captures_.end(), same); it != captures_.end()) {
    captures_.erase(it);
  }
}

}  // namespace cutrace
