// libcupti, loaded at run time: the collector links none, so that it works with whichever copy the program uses.
#pragma once

#include "cupti_headers.h"

#include <cstdint>
#include <string>

// Functions without which nothing can be recorded.
#define CUTRACE_CUPTI_REQUIRED(X)                                                                          \
  X(GetVersion) X(Subscribe) X(Unsubscribe) X(ActivityRegisterCallbacks) X(ActivityEnable) X(ActivityDisable) \
  X(ActivityFlushAll) X(ActivityGetNextRecord)
// Functions that some versions lack; a null pointer says so.
#define CUTRACE_CUPTI_OPTIONAL(X)                                                                    \
  X(ActivityRegisterTimestampCallback) X(SetThreadIdType) X(ActivitySetAttribute) X(GetResultString) \
  X(ActivityGetNumDroppedRecords) X(GetCallbackName) X(ActivityEnableRuntimeApi)                     \
  X(ActivityEnableDriverApi) X(GetStreamIdEx) X(GetContextId) X(ActivityEnableAllSyncRecords)                     \
  X(EnableCallback)

namespace cutrace {

struct CuptiLibrary {
#define CUTRACE_MEMBER(name) decltype(&::cupti##name) name = nullptr;
  CUTRACE_CUPTI_REQUIRED(CUTRACE_MEMBER)
  CUTRACE_CUPTI_OPTIONAL(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER

  std::uint32_t version = 0;  // CUPTI_API_VERSION of the loaded library
  std::string path;           // file it was loaded from

  // The copy that is loaded already (two in one process break both), else `path` when not empty, else the plain
  // soname. On failure returns false and a sentence in `error`.
  bool load(const std::string& wanted, std::string& error);

  std::string error_name(CUptiResult result) const;
};

// cuptiGetVersion counted releases up to 28 (CUDA 12.9.1), then became a number like 130000.
inline constexpr std::uint32_t kCupti_12_8 = 26;

}  // namespace cutrace
