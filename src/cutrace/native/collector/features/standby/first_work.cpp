#include "first_work.h"

#include "core/clock.h"

namespace cutrace {
namespace {

// The number of running calls of this thread that it entered in a recording.
struct OpenCalls {
  std::uint64_t recording = 0;  // the number of that recording
  std::uint32_t depth = 0;      // more than 1 when a runtime call makes a driver call
};
thread_local constinit OpenCalls open_calls;

}  // namespace

void FirstWork::expect() {
  recording_.fetch_add(1);
  inside_.store(0);
  enabled_.store(false);
  returned_.store(0);
  expected_.store(true);
}

void FirstWork::cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) {
  callbacks_ = &callbacks;
  for (const ApiFunction& function : cupti.api_functions())
    if (submits_work(function.name)) calls_.push_back(function);
}

// CUPTI may delay a call while the kinds are enabled one after the other. So calls are watched before that.
void FirstWork::attach(const AttachContext&) {
  watching_.store(false);
  if (!expected_.load()) return;
  for (const ApiFunction& call : calls_) callbacks_->watch(*this, call.domain, call.id);
}

// A call that has returned by now may have no rows.
void FirstWork::kinds_enabled(const AttachContext&) {
  if (!expected_.exchange(false)) return;
  enabled_.store(true);
  watching_.store(true);
}

void FirstWork::on_callback(CUpti_CallbackDomain, CUpti_CallbackId, const void* data) noexcept {
  if (data == nullptr || returned_.load() != 0) return;
  OpenCalls& open = open_calls;
  const std::uint64_t recording = recording_.load();
  if (open.recording != recording) open = {recording, 0};
  if (static_cast<const CUpti_CallbackData*>(data)->callbackSite == CUPTI_API_ENTER) {
    if (open.depth++ == 0) inside_.fetch_add(1);
    return;
  }
  if (open.depth == 0) return;  // the call was entered before the recording
  std::uint64_t none = 0;
  if (enabled_.load()) returned_.compare_exchange_strong(none, now_ns());
  if (--open.depth == 0) inside_.fetch_sub(1);
}

// Does this here and not in the callback, because the program would wait there.
void FirstWork::unwatch_if_seen() {
  if (returned_.load() == 0 || !watching_.exchange(false)) return;
  for (const ApiFunction& call : calls_) callbacks_->unwatch(*this, call.domain, call.id);
}

FirstWork& first_work() {
  static auto& feature = *new FirstWork;
  return feature;
}
Feature& first_work_feature() { return first_work(); }

}  // namespace cutrace
