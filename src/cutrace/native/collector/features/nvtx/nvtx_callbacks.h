// The callbacks that NVTX calls in a tool, for ranges, domains and registered strings.
//
// They pass ranges to a taker. A taker has these members, called on the thread of the program:
//
//   bool wants()                             whether it takes events now
//   int push(Event&), nvtxRangeId_t start(Event&)
//   static int pop(Event&), static void end(Event&)
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/text.h"
#include "nvtx.h"
#include "payload_copy.h"

namespace cutrace::nvtx {

inline constexpr int kNotTracked = NVTX_NO_PUSH_POP_TRACKING;

// Calls `use` with the text of a message as UTF-8, truncated to kLongestText. A program passes a char*, a wchar_t* or attributes.
//
// A conversion takes 4 KiB of the stack. It has a function of its own, because signal handlers with small stacks use NVTX too.
template <typename Use>
[[gnu::noinline]] auto with_converted(const wchar_t* text, const Use& use) {
  char converted[Ring::kLongestText];
  std::size_t size = 0;
  for (; text != nullptr && *text != L'\0' && size + 4 <= sizeof converted; ++text)
    size += put_utf8(static_cast<std::uint32_t>(*text), converted + size);
  return use(std::string_view(converted, size));
}
template <typename Use>
auto with_text(const wchar_t* text, const Use& use) { return with_converted(text, use); }
template <typename Use>
auto with_text(const char* text, const Use& use) {
  return use(text != nullptr ? std::string_view(text, strnlen(text, Ring::kLongestText)) : std::string_view());
}
// Structs of version 1 are shorter. All later versions have the fields that are read here.
inline bool are_known(const nvtxEventAttributes_t* a) { return a != nullptr && a->size >= sizeof(nvtxEventAttributes_t); }
template <typename Use>
auto with_text(const nvtxEventAttributes_t* a, const Use& use) {
  if (are_known(a) && a->messageType == NVTX_MESSAGE_TYPE_UNICODE) return with_converted(a->message.unicode, use);
  const bool is_text = are_known(a) && a->messageType == NVTX_MESSAGE_TYPE_ASCII;
  return with_text(is_text ? a->message.ascii : nullptr, use);
}

// Handles are opaque to NVTX, so a handle is the number itself.
inline std::uint16_t number_of(nvtxDomainHandle_t domain) {
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
  std::string_view text;
  PayloadParts parts;  // extended payloads

  // Sets the fields that a message has beside its text.
  template <typename Char>
  void describe(const Char*) {}
  void describe(const nvtxEventAttributes_t* a) {
    if (!are_known(a)) return;
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
    if (a->payloadType == NVTX_PAYLOAD_TYPE_EXT && a->reserved0 > 0)
      parts = {reinterpret_cast<const nvtxPayloadData_t*>(a->payload.ullValue), static_cast<std::size_t>(a->reserved0)};
    if (a->messageType == NVTX_MESSAGE_TYPE_REGISTERED) {
      registered = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(a->message.registered));
      if (registered != 0) flags |= kRegistered;
    }
  }
};

// Calls `use` with an event that has a message.
template <typename Message, typename Use>
auto with_event(EventType type, nvtxDomainHandle_t domain, Message message, const Use& use) {
  return with_text(message, [&](std::string_view text) {
    Event e(type, domain);
    e.describe(message);
    e.text = text;
    return use(e);
  });
}

// The callbacks take a message as char*, wchar_t* or attributes. Functions without a domain use the default domain.

template <auto Callback, typename... Arguments>
auto NVTX_API in_default_domain(Arguments... arguments) {
  return Callback(nullptr, arguments...);
}

template <typename Taker, typename Message>
nvtxRangeId_t NVTX_API domain_range_start(nvtxDomainHandle_t domain, Message message) {
  Taker taker;
  if (!taker.wants()) return 0;
  return with_event(EventType::start, domain, message, [&](Event& e) { return taker.start(e); });
}
template <typename Taker>
void NVTX_API domain_range_end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  Event e(EventType::end, domain);
  e.id = id;
  Taker::end(e);
}
template <typename Taker>
void NVTX_API range_end(nvtxRangeId_t id) { domain_range_end<Taker>(nullptr, id); }

