#include "payload_walk.h"

#include <algorithm>

#include "common/text.h"

namespace cutrace::nvtx {
namespace {

constexpr std::size_t kMostDimensions = 16;
constexpr std::uint64_t kMostElements = 1 << 24;  // more than any payload has

}  // namespace

bool is_signed(std::uint64_t type) {
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_SHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT:
    case NVTX_PAYLOAD_ENTRY_TYPE_LONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGLONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT8:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT128: return true;
    default: return false;
  }
}

bool PayloadBytes::read_count(std::size_t at, std::size_t bytes, bool with_sign, std::uint64_t& value) const {
  if (at > size || size - at < bytes || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) return false;
  value = 0;
  std::memcpy(&value, data + at, bytes);
  const bool negative = with_sign && (value >> (bytes * 8 - 1) & 1) != 0;
  if (negative) value = 0;
  return true;
}

std::size_t PayloadBytes::terminated(std::size_t at, std::size_t unit) const {
  std::size_t count = 0;
  for (; at <= size && size - at >= unit; at += unit, ++count)
    if (std::all_of(data + at, data + at + unit, [](std::uint8_t byte) { return byte == 0; })) break;
  return count;
}

std::uint64_t length_in(std::uint64_t id, const PayloadType* type, const PayloadBytes& bytes) {
  std::size_t at = 0;
  std::size_t unit = 0;
  std::size_t dimensions = 1;
  if (type == nullptr) {
    unit = size_of_predefined(id);
    dimensions = unit != 0 ? std::min(bytes.size / unit, kMostDimensions) : 0;
  } else {
    FieldWalk walk(*type, bytes, 0);
    FieldPlace place;
    if (!walk.next(place) || place.field->slot != 0) return 0;
    id = place.field->type;
    at = place.at;
    unit = place.field->unit;
    dimensions = std::min(place.count, kMostDimensions);
  }
  return dimensions != 0 ? bytes.product(at, unit, dimensions, is_signed(id)) : 0;
}

std::uint64_t PayloadBytes::product(std::size_t at, std::size_t bytes, std::size_t numbers, bool with_sign) const {
  std::uint64_t product = 1;
  for (std::size_t i = 0; i < numbers; ++i) {
    std::uint64_t one = 0;
    if (!read_count(at + i * bytes, bytes, with_sign, one)) return 0;
    product = std::min(std::min(one, kMostElements) * product, kMostElements);
  }
  return product;
}

// The offset of a field in the bytes, kVaries when it cannot be known.
std::size_t FieldWalk::place_of(std::size_t index) const {
  const PayloadField& field = type_.fields[index];
  if (field.place != kVaries) return start_ + field.place;
  return index < std::min(index_, places_.size()) ? places_[index] : kVaries;
}

std::string read_string(const PayloadBytes& bytes, std::size_t at, std::size_t count, std::size_t unit) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t code = 0;
    if (!bytes.read_count(at + i * unit, unit, false, code) || code == 0) break;
    if (unit == 1) {
      text += static_cast<char>(code);
      continue;
    }
    std::uint64_t low = 0;
    const bool pair = unit == 2 && code >= 0xD800 && code < 0xDC00 && i + 1 < count &&
                      bytes.read_count(at + (i + 1) * unit, unit, false, low) && low >= 0xDC00 && low < 0xE000;
    if (pair) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      ++i;
    }
    char utf8[4];
    text.append(utf8, put_utf8(static_cast<std::uint32_t>(code), utf8));
  }
  return text;
}

bool FieldWalk::value(std::size_t index, std::uint64_t& value) const {
  if (index >= type_.fields.size()) return false;
  const PayloadField& field = type_.fields[index];
  const std::size_t at = place_of(index);
  const bool plain = field.slot == 0 && field.unit != 0 && field.unit != kVaries;
  return at != kVaries && plain && bytes_.read_count(at, field.unit, is_signed(field.type), value);
}

