#include "nvtx.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "clock.h"
#include "nvtx_ring.h"

namespace cutrace::nvtx {
namespace {

constexpr int kNotTracked = NVTX_NO_PUSH_POP_TRACKING;

std::atomic<Resolve> resolve_stream{nullptr};
std::atomic<Resolve> resolve_context{nullptr};

// A wide-character text as UTF-8, cut to fit.
class Narrow {
 public:
  explicit Narrow(const wchar_t* wide) {
    if (wide == nullptr) return;
    for (; *wide != L'\0' && size_ + 4 <= sizeof text_; ++wide) put(static_cast<std::uint32_t>(*wide));
  }
  std::string_view view() const { return {text_, size_}; }

 private:
  void put(std::uint32_t c) {
    if (c >= 0x110000 || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
    if (c < 0x80) {
      text_[size_++] = static_cast<char>(c);
      return;
    }
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr std::uint8_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
    text_[size_++] = static_cast<char>(kLead[more] | (c >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) text_[size_++] = static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F));
  }
  char text_[Ring::kLongestText];
  std::size_t size_ = 0;
};

std::string_view text_of(const char* text) {
  return text != nullptr ? std::string_view(text, strnlen(text, Ring::kLongestText)) : std::string_view();
}

// NVTX treats handles as opaque, so a handle is the number itself.
std::uint16_t number_of(nvtxDomainHandle_t domain) {
  return static_cast<std::uint16_t>(reinterpret_cast<std::uintptr_t>(domain));
}

struct Event {
  explicit Event(EventType t, std::uint16_t d = 0) : type(t), domain(d) {}
  EventType type;
  std::uint16_t domain;
  std::uint8_t flags = 0;
  std::uint32_t depth = 0;
  std::uint32_t registered = 0;
  std::uint64_t id = 0;
  std::string_view text;
  EventAttributes attributes{};
};

bool emit(Ring& ring, const Event& e, std::uint64_t time) {
  const std::size_t size = (sizeof(EventHeader) + ((e.flags & kAttributes) ? sizeof(EventAttributes) : 0) +
                            ((e.flags & kId) ? 8 : 0) + e.text.size() + 7) & ~std::size_t{7};
  std::uint8_t* at = ring.reserve(size);
  if (at == nullptr) {
    ring.dropped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const EventHeader header{static_cast<std::uint32_t>(size), e.type, e.flags, e.domain, time, e.depth,
                           (e.flags & kRegistered) ? e.registered : static_cast<std::uint32_t>(e.text.size())};
  std::memcpy(at, &header, sizeof header);
  at += sizeof header;
  if (e.flags & kAttributes) {
    std::memcpy(at, &e.attributes, sizeof e.attributes);
    at += sizeof e.attributes;
  }
  if (e.flags & kId) {
    std::memcpy(at, &e.id, 8);
    at += 8;
  }
  if (!e.text.empty()) std::memcpy(at, e.text.data(), e.text.size());
  if (ring.commit(size))
    if (Wake* writer = wake.load(std::memory_order_acquire)) writer->signal();
  return true;
}

void set_text(Event& e, std::string_view text) {
  e.text = text;
  if (!text.empty()) e.flags |= kText;
}

// The parts of a program's attributes that are set. `wide` holds a converted text while the event is written.
template <typename Use>
void with_attributes(Event& e, const nvtxEventAttributes_t* a, Use&& use) {
  // Structs of version 1 end before the payload's type was widened; all since hold what is read here.
  if (a == nullptr || a->size < sizeof(nvtxEventAttributes_t)) return use();
  const std::uint32_t color = a->colorType == NVTX_COLOR_ARGB ? a->color : 0;
  const bool payload = a->payloadType >= NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 && a->payloadType <= NVTX_PAYLOAD_TYPE_FLOAT;
  if (color != 0 || a->category != 0 || payload) {
    e.flags |= kAttributes;
    e.attributes.category = a->category;
    e.attributes.color = color;
    if (payload) {
      e.attributes.payload_type = static_cast<std::uint32_t>(a->payloadType);
      const bool narrow = a->payloadType >= NVTX_PAYLOAD_TYPE_UNSIGNED_INT32;
      std::memcpy(&e.attributes.payload, &a->payload, narrow ? 4 : 8);
    }
  }
  switch (a->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII: set_text(e, text_of(a->message.ascii)); return use();
    case NVTX_MESSAGE_TYPE_UNICODE: {
      const Narrow wide(a->message.unicode);
      set_text(e, wide.view());
      return use();
    }
    case NVTX_MESSAGE_TYPE_REGISTERED:
      e.registered = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(a->message.registered));
      if (e.registered != 0) e.flags |= kRegistered;
      return use();
    default: return use();
  }
}

int push(Ring& ring, Event& e) {
  const bool counted = e.domain < Ring::kDomains;
  e.depth = counted ? ring.depth[e.domain]++ : kNoDepth;
  emit(ring, e, now_ns());
  return counted ? static_cast<int>(e.depth) : kNotTracked;
}

int pop(nvtxDomainHandle_t domain) {
  const std::uint64_t time = now_ns();
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return kNotTracked;
  Event e(EventType::pop, number_of(domain));
  if (e.domain >= Ring::kDomains) {
    e.depth = kNoDepth;
    emit(*ring, e, time);
    return kNotTracked;
  }
  std::uint32_t& depth = ring->depth[e.domain];
  e.depth = depth != 0 ? --depth : kUnmatched;
  emit(*ring, e, time);
  return e.depth == kUnmatched ? -1 : static_cast<int>(e.depth);
}

nvtxRangeId_t start(Ring& ring, Event& e) {
  static std::atomic<std::uint64_t> next_id{1};
  e.id = next_id.fetch_add(1, std::memory_order_relaxed);
  e.flags |= kId;
  emit(ring, e, now_ns());
  return e.id;
}

void mark(Ring& ring, Event& e) { emit(ring, e, now_ns()); }

void NVTX_API mark_ex(const nvtxEventAttributes_t* a) {
  if (Ring* r = ring_if_recording()) {
    Event e(EventType::mark);
    with_attributes(e, a, [&] { mark(*r, e); });
  }
}
void NVTX_API domain_mark_ex(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  if (Ring* r = ring_if_recording()) {
    Event e(EventType::mark, number_of(d));
    with_attributes(e, a, [&] { mark(*r, e); });
  }
}
void NVTX_API mark_a(const char* m) {
  if (Ring* r = ring_if_recording()) {
    Event e(EventType::mark);
    set_text(e, text_of(m));
    mark(*r, e);
  }
}
void NVTX_API mark_w(const wchar_t* m) {
  if (Ring* r = ring_if_recording()) {
    const Narrow wide(m);
    Event e(EventType::mark);
    set_text(e, wide.view());
    mark(*r, e);
  }
}

nvtxRangeId_t NVTX_API domain_range_start_ex(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  nvtxRangeId_t id = 0;
  if (Ring* r = ring_if_recording()) {
    Event e(EventType::start, number_of(d));
    with_attributes(e, a, [&] { id = start(*r, e); });
  }
  return id;
}
nvtxRangeId_t NVTX_API range_start_ex(const nvtxEventAttributes_t* a) { return domain_range_start_ex(nullptr, a); }
nvtxRangeId_t NVTX_API range_start_a(const char* m) {
  Ring* r = ring_if_recording();
  if (r == nullptr) return 0;
  Event e(EventType::start);
  set_text(e, text_of(m));
  return start(*r, e);
}
nvtxRangeId_t NVTX_API range_start_w(const wchar_t* m) {
  Ring* r = ring_if_recording();
  if (r == nullptr) return 0;
  const Narrow wide(m);
  Event e(EventType::start);
  set_text(e, wide.view());
  return start(*r, e);
}
void NVTX_API range_end(nvtxRangeId_t id) {
  const std::uint64_t time = now_ns();
  Ring* r = ring_if_recording();
  if (r == nullptr || id == 0) return;
  Event e(EventType::end);
  e.id = id;
  e.flags = kId;
  emit(*r, e, time);
}
void NVTX_API domain_range_end(nvtxDomainHandle_t, nvtxRangeId_t id) { range_end(id); }

int NVTX_API domain_range_push_ex(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  int level = kNotTracked;
  if (Ring* r = ring_if_recording()) {
    Event e(EventType::push, number_of(d));
    with_attributes(e, a, [&] { level = push(*r, e); });
  }
  return level;
}
int NVTX_API range_push_ex(const nvtxEventAttributes_t* a) { return domain_range_push_ex(nullptr, a); }
int NVTX_API range_push_a(const char* m) {
  Ring* r = ring_if_recording();
  if (r == nullptr) return kNotTracked;
  Event e(EventType::push);
  set_text(e, text_of(m));
  return push(*r, e);
}
int NVTX_API range_push_w(const wchar_t* m) {
  Ring* r = ring_if_recording();
  if (r == nullptr) return kNotTracked;
  const Narrow wide(m);
  Event e(EventType::push);
  set_text(e, wide.view());
  return push(*r, e);
}
int NVTX_API range_pop() { return pop(nullptr); }
int NVTX_API domain_range_pop(nvtxDomainHandle_t d) { return pop(d); }

void emit_name(EventType type, nvtxDomainHandle_t d, std::uint64_t id, std::string_view name, std::uint32_t kind = 0,
               std::uint32_t context = 0) {
  Ring* r = ring_if_recording();
  if (r == nullptr) return;
  Event e(type, number_of(d));
  e.id = id;
  e.flags = kId;
  if (kind != 0) {
    e.flags |= kAttributes;
    e.attributes.kind = kind;
    e.attributes.category = context;
  }
  set_text(e, name);
  emit(*r, e, now_ns());
}

void NVTX_API domain_name_category_a(nvtxDomainHandle_t d, std::uint32_t c, const char* n) {
  emit_name(EventType::category, d, c, text_of(n));
}
void NVTX_API domain_name_category_w(nvtxDomainHandle_t d, std::uint32_t c, const wchar_t* n) {
  emit_name(EventType::category, d, c, Narrow(n).view());
}
void NVTX_API name_category_a(std::uint32_t c, const char* n) { domain_name_category_a(nullptr, c, n); }
void NVTX_API name_category_w(std::uint32_t c, const wchar_t* n) { domain_name_category_w(nullptr, c, n); }
void NVTX_API name_os_thread_a(std::uint32_t t, const char* n) {
  emit_name(EventType::thread_name, nullptr, t, text_of(n));
}
void NVTX_API name_os_thread_w(std::uint32_t t, const wchar_t* n) {
  emit_name(EventType::thread_name, nullptr, t, Narrow(n).view());
}

// Kinds as the resource_names table counts them.
enum : std::uint32_t { kStream = 1, kContext = 2, kDevice = 3, kCudaEvent = 4 };

void name_device(int device, std::string_view n) {
  emit_name(EventType::resource_name, nullptr, static_cast<std::uint64_t>(device), n, kDevice);
}
void name_stream(void* stream, std::string_view n) {
  const auto resolve = resolve_stream.load();
  const std::uint32_t id = resolve != nullptr && armed.load() != 0 ? resolve(stream) : 0;
  if (id != 0) emit_name(EventType::resource_name, nullptr, id, n, kStream);
}
void name_context(void* context, std::string_view n) {
  const auto resolve = resolve_context.load();
  const std::uint32_t id = resolve != nullptr && armed.load() != 0 ? resolve(context) : 0;
  if (id != 0) emit_name(EventType::resource_name, nullptr, id, n, kContext, id);
}
void name_event(void* event, std::string_view n) {
  emit_name(EventType::resource_name, nullptr, reinterpret_cast<std::uintptr_t>(event), n, kCudaEvent);
}

void NVTX_API name_device_a(int d, const char* n) { name_device(d, text_of(n)); }
void NVTX_API name_device_w(int d, const wchar_t* n) { name_device(d, Narrow(n).view()); }
void NVTX_API name_stream_a(void* s, const char* n) { name_stream(s, text_of(n)); }
void NVTX_API name_stream_w(void* s, const wchar_t* n) { name_stream(s, Narrow(n).view()); }
void NVTX_API name_context_a(void* c, const char* n) { name_context(c, text_of(n)); }
void NVTX_API name_context_w(void* c, const wchar_t* n) { name_context(c, Narrow(n).view()); }
void NVTX_API name_event_a(void* e, const char* n) { name_event(e, text_of(n)); }
void NVTX_API name_event_w(void* e, const wchar_t* n) { name_event(e, Narrow(n).view()); }

nvtxStringHandle_t NVTX_API register_string_a(nvtxDomainHandle_t, const char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(std::uintptr_t{register_string(text_of(text))});
}
nvtxStringHandle_t NVTX_API register_string_w(nvtxDomainHandle_t, const wchar_t* text) {
  return reinterpret_cast<nvtxStringHandle_t>(std::uintptr_t{register_string(Narrow(text).view())});
}
nvtxDomainHandle_t NVTX_API domain_create_a(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(std::uintptr_t{register_domain(text_of(name))});
}
nvtxDomainHandle_t NVTX_API domain_create_w(const wchar_t* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(std::uintptr_t{register_domain(Narrow(name).view())});
}
void NVTX_API domain_destroy(nvtxDomainHandle_t) {}  // rows may still refer to it
void NVTX_API initialize(const void*) {}

template <typename Function>
NvtxFunctionPointer generic(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

struct Callback {
  unsigned id;
  NvtxFunctionPointer function;
};

template <std::size_t N>
bool fill(const NvtxExportTableCallbacks& exports, NvtxCallbackModule module, const Callback (&callbacks)[N]) {
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (exports.GetModuleFunctionTable(module, &table, &size) == 0 || table == nullptr) return false;
  for (const Callback& c : callbacks)
    if (c.id < size && table[c.id] != nullptr) *table[c.id] = c.function;
  return true;
}

}  // namespace

void set_resolver(Resolver r) {
  resolve_stream.store(r.stream);
  resolve_context.store(r.context);
}

void cutrace_mark(std::string_view text) {
  if (Ring* r = ring_if_recording()) {
    Event e(EventType::mark);
    e.flags = kCutrace;
    set_text(e, text.substr(0, Ring::kLongestText));
    mark(*r, e);
  }
}

bool install(NvtxGetExportTableFunc_t get_export_table) {
  const auto* exports = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (exports == nullptr || exports->struct_size < sizeof(NvtxExportTableCallbacks)) return false;
  const Callback core[] = {
      {NVTX_CBID_CORE_MarkEx, generic(mark_ex)},
      {NVTX_CBID_CORE_MarkA, generic(mark_a)},
      {NVTX_CBID_CORE_MarkW, generic(mark_w)},
      {NVTX_CBID_CORE_RangeStartEx, generic(range_start_ex)},
      {NVTX_CBID_CORE_RangeStartA, generic(range_start_a)},
      {NVTX_CBID_CORE_RangeStartW, generic(range_start_w)},
      {NVTX_CBID_CORE_RangeEnd, generic(range_end)},
      {NVTX_CBID_CORE_RangePushEx, generic(range_push_ex)},
      {NVTX_CBID_CORE_RangePushA, generic(range_push_a)},
      {NVTX_CBID_CORE_RangePushW, generic(range_push_w)},
      {NVTX_CBID_CORE_RangePop, generic(range_pop)},
      {NVTX_CBID_CORE_NameCategoryA, generic(name_category_a)},
      {NVTX_CBID_CORE_NameCategoryW, generic(name_category_w)},
      {NVTX_CBID_CORE_NameOsThreadA, generic(name_os_thread_a)},
      {NVTX_CBID_CORE_NameOsThreadW, generic(name_os_thread_w)},
  };
  const Callback core2[] = {
      {NVTX_CBID_CORE2_DomainMarkEx, generic(domain_mark_ex)},
      {NVTX_CBID_CORE2_DomainRangeStartEx, generic(domain_range_start_ex)},
      {NVTX_CBID_CORE2_DomainRangeEnd, generic(domain_range_end)},
      {NVTX_CBID_CORE2_DomainRangePushEx, generic(domain_range_push_ex)},
      {NVTX_CBID_CORE2_DomainRangePop, generic(domain_range_pop)},
      {NVTX_CBID_CORE2_DomainNameCategoryA, generic(domain_name_category_a)},
      {NVTX_CBID_CORE2_DomainNameCategoryW, generic(domain_name_category_w)},
      {NVTX_CBID_CORE2_DomainRegisterStringA, generic(register_string_a)},
      {NVTX_CBID_CORE2_DomainRegisterStringW, generic(register_string_w)},
      {NVTX_CBID_CORE2_DomainCreateA, generic(domain_create_a)},
      {NVTX_CBID_CORE2_DomainCreateW, generic(domain_create_w)},
      {NVTX_CBID_CORE2_DomainDestroy, generic(domain_destroy)},
      {NVTX_CBID_CORE2_Initialize, generic(initialize)},
  };
  const Callback cuda[] = {
      {NVTX_CBID_CUDA_NameCuDeviceA, generic(name_device_a)},   {NVTX_CBID_CUDA_NameCuDeviceW, generic(name_device_w)},
      {NVTX_CBID_CUDA_NameCuContextA, generic(name_context_a)}, {NVTX_CBID_CUDA_NameCuContextW, generic(name_context_w)},
      {NVTX_CBID_CUDA_NameCuStreamA, generic(name_stream_a)},   {NVTX_CBID_CUDA_NameCuStreamW, generic(name_stream_w)},
      {NVTX_CBID_CUDA_NameCuEventA, generic(name_event_a)},     {NVTX_CBID_CUDA_NameCuEventW, generic(name_event_w)},
  };
  const Callback cudart[] = {
      {NVTX_CBID_CUDART_NameCudaDeviceA, generic(name_device_a)}, {NVTX_CBID_CUDART_NameCudaDeviceW, generic(name_device_w)},
      {NVTX_CBID_CUDART_NameCudaStreamA, generic(name_stream_a)}, {NVTX_CBID_CUDART_NameCudaStreamW, generic(name_stream_w)},
      {NVTX_CBID_CUDART_NameCudaEventA, generic(name_event_a)},   {NVTX_CBID_CUDART_NameCudaEventW, generic(name_event_w)},
  };
  const bool usable = fill(*exports, NVTX_CB_MODULE_CORE, core);
  fill(*exports, NVTX_CB_MODULE_CORE2, core2);
  fill(*exports, NVTX_CB_MODULE_CUDA, cuda);
  fill(*exports, NVTX_CB_MODULE_CUDART, cudart);
  return usable;
}

}  // namespace cutrace::nvtx
