// The conditions on which a recording of the newest rows writes a dump.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cutrace {

// A condition of dump_when: "nvtx:NAME > 1.5s", "nvtx:NAME > 3x median", "gpu idle > 500ms", "memory > 70GiB".
struct Condition {
  enum class Kind : std::uint8_t { range, median, idle, memory } kind = Kind::range;
  std::string text;
  std::string name;         // of ranges, with * and ?
  std::uint64_t limit = 0;  // nanoseconds, or bytes of memory
  double factor = 0;        // of the median
};
// Returns nullopt for a string of another form.
std::optional<Condition> parse_condition(std::string_view text);

// Whether `text` matches `pattern`. In the pattern, * stands for any string and ? for any character.
bool matches(std::string_view pattern, std::string_view text);

}  // namespace cutrace
