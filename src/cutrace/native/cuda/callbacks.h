// Passes CUPTI's callbacks to the parts of the collector that watch them. A recording has one subscriber for all parts.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "cupti_library.h"

namespace cutrace {

class CallbackHandler {
 public:
  // The program's threads, inside a callback of CUPTI that this handler watches.
  virtual void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept = 0;

 protected:
  ~CallbackHandler() = default;
};

// A table from callbacks to handlers, with one bit for each handler. It has no lock, because handlers watch and unwatch inside
// callbacks. It is never destroyed, and handlers are only added, because CUPTI may call back until the process ends.
class Callbacks {
 public:
  // Adds a handler once, before any recording. Handlers of one callback are called in the order in which they were added.
  void add(CallbackHandler& handler) {
    if (bit_of(handler) == 0) handlers_[count_++] = &handler;
  }

  // Sets the subscriber of a new recording.
  void open(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber) {
    close();
    cupti_.store(&cupti);
    subscriber_.store(subscriber);
  }
  // Stops calling handlers.
  void close() {
    for (auto& domain : wanted_)
      for (auto& wanted : domain) wanted.store(0, std::memory_order_relaxed);
  }

  bool available() const { return cupti_.load() != nullptr && cupti_.load()->EnableCallback != nullptr; }
  // False when CUPTI refuses the callback. The callback must be enabled on return, so each call asks CUPTI. Another thread, or
  // this thread for another handler, may have set its bit and not yet enabled the callback.
  bool watch(const CallbackHandler& handler, CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    std::atomic<Set>* const wanted = entry(domain, id);
    if (wanted == nullptr || !available()) return false;
    const Set before = wanted->fetch_or(bit_of(handler));
    if (enable(true, domain, id)) return true;
    if ((before & bit_of(handler)) == 0) wanted->fetch_and(~bit_of(handler));
    return false;
  }
  void unwatch(const CallbackHandler& handler, CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    std::atomic<Set>* const wanted = entry(domain, id);
    if (wanted == nullptr || !available()) return;
    const Set before = wanted->fetch_and(~bit_of(handler));
    if ((before & ~bit_of(handler)) != 0 || before == 0) return;
    enable(false, domain, id);
    // Another thread may have watched the callback meanwhile, and enabled it before it was disabled here.
    if (wanted->load() != 0) enable(true, domain, id);
  }

  // The program's threads: CUPTI's callback.
  void dispatch(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) const noexcept {
    const std::atomic<Set>* const wanted = entry(domain, id);
    if (wanted == nullptr) return;
    for (Set left = wanted->load(std::memory_order_acquire); left != 0; left &= left - 1)
      handlers_[static_cast<std::size_t>(std::countr_zero(left))]->on_callback(domain, id, data);
  }

 private:
  using Set = std::uint32_t;
  static constexpr std::size_t kDomains = 5, kIds = 2048;

  const std::atomic<Set>* entry(CUpti_CallbackDomain domain, CUpti_CallbackId id) const {
    const bool known = static_cast<std::size_t>(domain) < kDomains && id < kIds;
    return known ? &wanted_[static_cast<std::size_t>(domain)][id] : nullptr;
  }
  std::atomic<Set>* entry(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    return const_cast<std::atomic<Set>*>(static_cast<const Callbacks&>(*this).entry(domain, id));
  }
  Set bit_of(const CallbackHandler& handler) const {
    for (std::size_t i = 0; i < count_; ++i)
      if (handlers_[i] == &handler) return Set{1} << i;
    return 0;
  }
  bool enable(bool on, CUpti_CallbackDomain domain, CUpti_CallbackId id) const {
    return cupti_.load()->EnableCallback(on ? 1 : 0, subscriber_.load(), domain, id) == CUPTI_SUCCESS;
  }

  std::atomic<const CuptiLibrary*> cupti_{nullptr};
  std::atomic<CUpti_SubscriberHandle> subscriber_{nullptr};
  std::size_t count_ = 0;
  std::array<CallbackHandler*, 32> handlers_{};
  std::array<std::array<std::atomic<Set>, kIds>, kDomains> wanted_{};
};

}  // namespace cutrace
