// Hardware metrics of one CUDA context: of a kernel, which CUPTI runs as often as the metrics need passes, with the memory that it
// wrote restored in between; or of all that the context does between two moments, in one pass.
#pragma once

#include "../collector/cupti_library.h"

#include <cupti_driver_cbid.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
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
  X(RangeProfilerDecodeData) X(RangeProfilerGetCounterDataInfo)

struct ProfilerFunctions {
#define CUTRACE_MEMBER(name) decltype(&::cupti##name) name = nullptr;
  CUTRACE_PROFILER_FUNCTIONS(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER
  // False where the libcupti of this process lacks one: it came with 12.6.
  bool load();
};

class RangeProfiler {
 public:
  enum class Of { kernel, range };
  RangeProfiler(const CuptiLibrary& cupti, const ProfilerFunctions& functions, Of of = Of::kernel)
      : cupti_(cupti), functions_(functions), of_(of) {}
  ~RangeProfiler() { close(); }
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  // For the context `context` of the device `device`. Each returns false and leaves a sentence in error().
  bool open(CUcontext context, std::uint32_t device, const std::vector<std::string>& metrics);
  bool begin();
  // After the launch or the range: the value of each metric.
  bool end(std::vector<double>& values);
  void close();
  const std::string& error() const { return error_; }

 private:
  // Calls a function. Its struct may have grown since the release that is loaded, which then refuses its size: `older` is the
  // size before, or 0 for a struct that has not grown.
  template <typename Function, typename Params>
  bool call(Function function, const char* name, Params& params, std::size_t older = 0);
  bool configure(CUcontext context, std::uint32_t device);

  const CuptiLibrary& cupti_;
  const ProfilerFunctions& functions_;
  const Of of_;
  std::vector<std::string> metrics_;
  std::vector<const char*> names_;  // the same
  CUpti_Profiler_Host_Object* host_ = nullptr;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;
  std::vector<std::uint8_t> availability_, config_, image_;
  std::string error_;
};

}  // namespace cutrace
