#include "kinds.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "blocked_signals.h"
#include "../../common/text.h"  // a relative path, because the benchmarks build this file without the include folders

namespace cutrace {
namespace {

constexpr std::array<const char*, static_cast<std::size_t>(Kind::count)> kNames = {
    "kernel", "memcpy", "memset", "api", "sync", "event", "memory", "pool", "overhead", "device", "context",
    "stream", "name", "nvtx", "module", "jit", "unified_memory", "environment", "external"};

constexpr std::array<std::string_view, static_cast<std::size_t>(CallGroup::count)> kGroupNames = {"sync", "alloc", "copy", "launch"};

// Prefixes of function names, after "cuda" in the runtime and "cu" in the driver.
constexpr std::string_view kLaunches[] = {"Launch", "GraphLaunch"};
constexpr std::string_view kCopies[] = {"Memcpy", "Memset", "MemPrefetch"};
constexpr std::string_view kWaits[] = {
    "StreamSynchronize", "EventSynchronize", "DeviceSynchronize", "ThreadSynchronize", "CtxSynchronize",
    "ExecutionCtxSynchronize"};
constexpr std::string_view kAllocations[] = {"MemPoolCreate", "MemPoolDestroy", "MemPoolTrimTo"};
constexpr std::string_view kAllocationsRuntime[] = {"Malloc", "Free", "HostAlloc", "HostRegister", "HostUnregister"};
constexpr std::string_view kAllocationsDriver[] = {
    "MemAlloc", "MemFree", "MemHostAlloc", "MemHostRegister", "MemHostUnregister", "MemCreate", "MemRelease", "MemMap",
    "MemUnmap"};

// Other calls that are useful in a timeline. Queries (cudaGetLastError, cudaEventQuery, ...) run thousands of times a step and are
// not useful. Calls of GetGlobal show which copies are into the variables of a module.
constexpr std::string_view kKept[] = {
    "MemDiscard", "GraphAdd", "GraphInstantiate", "GraphUpload", "GraphExecUpdate", "LibraryLoad", "LibraryUnload",
    "LibraryGetGlobal"};
constexpr std::string_view kKeptRuntime[] = {"DeviceReset"};
constexpr std::string_view kKeptDriver[] = {"ModuleLoad", "ModuleUnload", "ModuleGetGlobal", "LinkComplete"};

bool starts_with_any(std::string_view name, std::span<const std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

bool is_runtime(std::string_view name) { return name.starts_with("cuda") || name.starts_with("__cuda"); }

// "LaunchKernel_v7000" for "cudaLaunchKernel_v7000" and "__cudaLaunchKernel_v7000", "LaunchKernel" for "cuLaunchKernel".
std::string_view without_prefix(std::string_view name) {
  if (name.starts_with("__")) name.remove_prefix(2);
  for (const std::string_view prefix : {"cuda", "cu"})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return {};
}

struct Activity {
  Kind kind;
  CUpti_ActivityKind activity;
  const char* name;
};

// Without KIND_KERNEL, which makes kernels run one at a time.
constexpr Activity kActivities[] = {
    {Kind::kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernel"},
    {Kind::memcpy, CUPTI_ACTIVITY_KIND_MEMCPY, "memcpy"},
    {Kind::memcpy, CUPTI_ACTIVITY_KIND_MEMCPY2, "memcpy (peer to peer)"},
    {Kind::memset, CUPTI_ACTIVITY_KIND_MEMSET, "memset"},
    {Kind::sync, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, "sync"},
    {Kind::event, CUPTI_ACTIVITY_KIND_CUDA_EVENT, "event"},
    {Kind::overhead, CUPTI_ACTIVITY_KIND_OVERHEAD, "overhead"},
    {Kind::device, CUPTI_ACTIVITY_KIND_DEVICE, "device"},
    {Kind::context, CUPTI_ACTIVITY_KIND_CONTEXT, "context"},
    {Kind::stream, CUPTI_ACTIVITY_KIND_STREAM, "stream"},
    {Kind::name, CUPTI_ACTIVITY_KIND_NAME, "name"},
    {Kind::module, CUPTI_ACTIVITY_KIND_MODULE, "module"},
    {Kind::module, CUPTI_ACTIVITY_KIND_FUNCTION, "module (functions)"},
    {Kind::jit, CUPTI_ACTIVITY_KIND_JIT, "jit"},
    {Kind::unified_memory, CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER, "unified_memory"},
    {Kind::environment, CUPTI_ACTIVITY_KIND_ENVIRONMENT, "environment"},
    {Kind::external, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, "external"},
};

void enable_activity(const CuptiLibrary& cupti, Kind kind, CUpti_ActivityKind activity, const char* name, bool dump,
                     EnabledKinds& out) {
  const CUptiResult result = cupti.enable(activity, dump);
  if (result != CUPTI_SUCCESS) {
    out.refused.push_back({name, cupti.error_name(result)});
    return;
  }
  out.activities.push_back(activity);
  out.kinds |= bit(kind);
}

std::string option_of(const KeptCalls& keeps) {
  return keeps.filter == ApiFilter::launch ? "api=launch" : "the calls with stacks";
}

// One call of each API that stays enabled between windows, see Enabler::keep_calls_possible().
bool stays_enabled(std::string_view name) { return name.starts_with("cudaDeviceReset") || name == "cuLinkComplete"; }

// Turns calls on or off: the kept ones with `kept`, else all others. Adds refusals to `out`. `but_one`: skips the calls that stay
// enabled.
void set_calls(const CuptiLibrary& cupti, const KeptCalls& keeps, bool kept, bool on, EnabledKinds& out, bool but_one = false) {
  std::string_view first;
  CUptiResult error = CUPTI_SUCCESS;
  int refused = 0;
  for (const ApiFunction& function : cupti.api_functions()) {
    if (keeps(function.name) != kept || (but_one && stays_enabled(function.name))) continue;
    const CUptiResult result = cupti.enable_call(function.domain, function.id, on);
    // A CUPTI newer than the driver lists calls that the driver does not have.
    if (result == CUPTI_SUCCESS || result == CUPTI_ERROR_INVALID_PARAMETER || refused++ != 0) continue;
    first = function.name;
    error = result;
  }
  if (refused == 0) return;
  const std::string more = refused > 1 ? " and " + std::to_string(refused - 1) + " more" : "";
  out.refused.push_back({"a part of " + option_of(keeps) + ": " + std::string(first) + more, cupti.error_name(error)});
}

// With single calls enabled, the other calls cost nothing. When CUDA is already in use, CUPTI 13.5 accepts this, but CUPTI 13.0
// records no calls.
bool can_enable_by_call(const CuptiLibrary& cupti, bool before_cuda) {
  return cupti.has_filter() && (before_cuda || cupti.version >= kCupti_13_5);
}

void enable_api(const CuptiLibrary& cupti, const KeptCalls& keeps, bool by_call, EnabledKinds& out) {
  const bool all = keeps.filter == ApiFilter::all;
  if (!all && by_call) {
    set_calls(cupti, keeps, true, true, out);
    out.calls_one_by_one = keeps;
    out.kinds |= bit(Kind::api);
    return;
  }
  enable_activity(cupti, Kind::api, CUPTI_ACTIVITY_KIND_RUNTIME, "api (runtime)", false, out);
  enable_activity(cupti, Kind::api, CUPTI_ACTIVITY_KIND_DRIVER, "api (driver)", false, out);
  if (!all && cupti.has_filter()) set_calls(cupti, keeps, false, false, out);
  if (!all && !cupti.has_filter()) out.refused.push_back({option_of(keeps) + " (all calls are recorded instead)", "no filter for each call"});
}

// Enables each kind separately, and adds them or their refusals to `out`. `dump`: CUPTI also reports existing objects.
void enable_kinds(const CuptiLibrary& cupti, KindSet kinds, const KeptCalls& calls, bool dump, bool by_call, EnabledKinds& out) {
  // Programs poll events and streams in loops; a query of unfinished work is not a synchronisation.
  if ((kinds & bit(Kind::sync)) && cupti.ActivityEnableAllSyncRecords && !cupti.sharing.load()) cupti.ActivityEnableAllSyncRecords(0);
  constexpr KindSet kObjects = bit(Kind::device) | bit(Kind::context) | bit(Kind::stream);
  for (const Activity& a : kActivities)
    if (kinds & bit(a.kind)) enable_activity(cupti, a.kind, a.activity, a.name, dump && (kObjects & bit(a.kind)), out);
  if (!calls.none()) enable_api(cupti, calls, by_call, out);
}

// Kinds without an activity of CUPTI, which features record.
constexpr KindSet kByFeatures = bit(Kind::memory) | bit(Kind::pool);

constexpr KindSet kOnGpu = bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset);

// cuDevicePrimaryCtxRetain (the runtime creates its contexts with it), cuCtxCreate_v4, ...
bool creates_context(const ApiFunction& function) {
  return function.domain == CUPTI_CB_DOMAIN_DRIVER_API &&
         (function.name.find("PrimaryCtxRetain") != function.name.npos || function.name.find("CtxCreate") != function.name.npos);
}

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

}  // namespace

std::vector<std::string> kind_names(KindSet kinds) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kinds >> i & 1) names.emplace_back(kNames[i]);
  return names;
}

