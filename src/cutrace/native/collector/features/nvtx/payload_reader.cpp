#include "payload_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/text.h"
#include "nvtx.h"

namespace cutrace::nvtx {
namespace {

// Interning would truncate longer arguments.
constexpr std::size_t kLongestArguments = StringTable::kLongest * 3 / 4;
constexpr std::size_t kLongestArray = StringTable::kLongest / 2;

constexpr std::uint64_t kKinds = 15 << 3;  // the bits of NVTX_PAYLOAD_SCHEMA_FLAG_MARK and of the other kinds of events

template <typename Value>
Value load(const std::uint8_t* data) {
  Value value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

template <typename Number>
std::string digits(Number number) {
  char text[64];
  const auto [end, status] = std::to_chars(text, text + sizeof text, number);
  return std::string(text, end);
}

// JSON has no numbers for infinities and NaN.
template <typename Real>
std::string real(Real value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  std::string text = digits(value);
  const bool whole = text.find_first_of(".e") == std::string::npos;
  return whole ? text + ".0" : text;
}

std::string hex(std::uint64_t number) {
  char text[20] = "0x";
  const auto [end, status] = std::to_chars(text + 2, text + sizeof text, number, 16);
  return '"' + std::string(text, end) + '"';
}

__extension__ using Wide = unsigned __int128;

std::string wide_digits(Wide number) {
  std::string text;
  do {
    text.insert(text.begin(), static_cast<char>('0' + static_cast<int>(number % 10)));
    number /= 10;
  } while (number != 0);
  return text;
}

std::string signed_wide_digits(Wide bits) {
  const bool negative = (bits >> 127) != 0;
  return negative ? '-' + wide_digits(~bits + 1) : wide_digits(bits);
}

float half(std::uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

float upper_half(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  return load<float>(reinterpret_cast<const std::uint8_t*>(&wide));
}

double quadruple(const std::uint8_t* data) {
#ifdef __SIZEOF_FLOAT128__
  __extension__ using Quadruple = __float128;
#else
  using Quadruple = long double;
#endif
  return static_cast<double>(load<Quadruple>(data));
}

// A value of a floating-point type; nullopt for other types.
std::optional<double> floating(std::uint64_t type, const std::uint8_t* data) {
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_TF32: return load<float>(data);
    case NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT64: return load<double>(data);
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGDOUBLE: return static_cast<double>(load<long double>(data));
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT128: return quadruple(data);
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT16: return half(load<std::uint16_t>(data));
    case NVTX_PAYLOAD_ENTRY_TYPE_BF16: return upper_half(load<std::uint16_t>(data));
    default: return std::nullopt;
  }
}

bool is_character(std::uint64_t type) {
  return type == NVTX_PAYLOAD_ENTRY_TYPE_CHAR || (type >= NVTX_PAYLOAD_ENTRY_TYPE_WCHAR && type <= NVTX_PAYLOAD_ENTRY_TYPE_CHAR32);
}

std::int64_t sign_extended(std::uint64_t value, std::size_t bytes) {
  const unsigned shift = static_cast<unsigned>(64 - bytes * 8);
  return static_cast<std::int64_t>(value << shift) >> shift;
}

// Writes the label of a value, or the labels of its flags, or else its number.
std::string enum_value(const PayloadType& type, const std::uint8_t* data) {
  std::uint64_t value = 0;
  std::memcpy(&value, data, type.size);
  const std::uint64_t mask = type.size == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << type.size * 8) - 1;
  for (const EnumLabel& label : type.labels)
    if ((label.value & mask) == value && !label.name.empty()) return json_quoted(label.name);
  std::string flags;
  std::uint64_t left = value;
  for (const EnumLabel& label : type.labels) {
    const std::uint64_t bits = label.value & mask;
    if (!label.flag || bits == 0 || (left & bits) != bits) continue;
    flags += (flags.empty() ? "" : " | ") + label.name;
    left &= ~bits;
  }
  if (!flags.empty() && left == 0) return json_quoted(flags);
  return digits(sign_extended(value, type.size));
}

std::string handle_string(const PayloadBytes& bytes, std::size_t at) {
  std::uint64_t handle = 0;
  bytes.read(at, handle);
  return handle <= 0xFFFFFFFFu ? std::string(registered_string(static_cast<std::uint32_t>(handle))) : std::string();
}

}  // namespace

std::string json_value(std::uint64_t type, const std::uint8_t* data) {
  const std::size_t size = size_of_predefined(type);
  const PayloadBytes bytes{.data = data, .size = size};
  if (const auto value = floating(type, data)) return size <= sizeof(float) ? real(static_cast<float>(*value)) : real(*value);
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_INT128: return signed_wide_digits(load<Wide>(data));
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT128: return wide_digits(load<Wide>(data));
    case NVTX_PAYLOAD_ENTRY_TYPE_ADDRESS: return hex(load<std::uint64_t>(data));
    case NVTX_PAYLOAD_ENTRY_TYPE_BYTE: return hex(*data);
    case NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE: {
      const bool none = load<std::uint64_t>(data) == 0;
      return none ? "null" : json_quoted(handle_string(bytes, 0));
    }
    default: break;
  }
  std::uint64_t bits = 0;
  if (size == 0 || !bytes.read_count(0, size, false, bits)) return {};
  if (is_character(type)) return json_quoted(read_string(bytes, 0, 1, size));
  return is_signed(type) ? digits(sign_extended(bits, size)) : digits(bits);
}

