// libcutrace_profiler.so: counts hardware metrics of launches: those in a plan, or those of chosen kernels.
//
// A line in <pid>.values has the number of a launch, its grid and block, the state of the caches, its kernel's name and its
// values. Launches into a captured stream run nothing and are not counted. Kernels of graphs are not counted, because no launch
// call names them.
//
// With chosen kernels, the values follow the facts of the launch (see launch_facts.h). Further lines are "device" with facts of a
// device, and "graphs" when the program launched a CUDA graph.
//
// A plan of instructions has launches of one kernel. Its first consecutive launches are counted together. After the last one, or
// when the process ends, the profiler writes their lines and the file <pid>.instructions. A line of that file describes an
// instruction. It has the device, number of launches, function, offset, line, sums of the metrics and file.
//
// A planned launch runs alone: see launch_gate.h. A kernel that waits for a kernel of another thread or process would then never
// end. So other launches continue after a time limit, and the process is ended if the planned launch still does not end.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda.h>

#include "../collector/core/blocked_signals.h"
#include "../collector/core/clock.h"
#include "counters.h"
#include "kernel_choice.h"
#include "launch_facts.h"
#include "launch_gate.h"
#include "range_counting.h"

namespace cutrace {
namespace {

struct Kernel {
  bool chosen = true;
  std::vector<bool> planned;  // by launch; empty without a plan of launches
  std::atomic<std::size_t> launched{0};
  std::atomic<bool> cannot_be_alone{false};
};

struct PlannedLaunch {
  const char* name = nullptr;  // of the plan, never freed; null at the end of the process
  Kernel* kernel = nullptr;
  std::size_t number = 0;

  std::string text() const {
    return name == nullptr ? "the last read of counts" : "launch " + std::to_string(number) + " of " + name;
  }
};

std::string seconds(std::chrono::milliseconds time) {
  char digits[32];
  // Not printf(), which writes a comma in many locales.
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, static_cast<double>(time.count()) / 1000).ptr) + " s";
}

constexpr char kInterlocked[] =
    "Kernels that wait for work of other threads or processes, such as those of NCCL, cannot be counted: choose others "
    "(--kernel)";

// The state of a thread between the start and the end of its launch call.
struct Current {
  enum class Inside { no, with_others, alone } inside = Inside::no;
  Kernel* kernel = nullptr;
  std::size_t ordinal = 0;
  std::uint64_t started = 0;
  bool planned = false;
  Launch launch;
  ContextCounter* counter = nullptr;  // the running counter
};
thread_local Current current;

class Profiler {
 public:
  // Enables CUPTI's callbacks about launches.
  void start();
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);
  // Writes the counts of instructions.
  void finish();

 private:
  using Gate = LaunchGate<PlannedLaunch>;

  void plan_launches();
  void on_module(const CUpti_ModuleResourceData& module);
  void on_graph();
  std::pair<const std::string, Kernel>* kernel_of(const char* name);
  bool is_planned(Kernel& kernel, std::size_t ordinal);
  void on_destroyed(CUcontext context);
  ContextCounter* counter_of(CUcontext context);
  void abandon_destroyed();
  void enter(const LaunchCall& call, const CUpti_CallbackData& data);
  void leave(const LaunchCall& call, const CUpti_CallbackData& data);
  void leave_alone(const Current& done, const LaunchCall& call, const CUpti_CallbackData& data, bool failed);
  bool enter_alone(const PlannedLaunch& launch, Gate::Clock::time_point deadline);
  void give_up(const PlannedLaunch& launch);
  void end_if_overdue();
  void watch(bool on);
  ContextCounter* begin(CUcontext context);
  void end_stretch();
  void drop_stretch();
  void write_values(const Current& done, const char* kernel, const std::vector<double>& values);
  void write_instructions(std::size_t launches);

  const pid_t pid_ = getpid();
  const bool of_instructions_ = session.subject == "instructions";
  const bool chooses_ = session.subject == "chosen";
  std::shared_mutex kernels_mutex_;  // for chosen kernels: a plan of launches has all kernels from the start
  std::unordered_map<std::string, Kernel> kernels_;
  std::atomic<std::size_t> left_{0};  // planned launches that have not run
  std::size_t skipped_ = 0, most_ = 0;  // launches of chosen kernels
  std::atomic<std::size_t> met_{0};     // launches of chosen kernels so far
  std::atomic<bool> graphs_told_{false};
  std::set<std::uint32_t> devices_told_;  // of the launch that is alone
  SourceLines lines_{session.cupti};
  Gate gate_;
  std::once_flag watchdog_;
  // Of the launch that is alone.
  InstructionSums instructions_;
  ContextCounter* stretch_ = nullptr;       // that counts instructions
  std::vector<std::string> stretch_lines_;  // of its launches
  bool stretch_over_ = false;
  std::map<CUcontext, std::unique_ptr<ContextCounter>> counters_;

  std::mutex destroyed_mutex_;
  std::vector<CUcontext> destroyed_;  // under destroyed_mutex_: contexts that may still be in counters_
};

