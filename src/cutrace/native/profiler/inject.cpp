// libcutrace_profiler.so: counts hardware metrics of the launches that a plan names, in the second run of `cutrace profile`.
//
// CUTRACE_PROFILE names a folder with the file `plan`:
//
//   line 1    the libcupti to load when the program has loaded none; may be empty
//   line 2    metrics, with commas between them
//   others    <which launch of a kernel in this process, from 0> <mangled name of the kernel>
//
// Each process that runs a planned launch writes <pid>.values there, a line for each: the launch, its grid and block, the name
// and the values, with tabs between them; or "error", a tab and a sentence. Launches into a stream that is being captured run
// nothing and are not counted; nor are kernels of graphs, which no launch call names.
//
// A planned launch runs alone: it has the lock that all other launches share.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda.h>

#include "../common/text.h"
#include "range_counting.h"
#include "range_profiler.h"
#include "values.h"

namespace cutrace {
namespace {

struct Launch {
  CUstream stream = nullptr;
  unsigned grid[3]{}, block[3]{};
};

// How CUPTI passes the arguments of cuLaunchKernel() and cuLaunchCooperativeKernel(): as far as they are of interest.
struct Arguments {
  CUfunction function;
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
};

Launch plain(const void* arguments) {
  const auto& a = *static_cast<const Arguments*>(arguments);
  return {a.stream, {a.grid[0], a.grid[1], a.grid[2]}, {a.block[0], a.block[1], a.block[2]}};
}

// cuLaunchKernelEx() begins with a configuration.
Launch extended(const void* arguments) {
  const CUlaunchConfig& c = **static_cast<const CUlaunchConfig* const*>(arguments);
  return {c.hStream, {c.gridDimX, c.gridDimY, c.gridDimZ}, {c.blockDimX, c.blockDimY, c.blockDimZ}};
}

struct LaunchCall {
  CUpti_CallbackId id;
  Launch (*read)(const void* arguments);
};

constexpr LaunchCall kLaunches[] = {
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, plain},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz, plain},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, plain},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz, plain},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, extended},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz, extended},
};

struct Kernel {
  std::vector<bool> planned;  // by launch
  std::atomic<std::size_t> launched{0};
};

class Profiler {
 public:
  // Reads the plan and has CUPTI tell of launches. On failure a sentence is left for `cutrace profile`.
  void start(const std::string& folder);
  void on_launch(CUpti_CallbackId id, const CUpti_CallbackData& data);

 private:
  bool read_plan(std::string& wanted_cupti);
  void say(const std::string& line) { append_line(folder_, line); }
  bool is_captured(CUstream stream) const;
  RangeProfiler* profiler_of(CUcontext context);
  void enter(const LaunchCall& call, const CUpti_CallbackData& data);
  void leave(const CUpti_CallbackData& data);
  void watch(bool on);

  std::string folder_;
  std::vector<std::string> metrics_;
  std::unordered_map<std::string, Kernel> kernels_;
  std::atomic<std::size_t> left_{0};  // planned launches that have not run
  CuptiLibrary cupti_;
  ProfilerFunctions functions_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  decltype(&cuStreamIsCapturing) stream_is_capturing_ = nullptr;
  decltype(&cuCtxGetDevice) ctx_get_device_ = nullptr;
  std::shared_mutex launching_;
  // Under launching_, alone: by context.
  std::map<CUcontext, std::unique_ptr<RangeProfiler>> profilers_;
};

// What a thread is in the middle of, between the begin and the end of its launch call.
struct Current {
  enum class Holds { nothing, shared, alone } holds = Holds::nothing;
  Kernel* kernel = nullptr;
  std::size_t ordinal = 0;
  Launch launch;
  RangeProfiler* profiler = nullptr;  // that has begun
};
thread_local Current current;

void Profiler::start(const std::string& folder) {
  folder_ = folder;
  std::string wanted, error;
  if (!read_plan(wanted)) return;
  if (!cupti_.load(wanted, error)) return say("error\t" + error);
  if (!functions_.load()) return say("error\tthis libcupti has no range profiler; use CUPTI 12.6 or later");
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  stream_is_capturing_ = reinterpret_cast<decltype(stream_is_capturing_)>(driver ? dlsym(driver, "cuStreamIsCapturing") : nullptr);
  ctx_get_device_ = reinterpret_cast<decltype(ctx_get_device_)>(driver ? dlsym(driver, "cuCtxGetDevice") : nullptr);
  const auto callback = [](void* self, CUpti_CallbackDomain, CUpti_CallbackId id, const void* data) {
    static_cast<Profiler*>(self)->on_launch(id, *static_cast<const CUpti_CallbackData*>(data));
  };
  const CUptiResult result = cupti_.Subscribe(&subscriber_, callback, this);
  if (result != CUPTI_SUCCESS) return say("error\tCUPTI is held by another tool: " + cupti_.error_name(result));
  watch(true);
}

