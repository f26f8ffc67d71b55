#include "cupti_source.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "clock.h"
#include "cuda/driver.h"
#include "feature.h"
#include "wake.h"

namespace cutrace {
namespace {

std::uint64_t CUPTIAPI timestamp() { return now_ns(); }

// The time that the end of a recording waits for running calls of the program.
constexpr int kUnfinishedCallMs = 100;

CuptiSource& source = *new CuptiSource;

// CUPTI traces a graph as a whole only if this was enabled when the graph was instantiated. CUPTI 13.0 crashes a program that
// launches another graph, and CUPTI 13.5 records nothing of it (docs/internals/collector.md). So tracing must start before CUDA,
// and must not pause.
bool can_trace_whole_graphs(const Options& options, bool before_cuda) { return before_cuda && !options.records_windows(); }

}  // namespace

CuptiSource& CuptiSource::instance() { return source; }

// Kinds are enabled before a feature sees the same callback.
CuptiSource::CuptiSource() {
  callbacks_.add(enabler_);
  for (Feature* const feature : features()) callbacks_.add(*feature);
}

std::uint32_t CuptiSource::stream_id(void* stream) const {
  std::uint32_t id = 0;
  const auto get = library_.GetStreamIdEx;
  return active() && get && get(nullptr, static_cast<CUstream>(stream), 0, &id) == CUPTI_SUCCESS ? id : 0;
}

std::uint32_t CuptiSource::context_id(void* context) const {
  std::uint32_t id = 0;
  return active() && library_.GetContextId && library_.GetContextId(static_cast<CUcontext>(context), &id) == CUPTI_SUCCESS ? id : 0;
}

void CuptiSource::on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  ThreadNames::note_this_thread();
  BufferPool& pool = source.pool_;
  *buffer = pool.request();
  *size = *buffer != nullptr ? pool.buffer_size() : 0;
  *records = 0;  // 0: CUPTI writes as many records as fit
}

void CuptiSource::on_complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  source.pool_.complete(buffer, valid);
  writer_wake.signal();
}

