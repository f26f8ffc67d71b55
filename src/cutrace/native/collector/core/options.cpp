#include "options.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "../../common/text.h"  // a relative path, because the benchmarks build this file without the include folders

namespace cutrace {
namespace {

template <typename T>
bool number(std::string_view value, T& out, int base = 10) {
  std::uint64_t n = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), n, base);
  if (status != std::errc() || end != value.data() + value.size()) return false;
  out = static_cast<T>(n);
  return static_cast<std::uint64_t>(out) == n;
}

bool truth(std::string_view value, bool& out) {
  if (value != "0" && value != "1") return false;
  out = value == "1";
  return true;
}

// "pc=4096": a number of cycles, a power of two from 2^5 to 2^31.
bool sampled(std::string_view value, Options& o) {
  std::uint32_t cycles = 0;
  o.sample_pc = next_word(value, "=") == "pc";
  if (!o.sample_pc || !number(value, cycles) || !std::has_single_bit(cycles)) return false;
  o.sample_period = static_cast<std::uint32_t>(std::countr_zero(cycles));
  return o.sample_period >= 5 && o.sample_period <= 31;
}

// Names separated by commas.
bool names(std::string_view value, std::vector<std::string>& out) {
  while (!value.empty()) out.emplace_back(trimmed(next_word(value, ",")));
  return !out.empty() && out.size() <= Options::kMostAnnotated && std::ranges::find(out, "") == out.end();
}

// "sync,launch:100": groups of calls; one in 100 launches. "later": no groups yet.
bool stacks(std::string_view value, Options& o) {
  while (!value.empty()) {
    std::string_view word = trimmed(next_word(value, ","));
    if (word == "later") {
      o.stacks_later = true;
      continue;
    }
    const std::optional<CallGroup> group = parse_call_group(next_word(word, ":"));
    if (!group) return false;
    o.stacks |= bit(*group);
    if (word.empty()) continue;
    if (*group != CallGroup::launch || !number(word, o.stacks_every) || o.stacks_every == 0) return false;
  }
  return o.may_record_stacks();
}

bool added(std::optional<Condition> condition, std::vector<Condition>& conditions) {
  if (condition) conditions.push_back(std::move(*condition));
  return condition.has_value();
}

constexpr std::string_view kOfNvtx = "nvtx:";

// "profiler", "nvtx:NAME", or "none", which cancels an earlier value.
bool capture_range(std::string_view value, Options& o) {
  if (value.starts_with(kOfNvtx)) {
    const std::string_view name = trimmed(value.substr(kOfNvtx.size()));
    o.capture_range = std::string(kOfNvtx) + std::string(name);
    return !name.empty();
  }
  o.capture_range = value == "none" ? "" : value;
  return value == "profiler" || value == "none";
}

// "stop": one window. "repeat": all windows. "repeat:N": N windows.
bool capture_range_end(std::string_view value, Options& o) {
  constexpr std::string_view kRepeat = "repeat";
  o.capture_ranges = value == kRepeat ? 0 : 1;
  if (value == "stop" || value == kRepeat) return true;
  if (!value.starts_with(kRepeat)) return false;
  value.remove_prefix(kRepeat.size());
  return value.starts_with(':') && number(value.substr(1), o.capture_ranges) && o.capture_ranges != 0;
}

constexpr std::uint64_t kLongest = std::uint64_t{365} * 24 * 3600 * 1000;  // a year, in milliseconds

