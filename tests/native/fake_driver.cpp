// A fake libcuda: the entry points that cutrace calls, and a GPU with work that a test chooses (fake_gpu_*).
//
// Like the driver, it loads the library of CUDA_INJECTION64_PATH in cuInit(), announces contexts to CUPTI, and reports calls and
// finished work through CUPTI. CUPTI is the fake CUPTI (fake_cupti.cpp) if the process has loaded it. Otherwise the driver
// reports nothing.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fake_cupti.h"
#include "fake_driver.h"
#include "fake_driver_parts.h"

#define EXPORT __attribute__((visibility("default")))

namespace {

constexpr std::uint64_t kLaunchLatency = 2000;  // ns from a launch to its start on an idle stream
constexpr std::uint32_t kContext = 1;

std::uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

void sleep_until(std::uint64_t time) {
  const timespec t = {static_cast<time_t>(time / 1'000'000'000u), static_cast<long>(time % 1'000'000'000u)};
  while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, nullptr) != 0) {}
}

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }
bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The fake CUPTI, once the process has loaded it.
struct Cupti {
  decltype(&fake_record) record = nullptr;
  decltype(&fake_next_correlation) next_correlation = nullptr;
  decltype(&fake_begin_call) begin_call = nullptr;
  decltype(&fake_end_call) end_call = nullptr;
  decltype(&fake_create_context) create_context = nullptr;
  decltype(&fake_enter_call) enter_call = nullptr;
  decltype(&fake_launch_call) launch_call = nullptr;
  decltype(&fake_driver_call) driver_call = nullptr;
  decltype(&fake_context) context = nullptr;
  decltype(&fake_tell_call) tell_call = nullptr;
  decltype(&fake_set_correlation) set_correlation = nullptr;
  decltype(&fake_stream_call) stream_call = nullptr;
  decltype(&fake_ran) ran = nullptr;
  decltype(&fake_sweep) sweep = nullptr;
  decltype(&fake_counts) counts = nullptr;
  decltype(&fake_executed) executed = nullptr;
  decltype(&fake_module) module = nullptr;
  decltype(&fake_load_cubin) load_cubin = nullptr;
  decltype(&fake_graph) graph = nullptr;
  decltype(&fake_graph_add) graph_add = nullptr;
  decltype(&fake_graph_instantiate) graph_instantiate = nullptr;
  decltype(&fake_graph_nodes) graph_nodes = nullptr;
  decltype(&fake_graph_tracing) graph_tracing = nullptr;
  decltype(&fake_is_enabled) is_enabled = nullptr;
  decltype(&fake_subscriptions) subscriptions = nullptr;
  decltype(&fake_on_flush) on_flush = nullptr;
  decltype(&fake_on_dump) on_dump = nullptr;
  decltype(&cuptiGetCallbackName) callback_name = nullptr;
};

template <typename Function>
bool find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Submitted GPU work. CUPTI gets the record when the work has ended.
struct Work {
  std::vector<std::uint8_t> record;
  std::uint64_t start = 0, end = 0;
  std::uint32_t stream = 0;
  bool detached = false;  // no synchronising call waits for it
};

struct Gpu {
  std::recursive_mutex mutex;
  std::string name = "NVIDIA FAKE";
  int major = 9, minor = 0, devices = 1;
  std::atomic<pid_t> initialised{0};  // the process that called cuInit()
  bool injected = false;
  std::atomic<unsigned> context_waits{0};
  int primary = 0;        // references to the primary context of device 0
  bool context_made = false;
  const Cupti* cupti = nullptr;
  unsigned announced = 0;  // the subscription that has received device, context and streams
  std::set<std::uint32_t> streams;
  std::set<std::string> names;  // never removed, because CUPTI returns pointers
  std::map<std::string, std::string> modules;  // by kernel
  std::map<std::string, CUpti_CallbackId> callback_ids;  // by the name of a call
  std::vector<Work> pending;
  std::map<std::uint32_t, std::uint64_t> free_at;  // by stream
  std::map<std::string, std::uint64_t, std::less<>> launched;  // by kernel
  std::uint64_t memory = 0;  // number of kernels that have changed it
  std::map<std::uint32_t, std::uint32_t> captures;  // the graph that captures a stream
  std::map<CUstream, std::pair<CUcontext, bool>> described;  // streams: their context, and whether they are captured
};

Gpu& gpu() {
  static auto* g = new Gpu;
  return *g;
}

// The object has no destructor, because exit handlers ask for the current context after the thread's objects are destroyed.
struct ContextStack {
  bool empty() const { return count == 0; }
  CUcontext back() const { return items[count - 1]; }
  void push_back(CUcontext context) { items[count++] = context; }
  void pop_back() { --count; }
  CUcontext items[64];
  std::size_t count;
};
thread_local ContextStack contexts;

CUcontext current_context() {
  return contexts.empty() ? reinterpret_cast<CUcontext>(std::uintptr_t{kContext}) : contexts.back();
}

using Lock = std::lock_guard<std::recursive_mutex>;

bool ready() { return gpu().initialised == getpid(); }

void write(const void* record, std::size_t size) {
  if (gpu().cupti != nullptr) gpu().cupti->record(record, size);
}
template <typename Record>
void write(const Record& record) {
  write(&record, sizeof record);
}

