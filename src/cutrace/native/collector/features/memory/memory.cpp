#include "memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/own_thread.h"
#include "core/wake.h"
#include "cuda/driver.h"
#include "graph_memory.h"
#include "known_pools.h"
#include "live_memory.h"
#include "memory_calls.h"
#include "module_variables.h"

namespace cutrace {
namespace {

constexpr std::uint8_t kAllocate = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION;
constexpr std::uint8_t kRelease = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
constexpr std::uint8_t kVariable = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC;
constexpr std::uint8_t kManagedVariable = CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC;

// Bits of `flags` in the table `allocations`.
constexpr std::uint8_t kAsynchronous = 1, kSizeUnknown = 2, kWithoutCall = 4;

template <typename Row>
struct MemoryEvent {
  EventHead head;
  Row row;
  std::array<std::uint8_t, 64 - sizeof(Row)> padding{};
};
static_assert(sizeof(MemoryEvent<rows::Allocations>) == 72 && sizeof(MemoryEvent<rows::MemoryPools>) == 72);

constexpr EventType type_of(const rows::Allocations&) { return EventType::allocation; }
constexpr EventType type_of(const rows::MemoryPools&) { return EventType::memory_pool; }

template <typename Row>
Row row_in(const std::uint8_t* bytes) {
  MemoryEvent<Row> event;
  std::memcpy(&event, bytes, sizeof event);
  return event.row;
}

class MemoryDecoder final : public Decoder {
 public:
  MemoryDecoder(const DecoderContext& context, std::atomic<std::uint64_t>& unlisted, const std::atomic<std::size_t>& table,
                const KnownPools& pools)
      : context_(context), unlisted_(unlisted), table_(table), pools_(pools), started_(now_ns()) {}

  void event(const Ring& ring, const std::uint8_t* bytes) override {
    EventHead head;
    std::memcpy(&head, bytes, sizeof head);
    if (head.type == EventType::memory_pool) return add(ring, row_in<rows::MemoryPools>(bytes));
    const auto row = row_in<rows::Allocations>(bytes);
    if (row.time >= started_) tell_watcher(row);
    add(ring, row);
  }

  void ring_is_read(Ring& ring, bool) override {
    const std::uint64_t dropped = ring.take_dropped(EventSource::memory);
    context_.capture.lose(rows::Loss::memory_limit, dropped, "allocations or pools: the thread's buffer was full");
  }

  void write_out(bool) override {
    context_.capture.lose(rows::Loss::table_limit, unlisted_.exchange(0), "allocations or pools: the table of live memory was full");
    const std::uint64_t ringless = rings::events_without_ring(EventSource::memory);
    context_.capture.lose(rows::Loss::memory_limit, ringless - std::exchange(ringless_seen_, ringless),
                          "allocations or pools: no memory for the thread's buffer");
  }

  std::size_t memory() const override { return table_.load() + pools_.memory(); }

 private:
  template <typename Row>
  void add(const Ring& ring, const Row& row) {
    if (row.time < started_) return;
    context_.threads.seen(ring.thread);
    context_.capture.add(row);
  }

  // Conditions are about the memory of a device. Managed memory can be anywhere.
  void tell_watcher(const rows::Allocations& row) {
    constexpr int kOnDevice[] = {CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, CUPTI_ACTIVITY_MEMORY_KIND_ARRAY, kVariable, kPhysicalMemory};
    if (std::ranges::find(kOnDevice, int{row.memory}) == std::end(kOnDevice)) return;
    const auto bytes = static_cast<std::int64_t>(row.bytes);
    context_.watcher.memory_changed(row.device, row.time, row.operation == kAllocate ? bytes : -bytes);
  }

  DecoderContext context_;
  std::atomic<std::uint64_t>& unlisted_;
  const std::atomic<std::size_t>& table_;
  const KnownPools& pools_;
  std::uint64_t started_;
  std::uint64_t ringless_seen_ = rings::events_without_ring(EventSource::memory);
};

// The memory that a call releases. A call of virtual memory management may release several pieces of physical memory.
class Released {
 public:
  bool full() const { return count_ == entries_.size(); }
  void clear() { count_ = 0; }
  void add(const Live& entry) { entries_[count_++] = entry; }
  const Live* begin() const { return entries_.data(); }
  const Live* end() const { return entries_.data() + count_; }

