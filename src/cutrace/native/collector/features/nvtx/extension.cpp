// The callbacks of NVTX's extension modules, except ranges with payloads.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "batch.h"
#include "core/clock.h"
#include "core/wake.h"
#include "counters.h"
#include "nvtx.h"
#include "nvtx_callbacks.h"
#include "time_domains.h"

namespace cutrace::nvtx {
namespace {

std::span<const std::uint8_t> bytes_of(const void* data, std::size_t size) { return {static_cast<const std::uint8_t*>(data), size}; }

// Puts an event with an id and bytes into the thread's ring. When the ring is full, counts the event as dropped and returns
// false.
bool emit(EventType type, nvtxDomainHandle_t domain, std::uint64_t id, std::uint32_t kind, std::span<const std::uint8_t> bytes) {
  Ring* const ring = ring_if_recording();
  if (ring == nullptr) return false;
  const std::size_t size = sizeof(EventHeader) + sizeof id + aligned(bytes.size(), 8);
  std::uint8_t* const at = ring->reserve(size);
  if (at == nullptr) {
    ++ring->lost_events;
    ring->drop(EventSource::nvtx);
    return false;
  }
  const EventHeader header{static_cast<std::uint32_t>(size), type, kId, number_of(domain), now_ns(), kind, static_cast<std::uint32_t>(bytes.size())};
  std::memcpy(at, &header, sizeof header);
  std::memcpy(at + sizeof header, &id, sizeof id);
  if (!bytes.empty()) std::memcpy(at + sizeof header + sizeof id, bytes.data(), bytes.size());
  if (ring->commit(size)) writer_wake.signal();
  return true;
}

template <typename Value>
void emit_sample(nvtxDomainHandle_t domain, std::uint64_t counter, Sample kind, const Value& value) {
  static_assert(sizeof value == 8);
  emit(EventType::counter, domain, counter, static_cast<std::uint32_t>(kind), bytes_of(&value, sizeof value));
}

// Counters

std::uint64_t NVTX_API counter_register(nvtxDomainHandle_t domain, const nvtxCounterAttr_t* attributes) {
  return register_counter(number_of(domain), attributes);
}
void NVTX_API sample_integer(nvtxDomainHandle_t domain, std::uint64_t counter, std::int64_t value) {
  emit_sample(domain, counter, Sample::integer, value);
}
void NVTX_API sample_real(nvtxDomainHandle_t domain, std::uint64_t counter, double value) {
  emit_sample(domain, counter, Sample::real, value);
}
void NVTX_API sample_none(nvtxDomainHandle_t domain, std::uint64_t counter, std::uint8_t reason) {
  emit_sample(domain, counter, Sample::none, std::uint64_t{reason});
}
void NVTX_API sample_bytes(nvtxDomainHandle_t domain, std::uint64_t counter, const void* values, std::size_t size) {
  if (values == nullptr) return;
  // The reader counts truncated samples.
  emit(EventType::counter, domain, counter, static_cast<std::uint32_t>(Sample::bytes), bytes_of(values, std::min(size, kLargestPayload)));
}

// Batches

void submit(nvtxDomainHandle_t domain, std::unique_ptr<EventBatch> batch) {
  if (batch == nullptr) return;
  const auto pointer = reinterpret_cast<std::uintptr_t>(batch.get());
  if (emit(EventType::batch, domain, pointer, 0, {})) batch.release();
}

void NVTX_API counter_batch_submit(nvtxDomainHandle_t domain, const nvtxCounterBatch_t* given) {
  if (given == nullptr || armed.load(std::memory_order_relaxed) == 0) return;
  const Counter* const counter = find_counter(number_of(domain), given->counterId);
  if (counter != nullptr && counter->semantics.time_domain) note_time(number_of(domain), *counter->semantics.time_domain);
  auto batch = EventBatch::copy(given->counters, given->countersSize, given->timestamps, given->timestampsSize);
  if (batch != nullptr) {
    batch->of_counters = true;
    batch->id = given->counterId;
    batch->flags = given->flags;
  }
  submit(domain, std::move(batch));
}

// Reads the clocks of a schema's timestamps, so that the submitted times can be converted.
void note_times(std::uint16_t domain, std::uint64_t schema) {
  const PayloadType* const type = find_type(domain, schema);
  if (type == nullptr) return;
  for (const PayloadField& field : type->fields)
    if (field.semantics.time_domain) note_time(domain, *field.semantics.time_domain);
}

void NVTX_API event_batch_submit(nvtxDomainHandle_t domain, const nvtxEventBatch_t* given) {
  if (given == nullptr || armed.load(std::memory_order_relaxed) == 0) return;
  note_times(number_of(domain), given->eventSchemaId);
  const auto* const flexible = static_cast<const std::uint8_t*>(given->flexData);
  const std::size_t before = flexible != nullptr ? given->flexDataOffset : 0;
  const std::size_t size = flexible != nullptr ? given->flexDataSize : 0;
  auto batch = EventBatch::copy(given->events, given->size, flexible, before + size);
  if (batch != nullptr) {
    batch->id = given->eventSchemaId;
    batch->flags = given->flags;
    batch->scope = given->scope;
  }
  submit(domain, std::move(batch));
}

void NVTX_API event_submit(nvtxDomainHandle_t domain, const nvtxPayloadData_t* payloads, std::size_t count) {
  if (armed.load(std::memory_order_relaxed) == 0) return;
  for (std::size_t i = 0; payloads != nullptr && i < std::min(count, kMostParts); ++i) note_times(number_of(domain), payloads[i].schemaId);
  submit_deferred(domain, {payloads, count});
}

// Times and scopes

std::int64_t NVTX_API timestamp_get() { return static_cast<std::int64_t>(now_ns()); }
std::uint64_t NVTX_API time_domain_register(nvtxDomainHandle_t domain, const nvtxTimeDomainAttr_t* attributes) {
  return register_time_domain(number_of(domain), attributes);
}
void NVTX_API timer_source_with_data(nvtxDomainHandle_t domain, std::uint64_t clock, std::uint64_t, std::int64_t (*read)(void*), void* data) {
  if (read != nullptr) set_timer(number_of(domain), clock, read, data);
}
void NVTX_API timer_source(nvtxDomainHandle_t domain, std::uint64_t clock, std::uint64_t, std::int64_t (*read)()) {
  const auto call = [](void* function) { return reinterpret_cast<std::int64_t (*)()>(function)(); };
  if (read != nullptr) set_timer(number_of(domain), clock, call, reinterpret_cast<void*>(read));
}
void NVTX_API time_sync_point_table(nvtxDomainHandle_t domain, std::uint64_t from, std::uint64_t to, const nvtxSyncPoint_t* points, std::size_t count) {
  add_sync_points(number_of(domain), from, to, points, count);
}
void NVTX_API time_sync_point(nvtxDomainHandle_t domain, std::uint64_t from, std::uint64_t to, std::int64_t from_time, std::int64_t to_time) {
  const nvtxSyncPoint_t point{from_time, to_time};
  add_sync_points(number_of(domain), from, to, &point, 1);
}
void NVTX_API timestamp_conversion_factor(nvtxDomainHandle_t domain, std::uint64_t from, std::uint64_t to, double slope, std::int64_t from_time,
                                          std::int64_t to_time) {
  set_conversion(number_of(domain), from, to, slope, from_time, to_time);
}
std::uint64_t NVTX_API scope_register(nvtxDomainHandle_t domain, const nvtxScopeAttr_t* attributes) {
  return register_scope(number_of(domain), attributes);
}

bool install_counters(const nvtxExtModuleInfo_t& module) {
  // An earlier version of NVTX had the same module with other functions.
  const bool known = module.compatId >= NVTX_EXT_COUNTERS_COMPATID && module.compatId >> 8 == NVTX_EXT_COUNTERS_COMPATID >> 8;
  const Callback functions[] = {
      {NVTX3EXT_CBID_nvtxCounterRegister, counter_register},
      {NVTX3EXT_CBID_nvtxCounterSampleInt64, sample_integer},
      {NVTX3EXT_CBID_nvtxCounterSampleFloat64, sample_real},
      {NVTX3EXT_CBID_nvtxCounterSample, sample_bytes},
      {NVTX3EXT_CBID_nvtxCounterSampleNoValue, sample_none},
      {NVTX3EXT_CBID_nvtxCounterBatchSubmit, counter_batch_submit},
  };
  return known && fill(module, functions);
}

}  // namespace

bool install_extension(const nvtxExtModuleInfo_t& module) {
  if (module.moduleId == NVTX_EXT_COUNTERS_MODULEID) return install_counters(module);
  if (module.moduleId != NVTX_EXT_PAYLOAD_MODULEID || !install_payload_marks(module)) return false;
  const Callback functions[] = {
      {NVTX3EXT_CBID_nvtxTimestampGet, timestamp_get},
      {NVTX3EXT_CBID_nvtxTimeDomainRegister, time_domain_register},
      {NVTX3EXT_CBID_nvtxTimerSource, timer_source},
      {NVTX3EXT_CBID_nvtxTimerSourceWithData, timer_source_with_data},
      {NVTX3EXT_CBID_nvtxScopeRegister, scope_register},
      {NVTX3EXT_CBID_nvtxTimeSyncPoint, time_sync_point},
      {NVTX3EXT_CBID_nvtxTimeSyncPointTable, time_sync_point_table},
      {NVTX3EXT_CBID_nvtxTimestampConversionFactor, timestamp_conversion_factor},
      {NVTX3EXT_CBID_nvtxEventSubmit, event_submit},
      {NVTX3EXT_CBID_nvtxEventBatchSubmit, event_batch_submit},
  };
  return fill(module, functions);
}

}  // namespace cutrace::nvtx