bool parse_kinds(std::string_view list, KindSet& kinds) {
  kinds = 0;
  while (!list.empty()) {
    const std::string_view name = next_word(list, ",");
    const auto it = std::ranges::find(kNames, name);
    if (name == "default") kinds |= kDefaultKinds;
    else if (it != kNames.end()) kinds |= bit(static_cast<Kind>(it - kNames.begin()));
    else if (!name.empty()) return false;
  }
  return true;
}

bool parse_api_filter(std::string_view text, ApiFilter& filter) {
  constexpr std::string_view kFilters[] = {"launch", "all", "none"};
  const auto it = std::find(std::begin(kFilters), std::end(kFilters), text);
  if (it == std::end(kFilters)) return false;
  filter = static_cast<ApiFilter>(it - std::begin(kFilters));
  return true;
}

std::optional<CallGroup> parse_call_group(std::string_view word) {
  const auto it = std::ranges::find(kGroupNames, word);
  if (it == kGroupNames.end()) return std::nullopt;
  return static_cast<CallGroup>(it - kGroupNames.begin());
}

std::optional<CallGroups> parse_call_groups(std::string_view words) {
  CallGroups groups = 0;
  while (!words.empty()) {
    const std::optional<CallGroup> group = parse_call_group(trimmed(next_word(words, ",")));
    if (!group) return std::nullopt;
    groups |= bit(*group);
  }
  return groups;
}

