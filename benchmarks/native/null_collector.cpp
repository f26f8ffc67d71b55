// The null collector: a CUDA injection library that makes CUPTI record and discards every buffer unread.
//
// The time that a program loses under it is the cost of CUPTI itself, and the minimum for any tool with the same records. It
// enables the same activity kinds and the same API calls as the collector, with the collector's code.
//
//   CUDA_INJECTION64_PATH=libcutrace_null.so CUTRACE_OPTIONS='directory=/tmp;kinds=kernel,api;api=launch' program
//
// CUTRACE_OPTIONS is the collector's options string; only kinds, api, graph, cupti and buffer_size have an effect. CUTRACE_NULL
// is a comma-separated list of single changes, to find out the cost of each:
//   zeroed    tell CUPTI that buffers come zeroed (the collector does)
//   clock     record times on BOOTTIME (the collector does)
//   threads   record system thread ids (the collector does)
//   flush     flush every flush_ms milliseconds, as the collector does
//   driver    leave out the calls of the driver API
//   runtime   leave out the calls of the runtime API
//
// A program that loads the library and calls cutrace_null_start() starts it when CUDA is already in use.
//
// Build it as one file: g++ -std=c++20 -O2 -fPIC -shared -I<CUPTI and CUDA headers> null_collector.cpp -ldl -lpthread

#include "../../src/cutrace/native/cuda/cupti_library.cpp"
#include "../../src/cutrace/native/collector/core/kinds.cpp"
#include "../../src/cutrace/native/common/conditions.cpp"
#include "../../src/cutrace/native/collector/core/options.cpp"

#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using cutrace::CuptiLibrary;
using cutrace::Options;

struct Null {
  CuptiLibrary cupti;
  Options options;
  std::size_t buffer_size = std::size_t{256} << 10;  // the collector's
  std::mutex mutex;
  std::vector<std::uint8_t*> free;
  CUpti_SubscriberHandle subscriber = nullptr;
  cutrace::Callbacks callbacks;
  cutrace::Enabler enabler;
};

Null& null() {
  static Null* n = new Null;
  return *n;
}

void request(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  Null& n = null();
  *size = n.buffer_size;
  *records = 0;
  const std::lock_guard lock(n.mutex);
  if (n.free.empty()) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(4096, n.buffer_size));
  } else {
    *buffer = n.free.back();
    n.free.pop_back();
  }
}

void complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t) {
  Null& n = null();
  const std::lock_guard lock(n.mutex);
  n.free.push_back(buffer);
}

void callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  null().callbacks.dispatch(domain, id, data);
}

std::uint64_t CUPTIAPI boottime() {
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

bool wanted(const char* word) {
  const char* list = std::getenv("CUTRACE_NULL");
  return list != nullptr && ("," + std::string(list) + ",").find("," + std::string(word) + ",") != std::string::npos;
}

void flush_regularly() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(null().options.flush_ms));
    null().cupti.ActivityFlushAll(0);
  }
}

void flush_at_exit() { null().cupti.ActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); }

void start(bool before_cuda) {
  Null& n = null();
  const char* text = std::getenv("CUTRACE_OPTIONS");
  std::string error;
  if (!cutrace::parse_options(text ? text : "directory=.", n.options, error) || !n.cupti.load(n.options.cupti, error) ||
      n.cupti.Subscribe(&n.subscriber, callback, nullptr) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "null collector: not recording: %s\n", error.empty() ? "CUPTI is held" : error.c_str());
    return;
  }
  if (n.options.buffer_size != 0) n.buffer_size = n.options.buffer_size;
  if (wanted("clock")) n.cupti.ActivityRegisterTimestampCallback(boottime);
  if (wanted("threads")) n.cupti.SetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  if (wanted("zeroed")) {
    std::uint8_t on = 1;
    std::size_t size = sizeof on;
    n.cupti.ActivitySetAttribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size, &on);
  }
  std::size_t none = 0, none_size = sizeof none;  // as the collector does
  n.cupti.ActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE, &none_size, &none);
  n.cupti.ActivityRegisterCallbacks(request, complete);
  if (wanted("driver")) n.cupti.ActivityEnableDriverApi = [](CUpti_CallbackId, std::uint8_t) { return CUPTI_SUCCESS; };
  if (wanted("runtime")) n.cupti.ActivityEnableRuntimeApi = [](CUpti_CallbackId, std::uint8_t) { return CUPTI_SUCCESS; };
  n.callbacks.add(n.enabler);
  n.callbacks.open(n.cupti, n.subscriber);
  const bool whole_graphs = n.options.traces_whole_graphs();
  n.enabler.enable(n.cupti, n.callbacks, n.options.kinds, {n.options.api, n.options.stacks}, whole_graphs, before_cuda);
  for (const cutrace::Refusal& refusal : n.enabler.refused())
    std::fprintf(stderr, "null collector: CUPTI refused %s: %s\n", refusal.what.c_str(), refusal.error.c_str());
  if (wanted("flush")) std::thread(flush_regularly).detach();
  std::atexit(flush_at_exit);
}

}  // namespace

extern "C" int InitializeInjection() {
  start(true);
  return 1;
}

extern "C" void cutrace_null_start() { start(false); }
