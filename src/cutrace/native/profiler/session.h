// The common part of all ways of counting in `cutrace profile`: the plan, CUPTI, and the file with the values.
//
// CUTRACE_PROFILE names a folder with the file `plan` of null-terminated strings:
//
//   the libcupti to load when the program has loaded none; may be empty
//   the subject: "chosen", "launches", "instructions" or "ranges"
//   metrics, separated by commas
//   "flush" if caches are flushed before counted work starts, else "keep"
//   for "chosen": the number of launches of chosen kernels to skip; the number to count then, or ""; ""
//   or for each launch: its number among those of its kernel in this process, from 0; ""; the mangled name of the kernel
//   or for each range: its number among those of its domain and name in this process, from 0; the domain; the name
//
// For "chosen" there was no run before, and kernel_choice.h says which kernels are counted.
//
// CUTRACE_PROFILE_PATIENCE_MS limits the time that launches wait for each other; see inject.cpp.
//
// Each process that runs planned launches or ranges writes <pid>.values into the folder. The file has lines of fields separated
// by tabs. A line has a message after the field "error", or the fields that inject.cpp and range_counting.cpp describe.
#pragma once

#include "../cuda/callbacks.h"
#include "../cuda/cupti_library.h"
#include "../cuda/driver.h"
#include "../cuda/stream_captures.h"

#include <cupti_driver_cbid.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_sass_metrics.h>
#include <cupti_target.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace cutrace {

#define CUTRACE_PROFILER_FUNCTIONS(X)                                                                            \
  X(DeviceGetChipName) X(ProfilerInitialize) X(ProfilerGetCounterAvailability) X(ProfilerHostInitialize)         \
  X(ProfilerHostDeinitialize) X(ProfilerHostConfigAddMetrics) X(ProfilerHostGetConfigImageSize)                  \
  X(ProfilerHostGetConfigImage) X(ProfilerHostGetNumOfPasses) X(ProfilerHostEvaluateToGpuValues) X(RangeProfilerEnable) X(RangeProfilerDisable) \
  X(RangeProfilerGetCounterDataSize) X(RangeProfilerCounterDataImageInitialize) X(RangeProfilerSetConfig)        \
  X(RangeProfilerStart) X(RangeProfilerStop) X(RangeProfilerPushRange) X(RangeProfilerPopRange)                   \
  X(RangeProfilerDecodeData) X(RangeProfilerGetCounterDataInfo)                                                  \
  X(SassMetricsGetProperties) X(SassMetricsSetConfig) X(SassMetricsUnsetConfig) X(SassMetricsEnable)             \
  X(SassMetricsDisable) X(SassMetricsGetDataProperties) X(SassMetricsFlushData)

struct Session {
  struct Planned {
    std::size_t number;
    std::string domain, name;
  };

  Session();  // reads the plan; the subject is empty without a plan
  // Loads CUPTI and subscribes. On failure returns false and writes a message for `cutrace profile`.
  bool subscribe(CUpti_CallbackFunc callback, void* self);
  // Appends a line to <pid>.values, with `values` as its last fields.
  void write(std::string line, const std::vector<double>& values = {}) const;
  void fail(const std::string& message) const { write("error\t" + message); }

  // Follows stream captures. The subscriber's callback must then call captures.on_callback().
  void watch_captures() {
    callbacks.add(captures);
    callbacks.open(cupti, subscriber);
    captures.list_calls(cupti);
    captures.watch(captures, callbacks);
  }
  // Waits for all work of a context. False when one of its streams is being captured.
  bool synchronize(void* context) const {
    return synchronize_context(context, [this](CUcontext waited) { return captures.may_wait_for(waited); });
  }

  std::string folder, wanted_cupti, subject;
  std::vector<std::string> metrics;
  bool flushes_caches = false;
  std::vector<Planned> plan;
  std::chrono::milliseconds patience{20'000};  // limit on the time that launches wait for each other
  CuptiLibrary cupti;
#define CUTRACE_MEMBER(name) decltype(&::cupti##name) name = nullptr;
  CUTRACE_PROFILER_FUNCTIONS(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER
  CUpti_SubscriberHandle subscriber = nullptr;
  Callbacks callbacks;
  StreamCaptures captures;
};

// The session of this process. Never destroyed: CUPTI and NVTX call until the process ends.
extern Session& session;

}  // namespace cutrace