void on_flush(bool forced);
void on_dump(int kind);

template <typename Record>
Record make(CUpti_ActivityKind kind) {
  Record record{};
  record.kind = kind;
  return record;
}

void announce_devices() {
  Gpu& g = gpu();
  for (int i = 0; i < g.devices; ++i) {
    auto device = make<CUpti_ActivityDevice5>(CUPTI_ACTIVITY_KIND_DEVICE);
    device.id = static_cast<std::uint32_t>(i);
    device.name = g.names.insert(g.name).first->c_str();
    std::memset(&device.uuid, 0x11 + i, sizeof device.uuid);
    device.computeCapabilityMajor = static_cast<std::uint32_t>(g.major);
    device.computeCapabilityMinor = static_cast<std::uint32_t>(g.minor);
    device.globalMemorySize = kFakeMemory;
    device.globalMemoryBandwidth = 3'000'000'000;
    device.l2CacheSize = 50 << 20;
    device.coreClockRate = 1'980'000;
    device.numThreadsPerWarp = 32;
    device.numMultiprocessors = 132;
    device.numMemcpyEngines = 3;
    device.maxWarpsPerMultiprocessor = 64;
    device.maxBlocksPerMultiprocessor = 32;
    device.maxSharedMemoryPerMultiprocessor = 233'472;
    device.maxRegistersPerMultiprocessor = device.maxRegistersPerBlock = 65'536;
    device.maxSharedMemoryPerBlock = 49'152;
    device.maxThreadsPerBlock = 1024;
    device.isCudaVisible = 1;
    write(device);
  }
}

void announce_context() {
  auto context = make<CUpti_ActivityContext3>(CUPTI_ACTIVITY_KIND_CONTEXT);
  context.contextId = kContext;
  context.nullStreamId = 7;
  write(context);
}

void announce_stream(std::uint32_t id) {
  auto stream = make<CUpti_ActivityStream>(CUPTI_ACTIVITY_KIND_STREAM);
  stream.contextId = kContext;
  stream.streamId = id;
  write(stream);
}

// Finds CUPTI if the process has now loaded it, and reports existing objects to a new subscriber.
void look_for_cupti() {
  Gpu& g = gpu();
  if (g.cupti == nullptr) {
    // Native tests link it; other programs load it under CUPTI's name.
    void* library = dlsym(RTLD_DEFAULT, "fake_record") != nullptr ? RTLD_DEFAULT
                                                                  : dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
    static Cupti found;
    if (!find(library, found.record, "fake_record") || !find(library, found.next_correlation, "fake_next_correlation") ||
        !find(library, found.create_context, "fake_create_context") || !find(library, found.is_enabled, "fake_is_enabled") ||
        !find(library, found.enter_call, "fake_enter_call") || !find(library, found.ran, "fake_ran") ||
        !find(library, found.sweep, "fake_sweep") || !find(library, found.counts, "fake_counts") ||
        !find(library, found.driver_call, "fake_driver_call") || !find(library, found.context, "fake_context") ||
        !find(library, found.tell_call, "fake_tell_call") ||
        !find(library, found.set_correlation, "fake_set_correlation") ||
        !find(library, found.begin_call, "fake_begin_call") || !find(library, found.end_call, "fake_end_call") ||
        !find(library, found.launch_call, "fake_launch_call") || !find(library, found.stream_call, "fake_stream_call") || !find(library, found.executed, "fake_executed") ||
        !find(library, found.graph, "fake_graph") || !find(library, found.graph_add, "fake_graph_add") ||
        !find(library, found.graph_instantiate, "fake_graph_instantiate") ||
        !find(library, found.graph_nodes, "fake_graph_nodes") ||
        !find(library, found.graph_tracing, "fake_graph_tracing") || !find(library, found.module, "fake_module") || !find(library, found.load_cubin, "fake_load_cubin") ||
        !find(library, found.subscriptions, "fake_subscriptions") || !find(library, found.on_flush, "fake_on_flush") ||
        !find(library, found.on_dump, "fake_on_dump") ||
        !find(library, found.callback_name, "cuptiGetCallbackName"))
      return;  // another CUPTI
    g.cupti = &found;
    found.on_flush(on_flush);
    found.on_dump(on_dump);
  }
  const unsigned subscription = g.cupti->subscriptions();
  if (!g.context_made || subscription == g.announced) return;
  g.announced = subscription;
  announce_devices();
  announce_context();
  for (const std::uint32_t stream : g.streams) announce_stream(stream);
}

void use_stream(std::uint32_t stream) {
  if (stream != kFakeAllStreams && gpu().streams.insert(stream).second) announce_stream(stream);
}

// Delivers finished work. Like CUPTI, a forced flush also delivers running work without an end.
void collect(bool forced = false) {
  const std::uint64_t time = now();
  auto& pending = gpu().pending;
  const auto left = std::stable_partition(pending.begin(), pending.end(), [&](const Work& w) {
    return w.end <= time || (forced && w.start <= time);
  });
  for (auto it = pending.begin(); it != left; ++it) {
    if (it->end > time && it->record.size() == sizeof(CUpti_ActivityKernel9)) {
      CUpti_ActivityKernel9 kernel;
      std::memcpy(&kernel, it->record.data(), sizeof kernel);
      kernel.end = 0;
      write(kernel);
    } else {
      write(it->record.data(), it->record.size());
    }
  }
  pending.erase(pending.begin(), left);
}

