// Newer headers declare these functions with types that older headers lack. They are defined below with the types of
// cupti_library.h.
#define cuptiSubscribe_v2 declared_Subscribe_v2
#define cuptiActivityRegisterCallbacks_v2 declared_ActivityRegisterCallbacks_v2
#define cuptiActivityEnable_v2 declared_ActivityEnable_v2
#define cuptiActivityDisable_v2 declared_ActivityDisable_v2
#define cuptiActivityEnableAndDump_v2 declared_ActivityEnableAndDump_v2
#define cuptiActivityEnableRuntimeApi_v2 declared_ActivityEnableRuntimeApi_v2
#define cuptiActivityEnableDriverApi_v2 declared_ActivityEnableDriverApi_v2
#define cuptiActivityGetNextRecord_v2 declared_ActivityGetNextRecord_v2
#define cuptiActivityGetNumDroppedRecords_v2 declared_ActivityGetNumDroppedRecords_v2
#define cuptiActivitySetAttribute_v2 declared_ActivitySetAttribute_v2
#include "fake_cupti.h"
#undef cuptiSubscribe_v2
#undef cuptiActivityRegisterCallbacks_v2
#undef cuptiActivityEnable_v2
#undef cuptiActivityDisable_v2
#undef cuptiActivityEnableAndDump_v2
#undef cuptiActivityEnableRuntimeApi_v2
#undef cuptiActivityEnableDriverApi_v2
#undef cuptiActivityGetNextRecord_v2
#undef cuptiActivityGetNumDroppedRecords_v2
#undef cuptiActivitySetAttribute_v2

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "callback_names.h"

namespace {

struct Full {
  std::uint8_t* buffer;
  std::size_t size, valid;
};

struct Producer {
  std::mutex mutex;
  std::uint8_t* buffer = nullptr;
  std::size_t size = 0, used = 0;
  bool held = false;  // only a forced flush delivers the buffer
  unsigned calls = 0;  // number of recorded calls that have not ended; if any, the buffer is held, too
};

struct Graph {
  struct Node {
    const char* kernel = nullptr;  // null for a fill
    std::uint32_t inner = 0;       // a child graph or a body
    std::uintptr_t function = 0;   // a function of a module, in place of `kernel`
  };
  std::vector<Node> nodes;
  // For an executable graph: the indices of the nodes that run, in their order.
  std::vector<std::uint32_t> running;
  bool whole = false;  // for an executable graph: instantiated while whole graphs were traced
};

struct Fake {
  std::mutex mutex;
  std::uint32_t version = 130001;
  std::atomic<int> subscribe_result{CUPTI_SUCCESS};
  std::map<int, int> refused_kinds;
  std::atomic<bool> fails{false};
  std::map<std::string, int, std::less<>> failures;  // by function, without "cupti"
  std::atomic<unsigned> callback_delay{0};
  std::atomic<bool> reenter{false}, names_expire{false};
  // under mutex; the key is the buffer that refers to the names
  std::multimap<const std::uint8_t*, std::unique_ptr<std::string>> names;
  std::atomic<unsigned> flush_delay{0}, enabling_delay{0}, subscribing_delay{0};
  std::atomic<bool> late{false};
  std::atomic<std::uint32_t> existing_context{0};
  std::array<std::atomic<bool>, 128> kinds{};
  std::array<std::array<std::atomic<bool>, 1024>, 3> calls{};
  std::vector<std::shared_ptr<Producer>> producers;
  std::vector<Full> waiting;
  std::atomic<CUpti_BuffersCallbackRequestFunc> request{nullptr};
  std::atomic<CUpti_BuffersCallbackCompleteFunc> complete{nullptr};
  std::atomic<CUpti_TimestampCallbackFunc> clock{nullptr};
  std::atomic<CUpti_CallbackFunc> callback{nullptr};
  std::atomic<void*> user_data{nullptr};
  std::array<std::array<std::atomic<bool>, 1024>, 4> callbacks{};  // by domain and id
  std::atomic<bool> enabled_in_context{false};
  std::atomic<bool> cuda_in_use{false};
  std::atomic<bool> can_share{false}, sharing{false};
  std::atomic<CUpti_SubscriberHandle> latest{nullptr};  // the latest of several subscribers
  std::atomic<void (*)(std::uint8_t**, std::size_t*, std::size_t*, void*)> shared_request{nullptr};
  std::atomic<void (*)(std::uint8_t*, std::size_t, std::size_t, void*)> shared_complete{nullptr};
  std::atomic<std::uint64_t> dropped{0}, dropped_at_unsubscribe{0}, refused{0};
  std::atomic<std::uint32_t> correlation{0};
  // A call holds this lock shared while it takes its number and checks whether it is recorded. A change of the recorded kinds
  // holds it alone, so a call with a greater number sees the change.
  std::shared_mutex numbering;
  std::atomic<unsigned> subscribers{0}, subscription_attempts{0}, subscriptions{0}, finalized{0}, flushes{0}, told{0}, stale_calls{0};
  std::atomic<void (*)(bool)> on_flush{nullptr};
  std::atomic<void (*)(int)> on_dump{nullptr};
  std::mutex graphs_mutex;
  std::map<std::uint32_t, Graph> graphs;  // under graphs_mutex, like all members below
  std::set<std::string> graph_names;
  std::uint32_t last_graph = 0;
  std::atomic<bool> loads_cubins{false};  // the program reports its modules itself
  std::mutex functions_mutex;
  // under functions_mutex: functions of loaded modules, by handle
  std::map<std::uintptr_t, std::unique_ptr<std::string>> functions;
  std::map<std::uintptr_t, std::string> first_names;  // under functions_mutex: CUPTI's name of each handle
};

thread_local bool in_a_name = false;
thread_local std::uint32_t open_correlation = 0;  // correlation id of the thread's current call

Fake& fake() {
  static auto* f = [] {
    auto* made = new Fake;
    if (const char* version = std::getenv("FAKE_CUPTI_VERSION")) made->version = static_cast<std::uint32_t>(std::atoi(version));
    // For programs, FAKE_CUPTI_FAILURES=RangeProfilerStart:35,... replaces fake_fail().
    const char* given = std::getenv("FAKE_CUPTI_FAILURES");
    for (std::string_view left = given != nullptr ? given : ""; !left.empty();) {
      const std::string one(left.substr(0, left.find(',')));
      left.remove_prefix(std::min(left.size(), one.size() + 1));
      made->failures[one.substr(0, one.find(':'))] = std::atoi(one.c_str() + one.find(':') + 1);
      made->fails = true;
    }
    return made;
  }();
  return *f;
}

Producer& this_producer() {
  thread_local std::shared_ptr<Producer> producer;
  if (producer == nullptr) {
    const std::lock_guard lock(fake().mutex);
    auto& all = fake().producers;
    // Buffers of ended threads are reused and never freed, because destructors of static objects launch after the destructors of
    // the thread.
    const auto unused = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.use_count() == 1; });
    producer = unused != all.end() ? *unused : all.emplace_back(std::make_shared<Producer>());
  }
  return *producer;
}