constexpr CUpti_CallbackId kGraphLaunches[] = {CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz};

std::string line_of(const Current& done, const char* kernel) {
  std::string line = std::to_string(done.ordinal);
  for (const unsigned n : done.launch.grid) line += '\t' + std::to_string(n);
  for (const unsigned n : done.launch.block) line += '\t' + std::to_string(n);
  return line + '\t' + std::to_string(static_cast<unsigned>(done.counter->caches())) + '\t' + kernel;
}

void Profiler::start() {
  if (chooses_) {
    const Session::Planned& choice = session.plan.front();
    skipped_ = choice.number;
    most_ = choice.domain.empty() ? std::numeric_limits<std::size_t>::max() : std::strtoul(choice.domain.c_str(), nullptr, 10);
    left_ = most_;
  } else {
    plan_launches();
  }
  driver_is_loaded();  // loads it for is_captured(), which runs inside callbacks
  const auto callback = [](void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    static_cast<Profiler*>(self)->on_callback(domain, id, data);
  };
  if (session.subscribe(callback, this)) watch(true);
}

void Profiler::plan_launches() {
  for (const Session::Planned& launch : session.plan) {
    std::vector<bool>& planned = kernels_[launch.name].planned;
    if (planned.size() <= launch.number) planned.resize(launch.number + 1);
    planned[launch.number] = true;
    left_.fetch_add(1);
  }
}

void Profiler::watch(bool on) {
  for (const LaunchCall& call : launch_calls)
    session.cupti.EnableCallback(on ? 1 : 0, session.subscriber, CUPTI_CB_DOMAIN_DRIVER_API, call.id);
  for (const CUpti_CallbackId id : kGraphLaunches)
    if (chooses_) session.cupti.EnableCallback(on ? 1 : 0, session.subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  if (on) session.watch_captures();
  if (on && session.flushes_caches) Checkpoint::watch_calls();
  session.cupti.EnableCallback(on ? 1 : 0, session.subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
  if (of_instructions_)
    session.cupti.EnableCallback(on ? 1 : 0, session.subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
}

void Profiler::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (data == nullptr || OwnCalls::active()) return;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_MODULE_LOADED) {
    const auto* module = static_cast<const CUpti_ModuleResourceData*>(static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor);
    if (module != nullptr && module->pCubin != nullptr) on_module(*module);
    return;
  }
  if (domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING)
    on_destroyed(static_cast<const CUpti_ResourceData*>(data)->context);
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
    for (const LaunchCall& call : launch_calls) {
      const auto& about = *static_cast<const CUpti_CallbackData*>(data);
      if (call.id == id) return about.callbackSite == CUPTI_API_EXIT ? leave(call, about) : enter(call, about);
    }
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API && std::ranges::find(kGraphLaunches, id) != std::end(kGraphLaunches)) return on_graph();
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) Checkpoint::on_call(id);
  session.captures.on_callback(domain, id, data);
}

void Profiler::on_module(const CUpti_ModuleResourceData& module) {
  // A program may load gigabytes of modules, so keep only modules that can have a planned kernel.
  const std::string_view cubin(module.pCubin, module.cubinSize);
  for (const auto& [name, kernel] : kernels_)
    if (cubin.find(name) != cubin.npos) {
      lines_.add(module.pCubin, module.cubinSize);  // without room its lines stay unknown
      return;
    }
}

void Profiler::on_graph() {
  if (chooses_ && !graphs_told_.exchange(true)) session.write("graphs");
}

// The entry of a kernel, null when no launch of it can be counted. Entries are never removed.
std::pair<const std::string, Kernel>* Profiler::kernel_of(const char* name) {
  {
    const std::shared_lock lock(kernels_mutex_);
    const auto found = kernels_.find(name);
    if (found != kernels_.end()) return found->second.chosen ? &*found : nullptr;
    if (!chooses_) return nullptr;
  }
  const std::lock_guard lock(kernels_mutex_);
  const auto [entry, fresh] = kernels_.try_emplace(name);
  std::string error;
  if (fresh) entry->second.chosen = ask_for_kernel(session.folder, entry->first, error);
  if (!error.empty()) session.fail("launches of " + entry->first + " were not counted: " + error);
  return entry->second.chosen ? &*entry : nullptr;
}