 private:
  std::array<Live, 8> entries_{};
  std::size_t count_ = 0;
};

// The memory call that a thread is in. The driver makes no other memory call inside a memory call that CUPTI reports.
struct CallInProgress {
  std::uint32_t recording = 0;
  std::uint32_t correlation = 0;
  std::uint64_t start = 0;
  std::uint32_t pools_ended = 0;
  // For releases, and for pools that are destroyed:
  MemoryRequest request;
  bool known = false;     // the allocation was in the table
  bool referred = false;  // physical memory lost a reference and is still in use
  Released released;
  std::optional<rows::MemoryPools> pool;
};
const PerThread<CallInProgress> call_in_progress;

// A release removes its entry from the table of live memory before the driver carries it out. An allocation adds its entry after
// the driver has made it. So when one thread frees an address and another thread gets it at once, the table sees the release
// first. Rows use the same times: a release has the start of its call, an allocation the end of its call.
class MemoryFeature final : public Feature {
 public:
  MemoryFeature() {
    for (const MemoryCall& call : memory_calls()) by_id_.at(call.id) = &call;
  }

  std::unique_ptr<Decoder> decoder(const DecoderContext& context) override {
    if ((context.options.kinds & kBothKinds) == 0) return nullptr;
    return std::make_unique<MemoryDecoder>(context, unlisted_, table_memory_, pools_);
  }
  std::span<const EventType> events() const override {
    static constexpr EventType kEvents[] = {EventType::allocation, EventType::memory_pool};
    return kEvents;
  }

  void cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) override {
    cupti_ = &cupti;
    callbacks_ = &callbacks;
  }
  void attach(const AttachContext& context) override {
    if ((context.options.kinds & kBothKinds) == 0) return;
    records_allocations_.store((context.options.kinds & bit(Kind::memory)) != 0);
    records_pools_.store((context.options.kinds & bit(Kind::pool)) != 0);
    graphs_.reset();
    pools_.reset(context.options.max_memory / 256);
    watches_waits_.store(false);
    driver_is_loaded();  // looks up its functions here and not inside a callback
    {
      const std::lock_guard lock(table_mutex_);
      table_.reset(context.options.max_memory / 16);
      table_memory_.store(0);
      unlisted_.store(0);
    }
    context.callbacks.watch(*this, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
    if (records_allocations_.load())
      for (const CUpti_CallbackId id : {CUPTI_CBID_RESOURCE_MODULE_LOADED, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING})
        context.callbacks.watch(*this, CUPTI_CB_DOMAIN_RESOURCE, id);
    std::size_t wanted = 0;
    std::size_t refused = 0;
    for (const MemoryCall& call : memory_calls()) {
      if (!is_watched_at_first(call.effect)) continue;
      ++wanted;
      if (!context.callbacks.watch(*this, CUPTI_CB_DOMAIN_DRIVER_API, call.id)) ++refused;
    }
    if (refused == 0) return;
    for (const std::string& kind : kind_names(context.options.kinds & kBothKinds)) {
      const bool all = refused == wanted;
      context.refused.push_back({all ? kind : "a part of " + kind + ": " + std::to_string(refused) + " calls", "no callback"});
    }
  }

  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override {
    const std::uint32_t recording = rings::armed.load(std::memory_order_acquire);
    if (recording == 0 || data == nullptr) return;
    const int saved = errno;
    if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
      const auto& resource = *static_cast<const CUpti_ResourceData*>(data);
      const auto* const module = static_cast<const CUpti_ModuleResourceData*>(resource.resourceDescriptor);
      if (id == CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING) end_context(resource.context);
      else if (module != nullptr && id == CUPTI_CBID_RESOURCE_MODULE_LOADED) loaded(resource.context, *module);
      else if (module != nullptr) unload(module->moduleId);
    } else if (domain == CUPTI_CB_DOMAIN_DRIVER_API && id < by_id_.size() && by_id_[id] != nullptr) {
      const auto& call = *static_cast<const CUpti_CallbackData*>(data);
      CallInProgress* const now = call_in_progress.get();
      if (now == nullptr) drop(call);
      else if (call.callbackSite == CUPTI_API_ENTER) enter(*by_id_[id], call, recording, *now);
      else leave(*by_id_[id], call, recording, *now);
    }
    errno = saved;
  }

