// libcupti, loaded at run time, so that the collector works with the copy that the program uses.
#pragma once

// cupti_callbacks.h includes headers of the CUDA runtime that it does not use. Their include guards are defined here, so that a
// build does not need further packages.
#define __DEVICE_TYPES_H__
#define __DRIVER_TYPES_H__
#define __SURFACE_TYPES_H__
#define __TEXTURE_TYPES_H__
#define __VECTOR_TYPES_H__

#include <cupti_version.h>

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_pcsampling.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Functions that a recording needs.
#define CUTRACE_CUPTI_REQUIRED(X)                                                                          \
  X(GetVersion) X(Subscribe) X(Unsubscribe) X(ActivityRegisterCallbacks) X(ActivityEnable) X(ActivityDisable) \
  X(ActivityFlushAll) X(ActivityGetNextRecord)
// Functions that some versions lack; their pointers are then null.
#define CUTRACE_CUPTI_OPTIONAL(X)                                                                    \
  X(ActivityRegisterTimestampCallback) X(SetThreadIdType) X(ActivitySetAttribute) X(GetResultString) \
  X(ActivityGetNumDroppedRecords) X(GetCallbackName) X(ActivityEnableRuntimeApi)                     \
  X(ActivityEnableDriverApi) X(GetStreamIdEx) X(GetContextId) X(ActivityEnableAllSyncRecords)                     \
  X(EnableCallback) X(ActivityEnableAndDump) X(GetCubinCrc) X(GetSassToSourceCorrelation)       \
  X(GetGraphNodeId) X(GetGraphExecId) X(GetDeviceId) X(PCSamplingEnable) X(PCSamplingDisable) X(PCSamplingGetData) X(PCSamplingGetNumStallReasons)   \
  X(PCSamplingGetStallReasons) X(PCSamplingSetConfigurationAttribute) X(PCSamplingStart) X(PCSamplingStop) X(Finalize)

// The functions of CUPTI for one of several subscribers. CUPTI 13.2 to 13.5 added them. Their types are declared here, so that
// older headers are enough to build this.
namespace cutrace::shared {

// CUpti_SubscriberParams
struct SubscriberParams {
  std::size_t size = sizeof(SubscriberParams);
  const char* name = nullptr;
  char* other_name = nullptr;  // output: the name of the tool that holds CUPTI
  std::size_t other_size = 0;
  std::uint8_t allow_others = 0;
  std::uint8_t padding[7]{};
};
static_assert(sizeof(SubscriberParams) == 40);

using Request = void(CUPTIAPI*)(std::uint8_t** buffer, std::size_t* size, std::size_t* records, void* info);
using Complete = void(CUPTIAPI*)(std::uint8_t* buffer, std::size_t size, std::size_t valid, void* info);

// Attributes of one subscriber, in place of functions for all subscribers.
inline constexpr auto kThreadIdType = static_cast<CUpti_ActivityAttribute>(21);
inline constexpr auto kTimestampCallback = static_cast<CUpti_ActivityAttribute>(22);

#if CUPTI_API_VERSION >= 130500
static_assert(sizeof(SubscriberParams) == sizeof(CUpti_SubscriberParams));
static_assert(offsetof(SubscriberParams, allow_others) == offsetof(CUpti_SubscriberParams, allowMultipleSubscribers));
static_assert(kThreadIdType == CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE);
static_assert(kTimestampCallback == CUPTI_ACTIVITY_ATTR_TIMESTAMP_CALLBACK);
#endif

// X(name, parameters) for each function. Each is called cupti<name>_v2.
#define CUTRACE_CUPTI_SHARED(X)                                                                                        \
  X(Subscribe, (CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*, SubscriberParams*))                                \
  X(ActivityRegisterCallbacks, (CUpti_SubscriberHandle, Request, Complete))                                            \
  X(ActivityEnable, (CUpti_SubscriberHandle, CUpti_ActivityKind, void* config))                                        \
  X(ActivityEnableAndDump, (CUpti_SubscriberHandle, CUpti_ActivityKind, void* config))                                 \
  X(ActivityDisable, (CUpti_SubscriberHandle, CUpti_ActivityKind, void* config))                                       \
  X(ActivityEnableRuntimeApi, (CUpti_SubscriberHandle, CUpti_CallbackId, std::uint8_t))                                \
  X(ActivityEnableDriverApi, (CUpti_SubscriberHandle, CUpti_CallbackId, std::uint8_t))                                 \
  X(ActivityGetNextRecord, (CUpti_SubscriberHandle, std::uint8_t*, std::size_t, CUpti_Activity**))                     \
  X(ActivityGetNumDroppedRecords, (CUpti_SubscriberHandle, CUcontext, std::uint32_t, std::size_t*))                    \
  X(ActivitySetAttribute, (CUpti_SubscriberHandle, CUpti_ActivityAttribute, std::size_t*, void*))

struct Calls {
#define CUTRACE_MEMBER(name, parameters) CUptiResult(CUPTIAPI* name) parameters = nullptr;
  CUTRACE_CUPTI_SHARED(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER
#define CUTRACE_AND(name, parameters) &&name != nullptr
  bool complete() const { return true CUTRACE_CUPTI_SHARED(CUTRACE_AND); }
#undef CUTRACE_AND
};

}  // namespace cutrace::shared

namespace cutrace {

// A function of the runtime or of the driver, by CUPTI's name: "cudaLaunchKernel_v7000".
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