// Reports existing objects to a subscriber that enables a kind in mid-program.
void on_dump(int kind) {
  const Lock lock(gpu().mutex);
  Gpu& g = gpu();
  if (!g.context_made) return;
  g.announced = g.cupti->subscriptions();
  if (kind == CUPTI_ACTIVITY_KIND_DEVICE) announce_devices();
  if (kind == CUPTI_ACTIVITY_KIND_CONTEXT) announce_context();
  if (kind == CUPTI_ACTIVITY_KIND_STREAM)
    for (const std::uint32_t stream : g.streams) announce_stream(stream);
}

void on_flush(bool forced) {
  const Lock lock(gpu().mutex);
  collect(forced);
}

void wait_for(std::uint32_t stream) {
  Gpu& g = gpu();
  std::unique_lock lock(g.mutex);
  std::uint64_t end = 0;
  for (const Work& w : g.pending)
    if (!w.detached && (stream == kFakeAllStreams || w.stream == stream)) end = std::max(end, w.end);
  for (const auto& [id, time] : g.free_at)  // includes unrecorded work
    if (stream == kFakeAllStreams || id == stream) end = std::max(end, time);
  lock.unlock();
  if (end > now()) sleep_until(end);
  lock.lock();
  collect();
}

// The callback id of a call. The name may have CUPTI's version suffix or lack it.
CUpti_CallbackId callback_id(CUpti_CallbackDomain domain, std::string_view call) {
  for (CUpti_CallbackId id = 1; id < 1024; ++id) {
    const char* text = nullptr;
    if (gpu().cupti->callback_name(domain, id, &text) != CUPTI_SUCCESS || text == nullptr) continue;
    const std::string_view name = text;
    if (name == call) return id;
    if (!starts_with(name, call) || !starts_with(name.substr(call.size()), "_v")) continue;
    const std::string_view version = name.substr(call.size() + 2);
    if (std::all_of(version.begin(), version.end(), [](char c) { return c >= '0' && c <= '9'; })) return id;
  }
  return 0;
}

// An API call of the program: runs `body(correlation)`, which returns the call's status, and records the call.
template <typename Body>
int api_call(const char* call, Body&& body) {
  Gpu& g = gpu();
  const bool driver = !contains(std::string_view(call).substr(0, 6), "cuda");
  const auto domain = driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
  auto api = make<CUpti_ActivityAPI>(driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME);
  {
    const Lock lock(g.mutex);
    look_for_cupti();
    if (g.cupti != nullptr) {
      auto [it, fresh] = g.callback_ids.try_emplace(call, 0);
      if (fresh) it->second = callback_id(domain, call);
      if (it->second == 0) return CUDA_ERROR_NOT_FOUND;
      api.cbid = it->second;
    }
    api.processId = static_cast<std::uint32_t>(getpid());
    api.threadId = static_cast<std::uint32_t>(syscall(SYS_gettid));
    api.start = now();
  }
  const bool recorded = api.cbid != 0 && g.cupti->begin_call(domain, api.cbid, &api.correlationId);
  // Launch reports launches of the driver, with their parameters.
  const bool tells = api.cbid != 0 && !(driver && contains(call, "Launch"));
  const bool with_data = !driver || contains(call, "Synchronize") || contains(call, "Memcpy") || contains(call, "Memset") ||
                         contains(call, "Profiler");
  if (g.cupti != nullptr) g.cupti->set_correlation(api.correlationId);
  if (tells && with_data) g.cupti->tell_call(domain, api.cbid, nullptr);
  else if (tells) g.cupti->enter_call(domain, api.cbid);
  const int status = body(api.correlationId);
  if (tells && with_data) g.cupti->tell_call(domain, api.cbid, &status);
  const Lock lock(g.mutex);
  api.returnValue = static_cast<std::uint32_t>(status);
  api.end = now();
  if (recorded) g.cupti->end_call(&api, sizeof api);
  collect();
  return status;
}

const Cupti* cupti_now() {
  const Lock lock(gpu().mutex);
  return gpu().cupti;
}

