// Which CUPTI activity kinds a recording enables, which API calls it keeps, and when they are enabled.
//
// One place, because a benchmark that measures the cost of the collector against a null collector must enable
// exactly the same.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cupti_library.h"

namespace cutrace {

// Names of kinds as users write them; the order is that of the bits of a KindSet.
enum class Kind : std::uint32_t {
  kernel, memcpy, memset, api, sync, event, memory, pool, overhead, device, context, stream, name,
  nvtx, module, jit, unified_memory, environment, external, count
};

using KindSet = std::uint32_t;
constexpr KindSet bit(Kind kind) { return KindSet{1} << static_cast<std::uint32_t>(kind); }

// The other kinds are expensive (environment samples, unified memory), large (modules) or rarely wanted. Each of sync and event
// makes CUPTI 13.0 step into every API call, recorded or not: 0.9 us an operation in a PyTorch loop (docs/collector.md). The
// calls that wait are recorded anyway, as API calls.
inline constexpr KindSet kDefaultKinds =
    bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset) | bit(Kind::api) | bit(Kind::memory) | bit(Kind::pool) |
    bit(Kind::overhead) | bit(Kind::device) | bit(Kind::context) | bit(Kind::stream) | bit(Kind::name) | bit(Kind::nvtx);

enum class ApiFilter { launch, all, none };

const char* kind_name(Kind kind);
bool parse_kinds(std::string_view list, KindSet& kinds);  // comma-separated names; "default" stands for its kinds
bool parse_api_filter(std::string_view text, ApiFilter& filter);

// Whether ApiFilter::launch keeps the function that CUPTI calls `name`, e.g. "cudaLaunchKernel_v7000".
bool keeps_api_call(std::string_view name);
// Whether that function gives work to the GPU. False for __cudaLaunchKernel, which calls cuLaunchKernel.
bool gives_work(std::string_view name);

struct Refusal {
  std::string what;   // activity kind or call
  std::string error;  // CUPTI's name of the error
};

struct EnabledKinds {
  std::vector<CUpti_ActivityKind> activities;  // what was enabled and must be disabled
  bool calls_one_by_one = false;               // API calls were enabled by id and not by kind
  KindSet kinds = 0;                           // kinds of which at least a part works
  std::vector<Refusal> refused;
};

// Enables what the host does at once, and what the GPU does once there is a context.
//
// What kernels, copies and fills cost once they are enabled depends on when that was: CUPTI 13.0 spends 45 us on 256 nodes
// of a CUDA graph when it was with the context, and 32 us when it was later (docs/collector.md). So inside cuInit() they wait
// for the first module, or for the first call that gives work to the GPU: nothing can run there before. A call that gives
// work and makes the context on its way is the exception: then they are enabled as soon as there is a context.
//
// One thread enables them, inside its callback. Other threads that call in with work meanwhile wait for it, or CUPTI would not
// see their first kernels. No lock is held: they look at the state until it changes, for kLongestWait at most.
class Enabler {
 public:
  // Begins a recording: nothing of an earlier one is left. `before_cuda`: inside cuInit(). The subscriber's callback must then
  // lead to on_callback().
  // Returns the kinds that are enabled or will be.
  KindSet enable(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber, KindSet kinds, ApiFilter api,
                 bool graph_nodes, bool before_cuda);
  // The program's threads, inside CUPTI's callbacks.
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id) noexcept;
  // Ends waiting for a context, and waits for a thread that is inside on_callback().
  void settle();
  void disable();
  // After fork, in the child: touches CUPTI no more.
  void forget() { state_.store(State::settled); }

  bool settled() const { return state_.load() == State::settled; }
  // What could not be enabled; nothing as long as kinds wait for a context.
  std::vector<Refusal> refused() const;

 private:
  static constexpr std::chrono::seconds kLongestWait{5};

  // From `waiting` one thread goes on to `enabling`. In `unwatching` the kinds are enabled, and it only ends the callbacks.
  enum class State { settled, waiting, enabling, unwatching };
  struct Call {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    bool gives_work;  // else it makes a context
  };

  bool watch_for_work();
  // The callbacks that tell of contexts, modules and work, on or off. False when CUPTI refused one.
  bool watch(bool on);
  void enable_deferred();

  const CuptiLibrary* cupti_ = nullptr;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  EnabledKinds enabled_;  // by enable(), then by the thread that left State::waiting; for others once settled
  KindSet deferred_ = 0;
  std::vector<Call> calls_;  // that are watched; once a process, before CUPTI calls back
  bool graph_nodes_ = true;
  std::atomic<bool> without_memory_{false};
  std::atomic<bool> context_made_{false};
  std::atomic<bool> work_waits_{false};  // a call that gives work began before there was a context
  std::atomic<State> state_{State::settled};
  std::atomic<pthread_t> enabling_thread_{};
};

}  // namespace cutrace
