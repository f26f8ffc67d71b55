#include "first_work.h"

#include "core/clock.h"

namespace cutrace {

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

void FirstWork::attach(const AttachContext&) {
  watching_.store(false);
  if (!expected_.exchange(false)) return;
  for (const ApiFunction& call : calls_) callbacks_->watch(*this, call.domain, call.id);
  watching_.store(true);
}

void FirstWork::on_callback(CUpti_CallbackDomain, CUpti_CallbackId, const void* data) noexcept {
  if (data == nullptr || returned_.load() != 0) return;
  begun_.store(true);
  if (static_cast<const CUpti_CallbackData*>(data)->callbackSite != CUPTI_API_EXIT) return;
  std::uint64_t none = 0;
  returned_.compare_exchange_strong(none, now_ns());
}

// Not in the callback, where the program would wait for it.
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