// Reports a launch to CUPTI's subscriber with its kernel and its arguments, in the driver's domain, because a call of the runtime
// calls the driver.
class Launch {
 public:
  Launch(std::string_view call, const char* kernel, const std::uint32_t* grid, const std::uint32_t* block, std::uint32_t stream)
      : kernel_(kernel) {
    Gpu& g = gpu();
    const Lock lock(g.mutex);
    if (g.cupti == nullptr) return;
    const bool extended = contains(call, "Ex");
    const char* name = extended ? "cuLaunchKernelEx" : contains(call, "Cooperative") ? "cuLaunchCooperativeKernel" : "cuLaunchKernel";
    auto [it, fresh] = g.callback_ids.try_emplace(name, 0);
    if (fresh) it->second = callback_id(CUPTI_CB_DOMAIN_DRIVER_API, name);
    id_ = it->second;
    auto* const handle = reinterpret_cast<CUstream>(std::uintptr_t{stream});
    configuration_ = {grid[0], grid[1], grid[2], block[0], block[1], block[2], 0, handle, nullptr, 0};
    plain_ = {nullptr, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, 0, handle, nullptr, nullptr};
    parameters_ = extended ? static_cast<const void*>(&extended_) : &plain_;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  void begin() { tell(nullptr); }
  void end(int status) { tell(&status); }

 private:
  void tell(const int* result) {
    if (id_ != 0) gpu().cupti->launch_call(id_, parameters_, kernel_, current_context(), result);
  }
  struct Plain {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void** parameters;
    void** extra;
  };
  struct Extended {
    const CUlaunchConfig* configuration;
    CUfunction function;
    void** parameters;
    void** extra;
  };
  const char* kernel_;
  CUpti_CallbackId id_ = 0;
  CUlaunchConfig configuration_{};
  Extended extended_{&configuration_, nullptr, nullptr, nullptr};
  Plain plain_{};
  const void* parameters_ = nullptr;
};

// The start of work in a stream, after the earlier work of the stream.
std::uint64_t reserve(std::uint32_t stream, std::uint64_t duration, std::uint64_t delay, bool detached) {
  std::uint64_t& free_at = gpu().free_at[stream];
  const std::uint64_t earliest = now() + kLaunchLatency + delay;
  if (detached) return earliest;
  const std::uint64_t start = std::max(earliest, free_at);
  free_at = start + duration;
  return start;
}

// Counts work for hardware metrics. False when no record will follow, because a range replays the work.
bool count(unsigned kernels, std::uint64_t bytes_read, std::uint64_t bytes_written, std::uint64_t duration) {
  return gpu().cupti == nullptr || gpu().cupti->ran(kernels, bytes_read, bytes_written, duration);
}

template <typename Record>
void submit(const Record& record, std::uint64_t start, std::uint64_t end, std::uint32_t stream, bool detached = false) {
  Gpu& g = gpu();
  // CUPTI reports work that was submitted while its kind was enabled.
  if (g.cupti == nullptr || !g.cupti->is_enabled(record.kind)) return;
  Work work;
  work.record.resize(sizeof record);
  std::memcpy(work.record.data(), &record, sizeof record);
  work.start = start;
  work.end = end;
  work.stream = stream;
  work.detached = detached;
  g.pending.push_back(std::move(work));
}

CUpti_ActivityKernel9 kernel_record(const char* name, std::uint32_t stream, std::uint32_t correlation) {
  auto kernel = make<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  kernel.name = gpu().names.insert(name).first->c_str();
  kernel.gridX = kernel.gridY = kernel.gridZ = kernel.blockY = kernel.blockZ = 1;
  kernel.blockX = 128;
  kernel.registersPerThread = 32;
  kernel.contextId = kContext;
  kernel.streamId = stream;
  kernel.correlationId = correlation;
  return kernel;
}

// Adds work to the graph that captures its stream. False when the stream is not captured.
bool capture(std::uint32_t stream, const char* kernel) {
  std::uint32_t graph = 0;
  {
    const Lock lock(gpu().mutex);
    const auto it = gpu().captures.find(stream);
    if (it == gpu().captures.end()) return false;
    graph = it->second;
  }
  if (graph != 0) gpu().cupti->graph_add(graph, kernel);
  return true;
}

// The actions of the runtime at a program's first call.
int runtime_init() {
  if (const CUresult result = cuInit(0)) return result;
  Gpu& g = gpu();
  {
    const Lock lock(g.mutex);
    if (g.context_made) return CUDA_SUCCESS;
  }
  CUcontext context = nullptr;
  if (const CUresult result = cuDevicePrimaryCtxRetain(&context, 0)) return result;
  return cuCtxSetCurrent(context);
}

}  // namespace

int fake::api_call(const char* call, const std::function<int(std::uint32_t)>& body) { return ::api_call(call, body); }

void fake::tell(const char* call, std::uint32_t correlation, const void* parameters, const int* result) {
  Gpu& g = gpu();
  CUpti_CallbackId id = 0;
  {
    const Lock lock(g.mutex);
    if (g.cupti == nullptr) return;
    auto [it, fresh] = g.callback_ids.try_emplace(call, 0);
    if (fresh) it->second = callback_id(CUPTI_CB_DOMAIN_DRIVER_API, call);
    id = it->second;
  }
  g.cupti->driver_call(id, correlation, parameters, contexts.empty() ? nullptr : contexts.back(), result);
}

void fake::tell_of_context(CUcontext context, bool made) {
  if (gpu().cupti != nullptr) gpu().cupti->context(reinterpret_cast<std::uintptr_t>(context), made);
}

bool fake::is_enabled(int kind) { return gpu().cupti != nullptr && gpu().cupti->is_enabled(kind); }
int fake::initialise_runtime() { return runtime_init(); }
CUcontext fake::context() { return current_context(); }

