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

// "cudaLaunchKernel_v7000" -> "cudaLaunchKernel", "cuMemcpyHtoD_v2" -> "cuMemcpyHtoD"
std::string_view without_version(std::string_view name) {
  const auto at = name.rfind("_v");
  if (at == std::string_view::npos || at + 2 == name.size()) return name;
  const bool digits = std::all_of(name.begin() + static_cast<std::ptrdiff_t>(at) + 2, name.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  return digits ? name.substr(0, at) : name;
}

}  // namespace

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
    case CUPTI_ACTIVITY_KIND_KERNEL: return kernel(as<CUpti_ActivityKernel9>(r));
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return api(as<CUpti_ActivityAPI>(r));
    case CUPTI_ACTIVITY_KIND_MEMCPY: return memcpy(as<CUpti_ActivityMemcpy5>(r));
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return memcpy_peer(as<CUpti_ActivityMemcpyPtoP4>(r));
    case CUPTI_ACTIVITY_KIND_MEMSET: return memset(as<CUpti_ActivityMemset4>(r));
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return synchronization(as<CUpti_ActivitySynchronization>(r));
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return cuda_event(as<CUpti_ActivityCudaEvent>(r));
    case CUPTI_ACTIVITY_KIND_MEMORY2: return memory(as<CUpti_ActivityMemory3>(r));
    case CUPTI_ACTIVITY_KIND_MEMORY_POOL: return memory_pool(as<CUpti_ActivityMemoryPool2>(r));
    case CUPTI_ACTIVITY_KIND_OVERHEAD: return overhead(as<CUpti_ActivityOverhead>(r));
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return graph(as<CUpti_ActivityGraphTrace>(r));
    case CUPTI_ACTIVITY_KIND_DEVICE: return device(as<CUpti_ActivityDevice4>(r));
    case CUPTI_ACTIVITY_KIND_CONTEXT: return context(as<CUpti_ActivityContext>(r));
    case CUPTI_ACTIVITY_KIND_STREAM: return stream(as<CUpti_ActivityStream>(r));
    case CUPTI_ACTIVITY_KIND_NAME: return name(as<CUpti_ActivityName>(r));
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return external(as<CUpti_ActivityExternalCorrelation>(r));
    case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: return unified_memory(as<CUpti_ActivityUnifiedMemoryCounter2>(r));
    case CUPTI_ACTIVITY_KIND_JIT: return jit(as<CUpti_ActivityJit>(r));
    case CUPTI_ACTIVITY_KIND_ENVIRONMENT: return environment(as<CUpti_ActivityEnvironment>(r));
    case CUPTI_ACTIVITY_KIND_MODULE: return module(as<CUpti_ActivityModule>(r));
    case CUPTI_ACTIVITY_KIND_FUNCTION: return function(as<CUpti_ActivityFunction>(r));
    case CUPTI_ACTIVITY_KIND_DEVICE_ATTRIBUTE:  // comes with DEVICE; the driver is asked instead
      return;
    default: capture_.lose(rows::Loss::unknown_record, 1, "activity kind " + std::to_string(static_cast<int>(r->kind)));
  }
}

void ActivityDecoder::kernel(const CUpti_ActivityKernel9& k) {
  rows::Launches launch;
  launch.grid_x = static_cast<std::uint32_t>(k.gridX);
  launch.grid_y = static_cast<std::uint32_t>(k.gridY);
  launch.grid_z = static_cast<std::uint32_t>(k.gridZ);
  launch.block_x = static_cast<std::uint32_t>(k.blockX);
  launch.block_y = static_cast<std::uint32_t>(k.blockY);
  launch.block_z = static_cast<std::uint32_t>(k.blockZ);
  launch.cluster_x = k.clusterX;
  launch.cluster_y = k.clusterY;
  launch.cluster_z = k.clusterZ;
  launch.registers = k.registersPerThread;
  launch.static_shared = static_cast<std::uint32_t>(k.staticSharedMemory);
  launch.dynamic_shared = static_cast<std::uint32_t>(k.dynamicSharedMemory);
  launch.shared_executed = k.sharedMemoryExecuted;
  launch.local_per_thread = k.localMemoryPerThread;
  launch.local_total = k.localMemoryTotal_v2 != 0 ? k.localMemoryTotal_v2 : k.localMemoryTotal;
  launch.graph_node = k.graphNodeId;
  launch.graph = k.graphId;
  launch.cache_requested = k.cacheConfig.config.requested;
  launch.cache_executed = k.cacheConfig.config.executed;
  launch.launch_type = k.launchType;
  launch.carveout = k.isSharedMemoryCarveoutRequested ? k.sharedMemoryCarveoutRequested : std::uint8_t{255};
  launch.shared_limit = static_cast<std::uint32_t>(k.shmemLimitConfig);
  launch.cluster_policy = k.clusterSchedulingPolicy;
  launch.max_cluster = k.maxPotentialClusterSize;
  launch.max_active_clusters = k.maxActiveClusters;

  rows::Kernels row;
  row.start = k.start;
  row.end = k.end;
  row.correlation = k.correlationId;
  row.launch = capture_.launch(launch, k.name);
  row.stream = k.streamId;
  row.context = narrow(k.contextId);
  row.device = narrow(k.deviceId);
  if (k.graphNodeId != 0 && k.start == 0) ++graph_kernels_without_times_;
  add_timed(row);
}

