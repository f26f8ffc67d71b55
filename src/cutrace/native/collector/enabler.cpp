#include "enabler.h"

#include <thread>

namespace cutrace {
namespace {

constexpr KindSet kOnGpu = bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset);

}  // namespace

void Enabler::enable(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber, KindSet kinds, ApiFilter api,
                     bool graph_nodes, bool before_cuda) {
  cupti_ = &cupti;
  subscriber_ = subscriber;
  graph_nodes_ = graph_nodes;
  later_ = before_cuda ? kinds & kOnGpu : 0;
  enabled_ = enable_kinds(cupti, kinds & ~later_, api, graph_nodes, before_cuda);
  if (later_ != 0 && !wait_for_context()) enable_later();
}

bool Enabler::wait_for_context() {
  if (cupti_->EnableCallback == nullptr || cupti_->EnableDomain == nullptr) return false;
  state_.store(State::waiting);
  if (cupti_->EnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED) == CUPTI_SUCCESS)
    return true;
  State waiting = State::waiting;
  return !state_.compare_exchange_strong(waiting, State::settled);
}

void Enabler::enable_later() {
  const EnabledKinds more = enable_kinds(*cupti_, later_, ApiFilter::none, graph_nodes_, false);
  enabled_.kinds |= more.kinds;
  enabled_.activities.insert(enabled_.activities.end(), more.activities.begin(), more.activities.end());
  enabled_.refused.insert(enabled_.refused.end(), more.refused.begin(), more.refused.end());
}

void Enabler::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id) noexcept {
  if (state_.load() != State::waiting) return;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_CONTEXT_CREATED) {
    // Here is too early still: the driver has yet to allocate for the context. The end of the call that makes the
    // context will do, or the beginning of whichever comes next. Where calls cannot be seen, late beats never.
    if (cupti_->EnableDomain(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS) return;
  } else if (domain != CUPTI_CB_DOMAIN_DRIVER_API) {
    return;
  }
  State waiting = State::waiting;
  if (!state_.compare_exchange_strong(waiting, State::enabling)) return;
  try {
    enable_later();
  } catch (const std::exception&) {  // no memory for a list: what is enabled is recorded all the same
  }
  cupti_->EnableDomain(0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API);
  cupti_->EnableCallback(0, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  state_.store(State::settled);
}

void Enabler::settle() {
  State waiting = State::waiting;
  if (state_.compare_exchange_strong(waiting, State::settled)) return;
  while (state_.load() == State::enabling) std::this_thread::yield();
}

void Enabler::disable() {
  settle();
  disable_kinds(*cupti_, enabled_);
}

}  // namespace cutrace
