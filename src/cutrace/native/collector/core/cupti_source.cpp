#include "cupti_source.h"

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "clock.h"
#include "features/nvtx/nvtx.h"
#include "wake.h"

namespace cutrace {
namespace {

std::uint64_t CUPTIAPI timestamp() { return now_ns(); }

// How long the end of a recording waits for calls of the program to return.
constexpr int kUnfinishedCallMs = 100;

CuptiSource& source = *new CuptiSource;

}  // namespace

CuptiSource& CuptiSource::instance() { return source; }

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
  *records = 0;  // as many as fit
}

void CuptiSource::on_complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  source.pool_.complete(buffer, valid);
  writer_wake.signal();
}

bool CuptiSource::subscribe(const Options& options, Notes& notes) {
  std::string holder;
  library_.sharing.store(nullptr);
  if (options.share && subscribe_as_one_of_several(holder)) return true;
  const CUptiResult result = library_.Subscribe(&subscriber_, on_callback, nullptr);
  if (result == CUPTI_SUCCESS) {
    if (options.share) notes.add("CUPTI serves no other tool during this recording, because it or its driver cannot share");
    return true;
  }
  if (result != CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && result != CUPTI_ERROR_MAX_LIMIT_REACHED) {
    notes.add("GPU activity is not recorded: CUPTI refused a subscriber (" + library_.error_name(result) +
                           "); run `cutrace doctor`");
    return false;
  }
  // The other tool may share CUPTI.
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

// With several subscribers, reading buffers needs the subscriber, and names in them are CUPTI's: until all buffers are read,
// the subscriber stays, or CUPTI is not finalised.
void CuptiSource::unsubscribe(const std::function<bool()>& is_read) {
  const bool shares = library_.sharing.load() != nullptr;
  while ((shares || finalize_) && !pool_.all_read() && is_read()) {
    writer_wake.signal();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  library_.Unsubscribe(subscriber_);
  if (finalize_ && !shares && pool_.outstanding() == 0 && pool_.all_read()) finalize();
}

// CUPTI then leaves the driver's functions alone, which cost more than before its use even when nothing is enabled. It begins
// anew at its next use. But a graph that has run while CUPTI recorded, and runs while CUPTI is finalised, fails and takes the
// context with it. Only CUPTI 13.0 was tried. cupti_activity.h asks for a flush of all buffers before. CUPTI keeps a buffer
// while a thread is in a recorded call, whose end would then come into a finalised CUPTI.
void CuptiSource::finalize() {
  const bool tried = library_.version >= kCupti_13_0 && library_.version < kCupti_13_0 + 100;
  if (library_.Finalize == nullptr || !tried || !can_finalize_.load()) return;
  if (library_.Finalize() == CUPTI_SUCCESS) prepared_ = false;
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
    // Only the attributes of one subscriber. The zeroing of buffers and the buffers on the GPU are shared with other tools.
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

std::optional<KindSet> CuptiSource::attach(const Options& options, bool before_cuda, Notes& notes) {
  std::string error;
  if (active()) {
    notes.add("GPU activity is not recorded: CUPTI has not yet ended the previous recording");
    return std::nullopt;
  }
  if (!loaded_ && !library_.load(options.cupti, error)) {
    notes.add("GPU activity is not recorded: " + error);
    return std::nullopt;
  }
  loaded_ = true;
  finalize_ = options.finalize && !options.sample_pc;
  const std::size_t buffer_size = options.buffer_size != 0 ? options.buffer_size : BufferPool::kDefaultBufferSize;
  if (!pool_.open(buffer_size, options.max_memory / 2)) {
    notes.add("GPU activity is not recorded: no address space for buffers; lower max_memory");
    return std::nullopt;
  }
  pool_.discard_completed();
  if (!subscribe(options, notes)) return std::nullopt;
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
  captures_.watch(library_, subscriber_);
  constexpr KindSet kInGraphs = bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset);
  if (options.records_nvtx() && options.graph_nodes && (options.kinds & kInGraphs)) watch_graphs();
  // With a shared CUPTI, enable kinds as in a running program: it is unknown whether enabling them inside cuInit() works.
  const KindSet kinds = enabler_.enable(library_, subscriber_, options.kinds, options.api, options.graph_nodes,
                  before_cuda && library_.sharing.load() == nullptr, options.sample_pc);
  std::string error;
  if (options.sample_pc && pc_sampling_.start(library_, subscriber_, options.sample_period,
                                              before_cuda ? std::vector<CUcontext>() : known_contexts(), error))
    pc_sampling_.read(enabler_.settled());
  if (!error.empty()) notes.add("program counters were not sampled: " + error);
  active_.store(true, std::memory_order_release);
  return kinds;
}

// Where nodes are created. Replays make no such callback.
void CuptiSource::watch_graphs() {
  if (library_.EnableCallback == nullptr || library_.GetGraphNodeId == nullptr) return;
  for (const CUpti_CallbackId id :
       {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED})
    library_.EnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, id);
}

void CuptiSource::on_graph(CUpti_CallbackId id, const void* data) noexcept {
  if (!active() || data == nullptr) return;
  const auto* graph = static_cast<const CUpti_GraphData*>(static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor);
  if (graph == nullptr) return;
  if (id == CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED) {
    std::uint32_t exec = 0;
    if (library_.GetGraphExecId != nullptr && library_.GetGraphExecId(graph->graphExec, &exec) == CUPTI_SUCCESS)
      nvtx::graph_instantiated(exec);
    return;
  }
  std::uint64_t node = 0, original = 0;
  if (library_.GetGraphNodeId(graph->node, &node) != CUPTI_SUCCESS) return;
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) return nvtx::graph_node_created(node);
  if (library_.GetGraphNodeId(graph->originalNode, &original) == CUPTI_SUCCESS) nvtx::graph_node_copied(node, original);
}