void ActivityDecoder::api(const CUpti_ActivityAPI& a) {
  if (std::find(ignored_.begin(), ignored_.end(), a.threadId) != ignored_.end()) return;
  const bool runtime = a.kind == CUPTI_ACTIVITY_KIND_RUNTIME;
  rows::ApiCalls row;
  row.start = a.start;
  row.end = a.end;
  row.correlation = a.correlationId;
  row.thread = a.threadId;
  row.function = capture_.function(runtime ? 2 : 1, a.cbid, a.returnValue, [&] {
    const char* text = nullptr;
    const auto domain = runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API;
    if (cupti_.GetCallbackName != nullptr) cupti_.GetCallbackName(domain, a.cbid, &text);
    return without_version(view(text));
  });
  add_timed(row);
}

// What copies on one device and between two have in common.
template <typename Record>
rows::Memcpys copy_row(const Record& m) {
  rows::Memcpys row;
  row.start = m.start;
  row.end = m.end;
  row.bytes = m.bytes;
  row.graph_node = m.graphNodeId;
  row.correlation = m.correlationId;
  row.stream = m.streamId;
  row.graph = m.graphId;
  row.context = narrow(m.contextId);
  row.device = row.source_device = row.destination_device = narrow(m.deviceId);
  row.kind = m.copyKind;
  row.source_memory = m.srcKind;
  row.destination_memory = m.dstKind;
  row.flags = m.flags & CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
  return row;
}

void ActivityDecoder::memcpy(const CUpti_ActivityMemcpy5& m) { add_timed(copy_row(m)); }

void ActivityDecoder::memcpy_peer(const CUpti_ActivityMemcpyPtoP4& m) {
  rows::Memcpys row = copy_row(m);
  row.peer_context = narrow(m.contextId == m.srcContextId ? m.dstContextId : m.srcContextId);
  row.source_device = narrow(m.srcDeviceId);
  row.destination_device = narrow(m.dstDeviceId);
  add_timed(row);
}

void ActivityDecoder::memset(const CUpti_ActivityMemset4& m) {
  rows::Memsets row;
  row.start = m.start;
  row.end = m.end;
  row.bytes = m.bytes;
  row.graph_node = m.graphNodeId;
  row.correlation = m.correlationId;
  row.stream = m.streamId;
  row.graph = m.graphId;
  row.value = m.value;
  row.context = narrow(m.contextId);
  row.device = narrow(m.deviceId);
  row.memory = static_cast<std::uint8_t>(m.memoryKind);
  row.flags = m.flags & CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC;
  add_timed(row);
}

void ActivityDecoder::synchronization(const CUpti_ActivitySynchronization& s) {
  rows::Synchronizations row;
  row.start = s.start;
  row.end = s.end;
  row.correlation = s.correlationId;
  row.stream = known(s.streamId);
  row.event = known(s.cudaEventId);
  row.context = narrow(s.contextId);
  row.type = static_cast<std::uint8_t>(s.type);
  if (cupti_.version >= kCupti_12_8) {
    const auto& longer = reinterpret_cast<const CUpti_ActivitySynchronization2&>(s);
    row.event_record = row.event != 0 ? longer.cudaEventSyncId : 0;
    row.status = longer.returnValue;
  }
  add_timed(row);
}

void ActivityDecoder::cuda_event(const CUpti_ActivityCudaEvent& e) {
  rows::CudaEvents row;
  row.correlation = e.correlationId;
  row.stream = e.streamId;
  row.event = e.eventId;
  row.context = narrow(e.contextId);
  if (cupti_.version >= kCupti_12_8) {
    const auto& longer = reinterpret_cast<const CUpti_ActivityCudaEvent2&>(e);
    row.device_time = on_our_clock(longer.deviceTimestamp);
    row.event_record = longer.cudaEventSyncId;
  }
  capture_.add(row);
}

