#include "nvtx.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "clock.h"
#include "common/text.h"
#include "cupti_source.h"
#include "wake.h"

namespace cutrace::nvtx {
namespace {

constexpr int kNotTracked = NVTX_NO_PUSH_POP_TRACKING;

std::atomic<std::uint64_t> next_range_id{1};

// A text of the program as UTF-8, cut to fit. Lives as long as the object.
class Text {
 public:
  Text() = default;
  template <typename Char>
  explicit Text(const Char* text) { assign(text); }
  void assign(const char* text) {
    if (text != nullptr) view_ = {text, strnlen(text, Ring::kLongestText)};
  }
  void assign(const wchar_t* text) {
    std::size_t size = 0;
    for (; text != nullptr && *text != L'\0' && size + 4 <= sizeof converted_; ++text)
      size += put_utf8(static_cast<std::uint32_t>(*text), converted_ + size);
    view_ = {converted_, size};
  }
  void assign(std::string_view text) { view_ = text; }
  std::string_view view() const { return view_; }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

 private:
  std::string_view view_;
  char converted_[Ring::kLongestText];
};

// NVTX treats handles as opaque, so a handle is the number itself.
std::uint16_t number_of(nvtxDomainHandle_t domain) {
  return static_cast<std::uint16_t>(reinterpret_cast<std::uintptr_t>(domain));
}

struct Event {
  explicit Event(EventType t, nvtxDomainHandle_t d = nullptr) : type(t), domain(number_of(d)) {}
  EventType type;
  std::uint16_t domain;
  std::uint8_t flags = 0;
  std::uint32_t depth = 0;
  std::uint32_t registered = 0;
  std::uint64_t id = 0;
  EventAttributes attributes{};
  Text text;

