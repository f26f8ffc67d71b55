// The functions of CUPTI that serve one subscriber of several. They came with 13.2 to 13.5, so that older headers, which this
// builds with too, do not declare them: their types are spelled out here.
#pragma once

#include "cupti_headers.h"

#include <cstddef>
#include <cstdint>

namespace cutrace::shared {

// CUpti_SubscriberParams
struct SubscriberParams {
  std::size_t size = sizeof(SubscriberParams);
  const char* name = nullptr;
  char* other_name = nullptr;  // where the name of the tool that holds CUPTI is put
  std::size_t other_size = 0;
  std::uint8_t allow_others = 0;
  std::uint8_t padding[7]{};
};
static_assert(sizeof(SubscriberParams) == 40);

using Request = void(CUPTIAPI*)(std::uint8_t** buffer, std::size_t* size, std::size_t* records, void* info);
using Complete = void(CUPTIAPI*)(std::uint8_t* buffer, std::size_t size, std::size_t valid, void* info);

// Attributes of one subscriber, where functions served all.
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
