// The hardware metrics of the fake CUPTI: a host interface that knows two chips.
//
// Structs are spelled out, since headers older than 12.6 lack them: with the fields of 13.0, and the sizes of 13.5 where
// the test sets that version. Values are simple (see `value()`), and so are passes: each throughput takes one of its own,
// all other metrics of a configuration share one for each 32 of them.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#define EXPORT __attribute__((visibility("default")))

extern "C" {
int fake_failure(const char* function);  // what a test says that a function returns, in fake_cupti.cpp
std::uint32_t fake_version();
}

namespace {

enum Result { kSuccess = 0, kInvalidParameter = 1, kNotInitialized = 15, kInvalidMetric = 17, kInvalidChip = 46 };  // CUptiResult
enum Kind { kCounter, kRatio, kThroughput };
enum Use { kRanges, kSamples };

struct Metric {
  std::string name, dimension, description;
  Kind kind;
};

// The metrics of all chips, by name. TU102 lacks those of tensor pipes and of branches.
const std::map<std::string, Metric, std::less<>>& metrics() {
  static const auto all = [] {
    std::map<std::string, Metric, std::less<>> made;
    const auto add = [&](Kind kind, const std::string& name, const char* dimension, const std::string& description) {
      made[name] = {name, dimension, description, kind};
    };
    for (const char* unit : {"sm", "gpu__compute_memory", "gpu__dram", "l1tex", "lts", "dram"}) {
      const std::string name = unit;
      add(kThroughput, name + (name.starts_with("gpu") ? "_throughput" : "__throughput"), "percent", "throughput of " + name);
    }
    add(kCounter, "sm__inst_executed", "instruction", "# of warp instructions executed");
    add(kCounter, "smsp__thread_inst_executed", "instruction", "# of thread instructions executed");
    add(kCounter, "sm__inst_executed_realtime", "instruction", "# of warp instructions executed, as they are sampled");
    add(kCounter, "sm__warps_active", "warp", "cumulative # of warps in flight");
    add(kCounter, "sm__warps_active_realtime", "warp", "cumulative # of warps in flight, as they are sampled");
    add(kCounter, "smsp__issue_active", "cycle", "# of cycles in which an instruction was issued");
    add(kCounter, "smsp__sass_branch_targets", "instruction", "# of branch targets");
    add(kCounter, "gpu__time_duration", "nanosecond", "time that the GPU took");
    for (const char* name : {"gpc__cycles_elapsed", "sm__cycles_active", "gr__cycles_active", "dram__cycles_elapsed"})
      add(kCounter, name, "cycle", "# of cycles");
    for (const char* pipe : {"alu", "fma", "fp16", "fp64", "xu", "lsu", "tensor"}) {
      add(kCounter, std::string("sm__inst_executed_pipe_") + pipe, "instruction", std::string("# of instructions of pipe ") + pipe);
      add(kCounter, std::string("sm__pipe_") + pipe + "_cycles_active", "cycle", std::string("# of cycles of pipe ") + pipe);
    }
    for (const char* type : {"f", "d", "h"})
      for (const char* op : {"add", "mul", "fma"})
        add(kCounter, std::string("smsp__sass_thread_inst_executed_op_") + type + op + "_pred_on", "instruction",
            std::string("# of ") + type + op + " of threads");
    for (const char* name : {"dram__bytes", "dram__bytes_read", "dram__bytes_write", "lts__t_bytes", "l1tex__t_bytes", "nvlrx__bytes",
                             "nvltx__bytes", "pcie__read_bytes", "pcie__write_bytes"})
      add(kCounter, name, "byte", "# of bytes");
    for (const char* name : {"lts__t_sector_hit_rate", "l1tex__t_sector_hit_rate"}) add(kRatio, name, "", "proportion of hits");
    add(kRatio, "smsp__average_warp_latency_per_inst_issued", "", "cycles of a warp for each instruction");
    return made;
  }();
  return all;
}

const std::vector<std::string>& endings(Kind kind) {
  static const auto all = [] {
    std::vector<std::vector<std::string>> made(3);
    made[kRatio] = {".max_rate", ".pct", ".ratio"};
    for (const char* rollup : {".avg", ".max", ".min", ".sum"}) {
      made[kCounter].emplace_back(rollup);
      for (const char* ending : {".pct_of_peak_sustained_active", ".pct_of_peak_sustained_elapsed"})
        for (const Kind kind : {kCounter, kThroughput}) made[kind].push_back(std::string(rollup) + ending);
      for (const char* ending : {".peak_sustained", ".per_cycle_active", ".per_cycle_elapsed", ".per_second"})
        made[kCounter].push_back(std::string(rollup) + ending);
    }
    return made;
  }();
  return all[kind];
}

const char* const kChips[] = {"GH100", "TU102"};
bool has(std::string_view chip, Use use, std::string_view name) {
  if (use == kSamples && name.find("sass") != name.npos) return false;
  return chip == "GH100" || (name.find("tensor") == name.npos && name.find("branch") == name.npos);
}

// A metric of a chip by its name, which may have an ending. `whole` asks for one that can be counted.
const Metric* find(std::string_view chip, Use use, std::string_view name, bool whole = false) {
  const std::size_t dot = std::min(name.find('.'), name.size());
  const auto it = metrics().find(name.substr(0, dot));
  if (it == metrics().end() || !has(chip, use, it->first)) return nullptr;
  const auto& allowed = endings(it->second.kind);
  const bool known = dot == name.size() ? !whole : std::count(allowed.begin(), allowed.end(), name.substr(dot)) != 0;
  return known ? &it->second : nullptr;
}

struct Host {
  std::string chip;
  Use use;
  std::vector<std::string> wanted;
  std::deque<std::vector<const char*>> handed;  // arrays that the caller was given
};

const char** hand(Host& host, std::vector<const char*> names) { return host.handed.emplace_back(std::move(names)).data(); }

// A configuration is its metrics, one a line.
std::string image_of(const Host& host) {
  std::string image;
  for (const std::string& name : host.wanted) image += name + "\n";
  return image;
}

// Copies an image to the caller, who asks for its size first.
int give(std::string_view image, std::size_t& size, std::uint8_t* to) {
  if (to != nullptr && size < image.size()) return kInvalidParameter;
  if (to != nullptr) std::memcpy(to, image.data(), image.size());
  size = image.size();
  return kSuccess;
}

// What each function begins with. `size135` is the size of its struct in 13.5, where that has grown.
int begin(const char* function, std::size_t given, std::size_t size130, std::size_t size135 = 0) {
  if (const int failed = fake_failure(function)) return failed;
  return given == size130 || (given == size135 && fake_version() >= 130500) ? kSuccess : kInvalidParameter;
}

}  // namespace