template <typename Taker, typename Message>
int NVTX_API domain_range_push(nvtxDomainHandle_t domain, Message message) {
  Taker taker;
  if (!taker.wants()) return kNotTracked;
  return with_event(EventType::push, domain, message, [&](Event& e) { return taker.push(e); });
}
template <typename Taker>
int NVTX_API domain_range_pop(nvtxDomainHandle_t domain) {
  Event e(EventType::pop, domain);
  return Taker::pop(e);
}

// The callbacks for ranges with extended payloads instead of attributes.

template <typename Taker>
int NVTX_API range_push_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* payloads, std::size_t count) {
  Taker taker;
  if (!taker.wants()) return kNotTracked;
  Event e(EventType::push, domain);
  e.parts = {payloads, count};
  return taker.push(e);
}
template <typename Taker>
int NVTX_API range_pop_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* payloads, std::size_t count) {
  Event e(EventType::pop, domain);
  e.parts = {payloads, count};
  return Taker::pop(e);
}
template <typename Taker>
nvtxRangeId_t NVTX_API range_start_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* payloads, std::size_t count) {
  Taker taker;
  if (!taker.wants()) return 0;
  Event e(EventType::start, domain);
  e.parts = {payloads, count};
  return taker.start(e);
}
template <typename Taker>
void NVTX_API range_end_payload(nvtxDomainHandle_t domain, nvtxRangeId_t id, const nvtxPayloadData_t* payloads, std::size_t count) {
  Event e(EventType::end, domain);
  e.id = id;
  e.parts = {payloads, count};
  Taker::end(e);
}
inline std::uint64_t NVTX_API payload_schema_register(nvtxDomainHandle_t domain, const nvtxPayloadSchemaAttr_t* attributes) {
  return register_schema(number_of(domain), attributes);
}
inline std::uint64_t NVTX_API payload_enum_register(nvtxDomainHandle_t domain, const nvtxPayloadEnumAttr_t* attributes) {
  return register_enum(number_of(domain), attributes);
}
// Always enabled: programs ask once and keep the answer, and a recording may start later.
inline std::uint8_t NVTX_API domain_is_enabled(nvtxDomainHandle_t) { return 1; }

template <typename Char>
nvtxStringHandle_t NVTX_API domain_register_string(nvtxDomainHandle_t, const Char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(std::uintptr_t{with_text(text, register_string)});
}
template <typename Char>
nvtxDomainHandle_t NVTX_API domain_create(const Char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(std::uintptr_t{with_text(name, register_domain)});
}

struct Callback {
  template <typename Function>
  Callback(unsigned i, Function* f) : id(i), function(reinterpret_cast<NvtxFunctionPointer>(f)) {}
  unsigned id;
  NvtxFunctionPointer function;
};

