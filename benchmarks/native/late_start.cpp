// A CUPTI tool for late_start.py. It is enabled step by step, inside cuInit() or in the middle of a program. Like the
// null collector, it discards its buffers unread.
//
// As an injection library (CUDA_INJECTION64_PATH) it does the steps of LATE_START_EARLY inside cuInit(). The program
// does other steps later, with late_start_do(). LATE_START_CUPTI is the libcupti to load. A step is a word; see
// do_step().
//
// Build it as one file: g++ -std=c++20 -O2 -fPIC -shared -I<CUPTI and CUDA headers> late_start.cpp -ldl -lpthread

#include "../../src/cutrace/native/cuda/cupti_library.cpp"
#include "../../src/cutrace/native/collector/core/kinds.cpp"

#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

// Types that CUPTI added after 13.0, declared here so that the file builds with headers of 13.0. The first field of each is its
// size.
struct FieldSelection {  // CUpti_ActivityFieldSelection
  std::size_t size = sizeof(FieldSelection);
  std::size_t count = 0;
  int* ids = nullptr;
};
struct CallOptions {  // CUpti_ActivityApiCbidOptions
  std::size_t size = sizeof(CallOptions);
  CUpti_CallbackId* ids = nullptr;
  std::size_t count = 0;
  std::uint8_t enable = 1;
};
struct ApiOptions {  // CUpti_ActivityApiOptions
  std::size_t size = sizeof(ApiOptions);
  CallOptions* calls = nullptr;
};
struct Config {  // CUpti_ActivityConfig
  std::size_t size = sizeof(Config);
  FieldSelection fields;
  void* options = nullptr;
};
struct RecordLayout {  // CUpti_ActivityRecordLayout
  std::size_t size;
  void* entries;
  std::size_t fields;
  std::size_t record_size;
};
struct CompleteInfo {  // CUpti_BufferCallbackCompleteInfo
  std::size_t size;
  std::uint64_t thread;
  RecordLayout** layouts;
  std::size_t count;
};
constexpr auto kUserDefinedRecords = static_cast<CUpti_ActivityAttribute>(11);

// The fields that activity.cpp reads, by their numbers in CUpti_ActivityKernelFieldIds and CUpti_ActivityApiFieldIds.
int kernel_fields[] = {0,  1,  2,  4,  7,  8,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                       22, 24, 27, 28, 29, 30, 31, 32, 33, 37, 38, 39, 40, 41, 42, 43};
// The fields that change from launch to launch.
int few_kernel_fields[] = {0, 7, 8, 10, 11, 12, 22, 24, 31, 33};
int api_fields[] = {0, 1, 2, 3, 5, 6, 7};

#if CUPTI_API_VERSION >= 130500
static_assert(sizeof(FieldSelection) == sizeof(CUpti_ActivityFieldSelection));
static_assert(sizeof(CallOptions) == sizeof(CUpti_ActivityApiCbidOptions));
static_assert(offsetof(CallOptions, enable) == offsetof(CUpti_ActivityApiCbidOptions, enable));
static_assert(sizeof(ApiOptions) == sizeof(CUpti_ActivityApiOptions));
static_assert(sizeof(Config) == CUpti_ActivityConfig_STRUCT_SIZE);
static_assert(offsetof(Config, options) == offsetof(CUpti_ActivityConfig, pKindOptions));
static_assert(sizeof(RecordLayout) == sizeof(CUpti_ActivityRecordLayout));
static_assert(sizeof(CompleteInfo) == sizeof(CUpti_BufferCallbackCompleteInfo));
static_assert(kUserDefinedRecords == CUPTI_ACTIVITY_ATTR_USER_DEFINED_RECORDS);
static_assert(KERNEL_FIELD_REGISTERS_PER_THREAD == 4 && KERNEL_FIELD_START == 7 && KERNEL_FIELD_STREAM_ID == 12 &&
              KERNEL_FIELD_CORRELATION_ID == 22 && KERNEL_FIELD_NAME == 24 && KERNEL_FIELD_GRAPH_NODE_ID == 31 &&
              KERNEL_FIELD_GRAPH_ID == 33 && KERNEL_FIELD_MAX_ACTIVE_CLUSTERS == 43);
static_assert(API_FIELD_CBID == 1 && API_FIELD_END == 3 && API_FIELD_THREAD_ID == 5 && API_FIELD_RETURN_VALUE == 7);
#endif

constexpr std::size_t kBufferSize = std::size_t{256} << 10;  // the collector's
constexpr int kBuffers = 64;
constexpr CUpti_CallbackDomain kRuntime = CUPTI_CB_DOMAIN_RUNTIME_API, kDriver = CUPTI_CB_DOMAIN_DRIVER_API;

