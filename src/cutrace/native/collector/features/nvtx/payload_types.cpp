#include "payload_types.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "registry.h"

namespace cutrace::nvtx {
namespace {

constexpr std::size_t kMostEntries = 4096;
constexpr std::size_t kLongestName = 4096;
constexpr std::size_t kPointer = sizeof(void*);
constexpr int kDeepestSchema = 16;
constexpr std::size_t kLargestSchema = std::size_t{1} << 32;  // of a schema; its fields cannot overflow then

struct Types : Registrations<PayloadType> {
  std::vector<const PayloadType*> incomplete;  // under the mutex of the guard
  std::uint64_t next_id = kFirstOwnId;
};
Types& types = *new Types;

struct PayloadScope {
  std::uint16_t domain;
  std::uint64_t id;
  std::string path;
  mutable const PayloadScope* next = nullptr;
};
struct Scopes : Registrations<PayloadScope> {
  std::uint64_t next_id = NVTX_SCOPE_ID_DYNAMIC_START;
};
Scopes& scopes = *new Scopes;

std::string name_of(const char* name) { return name != nullptr ? std::string(name, strnlen(name, kLongestName)) : std::string(); }

// The alignment of the data of a field.
std::size_t align_of_predefined(std::uint64_t type) { return std::clamp<std::size_t>(size_of_predefined(type), 1, 16); }

void set_unit(PayloadField& field) {
  field.unit = 0;
  field.align = 1;
  if (field.type < NVTX_PAYLOAD_SCHEMA_ID_STATIC_START) {
    field.unit = size_of_predefined(field.type);
    field.align = align_of_predefined(field.type);
  } else if (field.nested != nullptr) {
    field.unit = field.nested->size;
    field.align = field.nested->align;
  }
  const bool terminated_string = field.is_string() && field.array() == 0 && field.detail == 0;
  if ((field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) || field.is_offset() || terminated_string) {
    field.slot = kPointer;
    field.align = kPointer;
  }
}

// An offset may be narrower than a pointer. Its size is not registered, but the place of the next entry limits it.
void narrow_offset(PayloadField& field, std::size_t next) {
  if (!field.is_offset() || field.place == kVaries || next <= field.place || next - field.place >= kPointer) return;
  for (field.slot = kPointer; field.slot > next - field.place;) field.slot /= 2;
  field.size = field.slot;
}

std::size_t size_in_place(const PayloadField& field) {
  if (field.slot != 0) return field.slot;
  if (field.unit == 0 || field.unit == kVaries) return kVaries;
  if (field.has_fixed_length()) return field.detail < kLargestSchema / field.unit ? field.detail * field.unit : kVaries;
  return field.array() == 0 && !field.is_string() ? field.unit : kVaries;
}

// Computes the places of the fields with a fixed place.
void lay_out(PayloadType& type) {
  type.complete = true;
  type.has_pointers = false;
  type.depth = 1;
  std::size_t end = 0;     // of the fields so far
  std::size_t choice = 0;  // where the members of a union start
  const std::size_t given = type.size;
  for (std::size_t i = 0; i < type.fields.size(); ++i) {
    PayloadField& field = type.fields[i];
    field.nested = find_type(type.domain, field.type);
    if (field.nested != nullptr && field.nested->depth >= kDeepestSchema) field.nested = nullptr;
    if (field.nested != nullptr) type.depth = std::max(type.depth, field.nested->depth + 1);
    const bool registered = field.type >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START;
    if (registered && (field.nested == nullptr || !field.nested->complete)) type.complete = false;
    set_unit(field);
    if (type.pack != 0) field.align = std::min(field.align, type.pack);
    type.align = std::max(type.align, field.align);
    type.has_pointers = type.has_pointers || field.is_pointer() || (field.nested != nullptr && field.nested->has_pointers);
    const bool explicitly = i == 0 || field.offset != 0;
    const std::size_t start = type.is_union() ? choice : end;
    if (explicitly) field.place = field.offset < kLargestSchema ? static_cast<std::size_t>(field.offset) : kVaries;
    else field.place = start != kVaries ? aligned(start, field.align) : kVaries;
    field.size = size_in_place(field);
    if (field.place == kVaries || field.size == kVaries) end = kVaries;
    else end = end == kVaries ? field.place + field.size : std::max(end, field.place + field.size);
    if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_UNION_SELECTOR) choice = end;
  }
  for (std::size_t i = 0; i < type.fields.size(); ++i) {
    const bool last = i + 1 == type.fields.size();
    narrow_offset(type.fields[i], last ? (given != kVaries ? given : 0) : type.fields[i + 1].place);
  }
  if (given == kVaries && type.kind != NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC && end != kVaries) type.size = aligned(end, type.align);
}

std::size_t memory(const PayloadType& type) {
  std::size_t bytes = sizeof type + type.name.size();
  for (const PayloadField& field : type.fields) bytes += sizeof field + field.name.size() + field.semantics.unit.size();
  for (const EnumLabel& label : type.labels) bytes += sizeof label + label.name.size();
  return bytes;
}

bool same(const PayloadField& a, const PayloadField& b) {
  return a.name == b.name && a.flags == b.flags && a.type == b.type && a.detail == b.detail && a.offset == b.offset &&
         a.nested == b.nested && a.semantics.unit == b.semantics.unit && a.semantics.scale == b.semantics.scale &&
         a.semantics.counter_flags == b.semantics.counter_flags && a.semantics.time_domain == b.semantics.time_domain &&
         a.semantics.scope == b.semantics.scope;
}
bool same(const EnumLabel& a, const EnumLabel& b) { return a.name == b.name && a.value == b.value && a.flag == b.flag; }
template <typename Part>
bool all_same(const std::vector<Part>& a, const std::vector<Part>& b) {
  return std::ranges::equal(a, b, [](const Part& x, const Part& y) { return same(x, y); });
}
bool same(const PayloadType& a, const PayloadType& b) {
  return a.name == b.name && a.kind == b.kind && a.flags == b.flags && a.pack == b.pack && a.size == b.size &&
         all_same(a.fields, b.fields) && all_same(a.labels, b.labels);
}

// Under the mutex. Also makes a new version of each schema that waited for this type. `levels` limits the versions of schemas
// that refer to each other in a circle.
std::uint64_t publish(std::unique_ptr<PayloadType> type, int levels = kDeepestSchema) {
  if (!type->is_enum()) lay_out(*type);
  const std::uint64_t id = type->id;
  if (const PayloadType* known = find_type(type->domain, id); known != nullptr && same(*known, *type)) return id;
  if (!registry_guard().take(memory(*type))) return 0;
  if (!type->complete) types.incomplete.push_back(type.get());
  const PayloadType& added = *type;
  types.add(*type.release());
  for (std::size_t i = 0; levels != 0 && i < types.incomplete.size(); ++i) {
    const PayloadType& waiting = *types.incomplete[i];
    const auto lacks = [&](const PayloadField& field) { return field.type == id && field.nested != &added; };
    if (waiting.domain != added.domain || std::ranges::none_of(waiting.fields, lacks)) continue;
    auto version = std::make_unique<PayloadType>(waiting);
    types.incomplete.erase(types.incomplete.begin() + static_cast<std::ptrdiff_t>(i));
    if (find_type(waiting.domain, waiting.id) == &waiting) publish(std::move(version), levels - 1);
    i = static_cast<std::size_t>(-1);  // the list has changed
  }
  return id;
}

// The registered id, 0 for an id that programs must not choose. Under the mutex.
std::uint64_t id_for(bool given, std::uint64_t id) {
  if (!given || id == 0) return types.next_id++;
  return id >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START && id < kFirstOwnId ? id : 0;
}

template <typename Describe>
std::uint64_t register_type(std::uint16_t domain, bool has_id, std::uint64_t id, Describe&& describe) {
  const std::lock_guard lock(registry_guard().mutex);
  try {
    auto type = std::make_unique<PayloadType>();
    type->domain = domain;
    type->id = id_for(has_id, id);
    if (type->id == 0) return ++registry_guard().refused, 0;
    describe(*type);
    return publish(std::move(type));
  } catch (const std::bad_alloc&) {
    return ++registry_guard().refused, 0;
  }
}

}  // namespace