extern "C" {

// ---- for tests ----

EXPORT unsigned fake_gpu_context_waits() { return gpu().context_waits.load(); }
EXPORT void fake_gpu_describe(const char* name, int major, int minor, int devices) {
  const Lock lock(gpu().mutex);
  gpu().name = name;
  gpu().major = major;
  gpu().minor = minor;
  gpu().devices = devices;
}

EXPORT void fake_gpu_stream(void* stream, void* context, bool capturing) {
  const Lock lock(gpu().mutex);
  gpu().described[static_cast<CUstream>(stream)] = {static_cast<CUcontext>(context), capturing};
}
EXPORT int fake_gpu_init() { return runtime_init(); }

EXPORT int fake_gpu_call(const char* call, std::uint64_t duration) {
  if (const int status = runtime_init()) return status;
  return api_call(call, [&](std::uint32_t) {
    if (duration != 0) sleep_until(now() + duration);
    return 0;
  });
}

EXPORT int fake_gpu_profiler(const char* call) {
  if (const int status = runtime_init()) return status;
  const CUpti_CallbackId of_driver = contains(call, "Start") ? kFakeDriverProfilerStart : kFakeDriverProfilerStop;
  return api_call(call, [&](std::uint32_t) {
    const Cupti* const cupti = cupti_now();
    const int status = 0;
    if (cupti == nullptr || !starts_with(call, "cuda")) return status;
    cupti->tell_call(CUPTI_CB_DOMAIN_DRIVER_API, of_driver, nullptr);
    cupti->tell_call(CUPTI_CB_DOMAIN_DRIVER_API, of_driver, &status);
    return status;
  });
}

// Loads the module of a kernel before its first launch. With FAKE_SOURCES set, its lines are from FAKE_SOURCES/<kernel>.cu:10 on.
static void load_module_of(const char* name) {
  Gpu& g = gpu();
  std::unique_lock lock(g.mutex);
  auto [module, fresh] = g.modules.try_emplace(name, std::string(name) + "\n");
  if (!fresh || g.cupti == nullptr) return;
  if (const char* folder = std::getenv("FAKE_SOURCES"))
    module->second = std::string(name) + " " + folder + "/" + name + ".cu 10\n";
  g.cupti->module(name, module->second.c_str());
  lock.unlock();
  g.cupti->load_cubin(module->second.c_str());
}

// If the next kernel of this thread runs as passes of a range, it waits in each pass for this number of launches of another kernel.
thread_local std::string awaited;
thread_local unsigned awaited_launches = 0;
EXPORT void fake_gpu_wait_in_launch(const char* kernel, unsigned launches) {
  awaited = kernel;
  awaited_launches = launches;
}

// The next recorded launch returns only after the file exists.
static std::string held_until;
EXPORT void fake_gpu_hold_recorded_launch(const char* file) {
  const Lock lock(gpu().mutex);
  held_until = file;
}

// The launch that this thread reports to CUPTI's subscriber. It can be made again.
struct Launching {
  const char* kernel = nullptr;
  std::uint64_t duration = 0;
  std::uint64_t awaited_launches = 0;  // launches of `awaited` that each run waits for
};
thread_local Launching launching;

static void wait_for_awaited(std::uint64_t launches) {
  const auto there = [&] {
    const Lock lock(gpu().mutex);
    return gpu().launched[awaited] >= launches;
  };
  while (!there()) sleep_until(now() + 1'000'000);
}

EXPORT std::uint64_t* fake_gpu_memory() { return &gpu().memory; }

EXPORT int fake_gpu_launch(const char* call, const char* name, const std::uint32_t* grid, const std::uint32_t* block,
                           std::uint32_t stream, std::uint64_t duration, std::uint64_t delay, std::uint32_t flags) {
  if (const int status = runtime_init()) return status;
  return api_call(call, [&](std::uint32_t correlation) -> int {
    load_module_of(name);
    if (capture(stream, name)) return 0;
    Launch told(call, name, grid, block, stream);
    launching = {name, duration, 0};
    told.begin();
    // Read here and not earlier, because a launch of another thread that a profiler waited for does not count.
    if (const unsigned further = std::exchange(awaited_launches, 0)) {
      const Lock lock(gpu().mutex);
      launching.awaited_launches = gpu().launched[awaited] + further;
    }
    const std::uint64_t enough = launching.awaited_launches;
    if (flags & kFakeFails) {
      told.end(CUDA_ERROR_INVALID_VALUE);
      launching = {};
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::unique_lock lock(gpu().mutex);
    use_stream(stream);
    const std::uint64_t warps = (block[0] * block[1] * block[2] + 31) / 32;
    if (gpu().cupti != nullptr) gpu().cupti->executed(name, warps * grid[0] * grid[1] * grid[2], current_context());
    CUpti_ActivityKernel9 kernel = kernel_record(name, stream, correlation);
    kernel.gridX = static_cast<std::int32_t>(grid[0]);
    kernel.gridY = static_cast<std::int32_t>(grid[1]);
    kernel.gridZ = static_cast<std::int32_t>(grid[2]);
    kernel.blockX = static_cast<std::int32_t>(block[0]);
    kernel.blockY = static_cast<std::int32_t>(block[1]);
    kernel.blockZ = static_cast<std::int32_t>(block[2]);
    kernel.start = reserve(stream, duration, delay, flags & kFakeDetached);
    kernel.end = flags & kFakeNoEnd ? 0 : kernel.start + duration;
    ++gpu().launched[name];
    ++gpu().memory;
    if (count(1, 0, 0, duration)) submit(kernel, kernel.start, kernel.start + duration, stream, flags & kFakeDetached);
    if (gpu().cupti != nullptr && gpu().cupti->counts()) {  // the launch waits for its end
      lock.unlock();
      wait_for_awaited(enough);
      lock.lock();
    }
    const bool recorded = gpu().cupti != nullptr && gpu().cupti->is_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    const std::string file = recorded ? std::exchange(held_until, {}) : std::string();
    lock.unlock();
    while (!file.empty() && access(file.c_str(), F_OK) != 0) sleep_until(now() + 1'000'000);
    told.end(0);
    launching = {};
    return 0;
  });
}

void submit_whole_graph(std::uint32_t graph, std::uint32_t stream, std::uint32_t correlation, std::uint64_t start,
                        std::uint64_t duration) {
  auto whole = make<CUpti_ActivityGraphTrace2>(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  whole.correlationId = correlation;
  whole.start = start;
  whole.end = start + duration;
  whole.contextId = whole.endContextId = kContext;
  whole.streamId = stream;
  whole.graphId = graph;
  submit(whole, whole.start, whole.end, stream);
}

EXPORT int fake_gpu_graph(const char* call, const char* const* names, std::uint32_t nodes, std::uint32_t graph,
                          std::uint32_t stream, std::uint64_t duration) {
  if (const int status = runtime_init()) return status;
  return api_call(call, [&](std::uint32_t correlation) {
    Gpu& g = gpu();
    const Lock lock(g.mutex);
    use_stream(stream);
    std::uint64_t start = reserve(stream, duration * nodes, 0, false);
    if (!count(nodes, 0, 0, duration * nodes)) return 0;
    if (g.cupti != nullptr && g.cupti->is_enabled(CUPTI_ACTIVITY_KIND_GRAPH_TRACE)) {
      submit_whole_graph(graph, stream, correlation, start, duration * nodes);
      return 0;
    }
    for (std::uint32_t i = 0; i < nodes; ++i, start += duration) {
      CUpti_ActivityKernel9 kernel = kernel_record(names[i], stream, correlation);
      kernel.graphId = graph;
      kernel.graphNodeId = (std::uint64_t{graph} << 32) + i + 1;
      kernel.start = start;
      kernel.end = start + duration;
      submit(kernel, kernel.start, kernel.end, stream);
    }
    return 0;
  });
}

// Reports a call about a stream to the subscriber.
void tell_of_stream(std::uint32_t callback, std::uint32_t stream) {
  if (const Cupti* cupti = gpu().cupti)
    cupti->stream_call(CUPTI_CB_DOMAIN_DRIVER_API, callback, reinterpret_cast<void*>(std::uintptr_t{stream}), nullptr, 0);
}

EXPORT int fake_gpu_begin_capture(std::uint32_t stream) {
  if (const int status = runtime_init()) return status;
  return api_call("cudaStreamBeginCapture", [&](std::uint32_t) {
    tell_of_stream(kFakeBeginCapture, stream);
    const Lock lock(gpu().mutex);
    gpu().captures[stream] = gpu().cupti != nullptr ? gpu().cupti->graph() : 0;
    return 0;
  });
}

EXPORT int fake_gpu_end_capture(std::uint32_t stream, std::uint32_t* graph) {
  return api_call("cudaStreamEndCapture", [&](std::uint32_t) -> int {
    tell_of_stream(kFakeEndCapture, stream);
    const Lock lock(gpu().mutex);
    const auto capture = gpu().captures.extract(stream);
    if (capture.empty()) return CUDA_ERROR_ILLEGAL_STATE;
    *graph = capture.mapped();
    return 0;
  });
}

EXPORT int fake_gpu_instantiate(std::uint32_t graph, std::uint32_t* exec) {
  return api_call("cudaGraphInstantiate", [&](std::uint32_t) {
    *exec = graph != 0 ? gpu().cupti->graph_instantiate(graph) : 0;
    return 0;
  });
}

EXPORT int fake_gpu_replay(std::uint32_t exec, std::uint32_t stream, std::uint64_t duration) {
  return api_call("cudaGraphLaunch", [&](std::uint32_t correlation) {
    constexpr std::uint32_t kMost = 4096;
    std::vector<std::uint64_t> ids(kMost);
    std::vector<const char*> kernels(kMost);
    const std::uint32_t count = exec != 0 ? gpu().cupti->graph_nodes(exec, ids.data(), kernels.data(), kMost) : 0;
    const GraphTracing tracing = count != 0 ? gpu().cupti->graph_tracing(exec) : GraphTracing::nothing;
    const Lock lock(gpu().mutex);
    use_stream(stream);
    if (tracing == GraphTracing::whole) submit_whole_graph(exec, stream, correlation, reserve(stream, count * duration, 0, false), count * duration);
    if (tracing != GraphTracing::nodes) return 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto add = [&](auto work) {
        work.contextId = kContext;
        work.streamId = stream;
        work.correlationId = correlation;
        work.graphId = exec;
        work.graphNodeId = ids[i];
        work.start = reserve(stream, duration, 0, false);
        work.end = work.start + duration;
        submit(work, work.start, work.end, stream);
      };
      if (kernels[i] != nullptr) add(kernel_record(kernels[i], stream, correlation));
      else add(make<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET));
    }
    return 0;
  });
}

EXPORT int fake_gpu_copy(const char* call, std::uint32_t kind, std::uint32_t pinned, std::uint64_t bytes,
                         std::uint32_t stream, std::uint64_t duration) {
  if (const int status = runtime_init()) return status;
  return api_call(call, [&](std::uint32_t correlation) {
    const bool async = contains(call, "Async");
    const auto fill = [&](auto& copy) {
      copy.copyKind = static_cast<std::uint8_t>(kind);
      const bool from_host = kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD || kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
      const bool to_host = kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH || kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
      const auto host = pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
      copy.srcKind = from_host ? host : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
      copy.dstKind = to_host ? host : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
      copy.flags = async ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0;
      copy.bytes = bytes;
      copy.contextId = kContext;
      copy.streamId = stream;
      copy.correlationId = correlation;
      copy.start = reserve(stream, duration, 0, false);
      copy.end = copy.start + duration;
      if (count(0, bytes, bytes, duration)) submit(copy, copy.start, copy.end, stream);
    };
    {
      const Lock lock(gpu().mutex);
      use_stream(stream);
      if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP) {
        auto copy = make<CUpti_ActivityMemcpyPtoP4>(CUPTI_ACTIVITY_KIND_MEMCPY2);
        copy.srcContextId = kContext;
        copy.dstContextId = kContext + 1;
        copy.dstDeviceId = 1;
        fill(copy);
      } else {
        auto copy = make<CUpti_ActivityMemcpy5>(CUPTI_ACTIVITY_KIND_MEMCPY);
        fill(copy);
      }
    }
    if (!async) wait_for(stream);
    return 0;
  });
}

