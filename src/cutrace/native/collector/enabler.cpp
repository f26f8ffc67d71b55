#include "enabler.h"

#include <algorithm>
#include <thread>

namespace cutrace {
namespace {

constexpr KindSet kOnGpu = bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset);

// cuDevicePrimaryCtxRetain, through which the runtime makes its contexts, cuCtxCreate_v4, ...
bool makes_context(std::string_view name) {
  return name.find("PrimaryCtxRetain") != name.npos || name.find("CtxCreate") != name.npos;
}

bool gives_work(std::string_view name) {
  constexpr std::string_view kBeginnings[] = {"cudaLaunch", "cudaMemcpy", "cudaMemset", "cudaMemPrefetch", "cudaGraphLaunch",
                                              "cuLaunch",   "cuMemcpy",   "cuMemset",   "cuMemPrefetch",   "cuGraphLaunch"};
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](std::string_view beginning) { return name.substr(0, beginning.size()) == beginning; });
}

}  // namespace

void Enabler::enable(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber, KindSet kinds, ApiFilter api,
                     bool graph_nodes, bool before_cuda) {
  cupti_ = &cupti;
  subscriber_ = subscriber;
  graph_nodes_ = graph_nodes;
  later_ = before_cuda ? kinds & kOnGpu : 0;
  enabled_ = enable_kinds(cupti, kinds & ~later_, api, graph_nodes, before_cuda);
  if (later_ != 0 && !wait_for_work()) enable_later();
}

bool Enabler::wait_for_work() {
  if (cupti_->EnableCallback == nullptr || cupti_->GetCallbackName == nullptr) return false;
  context_made_.store(false);
  work_waits_.store(false);
  context_calls_.clear();
  for_each_call(*cupti_, CUPTI_CB_DOMAIN_DRIVER_API, [&](std::uint32_t id, std::string_view name) {
    if (makes_context(name)) context_calls_.push_back(id);
  });
  if (context_calls_.empty()) return false;
  state_.store(State::waiting);
  if (watch(true)) return true;
  watch(false);
  state_.store(State::settled);
  return false;
}

bool Enabler::watch(bool on) {
  bool worked = true;
  const auto set = [&](CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    worked &= cupti_->EnableCallback(on ? 1 : 0, subscriber_, domain, id) == CUPTI_SUCCESS;
  };
  set(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  set(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
  for (std::uint32_t id : context_calls_) set(CUPTI_CB_DOMAIN_DRIVER_API, id);
  for (CUpti_CallbackDomain domain : {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API})
    for_each_call(*cupti_, domain, [&](std::uint32_t id, std::string_view name) {
      if (gives_work(name)) set(domain, id);
    });
  return worked;
}

void Enabler::enable_later() {
  const EnabledKinds more = enable_kinds(*cupti_, later_, ApiFilter::none, graph_nodes_, false);
  enabled_.kinds |= more.kinds;
  enabled_.activities.insert(enabled_.activities.end(), more.activities.begin(), more.activities.end());
  enabled_.refused.insert(enabled_.refused.end(), more.refused.begin(), more.refused.end());
}

void Enabler::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id) noexcept {
  if (state_.load() != State::waiting) return;
  const bool resource = domain == CUPTI_CB_DOMAIN_RESOURCE;
  if (resource && id == CUPTI_CBID_RESOURCE_CONTEXT_CREATED) return context_made_.store(true);
  const bool makes_context = domain == CUPTI_CB_DOMAIN_DRIVER_API &&
                             std::find(context_calls_.begin(), context_calls_.end(), id) != context_calls_.end();
  if (!context_made_.load()) {
    if (!resource && !makes_context) work_waits_.store(true);
    return;
  }
  if (makes_context && !work_waits_.load()) return;
  State waiting = State::waiting;
  if (!state_.compare_exchange_strong(waiting, State::enabling)) return;
  try {
    enable_later();
    watch(false);
  } catch (const std::exception&) {  // no memory for a list: what is enabled is recorded all the same
  }
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
