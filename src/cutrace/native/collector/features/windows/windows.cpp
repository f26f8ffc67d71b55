#include "windows.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/conditions.h"
#include "core/blocked_signals.h"
#include "core/process.h"
#include "cuda/driver.h"
#include "features/nvtx/nvtx.h"
#include "window_files.h"

namespace cutrace {
namespace {

constexpr std::string_view kOfNvtx = "nvtx:";

// The program's calls that open and close windows, and a call with which the collector learns the number that CUPTI gives to a call
// now.
enum class Watched : std::uint8_t { none, start, stop, probe };

Watched watched_call(std::string_view name) {
  if (name.find("ProfilerStart") != name.npos) return Watched::start;
  if (name.find("ProfilerStop") != name.npos) return Watched::stop;
  return name == "cuDriverGetVersion" ? Watched::probe : Watched::none;
}

// Whether this thread is in a profiler call of the runtime. That call makes the driver's call with the same name.
thread_local bool in_runtime_call = false;
// Where a probe of this thread stores its number; null without a probe.
thread_local std::uint32_t* probed = nullptr;

// Makes a call on this thread and returns its number, 0 when CUPTI does not report the call.
std::uint32_t number_of_new_call() {
  std::uint32_t number = 0;
  probed = &number;
  driver_version();
  probed = nullptr;
  return number;
}

// The ranges that open windows, by name; and the first names of other ranges, for a note.
class RangeNames {
 public:
  explicit RangeNames(std::string_view pattern) : pattern_(pattern) {}

  bool match(std::uint16_t domain, std::string_view name) {
    if (matches(pattern_, name)) return true;
    const std::string whole = domain != 0 ? std::string(nvtx::domain_name(domain)) + ':' + std::string(name) : std::string(name);
    if (matches(pattern_, whole)) return true;
    if (!seen_enough_.load(std::memory_order_relaxed)) note(whole);
    return false;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    seen_.clear();
    seen_enough_.store(false);
  }
  // "forward, train:step, ...", "" for none
  std::string seen() const {
    const std::lock_guard lock(mutex_);
    std::string list;
    for (const std::string& name : seen_) list += (list.empty() ? "" : ", ") + name;
    return seen_.size() == kMostSeen ? list + ", ..." : list;
  }

 private:
  static constexpr std::size_t kMostSeen = 8;

  void note(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (seen_.size() < kMostSeen && std::ranges::find(seen_, name) == seen_.end()) seen_.push_back(name);
    seen_enough_.store(seen_.size() == kMostSeen);
  }

  const std::string pattern_;
  std::atomic<bool> seen_enough_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> seen_;  // under mutex_
};

// The windows of a recording. It is never destroyed, because threads of the program may use it after the recording.
class CaptureRange {
 public:
  CaptureRange(const std::string& range, std::uint64_t most) : range_(range), most_(most), names_(name_in(range)) {}

  bool is_for(const Options& options) const { return range_ == options.capture_range && most_ == options.capture_ranges; }
  bool is_by_name() const { return range_.starts_with(kOfNvtx); }
  RangeNames& names() { return names_; }
  bool uses_cupti() const { return uses_cupti_.load(); }
  void use_cupti() { uses_cupti_.store(true); }

  // The note of a recording without a window. Processes without CUDA and NVTX, such as helpers of the program, get no note.
  std::string never_opened() const;

  // A recording starts.
  void begin() {
    const std::lock_guard lock(mutex_);
    open_.store(false);
    opened_.store(0);
    uses_cupti_.store(false);
    names_.forget();
  }
  // `key` is the key of an NVTX range, or 0 for the call with the number `call`. Does nothing while a window is open. Waits while
  // another thread opens a window, so that later work of this thread is inside.
  void open(std::uint64_t key, std::uint32_t call);
  // Closes the window if open() has opened it for this key.
  void close(std::uint64_t key, Moment end, void* context);
  bool is_open_for(std::uint64_t key) const { return open_.load(std::memory_order_acquire) && key_.load() == key; }
  // Whether the number of windows is reached. Once true, it stays true.
  bool is_over() const { return most_ != 0 && opened_.load() >= most_ && !open_.load(); }

 private:
  static std::string_view name_in(std::string_view range) {
    return range.starts_with(kOfNvtx) ? range.substr(kOfNvtx.size()) : std::string_view();
  }