std::size_t size_of_predefined(std::uint64_t type) {
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_UCHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT8:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT8:
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR8:
    case NVTX_PAYLOAD_ENTRY_TYPE_BYTE:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8:
    case NVTX_PAYLOAD_ENTRY_TYPE_UNION_SELECTOR: return 1;
    case NVTX_PAYLOAD_ENTRY_TYPE_SHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_USHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR16:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_BF16:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF16: return 2;
    case NVTX_PAYLOAD_ENTRY_TYPE_INT:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_TF32:
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR32:
    case NVTX_PAYLOAD_ENTRY_TYPE_CATEGORY:
    case NVTX_PAYLOAD_ENTRY_TYPE_COLOR_ARGB:
    case NVTX_PAYLOAD_ENTRY_TYPE_PID_UINT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32: return 4;
    case NVTX_PAYLOAD_ENTRY_TYPE_LONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_ULONG: return sizeof(long);
    case NVTX_PAYLOAD_ENTRY_TYPE_WCHAR: return sizeof(wchar_t);
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGLONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_ULONGLONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_SIZE:
    case NVTX_PAYLOAD_ENTRY_TYPE_ADDRESS:
    case NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID:
    case NVTX_PAYLOAD_ENTRY_TYPE_SCOPE_ID:
    case NVTX_PAYLOAD_ENTRY_TYPE_PID_UINT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE: return 8;
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGDOUBLE: return sizeof(long double);
    case NVTX_PAYLOAD_ENTRY_TYPE_INT128:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT128:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT128: return 16;
    default: return 0;
  }
}