// Record sizes of the releases: 12.0, 12.2, 12.8, 13.0, and the additions of 13.1 to 13.5.
std::size_t size_of(int kind) {
  const std::uint32_t version = fake().version;
  const bool first = version < 20, old = version < 26;
#if CUPTI_API_VERSION >= 130500
  if (version >= 130500) {
    switch (kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel13);
      case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy7);
      case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset5);
      case CUPTI_ACTIVITY_KIND_DEVICE: return sizeof(CUpti_ActivityDevice6);
      case CUPTI_ACTIVITY_KIND_CONTEXT: return sizeof(CUpti_ActivityContext4);
      case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return sizeof(CUpti_ActivityCudaEvent3);
      default: break;
    }
  }
  if (version >= 130300 && kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return sizeof(CUpti_ActivityKernel12);
  if (version >= 130100 && kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return sizeof(CUpti_ActivityKernel11);
#endif
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return version >= 130000 ? sizeof(CUpti_ActivityKernel10) : sizeof(CUpti_ActivityKernel9);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return old ? sizeof(CUpti_ActivityMemcpy5) : sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return old ? sizeof(CUpti_ActivitySynchronization) : sizeof(CUpti_ActivitySynchronization2);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return old ? sizeof(CUpti_ActivityCudaEvent) : sizeof(CUpti_ActivityCudaEvent2);
    case CUPTI_ACTIVITY_KIND_MEMORY2: return old ? sizeof(CUpti_ActivityMemory3) : sizeof(CUpti_ActivityMemory4);
    case CUPTI_ACTIVITY_KIND_OVERHEAD: return first ? sizeof(CUpti_ActivityOverhead) : sizeof(CUpti_ActivityOverhead3);
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return old ? sizeof(CUpti_ActivityGraphTrace) : sizeof(CUpti_ActivityGraphTrace2);
    case CUPTI_ACTIVITY_KIND_DEVICE: return old ? sizeof(CUpti_ActivityDevice4) : sizeof(CUpti_ActivityDevice5);
    case CUPTI_ACTIVITY_KIND_CONTEXT:
      return first ? sizeof(CUpti_ActivityContext) : old ? sizeof(CUpti_ActivityContext2) : sizeof(CUpti_ActivityContext3);
    case CUPTI_ACTIVITY_KIND_STREAM: return sizeof(CUpti_ActivityStream);
    case CUPTI_ACTIVITY_KIND_NAME: return sizeof(CUpti_ActivityName);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER:
      return old ? sizeof(CUpti_ActivityUnifiedMemoryCounter2) : sizeof(CUpti_ActivityUnifiedMemoryCounter3);
    case CUPTI_ACTIVITY_KIND_JIT: return old ? sizeof(CUpti_ActivityJit) : sizeof(CUpti_ActivityJit2);
    case CUPTI_ACTIVITY_KIND_ENVIRONMENT: return sizeof(CUpti_ActivityEnvironment);
    case CUPTI_ACTIVITY_KIND_MODULE: return sizeof(CUpti_ActivityModule);
    case CUPTI_ACTIVITY_KIND_FUNCTION: return sizeof(CUpti_ActivityFunction);
    case CUPTI_ACTIVITY_KIND_PREEMPTION: return sizeof(CUpti_ActivityPreemption);
    default: return 0;
  }
}

bool enabled(const void* record) {
  CUpti_ActivityKind kind;
  std::memcpy(&kind, record, sizeof kind);
  if (kind != CUPTI_ACTIVITY_KIND_RUNTIME && kind != CUPTI_ACTIVITY_KIND_DRIVER)
    return fake().kinds[static_cast<std::size_t>(kind)].load();
  CUpti_ActivityAPI api;
  std::memcpy(&api, record, sizeof api);
  return fake().calls[kind == CUPTI_ACTIVITY_KIND_RUNTIME ? 2 : 1][api.cbid].load();
}

// The kind of an API domain sets all its calls. Single calls can be set afterwards.
void set_kind(CUpti_ActivityKind kind, bool on) {
  const std::lock_guard numbering(fake().numbering);
  fake().kinds[static_cast<std::size_t>(kind)] = on;
  if (kind == CUPTI_ACTIVITY_KIND_RUNTIME || kind == CUPTI_ACTIVITY_KIND_DRIVER)
    for (auto& call : fake().calls[kind == CUPTI_ACTIVITY_KIND_RUNTIME ? 2 : 1]) call = on;
}

// A test can end the wait by setting the time to 0.
void take_time(const std::atomic<unsigned>& milliseconds) {
  const auto began = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(milliseconds.load()))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void linger() {
  if (const unsigned delay = fake().callback_delay.load()) std::this_thread::sleep_for(std::chrono::microseconds(delay));
}

void request(std::uint8_t*& buffer, std::size_t& size) {
  std::size_t records = 0;
  linger();
  if (auto* callback = fake().request.load()) callback(&buffer, &size, &records);
  linger();
}

void deliver(const Full& full) {
  auto* complete = fake().complete.load();
  if (complete == nullptr) return;
  linger();
  complete(nullptr, 0, full.buffer, full.size, full.valid);
  linger();
  if (!fake().reenter.load()) return;
  std::uint8_t* another = nullptr;
  std::size_t size = 0;
  request(another, size);
  if (another != nullptr) complete(nullptr, 0, another, size, 0);
}

// A kernel's name, copied for the lifetime of its buffer.
void let_name_expire(std::uint8_t* record, const std::uint8_t* buffer) {
  CUpti_ActivityKind kind;
  std::memcpy(&kind, record, sizeof kind);
  if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return;  // a shorter record, perhaps at the end of its buffer
  CUpti_ActivityKernel9 kernel;
  std::memcpy(&kernel, record, sizeof kernel);
  if (kernel.name == nullptr) return;
  auto name = std::make_unique<std::string>(static_cast<const char*>(kernel.name));
  kernel.name = name->c_str();
  std::memcpy(record, &kernel, sizeof kernel);
  const std::lock_guard lock(fake().mutex);
  fake().names.emplace(buffer, std::move(name));
}

