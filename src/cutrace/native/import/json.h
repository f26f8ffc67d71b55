// Reads JSON in place: strings, numbers and whole values, without recursion and without exceptions.
//
// The input needs kPadding zero bytes after its end, so that readers stop there without a check for each byte. The input may be
// damaged; the output is always valid JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cutrace::json {

inline constexpr std::size_t kPadding = 16;

// The limit on nested values. Deeper ones are refused.
inline constexpr std::size_t kDeepest = 256;

enum class Read : std::uint8_t {
  kOk,
  kMore,  // the input ends inside the value
  kBad,   // not JSON
  kDeep,  // nested deeper than kDeepest
};

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

inline const char* skip_space(const char* p) {
  while (is_space(*p)) ++p;
  return p;
}

// The word at p: a number, true, null, or any other unquoted characters. May be empty.
std::string_view word(const char* p);

// Whether a word is a JSON number.
bool is_number(std::string_view word);

// Reads the string at p, after its opening quote. Resolves escapes and replaces invalid UTF-8. The result is a view of the input
// if possible, else of `scratch`. If the result is kOk, p moves past the closing quote.
Read read_string(const char*& p, const char* end, std::string& scratch, std::string_view& text);

// Appends the value at p to `out` as valid JSON without spaces; NaN and other invalid words become strings. If the result is kOk,
// p moves past the value. Otherwise p stays and `out` has a part of the value.
Read copy_value(const char*& p, const char* end, std::string& out);

// Skips the value at p.
Read skip_value(const char*& p, const char* end);

// Converts decimal microseconds to nanoseconds exactly; further digits are rounded, halves away from zero. False for an
// invalid number or one beyond 64 bits.
bool nanoseconds(std::string_view word, std::int64_t& value);

// Reads an integer; a zero fraction or an exponent is allowed if the value is an integer.
bool integer(std::string_view word, std::int64_t& value);

}  // namespace cutrace::json
