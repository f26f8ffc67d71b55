// The fields of a protobuf message, read one after the other from its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace cutrace::protobuf {

// The bytes are not a message.
struct Damaged : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Reads a number of up to ten bytes and moves p after it. False if the number is longer or truncated.
inline bool read_varint(const char*& p, const char* end, std::uint64_t& value) {
  value = 0;
  for (unsigned shift = 0; p < end && shift < 70; shift += 7) {
    const auto byte = static_cast<std::uint8_t>(*p++);
    if (shift < 64) value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// The current field. For a string or message, `value` is 0. For a number, `bytes` is empty.
class Fields {
 public:
  explicit Fields(std::string_view message) : at_(message.data()), end_(at_ + message.size()) {}

  std::uint64_t number = 0, value = 0;
  std::string_view bytes;
  bool is_number = false;

  // Moves to the next field; false at the end. Throws Damaged.
  bool next() {
    if (at_ == end_) return false;
    std::uint64_t tag = 0;
    if (!read_varint(at_, end_, tag)) damaged();
    number = tag >> 3;
    bytes = {};
    const unsigned type = tag & 7;
    is_number = type != 2;
    if (type == 0) {
      if (!read_varint(at_, end_, value)) damaged();
      return true;
    }
    std::uint64_t size = type == 1 ? 8 : 4;
    if (type == 2 && !read_varint(at_, end_, size)) damaged();
    if (type > 2 && type != 5) damaged();
    if (number == 0 || number >= kNumbers || size > static_cast<std::size_t>(end_ - at_)) damaged();
    value = 0;
    if (type == 2) bytes = {at_, static_cast<std::size_t>(size)};
    else for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(at_[i]);
    at_ += size;
    return true;
  }

  // Appends the numbers of a repeated field, which is one number or a packed list of them. Throws Damaged.
  void append_varints(std::vector<std::uint64_t>& out) const {
    if (is_number) return out.push_back(value);
    const char* at = bytes.data();
    const char* const end = at + bytes.size();
    std::uint64_t number_read = 0;
    while (at < end) {
      if (!read_varint(at, end, number_read)) damaged();
      out.push_back(number_read);
    }
  }

 private:
  static constexpr std::uint64_t kNumbers = std::uint64_t{1} << 29;

  [[noreturn]] static void damaged() { throw Damaged("damaged"); }

  const char* at_;
  const char* end_;
};

// A message with a search for fields by number. The last field with a number counts. Throws Damaged unless the bytes are a
// message. Nested messages are not checked.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {
    for (Fields field(bytes_); field.next();) {
    }
  }

  bool has(std::uint64_t number) const { return find(number).has_value(); }
  // The value of a number; 0 without one.
  std::uint64_t number(std::uint64_t number) const {
    const auto field = find(number);
    return field ? field->value : 0;
  }
  // The bytes of a string or message; empty without one.
  std::string_view bytes(std::uint64_t number) const {
    const auto field = find(number);
    return field ? field->bytes : std::string_view();
  }
  // The values of all fields with a number.
  std::vector<std::uint64_t> numbers(std::uint64_t number) const {
    std::vector<std::uint64_t> out;
    for (Fields field(bytes_); field.next();)
      if (field.number == number) out.push_back(field.value);
    return out;
  }
  std::optional<Fields> find(std::uint64_t number) const {
    std::optional<Fields> found;
    for (Fields field(bytes_); field.next();)
      if (field.number == number) found = field;
    return found;
  }
  Fields fields() const { return Fields(bytes_); }

 private:
  std::string_view bytes_;
};

}  // namespace cutrace::protobuf