// Overwrite the memory before freeing it, so that a late access is visible without a sanitizer.
void expire_names(const std::uint8_t* buffer) {
  const std::lock_guard lock(fake().mutex);
  const auto [first, last] = fake().names.equal_range(buffer);
  for (auto it = first; it != last; ++it) std::fill(it->second->begin(), it->second->end(), '#');
  fake().names.erase(first, last);
}

// The result that `fake_fail` set for a function, else CUPTI_SUCCESS.
CUptiResult failure(std::string_view function) {
  if (!fake().fails.load(std::memory_order_relaxed)) return CUPTI_SUCCESS;
  const std::lock_guard lock(fake().mutex);
  const auto it = fake().failures.find(function);
  return it == fake().failures.end() ? CUPTI_SUCCESS : static_cast<CUptiResult>(it->second);
}

void hand_over(Full full) {
  if (!fake().late.load()) return deliver(full);
  const std::lock_guard lock(fake().mutex);
  fake().waiting.push_back(full);
}

// Under the producer's mutex, like append().
void renew(Producer& producer) {
  request(producer.buffer, producer.size);
  producer.used = 0;
}

bool append(Producer& producer, const void* record, std::size_t size) {
  CUpti_ActivityKind kind;
  std::memcpy(&kind, record, sizeof kind);
  const std::size_t whole = size_of(kind);
  if (producer.buffer != nullptr && producer.size - producer.used < whole) {
    hand_over({producer.buffer, producer.size, producer.used});
    producer.buffer = nullptr;
  }
  if (producer.buffer == nullptr) {
    renew(producer);
    if (producer.buffer == nullptr || producer.size < whole) {
      fake().refused.fetch_add(1);
      fake().dropped.fetch_add(1);
      return false;
    }
  }
  std::memset(producer.buffer + producer.used, 0, whole);
  std::memcpy(producer.buffer + producer.used, record, std::min(size, whole));
  if (fake().names_expire.load()) let_name_expire(producer.buffer + producer.used, producer.buffer);
  producer.used += whole;
  return true;
}

bool serves(CUpti_SubscriberHandle subscriber) {
  const bool known = fake().sharing.load() && subscriber == fake().latest.load();
  if (!known) fake().stale_calls.fetch_add(1);
  return known;
}

// Like CUPTI 13.0. When CUDA is in use, calls are recorded by their ids only if one of them was enabled before.
void set_call(int domain, CUpti_CallbackId id, bool on) {
  const std::lock_guard numbering(fake().numbering);
  auto& calls = fake().calls[static_cast<std::size_t>(domain)];
  const bool too_late = fake().version < 130500 && fake().cuda_in_use.load() &&
                        std::none_of(calls.begin(), calls.end(), [](const auto& call) { return call.load(); });
  calls[id] = on && !too_late;
}

// Calls the subscriber back if it has enabled the callback.
void tell(CUpti_CallbackDomain domain, std::uint32_t id, const void* data = nullptr) {
  auto* callback = fake().callback.load();
  if (callback == nullptr || !fake().callbacks[static_cast<std::size_t>(domain)][id]) return;
  fake().told.fetch_add(1);
  callback(fake().user_data.load(), domain, id, data);
}

std::uint64_t node_id(std::uint32_t graph, std::size_t index) { return (std::uint64_t{graph} << 32) + index; }

// A handle is the id plus one, because a handle is not null.
void tell_graph(CUpti_CallbackId id, std::uint64_t node, std::uint64_t original = 0, bool is_copy = false) {
  CUpti_GraphData graph{};
  graph.node = reinterpret_cast<CUgraphNode>(node + 1);
  if (is_copy) graph.originalNode = reinterpret_cast<CUgraphNode>(original + 1);
  if (id == CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED) graph.graphExec = reinterpret_cast<CUgraphExec>(node);
  CUpti_ResourceData data{};
  data.resourceDescriptor = &graph;
  tell(CUPTI_CB_DOMAIN_RESOURCE, id, &data);
}

std::uint64_t add_node(std::uint32_t graph, Graph::Node node) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(fake().graphs_mutex);
    const auto it = fake().graphs.find(graph);
    if (it == fake().graphs.end()) return 0;
    id = node_id(graph, it->second.nodes.size());
    it->second.nodes.push_back(node);
  }
  tell_graph(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, id);
  return id;
}

// Inner graphs are copied before the node that contains them.
std::uint32_t copy_graph(std::uint32_t from) {
  const std::uint32_t to = fake_graph();
  std::vector<Graph::Node> nodes;
  {
    const std::lock_guard lock(fake().graphs_mutex);
    nodes = fake().graphs[from].nodes;
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].inner != 0) nodes[i].inner = copy_graph(nodes[i].inner);
    tell_graph(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, add_node(to, nodes[i]), node_id(from, i), true);
  }
  return to;
}

// The name of this function in CUPTI's record of a kernel. CUPTI 13.0 to 13.3 keep the first name of a handle.
const char* recorded_name(std::uintptr_t function) {
  Fake& f = fake();
  const std::lock_guard lock(f.functions_mutex);
  const auto loaded = f.functions.find(function);
  if (loaded == f.functions.end()) return nullptr;
  const std::string& first = f.first_names.try_emplace(function, *loaded->second).first->second;
  const bool mixes_up = f.version >= 130000 && f.version < 130400;
  const std::lock_guard graphs_lock(f.graphs_mutex);
  return f.graph_names.insert(mixes_up ? first : *loaded->second).first->c_str();
}

