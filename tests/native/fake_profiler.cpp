// The hardware metrics of the fake CUPTI: a host interface with two chips, ranges that count the work of the fake GPU between a
// start and an end, samples over time, and metrics of instructions.
//
// Structs are declared here, because headers older than 12.6 lack them: with the fields of 13.0, and the sizes of 13.5 if the
// test sets that version. Values are simple (see `value()`). Each throughput takes one pass. 32 other metrics of a configuration
// share a pass. The fake driver counts its copies as bytes read and written.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define EXPORT __attribute__((visibility("default")))

extern "C" {
int fake_failure(const char* function);  // the result that a test sets for a function, in fake_cupti.cpp
std::uint32_t fake_version();
}

namespace {

enum Result { kSuccess = 0, kInvalidParameter = 1, kInvalidOperation = 7, kOutOfMemory = 8, kNotInitialized = 15, kInvalidMetric = 17,
              kNotSupported = 27, kInvalidChip = 46, kUnknown = 999 };  // CUptiResult
enum Kind { kCounter, kRatio, kThroughput };
enum Use { kRanges, kSamples };
enum Range { kAutoRange = 1, kUserRange = 2 };
enum Replay { kApplicationReplay = 1, kKernelReplay = 2, kUserReplay = 3 };

struct Metric {
  std::string name, unit, dimension, description;
  Kind kind;
};

// The metrics of all chips, by name. TU102 lacks the metrics of tensor pipes and of branches.
const std::map<std::string, Metric, std::less<>>& metrics() {
  static const auto all = [] {
    std::map<std::string, Metric, std::less<>> made;
    const auto add = [&](Kind kind, const std::string& name, const char* dimension, const std::string& description) {
      made[name] = {name, name.substr(0, name.find("__")), dimension, description, kind};
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

// A metric of a chip by its name, which may have a suffix. `whole` requires a name that can be counted.
const Metric* find(std::string_view chip, Use use, std::string_view name, bool whole = false) {
  const std::size_t dot = std::min(name.find('.'), name.size());
  const auto it = metrics().find(name.substr(0, dot));
  if (it == metrics().end() || !has(chip, use, it->first)) return nullptr;
  const auto& allowed = endings(it->second.kind);
  const bool known = dot == name.size() ? !whole : std::count(allowed.begin(), allowed.end(), name.substr(dot)) != 0;
  return known ? &it->second : nullptr;
}

// The counts of a range or a sample: an entry of a counter data image.
struct Counts {
  std::uint64_t start, end, kernels, read, written, busy;  // ns, bytes
  char name[64];
};

struct Image {
  std::uint64_t size, used;
  Counts entries[1];
  static std::size_t bytes(std::size_t entries) { return sizeof(Image) + entries * sizeof(Counts); }
  bool add(const Counts& counts) {
    if (used < size) entries[used] = counts;
    return used < size && ++used != 0;
  }
};

int initialise(void* image, std::size_t bytes) {
  if (image == nullptr || bytes < sizeof(Image)) return kInvalidParameter;
  *static_cast<Image*>(image) = {(bytes - sizeof(Image)) / sizeof(Counts), 0, {}};
  return kSuccess;
}

// A kernel has 1000 instructions of 32 threads. The clock is 1.5 GHz, and each unit has 100. Percentages are 50 if a kernel ran.
double value(const Metric& metric, std::string_view ending, const Counts& counts) {
  const auto contains = [&](const char* part) { return metric.name.find(part) != metric.name.npos; };
  const bool ran = counts.kernels + counts.read + counts.written != 0;
  if (ending.find("pct") != ending.npos) return ran ? 50 : 0;
  if (ending.find("peak") != ending.npos) return 1000;
  if (metric.kind == kRatio) return ran ? 4 : 0;
  if (ending.find("per_cycle") != ending.npos) return ran ? 0.5 : 0;
  double sum = 100.0 * static_cast<double>(counts.kernels);
  if (metric.dimension == "nanosecond") sum = static_cast<double>(counts.busy);
  else if (metric.dimension == "cycle" && !contains("pipe")) sum = 150.0 * static_cast<double>(counts.busy);
  else if (metric.dimension == "byte")
    sum = static_cast<double>((contains("write") || contains("tx") ? 0 : counts.read) +
                              (contains("read") || contains("rx") ? 0 : counts.written));
  else if (contains("__inst_executed") && !contains("pipe")) sum = 1000.0 * static_cast<double>(counts.kernels);
  else if (contains("thread_inst")) sum = 32000.0 * static_cast<double>(counts.kernels);
  const std::uint64_t time = counts.end - counts.start;
  if (ending.find("per_second") != ending.npos) sum = time != 0 ? sum * 1e9 / static_cast<double>(time) : 0;
  return ending.starts_with(".sum") || metric.dimension == "nanosecond" ? sum : sum / 100;
}

std::uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);  // the clock of samples
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

struct Host {
  std::string chip;
  Use use;
  std::vector<std::string> wanted;
  std::deque<std::vector<const char*>> handed;  // arrays that were returned to the caller
};

const char** hand(Host& host, std::vector<const char*> names) { return host.handed.emplace_back(std::move(names)).data(); }

// A configuration is the list of its metrics, one per line.
std::string image_of(const Host& host) {
  std::string image;
  for (const std::string& name : host.wanted) image += name + "\n";
  return image;
}

std::size_t passes_of(std::string_view image) {
  std::set<std::string_view> throughputs;
  std::size_t others = 0;
  for (; !image.empty(); image.remove_prefix(image.find('\n') + 1)) {
    const std::string_view base = image.substr(0, image.find('.'));
    if (base.ends_with("throughput")) throughputs.insert(base);
    else ++others;
  }
  return throughputs.size() + (others + 31) / 32;
}

// The chip of a device. Null before CUDA is initialised, empty for an unknown device.
const char* chip_of(std::size_t device) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* attribute = driver ? reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute")) : nullptr;
  int major = 0;
  if (attribute == nullptr || attribute(&major, 75, static_cast<int>(device)) != 0) return nullptr;
  return major == 9 ? kChips[0] : major == 7 ? kChips[1] : "";
}

// The only range profiler of the context.
struct Ranges {
  bool enabled = false, configured = false, started = false, pushed = false;
  bool flushes = false;  // the caches, before each pass
  int range = 0, replay = 0;
  Image* image = nullptr;
  std::size_t passes = 0, pass = 0, max_ranges = 0, dropped = 0;
  Counts open{};
  std::vector<Counts> done;  // counts of this pass; DecodeData() reads the counts of the last pass

  void add(const Counts& counts) {
    if (done.size() < max_ranges) done.push_back(counts);
    else ++dropped;
  }
};

struct Samples {
  bool enabled = false, configured = false, started = false;
  std::uint64_t interval = 0, next = 0, stopped = 0;
};

// Metrics of instructions of the context. Each function has four lines of source with two instructions of 16 bytes each. Warps
// execute each instruction once, but the instructions of the third line ten times. As in CUPTI 13.0, a process gets the counts of
// the first function after SetConfig and Enable, and reads them once. It gets no counts if a function ran between these two
// calls.
constexpr const char* kInstructionMetrics[] = {"smsp__sass_inst_executed", "smsp__sass_thread_inst_executed",
                                               "smsp__sass_sectors_mem_global"};
constexpr std::uint32_t kInstructions = 8;
struct Instructions {
  std::vector<std::uint64_t> metrics;  // their ids, which are indices of the list above plus 1
  bool configured = false, enabled = false, late = false, over = false;
  void* context = nullptr;                     // the counted context
  std::string first;                           // the counted function
  std::map<std::string, std::uint64_t> warps;  // of this function
};

std::recursive_mutex mutex;  // of all
Ranges ranges;
Samples samples;
Instructions instructions;

std::uint64_t counted(std::uint64_t metric, std::uint32_t instruction, std::uint64_t warps) {
  const std::uint64_t times = warps * (instruction / 2 == 2 ? 10 : 1);
  return metric == 1 ? times : metric == 2 ? times * 32 : instruction == 4 ? times * 4 : 0;
}

// Copies an image to the caller, which requests its size first.
int give(std::string_view image, std::size_t& size, std::uint8_t* to) {
  if (to != nullptr && size < image.size()) return kInvalidParameter;
  if (to != nullptr) std::memcpy(to, image.data(), image.size());
  size = image.size();
  return kSuccess;
}

// The checks at the start of each function. `size135` is the size of its struct in 13.5, if the struct has grown.
int begin(const char* function, std::size_t given, std::size_t size130, std::size_t size135 = 0) {
  if (const int failed = fake_failure(function)) return failed;
  return given == size130 || (given == size135 && fake_version() >= 130500) ? kSuccess : kInvalidParameter;
}

}  // namespace

// Defines a function cupti<name>(p), from the fields of its struct, the last field, and the size of the struct in 13.5.
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
  p->chip = chip_of(p->device);
  return p->chip == nullptr ? kNotInitialized : *p->chip == '\0' ? kInvalidChip : kSuccess;
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
  p->unit = metric->unit.c_str();
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
  p->passes = passes_of({p->image, p->size});
  return kSuccess;
}

