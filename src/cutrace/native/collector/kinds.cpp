#include "kinds.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

namespace cutrace {
namespace {

constexpr std::array<const char*, static_cast<std::size_t>(Kind::count)> kNames = {
    "kernel", "memcpy", "memset", "api", "sync", "event", "memory", "pool", "overhead", "device", "context",
    "stream", "name", "nvtx", "module", "jit", "unified_memory", "environment", "external"};

// Beginnings of names, in the runtime behind "cuda" and in the driver behind "cu".
constexpr std::string_view kWork[] = {"Launch", "Memcpy", "Memset", "MemPrefetch", "GraphLaunch"};

// What is worth its cost in a timeline beside that: waiting for work, memory taken, code loaded. Queries (cudaGetLastError,
// cudaEventQuery, ...) run thousands of times a step and tell nothing.
constexpr std::string_view kKept[] = {
    "MemDiscard", "GraphInstantiate", "GraphUpload", "GraphExecUpdate", "StreamSynchronize", "EventSynchronize",
    "MemPoolCreate", "MemPoolDestroy", "MemPoolTrimTo", "LibraryLoad", "LibraryUnload"};
constexpr std::string_view kKeptRuntime[] = {
    "DeviceSynchronize", "ThreadSynchronize", "ExecutionCtxSynchronize", "Malloc", "Free", "HostAlloc", "HostRegister",
    "HostUnregister", "DeviceReset"};
constexpr std::string_view kKeptDriver[] = {
    "CtxSynchronize", "MemAlloc", "MemFree", "MemHostAlloc", "MemHostRegister", "MemHostUnregister", "MemCreate",
    "MemRelease", "MemMap", "MemUnmap", "ModuleLoad", "ModuleUnload", "LinkComplete"};

template <std::size_t N>
bool starts_with_any(std::string_view name, const std::string_view (&prefixes)[N]) {
  return std::any_of(std::begin(prefixes), std::end(prefixes), [&](auto prefix) { return name.starts_with(prefix); });
}

bool is_runtime(std::string_view name) { return name.starts_with("cuda") || name.starts_with("__cuda"); }

// "LaunchKernel_v7000" of "cudaLaunchKernel_v7000" and of "__cudaLaunchKernel_v7000", "LaunchKernel" of "cuLaunchKernel".
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

// KIND_KERNEL is missing on purpose: it makes kernels run one at a time.
constexpr Activity kActivities[] = {
    {Kind::kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernel"},
    {Kind::memcpy, CUPTI_ACTIVITY_KIND_MEMCPY, "memcpy"},
    {Kind::memcpy, CUPTI_ACTIVITY_KIND_MEMCPY2, "memcpy (peer to peer)"},
    {Kind::memset, CUPTI_ACTIVITY_KIND_MEMSET, "memset"},
    {Kind::sync, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, "sync"},
    {Kind::event, CUPTI_ACTIVITY_KIND_CUDA_EVENT, "event"},
    {Kind::memory, CUPTI_ACTIVITY_KIND_MEMORY2, "memory"},
    {Kind::pool, CUPTI_ACTIVITY_KIND_MEMORY_POOL, "pool"},
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

// Sets all calls that ApiFilter::launch keeps, or all that it drops, and says which CUPTI refused.
std::optional<Refusal> set_calls(const CuptiLibrary& cupti, bool kept, bool on) {
  std::string first;
  CUptiResult error = CUPTI_SUCCESS;
  int refused = 0;
  for (const ApiFunction& function : cupti.api_functions()) {
    if (keeps_api_call(function.name) != kept) continue;
    const CUptiResult result = cupti.enable_call(function.domain, function.id, on);
    // A CUPTI that is newer than the driver knows calls that the program cannot make.
    if (result == CUPTI_SUCCESS || result == CUPTI_ERROR_INVALID_PARAMETER || refused++ != 0) continue;
    first = function.name;
    error = result;
  }
  if (refused == 0) return {};
  const std::string more = refused > 1 ? " and " + std::to_string(refused - 1) + " more" : "";
  return Refusal{"a part of api=launch: " + first + more, cupti.error_name(error)};
}

void enable_api(const CuptiLibrary& cupti, ApiFilter filter, bool before_cuda, EnabledKinds& out) {
  if (filter == ApiFilter::none) return;
  const bool by_call = cupti.has_filter();
  const auto set = [&](bool kept, bool on) {
    if (auto refusal = set_calls(cupti, kept, on)) out.refused.push_back(std::move(*refusal));
  };
  // Each wanted call on: the others then cost nothing. When CUDA is in use already, CUPTI 13.5 records calls that way, and
  // 13.0 records none.
  if (filter == ApiFilter::launch && by_call && (before_cuda || cupti.version >= kCupti_13_5)) {
    set(true, true);
    out.calls_one_by_one = true;
    out.kinds |= bit(Kind::api);
    return;
  }
  enable_activity(cupti, Kind::api, CUPTI_ACTIVITY_KIND_RUNTIME, "api (runtime)", false, out);
  enable_activity(cupti, Kind::api, CUPTI_ACTIVITY_KIND_DRIVER, "api (driver)", false, out);
  if (filter == ApiFilter::launch && by_call) set(false, false);
  if (filter == ApiFilter::launch && !by_call)
    out.refused.push_back({"api=launch (all calls are recorded instead)", "no filter for each call"});
}

}  // namespace

const char* kind_name(Kind kind) { return kNames[static_cast<std::size_t>(kind)]; }

bool parse_kinds(std::string_view list, KindSet& kinds) {
  kinds = 0;
  while (!list.empty()) {
    const auto comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
    if (name.empty()) continue;
    if (name == "default") {
      kinds |= kDefaultKinds;
      continue;
    }
    const auto it = std::find(kNames.begin(), kNames.end(), name);
    if (it == kNames.end()) return false;
    kinds |= bit(static_cast<Kind>(it - kNames.begin()));
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

bool gives_work(std::string_view name) {
  return !name.starts_with("__") && starts_with_any(without_prefix(name), kWork);
}

bool keeps_api_call(std::string_view name) {
  const std::string_view call = without_prefix(name);
  return starts_with_any(call, kWork) || starts_with_any(call, kKept) ||
         (is_runtime(name) ? starts_with_any(call, kKeptRuntime) : starts_with_any(call, kKeptDriver));
}

EnabledKinds enable_kinds(const CuptiLibrary& cupti, KindSet kinds, ApiFilter api, bool graph_nodes,
                          bool before_cuda) {
  EnabledKinds out;
  // Programs poll events and streams in loops; a query that found the work unfinished is no synchronisation.
  if ((kinds & bit(Kind::sync)) && cupti.ActivityEnableAllSyncRecords && !cupti.sharing.load()) cupti.ActivityEnableAllSyncRecords(0);
  constexpr KindSet kObjects = bit(Kind::device) | bit(Kind::context) | bit(Kind::stream);
  for (const Activity& a : kActivities)
    if (kinds & bit(a.kind)) enable_activity(cupti, a.kind, a.activity, a.name, !before_cuda && (kObjects & bit(a.kind)), out);
  // One row a graph launch replaces the rows of its nodes.
  if ((kinds & bit(Kind::kernel)) && !graph_nodes)
    enable_activity(cupti, Kind::kernel, CUPTI_ACTIVITY_KIND_GRAPH_TRACE, "graph=graph", false, out);
  if (kinds & bit(Kind::api)) enable_api(cupti, api, before_cuda, out);
  return out;
}

void disable_kinds(const CuptiLibrary& cupti, const EnabledKinds& enabled) {
  if (enabled.calls_one_by_one) set_calls(cupti, true, false);
  for (CUpti_ActivityKind kind : enabled.activities) cupti.disable(kind);
}

}  // namespace cutrace