// A function cupti<name>(p): the fields of its struct, the last of them, and the size of the struct in 13.5.
#define FUNCTION(name, last, size135, ...)                                                                    \
  struct name##Params {                                                                                       \
    std::size_t struct_size;                                                                                  \
    void* reserved;                                                                                           \
    __VA_ARGS__                                                                                               \
  };                                                                                                          \
  static int do_##name(name##Params* p);                                                                      \
  extern "C" EXPORT int cupti##name(name##Params* p) {                                                        \
    constexpr std::size_t size = offsetof(name##Params, last) + sizeof(name##Params::last);                   \
    if (const int failed = begin(#name, p->struct_size, size, size135)) return failed;                        \
    return do_##name(p);                                                                                      \
  }                                                                                                           \
  static int do_##name([[maybe_unused]] name##Params* p)

FUNCTION(ProfilerInitialize, reserved, 0, ) { return kSuccess; }

FUNCTION(DeviceGetChipName, chip, 0, std::size_t device; const char* chip;) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* attribute = driver ? reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute")) : nullptr;
  int major = 0;
  if (attribute == nullptr || attribute(&major, 75, static_cast<int>(p->device)) != 0) return kNotInitialized;
  if (major != 7 && major != 9) return kInvalidChip;
  p->chip = kChips[major == 7];
  return kSuccess;
}

FUNCTION(ProfilerGetCounterAvailability, image, 41, void* context; std::size_t size; std::uint8_t* image;) {
  return p->context == nullptr ? kInvalidParameter : give("available", p->size, p->image);
}

FUNCTION(ProfilerHostInitialize, host, 56, int use; const char* chip; const std::uint8_t* availability; Host* host;) {
  if (std::none_of(std::begin(kChips), std::end(kChips), [&](const char* chip) { return p->chip == std::string_view(chip); }))
    return kInvalidChip;
  p->host = new Host{p->chip, static_cast<Use>(p->use), {}, {}};
  return kSuccess;
}

FUNCTION(ProfilerHostDeinitialize, host, 0, Host* host;) {
  delete p->host;
  return kSuccess;
}

FUNCTION(ProfilerHostGetSupportedChips, names, 0, std::size_t count; const char* const* names;) {
  p->count = std::size(kChips);
  p->names = kChips;
  return kSuccess;
}

FUNCTION(ProfilerHostGetBaseMetrics, count, 0, Host* host; int kind; const char** names; std::size_t count;) {
  std::vector<const char*> found;
  for (const auto& [name, metric] : metrics())
    if (metric.kind == p->kind && has(p->host->chip, p->host->use, name)) found.push_back(name.c_str());
  p->count = found.size();
  p->names = hand(*p->host, std::move(found));
  return kSuccess;
}

FUNCTION(ProfilerHostGetSubMetrics, names, 0, Host* host; int kind; const char* name; std::size_t count; const char** names;) {
  const Metric* metric = find(p->host->chip, p->host->use, p->name);
  if (metric == nullptr) return kInvalidMetric;
  std::vector<const char*> found;
  for (const std::string& ending : endings(metric->kind)) found.push_back(ending.c_str());
  p->count = found.size();
  p->names = hand(*p->host, std::move(found));
  return kSuccess;
}

FUNCTION(ProfilerHostGetMetricProperties, kind, 64, Host* host; const char* name; const char* description; const char* unit;
         const char* dimension; int kind;) {
  const Metric* metric = find(p->host->chip, p->host->use, p->name);
  if (metric == nullptr) return kInvalidMetric;
  static std::set<std::string, std::less<>> units;
  p->unit = units.insert(metric->name.substr(0, metric->name.find("__"))).first->c_str();
  p->description = metric->description.c_str();
  p->dimension = metric->dimension.c_str();
  p->kind = metric->kind;
  return kSuccess;
}

FUNCTION(ProfilerHostConfigAddMetrics, count, 0, Host* host; const char** names; std::size_t count;) {
  for (std::size_t i = 0; i < p->count; ++i) {
    if (find(p->host->chip, p->host->use, p->names[i], true) == nullptr) return kInvalidParameter;
    p->host->wanted.emplace_back(p->names[i]);
  }
  return kSuccess;
}

FUNCTION(ProfilerHostGetConfigImageSize, size, 0, Host* host; std::size_t size;) {
  p->size = image_of(*p->host).size();
  return kSuccess;
}

FUNCTION(ProfilerHostGetConfigImage, image, 0, Host* host; std::size_t size; std::uint8_t* image;) {
  return give(image_of(*p->host), p->size, p->image);
}

FUNCTION(ProfilerHostGetNumOfPasses, passes, 0, std::size_t size; const char* image; std::size_t passes;) {
  std::set<std::string_view> throughputs;
  std::size_t others = 0;
  for (std::string_view left(p->image, p->size); !left.empty(); left.remove_prefix(left.find('\n') + 1)) {
    const std::string_view base = left.substr(0, left.find('.'));
    if (base.ends_with("throughput")) throughputs.insert(base);
    else ++others;
  }
  p->passes = throughputs.size() + (others + 31) / 32;
  return kSuccess;
}
