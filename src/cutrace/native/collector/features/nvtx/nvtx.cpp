#include "nvtx.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "batch.h"
#include "core/blocked_signals.h"
#include "core/clock.h"
#include "core/cupti_source.h"
#include "nvtx_callbacks.h"
#include "core/wake.h"

namespace cutrace::nvtx {

std::atomic<std::uint32_t> armed{0};
std::atomic<RangeFollower*> range_follower{nullptr};

namespace {

// The keys of ranges for a follower.
std::uint64_t key_of(nvtxRangeId_t id) { return id | std::uint64_t{1} << 63; }
std::uint64_t key_of(const Ring& ring, std::uint16_t domain, std::uint32_t depth) {
  constexpr std::uint32_t kMostDepth = (1u << 24) - 1;
  return std::uint64_t{ring.thread} << 32 | std::uint64_t{domain} << 24 | std::min(depth, kMostDepth);
}

void began(std::uint64_t key, const Event& e) {
  RangeFollower* const follower = range_follower.load(std::memory_order_acquire);
  if (follower == nullptr) return;
  follower->range_began(key, e.domain, e.text.empty() ? registered_string(e.registered) : e.text);
}
void ended(std::uint64_t key, std::uint64_t time) {
  if (RangeFollower* const follower = range_follower.load(std::memory_order_acquire)) follower->range_ended(key, time);
}

std::atomic<std::uint64_t> next_range_id{1};
std::atomic<void (*)()> on_first_event{nullptr};

struct NoPayloads {
  static bool empty() { return true; }
  static std::size_t most() { return 0; }
  static std::size_t write(std::uint8_t*) { return 0; }
};

// False when the ring lacks space for the event and `spare` more bytes.
template <typename Payloads>
bool put_with(const Payloads& payloads, Ring& ring, Event& e, std::uint64_t time, std::size_t spare) {
  const std::string_view text = e.text;
  if (!text.empty()) e.flags |= kText;
  std::size_t size = (sizeof(EventHeader) + ((e.flags & kAttributes) ? sizeof(EventAttributes) : 0) +
                      ((e.flags & kId) ? 8 : 0) + text.size() + 7) & ~std::size_t{7};
  if (!payloads.empty()) e.flags |= kPayload;
  std::uint8_t* at = ring.reserve(size + payloads.most() + spare);
  if (at == nullptr) return false;
  if (!payloads.empty()) size += payloads.write(at + size);
  const EventHeader header{static_cast<std::uint32_t>(size), e.type, e.flags, e.domain, time, e.depth,
                           text.empty() ? e.registered : static_cast<std::uint32_t>(text.size())};
  const auto append = [&](const void* data, std::size_t bytes) {
    std::memcpy(at, data, bytes);
    at += bytes;
  };
  append(&header, sizeof header);
  if (e.flags & kAttributes) append(&e.attributes, sizeof e.attributes);
  if (e.flags & kId) append(&e.id, sizeof e.id);
  if (!text.empty()) append(text.data(), text.size());
  if (ring.commit(size)) writer_wake.signal();
  return true;
}

// A copy takes 1.5 KiB of the stack, so it has a function of its own, as with_converted() has.
[[gnu::noinline]] bool put_payloads(Ring& ring, Event& e, std::uint64_t time, std::size_t spare) {
  return put_with(PayloadCopy(e.domain, e.parts), ring, e, time, spare);
}

bool put(Ring& ring, Event& e, std::uint64_t time, std::size_t spare = 0) {
  return e.parts.data != nullptr ? put_payloads(ring, e, time, spare) : put_with(NoPayloads(), ring, e, time, spare);
}

void emit(Ring& ring, Event& e, std::uint64_t time) {
  if (put(ring, e, time)) return;
  ++ring.lost_events;
  ring.drop(EventSource::nvtx);
}

void emit_graph_node(Ring& ring, Event& e, std::size_t spare = 0) {
  e.flags |= kId;
  if (put(ring, e, now_ns(), spare)) return;
  ring.lost_graph_nodes = true;
  ring.drop(EventSource::graph_nodes);
}

// Puts ranges into the thread's ring.
struct Taker {
  Ring* ring = ring_if_recording();

  bool wants() const { return ring != nullptr; }

  nvtxRangeId_t start(Event& e) {
    e.id = next_range_id.fetch_add(1, std::memory_order_relaxed);
    e.flags |= kId;
    emit(*ring, e, now_ns());
    began(key_of(e.id), e);
    return e.id;
  }
  static void end(Event& e) {
    const std::uint64_t time = now_ns();
    Ring* ring = ring_if_recording();
    if (ring == nullptr || e.id == 0) return;
    e.flags = kId;
    emit(*ring, e, time);
    ended(key_of(e.id), time);
  }