Semantics read_semantics(const nvtxSemanticsHeader_t* first) {
  Semantics semantics;
  int most = 16;  // a list of a program may have a circle
  for (const nvtxSemanticsHeader_t* at = first; at != nullptr && most != 0; at = at->next, --most) {
    if (at->semanticId == NVTX_SEMANTIC_ID_SCOPE_V1 && at->structSize >= sizeof(nvtxSemanticsScope_t)) {
      semantics.scope = reinterpret_cast<const nvtxSemanticsScope_t*>(at)->scopeId;
    } else if (at->semanticId == NVTX_SEMANTIC_ID_TIME_V1 && at->structSize >= sizeof(nvtxSemanticsTime_t)) {
      semantics.time_domain = reinterpret_cast<const nvtxSemanticsTime_t*>(at)->timeDomainId;
    } else if (at->semanticId == NVTX_SEMANTIC_ID_COUNTERS_V1 && at->version >= NVTX_COUNTER_SEMANTIC_VERSION &&
               at->structSize >= sizeof(nvtxSemanticsCounter_t)) {  // the flags of version 1 had other meanings
      const auto& counter = *reinterpret_cast<const nvtxSemanticsCounter_t*>(at);
      semantics.unit = name_of(counter.unit);
      semantics.counter_flags = counter.flags;
      if (counter.unitScaleNumerator != 0 && counter.unitScaleDenominator != 0)
        semantics.scale = static_cast<double>(counter.unitScaleNumerator) / static_cast<double>(counter.unitScaleDenominator);
    }
  }
  return semantics;
}