FUNCTION(ProfilerHostEvaluateToGpuValues, values, 0, Host* host; const Image* image; std::size_t size; std::size_t index;
         const char** names; std::size_t count; double* values;) {
  if (p->index >= p->image->used) return kInvalidParameter;
  for (std::size_t i = 0; i < p->count; ++i) {
    const std::string_view name = p->names[i];
    const Metric* metric = find(p->host->chip, p->host->use, name, true);
    if (metric == nullptr) return kInvalidMetric;
    p->values[i] = value(*metric, name.substr(metric->name.size()), p->image->entries[p->index]);
  }
  return kSuccess;
}

// ---- ranges ----

// The first kernel after a sweep of the L2 cache reads 4096 bytes.
static bool swept = false;
extern "C" EXPORT void fake_sweep() {
  const std::lock_guard lock(mutex);
  swept = true;
}

// Whether kernels are counted now.
extern "C" EXPORT bool fake_counts() {
  const std::lock_guard lock(mutex);
  return ranges.started;
}

extern "C" EXPORT bool fake_ran(unsigned kernels, std::uint64_t read, std::uint64_t written, std::uint64_t busy) {
  const std::lock_guard lock(mutex);
  if (kernels != 0 && (std::exchange(swept, false) || ranges.flushes)) read += 4096;
  if (!ranges.started) return true;
  if (ranges.range == kUserRange) {
    ranges.open.kernels += kernels;
    ranges.open.read += read;
    ranges.open.written += written;
    ranges.open.busy += busy;
    ranges.open.end += busy;
    return true;
  }
  if (kernels == 0) return true;
  Counts counts{0, busy, kernels, read, written, busy, {}};
  std::snprintf(counts.name, sizeof counts.name, "%zu", ranges.done.size() + ranges.dropped);
  ranges.add(counts);
  return ranges.replay != kKernelReplay;
}