bool set(std::string_view key, std::string_view value, Options& o) {
  if (key == "directory") return o.directory = value, !value.empty();
  if (key == "output") return o.output = value, !value.empty();
  if (key == "cupti") return o.cupti = value, true;
  if (key == "kinds") return parse_kinds(value, o.kinds);
  if (key == "api") return parse_api_filter(value, o.api);
  if (key == "graph") return o.graph_nodes = value == "node", value == "node" || value == "graph";
  if (key == "nvtx") return truth(value, o.nvtx);
  if (key == "sync") return truth(value, o.synchronize);
  if (key == "max_memory") return number(value, o.max_memory);
  if (key == "max_size") return number(value, o.max_size);
  if (key == "last_ms") return number(value, o.last_ms) && o.last_ms <= kLongest;
  if (key == "rotate") return truth(value, o.rotate);
  if (key == "dump") return o.dump = value, !value.empty();
  if (key == "dump_when") return added(parse_condition(value), o.dump_when);
  if (key == "dump_limit") return number(value, o.dump_limit) && o.dump_limit > 0;
  if (key == "dump_pause_ms") return number(value, o.dump_pause_ms) && o.dump_pause_ms <= kLongest;
  if (key == "buffer_size") return number(value, o.buffer_size) && o.buffer_size >= 4096 && o.buffer_size % 4096 == 0;
  if (key == "annotate") return names(value, o.annotate);
  if (key == "annotator") return o.annotator = value, !value.empty();
  if (key == "stacks") return stacks(value, o);
  if (key == "stacks_min_ns") return number(value, o.stacks_min_ns);
  if (key == "capture_range") return capture_range(value, o);
  if (key == "capture_range_end") return capture_range_end(value, o);
  if (key == "share") return truth(value, o.share);
  if (key == "device_buffers") return number(value, o.device_buffers);
  if (key == "flush_ms") return number(value, o.flush_ms) && o.flush_ms > 0;
  if (key == "patience_ms") return number(value, o.patience_ms) && o.patience_ms > 0;
  if (key == "code") return truth(value, o.code);
  if (key == "sample") return sampled(value, o);
  if (key == "finalize") return truth(value, o.finalize);
  if (key == "standby") return truth(value, o.standby);
  if (key == "redact") return truth(value, o.redact);
  if (key == "file_mode") return number(value, o.file_mode.emplace(), 8) && *o.file_mode <= 0777;
  return false;
}

}  // namespace

bool parse_options(std::string_view text, Options& options, std::string& error) {
  options.text = text;
  while (!text.empty()) {
    const std::string_view entry = trimmed(next_word(text, "\n;"));
    if (entry.empty()) continue;
    std::string_view rest = entry;
    const std::string_view key = trimmed(next_word(rest, "=")), value = trimmed(rest);
    const bool known = key.size() != entry.size() && set(key, value, options);
    if (!known && key == "dump_when") {
      error = "the dump condition '" + std::string(value) +
              "' is invalid; write nvtx:NAME > 1.5s, nvtx:NAME > 3x median, gpu idle > 500ms or memory > 70GiB";
      return false;
    }
    if (!known && key == "capture_range") {
      error = "the capture range '" + std::string(value) + "' is invalid; write profiler or nvtx:NAME";
      return false;
    }
    if (!known) {
      error = "the option '" + std::string(entry) + "' is invalid: its key or its value is unknown";
      return false;
    }
    const auto same = std::ranges::find(options.given, key, &std::pair<std::string, std::string>::first);
    if (key == "dump_when" && same != options.given.end()) same->second += "; " + std::string(value);
    else options.given.emplace_back(key, value);
  }
  if (!options.dump_when.empty() && (!options.keeps_newest() || options.dump.empty())) {
    error = "dump_when needs a recording of the newest rows: give last_ms or rotate, and dump";
    return false;
  }
  if (options.rotate && options.max_size == 0) {
    error = "rotate=1 needs max_size, the size to keep";
    return false;
  }
  if (!options.annotate.empty() && !options.records_nvtx()) {
    error = "annotate needs a recording of NVTX";
    return false;
  }
  if (options.records_windows() && (options.keeps_newest() || options.sample_pc)) {
    error = "a recording of capture ranges can neither keep the newest rows nor sample; leave one of them out";
    return false;
  }
  if (options.capture_range.starts_with(kOfNvtx) && !options.records_nvtx()) {
    error = "a capture range of NVTX needs a recording of NVTX";
    return false;
  }
  if (options.standby && !(options.directory.empty() && options.output.empty())) {
    error = "standby=1 takes neither directory nor output: `cutrace attach` names the file";
    return false;
  }
  if (!options.standby && options.directory.empty() == options.output.empty()) {
    error = "the options need either directory=DIR or output=FILE";
    return false;
  }
  return true;
}

}  // namespace cutrace
