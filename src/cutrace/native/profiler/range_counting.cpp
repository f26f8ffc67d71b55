#include "range_counting.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../collector/driver.h"
#include "../collector/nvtx_callbacks.h"
#include "../common/text.h"
#include "range_profiler.h"
#include "values.h"

namespace cutrace {
namespace {

// The ranges of a name and domain.
struct Named {
  std::unordered_map<std::size_t, std::size_t> planned;  // index of the range in the file, by number
  std::atomic<std::size_t> begun{0};
};

class RangeCounting {
 public:
  // Reads the file of ranges. NVTX or CUDA may come first.
  void plan(const std::string& folder);
  bool planned() const { return !domains_.empty(); }
  void load_cupti();
  // True when a counted range begins. end() must be called at its end.
  bool begin(const nvtx::Event& e);
  void end();
  // Around fork(): a child counts its own ranges and drops the open range of its parent.
  void before_fork() { mutex_.lock(); }
  void after_fork(bool in_child);

 private:
  std::string open(std::size_t range);  // returns an error message, empty on success
  void finish();

  std::string folder_, cupti_wanted_;
  std::vector<std::string> metrics_;
  std::map<std::string, std::map<std::string, Named, std::less<>>, std::less<>> domains_;  // by domain, then by name
  CuptiLibrary cupti_;
  ProfilerFunctions functions_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  StreamCaptures captures_;
  std::atomic<bool> ready_{false};
  std::mutex mutex_;  // protects the members below
  std::size_t planned_ = 0, left_ = 0;  // ranges, and those that have not begun yet
  std::map<void*, std::unique_ptr<RangeProfiler>> profilers_;  // by context
  // The range that is counted now: the GPU counts one at a time.
  struct Open {
    RangeProfiler* profiler;
    void* context;
    std::uint32_t device;
    std::size_t range;
  };
  std::optional<Open> open_;
};

RangeCounting& counting = *new RangeCounting;  // never destroyed: NVTX calls it until the process ends

void RangeCounting::plan(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  if (!folder_.empty()) return;
  folder_ = folder;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen((folder + "/ranges").c_str(), "r"), &std::fclose);
  char* text = nullptr;
  std::size_t room = 0;
  std::vector<std::string> texts;
  while (file != nullptr && getdelim(&text, &room, '\0', file.get()) >= 0) texts.emplace_back(text);
  std::free(text);
  if (texts.size() < 2) return;
  cupti_wanted_ = texts[0];
  for (std::string_view line = texts[1]; !line.empty();) metrics_.emplace_back(next_word(line, ","));
  for (std::size_t at = 2; at + 2 < texts.size(); at += 3)
    domains_[texts[at + 1]][texts[at + 2]].planned.emplace(std::strtoul(texts[at].c_str(), nullptr, 10), planned_++);
  left_ = planned_;
  pthread_atfork([] { counting.before_fork(); }, [] { counting.after_fork(false); }, [] { counting.after_fork(true); });
}

void RangeCounting::after_fork(bool in_child) {
  if (in_child) {
    for (auto& [domain, names] : domains_)
      for (auto& [name, named] : names) named.begun = 0;
    left_ = planned_;
    open_.reset();
    for (auto& [context, profiler] : profilers_) static_cast<void>(profiler.release());  // the parent owns it
    profilers_.clear();
  }
  mutex_.unlock();
}

void RangeCounting::load_cupti() {
  std::string error;
  if (!cupti_.load(cupti_wanted_, error)) return append_line(folder_, "error\t" + error);
  if (!functions_.load(cupti_)) return append_line(folder_, "error\tthis libcupti has no range profiler; use CUPTI 12.6 or later");
  const auto callback = [](void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    static_cast<RangeCounting*>(self)->captures_.on_callback(domain, id, data);
  };
  const CUptiResult result = cupti_.Subscribe(&subscriber_, callback, this);
  if (result != CUPTI_SUCCESS) return append_line(folder_, "error\tCUPTI is held by another tool: " + cupti_.error_name(result));
  captures_.watch(cupti_, subscriber_);
  ready_ = true;
}

bool RangeCounting::begin(const nvtx::Event& e) {
  const std::string_view text = e.text.view().empty() ? nvtx::registered_string(e.registered) : e.text.view();
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
  append_line(folder_, "error\t" + why_not);
  finish();
  return false;
}

std::string RangeCounting::open(std::size_t range) {
  void* const context = current_context();
  if (!ready_ || context == nullptr)
    return "a range began on a thread that had not used CUDA: use the GPU there before, or leave out the first ranges with --skip";
  if (open_) return "a range began while another one was counted: the GPU counts one at a time";
  if (!synchronize_context(context, captures_))
    return "a range began while a CUDA graph was captured, when the GPU cannot be waited for";
  auto& profiler = profilers_[context];
  const std::uint32_t device = current_device();
  const bool fresh = profiler == nullptr;
  if (fresh) profiler = std::make_unique<RangeProfiler>(cupti_, functions_, RangeProfiler::Of::range);
  if ((fresh && !profiler->open(static_cast<CUcontext>(context), device, metrics_)) || !profiler->begin()) {
    const std::string why = profiler->error();
    profilers_.erase(context);  // the next range has a new one, which has not begun
    return why;
  }
  open_ = {profiler.get(), context, device, range};
  return "";
}

void RangeCounting::end() {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  const Open done = *std::exchange(open_, std::nullopt);
  const PushedContext current(done.context);
  std::vector<double> values;
  const bool captured = !synchronize_context(done.context, captures_);
  if (!captured && done.profiler->end(values)) {
    append_line(folder_, std::to_string(done.range) + "\t" + std::to_string(done.device) + words_of(values));
  } else {
    const std::string why = captured ? "a range ended while a CUDA graph was captured, when the GPU cannot be waited for"
                                     : done.profiler->error();
    append_line(folder_, "error\t" + why);
    profilers_.erase(done.context);
  }
  finish();
}

// Releases the counters when nothing is left to count, so that other processes can use them.
void RangeCounting::finish() {
  if (left_ == 0 && !open_) profilers_.clear();
}

// Takes NVTX's ranges, and tracks which end belongs to a counted range.
struct Taker {
  struct Level {
    std::uint16_t domain;
    int depth;
  };
  // No destructor, because threads use NVTX while they end. Pushes of further domains are not counted, as in the collector.
  static thread_local std::array<int, nvtx::Ring::kDomains> depths;
  static thread_local std::optional<Level> pushed;  // the push of this thread that is counted
  static std::atomic<nvtxRangeId_t> next, started;  // the start that is counted