FUNCTION(RangeProfilerEnable, profiler, 36, void* context; Ranges* profiler; int cache_control;) {
  const std::lock_guard lock(mutex);
  if (p->context == nullptr) return kInvalidParameter;
  if (ranges.enabled) return kInvalidOperation;
  ranges = {};
  ranges.enabled = true;
  ranges.flushes = p->struct_size == 36 && p->cache_control != 0;
  p->profiler = &ranges;
  return kSuccess;
}

FUNCTION(RangeProfilerDisable, profiler, 0, Ranges* profiler;) {
  const std::lock_guard lock(mutex);
  if (!std::exchange(ranges.enabled, false)) return kInvalidOperation;
  ranges.started = false;
  return kSuccess;
}

FUNCTION(RangeProfilerGetCounterDataSize, size, 0, Ranges* profiler; const char** names; std::size_t count; std::size_t ranges;
         std::uint32_t nodes; std::size_t size;) {
  p->size = Image::bytes(p->ranges);
  return kSuccess;
}

FUNCTION(RangeProfilerCounterDataImageInitialize, image, 0, Ranges* profiler; std::size_t size; void* image;) {
  return initialise(p->image, p->size);
}

FUNCTION(RangeProfilerSetConfig, target, 0, Ranges* profiler; std::size_t config_size; const char* config; std::size_t size;
         Image* image; int range; int replay; std::size_t max_ranges; std::uint16_t levels; std::uint16_t level;
         std::size_t pass; std::uint16_t target;) {
  const std::lock_guard lock(mutex);
  if (ranges.started || (p->range == kUserRange && p->replay == kKernelReplay)) return kInvalidOperation;
  ranges.configured = true;
  ranges.range = p->range;
  ranges.replay = p->replay;
  ranges.image = p->image;
  ranges.passes = p->replay == kKernelReplay ? 1 : passes_of({p->config, p->config_size});
  ranges.pass = p->pass;
  ranges.max_ranges = p->max_ranges;
  return kSuccess;
}

FUNCTION(RangeProfilerStart, profiler, 0, Ranges* profiler;) {
  const std::lock_guard lock(mutex);
  if (!ranges.enabled || !ranges.configured || std::exchange(ranges.started, true)) return kInvalidOperation;
  ranges.done.clear();
  ranges.dropped = 0;
  return kSuccess;
}

