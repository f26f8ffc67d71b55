// The CUPTI activity kinds that a recording enables, the API calls that it keeps, and when they are enabled.
//
// They are separate from cupti_source because the null collector of a benchmark must enable exactly the same kinds and calls.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../cuda/callbacks.h"
#include "../../cuda/cupti_library.h"

namespace cutrace {

// Kinds by the names that users write. The order gives the bits of a KindSet.
enum class Kind : std::uint32_t {
  kernel, memcpy, memset, api, sync, event, memory, pool, overhead, device, context, stream, name,
  nvtx, module, jit, unified_memory, environment, external, count
};

using KindSet = std::uint32_t;
constexpr KindSet bit(Kind kind) { return KindSet{1} << static_cast<std::uint32_t>(kind); }

// The other kinds are expensive (environment samples, unified memory), large (modules) or rarely needed. With sync or event, CUPTI
// 13.0 intercepts every API call, recorded or not: 0.9 us an operation in a PyTorch loop (docs/internals/collector.md). API calls
// already show the calls that wait.
inline constexpr KindSet kDefaultKinds =
    bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset) | bit(Kind::api) | bit(Kind::memory) | bit(Kind::pool) |
    bit(Kind::overhead) | bit(Kind::device) | bit(Kind::context) | bit(Kind::stream) | bit(Kind::name) | bit(Kind::nvtx);

enum class ApiFilter { launch, all, none };

std::vector<std::string> kind_names(KindSet kinds);
bool parse_kinds(std::string_view list, KindSet& kinds);  // comma-separated names; "default" means kDefaultKinds
bool parse_api_filter(std::string_view text, ApiFilter& filter);

// Kinds of API calls by their effect, in the order of the bits of a CallGroups.
enum class CallGroup : std::uint32_t { sync, alloc, copy, launch, count };

using CallGroups = std::uint32_t;
constexpr CallGroups bit(CallGroup group) { return CallGroups{1} << static_cast<std::uint32_t>(group); }

// "sync" -> CallGroup::sync; nullopt for another word.
std::optional<CallGroup> parse_call_group(std::string_view word);
// The groups in a list such as "sync,launch"; "" has none. nullopt if the list has another word.
std::optional<CallGroups> parse_call_groups(std::string_view words);
// The groups of the function that CUPTI calls `name`: a copy that waits for its end is in `copy` and in `sync`.
CallGroups call_groups(std::string_view name);

// Whether a call submits work to the GPU: "cudaLaunchKernel_v7000", "cuMemcpyHtoD_v2".
bool submits_work(std::string_view name);

// Whether ApiFilter::launch keeps the function that CUPTI calls `name`, e.g. "cudaLaunchKernel_v7000".
bool keeps_api_call(std::string_view name);

// The API calls that a recording keeps: the calls of a filter, and the calls of the groups.
struct KeptCalls {
  ApiFilter filter = ApiFilter::none;
  CallGroups groups = 0;

  bool operator()(std::string_view name) const {
    return filter == ApiFilter::all || (filter == ApiFilter::launch && keeps_api_call(name)) || (call_groups(name) & groups) != 0;
  }
  bool none() const { return filter == ApiFilter::none && groups == 0; }
};

struct Refusal {
  std::string what;   // activity kind or call
  std::string error;  // CUPTI's name for the error
};

struct EnabledKinds {
  std::vector<CUpti_ActivityKind> activities;  // enabled activity kinds, to be disabled later
  std::optional<KeptCalls> calls_one_by_one;   // API calls that were enabled by callback id, not by activity kind
  KindSet kinds = 0;                           // kinds that work at least in part
  std::vector<Refusal> refused;
};

// Enables the host kinds at once, and the GPU kinds (kernels, copies, fills) when there is a context.
//
// The cost of the GPU kinds depends on when they are enabled: CUPTI 13.0 spends 45 us on 256 nodes of a CUDA graph if they were
// enabled with the context, and 32 us if later (docs/internals/collector.md). So inside cuInit() they wait for the first module,
// or for the first call that submits work: nothing runs on the GPU before. If a call that submits work creates the context, they
// are enabled as soon as the context exists. Tracing of whole graphs does not wait, because it must precede the first graph.
//
// One thread enables them, inside its callback. Other threads that submit work meanwhile wait for it, because CUPTI would
// miss their first kernels. They hold no lock and poll the state, for kLongestWait at most.
class Enabler final : public CallbackHandler {
 public:
  // Starts a recording. The calls of groups are recorded even without Kind::api. `before_cuda`: inside cuInit(). Returns the
  // kinds that are enabled now or later.
  KindSet enable(const CuptiLibrary& cupti, Callbacks& callbacks, KindSet kinds, KeptCalls calls, bool whole_graphs,
                 bool before_cuda);
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  // Stops waiting for a context, and waits for a thread that is inside on_callback().
  void settle();
  void disable();
  // A recording of windows: enables only the calls that a later resume() needs. Returns the kinds to enable.
  KindSet hold(const CuptiLibrary& cupti, Callbacks& callbacks, KindSet kinds, KeptCalls calls, bool before_cuda);
  // One thread: enables the kinds of a recording of windows, and disables them again. resume() returns the kinds that work.
  KindSet resume(bool before_cuda);
  void suspend();
  // After fork, in the child: makes no more CUPTI calls.
  void forget() { state_.store(State::settled); }

  bool settled() const { return state_.load() == State::settled; }
  // The refused kinds and calls; empty while kinds wait for a context.
  std::vector<Refusal> refused() const;

 private:
  static constexpr std::chrono::seconds kLongestWait{5};

  // One thread moves from `waiting` to `enabling`. In `unwatching` the kinds are enabled, and this thread disables the callbacks.
  enum class State { settled, waiting, enabling, unwatching };
  struct WatchedCall {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    bool submits_work;  // false: it creates a context
  };

  bool watch_for_work();
  // Turns the callbacks about contexts, modules and work on or off. False when CUPTI refused one.
  bool watch(bool on);
  void enable_deferred();
  void keep_calls_possible(bool on);
  void leave_out_profiler_calls() const;

  const CuptiLibrary* cupti_ = nullptr;
  Callbacks* callbacks_ = nullptr;
  EnabledKinds enabled_;  // written by enable(), then by the thread that left State::waiting; others read it once settled
  KindSet deferred_ = 0;
  std::vector<WatchedCall> calls_;  // filled once per process, before CUPTI calls back
  // For a recording of windows, which may enable and disable its kinds many times.
  bool holds_ = false;
  KindSet held_kinds_ = 0;
  KeptCalls held_calls_;
  bool by_call_ = false;     // API calls can be enabled one by one
  bool keeps_call_ = false;  // one of these calls stays enabled
  mutable std::mutex refused_mutex_;
  std::vector<Refusal> refused_;  // with holds_, of the latest window only; both under refused_mutex_
  std::atomic<bool> without_memory_{false};
  std::atomic<bool> context_made_{false};
  std::atomic<bool> work_waits_{false};  // a call that submits work started before there was a context
  std::atomic<State> state_{State::settled};
  std::atomic<pthread_t> enabling_thread_{};
};

}  // namespace cutrace