EXPORT int fake_gpu_fill(const char* call, std::uint64_t bytes, std::uint32_t value, std::uint32_t stream,
                         std::uint64_t duration) {
  if (const int status = runtime_init()) return status;
  return api_call(call, [&](std::uint32_t correlation) {
    if (capture(stream, nullptr)) return 0;
    const Lock lock(gpu().mutex);
    use_stream(stream);
    auto fill = make<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
    fill.value = value;
    fill.bytes = bytes;
    fill.contextId = kContext;
    fill.streamId = stream;
    fill.correlationId = correlation;
    fill.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    fill.flags = contains(call, "Async") ? CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC : 0;
    fill.start = reserve(stream, duration, 0, false);
    fill.end = fill.start + duration;
    if (count(0, 0, bytes, duration)) submit(fill, fill.start, fill.end, stream);
    return 0;
  });
}

EXPORT int fake_gpu_wait(const char* call, std::uint32_t stream) {
  if (const int status = runtime_init()) return status;
  const bool of_stream = contains(call, "Stream"), of_event = contains(call, "Event");
  const char* const driver_call = of_stream ? "cuStreamSynchronize" : of_event ? "cuEventSynchronize" : "cuCtxSynchronize";
  const bool of_runtime = starts_with(call, "cuda");  // which calls the driver
  return api_call(call, [&](std::uint32_t correlation) {
    if (of_runtime) fake::tell(driver_call, correlation, nullptr, nullptr);
    auto wait = make<CUpti_ActivitySynchronization2>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
    wait.type = stream == kFakeAllStreams ? CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE
                                      : CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
    wait.start = now();
    wait_for(stream);
    wait.end = now();
    wait.correlationId = correlation;
    wait.contextId = kContext;
    wait.streamId = stream == kFakeAllStreams ? CUPTI_SYNCHRONIZATION_INVALID_VALUE : stream;
    wait.cudaEventId = CUPTI_SYNCHRONIZATION_INVALID_VALUE;
    fake::after_wait(!of_stream && !of_event);
    const int status = CUDA_SUCCESS;
    if (of_runtime) fake::tell(driver_call, correlation, nullptr, &status);
    const Lock lock(gpu().mutex);
    write(wait);
    return status;
  });
}