  void before_fork() override {
    graphs_.before_fork();
    pools_.before_fork();
    table_mutex_.lock();
  }
  void after_fork_in_parent() override {
    table_mutex_.unlock();
    pools_.after_fork();
    graphs_.after_fork();
  }
  void after_fork_in_child() override { after_fork_in_parent(); }

 private:
  using Effect = MemoryEffect;
  static constexpr KindSet kBothKinds = bit(Kind::memory) | bit(Kind::pool);

  bool is_watched_at_first(Effect effect) const {
    switch (effect) {
      case Effect::use_graph_memory:  // watched from the first node that allocates on
      case Effect::wait: return false;  // watched from the first pool on
      case Effect::trim_pool: return records_pools_.load();
      case Effect::allocate:
      case Effect::release:
      case Effect::destroy_pool:
      case Effect::import_pointer: return true;
      default: return records_allocations_.load();
    }
  }

  // More calls are watched from now on.
  void watch_calls(Effect effect) {
    for (const MemoryCall& call : memory_calls())
      if (call.effect == effect) callbacks_->watch(*this, CUPTI_CB_DOMAIN_DRIVER_API, call.id);
  }

  // ---- the two ends of a call ----

  // Counts a call for which there is no memory.
  static void drop(const CUpti_CallbackData& data) {
    Ring* const ring = data.callbackSite == CUPTI_API_EXIT ? rings::of_this_thread(EventSource::memory) : nullptr;
    if (ring != nullptr) ring->drop(EventSource::memory);
  }

  void enter(const MemoryCall& call, const CUpti_CallbackData& data, std::uint32_t recording, CallInProgress& now) {
    now.recording = recording;
    now.correlation = data.correlationId;
    now.pools_ended = pools_.ended();
    now.request = {};
    now.known = now.referred = false;
    now.released.clear();
    now.pool.reset();
    switch (call.effect) {
      case Effect::release: begin_release(call, data, now); break;
      case Effect::release_physical: begin_release_physical(call, data, now); break;
      case Effect::unmap: begin_unmap(call, data, now); break;
      case Effect::destroy_pool: begin_destroy_pool(call, data, now); break;
      case Effect::wait: pools_.before_wait(); break;
      case Effect::use_graph_memory: graphs_.before_call(); break;
      default: break;
    }
    now.start = now_ns();
  }

  void leave(const MemoryCall& call, const CUpti_CallbackData& data, std::uint32_t recording, CallInProgress& now) {
    const bool entered = now.recording == recording && now.correlation == data.correlationId;
    const bool good = data.functionReturnValue != nullptr && *static_cast<const CUresult*>(data.functionReturnValue) == CUDA_SUCCESS;
    if (!entered) enter(call, data, recording, now);  // the callback was enabled in the middle of the call
    switch (call.effect) {
      case Effect::release:
        // The driver has accepted the stream, so the collector may ask about it. A captured call only makes a node of a graph.
        good && !(now.request.asynchronous && is_captured(now.request.stream)) ? end_release(data, now) : undo_release(now);
        break;
      case Effect::release_physical:
      case Effect::unmap: good ? end_release(data, now) : undo_release(now); break;
      case Effect::destroy_pool: good ? write_pool(now.pool, data) : undo_destroy_pool(now); break;
      case Effect::wait:
        if (good) write_trimmed_pools(data);
        break;
      case Effect::use_graph_memory: write_graph_memory(data); break;
      default:
        if (good) made(call, data);
    }
    now.recording = 0;
  }

  // ---- releases ----

  void begin_release(const MemoryCall& call, const CUpti_CallbackData& data, CallInProgress& now) {
    if (!call.read(data.functionParams, now.request)) return;
    const MemoryRequest& request = now.request;
    {
      const std::lock_guard lock(table_mutex_);
      if (const auto live = table_.take(request.space, request.address)) {
        now.released.add(*live);
        now.known = true;
        return;
      }
    }
    now.released.add(unlisted_memory(request, data));
  }