struct Tool {
  cutrace::CuptiLibrary cupti;
  CUptiResult (*enable_and_dump)(CUpti_ActivityKind) = nullptr;
  CUptiResult (*enable_and_dump_v2)(CUpti_SubscriberHandle, CUpti_ActivityKind, Config*) = nullptr;
  CUptiResult (*enable_domain)(std::uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) = nullptr;
  CUpti_SubscriberHandle subscriber = nullptr;
  std::string failures;  // as the members of a JSON array
  std::mutex mutex;
  std::vector<std::uint8_t*> free;
  bool counting = false;
  std::map<int, std::uint64_t> records;      // by kind, while counting
  std::map<int, std::size_t> sizes;          // bytes from one record of a kind to the next of the same kind
  std::vector<std::string> layouts;          // as JSON
  std::atomic<std::uint64_t> callbacks{0};   // API calls seen by the subscriber's callback
};

Tool& tool() {
  static Tool* t = new Tool;
  return *t;
}

void note(const char* step, const std::string& reason) {
  Tool& t = tool();
  t.failures += (t.failures.empty() ? "\"" : ", \"") + std::string(step) + ": " + reason + "\"";
}

void take(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  Tool& t = tool();
  *size = kBufferSize;
  *records = 0;
  const std::lock_guard lock(t.mutex);
  if (t.free.empty()) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kBufferSize));
  } else {
    *buffer = t.free.back();
    t.free.pop_back();
  }
}

void count(std::uint8_t* buffer, std::size_t valid) {
  Tool& t = tool();
  CUpti_Activity *record = nullptr, *last = nullptr;
  while (t.cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS && record != nullptr) {
    ++t.records[record->kind];
    const auto apart = static_cast<std::size_t>(reinterpret_cast<char*>(record) - reinterpret_cast<char*>(last));
    if (last != nullptr && last->kind == record->kind) t.sizes[record->kind] = apart;
    last = record;
  }
}

void give_back(std::uint8_t* buffer, std::size_t valid) {
  Tool& t = tool();
  const std::lock_guard lock(t.mutex);
  if (t.counting && valid != 0) count(buffer, valid);
  t.free.push_back(buffer);
}

void request(std::uint8_t** buffer, std::size_t* size, std::size_t* records) { take(buffer, size, records); }
void complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) { give_back(buffer, valid); }
void request_v2(std::uint8_t** buffer, std::size_t* size, std::size_t* records, void*) { take(buffer, size, records); }
void complete_v2(std::uint8_t* buffer, std::size_t, std::size_t valid, void* more) {
  Tool& t = tool();
  const auto* info = static_cast<const CompleteInfo*>(more);
  if (t.counting && t.layouts.empty() && info != nullptr && info->layouts != nullptr)
    for (std::size_t i = 0; i < info->count; ++i)
      if (const RecordLayout* layout = info->layouts[i]; layout != nullptr)
        t.layouts.push_back("{\"index\": " + std::to_string(i) + ", \"fields\": " + std::to_string(layout->fields) +
                            ", \"bytes\": " + std::to_string(layout->record_size) + "}");
  give_back(buffer, valid);
}

std::uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

// The data that a tool would keep to record the call without CUPTI.
struct Row {
  std::uint64_t start, end;
  std::uint32_t correlation, call;
};
thread_local Row rows[1024];
thread_local unsigned row = 0;

void callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (domain != kRuntime && domain != kDriver) return;
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (call == nullptr) return;
  if (call->callbackSite == CUPTI_API_ENTER) {
    *call->correlationData = now();
    return;
  }
  rows[row++ % 1024] = {*call->correlationData, now(), call->correlationId, id};
  tool().callbacks.fetch_add(1, std::memory_order_relaxed);
}

bool load() {
  Tool& t = tool();
  if (t.cupti.GetVersion != nullptr) return true;
  const char* path = std::getenv("LATE_START_CUPTI");
  std::string error;
  if (!t.cupti.load(path ? path : "", error)) {
    note("load", error);
    return false;
  }
  void* library = dlopen(t.cupti.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
  };
  find(t.enable_and_dump, "cuptiActivityEnableAndDump");
  find(t.enable_and_dump_v2, "cuptiActivityEnableAndDump_v2");
  find(t.enable_domain, "cuptiEnableDomain");
  for (int i = 0; i < kBuffers; ++i) {
    auto* buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kBufferSize));
    std::memset(buffer, 0, kBufferSize);
    t.free.push_back(buffer);
  }
  return true;
}

void check(const char* step, CUptiResult result) {
  if (result != CUPTI_SUCCESS) note(step, tool().cupti.error_name(result));
}