// After a session, torch.profiler finalises CUPTI inside the program's next call. Until then CUPTI says that it is not
// initialised. No tool does so before the program uses CUDA.
CUptiResult CuptiSource::subscribe_patiently(bool before_cuda) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(before_cuda ? 0 : 2);
  while (true) {
    const CUptiResult result = library_.Subscribe(&subscriber_, on_callback, nullptr);
    if (result != CUPTI_ERROR_NOT_INITIALIZED || std::chrono::steady_clock::now() >= deadline) return result;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool CuptiSource::subscribe(const Options& options, bool before_cuda, Notes& notes) {
  std::string holder;
  library_.sharing.store(nullptr);
  if (options.share && subscribe_as_one_of_several(holder)) return true;
  const CUptiResult result = subscribe_patiently(before_cuda);
  if (result == CUPTI_SUCCESS) {
    if (options.share) notes.add("CUPTI serves no other tool during this recording, because it or its driver cannot share");
    return true;
  }
  if (result != CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && result != CUPTI_ERROR_MAX_LIMIT_REACHED) {
    notes.add("GPU activity is not recorded: CUPTI refused a subscriber (" + library_.error_name(result) +
                           "); run `cutrace doctor`");
    return false;
  }
  // The other tool may allow another subscriber.
  if (!options.share && subscribe_as_one_of_several(holder)) return true;
  for (const std::string& tool : likely_cupti_holders()) holder += (holder.empty() ? "" : ", ") + tool;
  notes.add("GPU activity is not recorded: another tool holds CUPTI in this process" +
                         (holder.empty() ? holder : " (found here: " + holder + ")") +
                         "; CUPTI serves one tool at a time, so stop the other tool first");
  return false;
}

// Succeeds if CUPTI and the driver can serve several tools and the first subscriber has allowed it. `holder` becomes the name
// of a tool that does not share, if CUPTI provides it.
bool CuptiSource::subscribe_as_one_of_several(std::string& holder) {
  if (!library_.of_several.complete()) return false;
  std::array<char, 128> name{};
  shared::SubscriberParams params;
  params.name = "cutrace";
  params.other_name = name.data();
  params.other_size = name.size();
  params.allow_others = 1;
  const CUptiResult result = library_.of_several.Subscribe(&subscriber_, on_callback, nullptr, &params);
  if (result == CUPTI_SUCCESS) library_.sharing.store(subscriber_);
  name.back() = 0;
  holder = name.data();
  return result == CUPTI_SUCCESS;
}

// With several subscribers, CUPTI needs the subscriber to read buffers, and CUPTI owns the names in them. Finalising CUPTI needs
// all buffers read, too. So unsubscribe only when the writer has read them.
void CuptiSource::unsubscribe(const std::function<bool()>& is_read) {
  const bool shares = library_.sharing.load() != nullptr;
  while ((shares || finalize_) && !pool_.none_waits() && is_read()) {
    writer_wake.signal();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  library_.Unsubscribe(subscriber_);
  if (finalize_ && !shares && can_finalize() && library_.Finalize() == CUPTI_SUCCESS) prepared_ = false;
}

// A finalised CUPTI no longer intercepts the driver's functions. Without finalisation, these functions cost more than before the
// use of CUPTI, even when nothing is enabled. CUPTI starts anew at its next use. But if a graph has run while CUPTI recorded, and
// runs while CUPTI is finalised, the graph fails and its context becomes unusable. Work of graphs may be in records that were
// dropped or not read. cupti_activity.h requires a flush of all buffers first. CUPTI keeps a buffer while a thread is in a recorded
// call; the call would end in a finalised CUPTI.
bool CuptiSource::can_finalize() const {
  const auto may_finalize = [](const Feature* feature) { return feature->may_finalize(); };
  return library_.knows_finalize() && pool_.all_read() && can_finalize_.load() && std::ranges::all_of(features(), may_finalize);
}

CUptiResult CuptiSource::register_buffers() {
  if (const CUpti_SubscriberHandle us = library_.sharing.load(); us != nullptr)
    return library_.of_several.ActivityRegisterCallbacks(
        us, [](std::uint8_t** buffer, std::size_t* size, std::size_t* records, void*) { on_request(buffer, size, records); },
        [](std::uint8_t* buffer, std::size_t size, std::size_t valid, void*) { on_complete(nullptr, 0, buffer, size, valid); });
  return library_.ActivityRegisterCallbacks(on_request, on_complete);
}

template <typename Value>
bool CuptiSource::set_attribute(CUpti_ActivityAttribute attribute, Value value) {
  std::size_t size = sizeof value;
  return library_.set_attribute(attribute, &size, &value) == CUPTI_SUCCESS;
}

// Settings that must precede the first enabled kind.
void CuptiSource::prepare(const Options& options) {
  if (library_.sharing.load() != nullptr) {
    // Set only the attributes that belong to one subscriber. The zeroing of buffers and the buffers on the GPU are shared with
    // other tools.
    conventions_ = {set_attribute(shared::kTimestampCallback, &timestamp),
                    set_attribute(shared::kThreadIdType, CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM)};
    return;
  }
  conventions_ = conventions_once_;
  if (prepared_) return;  // the settings must not change later
  prepared_ = true;
  conventions_.clock = library_.ActivityRegisterTimestampCallback != nullptr &&
                       library_.ActivityRegisterTimestampCallback(timestamp) == CUPTI_SUCCESS;
  conventions_.threads = library_.SetThreadIdType != nullptr &&
                         library_.SetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM) == CUPTI_SUCCESS;
  conventions_once_ = conventions_;
  // Otherwise CUPTI clears each buffer on the launching thread; here the writer does.
  pool_.set_zeroing(set_attribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, std::uint8_t{1}));
  // Allocate at the first kernel, not with the context. The deferred kinds (see kinds.h) have no effect without this.
  set_attribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE, std::size_t{0});
  if (options.device_buffers != 0)
    set_attribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, static_cast<std::size_t>(options.device_buffers));
}