  // Asks the driver about memory from before the recording, and about memory with a lost allocation.
  Live unlisted_memory(const MemoryRequest& request, const CUpti_CallbackData& data) {
    Live live;
    live.address = request.address;
    live.space = request.space;
    live.memory = request.memory;
    live.context = context_of(data);
    PointerInfo info;
    if (request.space == Space::pointer && pointer_info(request.address, info)) {
      live.memory = memory_kind(info);
      live.device = info.device;
      if (info.pool != nullptr) {
        live.pool_type = kLocalPool;
        // The program may destroy any pool except the device's default pool.
        const bool lives = is_default_pool(info.pool, info.device);
        live.other = pool_base({.handle = reinterpret_cast<std::uintptr_t>(info.pool), .base = base_of(request.address, info),
                                .ended = pools_.ended(), .device = info.device, .type = kLocalPool, .lives = lives}, data);
      }
    } else {
      live.device = static_cast<std::uint16_t>(current_device());
    }
    return live;
  }

  void end_release(const CUpti_CallbackData& data, CallInProgress& now) {
    if (!records_allocations_.load()) return;
    for (const Live& live : now.released) {
      rows::Allocations row = row_of(live, kRelease, now.start, data.correlationId);
      if (now.request.asynchronous) row.flags |= kAsynchronous;
      if (!now.known) row.flags |= kSizeUnknown;
      row.stream = stream_of(now.request);
      if (live.pool_type == kLocalPool) row.pool_used = pools_.used_of(live.other);
      write(row);
    }
  }

  void undo_release(const CallInProgress& now) {
    if (!now.known && !now.referred) return;
    const std::lock_guard lock(table_mutex_);
    for (const Live& live : now.released)
      if (table_.find(live.space, live.address) == nullptr) add_to_table(live);
    if (now.referred)
      if (Live* const physical = table_.find(Space::physical, now.request.address)) ++physical->other;
  }

  void end_context(CUcontext context) {
    pools_.context_ends();
    std::uint32_t id = 0;
    if (cupti_->GetContextId == nullptr || cupti_->GetContextId(context, &id) != CUPTI_SUCCESS) return;
    const std::uint64_t time = now_ns();
    const auto ends = [id](const Live& live) {
      const bool of_context = live.space == Space::pointer || live.space == Space::registered || live.space == Space::array;
      return of_context && live.pool_type == 0 && live.context == static_cast<std::uint16_t>(id);
    };
    const std::lock_guard lock(table_mutex_);
    table_.take_all(ends, [&](const Live& live) {
      rows::Allocations row = row_of(live, kRelease, time, 0);
      row.flags |= kWithoutCall;
      write(row);
    });
  }

  // ---- allocations ----

  void made(const MemoryCall& call, const CUpti_CallbackData& data) {
    MemoryRequest request;
    if (!call.read(data.functionParams, request)) return;
    switch (call.effect) {
      case Effect::allocate:
      case Effect::import_pointer: return allocated(call.effect, request, data);
      case Effect::create_physical: return created_physical(request, data);
      case Effect::retain_physical: return retained_physical(request);
      case Effect::trim_pool: return write_pool(pools_.trimmed(request.address, request.bytes), data);
      case Effect::map: return mapped(request);
      case Effect::add_graph_memory: return added_graph_memory(static_cast<std::uint32_t>(request.device));
      default: return;
    }
  }

  void allocated(Effect effect, MemoryRequest& request, const CUpti_CallbackData& data) {
    if (request.address == 0 || !(request.in_pool || records_allocations_.load())) return;
    // the node allocates when the graph runs
    if (request.asynchronous && is_captured(request.stream)) return added_graph_memory(current_device());
    Live live;
    live.address = request.address;
    live.bytes = request.bytes;
    live.space = request.space;
    live.memory = request.memory;
    live.context = context_of(data);
    if (request.in_pool) complete_pool_memory(effect, request, data, live);
    else live.device = static_cast<std::uint16_t>(current_device());
    if (!records_allocations_.load()) return;
    rows::Allocations row = row_of(live, kAllocate, now_ns(), data.correlationId);
    if (request.asynchronous) row.flags |= kAsynchronous;
    if (live.bytes == 0) row.flags |= kSizeUnknown;
    row.stream = stream_of(request);
    if (live.pool_type == kLocalPool) row.pool_used = pools_.used_of(live.other);
    add(live, row);
  }

