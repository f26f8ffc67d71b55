#include "counters.h"

#include <cstddef>

namespace cutrace {

constexpr char kWrongFromHere[] = ". What the program computes from here on may be wrong";

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

  auto passes = CUTRACE_PARAMS(Profiler_Host_GetNumOfPasses);
  passes.configImageSize = config_.size();
  passes.pConfigImage = config_.data();
  if (!CUTRACE_CALL(ProfilerHostGetNumOfPasses, passes)) return false;
  passes_ = passes.numOfPasses;
  if (!enable()) return false;
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

// CUpti_RangeProfiler_Enable_Params of 13.4 and later.
struct EnableWithCaches {
  std::size_t size = offsetof(EnableWithCaches, mode) + sizeof(int);
  void* reserved = nullptr;
  CUcontext context;
  CUpti_RangeProfiler_Object* profiler = nullptr;
  int mode = 1;  // CUPTI_CACHE_CONTROL_MODE_ALL
};

bool RangeProfiler::enable() {
  EnableWithCaches flushing{.context = context_};
  if (of_ == Of::kernel && session.flushes_caches &&
      session.RangeProfilerEnable(reinterpret_cast<CUpti_RangeProfiler_Enable_Params*>(&flushing)) == CUPTI_SUCCESS) {
    profiler_ = flushing.profiler;
    cupti_flushes_ = true;
    return true;
  }
  auto enable = CUTRACE_PARAMS(RangeProfiler_Enable);
  constexpr std::size_t kEnable13_0 = 32;
  enable.ctx = context_;
  if (!CUTRACE_CALL(RangeProfilerEnable, enable, kEnable13_0)) return false;
  profiler_ = enable.pRangeProfilerObject;
  return true;
}

// Called before each launch or range, because the program may have allocated memory that cannot be restored.
void RangeProfiler::choose_replay() {
  std::string why_kept;
  if (of_ == Of::kernel && passes_ > 1 && !cupti_flushes_ && session.flushes_caches) why_kept = Checkpoint::unavailable();
  const bool flushes = session.flushes_caches && why_kept.empty();
  if (!why_kept.empty() && caches_ != Caches::kept) session.fail("the caches were kept: " + why_kept);
  caches_ = flushes ? Caches::flushed : Caches::kept;
  replays_itself_ = of_ == Of::kernel && flushes && !cupti_flushes_;
}

bool RangeProfiler::configure() {
  auto config = CUTRACE_PARAMS(RangeProfiler_SetConfig);
  config.pRangeProfilerObject = profiler_;
  config.configSize = config_.size();
  config.pConfig = config_.data();
  config.counterDataImageSize = image_.size();
  config.pCounterDataImage = image_.data();
  config.range = of_ == Of::kernel ? CUPTI_AutoRange : CUPTI_UserRange;
  config.replayMode = of_ == Of::kernel && !replays_itself_ ? CUPTI_KernelReplay : CUPTI_UserReplay;
  config.maxRangesPerPass = 1;
  config.numNestingLevels = 1;
  config.minNestingLevel = 1;
  return CUTRACE_CALL(RangeProfilerSetConfig, config);
}

bool RangeProfiler::start() {
  auto start = CUTRACE_PARAMS(RangeProfiler_Start);
  start.pRangeProfilerObject = profiler_;
  return CUTRACE_CALL(RangeProfilerStart, start);
}

bool RangeProfiler::start_flushed() {
  if (const CUresult result = sweep_.run(); result != CUDA_SUCCESS) {
    error_ = "the caches could not be flushed: CUDA error " + std::to_string(result);
    return false;
  }
  return start();
}

bool RangeProfiler::stop(bool& all_passes) {
  auto stop = CUTRACE_PARAMS(RangeProfiler_Stop);
  stop.pRangeProfilerObject = profiler_;
  const bool stopped = CUTRACE_CALL(RangeProfilerStop, stop);
  all_passes = stop.isAllPassSubmitted != 0;
  return stopped;
}

bool RangeProfiler::begin() {
  choose_replay();
  auto clear = CUTRACE_PARAMS(RangeProfiler_CounterDataImage_Initialize);
  clear.pRangeProfilerObject = profiler_;
  clear.counterDataSize = image_.size();
  clear.pCounterData = image_.data();
  if (!CUTRACE_CALL(RangeProfilerCounterDataImageInitialize, clear) || !configure()) return false;
  if (of_ == Of::kernel) return replays_itself_ ? start_first_pass() : start();
  if (caches_ == Caches::flushed ? !start_flushed() : !start()) return false;
  auto push = CUTRACE_PARAMS(RangeProfiler_PushRange);
  push.pRangeProfilerObject = profiler_;
  push.pRangeName = "range";
  return CUTRACE_CALL(RangeProfilerPushRange, push);
}

bool RangeProfiler::start_first_pass() {
  if (!session.synchronize(context_)) {
    error_ = "a kernel is not replayed while a CUDA graph is captured, when the GPU cannot be waited for";
    return false;
  }
  if (passes_ > 1 && !memory_.save()) {
    error_ = memory_.error();
    return false;
  }
  return start_flushed();
}

// The program continues with the memory of the last pass. So each pass starts with the memory of the first pass, and the launch
// is made again even if it cannot be counted.
bool RangeProfiler::further_pass(const Replay& replay, bool& all_passes) {
  const OwnCalls own;
  if (!memory_.restore()) {
    error_ = memory_.error() + kWrongFromHere;
    return false;
  }
  const bool counts = start_flushed();
  const CUresult launched = replay.again();
  session.synchronize(context_);
  const bool counted = counts && stop(all_passes);
  if (launched == CUDA_SUCCESS) return counted;
  error_ = "the launch could not be made again: CUDA error " + std::to_string(launched) + kWrongFromHere;
  return false;
}

bool RangeProfiler::finish_passes(const Replay& replay) {
  if (replays_itself_) session.synchronize(context_);
  bool all_passes = false;
  if (!stop(all_passes)) return false;
  const bool replays = replays_itself_ && !all_passes && replay.start();
  while (replays && !all_passes)
    if (!further_pass(replay, all_passes)) return false;
  if (!all_passes)
    error_ = of_ == Of::kernel ? "the launch did not become one range of all passes" : "the range needs more than one pass";
  return all_passes;
}

bool RangeProfiler::end(const Replay& replay, std::vector<double>& values) {
  if (of_ == Of::range) {
    auto pop = CUTRACE_PARAMS(RangeProfiler_PopRange);
    pop.pRangeProfilerObject = profiler_;
    if (!CUTRACE_CALL(RangeProfilerPopRange, pop)) return false;
  }
  const bool finished = finish_passes(replay);
  memory_.release();
  if (!finished) return false;
  auto decode = CUTRACE_PARAMS(RangeProfiler_DecodeData);
  decode.pRangeProfilerObject = profiler_;
  if (!CUTRACE_CALL(RangeProfilerDecodeData, decode)) return false;
  auto info = CUTRACE_PARAMS(RangeProfiler_GetCounterDataInfo);
  info.pCounterDataImage = image_.data();
  info.counterDataImageSize = image_.size();
  if (!CUTRACE_CALL(RangeProfilerGetCounterDataInfo, info)) return false;
  if (info.numTotalRanges != 1 || decode.numOfRangeDropped != 0) {
    error_ = of_ == Of::kernel ? "the launch did not become one range" : "the range was lost";
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
