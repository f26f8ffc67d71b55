#include "kernel_names.h"

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/launch_values.h"
#include "core/wake.h"
#include "cuda/driver.h"
#include "features/graph_nodes/graph_callbacks.h"

namespace cutrace {
namespace {

// kernel_name: the name with this hash.
struct NameEvent {
  EventHead head;  // `number` is the length of the name, which follows
  std::uint64_t hash;
};
// launch_name: the kernel that a call launches.
struct LaunchNameEvent {
  EventHead head;
  std::uint64_t hash;
  std::uint32_t correlation;
  std::uint32_t unused;
};
// node_name: the kernel of a node. If `exec` is not 0, it is the kernel of the copy of the node in this executable graph. If `node`
// is 0, an update has changed the kernels of all nodes of the executable graph.
struct NodeEvent {
  EventHead head;
  std::uint64_t hash;  // 0: unknown
  std::uint64_t node;
  std::uint32_t exec;
  std::uint32_t correlation;  // of the call that changed an executable graph
  std::uint64_t changed;      // 1: the node had another kernel before
};

// The parameters of cuGraphExecKernelNodeSetParams_v2().
struct SetParameters {
  CUgraphExec exec;
  CUgraphNode node;
  const CUDA_KERNEL_NODE_PARAMS* params;
};

constexpr std::size_t kLongestName = 32 << 10;

template <typename PutEvent>
bool put(Ring& ring, EventType type, PutEvent event, std::string_view tail = {}) {
  const std::size_t size = (sizeof event + tail.size() + 7) & ~std::size_t{7};
  std::uint8_t* const at = ring.reserve(size);
  if (at == nullptr) {
    ring.drop(EventSource::names);
    return false;
  }
  event.head = {static_cast<std::uint32_t>(size), type, 0, static_cast<std::uint16_t>(tail.size())};
  std::memcpy(at, &event, sizeof event);
  if (!tail.empty()) std::memcpy(at + sizeof event, tail.data(), tail.size());
  if (ring.commit(size)) writer_wake.signal();
  return true;
}

// The first launch of a set. Correlation ids count up.
class FirstLaunch {
 public:
  void reset() { first_.store(kNone); }
  void note(std::uint32_t correlation) {
    std::uint64_t first = first_.load(std::memory_order_relaxed);
    while (!follows(correlation, first) && !first_.compare_exchange_weak(first, correlation, std::memory_order_relaxed)) {
    }
  }
  // Whether the launch is the first launch or a later one.
  bool covers(std::uint32_t correlation) const { return follows(correlation, first_.load(std::memory_order_relaxed)); }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  static bool follows(std::uint32_t correlation, std::uint64_t first) {
    return first != kNone && correlation - static_cast<std::uint32_t>(first) < 0x80000000u;
  }
  std::atomic<std::uint64_t> first_{kNone};
};

// The hash of the kernel's name while the thread is inside the call that launches it, else 0.
thread_local std::uint64_t launching = 0;

class KernelNames final : public Feature {
 public:
  std::unique_ptr<Decoder> decoder(const DecoderContext& context) override;
  std::span<const EventType> events() const override {
    static constexpr EventType kEvents[] = {EventType::kernel_name, EventType::launch_name, EventType::node_name};
    return kEvents;
  }
  void cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) override;
  void attach(const AttachContext& context) override;
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;

  // Whether the event with the name of this launch may be missing. `incomplete`: events of some launches were dropped.
  bool missed(std::uint32_t launch, bool incomplete) const { return missed_.covers(launch) || (incomplete && first_.covers(launch)); }
  bool missed_a_node() const { return missed_node_.load(std::memory_order_relaxed); }

 private:
  // The effect of a call on names.
  enum class Effect : std::uint8_t { none, launches, adds_node, sets_node, sets_exec_node, updates_exec };
  static Effect effect_of(std::string_view name);
  void watch_calls();
  void put_name(Ring& ring, std::uint64_t hash, std::string_view name);
  std::uint64_t node_id(CUgraphNode node) const;
  std::uint32_t exec_id(CUgraphExec exec) const;
  void name_node(NodeEvent event, const char* name);