FUNCTION(RangeProfilerStop, complete, 0, Ranges* profiler; std::size_t pass; std::size_t target; std::uint8_t complete;) {
  const std::lock_guard lock(mutex);
  if (ranges.pushed || !std::exchange(ranges.started, false)) return kInvalidOperation;
  p->complete = ++ranges.pass >= ranges.passes;
  if (p->complete) ranges.pass = 0;
  p->pass = ranges.pass;
  p->target = 1;
  return kSuccess;
}

FUNCTION(RangeProfilerPushRange, name, 0, Ranges* profiler; const char* name;) {
  const std::lock_guard lock(mutex);
  if (!ranges.started || ranges.range != kUserRange || std::exchange(ranges.pushed, true)) return kInvalidOperation;
  ranges.open = {};
  std::strncpy(ranges.open.name, p->name, sizeof ranges.open.name - 1);
  return kSuccess;
}

FUNCTION(RangeProfilerPopRange, profiler, 0, Ranges* profiler;) {
  const std::lock_guard lock(mutex);
  if (!std::exchange(ranges.pushed, false)) return kInvalidOperation;
  ranges.add(ranges.open);
  return kSuccess;
}

FUNCTION(RangeProfilerDecodeData, dropped, 0, Ranges* profiler; std::size_t dropped;) {
  const std::lock_guard lock(mutex);
  if (!ranges.enabled || !ranges.configured || ranges.started) return kInvalidOperation;
  p->dropped = ranges.dropped;
  if (ranges.pass == 0)  // all passes were made
    for (const Counts& counts : ranges.done) p->dropped += !ranges.image->add(counts);
  ranges.done.clear();
  return kSuccess;
}

FUNCTION(RangeProfilerGetCounterDataInfo, count, 0, const Image* image; std::size_t size; std::size_t count;) {
  p->count = p->image->used;
  return kSuccess;
}

FUNCTION(RangeProfilerCounterDataGetRangeInfo, name, 0, const Image* image; std::size_t size; std::size_t index;
         const char* delimiter; const char* name;) {
  if (p->index >= p->image->used) return kInvalidParameter;
  p->name = p->image->entries[p->index].name;
  return kSuccess;
}

// ---- samples ----

FUNCTION(PmSamplingGetCounterAvailability, image, 0, std::size_t device; std::size_t size; std::uint8_t* image;) {
  return chip_of(p->device) == nullptr ? kNotInitialized : give("available", p->size, p->image);
}

FUNCTION(PmSamplingEnable, sampling, 0, std::size_t device; Samples* sampling;) {
  const std::lock_guard lock(mutex);
  if (chip_of(p->device) == nullptr) return kNotInitialized;
  if (samples.enabled) return kInvalidOperation;
  samples = {};
  samples.enabled = true;
  p->sampling = &samples;
  return kSuccess;
}

FUNCTION(PmSamplingDisable, sampling, 0, Samples* sampling;) {
  const std::lock_guard lock(mutex);
  if (!std::exchange(samples.enabled, false)) return kInvalidOperation;
  return kSuccess;
}

FUNCTION(PmSamplingGetCounterDataSize, size, 0, Samples* sampling; const char** names; std::size_t count; std::uint32_t samples;
         std::size_t size;) {
  p->size = Image::bytes(p->samples);
  return kSuccess;
}

FUNCTION(PmSamplingCounterDataImageInitialize, image, 0, Samples* sampling; std::size_t size; void* image;) {
  return initialise(p->image, p->size);
}

FUNCTION(PmSamplingSetConfig, keep, 0, Samples* sampling; std::size_t config_size; const char* config; std::size_t buffer;
         std::uint64_t interval; int trigger; int keep;) {
  const std::lock_guard lock(mutex);
  if (!samples.enabled || samples.started) return kInvalidOperation;
  if (p->interval == 0 || passes_of({p->config, p->config_size}) != 1) return kInvalidParameter;
  if (p->trigger == 1 && chip_of(0) == std::string_view("TU102")) return kNotSupported;  // cycles only
  samples.configured = true;
  samples.interval = p->interval;
  return kSuccess;
}

FUNCTION(PmSamplingStart, sampling, 0, Samples* sampling;) {
  const std::lock_guard lock(mutex);
  if (!samples.enabled || !samples.configured || std::exchange(samples.started, true)) return kInvalidOperation;
  samples.next = now();
  return kSuccess;
}

