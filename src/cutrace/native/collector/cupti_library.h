// libcupti, loaded at run time: the collector links none, so that it works with whichever copy the program uses.
#pragma once

#include "cupti_headers.h"
#include "cupti_shared.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Functions without which nothing can be recorded.
#define CUTRACE_CUPTI_REQUIRED(X)                                                                          \
  X(GetVersion) X(Subscribe) X(Unsubscribe) X(ActivityRegisterCallbacks) X(ActivityEnable) X(ActivityDisable) \
  X(ActivityFlushAll) X(ActivityGetNextRecord)
// Functions that some versions lack; a null pointer says so.
#define CUTRACE_CUPTI_OPTIONAL(X)                                                                    \
  X(ActivityRegisterTimestampCallback) X(SetThreadIdType) X(ActivitySetAttribute) X(GetResultString) \
  X(ActivityGetNumDroppedRecords) X(GetCallbackName) X(ActivityEnableRuntimeApi)                     \
  X(ActivityEnableDriverApi) X(GetStreamIdEx) X(GetContextId) X(ActivityEnableAllSyncRecords)                     \
  X(EnableCallback) X(ActivityEnableAndDump)

namespace cutrace {

// A function of the runtime or of the driver, by the name that CUPTI has for it: "cudaLaunchKernel_v7000".
struct ApiFunction {
  CUpti_CallbackDomain domain;
  CUpti_CallbackId id;
  std::string_view name;
};

struct CuptiLibrary {
#define CUTRACE_MEMBER(name) decltype(&::cupti##name) name = nullptr;
  CUTRACE_CUPTI_REQUIRED(CUTRACE_MEMBER)
  CUTRACE_CUPTI_OPTIONAL(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER

  // The same, of a CUPTI that serves several tools, and the subscriber in whose name they are called: null while CUPTI
  // serves one tool, as it mostly does.
  shared::Calls of_several;
  std::atomic<CUpti_SubscriberHandle> sharing{nullptr};
  // Records have the wall clock's times: CUPTI has taken no clock of ours.
  std::atomic<bool> on_realtime{false};

  // The functions of both API domains, as CUPTI tells them: it may know more than the headers of this build. Empty when it
  // does not tell.
  const std::vector<ApiFunction>& api_functions() const { return api_functions_; }
  std::string_view api_function_name(CUpti_CallbackDomain domain, CUpti_CallbackId id) const;

  // `dump`: CUPTI tells of the devices, contexts and streams that there are, where it can.
  void ask_for_functions();  // once GetCallbackName is known

  CUptiResult enable(CUpti_ActivityKind kind, bool dump = false) const;
  CUptiResult disable(CUpti_ActivityKind kind) const;
  // Whether API calls can be enabled one by one.
  bool has_filter() const { return ActivityEnableRuntimeApi && ActivityEnableDriverApi && GetCallbackName; }
  CUptiResult enable_call(CUpti_CallbackDomain domain, CUpti_CallbackId id, bool on) const;
  CUptiResult next_record(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) const;
  CUptiResult take_dropped(std::size_t* dropped) const;
  CUptiResult set_attribute(CUpti_ActivityAttribute attribute, std::size_t* size, void* value) const;

  std::uint32_t version = 0;  // CUPTI_API_VERSION of the loaded library
  std::string path;           // file it was loaded from

  // The copy that is loaded already (two in one process break both), else `wanted` when not empty, else the plain
  // soname. On failure returns false and a sentence in `error`.
  bool load(const std::string& wanted, std::string& error);

  std::string error_name(CUptiResult result) const;

 private:
  std::vector<ApiFunction> api_functions_;
};

// cuptiGetVersion counted releases up to 28 (CUDA 12.9.1), then became a number like 130000.
inline constexpr std::uint32_t kCupti_12_8 = 26;
inline constexpr std::uint32_t kCupti_13_5 = 130500;

}  // namespace cutrace