  static constexpr std::size_t kIds = 2048, kPut = 1 << 14;
  const CuptiLibrary* cupti_ = nullptr;
  Callbacks* callbacks_ = nullptr;
  std::array<Effect, kIds> effects_{};  // of the driver's calls, by callback id
  std::atomic<bool> watching_{false};   // all of the calls, since the first unload
  std::atomic<std::uint32_t> recording_{0};
  FirstLaunch first_;   // the first with a callback: records of earlier launches have the right names
  FirstLaunch missed_;  // the first launch without a ring, for lack of memory or after the end of the recording
  std::atomic<bool> missed_node_{false};  // a node of a graph had no ring
  std::array<std::atomic<std::uint64_t>, kPut> put_{};  // names that are already in a ring, by hash, recording and thread
};

KernelNames::Effect KernelNames::effect_of(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (name.starts_with("cuLaunch") && !has("HostFunc")) return Effect::launches;
  if (name == "cuGraphExecKernelNodeSetParams_v2") return Effect::sets_exec_node;
  if (has("GraphExecUpdate") || has("GraphExecKernelNodeSetParams") || name == "cuGraphExecNodeSetParams") return Effect::updates_exec;
  if (has("GraphKernelNodeSetParams") || has("GraphNodeSetParams")) return Effect::sets_node;
  if (has("GraphAddKernelNode") || name.starts_with("cuGraphAddNode")) return Effect::adds_node;
  return Effect::none;
}

void KernelNames::cupti_loaded(const CuptiLibrary& cupti, Callbacks& callbacks) {
  cupti_ = &cupti;
  callbacks_ = &callbacks;
  for (const ApiFunction& function : cupti.api_functions())
    if (function.domain == CUPTI_CB_DOMAIN_DRIVER_API && function.id < kIds) effects_[function.id] = effect_of(function.name);
}

void KernelNames::attach(const AttachContext& context) {
  watching_.store(false);
  first_.reset();
  missed_.reset();
  missed_node_.store(false);
  recording_.fetch_add(1);
  if (!(context.options.kinds & bit(Kind::kernel)) || !mixes_up_names(cupti_->version)) return;
  callbacks_->watch(*this, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING);
  // CUPTI may have names from before, and the program may have unloaded modules since.
  if (recording_.load() > 1 || !context.before_cuda) watch_calls();
}

// CUPTI has the right name for calls that started before the first unload, because the handle has had no other function. So no
// thread may unload before all calls are watched. Threads that unload at the same time all watch the calls, because none of them
// may wait here for another one.
void KernelNames::watch_calls() {
  if (watching_.load()) return;
  watch_graph_nodes(*callbacks_);
  callbacks_->watch(*this, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
  for (std::size_t id = 0; id < kIds; ++id)
    if (effects_[id] != Effect::none) callbacks_->watch(*this, CUPTI_CB_DOMAIN_DRIVER_API, static_cast<CUpti_CallbackId>(id));
  watching_.store(true);
}

void KernelNames::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  if (domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING) return watch_calls();
  if (data == nullptr) return;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    const void* const about = static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor;
    // The launch is captured: it makes a node.
    if (about == nullptr || launching == 0) return;
    Ring* const ring = rings::of_this_thread(EventSource::names);
    const std::uint64_t node = node_id(static_cast<const CUpti_GraphData*>(about)->node);
    if (ring == nullptr) return missed_node_.store(true);
    if (node != 0) put(*ring, EventType::node_name, NodeEvent{{}, launching, node, 0, 0, 0});
    return;
  }
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || id >= kIds) return;
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  const bool enters = call.callbackSite == CUPTI_API_ENTER;
  const Effect effect = effects_[id];
  if (effect == Effect::launches) {
    launching = 0;
    if (!enters || call.symbolName == nullptr) return;
    first_.note(call.correlationId);
    Ring* const ring = rings::of_this_thread(EventSource::names);
    if (ring == nullptr) return missed_.note(call.correlationId);
    const std::string_view name(call.symbolName, strnlen(call.symbolName, kLongestName));
    launching = hash_bytes(name.data(), name.size()) | 1;
    put_name(*ring, launching, name);
    put(*ring, EventType::launch_name, LaunchNameEvent{{}, launching, call.correlationId, 0});
    return;
  }
  // At the end of a call the driver holds no lock of the graph.
  const int* const status = static_cast<const int*>(call.functionReturnValue);
  if (enters || call.functionParams == nullptr || status == nullptr || *status != 0) return;
  switch (effect) {
    case Effect::adds_node: {
      // The first parameter of all these calls is where the node is stored.
      CUgraphNode* const node = *static_cast<CUgraphNode* const*>(call.functionParams);
      const char* const name = node != nullptr ? kernel_name_of(*node) : nullptr;
      if (name != nullptr) name_node({{}, 0, node_id(*node), 0, 0, 0}, name);
      return;
    }
    case Effect::sets_node: {
      CUgraphNode const node = *static_cast<CUgraphNode const*>(call.functionParams);
      return name_node({{}, 0, node_id(node), 0, 0, 1}, kernel_name_of(node));
    }
    case Effect::sets_exec_node: {
      const auto& [exec, node, params] = *static_cast<const SetParameters*>(call.functionParams);
      const char* const name = params != nullptr ? kernel_name_of(params->func, params->kern) : nullptr;
      return name_node({{}, 0, node_id(node), exec_id(exec), call.correlationId, 1}, name);
    }
    case Effect::updates_exec: {
      // The graph is the first parameter of all these calls. The new kernels of its nodes are unknown.
      CUgraphExec const exec = *static_cast<CUgraphExec const*>(call.functionParams);
      return name_node({{}, 0, 0, exec_id(exec), call.correlationId, 1}, nullptr);
    }
    default: return;
  }
}

