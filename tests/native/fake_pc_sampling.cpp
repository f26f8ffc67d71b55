// PC sampling of the fake CUPTI: each kernel that runs in a sampled context leaves the samples of `kProfile`.
//
// As in CUPTI, the end of sampling puts unfetched samples into the buffer of the configuration.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "fake_cupti.h"

#define EXPORT __attribute__((visibility("default")))
#define FAIL_IF_TOLD(function) \
  if (const int failed = fake_failure(#function); failed != CUPTI_SUCCESS) return static_cast<CUptiResult>(failed)

namespace {

const char* const kReasons[] = {
    "smsp__pcsamp_warps_issue_stalled_selected", "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
    "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued", "smsp__pcsamp_warps_issue_stalled_barrier",
    "smsp__pcsamp_sample_count", "smsp__pcsamp_samples_data_dropped"};
constexpr std::uint32_t kFirstReason = 100;  // CUPTI's indices do not start at 0

struct Seen {
  std::uint64_t offset;
  std::uint32_t reason, samples;
};
constexpr Seen kProfile[] = {{16, 0, 1}, {32, 0, 1}, {32, 1, 8}, {32, 2, 5}, {48, 3, 2}, {48, 4, 12}};
constexpr std::uint32_t kDropped = 5;

// The module of all kernels: see fake_profiler.cpp.
constexpr char kCubin[] = ".debug_line\n_Z4axpyPf /home/user/project/axpy.cu 10\n_Z4axpyPfi /home/user/project/axpy.cu 20\n";

std::uint64_t crc() {
  static const std::uint64_t computed = [] {
    CUpti_GetCubinCrcParams params{};
    params.size = sizeof params;
    params.cubin = kCubin;
    params.cubinSize = sizeof kCubin - 1;
    cuptiGetCubinCrc(&params);
    return params.cubinCrc;
  }();
  return computed;
}

using Pc = std::pair<std::string, std::uint64_t>;  // function and offset

struct Sampled {
  CUpti_PCSamplingData* rest = nullptr;
  bool started = false;
  std::map<Pc, std::map<std::uint32_t, std::uint32_t>> counts;  // by reason
};

std::mutex mutex;
// Never destroyed: a recording ends at the exit of the process.
std::map<CUcontext, Sampled>& sampled = *new std::map<CUcontext, Sampled>;
std::set<std::string>& names = *new std::set<std::string>;  // strings that were handed out; CUPTI keeps them
std::uint64_t overflow = 0;
std::atomic<unsigned> fetch_ms{0};
std::uint32_t dropped = 0;
std::uint32_t last_period = 0;
bool told_of_module = false;

// Returns as many samples as fit, up to the number that the test allows at once.
void hand_over(Sampled& from, CUpti_PCSamplingData& to, std::size_t most) {
  std::size_t count = 0;
  to.totalSamples = to.droppedSamples = 0;
  to.hardwareBufferFull = 0;
  for (; count < std::min(most, to.collectNumPcs) && !from.counts.empty(); ++count) {
    const auto node = from.counts.extract(from.counts.begin());
    CUpti_PCSamplingPCData& pc = to.pPcData[count];
    pc.cubinCrc = crc();
    pc.pcOffset = node.key().second;
    pc.functionName = const_cast<char*>(names.insert(node.key().first).first->c_str());
    pc.stallReasonCount = 0;
    for (const auto& [reason, samples] : node.mapped()) {
      pc.stallReason[pc.stallReasonCount++] = {kFirstReason + reason, samples};
      to.totalSamples += samples;
    }
  }
  to.totalNumPcs = count;
  to.remainingNumPcs = count;  // as in CUPTI 13.0, even if samples are left
}

CUptiResult start(CUcontext context, bool on) {
  const std::lock_guard lock(mutex);
  const auto it = sampled.find(context);
  if (it == sampled.end() || it->second.started == on) return CUPTI_ERROR_INVALID_OPERATION;
  it->second.started = on;
  return CUPTI_SUCCESS;
}

}  // namespace

extern "C" {

// A kernel has run.
EXPORT void fake_sample(const char* kernel) {
  bool loaded = false;
  {
    const std::lock_guard lock(mutex);
    if (sampled.empty() || kernel == nullptr) return;
    loaded = std::exchange(told_of_module, true);
  }
  if (!loaded) fake_load_cubin(kCubin);
  const std::lock_guard lock(mutex);
  for (auto& [context, of] : sampled) {
    if (!of.started) continue;
    for (const Seen& seen : kProfile) of.counts[{kernel, seen.offset}][seen.reason] += seen.samples;
    if (dropped != 0) of.counts[{kernel, 48}][kDropped] += std::exchange(dropped, 0);
  }
}
EXPORT void fake_overflow(std::uint64_t lost) {
  const std::lock_guard lock(mutex);
  overflow = lost;
}
EXPORT void fake_fetch_takes(unsigned milliseconds) { fetch_ms = milliseconds; }
EXPORT void fake_destroy_sampled() {
  fake_context(1, false);
  const std::lock_guard lock(mutex);
  sampled.clear();
}
EXPORT void fake_drop_samples(std::uint32_t lost) {
  const std::lock_guard lock(mutex);
  dropped = lost;
}
EXPORT unsigned fake_sampled_contexts() {
  const std::lock_guard lock(mutex);
  return static_cast<unsigned>(std::count_if(sampled.begin(), sampled.end(), [](const auto& one) { return one.second.started; }));
}
EXPORT std::uint32_t fake_sampling_period() { return last_period; }
// One context of the GPU at a time.
EXPORT CUptiResult cuptiPCSamplingEnable(CUpti_PCSamplingEnableParams* params) {
  FAIL_IF_TOLD(PCSamplingEnable);
  const std::lock_guard lock(mutex);
  if (!sampled.empty()) return CUPTI_ERROR_INVALID_OPERATION;
  sampled[params->ctx];
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiPCSamplingDisable(CUpti_PCSamplingDisableParams* params) {
  FAIL_IF_TOLD(PCSamplingDisable);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // CUPTI takes some time, and the program continues meanwhile
  const std::lock_guard lock(mutex);
  const auto it = sampled.find(params->ctx);
  if (it == sampled.end()) return CUPTI_ERROR_INVALID_OPERATION;
  if (it->second.rest != nullptr) hand_over(it->second, *it->second.rest, it->second.rest->collectNumPcs);
  sampled.erase(it);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiPCSamplingGetNumStallReasons(CUpti_PCSamplingGetNumStallReasonsParams* params) {
  FAIL_IF_TOLD(PCSamplingGetNumStallReasons);
  *params->numStallReasons = std::size(kReasons);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiPCSamplingGetStallReasons(CUpti_PCSamplingGetStallReasonsParams* params) {
  FAIL_IF_TOLD(PCSamplingGetStallReasons);
  for (std::uint32_t i = 0; i < std::min(params->numStallReasons, std::size(kReasons)); ++i) {
    params->stallReasonIndex[i] = kFirstReason + i;
    std::strncpy(params->stallReasons[i], kReasons[i], CUPTI_STALL_REASON_STRING_SIZE - 1);
  }
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiPCSamplingSetConfigurationAttribute(CUpti_PCSamplingConfigurationInfoParams* params) {
  FAIL_IF_TOLD(PCSamplingSetConfigurationAttribute);
  const std::lock_guard lock(mutex);
  const auto it = sampled.find(params->ctx);
  if (it == sampled.end()) return CUPTI_ERROR_INVALID_OPERATION;
  for (std::size_t i = 0; i < params->numAttributes; ++i) {
    const CUpti_PCSamplingConfigurationInfo& info = params->pPCSamplingConfigurationInfo[i];
    if (info.attributeType == CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER)
      it->second.rest = static_cast<CUpti_PCSamplingData*>(info.attributeData.samplingDataBufferData.samplingDataBuffer);
    if (info.attributeType == CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD)
      last_period = info.attributeData.samplingPeriodData.samplingPeriod;
  }
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiPCSamplingStart(CUpti_PCSamplingStartParams* params) {
  FAIL_IF_TOLD(PCSamplingStart);
  return start(params->ctx, true);
}
EXPORT CUptiResult cuptiPCSamplingStop(CUpti_PCSamplingStopParams* params) {
  FAIL_IF_TOLD(PCSamplingStop);
  return start(params->ctx, false);
}
EXPORT CUptiResult cuptiPCSamplingGetData(CUpti_PCSamplingGetDataParams* params) {
  FAIL_IF_TOLD(PCSamplingGetData);
  std::this_thread::sleep_for(std::chrono::milliseconds(fetch_ms.load()));
  const std::lock_guard lock(mutex);
  const auto it = sampled.find(params->ctx);
  if (it == sampled.end()) return CUPTI_ERROR_INVALID_OPERATION;
  auto& to = *static_cast<CUpti_PCSamplingData*>(params->pcSamplingData);
  if (overflow != 0) {
    it->second.counts.clear();
    hand_over(it->second, to, 0);
    to.hardwareBufferFull = 1;
    to.droppedSamples = std::exchange(overflow, 0);
    return CUPTI_ERROR_OUT_OF_MEMORY;
  }
  hand_over(it->second, to, 2);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetDeviceId(CUcontext, std::uint32_t* device) {
  FAIL_IF_TOLD(GetDeviceId);
  *device = 0;
  return CUPTI_SUCCESS;
}

}  // extern "C"