  // Sets the pool, the device and the kind of memory. A pool may be on another device than the stream, or on the host.
  void complete_pool_memory(Effect effect, const MemoryRequest& request, const CUpti_CallbackData& data, Live& live) {
    PointerInfo info;
    if (pointer_info(request.address, info)) {
      live.memory = memory_kind(info);
      live.device = info.device;
      if (effect == Effect::import_pointer) live.bytes = info.bytes;
    } else {
      live.device = static_cast<std::uint16_t>(current_device());
    }
    const std::uint64_t pool = request.other != 0 ? request.other : reinterpret_cast<std::uintptr_t>(info.pool);
    live.pool_type = effect == Effect::import_pointer ? kImportedPool : kLocalPool;
    live.other = pool_base({.handle = pool, .base = base_of(request.address, info), .ended = call_in_progress.get_if_used()->pools_ended,
                            .device = live.device, .type = live.pool_type, .lives = true}, data);
  }

  // ---- virtual memory management ----

  void created_physical(const MemoryRequest& request, const CUpti_CallbackData& data) {
    Live live;
    live.address = request.address;
    live.bytes = request.bytes;
    live.other = 1;
    live.space = Space::physical;
    live.memory = request.memory;
    live.context = context_of(data);
    live.device = static_cast<std::uint16_t>(request.device);
    add(live, row_of(live, kAllocate, now_ns(), data.correlationId));
  }

  void retained_physical(const MemoryRequest& request) {
    const std::lock_guard lock(table_mutex_);
    if (Live* const physical = table_.find(Space::physical, request.address)) ++physical->other;
  }

  void mapped(const MemoryRequest& request) {
    Live mapping;
    mapping.address = request.address;
    mapping.bytes = request.bytes;
    mapping.other = request.other;
    mapping.space = Space::mapping;
    const std::lock_guard lock(table_mutex_);
    if (table_.find(Space::physical, request.other) == nullptr) return;  // imported, or from before the recording
    if (!add_to_table(mapping)) return static_cast<void>(unlisted_.fetch_add(1));
    ++table_.find(Space::physical, request.other)->other;
  }

  // Under table_mutex_. Physical memory ends with its last handle and its last mapping.
  void drop_reference(std::uint64_t handle, CallInProgress& now) {
    Live* const physical = table_.find(Space::physical, handle);
    if (physical == nullptr) return;
    if (--physical->other != 0) {
      now.referred = true;
      return;
    }
    physical->other = 1;  // undo_release() restores this reference
    now.released.add(*table_.take(Space::physical, handle));
    now.known = true;
  }

  void begin_release_physical(const MemoryCall& call, const CUpti_CallbackData& data, CallInProgress& now) {
    if (!call.read(data.functionParams, now.request)) return;
    const std::lock_guard lock(table_mutex_);
    drop_reference(now.request.address, now);
  }

  void begin_unmap(const MemoryCall& call, const CUpti_CallbackData& data, CallInProgress& now) {
    if (!call.read(data.functionParams, now.request)) return;
    const std::uint64_t end = now.request.address + now.request.bytes;
    const std::lock_guard lock(table_mutex_);
    for (std::uint64_t address = now.request.address; address < end && !now.released.full();) {
      const auto mapping = table_.take(Space::mapping, address);
      if (!mapping || mapping->bytes == 0) break;
      drop_reference(mapping->other, now);
      address += mapping->bytes;
    }
    now.referred = false;
  }

  // ---- graphs ----

  void added_graph_memory(std::uint32_t device) {
    if (records_allocations_.load() && graphs_.add_node(device)) watch_calls(Effect::use_graph_memory);
  }

