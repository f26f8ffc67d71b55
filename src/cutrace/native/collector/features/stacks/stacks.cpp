#include "stacks.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "code_deaths.h"
#include "core/clock.h"
#include "core/own_thread.h"
#include "core/wake.h"
#include "interpreter_check.h"
#include "python_frames.h"
#include "stack_counts.h"
#include "stack_decoder.h"
#include "stack_events.h"
#include "thread_stacks.h"

namespace cutrace {
namespace {

constexpr std::string_view kNone = "no Python stacks are recorded: ";

// Puts definitions into the thread's ring.
class RingSink final : public python::StackSink {
 public:
  explicit RingSink(Ring& ring) : ring_(ring), recording_(static_cast<std::uint16_t>(ring.recording)) {}

  bool forget() override {
    StackForgetEvent event{};
    event.head = {sizeof event, EventType::stack_forget, 0, recording_};
    return put(&event, sizeof event);
  }

  bool define_frame(std::uint32_t number, const python::FrameText& text) override {
    const std::string_view file = text.file_name();
    const std::string_view function = text.function_name();
    const std::size_t size = (sizeof(StackFrameEvent) + file.size() + function.size() + 7) & ~std::size_t{7};
    std::uint8_t* const at = ring_.reserve(size);
    if (at == nullptr) return false;
    StackFrameEvent event{};
    event.head = {static_cast<std::uint32_t>(size), EventType::stack_frame, 0, recording_};
    event.number = number;
    event.line = text.line;
    event.file_bytes = text.file_bytes;
    event.function_bytes = text.function_bytes;
    std::memcpy(at, &event, sizeof event);
    std::memcpy(at + sizeof event, file.data(), file.size());
    std::memcpy(at + sizeof event + file.size(), function.data(), function.size());
    publish(size);
    return true;
  }

  bool define_stack(std::uint32_t number, std::uint32_t parent, std::uint32_t frame) override {
    StackNodeEvent event{};
    event.head = {sizeof event, EventType::stack_node, 0, recording_};
    event.number = number;
    event.parent = parent;
    event.frame = frame;
    return put(&event, sizeof event);
  }

  bool call(std::uint32_t correlation, std::uint32_t node) {
    CallStackEvent event{};
    event.head = {sizeof event, EventType::call_stack, 0, recording_};
    event.correlation = correlation;
    event.node = node;
    return put(&event, sizeof event);
  }

 private:
  bool put(const void* event, std::size_t size) {
    std::uint8_t* const at = ring_.reserve(size);
    if (at == nullptr) return false;
    std::memcpy(at, event, size);
    publish(size);
    return true;
  }
  void publish(std::size_t size) {
    if (ring_.commit(size)) writer_wake.signal();
  }

