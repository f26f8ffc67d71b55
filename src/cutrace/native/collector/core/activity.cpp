#include "activity.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>


namespace cutrace {
namespace {

// CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL, missing in headers before 12.3: a launch waited for the full queue.
constexpr std::uint32_t kCommandBufferFull = 6u << 16;

std::uint16_t narrow(std::uint32_t id) { return static_cast<std::uint16_t>(id); }
std::uint32_t known(std::uint32_t id) { return id == CUPTI_SYNCHRONIZATION_INVALID_VALUE ? 0 : id; }
std::string_view view(const char* text) { return text ? std::string_view(text) : std::string_view(); }

// A row with the fields that several kinds of records share.
template <typename Row, typename Record>
Row row_of(const Record& r) {
  Row row;
#define CUTRACE_COPY(field, expression) \
  if constexpr (requires { row.field; expression; }) row.field = expression;
  CUTRACE_COPY(start, r.start)
  CUTRACE_COPY(end, r.end)
  CUTRACE_COPY(time, r.timestamp)
  CUTRACE_COPY(correlation, r.correlationId)
  CUTRACE_COPY(stream, known(r.streamId))
  CUTRACE_COPY(context, narrow(r.contextId))
  CUTRACE_COPY(device, narrow(r.deviceId))
  CUTRACE_COPY(thread, r.threadId)
  CUTRACE_COPY(graph, r.graphId)
  CUTRACE_COPY(graph_node, r.graphNodeId)
  CUTRACE_COPY(address, r.address)
  CUTRACE_COPY(bytes, r.bytes)
  CUTRACE_COPY(value, r.value)
#undef CUTRACE_COPY
  return row;
}

// "cudaLaunchKernel_v7000" -> "cudaLaunchKernel", "cuMemcpyHtoD_v2" -> "cuMemcpyHtoD"
std::string_view without_version(std::string_view name) {
  const std::string_view base = name.substr(0, name.find_last_not_of("0123456789") + 1);
  return base.size() < name.size() && base.ends_with("_v") ? base.substr(0, base.size() - 2) : name;
}

}  // namespace

template <> void ActivityDecoder::add(const CUpti_ActivityKernel9& r) {
  rows::Launches launch;
#define CUTRACE_COPY(field, member) launch.field = static_cast<decltype(launch.field)>(r.member);
  CUTRACE_COPY(grid_x, gridX) CUTRACE_COPY(grid_y, gridY) CUTRACE_COPY(grid_z, gridZ)
  CUTRACE_COPY(block_x, blockX) CUTRACE_COPY(block_y, blockY) CUTRACE_COPY(block_z, blockZ)
  CUTRACE_COPY(cluster_x, clusterX) CUTRACE_COPY(cluster_y, clusterY) CUTRACE_COPY(cluster_z, clusterZ)
  CUTRACE_COPY(registers, registersPerThread) CUTRACE_COPY(launch_type, launchType)
  CUTRACE_COPY(static_shared, staticSharedMemory) CUTRACE_COPY(dynamic_shared, dynamicSharedMemory)
  CUTRACE_COPY(shared_executed, sharedMemoryExecuted) CUTRACE_COPY(shared_limit, shmemLimitConfig)
  CUTRACE_COPY(local_per_thread, localMemoryPerThread) CUTRACE_COPY(graph_node, graphNodeId) CUTRACE_COPY(graph, graphId)
  CUTRACE_COPY(cache_requested, cacheConfig.config.requested) CUTRACE_COPY(cache_executed, cacheConfig.config.executed)
  CUTRACE_COPY(cluster_policy, clusterSchedulingPolicy) CUTRACE_COPY(max_cluster, maxPotentialClusterSize)
  CUTRACE_COPY(max_active_clusters, maxActiveClusters)
#undef CUTRACE_COPY
  launch.local_total = r.localMemoryTotal_v2 != 0 ? r.localMemoryTotal_v2 : r.localMemoryTotal;
  launch.carveout = r.isSharedMemoryCarveoutRequested ? r.sharedMemoryCarveoutRequested : std::uint8_t{255};

  auto row = row_of<rows::Kernels>(r);
  if (!capture_.keeps(timed(row))) return;
  const char* const name = naming_ != nullptr ? naming_->kernel_name(r, r.name) : r.name;
  if (completing_ != nullptr) completing_->complete_launch(r, view(name), launch);
  row.launch = capture_.launch(launch, name);
  if (r.graphNodeId != 0 && r.start == 0) ++graph_kernels_without_times_;
  add_timed(row);
}

// Whether a call launches a kernel or a graph. `function` is its id in the capture.
bool ActivityDecoder::launches_work(std::uint16_t function, bool runtime, CUpti_CallbackId id) {
  if (function >= launches_work_.size()) launches_work_.resize(function + std::size_t{1});
  std::optional<bool>& known = launches_work_[function];  // asking for a name takes long
  if (!known) {
    const std::string_view name = cupti_.api_function_name(runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API, id);
    known = name.find("Launch") != name.npos && name.find("HostFunc") == name.npos;
  }
  return *known;
}

template <> void ActivityDecoder::add(const CUpti_ActivityAPI& r) {
  if (std::find(ignored_.begin(), ignored_.end(), r.threadId) != ignored_.end()) return;
  const bool runtime = r.kind == CUPTI_ACTIVITY_KIND_RUNTIME;
  auto row = row_of<rows::ApiCalls>(r);
  if (!capture_.keeps(timed(row))) return;
  names_.seen(r.threadId);
  row.function = capture_.function(runtime ? 2 : 1, r.cbid, r.returnValue, [&] {
    const auto domain = runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API;
    return without_version(cupti_.api_function_name(domain, r.cbid));
  });
  if (watcher_.watches_work() && r.returnValue == 0 && launches_work(row.function, runtime, r.cbid))
    watcher_.launched(r.correlationId, on_our_clock(r.start));
  add_timed(row);
}

// The fields that copies on one device and between two devices share.
template <typename Record>
rows::Memcpys copy_row(const Record& r) {
  auto row = row_of<rows::Memcpys>(r);
  row.source_device = row.destination_device = row.device;
  row.kind = r.copyKind;
  row.source_memory = r.srcKind;
  row.destination_memory = r.dstKind;
  row.flags = r.flags & CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
  return row;
}

template <> void ActivityDecoder::add(const CUpti_ActivityMemcpy5& r) { add_timed(copy_row(r)); }

template <> void ActivityDecoder::add(const CUpti_ActivityMemcpyPtoP4& r) {
  rows::Memcpys row = copy_row(r);
  row.peer_context = narrow(r.contextId == r.srcContextId ? r.dstContextId : r.srcContextId);
  row.source_device = narrow(r.srcDeviceId);
  row.destination_device = narrow(r.dstDeviceId);
  add_timed(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityMemset4& r) {
  auto row = row_of<rows::Memsets>(r);
  row.memory = static_cast<std::uint8_t>(r.memoryKind);
  row.flags = r.flags & CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC;
  add_timed(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivitySynchronization& r) {
  auto row = row_of<rows::Synchronizations>(r);
  row.event = known(r.cudaEventId);
  row.type = static_cast<std::uint8_t>(r.type);
  if (cupti_.version >= kCupti_12_8) {
    const auto& newer = reinterpret_cast<const CUpti_ActivitySynchronization2&>(r);
    row.event_record = row.event != 0 ? newer.cudaEventSyncId : 0;
    row.status = newer.returnValue;
  }
  add_timed(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityCudaEvent& r) {
  auto row = row_of<rows::CudaEvents>(r);
  row.event = r.eventId;
  if (cupti_.version >= kCupti_12_8) {
    const auto& newer = reinterpret_cast<const CUpti_ActivityCudaEvent2&>(r);
    row.device_time = on_our_clock(newer.deviceTimestamp);
    row.event_record = newer.cudaEventSyncId;
  }
  capture_.add(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityOverhead& r) {
  constexpr std::uint32_t kCupti_12_2 = 20;
  auto row = row_of<rows::Overheads>(r);
  row.kind = static_cast<std::uint32_t>(r.overheadKind);
  if (r.objectKind == CUPTI_ACTIVITY_OBJECT_THREAD) names_.seen(row.thread = r.objectId.pt.threadId);
  if (cupti_.version >= kCupti_12_2) row.correlation = reinterpret_cast<const CUpti_ActivityOverhead3&>(r).correlationId;
  if (row.kind == kCommandBufferFull && row.start != 0 && row.end != 0) return add_full_queue(timed(row));
  add_timed(row);
}

// While the program is ahead of the GPU, CUPTI reports a full queue for each launch. If each record had a row, these rows would
// take half as many bytes as the launches. So records of one thread that are less than a millisecond apart become one row.
void ActivityDecoder::add_full_queue(const rows::Overheads& row) {
  constexpr std::uint64_t kLargestGap = 1'000'000;
  rows::Overheads& wait = full_queues_[std::uint32_t{row.thread}];  // by value: a packed field cannot bind to a reference
  if (wait.start != 0 && row.start >= wait.start && row.start <= wait.end + kLargestGap) {
    wait.end = std::max(std::uint64_t{wait.end}, std::uint64_t{row.end});
    return;
  }
  if (const rows::Overheads complete = std::exchange(wait, row); complete.start != 0) capture_.add(complete);
}

void ActivityDecoder::release() {
  while (!full_queues_.empty()) capture_.add(full_queues_.extract(full_queues_.begin()).mapped());
}

template <> void ActivityDecoder::add(const CUpti_ActivityGraphTrace& r) { add_timed(row_of<rows::GraphLaunches>(r)); }

template <> void ActivityDecoder::add(const CUpti_ActivityDevice4& r) {
  rows::Devices row;
  std::copy_n(reinterpret_cast<const std::uint8_t*>(r.isMigEnabled ? &r.migUuid : &r.uuid), 16, row.uuid.begin());
#define CUTRACE_COPY(field, member) row.field = r.member;
  CUTRACE_COPY(memory, globalMemorySize) CUTRACE_COPY(memory_bandwidth, globalMemoryBandwidth)
  CUTRACE_COPY(compute_major, computeCapabilityMajor) CUTRACE_COPY(compute_minor, computeCapabilityMinor)
  CUTRACE_COPY(multiprocessors, numMultiprocessors) CUTRACE_COPY(core_clock, coreClockRate)
  CUTRACE_COPY(l2_cache, l2CacheSize) CUTRACE_COPY(copy_engines, numMemcpyEngines)
  CUTRACE_COPY(warp_size, numThreadsPerWarp) CUTRACE_COPY(max_threads_per_block, maxThreadsPerBlock)
  CUTRACE_COPY(max_warps_per_multiprocessor, maxWarpsPerMultiprocessor)
  CUTRACE_COPY(max_blocks_per_multiprocessor, maxBlocksPerMultiprocessor)
  CUTRACE_COPY(registers_per_multiprocessor, maxRegistersPerMultiprocessor)
  CUTRACE_COPY(registers_per_block, maxRegistersPerBlock) CUTRACE_COPY(shared_per_block, maxSharedMemoryPerBlock)
  CUTRACE_COPY(shared_per_multiprocessor, maxSharedMemoryPerMultiprocessor)
#undef CUTRACE_COPY
  row.max_threads_per_multiprocessor = r.maxWarpsPerMultiprocessor * r.numThreadsPerWarp;
  row.mig = r.isMigEnabled ? 1 : 0;
  row.device = narrow(r.id);
  const auto same = [&](const Device& other) { return other.row.device == row.device; };
  if (r.isCudaVisible && std::none_of(devices_.begin(), devices_.end(), same))
    devices_.push_back({row, std::string(view(r.name))});
}

template <> void ActivityDecoder::add(const CUpti_ActivityContext& r) {
  auto row = row_of<rows::Contexts>(r);
  row.null_stream = r.nullStreamId;
  row.compute_api = r.computeApiKind;
  capture_.object_info(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityStream& r) {
  auto row = row_of<rows::Streams>(r);
  row.priority = static_cast<std::int32_t>(r.priority);
  row.type = static_cast<std::uint16_t>(r.flag);
  capture_.object_info(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityName& r) {
  rows::ResourceNames row;
  switch (r.objectKind) {
    case CUPTI_ACTIVITY_OBJECT_STREAM:
      row.kind = 1;
      row.object = r.objectId.dcs.streamId;
      row.context = narrow(r.objectId.dcs.contextId);
      break;
    case CUPTI_ACTIVITY_OBJECT_CONTEXT:
      row.kind = 2;
      row.object = r.objectId.dcs.contextId;
      break;
    case CUPTI_ACTIVITY_OBJECT_DEVICE:
      row.kind = 3;
      row.object = r.objectId.dcs.deviceId;
      break;
    default: return;  // names of threads come from the system and from NVTX
  }
  capture_.object_info(row, view(r.name));
}

template <> void ActivityDecoder::add(const CUpti_ActivityExternalCorrelation& r) {
  auto row = row_of<rows::ExternalCorrelations>(r);
  row.external = r.externalId;
  row.kind = static_cast<std::uint32_t>(r.externalKind);
  capture_.add(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityUnifiedMemoryCounter2& r) {
  auto row = row_of<rows::UnifiedMemory>(r);
  row.kind = static_cast<std::uint32_t>(r.counterKind);
  row.source_device = r.srcId;
  row.destination_device = r.dstId;
  row.flags = r.flags;
  capture_.add(timed(row));  // some counters are instants and have no end
}

template <> void ActivityDecoder::add(const CUpti_ActivityJit& r) {
  auto row = row_of<rows::Jit>(r);
  row.cache_size = r.cacheSize;
  row.cache_path = capture_.string(view(r.cachePath));
  row.entry = static_cast<std::uint8_t>(r.jitEntryType);
  row.operation = static_cast<std::uint8_t>(r.jitOperationType);
  if (cupti_.version >= kCupti_12_8) names_.seen(row.thread = reinterpret_cast<const CUpti_ActivityJit2&>(r).threadId);
  add_timed(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityEnvironment& r) {
  auto row = row_of<rows::Environment>(r);
  row.kind = static_cast<std::uint8_t>(r.environmentKind);
  const auto pair = [](std::uint64_t low, std::uint64_t high) { return low | (high << 32); };
  switch (r.environmentKind) {
    case CUPTI_ACTIVITY_ENVIRONMENT_SPEED: {
      const auto& s = r.data.speed;
      row.values = pair((s.smClock & 0xFFFFu) | (s.memoryClock << 16), (s.pcieLinkGen & 0xFFFFu) | (s.pcieLinkWidth << 16));
      row.flags = static_cast<std::uint32_t>(s.clocksThrottleReasons);
      break;
    }
    case CUPTI_ACTIVITY_ENVIRONMENT_TEMPERATURE: row.values = r.data.temperature.gpuTemperature; break;
    case CUPTI_ACTIVITY_ENVIRONMENT_POWER: row.values = pair(r.data.power.power, r.data.power.powerLimit); break;
    case CUPTI_ACTIVITY_ENVIRONMENT_COOLING: row.values = r.data.cooling.fanSpeed; break;
    default: return;
  }
  add_at(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityModule& r) {
  auto row = row_of<rows::Modules>(r);
  row.module = r.id;
  row.size = r.cubinSize;
  capture_.add(row);
}

template <> void ActivityDecoder::add(const CUpti_ActivityFunction& r) {
  auto row = row_of<rows::DeviceFunctions>(r);
  row.device_function = r.id;
  row.module = r.moduleId;
  row.index = r.functionIndex;
  row.name = capture_.string(view(r.name));
  capture_.add(row);
}

void ActivityDecoder::decode(std::uint8_t* buffer, std::size_t valid) {
  ahead_ = cupti_.on_realtime.load() ? realtime_ahead() : 0;
  CUpti_Activity* next = nullptr;
  for (;;) {
    const CUptiResult result = cupti_.next_record(buffer, valid, &next);
    if (result == CUPTI_SUCCESS) {
      record(next);
      continue;
    }
    if (result != CUPTI_ERROR_MAX_LIMIT_REACHED)
      capture_.lose(rows::Loss::unknown_record, 1, "rest of a buffer: " + cupti_.error_name(result));
    return;
  }
}

void ActivityDecoder::record(const CUpti_Activity* r) {
  switch (r->kind) {
#define CUTRACE_CASE(kind, struct) \
  case CUPTI_ACTIVITY_KIND_##kind: return add(*reinterpret_cast<const CUpti_Activity##struct*>(r));
    CUTRACE_CASE(CONCURRENT_KERNEL, Kernel9) CUTRACE_CASE(KERNEL, Kernel9) CUTRACE_CASE(RUNTIME, API) CUTRACE_CASE(DRIVER, API)
    CUTRACE_CASE(MEMCPY, Memcpy5) CUTRACE_CASE(MEMCPY2, MemcpyPtoP4) CUTRACE_CASE(MEMSET, Memset4)
    CUTRACE_CASE(SYNCHRONIZATION, Synchronization) CUTRACE_CASE(CUDA_EVENT, CudaEvent)
    CUTRACE_CASE(OVERHEAD, Overhead) CUTRACE_CASE(GRAPH_TRACE, GraphTrace)
    CUTRACE_CASE(DEVICE, Device4) CUTRACE_CASE(CONTEXT, Context) CUTRACE_CASE(STREAM, Stream) CUTRACE_CASE(NAME, Name)
    CUTRACE_CASE(EXTERNAL_CORRELATION, ExternalCorrelation) CUTRACE_CASE(UNIFIED_MEMORY_COUNTER, UnifiedMemoryCounter2)
    CUTRACE_CASE(JIT, Jit) CUTRACE_CASE(ENVIRONMENT, Environment) CUTRACE_CASE(MODULE, Module) CUTRACE_CASE(FUNCTION, Function)
#undef CUTRACE_CASE
    // CUPTI sends these records together with DEVICE; the driver provides their fields
    case CUPTI_ACTIVITY_KIND_DEVICE_ATTRIBUTE:
      return;
    default: capture_.lose(rows::Loss::unknown_record, 1, "activity kind " + std::to_string(static_cast<int>(r->kind)));
  }
}

}  // namespace cutrace