bool CuptiSource::load(const Options& options, Notes& notes) {
  if (loaded_) return true;
  std::string error;
  if (!library_.load(options.cupti, error)) {
    notes.add("GPU activity is not recorded: " + error);
    return false;
  }
  loaded_ = true;
  for (Feature* const feature : features()) feature->cupti_loaded(library_, callbacks_);
  return true;
}

std::optional<KindSet> CuptiSource::attach(Options options, bool before_cuda, Notes& notes) {
  if (active()) {
    notes.add("GPU activity is not recorded: CUPTI has not yet ended the previous recording");
    return std::nullopt;
  }
  if (forgotten_) {
    notes.add(
        "GPU activity is not recorded: this process was forked after CUDA was initialised, and CUDA does not work in such a child "
        "before it executes another program");
    return std::nullopt;
  }
  if (!load(options, notes)) return std::nullopt;
  if (options.traces_whole_graphs() && !can_trace_whole_graphs(options, before_cuda)) {
    options.graph_nodes = true;
    notes.add(
        "CUDA graphs were recorded by node, because graph=graph needs a recording that starts before CUDA and has no capture "
        "range");
  }
  finalize_ = options.finalize && !options.sample_pc;
  const std::size_t buffer_size = options.buffer_size != 0 ? options.buffer_size : BufferPool::kDefaultBufferSize;
  if (!pool_.open(buffer_size, options.max_memory / 2)) {
    notes.add("GPU activity is not recorded: no address space for buffers; lower max_memory");
    return std::nullopt;
  }
  pool_.begin_recording();
  if (!subscribe(options, before_cuda, notes)) return std::nullopt;
  try {
    const std::optional<KindSet> kinds = enable(options, before_cuda, notes);
    if (!kinds) library_.Unsubscribe(subscriber_);
    return kinds;
  } catch (const std::exception&) {
    active_.store(true);  // so that detach() runs
    detach(false, false, nullptr, [] { return false; });
    throw;
  }
}

std::optional<KindSet> CuptiSource::enable(const Options& options, bool before_cuda, Notes& notes) {
  prepare(options);
  library_.on_realtime.store(!conventions_.clock);
  if (!conventions_.clock)
    notes.add(
        "GPU times were taken on the REALTIME clock and converted, because CUPTI takes no other " +
        std::string(library_.sharing.load() != nullptr ? "while another tool records" : "before 12.0") +
        "; setting the clock meanwhile changes them");
  if (!conventions_.threads)
    notes.add("this CUPTI gives no system thread ids, so API calls carry the low half of pthread_self()");
  pool_.set_open(true);
  const CUptiResult registered = register_buffers();
  if (registered != CUPTI_SUCCESS) {
    notes.add("GPU activity is not recorded: CUPTI took no buffers (" + library_.error_name(registered) + ")");
    pool_.set_open(false);
    return std::nullopt;
  }
  // Records dropped since an earlier recording do not belong to this one.
  std::size_t earlier = 0;
  if (std::exchange(served_, true)) library_.take_dropped(&earlier);
  dropped_.store(0);
  counts_dropped_.store(true);
  callbacks_.open(library_, subscriber_);
  refused_.clear();
  // CUPTI 13.5 records nothing of their nodes, unlike CUPTI 13.0.
  const bool records_nodes = options.graph_nodes && (options.kinds & bit(Kind::kernel));
  if (records_nodes && traced_whole_graphs_ && library_.version >= kCupti_13_0 + 100)
    refused_.push_back({"graphs of an earlier recording with graph=graph", "they can only be traced as a whole"});
  traced_whole_graphs_ |= options.traces_whole_graphs();
  const AttachContext context{options, library_, callbacks_, enabler_, notes, refused_, before_cuda};
  for (Feature* const feature : features()) feature->attach(context);
  // With a shared CUPTI, enable kinds as in a running program: it is unknown whether enabling them inside cuInit() works.
  const bool first = before_cuda && library_.sharing.load() == nullptr;
  const KeptCalls calls{options.api, options.stacks};
  const KindSet kinds = options.records_windows()
                            ? enabler_.hold(library_, callbacks_, options.kinds, calls, first)
                            : enabler_.enable(library_, callbacks_, options.kinds, calls, options.traces_whole_graphs(), first);
  for (Feature* const feature : features()) feature->kinds_enabled(context);
  active_.store(true, std::memory_order_release);
  return kinds;
}