  // The three ways in which a program describes an event.
  template <typename Char>
  void describe(const Char* message) { text.assign(message); }
  void describe(const nvtxEventAttributes_t* a) {
    // Structs of version 1 end before the payload's type was widened; all since hold what is read here.
    if (a == nullptr || a->size < sizeof(nvtxEventAttributes_t)) return;
    const std::uint32_t color = a->colorType == NVTX_COLOR_ARGB ? a->color : 0;
    const bool payload = a->payloadType >= NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 && a->payloadType <= NVTX_PAYLOAD_TYPE_FLOAT;
    if (color != 0 || a->category != 0 || payload) flags |= kAttributes;
    attributes.category = a->category;
    attributes.color = color;
    if (payload) {
      attributes.payload_type = static_cast<std::uint32_t>(a->payloadType);
      const bool narrow = a->payloadType >= NVTX_PAYLOAD_TYPE_UNSIGNED_INT32;
      std::memcpy(&attributes.payload, &a->payload, narrow ? 4 : 8);
    }
    if (a->messageType == NVTX_MESSAGE_TYPE_ASCII) text.assign(a->message.ascii);
    if (a->messageType == NVTX_MESSAGE_TYPE_UNICODE) text.assign(a->message.unicode);
    if (a->messageType == NVTX_MESSAGE_TYPE_REGISTERED) {
      registered = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(a->message.registered));
      if (registered != 0) flags |= kRegistered;
    }
  }
};

void emit(Ring& ring, Event& e, std::uint64_t time) {
  const std::string_view text = e.text.view();
  if (!text.empty()) e.flags |= kText;
  const std::size_t size = (sizeof(EventHeader) + ((e.flags & kAttributes) ? sizeof(EventAttributes) : 0) +
                            ((e.flags & kId) ? 8 : 0) + text.size() + 7) & ~std::size_t{7};
  std::uint8_t* at = ring.reserve(size);
  if (at == nullptr) {
    ring.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const EventHeader header{static_cast<std::uint32_t>(size), e.type, e.flags, e.domain, time, e.depth,
                           (e.flags & kRegistered) ? e.registered : static_cast<std::uint32_t>(text.size())};
  const auto put = [&](const void* data, std::size_t bytes) {
    std::memcpy(at, data, bytes);
    at += bytes;
  };
  put(&header, sizeof header);
  if (e.flags & kAttributes) put(&e.attributes, sizeof e.attributes);
  if (e.flags & kId) put(&e.id, sizeof e.id);
  if (!text.empty()) put(text.data(), text.size());
  if (ring.commit(size)) writer_wake.signal();
}

// The callbacks take a message as char*, wchar_t* or attributes. Those without a domain use the default one.

template <auto Callback, typename... Arguments>
auto NVTX_API in_default_domain(Arguments... arguments) {
  return Callback(nullptr, arguments...);
}

template <typename Message>
void NVTX_API domain_mark(nvtxDomainHandle_t domain, Message message) {
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return;
  Event e(EventType::mark, domain);
  e.describe(message);
  emit(*ring, e, now_ns());
}

template <typename Message>
nvtxRangeId_t NVTX_API domain_range_start(nvtxDomainHandle_t domain, Message message) {
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return 0;
  Event e(EventType::start, domain);
  e.describe(message);
  e.id = next_range_id.fetch_add(1, std::memory_order_relaxed);
  e.flags |= kId;
  emit(*ring, e, now_ns());
  return e.id;
}
void NVTX_API range_end(nvtxRangeId_t id) {
  const std::uint64_t time = now_ns();
  Ring* ring = ring_if_recording();
  if (ring == nullptr || id == 0) return;
  Event e(EventType::end);
  e.id = id;
  e.flags = kId;
  emit(*ring, e, time);
}
void NVTX_API domain_range_end(nvtxDomainHandle_t, nvtxRangeId_t id) { range_end(id); }

template <typename Message>
int NVTX_API domain_range_push(nvtxDomainHandle_t domain, Message message) {
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return kNotTracked;
  Event e(EventType::push, domain);
  e.describe(message);
  const bool counted = e.domain < Ring::kDomains;
  e.depth = counted ? ring->depth[e.domain]++ : kNoDepth;
  emit(*ring, e, now_ns());
  return counted ? static_cast<int>(e.depth) : kNotTracked;
}
int NVTX_API domain_range_pop(nvtxDomainHandle_t domain) {
  const std::uint64_t time = now_ns();
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return kNotTracked;
  Event e(EventType::pop, domain);
  e.depth = kNoDepth;
  if (e.domain < Ring::kDomains) {
    std::uint32_t& depth = ring->depth[e.domain];
    e.depth = depth != 0 ? --depth : kUnmatched;
  }
  emit(*ring, e, time);
  return e.depth == kNoDepth ? kNotTracked : e.depth == kUnmatched ? -1 : static_cast<int>(e.depth);
}

// `kind` and `context` are those of a resource.
template <typename Char>
void emit_name(EventType type, nvtxDomainHandle_t domain, std::uint64_t id, const Char* name, std::uint32_t kind = 0,
               std::uint32_t context = 0) {
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return;
  Event e(type, domain);
  e.id = id;
  e.flags = kId;
  if (kind != 0) {
    e.flags |= kAttributes;
    e.attributes.kind = kind;
    e.attributes.category = context;
  }
  e.describe(name);
  emit(*ring, e, now_ns());
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

// Kinds as the resource_names table counts them.
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

template <typename Char>
nvtxStringHandle_t NVTX_API domain_register_string(nvtxDomainHandle_t, const Char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(std::uintptr_t{register_string(Text(text).view())});
}
template <typename Char>
nvtxDomainHandle_t NVTX_API domain_create(const Char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(std::uintptr_t{register_domain(Text(name).view())});
}

struct Callback {
  template <typename Function>
  Callback(unsigned i, Function* f) : id(i), function(reinterpret_cast<NvtxFunctionPointer>(f)) {}
  unsigned id;
  NvtxFunctionPointer function;
};

// The callbacks for a name as char* and as wchar_t*; and those for the three kinds of messages.
#define CUTRACE_NAMES(id, function) {NVTX_CBID_##id##A, function<char>}, {NVTX_CBID_##id##W, function<wchar_t>}
#define CUTRACE_MESSAGE(id, function, Message) {NVTX_CBID_##id, in_default_domain<function<Message>, Message>}
#define CUTRACE_MESSAGES(id, function)                                                                       \
  CUTRACE_MESSAGE(id##A, function, const char*), CUTRACE_MESSAGE(id##W, function, const wchar_t*),           \
  CUTRACE_MESSAGE(id##Ex, function, const nvtxEventAttributes_t*)

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

void cutrace_mark(std::string_view text) {
  Ring* ring = ring_if_recording();
  if (ring == nullptr) return;
  Event e(EventType::mark);
  e.flags = kCutrace;
  e.text.assign(text.substr(0, Ring::kLongestText));
  emit(*ring, e, now_ns());
}

bool install(NvtxGetExportTableFunc_t get_export_table) {
  const auto* exports = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (exports == nullptr || exports->struct_size < sizeof(NvtxExportTableCallbacks)) return false;
  const Callback core[] = {
      CUTRACE_MESSAGES(CORE_Mark, domain_mark),
      CUTRACE_MESSAGES(CORE_RangeStart, domain_range_start),
      CUTRACE_MESSAGES(CORE_RangePush, domain_range_push),
      {NVTX_CBID_CORE_RangeEnd, range_end},
      {NVTX_CBID_CORE_RangePop, in_default_domain<domain_range_pop>},
      CUTRACE_NAMES(CORE_NameCategory, name_category),
      CUTRACE_NAMES(CORE_NameOsThread, name_os_thread),
  };
  // NVTX does nothing where there is no callback. Domains are not destroyed: rows may still refer to them.
  const Callback core2[] = {
      {NVTX_CBID_CORE2_DomainMarkEx, domain_mark<const nvtxEventAttributes_t*>},
      {NVTX_CBID_CORE2_DomainRangeStartEx, domain_range_start<const nvtxEventAttributes_t*>},
      {NVTX_CBID_CORE2_DomainRangePushEx, domain_range_push<const nvtxEventAttributes_t*>},
      {NVTX_CBID_CORE2_DomainRangeEnd, domain_range_end},
      {NVTX_CBID_CORE2_DomainRangePop, domain_range_pop},
      CUTRACE_NAMES(CORE2_DomainNameCategory, domain_name_category),
      CUTRACE_NAMES(CORE2_DomainRegisterString, domain_register_string),
      CUTRACE_NAMES(CORE2_DomainCreate, domain_create),
  };
  const Callback cuda[] = {
      CUTRACE_NAMES(CUDA_NameCuDevice, name_device),
      CUTRACE_NAMES(CUDA_NameCuContext, name_context),
      CUTRACE_NAMES(CUDA_NameCuStream, name_stream),
      CUTRACE_NAMES(CUDA_NameCuEvent, name_event),
  };
  const Callback cudart[] = {
      CUTRACE_NAMES(CUDART_NameCudaDevice, name_device),
      CUTRACE_NAMES(CUDART_NameCudaStream, name_stream),
      CUTRACE_NAMES(CUDART_NameCudaEvent, name_event),
  };
  const bool usable = fill(*exports, NVTX_CB_MODULE_CORE, core);
  fill(*exports, NVTX_CB_MODULE_CORE2, core2);
  fill(*exports, NVTX_CB_MODULE_CUDA, cuda);
  fill(*exports, NVTX_CB_MODULE_CUDART, cudart);
  return usable;
}

}  // namespace cutrace::nvtx
