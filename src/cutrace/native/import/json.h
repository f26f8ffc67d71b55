// Reading JSON text in place: strings, numbers and whole values, without recursion and without exceptions.
//
// A text lies in memory with kPadding zero bytes behind its end, so a reader stops there without asking at each byte. What
// is read may be damaged: whatever it is, a value that is kept comes out as valid JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cutrace::json {

inline constexpr std::size_t kPadding = 16;

// Values nested deeper are refused.
inline constexpr std::size_t kDeepest = 256;

enum class Read : std::uint8_t {
  kOk,
  kMore,  // the text ends inside
  kBad,   // not JSON
  kDeep,  // nested deeper than kDeepest
};

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

inline const char* skip_space(const char* p) {
  while (is_space(*p)) ++p;
  return p;
}

// A word: a number, true, null, or whatever stands unquoted. Empty where none does.
std::string_view word(const char* p);

// Whether a word is a number as JSON writes them.
bool is_number(std::string_view word);

// The string behind the opening quote at p, as text: escapes resolved, what is no UTF-8 replaced. A view of the text
// itself where it can be, else of `scratch`. p moves behind the closing quote; it stays where the result is not kOk.
Read read_string(const char*& p, const char* end, std::string& scratch, std::string_view& text);

// The value at p, appended to `out` as valid JSON without spaces; NaN and other words that JSON does not have become
// strings. p moves behind it; where the result is not kOk it stays, and `out` has a part of it.
Read copy_value(const char*& p, const char* end, std::string& out);

// Passes over the value at p.
Read skip_value(const char*& p, const char* end);

// A text as a JSON string, quotes included.
void append_quoted(std::string_view text, std::string& out);

// A decimal number of microseconds as nanoseconds, exactly; digits beyond are rounded, halves away from zero. False for
// what is no number, and where 64 bits do not hold it.
bool nanoseconds(std::string_view word, std::int64_t& value);

// A whole number; one written with a fraction of zeros, or an exponent, counts as whole.
bool integer(std::string_view word, std::int64_t& value);

}  // namespace cutrace::json
