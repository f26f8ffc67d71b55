#include "import/json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/text.h"

namespace cutrace::json {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101u, kHighs = 0x8080808080808080u;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Marks bytes in an eight-byte word that are quotes, backslashes, control characters or not ASCII, by their high bit. The first
// such byte is always marked, later ones perhaps not. The first byte is the lowest.
std::uint64_t special(std::uint64_t word) {
  const auto zeros = [](std::uint64_t v) { return (v - kOnes) & ~v; };
  return (zeros(word ^ (kOnes * '"')) | zeros(word ^ (kOnes * '\\')) | ((word - kOnes * 0x20) & ~word) | word) & kHighs;
}

// The first byte from p on that must not be copied unchanged. The padding after the input ends the search.
const char* plain(const char* p) {
  for (;;) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof word);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    if (const std::uint64_t found = special(word)) return p + __builtin_ctzll(found) / 8;
    p += sizeof word;
  }
}

bool in(char c, char low, char high) { return c >= low && c <= high; }

int hex(char c) {
  return in(c, '0', '9') ? c - '0' : in(c, 'a', 'f') ? c - 'a' + 10 : in(c, 'A', 'F') ? c - 'A' + 10 : -1;
}

// The value of the four digits after \u, -1 if they are invalid. Reads no further than the first invalid digit.
std::int32_t hex4(const char* p) {
  std::int32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = hex(p[i]);
    if (digit < 0) return -1;
    value = value << 4 | digit;
  }
  return value;
}

// The character of an escape. p is after the backslash, and `size` is the length without the backslash. An invalid escape gives a
// backslash and size 0, half a surrogate pair gives U+FFFD.
std::uint32_t escape(const char* p, std::size_t& size) {
  size = 1;
  switch (*p) {
    case '"': case '\\': case '/': return static_cast<unsigned char>(*p);
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'u': break;
    default: size = 0; return '\\';
  }
  const std::int32_t code = hex4(p + 1);
  if (code < 0) {
    size = 0;
    return '\\';
  }
  size = 5;
  if (code < 0xD800 || code > 0xDFFF) return static_cast<std::uint32_t>(code);
  if (code < 0xDC00 && p[5] == '\\' && p[6] == 'u') {
    const std::int32_t low = hex4(p + 7);
    if (low >= 0xDC00 && low <= 0xDFFF) {
      size = 11;
      return 0x10000 + (static_cast<std::uint32_t>(code - 0xD800) << 10) + static_cast<std::uint32_t>(low - 0xDC00);
    }
  }
  return 0xFFFD;
}

// Reads a string after its opening quote. `run` receives runs of bytes that can be copied unchanged, `one` receives other
// characters.
template <typename Run, typename One>
Read each(const char*& p, const char* end, Run&& run, One&& one) {
  const char* at = p;
  for (;;) {
    const char* const stop = plain(at);
    if (stop != at) run(at, stop);
    if (stop >= end) return Read::kMore;
    at = stop;
    const char c = *at;
    if (c == '"') {
      p = at + 1;
      return Read::kOk;
    }
    if (c == '\\') {
      // An escape has at most eleven characters. The padding is longer and has no digits.
      if (at + 1 >= end) return Read::kMore;
      std::size_t size;
      const std::uint32_t code = escape(at + 1, size);
      one(code);
      at += 1 + size;
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      if (const std::size_t size = utf8_length({at, end})) {
        run(at, at + size);
        at += size;
      } else {
        run(kReplacement.data(), kReplacement.data() + kReplacement.size());
        ++at;
      }
    } else {
      one(static_cast<unsigned char>(c));  // an unescaped control character
      ++at;
    }
  }
}

Read copy_string(const char*& p, const char* end, std::string& out) {
  out += '"';
  const Read read = each(
      p, end, [&](const char* a, const char* b) { out.append(a, b); },
      [&](std::uint32_t code) { append_escaped(code, out); });
  out += '"';
  return read;
}

Read skip_string(const char*& p, const char* end) {
  for (const char* at = p;;) {
    at = plain(at);
    if (at >= end) return Read::kMore;
    if (*at == '"') {
      p = at + 1;
      return Read::kOk;
    }
    at += *at == '\\' && at + 1 < end ? 2 : 1;
  }
}