void ActivityDecoder::memory(const CUpti_ActivityMemory3& m) {
  rows::Allocations row;
  row.time = m.timestamp;
  row.address = m.address;
  row.bytes = m.bytes;
  row.correlation = m.correlationId;
  row.stream = known(m.streamId);
  row.context = narrow(m.contextId);
  row.device = narrow(m.deviceId);
  row.operation = static_cast<std::uint8_t>(m.memoryOperationType);
  row.memory = static_cast<std::uint8_t>(m.memoryKind);
  row.flags = m.isAsync ? 1 : 0;
  row.pool_type = static_cast<std::uint8_t>(m.memoryPoolConfig.memoryPoolType);
  if (row.pool_type != 0) {
    row.pool = m.memoryPoolConfig.address;
    row.pool_used = m.memoryPoolConfig.utilizedSize;
  }
  add_at(row);
}

void ActivityDecoder::memory_pool(const CUpti_ActivityMemoryPool2& p) {
  rows::MemoryPools row;
  row.time = p.timestamp;
  row.address = p.address;
  row.size = p.size;
  row.used = p.utilizedSize;
  row.release_threshold = p.releaseThreshold;
  row.minimum = p.minBytesToKeep;
  row.correlation = p.correlationId;
  row.device = narrow(p.deviceId);
  row.operation = static_cast<std::uint8_t>(p.memoryPoolOperationType);
  row.pool_type = static_cast<std::uint8_t>(p.memoryPoolType);
  add_at(row);
}

void ActivityDecoder::overhead(const CUpti_ActivityOverhead& o) {
  constexpr std::uint32_t kCupti_12_2 = 20;
  rows::Overheads row;
  row.start = o.start;
  row.end = o.end;
  row.kind = static_cast<std::uint32_t>(o.overheadKind);
  if (o.objectKind == CUPTI_ACTIVITY_OBJECT_THREAD) row.thread = o.objectId.pt.threadId;
  if (cupti_.version >= kCupti_12_2) row.correlation = reinterpret_cast<const CUpti_ActivityOverhead3&>(o).correlationId;
  if (row.kind == kCommandBufferFull && row.start != 0 && row.end != 0) return full_queue(timed(row));
  add_timed(row);
}

