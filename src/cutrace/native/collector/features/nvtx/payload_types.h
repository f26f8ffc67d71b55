// Types of extended payloads: the predefined ones of NVTX, and the schemas and enums that a program registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#define NVTX_NO_IMPL
#include "nvtx_constants.h"

namespace cutrace::nvtx {

// Semantics of a field or a counter, besides its type.
struct Semantics {
  std::string unit;
  double scale = 1;
  std::uint64_t counter_flags = 0;           // NVTX_COUNTER_FLAG_*
  std::optional<std::uint64_t> time_domain;  // of a timestamp
  std::uint64_t scope = NVTX_SCOPE_NONE;
};
Semantics read_semantics(const nvtxSemanticsHeader_t* first);

// An unknown size or offset, or one that differs from payload to payload.
inline constexpr std::size_t kVaries = ~std::size_t{0};

inline std::size_t aligned(std::size_t at, std::size_t align) {
  return align > 1 ? (at + align - 1) / align * align : at;
}

struct PayloadType;

// An entry of a schema, with its place in a payload.
struct PayloadField {
  std::string name;
  std::uint64_t flags = 0;
  std::uint64_t type = 0;
  std::uint64_t detail = 0;  // arrayOrUnionDetail
  std::uint64_t offset = 0;  // as registered; 0: after the previous entry, or at the start for the first entry
  Semantics semantics;

  const PayloadType* nested = nullptr;  // the registered type; null for a predefined or unregistered type
  std::size_t unit = 0;                 // bytes of an element, or of a code unit of a string; 0: unknown type
  std::size_t align = 1;
  std::size_t slot = 0;                 // bytes of a pointer or an offset to the data; 0: the entry itself has the data
  std::size_t place = kVaries;          // bytes from the start of the schema
  std::size_t size = kVaries;           // bytes at that place

  std::uint64_t array() const { return NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_TYPE(flags); }
  bool is_string() const { return type >= NVTX_PAYLOAD_ENTRY_TYPE_CSTRING && type <= NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32; }
  // `detail` is the length of a string without array flags. If `detail` is 0, the string ends at a terminator.
  bool has_fixed_length() const {
    return array() == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE || (is_string() && array() == 0 && detail != 0);
  }
  bool is_terminated() const {
    return array() == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_ZERO_TERMINATED || (is_string() && array() == 0 && detail == 0);
  }
  bool is_offset() const {
    return (flags & (NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_BASE | NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_HERE)) != 0;
  }
  bool is_pointer() const { return slot != 0 && !is_offset(); }
};

struct EnumLabel {
  std::string name;
  std::uint64_t value;
  bool flag;
};

// A registered schema or enum.
struct PayloadType {
  std::uint16_t domain = 0;
  std::uint64_t id = 0;
  mutable const PayloadType* next = nullptr;  // see Registrations

  std::string name;
  std::uint64_t kind = NVTX_PAYLOAD_SCHEMA_TYPE_INVALID;  // of a schema
  std::uint64_t flags = 0;
  std::size_t pack = 0;
  std::size_t size = kVaries;
  std::size_t align = 1;
  int depth = 1;  // levels of nested schemas; deeper ones count as unknown
  bool has_pointers = false;
  bool complete = true;  // all types of its fields are registered
  std::vector<PayloadField> fields;
  std::vector<EnumLabel> labels;

  bool is_enum() const { return kind == NVTX_PAYLOAD_SCHEMA_TYPE_INVALID; }
  bool is_union() const {
    return kind == NVTX_PAYLOAD_SCHEMA_TYPE_UNION || kind == NVTX_PAYLOAD_SCHEMA_TYPE_UNION_WITH_INTERNAL_SELECTOR;
  }
};

// The ids of the new types, 0 for refused ones.
std::uint64_t register_schema(std::uint16_t domain, const nvtxPayloadSchemaAttr_t* attributes);
std::uint64_t register_enum(std::uint16_t domain, const nvtxPayloadEnumAttr_t* attributes);

// Returns the id of the new scope, or NVTX_SCOPE_NONE if it is refused.
std::uint64_t register_scope(std::uint16_t domain, const nvtxScopeAttr_t* attributes);
// The whole path of a registered scope, "" for other ids.
std::string_view scope_path(std::uint16_t domain, std::uint64_t id);

// The registered type with an id, null for unregistered and predefined types. Takes no lock.
const PayloadType* find_type(std::uint16_t domain, std::uint64_t id);

// Bytes of a predefined type, or of a code unit of a string; 0 when the type is unknown.
std::size_t size_of_predefined(std::uint64_t type);

}  // namespace cutrace::nvtx