bool Profiler::read_plan(std::string& wanted_cupti) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen((folder_ + "/plan").c_str(), "r"), &std::fclose);
  char* text = nullptr;
  std::size_t room = 0;
  int number = 0;
  ssize_t length = 0;
  while (file != nullptr && (length = getline(&text, &room, file.get())) >= 0) {
    std::string_view line(text, static_cast<std::size_t>(length));
    while (line.ends_with('\n')) line.remove_suffix(1);
    if (++number == 1) {
      wanted_cupti = line;
    } else if (number == 2) {
      while (!line.empty()) metrics_.emplace_back(next_word(line, ","));
    } else {
      const std::size_t ordinal = std::strtoul(text, nullptr, 10);
      next_word(line, " ");
      std::vector<bool>& planned = kernels_[std::string(line)].planned;
      if (planned.size() <= ordinal) planned.resize(ordinal + 1);
      planned[ordinal] = true;
      left_.fetch_add(1);
    }
  }
  std::free(text);
  if (number < 3) say("error\tthe plan cannot be read");
  return number >= 3;
}

void Profiler::watch(bool on) {
  for (const LaunchCall& call : kLaunches)
    cupti_.EnableCallback(on ? 1 : 0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, call.id);
}

bool Profiler::is_captured(CUstream stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return stream_is_capturing_ != nullptr && stream_is_capturing_(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void Profiler::on_launch(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  if (data.callbackSite == CUPTI_API_EXIT) return leave(data);
  for (const LaunchCall& call : kLaunches)
    if (call.id == id) return enter(call, data);
}

void Profiler::enter(const LaunchCall& call, const CUpti_CallbackData& data) {
  current = {};
  if (left_.load() == 0 || data.symbolName == nullptr) return;
  const Launch launch = call.read(data.functionParams);
  const auto found = kernels_.find(data.symbolName);
  if (found != kernels_.end() && !is_captured(launch.stream)) {
    Kernel& kernel = found->second;
    current.kernel = &kernel;
    current.launch = launch;
    current.ordinal = kernel.launched.fetch_add(1);
    if (current.ordinal < kernel.planned.size() && kernel.planned[current.ordinal]) {
      launching_.lock();
      current.holds = Current::Holds::alone;
      RangeProfiler* profiler = profiler_of(data.context);
      if (profiler != nullptr && profiler->begin())
        current.profiler = profiler;
      else if (profiler != nullptr)
        say("error\t" + profiler->error());
      return;
    }
  }
  launching_.lock_shared();
  current.holds = Current::Holds::shared;
}

void Profiler::leave(const CUpti_CallbackData& data) {
  const Current done = std::exchange(current, {});
  const bool failed = data.functionReturnValue != nullptr && *static_cast<const CUresult*>(data.functionReturnValue) != CUDA_SUCCESS;
  if (done.holds == Current::Holds::shared) {
    if (failed && done.kernel != nullptr) done.kernel->launched.fetch_sub(1);
    return launching_.unlock_shared();
  }
  if (done.holds != Current::Holds::alone) return;
  if (done.profiler != nullptr) {
    std::vector<double> values;
    if (done.profiler->end(values)) {
      std::string line = std::to_string(done.ordinal);
      for (const unsigned n : done.launch.grid) line += '\t' + std::to_string(n);
      for (const unsigned n : done.launch.block) line += '\t' + std::to_string(n);
      say(line + "\t" + data.symbolName + words_of(values));
    } else {
      say("error\t" + done.profiler->error());
    }
  }
  if (left_.fetch_sub(1) == 1) {
    profilers_.clear();
    watch(false);
  }
  launching_.unlock();
}

RangeProfiler* Profiler::profiler_of(CUcontext context) {
  auto& profiler = profilers_[context];
  if (profiler == nullptr) {
    CUdevice device = 0;
    if (ctx_get_device_ != nullptr) ctx_get_device_(&device);
    profiler = std::make_unique<RangeProfiler>(cupti_, functions_);
    if (!profiler->open(context, static_cast<std::uint32_t>(device), metrics_)) {
      say("error\t" + profiler->error());
      profiler.reset();
    }
  }
  return profiler.get();
}

}  // namespace
}  // namespace cutrace

// The driver calls this inside cuInit() of a program started with CUDA_INJECTION64_PATH.
extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
  static auto* const profiler = new cutrace::Profiler;  // never destroyed: CUPTI calls it until the process is gone
  const char* folder = std::getenv("CUTRACE_PROFILE");
  if (folder != nullptr && !cutrace::count_ranges(folder)) profiler->start(folder);
  return 1;
}