template <typename Set>
void each_call(const char* step, CUpti_CallbackDomain domain, bool wanted, Set set) {
  int refused = 0;
  CUptiResult error = CUPTI_SUCCESS;
  for (const cutrace::ApiFunction& function : tool().cupti.api_functions()) {
    if (function.domain != domain || cutrace::keeps_api_call(function.name) != wanted) continue;
    const CUptiResult result = set(function.id);
    // If CUPTI is newer than the driver, it knows calls that the program cannot make.
    if (result == CUPTI_SUCCESS || result == CUPTI_ERROR_INVALID_PARAMETER) continue;
    if (refused++ == 0) error = result;
  }
  if (refused != 0) note(step, tool().cupti.error_name(error) + " for " + std::to_string(refused) + " calls");
}

void enable_v2(const char* step, CUpti_ActivityKind kind, bool only_wanted, int* fields, std::size_t field_count) {
  Tool& t = tool();
  std::vector<CUpti_CallbackId> ids;
  CallOptions calls;
  ApiOptions options;
  Config config;
  config.fields.ids = fields;
  config.fields.count = field_count;
  if (only_wanted) {
    each_call(step, kind == CUPTI_ACTIVITY_KIND_RUNTIME ? kRuntime : kDriver, true, [&](std::uint32_t id) {
      ids.push_back(id);
      return CUPTI_SUCCESS;
    });
    calls.ids = ids.data();
    calls.count = ids.size();
    options.calls = &calls;
    config.options = &options;
  }
  if (t.cupti.of_several.ActivityEnable == nullptr) return note(step, "this CUPTI has no cuptiActivityEnable_v2");
  const CUptiResult result = t.cupti.of_several.ActivityEnable(t.subscriber, kind, &config);
  if (result == CUPTI_SUCCESS) return;
  // The header does not specify these sizes, so try which ones the library accepts.
  for (std::size_t fields_size : {config.fields.size, std::size_t{0}})
    for (std::size_t calls_size : {calls.size, offsetof(CallOptions, enable) + 1}) {
      config.fields.size = field_count == 0 ? fields_size : config.fields.size;
      calls.size = calls_size;
      if (t.cupti.of_several.ActivityEnable(t.subscriber, kind, &config) != CUPTI_SUCCESS) continue;
      return note(step, "works with sizes " + std::to_string(config.fields.size) + " and " + std::to_string(calls.size));
    }
  check(step, result);
}

void subscribe(const char* step, bool v2) {
  Tool& t = tool();
  if (v2) {
    if (!t.cupti.of_several.complete()) return note(step, "this CUPTI has no cuptiSubscribe_v2");
    cutrace::shared::SubscriberParams params;
    params.name = "late_start";
    check(step, t.cupti.of_several.Subscribe(&t.subscriber, callback, nullptr, &params));
    t.cupti.sharing.store(t.subscriber);
    return check(step, t.cupti.of_several.ActivityRegisterCallbacks(t.subscriber, request_v2, complete_v2));
  }
  check(step, t.cupti.Subscribe(&t.subscriber, callback, nullptr));
}

void dump(const char* step, CUpti_ActivityKind kind) {
  Tool& t = tool();
  t.counting = true;
  const bool v2 = t.cupti.sharing.load() != nullptr;
  if (v2 ? t.enable_and_dump_v2 == nullptr : t.enable_and_dump == nullptr) return note(step, "this CUPTI has no cuptiActivityEnableAndDump");
  check(step, v2 ? t.enable_and_dump_v2(t.subscriber, kind, nullptr) : t.enable_and_dump(kind));
}