  int push(Event& e) {
    const bool counted = e.domain < Ring::kDomains;
    e.depth = counted ? ring->depth[e.domain]++ : kNoDepth;
    emit(*ring, e, now_ns());
    if (counted) began(key_of(*ring, e.domain, e.depth), e);
    return counted ? static_cast<int>(e.depth) : kNotTracked;
  }
  static int pop(Event& e) {
    const std::uint64_t time = now_ns();
    Ring* ring = ring_if_recording();
    if (ring == nullptr) return kNotTracked;
    e.depth = kNoDepth;
    if (e.domain < Ring::kDomains) {
      std::uint32_t& depth = ring->depth[e.domain];
      e.depth = depth != 0 ? --depth : kUnmatched;
    }
    emit(*ring, e, time);
    if (e.depth != kNoDepth && e.depth != kUnmatched) ended(key_of(*ring, e.domain, e.depth), time);
    return e.depth == kNoDepth ? kNotTracked : e.depth == kUnmatched ? -1 : static_cast<int>(e.depth);
  }
};

template <typename Taker, typename Message>
void NVTX_API domain_mark(nvtxDomainHandle_t domain, Message message) {
  Taker taker;
  if (!taker.wants()) return;
  with_event(EventType::mark, domain, message, [&](Event& e) { emit(*taker.ring, e, now_ns()); });
}

void NVTX_API mark_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* payloads, std::size_t count) {
  Taker taker;
  if (!taker.wants()) return;
  Event e(EventType::mark, domain);
  e.parts = {payloads, count};
  emit(*taker.ring, e, now_ns());
}

// `kind` and `context` describe a resource.
template <typename Char>
void emit_name(EventType type, nvtxDomainHandle_t domain, std::uint64_t id, const Char* name, std::uint32_t kind = 0,
               std::uint32_t context = 0) {
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return;
  with_event(type, domain, name, [&](Event& e) {
    e.id = id;
    e.flags = kId;
    if (kind != 0) {
      e.flags |= kAttributes;
      e.attributes.kind = kind;
      e.attributes.category = context;
    }
    emit(*ring, e, now_ns());
  });
}

template <typename Char>
void NVTX_API domain_name_category(nvtxDomainHandle_t domain, std::uint32_t category, const Char* name) {
  emit_name(EventType::category, domain, category, name);
}
template <typename Char>
void NVTX_API name_category(std::uint32_t category, const Char* name) {
  domain_name_category(nullptr, category, name);
}
template <typename Char>
void NVTX_API name_os_thread(std::uint32_t thread, const Char* name) {
  emit_name(EventType::thread_name, nullptr, thread, name);
}

// Values of `kind` in the resource_names table.
enum : std::uint32_t { kStream = 1, kContext = 2, kDevice = 3, kCudaEvent = 4 };

template <typename Char>
void NVTX_API name_device(int device, const Char* name) {
  emit_name(EventType::resource_name, nullptr, static_cast<std::uint64_t>(device), name, kDevice);
}
template <typename Char>
void NVTX_API name_stream(void* stream, const Char* name) {
  if (const std::uint32_t id = armed.load() != 0 ? CuptiSource::instance().stream_id(stream) : 0)
    emit_name(EventType::resource_name, nullptr, id, name, kStream);
}
template <typename Char>
void NVTX_API name_context(void* context, const Char* name) {
  if (const std::uint32_t id = armed.load() != 0 ? CuptiSource::instance().context_id(context) : 0)
    emit_name(EventType::resource_name, nullptr, id, name, kContext, id);
}
template <typename Char>
void NVTX_API name_event(void* event, const Char* name) {
  emit_name(EventType::resource_name, nullptr, reinterpret_cast<std::uintptr_t>(event), name, kCudaEvent);
}

}  // namespace

void arm(std::uint32_t recording) { armed.store(recording, std::memory_order_release); }
void disarm() { armed.store(0); }

// Other threads of the child wait for the start, so that no event is missed.
std::uint32_t first_event() {
  const BlockedCancellation whole;
  {
    const BlockedSignals blocked;  // an event of a signal handler would wait for the start that it has interrupted
    if (void (*start)() = on_first_event.exchange(nullptr)) {
      start();
      std::uint32_t unchanged = kForkedChild;
      armed.compare_exchange_strong(unchanged, 0);  // if the start failed
    }
  }
  while (armed.load() == kForkedChild) std::this_thread::yield();
  return armed.load();
}

void after_fork_in_child(void (*start)()) {
  EventBatch::after_fork_in_child();
  on_first_event.store(start);
  armed.store(start != nullptr ? kForkedChild : 0);
}