// ---- the driver ----

EXPORT CUresult cuInit(unsigned) {
  Gpu& g = gpu();
  // Other threads wait until the injected library has been initialised.
  static auto* one_at_a_time = new std::recursive_mutex;
  const Lock initialising(*one_at_a_time);
  const char* injection = nullptr;
  {
    const Lock lock(g.mutex);
    if (ready()) return CUDA_SUCCESS;
    if (g.initialised != 0) return CUDA_ERROR_NOT_INITIALIZED;  // CUDA was in use before the fork
    if (!std::exchange(g.injected, true)) injection = std::getenv("CUDA_INJECTION64_PATH");
  }
  if (injection != nullptr && *injection != '\0')
    if (void* library = dlopen(injection, RTLD_NOW))
      if (auto* initialise = reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"))) initialise();
  const Lock lock(g.mutex);
  g.initialised = getpid();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
  const Cupti* const cupti = ready() ? cupti_now() : nullptr;
  if (cupti != nullptr) {
    const int status = 0;
    cupti->set_correlation(cupti->next_correlation());
    cupti->tell_call(CUPTI_CB_DOMAIN_DRIVER_API, kFakeDriverGetVersion, nullptr);
    cupti->tell_call(CUPTI_CB_DOMAIN_DRIVER_API, kFakeDriverGetVersion, &status);
  }
  *version = 13000;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  *count = gpu().devices;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  if (ordinal < 0 || ordinal >= gpu().devices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  if (size <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::strncpy(name, gpu().name.c_str(), static_cast<std::size_t>(size) - 1);
  name[size - 1] = '\0';
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 2'619'000; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232'448; break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 62'914'560; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1'980'000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 5'120; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65'536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 233'472; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49'152; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = gpu().major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = gpu().minor; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
#undef cuDeviceTotalMem
EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = kFakeMemory;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  const std::string id = "0000:0" + std::to_string(device + 1) + ":00.0";
  if (size <= static_cast<int>(id.size())) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(text, id.c_str(), id.size() + 1);
  return CUDA_SUCCESS;
}
#undef cuDeviceGetUuid  // which newer headers call cuDeviceGetUuid_v2
// The functions of modules are the fake CUPTI's.
EXPORT CUresult cuFuncGetName(const char** name, CUfunction function) {
  static const auto of = reinterpret_cast<decltype(&fake_function_name)>(dlsym(RTLD_DEFAULT, "fake_function_name"));
  *name = of != nullptr ? of(reinterpret_cast<std::uintptr_t>(function)) : nullptr;
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
// All kernels have 32 registers.
EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return cuFuncGetName(name, reinterpret_cast<CUfunction>(kernel));
}
#undef cuGraphKernelNodeGetParams
EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  static const auto of = reinterpret_cast<decltype(&fake_node_function)>(dlsym(RTLD_DEFAULT, "fake_node_function"));
  const std::uintptr_t function = of != nullptr ? of(reinterpret_cast<std::uintptr_t>(node)) : 0;
  params->func = reinterpret_cast<CUfunction>(function);
  return function != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, 0x11 + device, sizeof *uuid);  // as in announce_devices()
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_NOT_INITIALIZED ? "CUDA_ERROR_NOT_INITIALIZED" : "CUDA_ERROR_OF_THE_FAKE";
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  const Lock lock(gpu().mutex);
  *flags = 0;
  *active = device == 0 && gpu().primary > 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  Gpu& g = gpu();
  *context = reinterpret_cast<CUcontext>(std::uintptr_t{kContext});
  const Cupti* cupti = nullptr;
  {
    const Lock lock(g.mutex);
    ++g.primary;
    look_for_cupti();
    if (!g.context_made) cupti = g.cupti;
  }
  // CUPTI calls its subscriber before work runs in the context. The subscriber may enable further kinds.
  if (cupti != nullptr) cupti->create_context();
  const Lock lock(g.mutex);
  g.context_made = true;
  look_for_cupti();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  const Lock lock(gpu().mutex);
  if (gpu().primary == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --gpu().primary;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  if (!contexts.empty()) contexts.pop_back();
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  if (!ready() || contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  *id = reinterpret_cast<std::uintptr_t>(context);
  return context != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  const Lock lock(gpu().mutex);
  const auto it = gpu().described.find(stream);
  if (it == gpu().described.end()) return cuCtxGetCurrent(context);
  *context = it->second.first;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const Lock lock(gpu().mutex);
  CUcontext current = nullptr;
  if (const CUresult result = cuCtxGetCurrent(&current)) return result;
  const auto& described = gpu().described;
  if (stream == nullptr || stream == CU_STREAM_LEGACY)  // all streams of the context depend on it
    return std::any_of(described.begin(), described.end(),
                       [&](const auto& one) { return one.second == std::pair(current, true); })
               ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
               : (*status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS);
  const auto it = described.find(stream);
  *status = it != described.end() && it->second.second ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSynchronize() {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  gpu().context_waits.fetch_add(1);
  return static_cast<CUresult>(fake_gpu_wait("cuCtxSynchronize", kFakeAllStreams));
}
EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  const auto number = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(stream));
  return static_cast<CUresult>(fake_gpu_wait("cuStreamSynchronize", number));
}
EXPORT CUresult cuEventSynchronize(CUevent) { return static_cast<CUresult>(fake_gpu_wait("cuEventSynchronize", kFakeAllStreams)); }
// Modules of tools have one kernel each, which sweeps the L2 cache.
static char sweeps;
EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = reinterpret_cast<CUmodule>(&sweeps);
  return image != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  *function = reinterpret_cast<CUfunction>(&sweeps);
  return CUDA_SUCCESS;
}

// A launch by a tool. The kernel is the tool's own, or the kernel of the launch in its callback. CUPTI reports these launches to
// the tool too.
static CUresult launch_of_tool(const char* call, CUfunction function) {
  const bool own = function == reinterpret_cast<CUfunction>(&sweeps);
  if (!own && launching.kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  constexpr std::uint32_t one[3] = {1, 1, 1};
  Launch told(call, own ? "sweep" : launching.kernel, one, one, 0);
  told.begin();
  {
    const Lock lock(gpu().mutex);
    if (own && gpu().cupti != nullptr) gpu().cupti->sweep();
    if (!own) ++gpu().memory;
    if (!own) count(1, 0, 0, launching.duration);
  }
  if (!own) wait_for_awaited(launching.awaited_launches);
  told.end(0);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                               void**, void**) {
  return launch_of_tool("cuLaunchKernel", function);
}
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                          CUstream, void**) {
  return launch_of_tool("cuLaunchCooperativeKernel", function);
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction function, void**, void**) {
  return launch_of_tool("cuLaunchKernelEx", function);
}
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char value, std::size_t bytes) {
  return static_cast<CUresult>(fake_gpu_fill("cuMemsetD8_v2", bytes, value, 7, 1000));
}

}  // extern "C"
