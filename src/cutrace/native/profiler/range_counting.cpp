#include "range_counting.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../collector/features/nvtx/nvtx_callbacks.h"
#include "counters.h"

namespace cutrace {
namespace {

// The ranges of a name and domain.
struct Named {
  std::unordered_map<std::size_t, std::size_t> planned;  // index of the range in the plan, by number
  std::atomic<std::size_t> begun{0};
};

class RangeCounting {
 public:
  RangeCounting();
  void load_cupti();
  // True when a counted range starts. The caller then calls end() at its end.
  bool begin(const nvtx::Event& e);
  void end();
  // Around fork(): a child counts its own ranges and drops the open range of its parent.
  void before_fork() { mutex_.lock(); }
  void after_fork(bool in_child);

 private:
  std::string open(std::size_t range);  // returns an error message, empty on success
  void finish();

  std::map<std::string, std::map<std::string, Named, std::less<>>, std::less<>> domains_;  // by domain, then by name
  std::atomic<bool> ready_{false};
  std::mutex mutex_;  // protects the members below
  std::size_t left_ = 0;  // ranges that have not started yet
  std::map<CUcontext, std::unique_ptr<RangeProfiler>> profilers_;
  // The range that is counted now. The GPU counts one range at a time.
  struct Open {
    RangeProfiler* profiler;
    CUcontext context;
    std::size_t range;
  };
  std::optional<Open> open_;
};

// Made at the first call of NVTX or CUDA, and never destroyed.
RangeCounting& counting() {
  static RangeCounting& made = *new RangeCounting;
  return made;
}

RangeCounting::RangeCounting() {
  for (const Session::Planned& range : session.plan) domains_[range.domain][range.name].planned.emplace(range.number, left_++);
  pthread_atfork([] { counting().before_fork(); }, [] { counting().after_fork(false); }, [] { counting().after_fork(true); });
}

void RangeCounting::after_fork(bool in_child) {
  if (in_child) {
    for (auto& [domain, names] : domains_)
      for (auto& [name, named] : names) named.begun = 0;
    left_ = session.plan.size();
    open_.reset();
    for (auto& [context, profiler] : profilers_) static_cast<void>(profiler.release());  // the parent owns it
    profilers_.clear();
  }
  mutex_.unlock();
}

void RangeCounting::load_cupti() {
  const auto callback = [](void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    session.captures.on_callback(domain, id, data);
  };
  if (!session.subscribe(callback, nullptr)) return;
  session.watch_captures();
  ready_ = true;
}

bool RangeCounting::begin(const nvtx::Event& e) {
  const std::string_view text = e.text.empty() ? nvtx::registered_string(e.registered) : e.text;
  const auto domain = domains_.find(nvtx::domain_name(e.domain));
  if (domain == domains_.end()) return false;
  const auto found = domain->second.find(text);
  if (found == domain->second.end()) return false;
  const auto planned = found->second.planned.find(found->second.begun.fetch_add(1));
  if (planned == found->second.planned.end()) return false;
  const std::lock_guard lock(mutex_);
  const std::string why_not = open(planned->second);
  --left_;
  if (why_not.empty()) return true;
  session.fail(why_not);
  finish();
  return false;
}

std::string RangeCounting::open(std::size_t range) {
  const auto context = static_cast<CUcontext>(current_context());
  if (!ready_ || context == nullptr)
    return "a range began on a thread that had not used CUDA: use the GPU there before, or leave out the first ranges with --skip";
  if (open_) return "a range began while another one was counted: the GPU counts one at a time";
  if (!session.synchronize(context))
    return "a range began while a CUDA graph was captured, when the GPU cannot be waited for";
  auto& profiler = profilers_[context];
  const bool fresh = profiler == nullptr;
  if (fresh) profiler = std::make_unique<RangeProfiler>(context, RangeProfiler::Of::range);
  if ((fresh && !profiler->open()) || !profiler->begin()) {
    const std::string why = profiler->error();
    profilers_.erase(context);  // the next range gets a new profiler
    return why;
  }
  open_ = {profiler.get(), context, range};
  return "";
}

void RangeCounting::end() {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  const Open done = *std::exchange(open_, std::nullopt);
  const PushedContext current(done.context);
  std::vector<double> values;
  const bool captured = !session.synchronize(done.context);
  if (!captured && done.profiler->end({}, values)) {
    const unsigned caches = static_cast<unsigned>(done.profiler->caches());
    session.write(std::to_string(done.range) + "\t" + std::to_string(done.profiler->device()) + "\t" + std::to_string(caches), values);
  } else {
    session.fail(captured ? "a range ended while a CUDA graph was captured, when the GPU cannot be waited for"
                          : done.profiler->error());
    profilers_.erase(done.context);
  }
  finish();
}

// Releases the counters when nothing is left to count, so that other processes can use them.
void RangeCounting::finish() {
  if (left_ == 0 && !open_) profilers_.clear();
}

// Takes NVTX's ranges, and finds the end of a counted range.
struct Taker {
  struct Level {
    std::uint16_t domain;
    int depth;
  };
  // A plain array without a destructor, because threads use NVTX while they end. As in the collector, the depth of domains above
  // a limit is not counted.
  static thread_local std::array<int, Ring::kDomains> depths;
  static thread_local std::optional<Level> pushed;  // the counted push of this thread
  static std::atomic<nvtxRangeId_t> next, started;  // the counted start

  static bool wants() { return true; }
  static int push(const nvtx::Event& e) {
    if (e.domain >= depths.size()) return nvtx::kNotTracked;
    int& depth = depths[e.domain];
    if (counting().begin(e)) pushed = {e.domain, depth};
    return depth++;
  }
  static int pop(const nvtx::Event& e) {
    const std::uint16_t domain = e.domain;
    if (domain >= depths.size()) return nvtx::kNotTracked;
    int& depth = depths[domain];
    if (depth == 0) return -1;
    --depth;
    if (pushed && pushed->domain == domain && pushed->depth == depth) {
      pushed.reset();
      counting().end();
    }
    return depth;
  }
  static nvtxRangeId_t start(const nvtx::Event& e) {
    const nvtxRangeId_t id = next.fetch_add(1);
    if (counting().begin(e)) started = id;
    return id;
  }
  static void end(const nvtx::Event& e) {
    nvtxRangeId_t id = e.id;
    if (id != 0 && started.compare_exchange_strong(id, 0)) counting().end();
  }
};
thread_local std::array<int, Ring::kDomains> Taker::depths{};
thread_local std::optional<Taker::Level> Taker::pushed;
std::atomic<nvtxRangeId_t> Taker::next{1}, Taker::started{0};

}  // namespace

void count_ranges() { counting().load_cupti(); }

}  // namespace cutrace

// NVTX calls this at the first NVTX call of each shared object, with NVTX_INJECTION64_PATH set.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* exports = cutrace::nvtx::callbacks(get_export_table);
  if (exports == nullptr || cutrace::session.subject != "ranges") return 0;
  return cutrace::nvtx::install_ranges<cutrace::Taker>(*exports) ? 1 : 0;
}

// NVTX calls this for ranges with extended payloads.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t* module) {
  if (module == nullptr || module->moduleId != NVTX_EXT_PAYLOAD_MODULEID || cutrace::session.subject != "ranges") return 0;
  return cutrace::nvtx::install_payload_ranges<cutrace::Taker>(*module) ? 1 : 0;
}