// The callbacks for names as char* and as wchar_t*, and the callbacks of a Taker for the three kinds of messages.
#define CUTRACE_NVTX_NAMES(id, function) {NVTX_CBID_##id##A, function<char>}, {NVTX_CBID_##id##W, function<wchar_t>}
#define CUTRACE_NVTX_MESSAGE(id, function, Message) {NVTX_CBID_##id, in_default_domain<function<Taker, Message>, Message>}
#define CUTRACE_NVTX_MESSAGES(id, function)                                                                            \
  CUTRACE_NVTX_MESSAGE(id##A, function, const char*), CUTRACE_NVTX_MESSAGE(id##W, function, const wchar_t*), \
  CUTRACE_NVTX_MESSAGE(id##Ex, function, const nvtxEventAttributes_t*)

template <std::size_t N>
bool fill(const NvtxExportTableCallbacks& exports, NvtxCallbackModule module, const Callback (&callbacks)[N]) {
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (exports.GetModuleFunctionTable(module, &table, &size) == 0 || table == nullptr) return false;
  for (const Callback& c : callbacks)
    if (c.id < size && table[c.id] != nullptr) *table[c.id] = c.function;
  return true;
}

// The callbacks that NVTX offers, null when it offers none.
inline const NvtxExportTableCallbacks* callbacks(NvtxGetExportTableFunc_t get_export_table) {
  const auto* exports = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  return exports != nullptr && exports->struct_size >= sizeof(NvtxExportTableCallbacks) ? exports : nullptr;
}

// Gives ranges, domains and registered strings to a Taker. False when NVTX does not take the callbacks.
template <typename Taker>
bool install_ranges(const NvtxExportTableCallbacks& exports) {
  const Callback core[] = {
      CUTRACE_NVTX_MESSAGES(CORE_RangeStart, domain_range_start),
      CUTRACE_NVTX_MESSAGES(CORE_RangePush, domain_range_push),
      {NVTX_CBID_CORE_RangeEnd, range_end<Taker>},
      {NVTX_CBID_CORE_RangePop, in_default_domain<domain_range_pop<Taker>>},
  };
  // NVTX skips functions without a callback. The destruction of a domain has no callback, because rows may still refer to the
  // domain.
  const Callback core2[] = {
      {NVTX_CBID_CORE2_DomainRangeStartEx, domain_range_start<Taker, const nvtxEventAttributes_t*>},
      {NVTX_CBID_CORE2_DomainRangePushEx, domain_range_push<Taker, const nvtxEventAttributes_t*>},
      {NVTX_CBID_CORE2_DomainRangeEnd, domain_range_end<Taker>},
      {NVTX_CBID_CORE2_DomainRangePop, domain_range_pop<Taker>},
      CUTRACE_NVTX_NAMES(CORE2_DomainRegisterString, domain_register_string),
      CUTRACE_NVTX_NAMES(CORE2_DomainCreate, domain_create),
  };
  fill(exports, NVTX_CB_MODULE_CORE2, core2);
  return fill(exports, NVTX_CB_MODULE_CORE, core);
}

// Fills the slots of an extension module of NVTX. False when it has none.
template <std::size_t N>
bool fill(const nvtxExtModuleInfo_t& module, const Callback (&callbacks)[N]) {
  if (module.segmentsCount == 0 || module.segments == nullptr || module.segments[0].functionSlots == nullptr) return false;
  const nvtxExtModuleSegment_t& segment = module.segments[0];
  for (const Callback& c : callbacks)
    if (c.id < segment.slotCount) segment.functionSlots[c.id] = reinterpret_cast<std::intptr_t>(c.function);
  return true;
}

// Installs the payload module for events of the collector, ranges included. False for another version.
bool install_payload_marks(const nvtxExtModuleInfo_t& module);
// Puts a deferred event into the thread's ring.
void submit_deferred(nvtxDomainHandle_t domain, PayloadParts parts);

// Gives ranges with extended payloads to a Taker. False for a version of the module with other functions.
template <typename Taker>
bool install_payload_ranges(const nvtxExtModuleInfo_t& module) {
  constexpr unsigned kMajor = NVTX_EXT_PAYLOAD_COMPATID >> 8;
  const Callback functions[] = {
      {NVTX3EXT_CBID_nvtxPayloadSchemaRegister, payload_schema_register},
      {NVTX3EXT_CBID_nvtxPayloadEnumRegister, payload_enum_register},
      {NVTX3EXT_CBID_nvtxRangePushPayload, range_push_payload<Taker>},
      {NVTX3EXT_CBID_nvtxRangePopPayload, range_pop_payload<Taker>},
      {NVTX3EXT_CBID_nvtxRangeStartPayload, range_start_payload<Taker>},
      {NVTX3EXT_CBID_nvtxRangeEndPayload, range_end_payload<Taker>},
      {NVTX3EXT_CBID_nvtxDomainIsEnabled, domain_is_enabled},
  };
  return module.compatId >> 8 == kMajor && fill(module, functions);
}

}  // namespace cutrace::nvtx