std::optional<double> number(std::uint64_t type, const std::uint8_t* data) {
  if (const auto value = floating(type, data)) return value;
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT128: return static_cast<double>(load<Wide>(data));
    case NVTX_PAYLOAD_ENTRY_TYPE_INT128: {
      const Wide bits = load<Wide>(data);
      const bool negative = (bits >> 127) != 0;
      return negative ? -static_cast<double>(~bits + 1) : static_cast<double>(bits);
    }
    case NVTX_PAYLOAD_ENTRY_TYPE_ADDRESS:
    case NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE: return std::nullopt;
    default: break;
  }
  const std::size_t size = size_of_predefined(type);
  const PayloadBytes bytes{.data = data, .size = size};
  std::uint64_t bits = 0;
  const bool is_string = type >= NVTX_PAYLOAD_ENTRY_TYPE_CSTRING && type <= NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32;
  if (size == 0 || is_string || !bytes.read_count(0, size, false, bits)) return std::nullopt;
  return is_signed(type) ? static_cast<double>(sign_extended(bits, size)) : static_cast<double>(bits);
}

bool Arguments::has(std::string_view name) const {
  return std::ranges::find(members_, name, &std::pair<std::string, std::string>::first) != members_.end();
}

void Arguments::put(std::string name, std::string value) {
  constexpr std::size_t kPunctuation = 4;
  bytes_ += name.size() + value.size() + kPunctuation;
  members_.emplace_back(std::move(name), std::move(value));
}

bool Arguments::add(std::string name, std::string value) {
  if (bytes_ + name.size() + value.size() > kLongestArguments) return false;
  const std::string given = name;
  for (int number = 2; has(name); ++number) name = given + ' ' + std::to_string(number);
  put(std::move(name), std::move(value));
  return true;
}

void Arguments::append(const Arguments& more, std::string_view suffix) {
  for (const auto& [name, value] : more.members_) put(has(name) ? name + std::string(suffix) : name, value);
}

std::string Arguments::json() const {
  std::string json;
  for (const auto& [name, value] : members_) json += (json.empty() ? '{' : ',') + json_quoted(name) + ':' + value;
  return json.empty() ? json : json + '}';
}

void PayloadReader::add(Arguments& arguments, std::string name, std::string value) {
  if (!arguments.add(std::move(name), std::move(value))) lose(1, "fields of NVTX payloads that exceed the longest string");
}

EventValues PayloadReader::read(std::uint16_t domain, const std::uint8_t* payloads, bool deferred) {
  EventValues values;
  values.deferred = deferred;
  PayloadHead head;
  std::memcpy(&head, payloads, sizeof head);
  lose(head.omitted, "NVTX payloads: more than " + std::to_string(kMostParts) + " of one event, or of unknown size");
  std::vector<PartHead> parts(head.parts);
  std::vector<PayloadBytes> bytes(head.parts);
  std::vector<std::uint64_t> lengths(head.parts);
  payloads += sizeof head;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::memcpy(&parts[i], payloads, sizeof parts[i]);
    payloads += sizeof parts[i];
    // The pointers were replaced only if the schema was known at the time of the event.
    bytes[i] = {.data = payloads, .size = parts[i].size, .relocated = parts[i].type != nullptr};
    if (parts[i].type == nullptr) parts[i].type = find_type(domain, parts[i].id);
    lengths[i] = length_in(parts[i].id, parts[i].type, {.data = payloads, .size = parts[i].own});
    payloads += (parts[i].size + 7) & ~std::uint32_t{7};
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    bytes[i].lengths = lengths;
    if (parts[i].size != 0) read_part(parts[i], bytes[i], values);
  }
  return values;
}

EventValues PayloadReader::read_deferred(const PayloadType& type, const PayloadBytes& bytes, std::size_t& at) {
  EventValues values;
  values.deferred = true;
  values.kind = type.flags & kKinds;
  read_fields(type, bytes, at, 0, &values, &values.arguments);
  if (type.size != kVaries) {
    at += type.size;
    return values;
  }
  FieldWalk walk(type, bytes, at);
  for (FieldPlace place; walk.next(place);) {
  }
  at = walk.end();
  return values;
}

