#include "activity.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "clock.h"

namespace cutrace {
namespace {

// CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL, which headers before 12.3 do not name: a launch waited for room.
constexpr std::uint32_t kCommandBufferFull = 6u << 16;

std::uint16_t narrow(std::uint32_t id) { return static_cast<std::uint16_t>(id); }
std::uint32_t known(std::uint32_t id) { return id == CUPTI_SYNCHRONIZATION_INVALID_VALUE ? 0 : id; }
std::string_view view(const char* text) { return text ? std::string_view(text) : std::string_view(); }

template <typename Record>
const Record& as(const CUpti_Activity* record) {
  return *reinterpret_cast<const Record*>(record);
}

// A row with the fields that records of several kinds have under one name.
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
  const auto at = name.rfind("_v");
  if (at == std::string_view::npos || at + 2 == name.size()) return name;
  const bool digits = std::all_of(name.begin() + static_cast<std::ptrdiff_t>(at) + 2, name.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  return digits ? name.substr(0, at) : name;
}

}  // namespace

template <>
void ActivityDecoder::add(const CUpti_ActivityKernel9& r) {
  rows::Launches launch;
  launch.grid_x = static_cast<std::uint32_t>(r.gridX);
  launch.grid_y = static_cast<std::uint32_t>(r.gridY);
  launch.grid_z = static_cast<std::uint32_t>(r.gridZ);
  launch.block_x = static_cast<std::uint32_t>(r.blockX);
  launch.block_y = static_cast<std::uint32_t>(r.blockY);
  launch.block_z = static_cast<std::uint32_t>(r.blockZ);
  launch.cluster_x = r.clusterX;
  launch.cluster_y = r.clusterY;
  launch.cluster_z = r.clusterZ;
  launch.registers = r.registersPerThread;
  launch.static_shared = static_cast<std::uint32_t>(r.staticSharedMemory);
  launch.dynamic_shared = static_cast<std::uint32_t>(r.dynamicSharedMemory);
  launch.shared_executed = r.sharedMemoryExecuted;
  launch.local_per_thread = r.localMemoryPerThread;
  launch.local_total = r.localMemoryTotal_v2 != 0 ? r.localMemoryTotal_v2 : r.localMemoryTotal;
  launch.graph_node = r.graphNodeId;
  launch.graph = r.graphId;
  launch.cache_requested = r.cacheConfig.config.requested;
  launch.cache_executed = r.cacheConfig.config.executed;
  launch.launch_type = r.launchType;
  launch.carveout = r.isSharedMemoryCarveoutRequested ? r.sharedMemoryCarveoutRequested : std::uint8_t{255};
  launch.shared_limit = static_cast<std::uint32_t>(r.shmemLimitConfig);
  launch.cluster_policy = r.clusterSchedulingPolicy;
  launch.max_cluster = r.maxPotentialClusterSize;
  launch.max_active_clusters = r.maxActiveClusters;

  auto row = row_of<rows::Kernels>(r);
  row.launch = capture_.launch(launch, r.name);
  if (r.graphNodeId != 0 && r.start == 0) ++graph_kernels_without_times_;
  add_timed(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityAPI& r) {
  if (std::find(ignored_.begin(), ignored_.end(), r.threadId) != ignored_.end()) return;
  const bool runtime = r.kind == CUPTI_ACTIVITY_KIND_RUNTIME;
  names_.seen(r.threadId);
  auto row = row_of<rows::ApiCalls>(r);
  row.function = capture_.function(runtime ? 2 : 1, r.cbid, r.returnValue, [&] {
    const auto domain = runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API;
    return without_version(cupti_.api_function_name(domain, r.cbid));
  });
  add_timed(row);
}

// What copies on one device and between two have in common.
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

template <>
void ActivityDecoder::add(const CUpti_ActivityMemcpy5& r) { add_timed(copy_row(r)); }

template <>
void ActivityDecoder::add(const CUpti_ActivityMemcpyPtoP4& r) {
  rows::Memcpys row = copy_row(r);
  row.peer_context = narrow(r.contextId == r.srcContextId ? r.dstContextId : r.srcContextId);
  row.source_device = narrow(r.srcDeviceId);
  row.destination_device = narrow(r.dstDeviceId);
  add_timed(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityMemset4& r) {
  auto row = row_of<rows::Memsets>(r);
  row.memory = static_cast<std::uint8_t>(r.memoryKind);
  row.flags = r.flags & CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC;
  add_timed(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivitySynchronization& r) {
  auto row = row_of<rows::Synchronizations>(r);
  row.event = known(r.cudaEventId);
  row.type = static_cast<std::uint8_t>(r.type);
  if (cupti_.version >= kCupti_12_8) {
    const auto& longer = reinterpret_cast<const CUpti_ActivitySynchronization2&>(r);
    row.event_record = row.event != 0 ? longer.cudaEventSyncId : 0;
    row.status = longer.returnValue;
  }
  add_timed(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityCudaEvent& r) {
  auto row = row_of<rows::CudaEvents>(r);
  row.event = r.eventId;
  if (cupti_.version >= kCupti_12_8) {
    const auto& longer = reinterpret_cast<const CUpti_ActivityCudaEvent2&>(r);
    row.device_time = on_our_clock(longer.deviceTimestamp);
    row.event_record = longer.cudaEventSyncId;
  }
  capture_.add(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityMemory3& r) {
  auto row = row_of<rows::Allocations>(r);
  row.operation = static_cast<std::uint8_t>(r.memoryOperationType);
  row.memory = static_cast<std::uint8_t>(r.memoryKind);
  row.flags = r.isAsync ? 1 : 0;
  row.pool_type = static_cast<std::uint8_t>(r.memoryPoolConfig.memoryPoolType);
  if (row.pool_type != 0) {
    row.pool = r.memoryPoolConfig.address;
    row.pool_used = r.memoryPoolConfig.utilizedSize;
  }
  add_at(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityMemoryPool2& r) {
  auto row = row_of<rows::MemoryPools>(r);
  row.size = r.size;
  row.used = r.utilizedSize;
  row.release_threshold = r.releaseThreshold;
  row.minimum = r.minBytesToKeep;
  row.operation = static_cast<std::uint8_t>(r.memoryPoolOperationType);
  row.pool_type = static_cast<std::uint8_t>(r.memoryPoolType);
  add_at(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityOverhead& r) {
  constexpr std::uint32_t kCupti_12_2 = 20;
  auto row = row_of<rows::Overheads>(r);
  row.kind = static_cast<std::uint32_t>(r.overheadKind);
  if (r.objectKind == CUPTI_ACTIVITY_OBJECT_THREAD) names_.seen(row.thread = r.objectId.pt.threadId);
  if (cupti_.version >= kCupti_12_2) row.correlation = reinterpret_cast<const CUpti_ActivityOverhead3&>(r).correlationId;
  if (row.kind == kCommandBufferFull && row.start != 0 && row.end != 0) return add_full_queue(timed(row));
  add_timed(row);
}

// CUPTI reports a full queue once a launch, for as long as the program is ahead of the GPU: as rows, half as many bytes
// again as the launches. A thread that finds it full again within a millisecond has never been away from it.
void ActivityDecoder::add_full_queue(const rows::Overheads& row) {
  constexpr std::uint64_t kSameSpell = 1'000'000;
  rows::Overheads& spell = full_queues_[std::uint32_t{row.thread}];  // by value: fields of packed rows take no references
  if (spell.start != 0 && row.start >= spell.start && row.start <= spell.end + kSameSpell) {
    spell.end = std::max(std::uint64_t{spell.end}, std::uint64_t{row.end});
    return;
  }
  if (spell.start != 0) capture_.add(spell);
  spell = row;
}

void ActivityDecoder::release() {
  for (const auto& [thread, spell] : full_queues_) capture_.add(spell);
  full_queues_.clear();
}

template <>
void ActivityDecoder::add(const CUpti_ActivityGraphTrace& r) {
  add_timed(row_of<rows::GraphLaunches>(r));
}

template <>
void ActivityDecoder::add(const CUpti_ActivityDevice4& r) {
  rows::Devices row;
  std::copy_n(reinterpret_cast<const std::uint8_t*>(r.isMigEnabled ? &r.migUuid : &r.uuid), 16, row.uuid.begin());
  row.memory = r.globalMemorySize;
  row.memory_bandwidth = r.globalMemoryBandwidth;
  row.compute_major = r.computeCapabilityMajor;
  row.compute_minor = r.computeCapabilityMinor;
  row.multiprocessors = r.numMultiprocessors;
  row.core_clock = r.coreClockRate;
  row.l2_cache = r.l2CacheSize;
  row.warp_size = r.numThreadsPerWarp;
  row.max_threads_per_block = r.maxThreadsPerBlock;
  row.max_threads_per_multiprocessor = r.maxWarpsPerMultiprocessor * r.numThreadsPerWarp;
  row.max_warps_per_multiprocessor = r.maxWarpsPerMultiprocessor;
  row.max_blocks_per_multiprocessor = r.maxBlocksPerMultiprocessor;
  row.registers_per_multiprocessor = r.maxRegistersPerMultiprocessor;
  row.registers_per_block = r.maxRegistersPerBlock;
  row.shared_per_multiprocessor = r.maxSharedMemoryPerMultiprocessor;
  row.shared_per_block = r.maxSharedMemoryPerBlock;
  row.copy_engines = r.numMemcpyEngines;
  row.mig = r.isMigEnabled ? 1 : 0;
  row.device = narrow(r.id);
  const auto same = [&](const Device& other) { return other.row.device == row.device; };
  if (r.isCudaVisible && std::none_of(devices_.begin(), devices_.end(), same))
    devices_.push_back({row, std::string(view(r.name))});
}

template <>
void ActivityDecoder::add(const CUpti_ActivityContext& r) {
  auto row = row_of<rows::Contexts>(r);
  row.null_stream = r.nullStreamId;
  row.compute_api = r.computeApiKind;
  capture_.fact(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityStream& r) {
  auto row = row_of<rows::Streams>(r);
  row.priority = static_cast<std::int32_t>(r.priority);
  row.type = static_cast<std::uint16_t>(r.flag);
  capture_.fact(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityName& r) {
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
    default: return;  // threads: their names come from the system and from NVTX
  }
  capture_.fact(row, view(r.name));
}

template <>
void ActivityDecoder::add(const CUpti_ActivityExternalCorrelation& r) {
  auto row = row_of<rows::ExternalCorrelations>(r);
  row.external = r.externalId;
  row.kind = static_cast<std::uint32_t>(r.externalKind);
  capture_.add(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityUnifiedMemoryCounter2& r) {
  auto row = row_of<rows::UnifiedMemory>(r);
  row.kind = static_cast<std::uint32_t>(r.counterKind);
  row.source_device = r.srcId;
  row.destination_device = r.dstId;
  row.flags = r.flags;
  capture_.add(timed(row));  // some counters are instants and have no end
}

template <>
void ActivityDecoder::add(const CUpti_ActivityJit& r) {
  auto row = row_of<rows::Jit>(r);
  row.cache_size = r.cacheSize;
  row.cache_path = capture_.string(view(r.cachePath));
  row.entry = static_cast<std::uint8_t>(r.jitEntryType);
  row.operation = static_cast<std::uint8_t>(r.jitOperationType);
  if (cupti_.version >= kCupti_12_8) names_.seen(row.thread = reinterpret_cast<const CUpti_ActivityJit2&>(r).threadId);
  add_timed(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityEnvironment& r) {
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

template <>
void ActivityDecoder::add(const CUpti_ActivityModule& r) {
  auto row = row_of<rows::Modules>(r);
  row.module = r.id;
  row.size = r.cubinSize;
  capture_.add(row);
}

template <>
void ActivityDecoder::add(const CUpti_ActivityFunction& r) {
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
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL: return add(as<CUpti_ActivityKernel9>(r));
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return add(as<CUpti_ActivityAPI>(r));
    case CUPTI_ACTIVITY_KIND_MEMCPY: return add(as<CUpti_ActivityMemcpy5>(r));
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return add(as<CUpti_ActivityMemcpyPtoP4>(r));
    case CUPTI_ACTIVITY_KIND_MEMSET: return add(as<CUpti_ActivityMemset4>(r));
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return add(as<CUpti_ActivitySynchronization>(r));
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return add(as<CUpti_ActivityCudaEvent>(r));
    case CUPTI_ACTIVITY_KIND_MEMORY2: return add(as<CUpti_ActivityMemory3>(r));
    case CUPTI_ACTIVITY_KIND_MEMORY_POOL: return add(as<CUpti_ActivityMemoryPool2>(r));
    case CUPTI_ACTIVITY_KIND_OVERHEAD: return add(as<CUpti_ActivityOverhead>(r));
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return add(as<CUpti_ActivityGraphTrace>(r));
    case CUPTI_ACTIVITY_KIND_DEVICE: return add(as<CUpti_ActivityDevice4>(r));
    case CUPTI_ACTIVITY_KIND_CONTEXT: return add(as<CUpti_ActivityContext>(r));
    case CUPTI_ACTIVITY_KIND_STREAM: return add(as<CUpti_ActivityStream>(r));
    case CUPTI_ACTIVITY_KIND_NAME: return add(as<CUpti_ActivityName>(r));
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return add(as<CUpti_ActivityExternalCorrelation>(r));
    case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: return add(as<CUpti_ActivityUnifiedMemoryCounter2>(r));
    case CUPTI_ACTIVITY_KIND_JIT: return add(as<CUpti_ActivityJit>(r));
    case CUPTI_ACTIVITY_KIND_ENVIRONMENT: return add(as<CUpti_ActivityEnvironment>(r));
    case CUPTI_ACTIVITY_KIND_MODULE: return add(as<CUpti_ActivityModule>(r));
    case CUPTI_ACTIVITY_KIND_FUNCTION: return add(as<CUpti_ActivityFunction>(r));
    case CUPTI_ACTIVITY_KIND_DEVICE_ATTRIBUTE:  // comes with DEVICE; the driver is asked instead
      return;
    default: capture_.lose(rows::Loss::unknown_record, 1, "activity kind " + std::to_string(static_cast<int>(r->kind)));
  }
}

}  // namespace cutrace