// Counts the elements of a field with its data at `at`.
std::size_t FieldWalk::count(const PayloadField& field, std::size_t at) const {
  if (field.has_fixed_length()) return field.detail;
  if (field.is_terminated()) return bytes_.terminated(at, field.unit);
  if (field.array() == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_PAYLOAD_INDEX)
    return field.detail < bytes_.lengths.size() ? bytes_.lengths[field.detail] : 0;
  if (field.array() != NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_INDEX) return 1;
  // The field with the length must come before the array, so that a chain of lengths ends.
  if (field.detail >= static_cast<std::size_t>(&field - type_.fields.data())) return 0;
  const PayloadField& length = type_.fields[field.detail];
  const std::size_t lengths_at = place_of(field.detail);
  if (lengths_at == kVaries || length.unit == 0 || length.unit == kVaries) return 0;
  // The lengths of several dimensions are an array.
  const std::size_t dimensions = length.array() == 0 ? 1 : std::min(count(length, lengths_at), kMostDimensions);
  return bytes_.product(lengths_at, length.unit, dimensions, is_signed(length.type));
}

// Limits a field to the elements inside the bytes.
void FieldWalk::limit(FieldPlace& place) const {
  const std::size_t unit = place.field->unit;
  if (unit == 0 || unit == kVaries) return;
  const std::size_t most = place.at <= bytes_.size ? (bytes_.size - place.at) / unit : 0;
  place.partial = place.count > most;
  place.count = std::min(place.count, most);
}

// Whether the field at index_ is the chosen member of a union, or the type is no union.
bool FieldWalk::is_selected() const {
  if (type_.kind == NVTX_PAYLOAD_SCHEMA_TYPE_UNION) return index_ == selected_;
  if (type_.kind != NVTX_PAYLOAD_SCHEMA_TYPE_UNION_WITH_INTERNAL_SELECTOR) return true;
  const auto is_selector = [](const PayloadField& field) { return field.type == NVTX_PAYLOAD_ENTRY_TYPE_UNION_SELECTOR; };
  const auto selector = std::ranges::find_if(type_.fields, is_selector);
  std::uint64_t chosen = 0;
  if (selector == type_.fields.end() || !value(static_cast<std::size_t>(selector - type_.fields.begin()), chosen)) return false;
  return index_ == chosen && !is_selector(type_.fields[index_]);
}

// The end of a nested schema with a size that differs from payload to payload.
std::size_t FieldWalk::end_of_nested(const FieldPlace& place) const {
  FieldWalk walk(*place.field->nested, bytes_, place.at);
  for (FieldPlace inner; walk.next(inner);) {
  }
  return walk.end();
}

bool FieldWalk::next(FieldPlace& place) {
  for (; index_ < type_.fields.size(); ++index_) {
    const PayloadField& field = type_.fields[index_];
    if (!is_selected()) continue;
    place = FieldPlace{.field = &field};
    place.at = field.place != kVaries ? start_ + field.place : end_ != kVaries ? aligned(end_, field.align) : kVaries;
    if (index_ < places_.size()) places_[index_] = place.at;
    if (place.at == kVaries || field.unit == 0) {
      ++unknown_;
      // Continue, because later fields with a fixed place can still be found.
      end_ = place.at != kVaries && field.size != kVaries ? place.at + field.size : kVaries;
      continue;
    }
    ++index_;
    if (field.slot != 0) {
      place.slot = place.at;
      end_ = place.at + field.slot;
      return true;
    }
    place.count = count(field, place.at);
    limit(place);
    if (field.unit == kVaries) {
      end_ = end_of_nested(place);
    } else {
      const bool terminator = field.is_terminated() && !place.partial;
      end_ = place.at + (place.count + (terminator ? 1 : 0)) * field.unit;
    }
    return true;
  }
  return false;
}

bool FieldWalk::follow(FieldPlace& place) const {
  const PayloadField& field = *place.field;
  if (field.slot == 0) return true;
  std::uint64_t target = 0;
  if (place.slot > bytes_.size || bytes_.size - place.slot < field.slot) return false;
  std::memcpy(&target, bytes_.data + place.slot, field.slot);
  if (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_HERE) {
    target += place.slot + field.slot;
  } else if (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_BASE) {
    target += bytes_.base;
  } else {
    place.null = target == 0;
    if (place.null) return true;
    if (!bytes_.relocated) {
      const auto holds = [&](const CopiedMemory& m) { return target >= m.address && target - m.address < m.size; };
      const auto memory = std::ranges::find_if(bytes_.memory, holds);
      if (memory == bytes_.memory.end()) return false;
      target = memory->at + (target - memory->address);
    }
  }
  if (target >= bytes_.size) return false;
  place.at = static_cast<std::size_t>(target);
  place.count = count(field, place.at);
  limit(place);
  return true;
}

}  // namespace cutrace::nvtx