bool Profiler::is_planned(Kernel& kernel, std::size_t ordinal) {
  if (!chooses_) return ordinal < kernel.planned.size() && kernel.planned[ordinal];
  const std::size_t met = met_.fetch_add(1);
  return met >= skipped_ && met - skipped_ < most_;
}

// Called on any thread, also while another launch is counted.
void Profiler::on_destroyed(CUcontext context) {
  const std::lock_guard lock(destroyed_mutex_);
  destroyed_.push_back(context);
}

// Leaks the counters of destroyed contexts. Their memory was freed with the context, so their destructors would free memory that
// the program may own now. A new context may also have the handle of the old one.
void Profiler::abandon_destroyed() {
  const std::lock_guard lock(destroyed_mutex_);
  for (const CUcontext context : destroyed_) {
    const auto found = counters_.find(context);
    if (found == counters_.end() || found->second.get() == stretch_) continue;
    static_cast<void>(found->second.release());
    counters_.erase(found);
  }
  destroyed_.clear();
}

void Profiler::finish() {
  if (getpid() != pid_) return;  // a forked child
  // Do not wait: a launch that never ends may be inside.
  if (!gate_.enter_alone({}, Gate::Clock::now())) return;
  end_stretch();
  gate_.leave_alone();
}

// Reads the counts of consecutive launches.
void Profiler::end_stretch() {
  ContextCounter* const counter = std::exchange(stretch_, nullptr);
  if (counter == nullptr) return;
  stretch_over_ = true;
  std::vector<double> none;
  if (!counter->end({}, none)) return session.fail(counter->error());
  for (const std::string& line : stretch_lines_) session.write(line);
  write_instructions(stretch_lines_.size());
}

// Drops the counts, because they may include another kernel.
void Profiler::drop_stretch() {
  if (std::exchange(stretch_, nullptr) != nullptr) stretch_over_ = true;
}

void Profiler::write_instructions(std::size_t launches) {
  const std::string path = session.folder + "/" + std::to_string(getpid()) + ".instructions";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"), &std::fclose);
  if (file == nullptr) return;
  for (const auto& [place, sum] : instructions_) {
    std::fprintf(file.get(), "%u\t%zu\t%s\t%u\t%u", place.device, launches, place.function.c_str(), place.offset, sum.source.line);
    for (const std::uint64_t value : sum.values) std::fprintf(file.get(), "\t%lu", static_cast<unsigned long>(value));
    std::fprintf(file.get(), "\t%s\n", sum.source.file.c_str());
  }
}

void Profiler::enter(const LaunchCall& call, const CUpti_CallbackData& data) {
  current = {};
  if (left_.load() == 0 || data.symbolName == nullptr) return;
  const Launch launch = call.read(data.functionParams);
  auto* const found = kernel_of(data.symbolName);
  if (found != nullptr && !is_captured(launch.stream)) {
    Kernel& kernel = found->second;
    current.kernel = &kernel;
    current.launch = launch;
    current.ordinal = kernel.launched.fetch_add(1);
    current.started = now_ns();
    current.planned = is_planned(kernel, current.ordinal);
  }
  const auto deadline = Gate::Clock::now() + session.patience;
  if (current.planned && enter_alone({found->first.c_str(), current.kernel, current.ordinal}, deadline)) {
    current.inside = Current::Inside::alone;
    current.counter = begin(data.context);
    return;
  }
  if (const auto disturbed = gate_.enter(deadline)) give_up(*disturbed);
  current.inside = Current::Inside::with_others;
}

bool Profiler::enter_alone(const PlannedLaunch& launch, Gate::Clock::time_point deadline) {
  std::call_once(watchdog_, [this] { end_if_overdue(); });
  if (launch.kernel->cannot_be_alone.load()) return false;
  if (gate_.enter_alone(launch, deadline)) return true;
  if (!launch.kernel->cannot_be_alone.exchange(true))
    session.fail(launch.text() + " and later ones were not counted: other launches did not return within " +
                 seconds(session.patience) + ". " + kInterlocked);
  return false;
}

// Another launch stopped waiting for this launch, so the counter of this launch also counts the other work.
void Profiler::give_up(const PlannedLaunch& launch) {
  if (launch.kernel == nullptr) return;
  launch.kernel->cannot_be_alone.store(true);
  session.fail(launch.text() + " and later ones were not counted: another thread had to wait for " + seconds(session.patience) +
               " to launch a kernel. " + kInterlocked);
}