std::uint64_t register_schema(std::uint16_t domain, const nvtxPayloadSchemaAttr_t* attributes) {
  if (attributes == nullptr) return 0;
  const auto& a = *attributes;
  constexpr std::uint64_t kNeeded =
      NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES;
  const bool known = a.type >= NVTX_PAYLOAD_SCHEMA_TYPE_STATIC && a.type <= NVTX_PAYLOAD_SCHEMA_TYPE_UNION_WITH_INTERNAL_SELECTOR;
  if ((a.fieldMask & kNeeded) != kNeeded || !known || a.entries == nullptr || a.numEntries == 0 || a.numEntries > kMostEntries) return 0;
  const auto has = [&](std::uint64_t field) { return (a.fieldMask & field) != 0; };
  return register_type(domain, has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID), a.schemaId, [&](PayloadType& type) {
    type.kind = a.type;
    if (has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME)) type.name = name_of(a.name);
    if (has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_FLAGS)) type.flags = a.flags;
    if (has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT)) type.pack = a.packAlign;
    const bool sized = has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE) && a.type != NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC;
    if (sized && a.payloadStaticSize != 0 && a.payloadStaticSize < kLargestSchema) type.size = a.payloadStaticSize;
    for (const auto& entry : std::span(a.entries, a.numEntries)) {
      PayloadField& field = type.fields.emplace_back();
      field.name = name_of(entry.name);
      field.flags = entry.flags;
      field.type = entry.type;
      field.detail = entry.arrayOrUnionDetail;
      field.offset = entry.offset;
      field.semantics = read_semantics(entry.semantics);
    }
  });
}

std::uint64_t register_enum(std::uint16_t domain, const nvtxPayloadEnumAttr_t* attributes) {
  if (attributes == nullptr) return 0;
  const auto& a = *attributes;
  constexpr std::uint64_t kNeeded =
      NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE;
  const bool sized = a.sizeOfEnum == 1 || a.sizeOfEnum == 2 || a.sizeOfEnum == 4 || a.sizeOfEnum == 8;
  if ((a.fieldMask & kNeeded) != kNeeded || !sized || a.entries == nullptr || a.numEntries > kMostEntries) return 0;
  const bool has_id = (a.fieldMask & NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID) != 0;
  return register_type(domain, has_id, a.schemaId, [&](PayloadType& type) {
    if (a.fieldMask & NVTX_PAYLOAD_ENUM_ATTR_FIELD_NAME) type.name = name_of(a.name);
    type.size = type.align = a.sizeOfEnum;
    for (const auto& entry : std::span(a.entries, a.numEntries)) type.labels.push_back({name_of(entry.name), entry.value, entry.isFlag != 0});
  });
}

std::uint64_t register_scope(std::uint16_t domain, const nvtxScopeAttr_t* attributes) {
  if (attributes == nullptr || attributes->structSize < sizeof *attributes) return NVTX_SCOPE_NONE;
  const std::uint64_t given = attributes->scopeId;
  if (given != NVTX_SCOPE_NONE && (given < NVTX_SCOPE_ID_STATIC_START || given >= NVTX_SCOPE_ID_DYNAMIC_START)) return NVTX_SCOPE_NONE;
  const std::lock_guard lock(registry_guard().mutex);
  try {
    std::string path(scope_path(domain, attributes->parentScope));
    std::string own = name_of(attributes->path);
    own.erase(0, own.find_first_not_of('/'));
    if (!path.empty() && !own.empty()) path += '/';
    path += own;
    path.resize(std::min(path.size(), kLongestName));
    if (!registry_guard().take(sizeof(PayloadScope) + path.size())) return NVTX_SCOPE_NONE;
    auto scope = std::make_unique<PayloadScope>(domain, given != NVTX_SCOPE_NONE ? given : scopes.next_id++, std::move(path));
    const std::uint64_t id = scope->id;
    scopes.add(*scope.release());
    return id;
  } catch (const std::bad_alloc&) {
    return ++registry_guard().refused, NVTX_SCOPE_NONE;
  }
}

std::string_view scope_path(std::uint16_t domain, std::uint64_t id) {
  const PayloadScope* const scope = id >= NVTX_SCOPE_ID_STATIC_START ? scopes.find(domain, id) : nullptr;
  return scope != nullptr ? std::string_view(scope->path) : std::string_view();
}

const PayloadType* find_type(std::uint16_t domain, std::uint64_t id) {
  return id >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START ? types.find(domain, id) : nullptr;
}

}  // namespace cutrace::nvtx