  static bool wants() { return true; }
  static int push(const nvtx::Event& e) {
    if (e.domain >= depths.size()) return nvtx::kNotTracked;
    int& depth = depths[e.domain];
    if (counting.begin(e)) pushed = {e.domain, depth};
    return depth++;
  }
  static int pop(nvtxDomainHandle_t handle) {
    const std::uint16_t domain = nvtx::number_of(handle);
    if (domain >= depths.size()) return nvtx::kNotTracked;
    int& depth = depths[domain];
    if (depth == 0) return -1;
    --depth;
    if (pushed && pushed->domain == domain && pushed->depth == depth) {
      pushed.reset();
      counting.end();
    }
    return depth;
  }
  static nvtxRangeId_t start(const nvtx::Event& e) {
    const nvtxRangeId_t id = next.fetch_add(1);
    if (counting.begin(e)) started = id;
    return id;
  }
  static void end(nvtxRangeId_t id) {
    if (id != 0 && started.compare_exchange_strong(id, 0)) counting.end();
  }
};
thread_local std::array<int, nvtx::Ring::kDomains> Taker::depths{};
thread_local std::optional<Taker::Level> Taker::pushed;
std::atomic<nvtxRangeId_t> Taker::next{1}, Taker::started{0};

}  // namespace

bool count_ranges(const std::string& folder) {
  counting.plan(folder);
  if (!counting.planned()) return false;
  counting.load_cupti();
  return true;
}

}  // namespace cutrace

// NVTX calls this at the first NVTX call of each shared object, with NVTX_INJECTION64_PATH set.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* exports = cutrace::nvtx::callbacks(get_export_table);
  const char* folder = std::getenv("CUTRACE_PROFILE");
  if (exports == nullptr || folder == nullptr) return 0;
  cutrace::counting.plan(folder);
  return cutrace::nvtx::install_ranges<cutrace::Taker>(*exports) ? 1 : 0;
}
