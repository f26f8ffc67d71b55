#include "counters.h"

namespace cutrace {

const char* ContextCounter::initialize() {
  auto initialize = CUTRACE_PARAMS(Profiler_Initialize);
  if (!CUTRACE_CALL(ProfilerInitialize, initialize)) return nullptr;
  auto chip = CUTRACE_PARAMS(Device_GetChipName);
  chip.deviceIndex = device_;
  return CUTRACE_CALL(DeviceGetChipName, chip) ? chip.pChipName : nullptr;
}

bool RangeProfiler::open() {
  for (const std::string& name : session.metrics) names_.push_back(name.c_str());
  const char* const chip = initialize();
  if (chip == nullptr) return false;
  auto available = CUTRACE_PARAMS(Profiler_GetCounterAvailability);
  constexpr std::size_t kAvailable13_0 = 40;
  available.ctx = context_;
  if (!CUTRACE_CALL(ProfilerGetCounterAvailability, available, kAvailable13_0)) return false;
  availability_.resize(available.counterAvailabilityImageSize);
  available.pCounterAvailabilityImage = availability_.data();
  if (!CUTRACE_CALL(ProfilerGetCounterAvailability, available)) return false;

  auto host = CUTRACE_PARAMS(Profiler_Host_Initialize);
  constexpr std::size_t kHost13_0 = 48;
  host.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  host.pChipName = chip;
  host.pCounterAvailabilityImage = availability_.data();
  if (!CUTRACE_CALL(ProfilerHostInitialize, host, kHost13_0)) return false;
  host_ = host.pHostObject;
  auto add = CUTRACE_PARAMS(Profiler_Host_ConfigAddMetrics);
  add.pHostObject = host_;
  add.ppMetricNames = names_.data();
  add.numMetrics = names_.size();
  if (!CUTRACE_CALL(ProfilerHostConfigAddMetrics, add)) return false;
  auto size = CUTRACE_PARAMS(Profiler_Host_GetConfigImageSize);
  size.pHostObject = host_;
  if (!CUTRACE_CALL(ProfilerHostGetConfigImageSize, size)) return false;
  config_.resize(size.configImageSize);
  auto image = CUTRACE_PARAMS(Profiler_Host_GetConfigImage);
  image.pHostObject = host_;
  image.configImageSize = config_.size();
  image.pConfigImage = config_.data();
  if (!CUTRACE_CALL(ProfilerHostGetConfigImage, image)) return false;

  auto enable = CUTRACE_PARAMS(RangeProfiler_Enable);
  constexpr std::size_t kEnable13_0 = 32;
  enable.ctx = context_;
  if (!CUTRACE_CALL(RangeProfilerEnable, enable, kEnable13_0)) return false;
  profiler_ = enable.pRangeProfilerObject;
  auto data = CUTRACE_PARAMS(RangeProfiler_GetCounterDataSize);
  data.pRangeProfilerObject = profiler_;
  data.pMetricNames = names_.data();
  data.numMetrics = names_.size();
  data.maxNumOfRanges = 1;
  data.maxNumRangeTreeNodes = 1;
  if (!CUTRACE_CALL(RangeProfilerGetCounterDataSize, data)) return false;
  image_.resize(data.counterDataSize);
  return true;
}

bool RangeProfiler::begin() {
  auto clear = CUTRACE_PARAMS(RangeProfiler_CounterDataImage_Initialize);
  clear.pRangeProfilerObject = profiler_;
  clear.counterDataSize = image_.size();
  clear.pCounterData = image_.data();
  if (!CUTRACE_CALL(RangeProfilerCounterDataImageInitialize, clear)) return false;
  auto config = CUTRACE_PARAMS(RangeProfiler_SetConfig);
  config.pRangeProfilerObject = profiler_;
  config.configSize = config_.size();
  config.pConfig = config_.data();
  config.counterDataImageSize = image_.size();
  config.pCounterDataImage = image_.data();
  config.range = of_ == Of::kernel ? CUPTI_AutoRange : CUPTI_UserRange;
  config.replayMode = of_ == Of::kernel ? CUPTI_KernelReplay : CUPTI_UserReplay;
  config.maxRangesPerPass = 1;
  config.numNestingLevels = 1;
  config.minNestingLevel = 1;
  if (!CUTRACE_CALL(RangeProfilerSetConfig, config)) return false;
  auto start = CUTRACE_PARAMS(RangeProfiler_Start);
  start.pRangeProfilerObject = profiler_;
  if (!CUTRACE_CALL(RangeProfilerStart, start)) return false;
  if (of_ == Of::kernel) return true;
  auto push = CUTRACE_PARAMS(RangeProfiler_PushRange);
  push.pRangeProfilerObject = profiler_;
  push.pRangeName = "range";
  return CUTRACE_CALL(RangeProfilerPushRange, push);
}

bool RangeProfiler::end(std::vector<double>& values) {
  if (of_ == Of::range) {
    auto pop = CUTRACE_PARAMS(RangeProfiler_PopRange);
    pop.pRangeProfilerObject = profiler_;
    if (!CUTRACE_CALL(RangeProfilerPopRange, pop)) return false;
  }
  auto stop = CUTRACE_PARAMS(RangeProfiler_Stop);
  stop.pRangeProfilerObject = profiler_;
  if (!CUTRACE_CALL(RangeProfilerStop, stop)) return false;
  auto decode = CUTRACE_PARAMS(RangeProfiler_DecodeData);
  decode.pRangeProfilerObject = profiler_;
  if (!CUTRACE_CALL(RangeProfilerDecodeData, decode)) return false;
  auto info = CUTRACE_PARAMS(RangeProfiler_GetCounterDataInfo);
  info.pCounterDataImage = image_.data();
  info.counterDataImageSize = image_.size();
  if (!CUTRACE_CALL(RangeProfilerGetCounterDataInfo, info)) return false;
  if (stop.isAllPassSubmitted == 0 || info.numTotalRanges != 1 || decode.numOfRangeDropped != 0) {
    error_ = of_ == Of::kernel ? "the launch did not become one range of all passes" : "the range needs more than one pass, or was lost";
    return false;
  }
  values.resize(names_.size());
  auto evaluate = CUTRACE_PARAMS(Profiler_Host_EvaluateToGpuValues);
  evaluate.pHostObject = host_;
  evaluate.pCounterDataImage = image_.data();
  evaluate.counterDataImageSize = image_.size();
  evaluate.ppMetricNames = names_.data();
  evaluate.numMetrics = names_.size();
  evaluate.pMetricValues = values.data();
  return CUTRACE_CALL(ProfilerHostEvaluateToGpuValues, evaluate);
}

RangeProfiler::~RangeProfiler() {
  auto disable = CUTRACE_PARAMS(RangeProfiler_Disable);
  disable.pRangeProfilerObject = profiler_;
  if (profiler_ != nullptr) session.RangeProfilerDisable(&disable);
  auto deinitialize = CUTRACE_PARAMS(Profiler_Host_Deinitialize);
  deinitialize.pHostObject = host_;
  if (host_ != nullptr) session.ProfilerHostDeinitialize(&deinitialize);
}

}  // namespace cutrace