// Puts the name once into the ring of each thread, because the writer may read the rings of other threads later.
void KernelNames::put_name(Ring& ring, std::uint64_t hash, std::string_view name) {
  const std::uint64_t mark = hash_mix(hash, std::uint64_t{recording_.load(std::memory_order_relaxed)} << 32 | ring.thread);
  std::atomic<std::uint64_t>& known = put_[mark % kPut];
  if (known.load(std::memory_order_acquire) == mark) return;
  if (put(ring, EventType::kernel_name, NameEvent{{}, hash}, name)) known.store(mark, std::memory_order_release);
}

std::uint64_t KernelNames::node_id(CUgraphNode node) const {
  std::uint64_t id = 0;
  const auto get = cupti_->GetGraphNodeId;
  return get != nullptr && get(node, &id) == CUPTI_SUCCESS ? id : 0;
}

std::uint32_t KernelNames::exec_id(CUgraphExec exec) const {
  std::uint32_t id = 0;
  const auto get = cupti_->GetGraphExecId;
  return get != nullptr && get(exec, &id) == CUPTI_SUCCESS ? id : 0;
}

// A null `name` means an unknown name.
void KernelNames::name_node(NodeEvent event, const char* name) {
  Ring* const ring = rings::of_this_thread(EventSource::names);
  if (ring == nullptr) return missed_node_.store(true);
  if (name != nullptr) {
    const std::string_view view(name, strnlen(name, kLongestName));
    event.hash = hash_bytes(view.data(), view.size()) | 1;
    put_name(*ring, event.hash, view);
  }
  put(*ring, EventType::node_name, event);
}

// The names of launches until their records arrive.
class KernelNamesDecoder final : public Decoder {
 public:
  KernelNamesDecoder(const DecoderContext& context, const KernelNames& names)
      : capture_(context.capture), told_(names), limit_(context.options.max_memory / 8), launches_(limit_ / 2) {}

  void event(const Ring& ring, const std::uint8_t* bytes) override;
  void ring_is_read(Ring& ring, bool ended) override;
  bool names_kernels() const override { return true; }
  const char* kernel_name(const CUpti_ActivityKernel9& record, const char* given) override;
  void write_out(bool last) override;
  std::size_t memory() const override { return launches_.memory() + name_bytes_; }