void CuptiSource::flush() {
  if (active() && pool_.outstanding() != 0) flush_all(0);
  pc_sampling_.read(enabler_.settled());
}

std::string CuptiSource::kept_back() const {
  const CUptiResult result = flushed_.load();
  return result == CUPTI_SUCCESS || pool_.outstanding() == 0 ? std::string() : library_.error_name(result);
}

bool CuptiSource::detach(bool at_exit, bool synchronize, void* context, const std::function<bool()>& is_read) {
  if (!active()) return true;
  const bool waited = !synchronize || synchronize_contexts(context, captures_);
  pc_sampling_.stop();
  enabler_.settle();
  flush_all(0);
  if (at_exit) {
    // The driver's own exit handler may have run before: flushing is safe then, disabling a kind crashes in CUPTI 13.0.
    // A forced flush returns running kernels without an end and never again, also for other tools: only use it when nothing
    // can follow and CUPTI is not shared.
    if (library_.sharing.load() == nullptr) flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    count_last_dropped();
  } else {
    enabler_.disable();
    flush_all(0);
    // CUPTI keeps a buffer that has the record of an unfinished call, and with it the last 100 ms of finished ones. Other
    // threads of the program are in such calls.
    for (int waiting = 0; pool_.outstanding() != 0 && waiting < kUnfinishedCallMs; ++waiting) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      flush_all(0);
    }
    count_last_dropped();
    unsubscribe(is_read);
  }
  active_.store(false, std::memory_order_release);
  return waited;
}

std::uint64_t CuptiSource::take_dropped() {
  if (counts_dropped_.load()) count_dropped();
  return dropped_.exchange(0);
}

// Records dropped after the last flush do not count: CUPTI gets no more buffers then.
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
  active_.store(false);
  counts_dropped_.store(false);
  enabler_.forget();
  pc_sampling_.forget();
  pool_.set_open(false);
}

}  // namespace cutrace