CallGroups call_groups(std::string_view name) {
  const std::string_view call = without_prefix(name);
  CallGroups groups = 0;
  if (starts_with_any(call, kLaunches)) groups |= bit(CallGroup::launch);
  if (starts_with_any(call, kCopies)) groups |= bit(CallGroup::copy);
  const bool waiting_copy = call.starts_with("Memcpy") && call.find("Async") == call.npos;
  if (waiting_copy || starts_with_any(call, kWaits)) groups |= bit(CallGroup::sync);
  const bool of_domain = is_runtime(name) ? starts_with_any(call, kAllocationsRuntime) : starts_with_any(call, kAllocationsDriver);
  if (of_domain || starts_with_any(call, kAllocations)) groups |= bit(CallGroup::alloc);
  return groups;
}

bool submits_work(std::string_view name) {
  const std::string_view call = without_prefix(name);
  return !name.starts_with("__") && (starts_with_any(call, kLaunches) || starts_with_any(call, kCopies));
}

bool keeps_api_call(std::string_view name) {
  const std::string_view call = without_prefix(name);
  const bool of_domain = is_runtime(name) ? starts_with_any(call, kKeptRuntime) : starts_with_any(call, kKeptDriver);
  return of_domain || starts_with_any(call, kKept) || call_groups(name) != 0;
}

// ---- when ----

KindSet Enabler::enable(const CuptiLibrary& cupti, Callbacks& callbacks, KindSet kinds, KeptCalls calls, bool whole_graphs,
                        bool before_cuda) {
  cupti_ = &cupti;
  callbacks_ = &callbacks;
  deferred_ = before_cuda && !whole_graphs ? kinds & kOnGpu : 0;
  without_memory_.store(false);
  {
    const std::lock_guard lock(refused_mutex_);
    holds_ = false;
  }
  enabled_ = {};
  enabled_.kinds = kinds & kByFeatures;
  if ((kinds & bit(Kind::api)) == 0) calls.filter = ApiFilter::none;
  enable_kinds(cupti, kinds & ~deferred_, calls, !before_cuda, can_enable_by_call(cupti, before_cuda), enabled_);
  // One row for each graph launch replaces the rows of its nodes.
  if (whole_graphs) enable_activity(cupti, Kind::kernel, CUPTI_ACTIVITY_KIND_GRAPH_TRACE, "graph=graph", false, enabled_);
  const KindSet all = enabled_.kinds | deferred_;
  if (deferred_ == 0 || watch_for_work()) return all;
  enable_deferred();
  return enabled_.kinds;
}

bool Enabler::watch_for_work() {
  if (!callbacks_->available()) return false;
  if (calls_.empty())
    for (const ApiFunction& function : cupti_->api_functions())
      if (submits_work(function.name) || creates_context(function))
        calls_.push_back({function.domain, function.id, submits_work(function.name)});
  if (std::ranges::all_of(calls_, &WatchedCall::submits_work)) return false;
  context_made_.store(false);
  work_waits_.store(false);
  state_.store(State::waiting);
  if (watch(true)) return true;
  watch(false);
  state_.store(State::settled);
  return false;
}