void PayloadReader::read_part(const PartHead& head, const PayloadBytes& bytes, EventValues& values) {
  lose(head.cut, "bytes of NVTX payloads beyond " + std::to_string(kLargestPayload) + " of one event");
  lose(head.unread, "pointers in NVTX payloads to memory that could not be read, or only in part");
  if (head.id < NVTX_PAYLOAD_SCHEMA_ID_STATIC_START) return read_predefined(head.id, bytes, values.arguments);
  if (head.type == nullptr) return lose(1, "NVTX payloads of a schema that was never registered");
  const PayloadType& type = *head.type;
  if (type.is_enum()) {
    if (bytes.size < type.size) return lose(1, "NVTX payloads shorter than their type");
    return add(values.arguments, type.name.empty() ? "payload" : type.name, enum_value(type, bytes.data));
  }
  if (type.kind == NVTX_PAYLOAD_SCHEMA_TYPE_UNION) return lose(1, "unions in NVTX payloads whose member is unknown");
  if (type.flags & kKinds) values.kind = type.flags & kKinds;
  const bool referenced = (type.flags & NVTX_PAYLOAD_SCHEMA_FLAG_REFERENCED) != 0;
  read_fields(type, bytes, 0, 0, &values, referenced ? nullptr : &values.arguments);
}

// A payload of a predefined type is read as a schema with one field.
void PayloadReader::read_predefined(std::uint64_t type, const PayloadBytes& bytes, Arguments& arguments) {
  if (type == NVTX_TYPE_PAYLOAD_SCHEMA_REFERENCED) return;
  const bool raw = type == NVTX_TYPE_PAYLOAD_SCHEMA_RAW;
  PayloadType schema;
  schema.kind = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
  PayloadField& field = schema.fields.emplace_back();
  field.type = raw ? NVTX_PAYLOAD_ENTRY_TYPE_BYTE : type;
  field.unit = size_of_predefined(field.type);
  if (field.unit == 0) return lose(1, "NVTX payloads of the unknown type " + std::to_string(type));
  field.detail = bytes.size / field.unit;
  if (field.detail == 0) return lose(1, "NVTX payloads shorter than their type");
  if (field.detail > 1 || raw) field.flags = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE;
  field.place = 0;
  read_fields(schema, bytes, 0, 0, nullptr, &arguments);
}

// Reads the fields of a schema into arguments, and the properties of the event into `values`. Either may be null.
void PayloadReader::read_fields(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, std::uint64_t selected,
                                EventValues* values, Arguments* arguments) {
  FieldWalk walk(type, bytes, at, selected);
  std::size_t found = 0;
  std::string key;
  for (FieldPlace place; walk.next(place);) {
    const PayloadField& field = *place.field;
    const auto index = static_cast<std::size_t>(&field - type.fields.data());
    ++found;
    if (!walk.follow(place)) {
      lose(1, "fields of NVTX payloads behind a pointer or an offset that leads nowhere");
      continue;
    }
    if (values != nullptr && read_attribute(field, place, bytes, *values)) continue;
    if (arguments == nullptr || (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_HIDE)) continue;
    std::string value;
    write_value(walk, place, bytes, value);
    if (value.empty()) continue;
    // Some libraries pass any number of arguments as pairs of this form.
    const bool pairs = type.fields.size() == 2 && type.fields[0].name == "key" && type.fields[1].name == "value";
    if (pairs && index == 0 && field.is_string() && !place.null) {
      key = read_string(bytes, place.at, place.count, field.unit);
      continue;
    }
    std::string name = field.name;
    if (pairs && !key.empty()) name = std::exchange(key, {});
    if (name.empty() && type.fields.size() == 1) name = type.name.empty() ? "payload" : type.name;
    if (name.empty()) name = "field " + std::to_string(index);
    add(*arguments, std::move(name), std::move(value));
  }
  lose(walk.unknown(), "fields of NVTX payloads of an unknown type, or behind one");
  if (type.is_union() && found == 0) lose(1, "unions in NVTX payloads whose member is unknown");
}