  // The driver keeps memory for all graphs, so it has no address.
  void write_graph_memory(const CUpti_CallbackData& data) {
    graphs_.after_call([&](std::uint32_t device, std::uint64_t before, std::uint64_t now) {
      Live live;
      live.bytes = now > before ? now - before : before - now;
      live.memory = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
      live.context = context_of(data);
      live.device = static_cast<std::uint16_t>(device);
      return write(row_of(live, now > before ? kAllocate : kRelease, now_ns(), data.correlationId));
    });
  }

  // ---- static variables of modules ----

  // The driver may hold locks here, so it is not asked.
  void loaded(CUcontext context, const CUpti_ModuleResourceData& module) {
    Live variable = of_context(context);
    Live entry = variable;
    entry.address = module.moduleId;
    entry.space = Space::module;
    const std::uint64_t time = now_ns();
    ModuleVariables(module.pCubin, module.cubinSize).each([&](const ModuleVariable& found) {
      variable.memory = found.managed ? kManagedVariable : kVariable;
      variable.bytes = found.bytes;
      if (write(row_of(variable, kAllocate, time, 0))) (found.managed ? entry.other : entry.bytes) += found.bytes;
    });
    if (entry.bytes == 0 && entry.other == 0) return;
    const std::lock_guard lock(table_mutex_);
    if (!add_to_table(entry)) unlisted_.fetch_add(1);
  }

  // All variables of a kind are one row.
  void unload(std::uint32_t id) {
    std::optional<Live> module;
    {
      const std::lock_guard lock(table_mutex_);
      module = table_.take(Space::module, id);
    }
    if (!module) return;
    Live variables = *module;
    variables.address = 0;
    const std::uint64_t time = now_ns();
    for (const auto& [memory, bytes] : {std::pair(kVariable, module->bytes), std::pair(kManagedVariable, module->other)}) {
      if (bytes == 0) continue;
      variables.memory = memory;
      variables.bytes = bytes;
      write(row_of(variables, kRelease, time, 0));
    }
  }

  Live of_context(CUcontext context) const {
    Live live;
    std::uint32_t id = 0;
    if (cupti_->GetContextId != nullptr && cupti_->GetContextId(context, &id) == CUPTI_SUCCESS) live.context = static_cast<std::uint16_t>(id);
    if (cupti_->GetDeviceId != nullptr && cupti_->GetDeviceId(context, &id) == CUPTI_SUCCESS) live.device = static_cast<std::uint16_t>(id);
    return live;
  }

  // ---- pools ----

  // The start of the pool of this memory, if the driver reports it. The first memory from a new pool is at its start.
  static std::uint64_t base_of(std::uint64_t address, const PointerInfo& info) { return info.mapping != 0 ? info.mapping : address; }

  // The base address that identifies a pool in rows.
  std::uint64_t pool_base(const PoolUse& use, const CUpti_CallbackData& data) {
    const SeenPool seen = pools_.use(use);
    if (seen.unlisted) unlisted_.fetch_add(1);
    if (!seen.created) return seen.base;
    write_pool(seen.created, data);
    if (records_pools_.load() && !watches_waits_.exchange(true)) watch_calls(Effect::wait);
    return seen.base;
  }

  // From here on the collector does not ask the driver about the pool. The pool may end with this call or with its last memory.
  void begin_destroy_pool(const MemoryCall& call, const CUpti_CallbackData& data, CallInProgress& now) {
    if (call.read(data.functionParams, now.request))
      now.pool = pools_.begin_destroy(now.request.address, data.callbackSite == CUPTI_API_ENTER);
  }

  void undo_destroy_pool(const CallInProgress& now) {
    if (now.pool) pools_.undo_destroy(now.request.address, *now.pool);
  }

  void write_trimmed_pools(const CUpti_CallbackData& data) {
    pools_.after_wait([&](const rows::MemoryPools& row) { write_pool(row, data); });
  }

  void write_pool(std::optional<rows::MemoryPools> row, const CUpti_CallbackData& data) {
    if (!row || !records_pools_.load()) return;
    row->time = now_ns();
    row->correlation = data.correlationId;
    write(*row);
  }

  // ---- rows ----

  static std::uint8_t memory_kind(const PointerInfo& info) {
    if (info.managed) return CUPTI_ACTIVITY_MEMORY_KIND_MANAGED;
    return info.on_host ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  }