// The characters of words.
constexpr std::array<bool, 256> kWord = [] {
  std::array<bool, 256> set{};
  for (const char* p = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-._"; *p; ++p)
    set[static_cast<unsigned char>(*p)] = true;
  return set;
}();

void copy_word(std::string_view text, std::string& out) {
  const bool valid = is_number(text) || text == "true" || text == "false" || text == "null";
  if (!valid) out += '"';
  out += text;
  if (!valid) out += '"';
}

// Reads a value. Accepts a trailing comma.
template <bool kKeep>
Read pass(const char*& p, const char* end, std::string* out) {
  char closers[kDeepest];
  std::size_t depth = 0;
  bool comma = false, after = false;  // after a comma; after a value, before a comma or the end
  const char* at = p;
  const auto string = [&] {
    ++at;
    if constexpr (kKeep) return copy_string(at, end, *out);
    else return skip_string(at, end);
  };
  for (;;) {
    at = skip_space(at);
    if (at >= end) return Read::kMore;
    char c = *at;
    if (depth > 0 && c == closers[depth - 1]) {
      ++at;
      if constexpr (kKeep) *out += c;
      --depth;
      after = true;
      comma = false;
      if (depth == 0) break;
      continue;
    }
    if (after) {
      if (c != ',') return Read::kBad;
      ++at;
      comma = true;
      after = false;
      continue;
    }
    if constexpr (kKeep)
      if (comma) *out += ',';
    comma = false;
    if (depth > 0 && closers[depth - 1] == '}') {  // a key
      if (c != '"') return Read::kBad;
      if (const Read read = string(); read != Read::kOk) return read;
      at = skip_space(at);
      if (at >= end) return Read::kMore;
      if (*at != ':') return Read::kBad;
      if constexpr (kKeep) *out += ':';
      at = skip_space(at + 1);
      if (at >= end) return Read::kMore;
      c = *at;
    }
    if (c == '"') {
      if (const Read read = string(); read != Read::kOk) return read;
    } else if (c == '{' || c == '[') {
      if (depth == kDeepest) return Read::kDeep;
      closers[depth++] = c == '{' ? '}' : ']';
      if constexpr (kKeep) *out += c;
      ++at;
      continue;
    } else {
      const std::string_view text = word(at);
      if (text.empty()) return Read::kBad;
      if (text.data() + text.size() >= end) return Read::kMore;
      if constexpr (kKeep) copy_word(text, *out);
      at += text.size();
    }
    after = true;
    if (depth == 0) break;
  }
  p = at;
  return Read::kOk;
}

// The value of a decimal number times ten to the `power`, as an integer. The fraction is rounded, halves away from zero, or
// refused with `exact`. False for an invalid number or one beyond 64 bits.
bool decimal(std::string_view text, int power, bool exact, std::int64_t& value) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto sign = [&] { return p < end && (*p == '-' || *p == '+') && *p++ == '-'; };
  const bool negative = sign();
  unsigned __int128 digits = 0;  // bounded, but enough for numbers beyond 64 bits
  std::int64_t exponent = power;
  bool any = false, point = false, more = false;
  for (; p < end && (in(*p, '0', '9') || (*p == '.' && !point)); ++p) {
    if (*p == '.') {
      point = true;
      continue;
    }
    any = true;
    const bool full = digits >> 120 != 0;
    if (full) more |= *p != '0';
    else digits = digits * 10 + static_cast<unsigned>(*p - '0');
    exponent += full - point;
  }
  if (!any) return false;
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    const bool minus = sign();
    if (p == end) return false;
    std::int64_t written = 0;
    for (; p < end && in(*p, '0', '9'); ++p) written = std::min<std::int64_t>(written * 10 + (*p - '0'), 1 << 20);
    exponent += minus ? -written : written;
  }
  if (p != end) return false;
  unsigned next = 0;  // the first digit of the fraction
  for (; exponent < 0 && (digits != 0 || next != 0); ++exponent) {
    more |= next != 0;
    next = static_cast<unsigned>(digits % 10);
    digits /= 10;
  }
  for (; exponent > 0 && digits != 0 && digits <= kMost; --exponent) digits *= 10;
  if (exact && (next != 0 || more)) return false;
  digits += !exact && next >= 5;
  if (digits > kMost - !negative) return false;
  const auto whole = static_cast<std::uint64_t>(digits);
  value = static_cast<std::int64_t>(negative ? 0 - whole : whole);
  return true;
}

// A faster version for common words: digits, an optional sign, and up to `places` decimals.
bool usual(std::string_view text, bool sign, int places, std::int64_t& value) {
  if (text.size() > 18) return false;
  const char* p = text.data();
  const char* const end = p + text.size();
  const bool negative = sign && p < end && *p == '-';
  const char* const first = p += negative;
  std::int64_t number = 0;
  for (; p < end && in(*p, '0', '9'); ++p) number = number * 10 + (*p - '0');
  if (p == first) return false;
  if (p < end && *p == '.' && places > 0)
    for (++p; p < end && places > 0 && in(*p, '0', '9'); ++p, --places) number = number * 10 + (*p - '0');
  for (; places > 0; --places)
    if (__builtin_mul_overflow(number, 10, &number)) return false;
  value = negative ? -number : number;
  return p == end;
}

}  // namespace

std::string_view word(const char* p) {
  const char* at = p;
  while (kWord[static_cast<unsigned char>(*at)]) ++at;
  return {p, static_cast<std::size_t>(at - p)};
}

bool is_number(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto digits = [&] {
    const char* const begin = p;
    while (p < end && in(*p, '0', '9')) ++p;
    return p - begin;
  };
  if (p < end && *p == '-') ++p;
  const bool zero = p < end && *p == '0';
  const auto whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (p < end && *p == '.' && (++p, digits() == 0)) return false;
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    if (p < end && (*p == '-' || *p == '+')) ++p;
    if (digits() == 0) return false;
  }
  return p == end;
}

Read read_string(const char*& p, const char* end, std::string& scratch, std::string_view& text) {
  const char* const stop = plain(p);
  if (stop < end && *stop == '"') {
    text = {p, static_cast<std::size_t>(stop - p)};
    p = stop + 1;
    return Read::kOk;
  }
  scratch.clear();
  const Read read = each(
      p, end, [&](const char* a, const char* b) { scratch.append(a, b); },
      [&](std::uint32_t code) { append_utf8(code, scratch); });
  text = scratch;
  return read;
}

Read copy_value(const char*& p, const char* end, std::string& out) { return pass<true>(p, end, &out); }

Read skip_value(const char*& p, const char* end) { return pass<false>(p, end, nullptr); }

bool nanoseconds(std::string_view text, std::int64_t& value) {
  return usual(text, false, 3, value) || decimal(text, 3, false, value);
}

bool integer(std::string_view text, std::int64_t& value) {
  return usual(text, true, 0, value) || decimal(text, 0, true, value);
}

}  // namespace cutrace::json