bool Enabler::watch(bool on) {
  bool accepted = true;
  const auto set = [&](CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    if (on) accepted &= callbacks_->watch(*this, domain, id);
    else callbacks_->unwatch(*this, domain, id);
  };
  set(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  set(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
  for (const WatchedCall& call : calls_) set(call.domain, call.id);
  return accepted;
}

void Enabler::enable_deferred() {
  enable_kinds(*cupti_, deferred_, {ApiFilter::none, 0}, true, false, enabled_);
}

void Enabler::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void*) noexcept {
  const State state = state_.load();
  if (state != State::waiting && state != State::enabling) return;
  bool submits_work = false;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    if (id == CUPTI_CBID_RESOURCE_CONTEXT_CREATED) return context_made_.store(true);
    if (id != CUPTI_CBID_RESOURCE_MODULE_LOADED || !context_made_.load()) return;
  } else {
    const auto call = std::ranges::find_if(calls_, [&](const WatchedCall& c) { return c.domain == domain && c.id == id; });
    if (call == calls_.end()) return;
    submits_work = call->submits_work;
    if (!context_made_.load()) {
      if (submits_work) work_waits_.store(true);
      return;
    }
    if (!submits_work && !work_waits_.load()) return;
  }
  const BlockedCancellation whole;
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
  } else if (submits_work && !pthread_equal(enabling_thread_.load(), pthread_self())) {
    // A thread may wait at the entry of a call, because it holds no lock of the driver there. It holds such locks in resource
    // callbacks, so they do not wait.
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    while (state_.load() == State::enabling && std::chrono::steady_clock::now() < end) pause();
  }
}

void Enabler::settle() {
  State waiting = State::waiting;
  if (!state_.compare_exchange_strong(waiting, State::settled))
    while (state_.load() != State::settled) pause();
}

std::vector<Refusal> Enabler::refused() const {
  const std::lock_guard lock(refused_mutex_);
  if (holds_) return refused_;
  if (!settled()) return {};
  std::vector<Refusal> refused = enabled_.refused;
  if (without_memory_.load()) refused.push_back({"a part of kernels, copies and fills", "no memory"});
  return refused;
}

void Enabler::disable() {
  settle();
  suspend();
  if (keeps_call_) keep_calls_possible(false);
}

// ---- windows ----

KindSet Enabler::hold(const CuptiLibrary& cupti, Callbacks& callbacks, KindSet kinds, KeptCalls calls, bool before_cuda) {
  cupti_ = &cupti;
  callbacks_ = &callbacks;
  deferred_ = 0;
  without_memory_.store(false);
  enabled_ = {};
  {
    const std::lock_guard lock(refused_mutex_);
    holds_ = true;
    refused_.clear();
  }
  held_kinds_ = kinds;
  held_calls_ = calls;
  if ((kinds & bit(Kind::api)) == 0) held_calls_.filter = ApiFilter::none;
  by_call_ = can_enable_by_call(cupti, before_cuda);
  keeps_call_ = false;
  const bool some_calls = !held_calls_.none() && held_calls_.filter != ApiFilter::all;
  if (by_call_ && some_calls && cupti.version < kCupti_13_5) keep_calls_possible(true);
  return held_kinds_;
}

// CUPTI 13.0 records calls that are enabled one by one in mid-program only if one call was enabled inside cuInit() and still is
// (docs/internals/collector.md). So one call of each API stays enabled. Programs rarely make these two calls.
void Enabler::keep_calls_possible(bool on) {
  for (const ApiFunction& function : cupti_->api_functions())
    if (stays_enabled(function.name)) cupti_->enable_call(function.domain, function.id, on);
  keeps_call_ = on;
}

// A thread waits inside these calls while a window opens or closes. CUPTI would keep its buffer meanwhile.
void Enabler::leave_out_profiler_calls() const {
  if (held_calls_.filter != ApiFilter::all || !cupti_->has_filter()) return;
  for (const ApiFunction& function : cupti_->api_functions())
    if (function.name.find("Profiler") != function.name.npos) cupti_->enable_call(function.domain, function.id, false);
}

KindSet Enabler::resume(bool before_cuda) {
  EnabledKinds enabled;
  enabled.kinds = held_kinds_ & kByFeatures;
  enable_kinds(*cupti_, held_kinds_, held_calls_, !before_cuda, by_call_, enabled);
  leave_out_profiler_calls();
  {
    const std::lock_guard lock(refused_mutex_);
    refused_ = enabled.refused;
  }
  enabled_ = std::move(enabled);
  return enabled_.kinds;
}

void Enabler::suspend() {
  EnabledKinds unused;  // not enabled_: the writer may read its refusals
  if (enabled_.calls_one_by_one) set_calls(*cupti_, *enabled_.calls_one_by_one, true, false, unused, keeps_call_);
  for (const CUpti_ActivityKind kind : enabled_.activities) cupti_->disable(kind);
  if (holds_) enabled_ = {};
}

}  // namespace cutrace
