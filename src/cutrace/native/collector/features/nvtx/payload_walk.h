// Finds the fields of a schema in the bytes of a payload. All lengths and offsets in the bytes are checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "payload_types.h"

namespace cutrace::nvtx {

// Memory of the program with a copy in the bytes of a payload.
struct CopiedMemory {
  std::uint64_t address = 0;
  std::size_t size = 0;
  std::size_t at = 0;  // in the bytes
};

struct PayloadBytes {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  // The origin of offsets with NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_BASE.
  std::size_t base = 0;
  // Whether the collector replaced pointers by offsets in `data`, with 0 for a null pointer. Otherwise pointers point into
  // `memory`.
  bool relocated = true;
  std::span<const CopiedMemory> memory{};
  // The lengths that the payloads of the event hold, for NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_PAYLOAD_INDEX.
  std::span<const std::uint64_t> lengths{};

  template <typename Value>
  bool read(std::size_t at, Value& value) const {
    if (at > size || size - at < sizeof value) return false;
    std::memcpy(&value, data + at, sizeof value);
    return true;
  }
  // An integer of 1, 2, 4 or 8 bytes; a negative one is 0.
  bool read_count(std::size_t at, std::size_t bytes, bool is_signed, std::uint64_t& value) const;
  // The product of several of these integers, bounded.
  std::uint64_t product(std::size_t at, std::size_t bytes, std::size_t numbers, bool is_signed) const;
  // The number of units before the first zero unit, or before the end.
  std::size_t terminated(std::size_t at, std::size_t unit) const;
};

// Whether values of a predefined type have a sign.
bool is_signed(std::uint64_t type);

// The length that a payload of integers gives for another payload: the product of the integers. 0 for payloads of other types.
std::uint64_t length_in(std::uint64_t id, const PayloadType* type, const PayloadBytes& bytes);

// A string of `count` code units of `unit` bytes as UTF-8, up to the first zero unit.
std::string read_string(const PayloadBytes& bytes, std::size_t at, std::size_t count, std::size_t unit);

struct FieldPlace {
  const PayloadField* field = nullptr;
  std::size_t at = 0;     // of the first element
  std::size_t count = 0;  // elements, or code units of a string
  std::size_t slot = 0;   // where the pointer or offset is, if the field has one
  bool null = false;      // a null pointer
  bool partial = false;   // the bytes end before the field does
};

class FieldWalk {
 public:
  // `selected` is the member of a union with an external selector.
  FieldWalk(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, std::uint64_t selected = 0)
      : type_(type), bytes_(bytes), start_(at), end_(at), selected_(selected) {}

  // The next field with a known place. Does not follow pointers: until follow(), `at` is the place of the pointer.
  bool next(FieldPlace& place);
  // Finds the data of a field behind its pointer or offset, and counts the elements. False when the data are outside the bytes.
  bool follow(FieldPlace& place) const;
  // The number of elements of a field behind a pointer, if no zero ends them.
  std::size_t elements(const FieldPlace& place) const { return count(*place.field, 0); }
  // The value of another field as a number: the selector of a union.
  bool value(std::size_t field, std::uint64_t& value) const;

  // The end of the fields so far.
  std::size_t end() const { return end_; }
  // The number of fields with an unknown place, because their type or an earlier field is unknown.
  std::size_t unknown() const { return unknown_; }

 private:
  std::size_t place_of(std::size_t index) const;
  bool is_selected() const;
  std::size_t end_of_nested(const FieldPlace& place) const;
  std::size_t count(const PayloadField& field, std::size_t at) const;
  void limit(FieldPlace& place) const;

  const PayloadType& type_;
  const PayloadBytes& bytes_;
  const std::size_t start_;
  std::size_t end_;
  const std::uint64_t selected_;
  std::size_t index_ = 0;
  std::size_t unknown_ = 0;
  std::array<std::size_t, 64> places_;  // the places of the visited first fields
};

}  // namespace cutrace::nvtx
