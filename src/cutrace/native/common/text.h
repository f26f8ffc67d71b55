// Words, numbers, UTF-8 and JSON strings.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#ifndef __cpp_lib_to_chars
#include <iomanip>
#include <locale>
#include <sstream>
#endif

namespace cutrace {

// Removes and returns the string before the first of `separators`. Also removes the separator.
inline std::string_view next_word(std::string_view& text, std::string_view separators) {
  const std::size_t end = std::min(text.find_first_of(separators), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

// The string without blanks at both ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Reads a decimal number, which must be the whole string. False for other strings, and for numbers beyond the range of a double.
inline bool read_double(std::string_view text, double& value) {
#ifdef __cpp_lib_to_chars
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size();
#else
  // Apple's library has no from_chars for doubles, and other functions depend on the locale of the program.
  std::istringstream in{std::string{text}};
  in.imbue(std::locale::classic());
  return in >> value && in.peek() == std::istringstream::traits_type::eof();
#endif
}

// The length of the UTF-8 sequence at the start of `text`, 0 for an invalid one. `text` is not empty.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Reject overlong forms, surrogates, and code points beyond Unicode.
  const unsigned lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return byte(1) >= lowest && byte(1) <= highest ? size : 0;
}

// The string with U+FFFD for each invalid part, as Python's decoder divides parts. Returns a view of `text` or of `scratch`.
inline std::string_view valid_utf8(std::string_view text, std::string& scratch) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t at = 0;
  const auto valid = [&] {
    const std::size_t from = at;
    for (std::size_t size = 1; at < text.size() && size > 0; at += size) size = byte(at) < 0x80 ? 1 : utf8_length(text.substr(at));
    return text.substr(from, at - from);
  };
  if (valid().size() == text.size()) return text;
  scratch.assign(text, 0, at);
  while (at < text.size()) {
    // The first bytes of a truncated sequence.
    const unsigned first = byte(at++);
    const std::size_t size = first < 0xC2 || first > 0xF4 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    unsigned lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    for (std::size_t i = 1; i < size && at < text.size() && byte(at) >= lowest && byte(at) <= highest; ++i, ++at) {
      lowest = 0x80;
      highest = 0xBF;
    }
    scratch += "\xEF\xBF\xBD";
    scratch += valid();
  }
  return scratch;
}

// Appends the shortest decimal number that reads as the same double, in the form of Python's repr. Infinities and NaN have the
// form of Python's json.
inline void append_double(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  char text[32];
#ifdef __cpp_lib_to_chars
  const char* const end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  const std::string_view digits(text, static_cast<std::size_t>(end - text));
#else
  double again = 0;
  std::string_view digits;
  for (int precision = 0; precision < 17 && (digits.empty() || again != value); ++precision) {
    std::ostringstream written;
    written.imbue(std::locale::classic());
    written << std::scientific << std::setprecision(precision) << value;
    const std::string attempt = written.str();
    digits = {text, attempt.copy(text, sizeof text)};
    if (!read_double(digits, again)) again = 0;
  }
#endif
  const std::size_t e = digits.find('e');
  int exponent = 0;
  std::from_chars(digits.data() + e + 2, digits.data() + digits.size(), exponent);
  if (digits[e + 1] == '-') exponent = -exponent;
  if (exponent < -4 || exponent >= 16) {
    out += digits;
    return;
  }
  // Write the digits without their point. The exponent then gives the place of the point or the zeros.
  if (digits[0] == '-') out += '-';
  std::string all;
  for (const char c : digits.substr(0, e))
    if (c != '-' && c != '.') all += c;
  if (exponent < 0) {
    out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(all);
    return;
  }
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (all.size() < whole) all.append(whole - all.size(), '0');
  out.append(all, 0, whole).append(1, '.').append(all.size() > whole ? all.substr(whole) : "0");
}

// Writes a character as UTF-8, at most 4 bytes, and returns their number. Writes U+FFFD for an invalid code point.
inline std::size_t put_utf8(std::uint32_t code, char* out) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) code = 0xFFFD;
  const std::size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (std::size_t i = size; --i != 0; code >>= 6) out[i] = static_cast<char>(0x80 | (code & 0x3F));
  constexpr unsigned kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out[0] = static_cast<char>(kLead[size] | code);
  return size;
}

inline void append_utf8(std::uint32_t code, std::string& out) {
  char bytes[4];
  out.append(bytes, put_utf8(code, bytes));
}

// Appends a character of a JSON string.
inline void append_escaped(std::uint32_t code, std::string& out) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kEscapes = "\"\\bfnrt";
  const std::size_t at = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : kEscaped.npos;
  if (at != kEscaped.npos) {
    out += '\\';
    out += kEscapes[at];
  } else if (code < 0x20) {
    out += code < 0x10 ? "\\u000" : "\\u001";
    out += "0123456789abcdef"[code & 15];
  } else {
    append_utf8(code, out);
  }
}

// Appends a string (UTF-8) in JSON, quotes included.
inline void append_quoted(std::string_view text, std::string& out) {
  out += '"';
  std::size_t from = 0;  // the part that is not yet copied
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, from, at - from);
    append_escaped(byte, out);
    from = at + 1;
  }
  out.append(text, from);
  out += '"';
}

// A JSON string, with U+FFFD for each invalid part.
inline std::string json_quoted(std::string_view text) {
  std::string scratch, out;
  append_quoted(valid_utf8(text, scratch), out);
  return out;
}

}  // namespace cutrace