  const std::string range_;
  const std::uint64_t most_;  // limit on the number of windows, 0 for no limit
  RangeNames names_;
  std::atomic<bool> uses_cupti_{false};
  std::mutex mutex_;  // held while a window is opened or closed, for patience_ms at most
  std::atomic<std::uint64_t> opened_{0};
  std::atomic<bool> open_{false};
  std::atomic<std::uint64_t> key_{0};
};

std::string CaptureRange::never_opened() const {
  const std::string seen = names_.seen();
  if (!uses_cupti() && seen.empty()) return {};
  std::string why = "cudaProfilerStart() was not called";
  if (is_by_name()) why = "names of NVTX ranges: " + (seen.empty() ? "none" : seen);
  return "the capture range '" + range_ + "' never opened, so this process has no capture (" + why + ")";
}

// The files of a recording of windows.
WindowFiles& files_of(const Recording& recording) { return static_cast<WindowFiles&>(*recording.keeper()); }

void CaptureRange::open(std::uint64_t key, std::uint32_t call) {
  if (open_.load(std::memory_order_acquire)) return;
  const BlockedCancellation whole;
  const std::lock_guard lock(mutex_);
  const auto recording = process::current();
  if (open_.load() || is_over() || recording == nullptr) return;
  const auto number = [this, call] {
    const std::uint32_t now = uses_cupti() ? number_of_new_call() : 0;
    return now != 0 ? now : call;
  };
  if (!files_of(*recording).open(number)) return;
  opened_.fetch_add(1);
  key_.store(key);
  open_.store(true, std::memory_order_release);
}

void CaptureRange::close(std::uint64_t key, Moment end, void* context) {
  if (!is_open_for(key)) return;
  const BlockedCancellation whole;
  const std::lock_guard lock(mutex_);
  if (!is_open_for(key)) return;
  open_.store(false);
  if (const auto recording = process::current()) files_of(*recording).close(end, context, is_over());
}

class Windows final : public Feature, public nvtx::RangeFollower {
 public:
  std::unique_ptr<FileKeeper> keeper(const KeeperContext& context) override;
  void attach(const AttachContext& context) override;
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  void range_began(std::uint64_t key, std::uint16_t domain, std::string_view name) noexcept override;
  void range_ended(std::uint64_t key, std::uint64_t time) noexcept override;
  void after_fork_in_child() override;

 private:
  struct RangeCall {
    ApiFunction function;
    Watched what;
  };
  CaptureRange& range_for(const Options& options);

  std::vector<std::unique_ptr<CaptureRange>> ranges_;  // one for each value of the options
  std::atomic<CaptureRange*> range_{nullptr};          // of the recording, if it has windows
  std::vector<RangeCall> calls_;                       // filled once, before CUPTI calls back
};

CaptureRange& Windows::range_for(const Options& options) {
  const auto same = std::ranges::find_if(ranges_, [&](const auto& range) { return range->is_for(options); });
  if (same != ranges_.end()) return **same;
  return *ranges_.emplace_back(std::make_unique<CaptureRange>(options.capture_range, options.capture_ranges));
}

std::unique_ptr<FileKeeper> Windows::keeper(const KeeperContext& context) {
  nvtx::range_follower.store(nullptr);
  range_.store(nullptr);
  if (!context.options.records_windows()) return nullptr;
  CaptureRange& range = range_for(context.options);
  range.begin();
  auto files = std::make_unique<WindowFiles>(context, [&range] { return range.never_opened(); });
  range_.store(&range);
  if (range.is_by_name()) nvtx::range_follower.store(this);
  return files;
}

void Windows::attach(const AttachContext& context) {
  CaptureRange* const range = range_.load();
  if (range == nullptr) return;
  if (calls_.empty())
    for (const ApiFunction& function : context.cupti.api_functions())
      if (const Watched what = watched_call(function.name); what != Watched::none) calls_.push_back({function, what});
  for (const RangeCall& call : calls_)
    if (call.what == Watched::probe || !range->is_by_name()) context.callbacks.watch(*this, call.function.domain, call.function.id);
  range->use_cupti();
}

void Windows::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  const auto call =
      std::ranges::find_if(calls_, [&](const RangeCall& c) { return c.function.domain == domain && c.function.id == id; });
  if (call == calls_.end() || data == nullptr) return;
  const auto& callback = *static_cast<const CUpti_CallbackData*>(data);
  if (call->what == Watched::probe) {
    if (probed != nullptr) *probed = callback.correlationId;
    return;
  }
  const bool enters = callback.callbackSite == CUPTI_API_ENTER;
  const bool of_runtime = domain == CUPTI_CB_DOMAIN_RUNTIME_API;
  if (!of_runtime && in_runtime_call) return;
  if (of_runtime) in_runtime_call = enters;
  CaptureRange* const range = range_.load();
  if (range == nullptr) return;
  try {
    // The duration of the calls is outside of the window. At these moments their threads hold no lock of the driver.
    if (call->what == Watched::start && !enters) range->open(0, callback.correlationId);
    if (call->what == Watched::stop && enters) range->close(0, {0, callback.correlationId}, callback.context);
  } catch (const std::exception&) {  // no memory
  }
}

void Windows::range_began(std::uint64_t key, std::uint16_t domain, std::string_view name) noexcept {
  CaptureRange* const range = range_.load();
  if (range == nullptr || range->is_over()) return;
  try {
    if (range->names().match(domain, name)) range->open(key, 0);
  } catch (const std::exception&) {  // no memory
  }
}

void Windows::range_ended(std::uint64_t key, std::uint64_t time) noexcept {
  CaptureRange* const range = range_.load();
  if (range == nullptr || !range->is_open_for(key)) return;
  const BlockedCancellation whole;
  try {
    const std::uint32_t call = range->uses_cupti() ? number_of_new_call() : 0;
    range->close(key, {time, call}, current_context());
    if (range->is_over()) nvtx::range_follower.store(nullptr);
  } catch (const std::exception&) {  // no memory
  }
}

// Another thread of the parent may hold a lock of a capture range.
void Windows::after_fork_in_child() {
  nvtx::range_follower.store(nullptr);
  range_.store(nullptr);
  for (auto& range : ranges_) static_cast<void>(range.release());
  ranges_.clear();
}

}  // namespace

Feature& windows_feature() {
  static auto& feature = *new Windows;
  return feature;
}

}  // namespace cutrace