FUNCTION(PmSamplingStop, sampling, 0, Samples* sampling;) {
  const std::lock_guard lock(mutex);
  if (!std::exchange(samples.started, false)) return kInvalidOperation;
  samples.stopped = now();
  return kSuccess;
}

// Each sample counts a kernel that reads 4096 bytes and writes 2048. FAKE_CUPTI_FAILURES=overflow:1 loses later samples.
FUNCTION(PmSamplingDecodeData, overflow, 0, Samples* sampling; Image* image; std::size_t size; int reason; std::uint8_t overflow;) {
  const std::lock_guard lock(mutex);
  if (!samples.enabled || !samples.configured) return kInvalidOperation;
  const std::uint64_t end = samples.started ? now() : samples.stopped, step = samples.interval;
  p->overflow = fake_failure("overflow") != 0;
  p->reason = 2;  // all samples are decoded
  for (; samples.next + step <= end; samples.next += step) {
    if (p->overflow) continue;
    if (p->image->add({samples.next, samples.next + step, 1, 4096, 2048, step, {}})) continue;
    p->reason = 1;  // the image is full
    break;
  }
  return kSuccess;
}

FUNCTION(PmSamplingGetCounterDataInfo, completed, 0, const Image* image; std::size_t size; std::size_t total;
         std::size_t populated; std::size_t completed;) {
  p->total = p->image->size;
  p->populated = p->completed = p->image->used;
  return kSuccess;
}

FUNCTION(PmSamplingCounterDataGetSampleInfo, end, 0, Samples* sampling; const Image* image; std::size_t size; std::size_t index;
         std::uint64_t start; std::uint64_t end;) {
  if (p->index >= p->image->used) return kInvalidParameter;
  p->start = p->image->entries[p->index].start;
  p->end = p->image->entries[p->index].end;
  return kSuccess;
}

// ---- metrics of instructions ----

struct SassMetric {
  std::uint64_t id;
  const char *name, *description;
};
struct SassConfig {
  std::uint64_t id;
  std::uint8_t granularity;
};
struct SassValue {
  std::uint64_t id, value;
};
struct SassData {
  std::size_t struct_size;
  void* reserved;
  std::uint32_t crc, index;
  const char* function;
  std::uint32_t offset;
  SassValue* values;
};

namespace {

SassMetric sass_metric(std::size_t place) { return {place + 1, kInstructionMetrics[place], "# of what its name says"}; }

bool knows(const char* chip) { return std::any_of(std::begin(kChips), std::end(kChips), [&](auto* c) { return chip == std::string_view(c); }); }

// The modules of running functions, by checksum. The last loaded module with a function counts.
std::map<std::string, std::uint32_t> module_of;

}  // namespace

FUNCTION(SassMetricsGetNumOfMetrics, count, 0, const char* chip; std::size_t count;) {
  p->count = std::size(kInstructionMetrics);
  return knows(p->chip) ? kSuccess : kInvalidParameter;
}

FUNCTION(SassMetricsGetMetrics, metrics, 0, const char* chip; std::size_t count; SassMetric* metrics;) {
  if (!knows(p->chip) || p->count > std::size(kInstructionMetrics)) return kInvalidParameter;
  for (std::size_t i = 0; i < p->count; ++i) p->metrics[i] = sass_metric(i);
  return kSuccess;
}

FUNCTION(SassMetricsGetProperties, metric, 0, const char* chip; const char* name; SassMetric metric;) {
  for (std::size_t i = 0; i < std::size(kInstructionMetrics); ++i)
    if (p->name == std::string_view(kInstructionMetrics[i])) {
      p->metric = sass_metric(i);
      return kSuccess;
    }
  return kInvalidParameter;
}

FUNCTION(SassMetricsSetConfig, device, 0, std::size_t count; SassConfig* configs; std::uint32_t device;) {
  const std::lock_guard lock(mutex);
  if (std::exchange(instructions.configured, true)) return kInvalidOperation;
  if (instructions.over) return kOutOfMemory;
  instructions.metrics.clear();
  for (std::size_t i = 0; i < p->count; ++i) instructions.metrics.push_back(p->configs[i].id);
  return kSuccess;
}

FUNCTION(SassMetricsUnsetConfig, device, 0, std::uint32_t device;) {
  const std::lock_guard lock(mutex);
  return std::exchange(instructions.configured, false) ? kSuccess : kInvalidOperation;
}

