#include "enabler.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

namespace cutrace {
namespace {

constexpr KindSet kOnGpu = bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset);

// cuDevicePrimaryCtxRetain, through which the runtime makes its contexts, cuCtxCreate_v4, ...
bool makes_context(const ApiFunction& function) {
  return function.domain == CUPTI_CB_DOMAIN_DRIVER_API &&
         (function.name.find("PrimaryCtxRetain") != function.name.npos || function.name.find("CtxCreate") != function.name.npos);
}

template <typename Condition>
void wait_while(Condition&& condition) {
  while (condition()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

KindSet Enabler::enable(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber, KindSet kinds, ApiFilter api,
                        bool graph_nodes, bool before_cuda) {
  cupti_ = &cupti;
  subscriber_ = subscriber;
  graph_nodes_ = graph_nodes;
  deferred_ = before_cuda ? kinds & kOnGpu : 0;
  without_memory_.store(false);
  enabled_ = enable_kinds(cupti, kinds & ~deferred_, api, graph_nodes, before_cuda);
  const KindSet all = enabled_.kinds | deferred_;
  if (deferred_ == 0 || watch_for_work()) return all;
  enable_deferred();
  return enabled_.kinds;
}

bool Enabler::watch_for_work() {
  if (cupti_->EnableCallback == nullptr) return false;
  if (calls_.empty())
    for (const ApiFunction& function : cupti_->api_functions())
      if (gives_work(function.name) || makes_context(function))
        calls_.push_back({function.domain, function.id, gives_work(function.name)});
  if (std::all_of(calls_.begin(), calls_.end(), [](const Call& call) { return call.gives_work; })) return false;
  context_made_.store(false);
  work_waits_.store(false);
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
  for (const Call& call : calls_) set(call.domain, call.id);
  return worked;
}

void Enabler::enable_deferred() {
  EnabledKinds more = enable_kinds(*cupti_, deferred_, ApiFilter::none, graph_nodes_, false);
  enabled_.kinds |= more.kinds;
  enabled_.activities.insert(enabled_.activities.end(), more.activities.begin(), more.activities.end());
  std::move(more.refused.begin(), more.refused.end(), std::back_inserter(enabled_.refused));
}

void Enabler::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id) noexcept {
  const State state = state_.load();
  if (state != State::waiting && state != State::enabling) return;
  bool gives_work = false;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    if (id == CUPTI_CBID_RESOURCE_CONTEXT_CREATED) return context_made_.store(true);
    if (id != CUPTI_CBID_RESOURCE_MODULE_LOADED || !context_made_.load()) return;
  } else {
    const auto same = [&](const Call& call) { return call.domain == domain && call.id == id; };
    const auto call = std::find_if(calls_.begin(), calls_.end(), same);
    if (call == calls_.end()) return;
    gives_work = call->gives_work;
    if (!context_made_.load()) {
      if (gives_work) work_waits_.store(true);
      return;
    }
    if (!gives_work && !work_waits_.load()) return;
  }
  State waiting = State::waiting;
  if (state_.compare_exchange_strong(waiting, State::enabling)) {
    enabling_thread_.store(pthread_self());
    try {
      enable_deferred();
    } catch (const std::exception&) {
      without_memory_.store(true);
    }
    state_.store(State::unwatching);
    enabling_thread_.store({});
    watch(false);
    state_.store(State::settled);
  } else if (gives_work && !pthread_equal(enabling_thread_.load(), pthread_self())) {
    // At the beginning of a call its thread holds no lock of the driver. Inside resource callbacks it does, so these go on.
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    wait_while([&] { return state_.load() == State::enabling && std::chrono::steady_clock::now() < end; });
  }
}

void Enabler::settle() {
  State waiting = State::waiting;
  if (!state_.compare_exchange_strong(waiting, State::settled)) wait_while([&] { return state_.load() != State::settled; });
}

std::vector<Refusal> Enabler::refused() const {
  if (!settled()) return {};
  std::vector<Refusal> refused = enabled_.refused;
  if (without_memory_.load()) refused.push_back({"a part of kernels, copies and fills", "no memory"});
  return refused;
}

void Enabler::disable() {
  settle();
  disable_kinds(*cupti_, enabled_);
}

}  // namespace cutrace