 private:
  static constexpr std::size_t kEntry = 48;  // bytes of an entry of names_

  const std::string* name_of(std::uint64_t hash) const;
  const char* unknown();

  Capture& capture_;
  const KernelNames& told_;
  std::size_t limit_;
  std::unordered_map<std::uint64_t, std::string> names_;
  std::size_t name_bytes_ = 0;
  LaunchValues launches_;       // hashes of names
  bool incomplete_ = false;     // names of launches or nodes are missing
  std::uint64_t unknown_ = 0;   // kernels since the last block
  std::uint64_t ringless_ = rings::events_without_ring(EventSource::graph_nodes);
};

std::unique_ptr<Decoder> KernelNames::decoder(const DecoderContext& context) {
  if (!(context.options.kinds & bit(Kind::kernel))) return nullptr;
  return std::make_unique<KernelNamesDecoder>(context, *this);
}

void KernelNamesDecoder::event(const Ring&, const std::uint8_t* bytes) {
  EventHead head;
  std::memcpy(&head, bytes, sizeof head);
  if (head.type == EventType::kernel_name) {
    NameEvent event;
    std::memcpy(&event, bytes, sizeof event);
    if (names_.contains(event.hash)) return;
    if (name_bytes_ > limit_ / 2) {
      incomplete_ = true;
      return;
    }
    names_.emplace(event.hash, std::string(reinterpret_cast<const char*>(bytes) + sizeof event, head.number));
    name_bytes_ += head.number + sizeof(std::string) + kEntry;
  } else if (head.type == EventType::launch_name) {
    LaunchNameEvent event;
    std::memcpy(&event, bytes, sizeof event);
    if (!launches_.add(event.correlation, event.hash, !capture_.keeps_nothing())) incomplete_ = true;
  } else {
    NodeEvent event;
    std::memcpy(&event, bytes, sizeof event);
    const std::string* const name = name_of(event.hash);
    const GraphNodes::Kernel kernel{name, name == nullptr};
    GraphNodes& nodes = capture_.graph_nodes();
    if (event.exec == 0) nodes.set_kernel(event.node, kernel, event.changed != 0);
    else nodes.set_kernel_in(event.exec, event.node, kernel, event.correlation);
  }
}

void KernelNamesDecoder::ring_is_read(Ring& ring, bool) {
  if (ring.take_dropped(EventSource::names) != 0) incomplete_ = true;
  // If NVTX is recorded, its decoder has counted them.
  if (ring.take_dropped(EventSource::graph_nodes) != 0) capture_.graph_nodes().drop_kernels();
}

const std::string* KernelNamesDecoder::name_of(std::uint64_t hash) const {
  const auto name = names_.find(hash);
  return name != names_.end() ? &name->second : nullptr;
}

const char* KernelNamesDecoder::unknown() {
  ++unknown_;
  return kUnknownKernel;
}

const char* KernelNamesDecoder::kernel_name(const CUpti_ActivityKernel9& record, const char* given) {
  if (record.graphNodeId != 0) {
    const std::uint64_t ringless = rings::events_without_ring(EventSource::graph_nodes);
    if (std::exchange(ringless_, ringless) != ringless) capture_.graph_nodes().drop_kernels();
    const GraphNodes::Kernel kernel = capture_.graph_nodes().kernel(record.graphNodeId, record.correlationId);
    if (kernel.name != nullptr) return kernel.name->c_str();
    return kernel.unknown || incomplete_ || told_.missed_a_node() ? unknown() : given;
  }
  const std::uint64_t hash = launches_.take(record.correlationId);
  if (const std::string* const name = name_of(hash)) return name->c_str();
  return hash != 0 || told_.missed(record.correlationId, incomplete_) ? unknown() : given;
}

void KernelNamesDecoder::write_out(bool) {
  capture_.lose(rows::Loss::name_unknown, std::exchange(unknown_, 0), "kernels");
}

}  // namespace

Feature& kernel_names_feature() {
  static auto& feature = *new KernelNames;
  return feature;
}

}  // namespace cutrace