// Starts a thread that ends the process when a planned launch does not end.
void Profiler::end_if_overdue() {
  const BlockedSignals blocked;
  try {
    std::thread([this] {
      constexpr int kAlone = 10;  // a launch without waiting launches gets more time
      const PlannedLaunch launch = gate_.overdue(session.patience, kAlone * session.patience);
      const std::string sentence = "the program was ended, because " + launch.text() + " did not end while it was counted. " + kInterlocked;
      session.fail(sentence);
      std::fprintf(stderr, "cutrace: %s\n", sentence.c_str());
      ::_exit(EXIT_FAILURE);
    }).detach();
  } catch (const std::exception&) {  // no thread: such a launch hangs
  }
}

void Profiler::leave(const LaunchCall& call, const CUpti_CallbackData& data) {
  const Current done = std::exchange(current, {});
  // A failed launch does not count, because the first run has no kernel of this launch either.
  const bool failed = data.functionReturnValue != nullptr && *static_cast<const CUresult*>(data.functionReturnValue) != CUDA_SUCCESS;
  if (failed && done.kernel != nullptr) {
    done.kernel->launched.fetch_sub(1);
    met_.fetch_sub(1);
  }
  if (done.inside == Current::Inside::alone) leave_alone(done, call, data, failed);
  if (done.inside == Current::Inside::with_others) gate_.leave();
  if (done.inside == Current::Inside::with_others && done.planned && !failed) left_.fetch_sub(1);
}

void Profiler::leave_alone(const Current& done, const LaunchCall& call, const CUpti_CallbackData& data, bool failed) {
  std::vector<double> values;
  const Replay replay{[&] { return !failed && gate_.start_replaying(); }, [&] { return call.again(data.functionParams); }};
  const bool ended = done.counter != nullptr && (of_instructions_ || done.counter->end(replay, values));
  const bool alone = gate_.undisturbed();
  if (!failed) {
    if (!ended && done.counter != nullptr && alone) session.fail(done.counter->error());
    if (ended && alone && !of_instructions_) write_values(done, data.symbolName, values);
    if (ended && alone && of_instructions_) stretch_lines_.push_back(line_of(done, data.symbolName));
    if (!alone) drop_stretch();
    const bool last = left_.fetch_sub(1) == 1;
    const std::vector<bool>& planned = done.kernel->planned;
    if (last || done.ordinal + 1 >= planned.size() || !planned[done.ordinal + 1]) end_stretch();
    if (last) {
      abandon_destroyed();
      counters_.clear();
      watch(false);
    }
  }
  gate_.leave_alone();
}

void Profiler::write_values(const Current& done, const char* kernel, const std::vector<double>& values) {
  std::string line = line_of(done, kernel);
  if (chooses_) {
    const std::uint32_t device = done.counter->device();
    if (devices_told_.insert(device).second) session.write("device" + device_facts(device));
    line += launch_facts(done.launch, done.started);
  }
  session.write(std::move(line), values);
}

// The counter that was started for a launch, null when there is none.
ContextCounter* Profiler::begin(CUcontext context) {
  if (stretch_over_) return nullptr;
  ContextCounter* const counter = counter_of(context);
  if (counter == nullptr || counter == stretch_) return counter;
  if (stretch_ != nullptr) {
    session.fail("instructions are counted in one CUDA context of a process, that of the first launch; others were left out");
    return nullptr;
  }
  if (!counter->begin()) {
    session.fail(counter->error());
    return nullptr;
  }
  if (of_instructions_) stretch_ = counter;
  return counter;
}

ContextCounter* Profiler::counter_of(CUcontext context) {
  abandon_destroyed();
  auto& counter = counters_[context];
  if (counter == nullptr) {
    if (of_instructions_)
      counter = std::make_unique<InstructionCounter>(context, lines_, instructions_);
    else
      counter = std::make_unique<RangeProfiler>(context, RangeProfiler::Of::kernel);
    if (!counter->open()) {
      session.fail(counter->error());
      counter.reset();
    }
  }
  return counter.get();
}

}  // namespace
}  // namespace cutrace

// The driver calls this inside cuInit() of a program started with CUDA_INJECTION64_PATH.
extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
  static auto* const profiler = new cutrace::Profiler;  // never destroyed: CUPTI calls it until the process ends
  if (cutrace::session.subject == "ranges") {
    cutrace::count_ranges();
  } else if (!cutrace::session.subject.empty()) {
    profiler->start();
    std::atexit([] { profiler->finish(); });
  }
  return 1;
}