  // The functions of a CUPTI that serves several tools, and the subscriber to call them for. The subscriber is null while CUPTI
  // serves one tool, the usual case.
  shared::Calls of_several;
  std::atomic<CUpti_SubscriberHandle> sharing{nullptr};
  // Whether records have wall-clock times, because CUPTI refused our timestamp callback.
  std::atomic<bool> on_realtime{false};

  // The functions of both API domains. CUPTI lists them, because it may know more functions than the headers of this build. Empty
  // when CUPTI cannot list them.
  const std::vector<ApiFunction>& api_functions() const { return api_functions_; }
  std::string_view api_function_name(CUpti_CallbackDomain domain, CUpti_CallbackId id) const;
  void list_api_functions();  // needs GetCallbackName

  // `dump`: CUPTI also reports the existing devices, contexts and streams, as far as it can.
  CUptiResult enable(CUpti_ActivityKind kind, bool dump = false) const;
  CUptiResult disable(CUpti_ActivityKind kind) const {
    const CUpti_SubscriberHandle us = sharing.load();
    return us != nullptr ? of_several.ActivityDisable(us, kind, nullptr) : ActivityDisable(kind);
  }
  // Whether API calls can be enabled one by one.
  bool has_filter() const { return ActivityEnableRuntimeApi && ActivityEnableDriverApi && GetCallbackName; }
  CUptiResult enable_call(CUpti_CallbackDomain domain, CUpti_CallbackId id, bool on) const {
    const std::uint8_t flag = on ? 1 : 0;
    return domain == CUPTI_CB_DOMAIN_RUNTIME_API ? call(of_several.ActivityEnableRuntimeApi, ActivityEnableRuntimeApi, id, flag)
                                                 : call(of_several.ActivityEnableDriverApi, ActivityEnableDriverApi, id, flag);
  }
  CUptiResult next_record(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) const {
    return call(of_several.ActivityGetNextRecord, ActivityGetNextRecord, buffer, valid, record);
  }
  CUptiResult take_dropped(std::size_t* dropped) const {
    return call(of_several.ActivityGetNumDroppedRecords, ActivityGetNumDroppedRecords, nullptr, 0, dropped);
  }
  CUptiResult set_attribute(CUpti_ActivityAttribute attribute, std::size_t* size, void* value) const {
    return call(of_several.ActivitySetAttribute, ActivitySetAttribute, attribute, size, value);
  }

  // Whether this CUPTI can be finalised and starts anew at its next use. Only CUPTI 13.0 was tested.
  bool knows_finalize() const;

  std::uint32_t version = 0;  // CUPTI_API_VERSION of the loaded library
  std::string path;           // file it was loaded from

  // Uses a loaded copy, because two copies in one process break both. If no copy is loaded, loads `wanted`, or the soname if
  // `wanted` is empty. On failure returns false and a sentence in `error`.
  bool load(const std::string& wanted, std::string& error);

  std::string error_name(CUptiResult result) const;

 private:
  // Calls the function for one subscriber if there is one, or else the function for all.
  template <typename Own, typename All, typename... Arguments>
  CUptiResult call(Own own, All all, Arguments... arguments) const {
    if (const CUpti_SubscriberHandle us = sharing.load()) return own(us, arguments...);
    return all != nullptr ? all(arguments...) : CUPTI_ERROR_NOT_SUPPORTED;
  }

  std::vector<ApiFunction> api_functions_;
};

// cuptiGetVersion counts releases up to 28 (CUDA 12.9.1); later versions are numbers like 130000.
inline constexpr std::uint32_t kCupti_12_8 = 26;
inline constexpr std::uint32_t kCupti_13_0 = 130000;
inline constexpr std::uint32_t kCupti_13_5 = 130500;

inline bool CuptiLibrary::knows_finalize() const {
  return Finalize != nullptr && version >= kCupti_13_0 && version < kCupti_13_0 + 100;
}

}  // namespace cutrace