// Whether a field gives the time or the place of a deferred event.
bool PayloadReader::read_origin(const PayloadField& field, const FieldPlace& place, const PayloadBytes& bytes, EventValues& values) {
  constexpr std::uint64_t kRoles = NVTX_PAYLOAD_ENTRY_FLAG_MARK | NVTX_PAYLOAD_ENTRY_FLAG_COUNTER;  // their bits
  constexpr std::uint64_t kEventFlags = NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE | NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP;
  const std::uint64_t role = field.flags & kRoles;
  const bool is_time = role != 0 || (field.flags & kEventFlags) == NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP;
  if (field.semantics.scope != NVTX_SCOPE_NONE) values.general_scope = field.semantics.scope;
  std::uint64_t number = 0;
  const bool single = field.array() == 0 && (field.unit == 4 || field.unit == 8);
  if (!single || !bytes.read_count(place.at, field.unit, false, number)) return false;
  switch (field.type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_SCOPE_ID:
      if (role == 0 || role != NVTX_PAYLOAD_ENTRY_FLAG_RANGE_END) values.scope = number;
      return true;
    case NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT64: return values.thread = static_cast<std::uint32_t>(number), true;
    case NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID: return values.range_id = number, true;
    default: break;
  }
  if (!is_time || field.nested != nullptr || field.unit != 8) return false;
  const Timestamp time{static_cast<std::int64_t>(number), field.semantics.time_domain};
  if (role == NVTX_PAYLOAD_ENTRY_FLAG_RANGE_BEGIN) values.start = time;
  else if (role == NVTX_PAYLOAD_ENTRY_FLAG_RANGE_END) values.end = time;
  else values.mark = time;
  return true;
}

// Whether a field gives a property of the event itself.
bool PayloadReader::read_attribute(const PayloadField& field, const FieldPlace& place, const PayloadBytes& bytes, EventValues& values) {
  constexpr std::uint64_t kEventFlags = NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE | NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP;
  if (values.deferred && read_origin(field, place, bytes, values)) return true;
  if ((field.flags & kEventFlags) == NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE) {
    if (place.null) return true;
    if (field.is_string()) values.message = read_string(bytes, place.at, std::min(place.count, Ring::kLongestText), field.unit);
    else if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE) values.message = handle_string(bytes, place.at);
    else return false;
    return true;
  }
  std::uint32_t number = 0;
  if (field.array() != 0 || !bytes.read(place.at, number)) return false;
  if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_CATEGORY) values.category = number;
  else if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_COLOR_ARGB) values.color = number;
  else return false;
  return true;
}

// Writes the value of a field as JSON, or nothing for an unreadable value.
void PayloadReader::write_value(const FieldWalk& walk, const FieldPlace& place, const PayloadBytes& bytes, std::string& out) {
  const PayloadField& field = *place.field;
  if (place.null) {
    out += "null";
    return;
  }
  if (place.partial) lose(1, "fields beyond the end of NVTX payloads");
  if (place.partial && place.count == 0) return;
  if (field.is_string() || (field.array() != 0 && is_character(field.type))) {
    out += json_quoted(read_string(bytes, place.at, place.count, field.unit));
    return;
  }
  if (field.array() == 0) return write_element(walk, field, bytes, place.at, out);
  if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_BYTE) {
    out += '"';
    for (std::size_t i = 0; i < place.count; ++i) {
      const std::uint8_t byte = bytes.data[place.at + i];
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    }
    out += '"';
    return;
  }
  if (field.unit == kVaries) return lose(1, "arrays in NVTX payloads whose elements differ in size");
  out += '[';
  for (std::size_t i = 0; i < place.count; ++i) {
    if (out.size() > kLongestArray) {
      lose(place.count - i, "elements of arrays in NVTX payloads that exceed the longest string");
      break;
    }
    if (i != 0) out += ',';
    const std::size_t before = out.size();
    write_element(walk, field, bytes, place.at + i * field.unit, out);
    if (out.size() == before) out += "null";
  }
  out += ']';
}

void PayloadReader::write_element(const FieldWalk& walk, const PayloadField& field, const PayloadBytes& bytes, std::size_t at,
                                  std::string& out) {
  if (field.nested == nullptr) {
    out += json_value(field.type, bytes.data + at);
  } else if (field.nested->is_enum()) {
    out += enum_value(*field.nested, bytes.data + at);
  } else {
    std::uint64_t selected = 0;
    const bool known = field.nested->kind != NVTX_PAYLOAD_SCHEMA_TYPE_UNION || walk.value(field.detail, selected);
    if (known) write_struct(*field.nested, bytes, at, selected, out);
    else lose(1, "unions in NVTX payloads whose member is unknown");
  }
}

// A schema with one field is written as the value of the field. Such schemas name a type, or make arrays of strings possible.
void PayloadReader::write_struct(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, std::uint64_t selected,
                                 std::string& out) {
  if (type.fields.size() == 1 && !type.is_union()) {
    FieldWalk walk(type, bytes, at);
    FieldPlace place;
    const bool found = walk.next(place) && walk.follow(place);
    if (found) write_value(walk, place, bytes, out);
    else lose(1, "fields of NVTX payloads of an unknown type, or behind one");
    return;
  }
  Arguments members;
  read_fields(type, bytes, at, selected, nullptr, &members);
  out += members.empty() ? "{}" : members.json();
}

}  // namespace cutrace::nvtx
