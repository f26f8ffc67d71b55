// The interface of counters for the work of a CUDA context between two times, and the CUPTI functions that they use.
#pragma once

#include "../collector/cupti_library.h"

#include <cupti_driver_cbid.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_sass_metrics.h>
#include <cupti_target.h>

#include <string>
#include <vector>

namespace cutrace {

#define CUTRACE_PROFILER_FUNCTIONS(X)                                                                            \
  X(DeviceGetChipName) X(ProfilerInitialize) X(ProfilerGetCounterAvailability) X(ProfilerHostInitialize)         \
  X(ProfilerHostDeinitialize) X(ProfilerHostConfigAddMetrics) X(ProfilerHostGetConfigImageSize)                  \
  X(ProfilerHostGetConfigImage) X(ProfilerHostEvaluateToGpuValues) X(RangeProfilerEnable) X(RangeProfilerDisable) \
  X(RangeProfilerGetCounterDataSize) X(RangeProfilerCounterDataImageInitialize) X(RangeProfilerSetConfig)        \
  X(RangeProfilerStart) X(RangeProfilerStop) X(RangeProfilerPushRange) X(RangeProfilerPopRange)                   \
  X(RangeProfilerDecodeData) X(RangeProfilerGetCounterDataInfo)                                                  \
  X(SassMetricsGetProperties) X(SassMetricsSetConfig) X(SassMetricsUnsetConfig) X(SassMetricsEnable)             \
  X(SassMetricsDisable) X(SassMetricsGetDataProperties) X(SassMetricsFlushData)

struct ProfilerFunctions {
#define CUTRACE_MEMBER(name) decltype(&::cupti##name) name = nullptr;
  CUTRACE_PROFILER_FUNCTIONS(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER
  // False if this libcupti lacks one. CUPTI 12.6 and later have all.
  bool load(const CuptiLibrary& cupti);
};

// The struct of a function, zeroed, with its size.
#define CUTRACE_PARAMS(type) sized<CUpti_##type##_Params>(CUpti_##type##_Params_STRUCT_SIZE)
template <typename Params>
Params sized(std::size_t size) {
  Params params{};
  params.structSize = size;
  return params;
}

class ContextCounter {
 public:
  ContextCounter(const CuptiLibrary& cupti, const ProfilerFunctions& functions) : functions_(functions), cupti_(cupti) {}
  virtual ~ContextCounter() = default;
  ContextCounter(const ContextCounter&) = delete;
  ContextCounter& operator=(const ContextCounter&) = delete;

  // For the context `context` of the device `device`. On failure, each returns false with a message in error().
  virtual bool open(CUcontext context, std::uint32_t device, const std::vector<std::string>& metrics) = 0;
  virtual bool begin() = 0;
  // After the work: the values of all work, if the counter has any.
  virtual bool end(std::vector<double>& values) = 0;
  const std::string& error() const { return error_; }

 protected:
  // Calls a function. An older library refuses the size of a struct that has grown. `older` is the previous size, 0 for a
  // struct that has not grown.
  template <typename Function, typename Params>
  bool call(Function function, const char* name, Params& params, std::size_t older = 0) {
    CUptiResult result = function(&params);
    if (result == CUPTI_ERROR_INVALID_PARAMETER && older != 0) {
      params.structSize = older;
      result = function(&params);
    }
    if (result == CUPTI_SUCCESS) return true;
    error_ = std::string("cupti") + name + " failed with " + cupti_.error_name(result);
    return false;
  }
#define CUTRACE_CALL(name, ...) call(functions_.name, #name, __VA_ARGS__)

  const ProfilerFunctions& functions_;
  std::string error_;

 private:
  const CuptiLibrary& cupti_;
};

}  // namespace cutrace
