#include "conditions.h"

#include <cstddef>

#include "text.h"

namespace cutrace {
namespace {

// Removes a decimal number without a sign or an exponent from the start of `text`.
std::optional<double> take_number(std::string_view& text) {
  const std::string_view digits = text.substr(0, text.find_first_not_of("0123456789."));
  double value = 0;
  if (!read_double(digits, value)) return std::nullopt;
  text = trimmed(text.substr(digits.size()));
  return value;
}

struct Unit {
  std::string_view name;  // in lower case
  double scale;
};
// The units of cutrace/units.py.
constexpr double kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;
constexpr Unit kTimeUnits[] = {{"ns", 1}, {"us", 1e3}, {"\xC2\xB5s", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"", 1e9}, {"m", 60e9}, {"h", 3600e9}};
constexpr Unit kSizeUnits[] = {{"", 1}, {"b", 1}, {"k", kKi}, {"m", kMi}, {"g", kGi}, {"t", kTi}, {"kib", kKi}, {"mib", kMi},
                           {"gib", kGi}, {"tib", kTi}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}};

// A positive number with a unit, up to `most`.
template <std::size_t N>
std::optional<std::uint64_t> scaled(std::string_view text, const Unit (&units)[N], double most) {
  const std::optional<double> number = take_number(text);
  if (!number) return std::nullopt;
  std::string name(text);
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const Unit& unit : units)
    if (const double value = *number * unit.scale; unit.name == name && value >= 1 && value <= most)
      return static_cast<std::uint64_t>(value);
  return std::nullopt;
}

constexpr double kLongestTime = 365.0 * 24 * 3600 * 1e9;
constexpr double kLargestSize = 8000 * kTi;
constexpr double kLargestFactor = 1e6;

}  // namespace

std::optional<Condition> parse_condition(std::string_view text) {
  text = trimmed(text);
  const std::size_t sign = text.rfind('>');
  if (sign == text.npos) return std::nullopt;
  const std::string_view what = trimmed(text.substr(0, sign));
  std::string_view bound = trimmed(text.substr(sign + 1));
  Condition condition;
  condition.text = text;
  if (what == "memory") {
    condition.kind = Condition::Kind::memory;
    const auto bytes = scaled(bound, kSizeUnits, kLargestSize);
    return condition.limit = bytes.value_or(0), bytes ? std::optional(condition) : std::nullopt;
  }
  if (what.starts_with("nvtx:")) {
    condition.name = trimmed(what.substr(5));
    if (condition.name.empty()) return std::nullopt;
    if (bound.ends_with("median")) {
      condition.kind = Condition::Kind::median;
      const auto factor = take_number(bound);
      if (!factor || *factor < 1 || *factor > kLargestFactor || !bound.starts_with('x')) return std::nullopt;
      condition.factor = *factor;
      return trimmed(bound.substr(1)) == "median" ? std::optional(condition) : std::nullopt;
    }
  } else if (what.starts_with("gpu") && what.ends_with("idle") && what.size() > 7 && trimmed(what.substr(3, what.size() - 7)).empty()) {
    condition.kind = Condition::Kind::idle;
  } else {
    return std::nullopt;
  }
  const auto ns = scaled(bound, kTimeUnits, kLongestTime);
  return condition.limit = ns.value_or(0), ns ? std::optional(condition) : std::nullopt;
}

bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = pattern.npos, after_star = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != pattern.npos) {  // let the last star match one more character
      p = star + 1;
      t = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

}  // namespace cutrace