  Ring& ring_;
  const std::uint16_t recording_;
};

// The outermost watched call that a thread is in.
struct OpenCall {
  std::uint32_t correlation = 0;  // 0 for none
  CUpti_CallbackDomain domain{};
  std::uint64_t start = 0;
  std::uint32_t recording = 0;
  std::uint64_t launches = 0;  // the number of launches so far in this recording
};
thread_local constinit OpenCall open_call;

// A forked child unlocks this mutex again. The second unlock has no effect.
class SpinLock {
 public:
  void lock() {
    while (locked_.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  void unlock() { locked_.clear(std::memory_order_release); }

 private:
  std::atomic_flag locked_;
};

class StacksFeature final : public Feature {
 public:
  std::unique_ptr<Decoder> decoder(const DecoderContext& context) override {
    const Options& options = context.options;
    if (!options.may_record_stacks()) return nullptr;
    thread_memory_.store(options.max_memory / kShare);
    return std::make_unique<StackDecoder>(context, counts_, options.max_memory / kShare, python::raise_code_epoch);
  }

  std::span<const EventType> events() const override {
    static constexpr EventType kEvents[] = {EventType::stack_forget, EventType::stack_frame, EventType::stack_node,
                                            EventType::call_stack};
    return kEvents;
  }

  void attach(const AttachContext& context) override {
    const Options& options = context.options;
    if (!options.may_record_stacks()) return;
    notes_ = &context.notes;
    said_ = false;
    cupti_ = &context.cupti;
    callbacks_ = &context.callbacks;
    min_ns_.store(options.stacks_min_ns);
    launch_every_.store(options.stacks_every);
    record(options.stacks != 0 ? options.stacks : requested_.load());
  }

  void request(CallGroups calls) { requested_.store(calls); }
  void record_requested() {
    const CallGroups before = calls_;
    end();
    each_call(before, [&](const ApiFunction& function) { callbacks_->unwatch(*this, function.domain, function.id); });
    record(requested_.load());
  }

  // The interpreter may have started since.
  void flush() override {
    if (wanted_.load() && python::trust() == python::Trust::unknown) begin();
  }

  void detach(bool) override { end(); }

  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override {
    const auto* const call = static_cast<const CUpti_CallbackData*>(data);
    const std::uint32_t recording = recording_.load(std::memory_order_acquire);
    if (call == nullptr || recording == 0 || is_own_thread) return;
    OpenCall& open = open_call;
    if (open.recording != recording) open = OpenCall{.recording = recording};
    call->callbackSite == CUPTI_API_ENTER ? enter(open, domain, *call) : leave(open, domain, id, *call);
  }

  void before_fork() override { deaths_.lock(); }
  void after_fork_in_parent() override { deaths_.unlock(); }
  void after_fork_in_child() override {
    deaths_.unlock();
    wanted_.store(false);
    recording_.store(0);
    python::forget_threads_after_fork();
    watch_deaths();
  }

 private:
  // The part of max_memory for the tables of all threads, and for the writer's: see Recording::start().
  static constexpr std::uint64_t kShare = 16;
  static constexpr std::size_t kDomains = 3, kIds = 2048;

  // Notes the reason for missing stacks, once per recording.
  void say(std::string_view why) {
    if (!std::exchange(said_, true)) notes_->add_quietly(std::string(kNone).append(why));
  }

  // Starts to take the stacks of these calls. CUPTI has to be attached.
  void record(CallGroups calls) {
    if (calls == 0) return;
    const std::string problem = python::find_interpreter();
    if (!problem.empty()) return say(problem);
    if (!watch(calls)) return say("CUPTI refuses callbacks of API calls");
    wanted_.store(true);
    recording_.store(rings::armed.load(), std::memory_order_release);
    begin();
  }

  // Stops taking stacks. The callbacks stay.
  void end() {
    calls_ = 0;
    if (!wanted_.exchange(false)) return;
    recording_.store(0);
    watch_deaths();
    switch (python::trust()) {
      case python::Trust::trusted: return;
      case python::Trust::refused: return say(python::refusal());
      case python::Trust::asked: return say("the main thread of Python ran no code after the first CUDA call");
      default: return say("the Python interpreter did not run");
    }
  }

  // Visits the functions of these groups.
  template <typename Visit>
  void each_call(CallGroups calls, Visit&& visit) const {
    for (const ApiFunction& function : cupti_->api_functions()) {
      const bool known = static_cast<std::size_t>(function.domain) < kDomains && function.id < kIds;
      if (known && (call_groups(function.name) & calls) != 0) visit(function);
    }
  }

  // Watches the calls. False when CUPTI has none of them.
  bool watch(CallGroups calls) {
    calls_ = calls;
    bool any = false;
    each_call(calls, [&](const ApiFunction& function) {
      const bool only_launches = (call_groups(function.name) & calls) == bit(CallGroup::launch);
      sampled_[static_cast<std::size_t>(function.domain)][function.id].store(only_launches, std::memory_order_relaxed);
      any |= callbacks_->watch(*this, function.domain, function.id);
    });
    return any;
  }

  void begin() {
    python::ask_for_check(on_check);
    watch_deaths();
  }
  // Called when the interpreter is checked.
  static void on_check();

  // Watches deaths of code objects while stacks are taken. The check has verified the offset of the deallocator.
  void watch_deaths() {
    const std::lock_guard lock(deaths_);
    const bool wanted = wanted_.load() && python::trust() == python::Trust::trusted;
    if (wanted == watching_.load()) return;
    if (wanted) python::watch_code_deaths(python::interpreter.code_type);
    watching_.store(wanted);
    if (!wanted) python::unwatch_code_deaths();
  }

  void enter(OpenCall& open, CUpti_CallbackDomain domain, const CUpti_CallbackData& call) const {
    const bool inside = open.correlation != 0 && open.domain == CUPTI_CB_DOMAIN_RUNTIME_API && domain == CUPTI_CB_DOMAIN_DRIVER_API;
    if (inside) return;
    open.correlation = call.correlationId;
    open.domain = domain;
    if (min_ns_.load(std::memory_order_relaxed) != 0) open.start = now_ns();
  }

  void leave(OpenCall& open, CUpti_CallbackDomain domain, CUpti_CallbackId id, const CUpti_CallbackData& call) {
    if (open.correlation != call.correlationId || open.domain != domain) return;
    open.correlation = 0;
    const std::uint32_t every = launch_every_.load(std::memory_order_relaxed);
    const bool sampled = every > 1 && sampled_[static_cast<std::size_t>(domain)][id].load(std::memory_order_relaxed);
    if (sampled && open.launches++ % every != 0) return;
    const std::uint64_t min_ns = min_ns_.load(std::memory_order_relaxed);
    if (min_ns != 0 && now_ns() - open.start < min_ns) return;
    take(call.correlationId);
  }

  void take(std::uint32_t correlation) {
    if (!watching_.load(std::memory_order_acquire)) return counts_.count(NoStack::unchecked);
    if (python::interpreter.this_thread_state() == nullptr) return counts_.count(NoStack::no_python);
    Ring* const ring = rings::of_this_thread(EventSource::stacks);
    if (ring == nullptr) return counts_.count(NoStack::no_memory);
    RingSink sink(*ring);
    const python::CapturedStack stack = python::capture_stack(sink, {ring, ring->recording}, thread_memory_.load());
    if (stack.truncated) counts_.truncated.fetch_add(1, std::memory_order_relaxed);
    switch (stack.result) {
      case python::Captured::stack:
        if (!sink.call(correlation, stack.number)) ring->drop(EventSource::stacks);
        return;
      case python::Captured::sink_is_full: return ring->drop(EventSource::stacks);
      case python::Captured::closing: return counts_.count(NoStack::closing);
      case python::Captured::nested: return counts_.count(NoStack::nested);
      case python::Captured::unreadable: return counts_.count(NoStack::unreadable);
      case python::Captured::no_memory: return counts_.count(NoStack::no_memory);
      default: return counts_.count(NoStack::no_python);
    }
  }

  StackCounts counts_;
  // About the attached recording. The attaching thread and the flusher use them, one after the other.
  Notes* notes_ = nullptr;
  const CuptiLibrary* cupti_ = nullptr;
  Callbacks* callbacks_ = nullptr;
  bool said_ = false;     // a note gives the reason for missing stacks
  CallGroups calls_ = 0;  // the watched calls
  std::atomic<CallGroups> requested_{0};
  std::atomic<std::uint64_t> min_ns_{0};
  std::atomic<std::uint32_t> launch_every_{1};
  std::atomic<std::size_t> thread_memory_{0};
  std::array<std::array<std::atomic<bool>, kIds>, kDomains> sampled_{};  // of these calls, one in launch_every_ has a stack
  std::atomic<std::uint32_t> recording_{0};  // the number of the rings' recording, 0 while no recording takes stacks
  std::atomic<bool> wanted_{false};
  SpinLock deaths_;                    // held for a moment
  std::atomic<bool> watching_{false};  // watches deaths of code objects; changed under deaths_
};

StacksFeature& instance() {
  static auto& feature = *new StacksFeature;
  return feature;
}

void StacksFeature::on_check() { instance().watch_deaths(); }

}  // namespace

Feature& stacks_feature() { return instance(); }

void request_stacks(CallGroups calls) { instance().request(calls); }
void record_requested_stacks() { instance().record_requested(); }

}  // namespace cutrace