FUNCTION(SassMetricsEnable, lazy, 0, void* context; std::uint8_t lazy;) {
  const std::lock_guard lock(mutex);
  if (!instructions.configured || std::exchange(instructions.enabled, true)) return kInvalidOperation;
  instructions.context = p->context;
  return kSuccess;
}

FUNCTION(SassMetricsDisable, dropped, 0, void* context; std::size_t dropped;) {
  const std::lock_guard lock(mutex);
  if (!std::exchange(instructions.enabled, false)) return kInvalidOperation;
  p->dropped = instructions.warps.size() * kInstructions * instructions.metrics.size();
  instructions.warps.clear();
  instructions.over = true;
  return kSuccess;
}

FUNCTION(SassMetricsGetDataProperties, instances, 0, void* context; std::size_t records; std::size_t instances;) {
  const std::lock_guard lock(mutex);
  if (!instructions.enabled) return kInvalidOperation;
  p->records = instructions.warps.size() * kInstructions * instructions.metrics.size();
  p->instances = 1;
  return kSuccess;
}

// CUPTI's size of this struct excludes the last field.
FUNCTION(SassMetricsFlushData, instances, 0, void* context; std::size_t records; std::size_t instances; SassData* data;) {
  const std::lock_guard lock(mutex);
  const std::size_t records = instructions.warps.size() * kInstructions * instructions.metrics.size();
  if (!instructions.enabled || p->records != records) return kInvalidOperation;
  SassData* to = p->data;
  for (const auto& [function, warps] : instructions.warps)
    for (std::uint32_t i = 0; i < kInstructions; ++i)
      for (const std::uint64_t metric : instructions.metrics) {
        to->crc = module_of[function];
        to->function = strdup(function.c_str());
        to->offset = i * 16;
        *to++->values = {metric, counted(metric, i, warps)};
      }
  instructions.warps.clear();
  instructions.over = true;
  return kSuccess;
}

extern "C" EXPORT void fake_executed(const char* function, std::uint64_t warps, void* context) {
  const std::lock_guard lock(mutex);
  Instructions& i = instructions;
  if (i.configured && !i.enabled) i.late = true;
  if (!i.enabled || i.late || i.over || context != i.context) return;
  if (i.first.empty()) i.first = function;
  if (i.first == function) i.warps[function] += warps;
}

// ---- modules ----

// A module is a string with a line for each function: its name, then file and line of its source, if known. Each line of source
// makes two instructions of 16 bytes.
namespace {

struct CubinCrc {
  std::size_t struct_size, size;
  const char* cubin;
  std::uint64_t crc;
};

struct Correlation {
  std::size_t struct_size;
  const char* cubin;
  const char* function;
  std::size_t size;
  std::uint32_t line;
  std::uint64_t offset;
  char *file, *folder;
};

std::uint32_t crc_of(std::string_view cubin) {
  std::uint32_t crc = 2166136261u;
  for (const char c : cubin) crc = (crc ^ static_cast<unsigned char>(c)) * 16777619u;
  return crc;
}

}  // namespace

extern "C" EXPORT void fake_module(const char* function, const char* cubin) {
  const std::lock_guard lock(mutex);
  module_of[function] = crc_of(cubin);
}

extern "C" EXPORT int cuptiGetCubinCrc(CubinCrc* p) {
  if (const int failed = fake_failure("GetCubinCrc")) return failed;
  if (p->struct_size != sizeof *p || p->cubin == nullptr || p->size == 0) return kInvalidParameter;
  p->crc = crc_of({p->cubin, p->size});
  return kSuccess;
}

extern "C" EXPORT int cuptiGetSassToSourceCorrelation(Correlation* p) {
  if (const int failed = fake_failure("GetSassToSourceCorrelation")) return failed;
  if (p->struct_size != sizeof *p || p->cubin == nullptr || p->function == nullptr) return kInvalidParameter;
  std::istringstream lines(std::string(p->cubin, p->size));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string function, path;
    unsigned first = 0;
    words >> function;
    if (function != p->function) continue;
    if (!(words >> path >> first)) return kSuccess;  // without line information: no file
    const std::size_t slash = path.rfind('/');
    p->folder = strdup(path.substr(0, slash).c_str());
    p->file = strdup(path.substr(slash + 1).c_str());
    p->line = first + static_cast<std::uint32_t>(p->offset / 32);
    return kSuccess;
  }
  return kUnknown;
}
