#include "first_work.h"

#include "core/clock.h"

namespace cutrace {
namespace {

// The number of the recording in which this thread has entered the last of these calls.
thread_local std::uint64_t entered_in = 0;

}  // namespace

void FirstWork::expect() {
  begun_.store(false);
  returned_.store(0);
  expected_.store(true);
}

void FirstWork::cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) {
  callbacks_ = &callbacks;
  for (const ApiFunction& function : cupti.api_functions())
    if (submits_work(function.name)) calls_.push_back(function);
}

// Watch from here on: a call that was entered before the kinds were enabled has no rows.
void FirstWork::kinds_enabled(const AttachContext&) {
  watching_.store(false);
  if (!expected_.exchange(false)) return;
  recording_.fetch_add(1);
  for (const ApiFunction& call : calls_) callbacks_->watch(*this, call.domain, call.id);
  watching_.store(true);
}

void FirstWork::on_callback(CUpti_CallbackDomain, CUpti_CallbackId, const void* data) noexcept {
  if (data == nullptr || returned_.load() != 0) return;
  if (static_cast<const CUpti_CallbackData*>(data)->callbackSite == CUPTI_API_ENTER) {
    entered_in = recording_.load();
    begun_.store(true);
    return;
  }
  if (entered_in != recording_.load()) return;
  std::uint64_t none = 0;
  returned_.compare_exchange_strong(none, now_ns());
}

// Not called in the callback, where the program would wait for it.
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