  static std::uint16_t context_of(const CUpti_CallbackData& data) {
    return data.context != nullptr ? static_cast<std::uint16_t>(data.contextUid) : std::uint16_t{0};
  }

  std::uint32_t stream_of(const MemoryRequest& request) const {
    if (!request.asynchronous || cupti_->GetStreamIdEx == nullptr) return 0;
    const bool of_thread = request.stream == CU_STREAM_PER_THREAD;
    const bool is_default = of_thread || request.stream == CU_STREAM_LEGACY;
    std::uint32_t id = 0;
    const CUptiResult result = cupti_->GetStreamIdEx(nullptr, is_default ? nullptr : request.stream, of_thread ? 1 : 0, &id);
    return result == CUPTI_SUCCESS ? id : 0;
  }

  static rows::Allocations row_of(const Live& live, std::uint8_t operation, std::uint64_t time, std::uint32_t correlation) {
    rows::Allocations row;
    row.time = time;
    row.address = live.address;
    row.bytes = live.bytes;
    row.correlation = correlation;
    row.context = live.context;
    row.device = live.device;
    row.operation = operation;
    row.memory = live.memory;
    row.pool_type = live.pool_type;
    if (live.pool_type != 0) row.pool = live.other;
    return row;
  }

  // Writes the row of an allocation and adds it to the table, or does neither. So each release with a size has its allocation in
  // the capture.
  void add(const Live& live, const rows::Allocations& row) {
    Ring* const ring = rings::of_this_thread(EventSource::memory);
    if (ring == nullptr) return;
    std::uint8_t* const space = ring->reserve(sizeof(MemoryEvent<rows::Allocations>));
    if (space == nullptr) return ring->drop(EventSource::memory);
    std::optional<Live> before;
    {
      const std::lock_guard lock(table_mutex_);
      before = table_.take(live.space, live.address);
      if (!add_to_table(live)) {
        unlisted_.fetch_add(1);
        return static_cast<void>(ring->commit(0));
      }
    }
    commit(*ring, space, row);
    if (before) write_unseen_release(*before, row.time);
  }

  // The driver has reused the address, so the earlier memory there is free. Its release was not recorded.
  void write_unseen_release(const Live& before, std::uint64_t time) {
    rows::Allocations row = row_of(before, kRelease, time, 0);
    row.flags |= kWithoutCall;
    write(row);
  }

  // False when there is no room for the row, which is counted.
  template <typename Row>
  bool write(const Row& row) {
    Ring* const ring = rings::of_this_thread(EventSource::memory);
    if (ring == nullptr) return false;
    std::uint8_t* const space = ring->reserve(sizeof(MemoryEvent<Row>));
    if (space == nullptr) {
      ring->drop(EventSource::memory);
      return false;
    }
    commit(*ring, space, row);
    return true;
  }

  template <typename Row>
  static void commit(Ring& ring, std::uint8_t* space, const Row& row) {
    const MemoryEvent<Row> event{{sizeof event, type_of(row), 0, 0}, row};
    std::memcpy(space, &event, sizeof event);
    if (ring.commit(sizeof event)) writer_wake.signal();
  }

  // Under table_mutex_.
  bool add_to_table(const Live& live) {
    const bool added = table_.add(live);
    table_memory_.store(table_.memory(), std::memory_order_relaxed);
    return added;
  }

  const CuptiLibrary* cupti_ = nullptr;
  Callbacks* callbacks_ = nullptr;
  std::atomic<bool> records_allocations_{false};
  std::atomic<bool> records_pools_{false};
  std::atomic<bool> watches_waits_{false};
  GraphMemory graphs_;
  KnownPools pools_;
  std::array<const MemoryCall*, 1024> by_id_{};

  std::mutex table_mutex_;  // held for moments, without a call
  LiveMemory table_;
  std::atomic<std::size_t> table_memory_{0};
  std::atomic<std::uint64_t> unlisted_{0};  // allocations that found no room in the table
};

}  // namespace

Feature& memory_feature() {
  static auto& feature = *new MemoryFeature;
  return feature;
}

}  // namespace cutrace