// The callback of a driver call, at its start (`result` null) or at its end.
void tell_call(CUpti_CallbackId id, const void* parameters, std::uint32_t correlation, const char* symbol, const int* result) {
  CUpti_CallbackData data{};
  data.callbackSite = result == nullptr ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  data.functionParams = parameters;
  data.functionReturnValue = const_cast<int*>(result);
  data.symbolName = symbol;
  data.correlationId = correlation;
  data.contextUid = 1;
  tell(CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}
constexpr int kSuccess = 0;

// By domain and id.
const char* call_name(CUpti_CallbackDomain domain, std::uint32_t id) {
  using Names = std::array<const char*, 1024>;
  static const std::array<Names, 3> names = [] {
    std::array<Names, 3> all{};
    for (const CallName& call : kDriverCalls) all[CUPTI_CB_DOMAIN_DRIVER_API].at(call.id) = call.name;
    for (const CallName& call : kRuntimeCalls) all[CUPTI_CB_DOMAIN_RUNTIME_API].at(call.id) = call.name;
    return all;
  }();
  return domain < names.size() && id < names[domain].size() ? names[domain][id] : nullptr;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT void fake_set_version(std::uint32_t version) { fake().version = version; }
EXPORT void fake_can_share(bool on) { fake().can_share = on; }
EXPORT void fake_fail_subscribe(int result) { fake().subscribe_result = result; }
EXPORT void fake_refuse_kind(int kind, int result) { fake().refused_kinds[kind] = result; }
EXPORT void fake_delay_enabling(unsigned milliseconds) { fake().enabling_delay = milliseconds; }
EXPORT void fake_delay_subscribing(unsigned milliseconds) { fake().subscribing_delay = milliseconds; }
EXPORT void fake_set_flush_delay(unsigned milliseconds) { fake().flush_delay = milliseconds; }
EXPORT void fake_deliver_late_and_reversed(bool on) { fake().late = on; }
EXPORT void fake_hold_buffer(bool on) {
  Producer& producer = this_producer();
  const std::lock_guard lock(producer.mutex);
  producer.held = on;
}
EXPORT void fake_fail(const char* function, int result) {
  const std::lock_guard lock(fake().mutex);
  fake().failures[function] = result;
  fake().fails = true;
}
EXPORT int fake_failure(const char* function) { return failure(function); }
EXPORT std::uint32_t fake_version() { return fake().version; }
EXPORT void fake_slow_callbacks(unsigned microseconds) { fake().callback_delay = microseconds; }
EXPORT void fake_reenter(bool on) { fake().reenter = on; }
EXPORT void fake_names_expire(bool on) { fake().names_expire = on; }
EXPORT std::uint32_t fake_next_correlation() { return fake().correlation.fetch_add(1) + 1; }
EXPORT void fake_create_context() {
  tell(CUPTI_CB_DOMAIN_DRIVER_API, kFakeRetainContext);  // the start of the call
  fake_context(1, true);
  fake().cuda_in_use = true;
  fake().enabled_in_context = fake().kinds[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL].load();
  tell(CUPTI_CB_DOMAIN_DRIVER_API, kFakeRetainContext);  // the end of the call
}
EXPORT void fake_have_context(std::uint32_t id) { fake().existing_context = id; }
EXPORT void fake_load_module() { tell(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED); }
EXPORT void fake_context(std::uintptr_t context, bool made) {
  CUpti_ResourceData data{};
  data.context = reinterpret_cast<CUcontext>(context);
  tell(CUPTI_CB_DOMAIN_RESOURCE, made ? CUPTI_CBID_RESOURCE_CONTEXT_CREATED : CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, &data);
}
EXPORT void fake_unload_module() {
  CUpti_ResourceData data{};
  data.context = reinterpret_cast<CUcontext>(std::uintptr_t{1});
  tell(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, &data);
}
EXPORT void fake_load_cubin(const char* cubin) {
  if (fake().loads_cubins) return;
  CUpti_ModuleResourceData module{1, std::strlen(cubin), cubin};
  CUpti_ResourceData data{};
  data.context = reinterpret_cast<CUcontext>(std::uintptr_t{1});
  data.resourceDescriptor = &module;
  tell(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED, &data);
}
EXPORT void fake_module_loaded(std::uint32_t id, std::uintptr_t context, const void* cubin, std::size_t size) {
  fake().loads_cubins = true;
  std::string copy(cubin != nullptr ? static_cast<const char*>(cubin) : "", size);
  CUpti_ModuleResourceData module{id, size, cubin != nullptr ? copy.data() : nullptr};
  CUpti_ResourceData data{};
  data.context = reinterpret_cast<CUcontext>(context);
  data.resourceDescriptor = &module;
  tell(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED, &data);
  std::ranges::fill(copy, '#');  // so that a late access is visible without a sanitizer
}
EXPORT void fake_module_unloading(std::uint32_t id, std::uintptr_t context) {
  CUpti_ModuleResourceData module{id, 0, nullptr};
  CUpti_ResourceData data{};
  data.context = reinterpret_cast<CUcontext>(context);
  data.resourceDescriptor = &module;
  tell(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, &data);
}
EXPORT void fake_enter_call(int domain, std::uint32_t id) { tell(static_cast<CUpti_CallbackDomain>(domain), id); }
EXPORT void fake_set_correlation(std::uint32_t correlation) { open_correlation = correlation; }
EXPORT void fake_tell_call(int domain, std::uint32_t id, const int* result) {
  const auto of = static_cast<CUpti_CallbackDomain>(domain);
  CUpti_CallbackData data{};
  data.callbackSite = result == nullptr ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  data.functionName = call_name(of, id);
  data.functionReturnValue = const_cast<int*>(result);
  data.correlationId = open_correlation;
  tell(of, id, &data);
}
EXPORT bool fake_kernels_were_enabled_inside_context_creation() { return fake().enabled_in_context.load(); }
EXPORT void fake_stream_call(int domain, std::uint32_t id, void* stream, void* context, int result) {
  CUpti_CallbackData data{};
  data.callbackSite = CUPTI_API_ENTER;
  data.functionParams = &stream;
  data.functionReturnValue = &result;
  data.context = static_cast<CUcontext>(context);
  tell(static_cast<CUpti_CallbackDomain>(domain), id, &data);
  data.callbackSite = CUPTI_API_EXIT;
  tell(static_cast<CUpti_CallbackDomain>(domain), id, &data);
}
EXPORT void fake_launch_call(std::uint32_t id, const void* parameters, const char* kernel, void* context, const int* result) {
  CUpti_CallbackData data{};
  data.callbackSite = result == nullptr ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  data.functionName = call_name(CUPTI_CB_DOMAIN_DRIVER_API, id);
  data.functionParams = parameters;
  data.functionReturnValue = const_cast<int*>(result);
  data.symbolName = kernel;
  data.correlationId = open_correlation;
  data.context = static_cast<CUcontext>(context);
  data.contextUid = 1;
  tell(CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}
EXPORT void fake_driver_call(std::uint32_t id, std::uint32_t correlation, const void* parameters, void* context, const int* result) {
  CUpti_CallbackData data{};
  data.callbackSite = result == nullptr ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  data.functionName = call_name(CUPTI_CB_DOMAIN_DRIVER_API, id);
  data.functionParams = parameters;
  data.functionReturnValue = const_cast<int*>(result);
  data.context = static_cast<CUcontext>(context);
  data.contextUid = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(context));
  data.correlationId = correlation;
  tell(CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}
EXPORT std::uint32_t fake_graph() {
  const std::lock_guard lock(fake().graphs_mutex);
  fake().graphs[++fake().last_graph] = {};
  return fake().last_graph;
}
EXPORT std::uint64_t fake_graph_add(std::uint32_t graph, const char* kernel) {
  if (kernel != nullptr) {
    const std::lock_guard lock(fake().graphs_mutex);
    kernel = fake().graph_names.insert(kernel).first->c_str();
  }
  return add_node(graph, {kernel, 0, 0});
}
EXPORT void fake_graph_add_child(std::uint32_t graph, std::uint32_t child) { add_node(graph, {nullptr, copy_graph(child), 0}); }
EXPORT std::uint32_t fake_graph_add_conditional(std::uint32_t graph) {
  const std::uint32_t body = fake_graph();
  add_node(graph, {nullptr, body, 0});
  return body;
}
EXPORT std::uint32_t fake_graph_clone(std::uint32_t graph) { return copy_graph(graph); }
EXPORT std::uint32_t fake_graph_instantiate(std::uint32_t graph) {
  const std::uint32_t exec = copy_graph(graph);
  fake_graph();  // the driver reports a second node
  bool fills = false;
  {
    const std::lock_guard lock(fake().graphs_mutex);
    Graph& whole = fake().graphs[exec];
    whole.whole = fake_is_enabled(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
    // Inner nodes follow at the end, first the inner nodes of the first node.
    for (std::size_t i = 0; i < whole.nodes.size(); ++i) {
      const std::uint32_t inner = whole.nodes[i].inner;
      if (inner == 0) whole.running.push_back(static_cast<std::uint32_t>(i));
      if (inner == 0 && whole.nodes[i].kernel == nullptr && whole.nodes[i].function == 0) fills = true;
      if (inner != 0) whole.nodes.insert(whole.nodes.end(), fake().graphs[inner].nodes.begin(), fake().graphs[inner].nodes.end());
    }
  }
  if (fills) add_node(exec, {nullptr, 0, 0});  // a node of the driver
  tell_graph(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED, exec);
  return exec;
}
EXPORT std::uint32_t fake_graph_nodes(std::uint32_t exec, std::uint64_t* ids, const char** kernels, std::uint32_t most) {
  std::vector<std::uintptr_t> functions;
  {
    const std::lock_guard lock(fake().graphs_mutex);
    const Graph& graph = fake().graphs[exec];
    for (std::size_t i = 0; i < std::min<std::size_t>(most, graph.running.size()); ++i) {
      ids[i] = node_id(exec, graph.running[i]);
      kernels[i] = graph.nodes[graph.running[i]].kernel;
      functions.push_back(graph.nodes[graph.running[i]].function);
    }
  }
  for (std::size_t i = 0; i < functions.size(); ++i)
    if (functions[i] != 0) kernels[i] = recorded_name(functions[i]);
  return static_cast<std::uint32_t>(functions.size());
}
EXPORT GraphTracing fake_graph_tracing(std::uint32_t exec) {
  const bool now = fake_is_enabled(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  const std::lock_guard lock(fake().graphs_mutex);
  const bool then = fake().graphs[exec].whole;
  if (now == then) return now ? GraphTracing::whole : GraphTracing::nodes;
  if (fake().version >= 130500) return GraphTracing::nothing;
  if (now) raise(SIGSEGV);
  return GraphTracing::nodes;
}
EXPORT void fake_graph_replay(std::uint32_t exec, std::uint32_t stream) {
  std::vector<std::uint64_t> ids(4096);
  std::vector<const char*> kernels(ids.size());
  ids.resize(fake_graph_nodes(exec, ids.data(), kernels.data(), static_cast<std::uint32_t>(ids.size())));
  tell(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeGraphLaunch);
  CUpti_ActivityAPI api{};
  api.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  api.cbid = kFakeGraphLaunch;
  api.start = fake_now();
  api.threadId = 4242;
  api.correlationId = fake_next_correlation();
  api.end = fake_now();
  fake_record(&api, sizeof api);
  const GraphTracing tracing = fake_graph_tracing(exec);
  if (tracing == GraphTracing::whole) {
    CUpti_ActivityGraphTrace2 whole{};
    whole.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
    whole.start = fake_now();
    whole.end = whole.start + 1000;
    whole.contextId = whole.endContextId = 1;
    whole.streamId = stream;
    whole.correlationId = api.correlationId;
    whole.graphId = exec;
    fake_record(&whole, sizeof whole);
  }
  if (tracing != GraphTracing::nodes) return;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto fill_in = [&](auto& work) {
      work.start = fake_now();
      work.end = work.start + 1000;
      work.contextId = 1;
      work.streamId = stream;
      work.correlationId = api.correlationId;
      work.graphId = exec;
      work.graphNodeId = ids[i];
      fake_record(&work, sizeof work);
    };
    if (kernels[i] == nullptr) {
      CUpti_ActivityMemset4 fill{};
      fill.kind = CUPTI_ACTIVITY_KIND_MEMSET;
      fill_in(fill);
      continue;
    }
    CUpti_ActivityKernel9 kernel{};
    kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    kernel.gridX = kernel.gridY = kernel.gridZ = kernel.blockX = kernel.blockY = kernel.blockZ = 1;
    kernel.name = kernels[i];
    fill_in(kernel);
  }
}
EXPORT unsigned fake_callbacks() { return fake().told.load(); }
EXPORT void fake_drop(std::size_t records) { fake().dropped += records; }
EXPORT void fake_drop_at_unsubscribe(std::size_t records) { fake().dropped_at_unsubscribe = records; }
EXPORT bool fake_is_enabled(int kind) { return fake().kinds[static_cast<std::size_t>(kind)].load(); }
EXPORT bool fake_call_is_enabled(int domain, std::uint32_t id) {
  return fake().calls[static_cast<std::size_t>(domain)][id].load();
}
EXPORT unsigned fake_finalized() { return fake().finalized.load(); }
EXPORT unsigned fake_subscription_attempts() { return fake().subscription_attempts.load(); }
EXPORT unsigned fake_subscriptions() { return fake().subscriptions.load(); }
EXPORT void fake_on_flush(void (*hook)(bool forced)) { fake().on_flush = hook; }
EXPORT void fake_on_dump(void (*hook)(int kind)) { fake().on_dump = hook; }
EXPORT unsigned fake_subscribers() { return fake().subscribers.load(); }
EXPORT unsigned fake_stale_calls() { return fake().stale_calls.load(); }
EXPORT unsigned fake_flushes() { return fake().flushes.load(); }
EXPORT std::uint64_t fake_refused_requests() { return fake().refused.load(); }
EXPORT const char* fake_path() {
  static Dl_info where = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(fake_path), &info);
    return info;
  }();
  return where.dli_fname;
}

EXPORT std::uint64_t fake_now() {
  if (auto* clock = fake().clock.load()) return clock();
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

EXPORT bool fake_record(const void* record, std::size_t size) {
  CUpti_ActivityKind kind;
  std::memcpy(&kind, record, sizeof kind);
  if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && size >= sizeof(CUpti_ActivityKernel9)) {
    CUpti_ActivityKernel9 kernel;
    std::memcpy(&kernel, record, sizeof kernel);
    fake_sample(kernel.name);
  }
  if (!enabled(record)) return false;
  Producer& producer = this_producer();
  const std::lock_guard lock(producer.mutex);
  return append(producer, record, size);
}

EXPORT bool fake_begin_call(int domain, std::uint32_t callback, std::uint32_t* correlation) {
  const std::shared_lock numbering(fake().numbering);
  *correlation = fake_next_correlation();
  if (!fake().calls[static_cast<std::size_t>(domain)][callback]) return false;
  Producer& producer = this_producer();
  const std::lock_guard lock(producer.mutex);
  ++producer.calls;
  if (producer.buffer == nullptr) renew(producer);
  return true;
}
EXPORT void fake_end_call(const void* record, std::size_t size) {
  Producer& producer = this_producer();
  const std::lock_guard lock(producer.mutex);
  --producer.calls;
  append(producer, record, size);
}

EXPORT std::uintptr_t fake_load_function(const char* name) {
  fake_load_module();
  const std::lock_guard lock(fake().functions_mutex);
  std::uintptr_t handle = 1;
  while (fake().functions.contains(handle)) ++handle;
  fake().functions.emplace(handle, std::make_unique<std::string>(name));
  return handle;
}
EXPORT void fake_unload_function(std::uintptr_t function) {
  fake_unload_module();
  const std::lock_guard lock(fake().functions_mutex);
  auto gone = fake().functions.extract(function);
  std::fill(gone.mapped()->begin(), gone.mapped()->end(), '#');  // so that a late access is visible without a sanitizer
}
EXPORT const char* fake_function_name(std::uintptr_t function) {
  const std::lock_guard lock(fake().functions_mutex);
  const auto loaded = fake().functions.find(function);
  return loaded != fake().functions.end() ? loaded->second->c_str() : nullptr;
}
EXPORT std::uintptr_t fake_node_function(std::uintptr_t node) {
  const std::uint64_t id = node - 1;
  const std::lock_guard lock(fake().graphs_mutex);
  const auto graph = fake().graphs.find(static_cast<std::uint32_t>(id >> 32));
  const auto index = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
  return graph != fake().graphs.end() && index < graph->second.nodes.size() ? graph->second.nodes[index].function : 0;
}
EXPORT std::uint32_t fake_launch_function(std::uintptr_t function) {
  const std::uint32_t correlation = fake_next_correlation();
  const char* const symbol = fake_function_name(function);
  // A call has a record if the kind is enabled at its start.
  const std::atomic<bool>& kind = fake().kinds[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL];
  const bool before = kind.load();
  tell_call(kFakeDriverLaunch, nullptr, correlation, symbol, nullptr);
  const bool recorded = before && kind.load();
  CUpti_ActivityKernel9 kernel{};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.gridX = kernel.gridY = kernel.gridZ = kernel.blockX = kernel.blockY = kernel.blockZ = 1;
  kernel.contextId = 1;
  kernel.correlationId = correlation;
  kernel.name = recorded_name(function);
  kernel.start = fake_now();
  kernel.end = kernel.start + 1000;
  if (recorded) fake_record(&kernel, sizeof kernel);
  tell_call(kFakeDriverLaunch, nullptr, correlation, symbol, &kSuccess);
  return correlation;
}
EXPORT std::uint64_t fake_graph_add_function(std::uint32_t graph, std::uintptr_t function, bool captured) {
  const std::uint32_t correlation = fake_next_correlation();
  const char* const symbol = fake_function_name(function);
  if (captured) tell_call(kFakeDriverLaunch, nullptr, correlation, symbol, nullptr);
  const std::uint64_t node = add_node(graph, {nullptr, 0, function});
  if (captured) {
    tell_call(kFakeDriverLaunch, nullptr, correlation, symbol, &kSuccess);
    return node;
  }
  CUgraphNode handle = reinterpret_cast<CUgraphNode>(node + 1);
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = reinterpret_cast<CUfunction>(function);
  const struct {
    CUgraphNode* node;
    CUgraph graph;
    const CUgraphNode* dependencies;
    std::size_t count;
    const CUDA_KERNEL_NODE_PARAMS* params;
  } call{&handle, nullptr, nullptr, 0, &params};
  tell_call(kFakeAddKernelNode, &call, correlation, nullptr, &kSuccess);
  return node;
}
EXPORT void fake_graph_set_function(std::uint32_t exec, std::uint64_t node, std::uintptr_t function) {
  {
    const std::lock_guard lock(fake().graphs_mutex);
    fake().graphs[exec].nodes.at(static_cast<std::uint32_t>(node)).function = function;
  }
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = reinterpret_cast<CUfunction>(function);
  const struct {
    CUgraphExec exec;
    CUgraphNode node;
    const CUDA_KERNEL_NODE_PARAMS* params;
  } call{reinterpret_cast<CUgraphExec>(std::uintptr_t{exec}), reinterpret_cast<CUgraphNode>(node + 1), &params};
  tell_call(kFakeSetKernelNode, &call, fake_next_correlation(), nullptr, &kSuccess);
}
EXPORT void fake_graph_update(std::uint32_t exec, std::uint64_t node, std::uintptr_t function) {
  {
    const std::lock_guard lock(fake().graphs_mutex);
    fake().graphs[exec].nodes.at(static_cast<std::uint32_t>(node)).function = function;
  }
  const struct {
    CUgraphExec exec;
    CUgraph graph;
    CUgraphExecUpdateResultInfo* result;
  } call{reinterpret_cast<CUgraphExec>(std::uintptr_t{exec}), nullptr, nullptr};
  tell_call(kFakeUpdateExec, &call, fake_next_correlation(), nullptr, &kSuccess);
}

EXPORT bool fake_launch(const char* name, std::uint32_t grid, std::uint32_t stream, bool unknown_end) {
  const std::uint32_t correlation = fake_next_correlation();
  CUpti_ActivityAPI api{};
  api.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  api.cbid = kFakeLaunchKernel;
  api.start = fake_now();
  api.threadId = 4242;
  api.correlationId = correlation;
  CUpti_ActivityKernel9 kernel{};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.gridX = static_cast<std::int32_t>(grid);
  kernel.gridY = kernel.gridZ = kernel.blockY = kernel.blockZ = 1;
  kernel.blockX = 128;
  kernel.registersPerThread = 32;
  kernel.streamId = stream;
  kernel.contextId = 1;
  kernel.correlationId = correlation;
  kernel.name = name;
  kernel.start = fake_now();
  kernel.end = unknown_end ? 0 : kernel.start + 1000;
  api.end = fake_now();
  const bool first = fake_record(&api, sizeof api), alone = fake_ran(1, 0, 0, 1000);
  return (alone && fake_record(&kernel, sizeof kernel)) || first;
}

// ---- CUPTI ----
#define FAIL_IF_TOLD(function) \
  if (const CUptiResult failed = failure(#function); failed != CUPTI_SUCCESS) return failed

// The old functions fail while several tools share CUPTI.
#define REFUSE_IF_SHARED() \
  if (fake().sharing.load() && !in_a_name) return CUPTI_ERROR_NOT_SUPPORTED

EXPORT CUptiResult cuptiGetVersion(std::uint32_t* version) {
  FAIL_IF_TOLD(GetVersion);
  *version = fake().version;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* user_data) {
  FAIL_IF_TOLD(Subscribe);
  fake().subscription_attempts.fetch_add(1);
  take_time(fake().subscribing_delay);
  if (const int result = fake().subscribe_result.load(); result != CUPTI_SUCCESS) return static_cast<CUptiResult>(result);
  if (fake().subscribers.load() != 0) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  fake().subscribers = 1;
  fake().subscriptions.fetch_add(1);
  fake().user_data = user_data;
  fake().callback = callback;
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(&fake());
  return CUPTI_SUCCESS;
}
// Several subscribers, since 13.2. The first subscriber decides whether there can be more. Each call names a subscriber. Tests are
// the other subscribers. Only the last subscriber is called back.
EXPORT CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* user_data,
                                     cutrace::shared::SubscriberParams* params) {
  FAIL_IF_TOLD(Subscribe_v2);
  const bool first = fake().subscribers.load() == 0, wants = params->allow_others != 0;
  if (params->size != sizeof *params) return CUPTI_ERROR_INVALID_PARAMETER;
  if ((wants && !fake().can_share.load()) || (!first && !(wants && fake().sharing.load()))) {
    if (params->other_name != nullptr && !first) std::strncpy(params->other_name, "an old tool", params->other_size);
    return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  }
  fake().sharing = wants;
  fake().subscribers.fetch_add(1);
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(std::uintptr_t{0x1000} + fake().subscriptions.fetch_add(1));
  fake().latest = *handle;
  fake().user_data = user_data;
  fake().callback = callback;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
  FAIL_IF_TOLD(Unsubscribe);
  fake().dropped += fake().dropped_at_unsubscribe.exchange(0);
  if (fake().sharing.load()) {
    if (handle == fake().latest.load()) fake().latest = nullptr;
    if (fake().subscribers.fetch_sub(1) > 1) return CUPTI_SUCCESS;
    fake().sharing = false;
  }
  fake().subscribers = 0;
  fake().callback = nullptr;
  for (auto& domain : fake().callbacks)
    for (auto& on : domain) on = false;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiEnableCallback(std::uint32_t on, CUpti_SubscriberHandle, CUpti_CallbackDomain domain,
                                       CUpti_CallbackId id) {
  FAIL_IF_TOLD(EnableCallback);
  fake().callbacks[static_cast<std::size_t>(domain)][id] = on != 0;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                  CUpti_BuffersCallbackCompleteFunc complete) {
  FAIL_IF_TOLD(ActivityRegisterCallbacks);
  REFUSE_IF_SHARED();
  fake().complete = complete;
  fake().request = request;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiFinalize() {
  FAIL_IF_TOLD(Finalize);
  cuptiUnsubscribe(nullptr);
  for (auto& on : fake().kinds) on = false;
  for (auto& domain : fake().calls)
    for (auto& on : domain) on = false;
  fake().request = nullptr;
  fake().complete = nullptr;
  fake().clock = nullptr;
  ++fake().finalized;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  FAIL_IF_TOLD(ActivityRegisterTimestampCallback);
  REFUSE_IF_SHARED();
  fake().clock = clock;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  FAIL_IF_TOLD(ActivityEnable);
  REFUSE_IF_SHARED();
  if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) take_time(fake().enabling_delay);
  // Like CUPTI 13.0: kernels are not recorded in a context that CUPTI already samples.
  if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && fake_sampled_contexts() != 0) return CUPTI_ERROR_NOT_COMPATIBLE;
  const auto refused = fake().refused_kinds.find(kind);
  if (refused != fake().refused_kinds.end()) return static_cast<CUptiResult>(refused->second);
  set_kind(kind, true);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityEnableAndDump(CUpti_ActivityKind kind) {
  const CUptiResult result = cuptiActivityEnable(kind);
  if (auto* const hook = fake().on_dump.load(); hook != nullptr && result == CUPTI_SUCCESS) hook(kind);
  if (result != CUPTI_SUCCESS || kind != CUPTI_ACTIVITY_KIND_CONTEXT || fake().existing_context == 0) return result;
  CUpti_ActivityContext context{};
  context.kind = kind;
  context.contextId = fake().existing_context;
  fake_record(&context, sizeof context);
  return result;
}
EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  FAIL_IF_TOLD(ActivityDisable);
  REFUSE_IF_SHARED();
  set_kind(kind, false);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, std::uint8_t on) {
  FAIL_IF_TOLD(ActivityEnableRuntimeApi);
  REFUSE_IF_SHARED();
  set_call(CUPTI_CB_DOMAIN_RUNTIME_API, id, on != 0);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId id, std::uint8_t on) {
  FAIL_IF_TOLD(ActivityEnableDriverApi);
  REFUSE_IF_SHARED();
  set_call(CUPTI_CB_DOMAIN_DRIVER_API, id, on != 0);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, std::uint32_t id, const char** name) {
  FAIL_IF_TOLD(GetCallbackName);
  *name = call_name(domain, id);
  return *name != nullptr ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}
EXPORT CUptiResult cuptiActivityFlushAll(std::uint32_t flags) {
  FAIL_IF_TOLD(ActivityFlushAll);
  fake().flushes.fetch_add(1);
  if (auto* hook = fake().on_flush.load()) hook((flags & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != 0);
  take_time(fake().flush_delay);
  std::vector<std::shared_ptr<Producer>> producers;
  std::vector<Full> waiting;
  {
    const std::lock_guard lock(fake().mutex);
    producers = fake().producers;
    waiting.swap(fake().waiting);
  }
  for (const auto& producer : producers) {
    const std::lock_guard lock(producer->mutex);
    if ((producer->held || producer->calls != 0) && (flags & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) == 0) continue;
    if (producer->buffer != nullptr) waiting.push_back({producer->buffer, producer->size, producer->used});
    producer->buffer = nullptr;
  }
  std::reverse(waiting.begin(), waiting.end());
  for (const Full& full : waiting) deliver(full);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  FAIL_IF_TOLD(ActivityGetNextRecord);
  REFUSE_IF_SHARED();
  std::uint8_t* at = buffer;
  if (*record != nullptr) at = reinterpret_cast<std::uint8_t*>(*record) + size_of((*record)->kind);
  if (at >= buffer + valid) {
    expire_names(buffer);
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
  }
  *record = reinterpret_cast<CUpti_Activity*>(at);
  return size_of((*record)->kind) != 0 ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_KIND;
}
EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  FAIL_IF_TOLD(ActivityGetNumDroppedRecords);
  REFUSE_IF_SHARED();
  *dropped = fake().dropped.exchange(0);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, std::size_t*, void*) {
  FAIL_IF_TOLD(ActivitySetAttribute);
  REFUSE_IF_SHARED();
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType) {
  FAIL_IF_TOLD(SetThreadIdType);
  REFUSE_IF_SHARED();
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  FAIL_IF_TOLD(GetResultString);
  switch (static_cast<int>(result)) {
    case CUPTI_ERROR_NOT_SUPPORTED: *text = "CUPTI_ERROR_NOT_SUPPORTED"; break;
    case 1: *text = "CUPTI_ERROR_INVALID_PARAMETER"; break;
    case 7: *text = "CUPTI_ERROR_INVALID_OPERATION"; break;
    case CUPTI_ERROR_NOT_INITIALIZED: *text = "CUPTI_ERROR_NOT_INITIALIZED"; break;
    case 26: *text = "CUPTI_ERROR_HARDWARE_BUSY"; break;
    case 35: *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"; break;
    default: *text = "CUPTI_ERROR_OTHER";
  }
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetStreamIdEx(CUcontext, CUstream stream, std::uint8_t, std::uint32_t* id) {
  FAIL_IF_TOLD(GetStreamIdEx);
  *id = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(stream));
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetGraphNodeId(CUgraphNode node, std::uint64_t* id) {
  FAIL_IF_TOLD(GetGraphNodeId);
  if (node == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = reinterpret_cast<std::uintptr_t>(node) - 1;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetGraphExecId(CUgraphExec exec, std::uint32_t* id) {
  FAIL_IF_TOLD(GetGraphExecId);
  if (exec == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(exec));
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetContextId(CUcontext context, std::uint32_t* id) {
  FAIL_IF_TOLD(GetContextId);
  *id = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(context));
  return CUPTI_SUCCESS;
}

// Like the function above, for a subscriber, which must exist.
#define IN_THE_NAME_OF(subscriber, call)                                                                     \
  if (!serves(subscriber)) return CUPTI_ERROR_INVALID_PARAMETER;                                             \
  in_a_name = true;                                                                                          \
  const CUptiResult result = call;                                                                           \
  in_a_name = false;                                                                                         \
  return result

EXPORT CUptiResult cuptiActivityRegisterCallbacks_v2(CUpti_SubscriberHandle us, decltype(Fake::shared_request)::value_type request,
                                                     decltype(Fake::shared_complete)::value_type complete) {
  fake().shared_request = request;
  fake().shared_complete = complete;
  IN_THE_NAME_OF(us, cuptiActivityRegisterCallbacks(
                         [](std::uint8_t** b, std::size_t* s, std::size_t* n) { fake().shared_request.load()(b, s, n, nullptr); },
                         [](CUcontext, std::uint32_t, std::uint8_t* b, std::size_t s, std::size_t v) {
                           fake().shared_complete.load()(b, s, v, nullptr);
                         }));
}
EXPORT CUptiResult cuptiActivityEnable_v2(CUpti_SubscriberHandle us, CUpti_ActivityKind kind, void*) {
  IN_THE_NAME_OF(us, cuptiActivityEnable(kind));
}
EXPORT CUptiResult cuptiActivityEnableAndDump_v2(CUpti_SubscriberHandle us, CUpti_ActivityKind kind, void*) {
  IN_THE_NAME_OF(us, cuptiActivityEnableAndDump(kind));
}
EXPORT CUptiResult cuptiActivityDisable_v2(CUpti_SubscriberHandle us, CUpti_ActivityKind kind, void*) {
  IN_THE_NAME_OF(us, cuptiActivityDisable(kind));
}
EXPORT CUptiResult cuptiActivityEnableRuntimeApi_v2(CUpti_SubscriberHandle us, CUpti_CallbackId id, std::uint8_t on) {
  IN_THE_NAME_OF(us, cuptiActivityEnableRuntimeApi(id, on));
}
EXPORT CUptiResult cuptiActivityEnableDriverApi_v2(CUpti_SubscriberHandle us, CUpti_CallbackId id, std::uint8_t on) {
  IN_THE_NAME_OF(us, cuptiActivityEnableDriverApi(id, on));
}
EXPORT CUptiResult cuptiActivityGetNextRecord_v2(CUpti_SubscriberHandle us, std::uint8_t* buffer, std::size_t valid,
                                                 CUpti_Activity** record) {
  IN_THE_NAME_OF(us, cuptiActivityGetNextRecord(buffer, valid, record));
}
EXPORT CUptiResult cuptiActivityGetNumDroppedRecords_v2(CUpti_SubscriberHandle us, CUcontext context, std::uint32_t stream,
                                                        std::size_t* dropped) {
  IN_THE_NAME_OF(us, cuptiActivityGetNumDroppedRecords(context, stream, dropped));
}
EXPORT CUptiResult cuptiActivitySetAttribute_v2(CUpti_SubscriberHandle us, CUpti_ActivityAttribute attribute, std::size_t* size,
                                                void* value) {
  if (attribute == cutrace::shared::kTimestampCallback) {
    CUpti_TimestampCallbackFunc clock = nullptr;
    if (*size != sizeof clock) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
    const auto& kinds = fake().kinds;  // enabled by any subscriber, as in 13.5
    if (std::any_of(kinds.begin(), kinds.end(), [](const auto& on) { return on.load(); })) return CUPTI_ERROR_NOT_COMPATIBLE;
    std::memcpy(&clock, value, sizeof clock);
    IN_THE_NAME_OF(us, cuptiActivityRegisterTimestampCallback(clock));
  }
  IN_THE_NAME_OF(us, cuptiActivitySetAttribute(attribute, size, value));
}

}  // extern "C"