// CUPTI reports a full queue once a launch, for as long as the program is ahead of the GPU: as rows, half as many bytes
// again as the launches. A thread that finds it full again within a millisecond has never been away from it.
void ActivityDecoder::full_queue(const rows::Overheads& row) {
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

void ActivityDecoder::graph(const CUpti_ActivityGraphTrace& g) {
  rows::GraphLaunches row;
  row.start = g.start;
  row.end = g.end;
  row.correlation = g.correlationId;
  row.stream = g.streamId;
  row.graph = g.graphId;
  row.context = narrow(g.contextId);
  row.device = narrow(g.deviceId);
  add_timed(row);
}

void ActivityDecoder::device(const CUpti_ActivityDevice4& d) {
  rows::Devices row;
  std::copy_n(reinterpret_cast<const std::uint8_t*>(d.isMigEnabled ? &d.migUuid : &d.uuid), 16, row.uuid.begin());
  row.memory = d.globalMemorySize;
  row.memory_bandwidth = d.globalMemoryBandwidth;
  row.compute_major = d.computeCapabilityMajor;
  row.compute_minor = d.computeCapabilityMinor;
  row.multiprocessors = d.numMultiprocessors;
  row.core_clock = d.coreClockRate;
  row.l2_cache = d.l2CacheSize;
  row.warp_size = d.numThreadsPerWarp;
  row.max_threads_per_block = d.maxThreadsPerBlock;
  row.max_threads_per_multiprocessor = d.maxWarpsPerMultiprocessor * d.numThreadsPerWarp;
  row.max_warps_per_multiprocessor = d.maxWarpsPerMultiprocessor;
  row.max_blocks_per_multiprocessor = d.maxBlocksPerMultiprocessor;
  row.registers_per_multiprocessor = d.maxRegistersPerMultiprocessor;
  row.registers_per_block = d.maxRegistersPerBlock;
  row.shared_per_multiprocessor = d.maxSharedMemoryPerMultiprocessor;
  row.shared_per_block = d.maxSharedMemoryPerBlock;
  row.copy_engines = d.numMemcpyEngines;
  row.mig = d.isMigEnabled ? 1 : 0;
  row.device = narrow(d.id);
  const auto same = [&](const Device& other) { return other.row.device == row.device; };
  if (d.isCudaVisible && std::none_of(devices_.begin(), devices_.end(), same))
    devices_.push_back({row, std::string(view(d.name))});
}

void ActivityDecoder::context(const CUpti_ActivityContext& c) {
  rows::Contexts row;
  row.null_stream = c.nullStreamId;
  row.compute_api = c.computeApiKind;
  row.context = narrow(c.contextId);
  row.device = narrow(c.deviceId);
  capture_.fact(row);
}

void ActivityDecoder::stream(const CUpti_ActivityStream& s) {
  rows::Streams row;
  row.stream = s.streamId;
  row.priority = static_cast<std::int32_t>(s.priority);
  row.type = static_cast<std::uint16_t>(s.flag);
  row.context = narrow(s.contextId);
  capture_.fact(row);
}

void ActivityDecoder::name(const CUpti_ActivityName& n) {
  rows::ResourceNames row;
  switch (n.objectKind) {
    case CUPTI_ACTIVITY_OBJECT_STREAM:
      row.kind = 1;
      row.object = n.objectId.dcs.streamId;
      row.context = narrow(n.objectId.dcs.contextId);
      break;
    case CUPTI_ACTIVITY_OBJECT_CONTEXT:
      row.kind = 2;
      row.object = n.objectId.dcs.contextId;
      break;
    case CUPTI_ACTIVITY_OBJECT_DEVICE:
      row.kind = 3;
      row.object = n.objectId.dcs.deviceId;
      break;
    default: return;  // threads: their names come from the system and from NVTX
  }
  capture_.fact(row, view(n.name));
}

void ActivityDecoder::external(const CUpti_ActivityExternalCorrelation& e) {
  rows::ExternalCorrelations row;
  row.external = e.externalId;
  row.correlation = e.correlationId;
  row.kind = static_cast<std::uint32_t>(e.externalKind);
  capture_.add(row);
}

void ActivityDecoder::unified_memory(const CUpti_ActivityUnifiedMemoryCounter2& u) {
  rows::UnifiedMemory row;
  row.start = u.start;
  row.end = u.end;
  row.value = u.value;
  row.address = u.address;
  row.stream = u.streamId;
  row.kind = static_cast<std::uint32_t>(u.counterKind);
  row.source_device = u.srcId;
  row.destination_device = u.dstId;
  row.flags = u.flags;
  capture_.add(timed(row));  // some counters are instants and have no end
}

void ActivityDecoder::jit(const CUpti_ActivityJit& j) {
  rows::Jit row;
  row.start = j.start;
  row.end = j.end;
  row.cache_size = j.cacheSize;
  row.correlation = j.correlationId;
  row.cache_path = capture_.string(view(j.cachePath));
  row.device = narrow(j.deviceId);
  row.entry = static_cast<std::uint8_t>(j.jitEntryType);
  row.operation = static_cast<std::uint8_t>(j.jitOperationType);
  if (cupti_.version >= kCupti_12_8) row.thread = reinterpret_cast<const CUpti_ActivityJit2&>(j).threadId;
  add_timed(row);
}

void ActivityDecoder::environment(const CUpti_ActivityEnvironment& e) {
  rows::Environment row;
  row.time = e.timestamp;
  row.device = narrow(e.deviceId);
  row.kind = static_cast<std::uint8_t>(e.environmentKind);
  const auto pair = [](std::uint64_t low, std::uint64_t high) { return low | (high << 32); };
  switch (e.environmentKind) {
    case CUPTI_ACTIVITY_ENVIRONMENT_SPEED: {
      const auto& s = e.data.speed;
      row.values = pair((s.smClock & 0xFFFFu) | (s.memoryClock << 16), (s.pcieLinkGen & 0xFFFFu) | (s.pcieLinkWidth << 16));
      row.flags = static_cast<std::uint32_t>(s.clocksThrottleReasons);
      break;
    }
    case CUPTI_ACTIVITY_ENVIRONMENT_TEMPERATURE: row.values = e.data.temperature.gpuTemperature; break;
    case CUPTI_ACTIVITY_ENVIRONMENT_POWER: row.values = pair(e.data.power.power, e.data.power.powerLimit); break;
    case CUPTI_ACTIVITY_ENVIRONMENT_COOLING: row.values = e.data.cooling.fanSpeed; break;
    default: return;
  }
  add_at(row);
}

void ActivityDecoder::module(const CUpti_ActivityModule& m) {
  rows::Modules row;
  row.module = m.id;
  row.size = m.cubinSize;
  row.context = narrow(m.contextId);
  capture_.add(row);
}

void ActivityDecoder::function(const CUpti_ActivityFunction& f) {
  rows::DeviceFunctions row;
  row.device_function = f.id;
  row.module = f.moduleId;
  row.index = f.functionIndex;
  row.name = capture_.string(view(f.name));
  row.context = narrow(f.contextId);
  capture_.add(row);
}

}  // namespace cutrace