void graph_node_created(std::uint64_t node) {
  Ring* ring = rings::of_this_thread(EventSource::graph_nodes);
  if (ring == nullptr) return;
  Event e(EventType::graph_node);
  e.id = node;
  e.registered = ring->lost_events;
  if (armed.load(std::memory_order_acquire) == 0) e.flags |= kUnknownRanges;
  e.depth = std::accumulate(ring->depth.begin(), ring->depth.end(), std::uint32_t{0});
  // Reserves space for a second event too, because this node may be a copy. Without that event the copy would seem to be created
  // here.
  emit_graph_node(*ring, e, sizeof(EventHeader) + sizeof(EventAttributes) + 8);
}

void graph_node_copied(std::uint64_t node, std::uint64_t original) {
  Ring* ring = rings::of_this_thread(EventSource::graph_nodes);
  if (ring == nullptr) return;
  Event e(EventType::graph_node_copy);
  e.id = node;
  e.flags = kAttributes;
  e.attributes.payload = original;
  emit_graph_node(*ring, e);
}

void graph_instantiated(std::uint32_t graph) {
  Ring* ring = rings::of_this_thread(EventSource::graph_nodes);
  if (ring == nullptr) return;
  Event e(EventType::graph_exec);
  e.id = graph;
  if (std::exchange(ring->lost_graph_nodes, false)) e.flags |= kIncomplete;
  emit_graph_node(*ring, e);
}

void cutrace_mark(std::string_view text) {
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return;
  Event e(EventType::mark);
  e.flags = kCutrace;
  e.text = text.substr(0, Ring::kLongestText);
  emit(*ring, e, now_ns());
}

namespace {

// A domain without a name.
nvtxDomainHandle_t python_domain() {
  static std::atomic<std::uintptr_t> domain{0};
  if (domain.load(std::memory_order_relaxed) == 0) {
    std::uintptr_t none = 0;
    domain.compare_exchange_strong(none, register_domain(""));
  }
  return reinterpret_cast<nvtxDomainHandle_t>(domain.load(std::memory_order_relaxed));
}

}  // namespace

void push(std::string_view name) {
  Taker taker;
  if (!taker.wants()) return;
  Event e(EventType::push, python_domain());
  e.text = name.substr(0, Ring::kLongestText);
  taker.push(e);
}
void pop() {
  const nvtxDomainHandle_t domain = python_domain();
  const Ring* ring = ring_if_recording();
  // A range that started before this recording is no loss.
  if (ring == nullptr || (number_of(domain) < Ring::kDomains && ring->depth[number_of(domain)] == 0)) return;
  Event e(EventType::pop, domain);
  Taker::pop(e);
}

bool install(NvtxGetExportTableFunc_t get_export_table) {
  const NvtxExportTableCallbacks* exports = callbacks(get_export_table);
  if (exports == nullptr) return false;
  const Callback core[] = {
      CUTRACE_NVTX_MESSAGES(CORE_Mark, domain_mark),
      CUTRACE_NVTX_NAMES(CORE_NameCategory, name_category),
      CUTRACE_NVTX_NAMES(CORE_NameOsThread, name_os_thread),
  };
  const Callback core2[] = {
      {NVTX_CBID_CORE2_DomainMarkEx, domain_mark<Taker, const nvtxEventAttributes_t*>},
      CUTRACE_NVTX_NAMES(CORE2_DomainNameCategory, domain_name_category),
  };
  const Callback cuda[] = {
      CUTRACE_NVTX_NAMES(CUDA_NameCuDevice, name_device),
      CUTRACE_NVTX_NAMES(CUDA_NameCuContext, name_context),
      CUTRACE_NVTX_NAMES(CUDA_NameCuStream, name_stream),
      CUTRACE_NVTX_NAMES(CUDA_NameCuEvent, name_event),
  };
  const Callback cudart[] = {
      CUTRACE_NVTX_NAMES(CUDART_NameCudaDevice, name_device),
      CUTRACE_NVTX_NAMES(CUDART_NameCudaStream, name_stream),
      CUTRACE_NVTX_NAMES(CUDART_NameCudaEvent, name_event),
  };
  const bool usable = install_ranges<Taker>(*exports) && fill(*exports, NVTX_CB_MODULE_CORE, core);
  fill(*exports, NVTX_CB_MODULE_CORE2, core2);
  fill(*exports, NVTX_CB_MODULE_CUDA, cuda);
  fill(*exports, NVTX_CB_MODULE_CUDART, cudart);
  return usable;
}

bool install_payload_marks(const nvtxExtModuleInfo_t& module) {
  const Callback functions[] = {{NVTX3EXT_CBID_nvtxMarkPayload, mark_payload}};
  return install_payload_ranges<Taker>(module) && fill(module, functions);
}

void submit_deferred(nvtxDomainHandle_t domain, PayloadParts parts) {
  Ring* const ring = ring_if_recording();
  if (ring == nullptr) return;
  Event e(EventType::deferred, domain);
  e.parts = parts;
  emit(*ring, e, now_ns());
}

}  // namespace cutrace::nvtx