void do_step(const std::string& word) {
  Tool& t = tool();
  const char* step = word.c_str();
  // runtime_ids, driver_ids, ...: the domain, and the action in it.
  const bool runtime = word.rfind("runtime", 0) == 0;
  const std::string rest = runtime ? word.substr(7) : word.rfind("driver", 0) == 0 ? word.substr(6) : "-";
  const CUpti_CallbackDomain domain = runtime ? kRuntime : kDriver;
  const CUpti_ActivityKind api = runtime ? CUPTI_ACTIVITY_KIND_RUNTIME : CUPTI_ACTIVITY_KIND_DRIVER;
  const auto set_ids = [&](bool wanted, bool on) {
    each_call(step, domain, wanted, [&](std::uint32_t id) { return t.cupti.enable_call(domain, id, on); });
  };
  if (word == "subscribe" || word == "subscribe_v2") return subscribe(step, word == "subscribe_v2");
  if (word == "buffers") {  // with or without a subscriber; cuptiSubscribe_v2() has already registered buffers
    std::size_t none = 0, size = sizeof none;  // as the collector does
    check(step, t.cupti.ActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE, &size, &none));
    return check(step, t.cupti.ActivityRegisterCallbacks(request, complete));
  }
  if (word == "user_defined") {
    std::uint8_t on = 1;
    std::size_t size = sizeof on;
    return check(step, t.cupti.set_attribute(kUserDefinedRecords, &size, &on));
  }
  if (word.rfind("on_", 0) == 0) return check(step, t.cupti.enable(static_cast<CUpti_ActivityKind>(std::atoi(step + 3))));
  if (word.rfind("off_", 0) == 0) return check(step, t.cupti.disable(static_cast<CUpti_ActivityKind>(std::atoi(step + 4))));
  if (word == "kernel") return check(step, t.cupti.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  if (word == "kernel_fields")
    return enable_v2(step, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, false, kernel_fields, std::size(kernel_fields));
  if (word == "kernel_few_fields")
    return enable_v2(step, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, false, few_kernel_fields, std::size(few_kernel_fields));
  if (word == "dump_device") return dump(step, CUPTI_ACTIVITY_KIND_DEVICE);
  if (word == "dump_context") return dump(step, CUPTI_ACTIVITY_KIND_CONTEXT);
  if (word == "dump_stream") return dump(step, CUPTI_ACTIVITY_KIND_STREAM);
  if (rest == "") return check(step, t.cupti.enable(api));
  if (rest == "_off") return check(step, t.cupti.disable(api));
  if (rest == "_ids") return set_ids(true, true);
  if (rest == "_ids_off") return set_ids(true, false);
  if (rest == "_unwanted_off") return set_ids(false, false);
  if (rest == "_allow") return enable_v2(step, api, true, nullptr, 0);
  if (rest == "_allow_fields") return enable_v2(step, api, true, api_fields, std::size(api_fields));
  if (rest == "_fields") return enable_v2(step, api, false, api_fields, std::size(api_fields));
  if (rest == "_callbacks")
    return each_call(step, domain, true, [&](std::uint32_t id) { return t.cupti.EnableCallback(1, t.subscriber, domain, id); });
  if (rest == "_one_callback" || rest == "_one_id") {
    // A callback for a call that the program does not make.
    for (const cutrace::ApiFunction& function : t.cupti.api_functions()) {
      if (function.domain != domain || function.name.find("ProfilerStart") == function.name.npos) continue;
      check(step, rest == "_one_id" ? t.cupti.enable_call(domain, function.id, true)
                                    : t.cupti.EnableCallback(1, t.subscriber, domain, function.id));
    }
    return;
  }
  if (rest == "_domain" || rest == "_domain_off") {
    if (t.enable_domain == nullptr) return note(step, "this CUPTI has no cuptiEnableDomain");
    return check(step, t.enable_domain(rest == "_domain", t.subscriber, domain));
  }
  note(step, "unknown step");
}

}  // namespace

extern "C" {

// Does the steps, which are words separated by spaces. The first step of a process loads CUPTI.
void late_start_do(const char* steps) {
  if (!load()) return;
  for (std::string rest = steps; !rest.empty();) {
    const std::size_t end = rest.find(' ');
    if (end != 0) do_step(rest.substr(0, end));
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
}

// Starts to count records when they arrive. Earlier records are flushed first. They are ignored unless there were
// dumps.
void late_start_count() {
  Tool& t = tool();
  if (t.cupti.GetVersion == nullptr) return;
  check("flush", t.cupti.ActivityFlushAll(0));
  const std::lock_guard lock(t.mutex);
  t.counting = true;
  t.callbacks = 0;
}

// Returns the counts and the failures as JSON, valid until the next call.
const char* late_start_report() {
  static std::string text;
  Tool& t = tool();
  if (t.counting) check("flush", t.cupti.ActivityFlushAll(0));
  std::size_t dropped = 0;
  if (t.cupti.GetVersion != nullptr) t.cupti.take_dropped(&dropped);
  const auto numbers = [](const auto& map) {
    std::string all;
    for (const auto& [kind, number] : map)
      all += (all.empty() ? "\"" : ", \"") + std::to_string(kind) + "\": " + std::to_string(number);
    return "{" + all + "}";
  };
  std::string layouts;
  for (const std::string& layout : t.layouts) layouts += (layouts.empty() ? "" : ", ") + layout;
  text = "{\"cupti\": " + std::to_string(t.cupti.version) + ", \"path\": \"" + t.cupti.path + "\", \"records\": " +
         numbers(t.records) + ", \"bytes\": " + numbers(t.sizes) + ", \"layouts\": [" + layouts + "], \"callbacks\": " +
         std::to_string(t.callbacks.load()) + ", \"dropped\": " + std::to_string(dropped) + ", \"failures\": [" + t.failures +
         "]}";
  return text.c_str();
}

int InitializeInjection() {
  if (const char* steps = std::getenv("LATE_START_EARLY")) late_start_do(steps);
  return 1;
}
}
