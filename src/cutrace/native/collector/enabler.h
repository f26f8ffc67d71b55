// When the kinds of a recording are enabled: what the host does at once, what the GPU does once there is a context.
//
// What kernels, copies and fills cost once they are enabled depends on when that was: CUPTI 13.0 spends 45 us on 256 nodes
// of a CUDA graph when it was with the context, and 32 us when it was later (docs/collector.md). So inside cuInit() they wait
// for the first module, or for the first call that gives work to the GPU: nothing can run there before. A call that gives
// work and makes the context on its way is the exception: then they are enabled as soon as there is a context.
//
// The null collector of the benchmarks uses this too: it must enable exactly what the collector does.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "kinds.h"

namespace cutrace {

class Enabler {
 public:
  // `before_cuda`: inside cuInit(). The subscriber's callback must then lead to on_callback().
  void enable(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber, KindSet kinds, ApiFilter api, bool graph_nodes,
              bool before_cuda);
  // The program's threads, inside CUPTI's callbacks.
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id) noexcept;
  // Ends waiting for a context, and waits for a thread that is inside on_callback().
  void settle();
  void disable();
  // After fork, in the child: touches CUPTI no more.
  void forget() { state_.store(State::settled); }

  // Kinds that are enabled or will be.
  KindSet kinds() const { return enabled_.kinds | (state_.load() == State::settled ? 0 : later_); }
  // Nothing waits for a context any more, so refused() is complete.
  bool settled() const { return state_.load() == State::settled; }
  // What CUPTI refused. Once settled: the kinds that had to wait are among them.
  const std::vector<Refusal>& refused() const { return enabled_.refused; }

 private:
  enum class State { settled, waiting, enabling };

  bool wait_for_work();
  // The callbacks that tell of contexts, modules and work, on or off. False when CUPTI refused one.
  bool watch(bool on);
  void enable_later();

  const CuptiLibrary* cupti_ = nullptr;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  EnabledKinds enabled_;  // by enable(), then by the thread that left State::waiting
  KindSet later_ = 0;
  std::vector<std::uint32_t> context_calls_;  // calls of the driver that make a context
  bool graph_nodes_ = true;
  std::atomic<bool> context_made_{false};
  std::atomic<bool> work_waits_{false};  // a call that gives work began before there was a context
  std::atomic<State> state_{State::settled};
};

}  // namespace cutrace