void CuptiSource::flush() {
  if (active() && pool_.outstanding() != 0) flush_all(0);
  for (Feature* const feature : features()) feature->flush();
}

std::string CuptiSource::flush_error() const {
  const CUptiResult result = flushed_.load();
  return result == CUPTI_SUCCESS ? std::string() : library_.error_name(result);
}

bool CuptiSource::synchronize(void* context) {
  const auto may_wait = [](CUcontext waited) {
    return std::ranges::all_of(features(), [&](const Feature* feature) { return feature->may_wait_for(waited); });
  };
  return synchronize_contexts(context, may_wait);
}

bool CuptiSource::detach(bool at_exit, bool synchronize, void* context, const std::function<bool()>& is_read) {
  if (!active()) return true;
  const bool waited = !synchronize || CuptiSource::synchronize(context);
  for (Feature* const feature : features()) feature->detach(at_exit);
  enabler_.settle();
  flush_all(0);
  // At exit the driver's own exit handler may have run already. Flushing is safe even then; disabling a kind crashes in CUPTI
  // 13.0.
  if (!at_exit) enabler_.disable();
  pool_.end_recording();
  take_back_buffers(at_exit);
  count_last_dropped();
  if (!at_exit) unsubscribe(is_read);
  active_.store(false, std::memory_order_release);
  return waited;
}

KindSet CuptiSource::resume(bool before_cuda) {
  std::size_t before = 0;
  library_.take_dropped(&before);  // records that were dropped outside of windows are not missing
  pool_.continue_recording();
  return enabler_.resume(before_cuda);
}

bool CuptiSource::suspend(bool wait, void* context) {
  bool waited = !wait || synchronize(context);
  // Calls that have not returned may be launches. If there are some, wait for the GPU again.
  pool_.end_recording();
  if (!take_back_buffers(false) && wait) waited &= synchronize(context);
  enabler_.suspend();
  pool_.end_recording();
  take_back_buffers(false);
  return waited;
}

// The writer counts buffers that CUPTI does not return as lost. Returns false when it had to wait for buffers.
bool CuptiSource::take_back_buffers(bool at_exit) {
  // A forced flush returns running kernels without an end time. CUPTI never returns these kernels again, not even to other tools.
  // So force a flush only when nothing can follow and CUPTI is not shared.
  if (at_exit && library_.sharing.load() == nullptr) {
    flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    return true;
  }
  // CUPTI keeps a buffer that has the record of an unfinished call, and with it the records of the last 100 ms of finished calls.
  // Other threads of the program are in such calls.
  flush_all(0);
  int waited = 0;
  for (; pool_.unread(0, 0).with_cupti != 0 && waited < kUnfinishedCallMs; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    flush_all(0);
  }
  return waited == 0;
}

std::vector<Refusal> CuptiSource::refused_kinds() const {
  std::vector<Refusal> refused = refused_;
  const std::vector<Refusal> kinds = enabler_.refused();
  refused.insert(refused.end(), kinds.begin(), kinds.end());
  return refused;
}

std::uint64_t CuptiSource::take_dropped() {
  if (counts_dropped_.load()) count_dropped();
  return dropped_.exchange(0);
}

// Records dropped after the last flush do not count, because CUPTI gets no buffers then.
void CuptiSource::count_last_dropped() {
  counts_dropped_.store(false);
  count_dropped();
}

void CuptiSource::count_dropped() {
  std::size_t dropped = 0;
  if (library_.take_dropped(&dropped) != CUPTI_SUCCESS || dropped == 0) return;
  dropped_.fetch_add(dropped);
  can_finalize_.store(false);  // work of graphs may be among them
}

void CuptiSource::forget() {
  forgotten_ |= served_;
  active_.store(false);
  counts_dropped_.store(false);
  enabler_.forget();
  pool_.set_open(false);
}

}  // namespace cutrace
