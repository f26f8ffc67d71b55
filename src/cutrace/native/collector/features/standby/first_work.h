// The time of the program's first work on the GPU in a recording that a user has attached.
//
// CUPTI takes up to a second in the first such call of a process, and the program waits. So the time of `cutrace attach --for`
// counts from the return of that call.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/feature.h"

namespace cutrace {

class FirstWork final : public Feature {
 public:
  void cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) override;
  void attach(const AttachContext& context) override;
  void kinds_enabled(const AttachContext& context) override;
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  void flush() override { unwatch_if_seen(); }

  // A recording starts. Without this call nothing is watched.
  void expect();
  // Whether a thread has entered such a call in the recording.
  bool begun() const { return inside_.load() != 0 || returned() != 0; }
  // The time of the first return of a call that was entered in the recording (BOOTTIME ns), 0 before that.
  std::uint64_t returned() const { return returned_.load(); }

 private:
  void unwatch_if_seen();

  Callbacks* callbacks_ = nullptr;
  std::vector<ApiFunction> calls_;
  std::atomic<std::uint64_t> recording_{0};
  std::atomic<bool> expected_{false}, enabled_{false}, watching_{false};
  std::atomic<std::uint32_t> inside_{0};  // threads in such calls
  std::atomic<std::uint64_t> returned_{0};
};

FirstWork& first_work();
Feature& first_work_feature();

}  // namespace cutrace
