#include "driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

namespace cutrace {
namespace {

// X(member, name in the library, parameters). The names are spelled out: the header gives some to newer variants by macro, the
// library exports each under its own.
#define CUTRACE_DRIVER(X)                                                            \
  X(GetCount, "cuDeviceGetCount", (int*))                                            \
  X(GetAttribute, "cuDeviceGetAttribute", (int*, CUdevice_attribute, CUdevice))      \
  X(GetPciBusId, "cuDeviceGetPCIBusId", (char*, int, CUdevice))                      \
  X(PrimaryState, "cuDevicePrimaryCtxGetState", (CUdevice, unsigned*, int*))         \
  X(PrimaryRetain, "cuDevicePrimaryCtxRetain", (CUcontext*, CUdevice))               \
  X(PrimaryRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                      \
  X(Push, "cuCtxPushCurrent_v2", (CUcontext))                                        \
  X(Pop, "cuCtxPopCurrent_v2", (CUcontext*))                                         \
  X(Synchronize, "cuCtxSynchronize", ())                                             \
  X(GetCurrent, "cuCtxGetCurrent", (CUcontext*))                                     \
  X(GetVersion, "cuDriverGetVersion", (int*))
// Null where the driver lacks them.
#define CUTRACE_DRIVER_OPTIONAL(X)                                                   \
  X(GetDevice, "cuCtxGetDevice", (CUdevice*))                                        \
  X(ExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode*)) \
  X(StreamContext, "cuStreamGetCtx", (CUstream, CUcontext*))                         \
  X(IsCapturing, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus*))

struct Driver {
#define CUTRACE_MEMBER(member, name, parameters) CUresult(*member) parameters = nullptr;
  CUTRACE_DRIVER(CUTRACE_MEMBER)
  CUTRACE_DRIVER_OPTIONAL(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER
};

constexpr std::pair<CUdevice_attribute, std::uint32_t DeviceFacts::*> kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &DeviceFacts::memory_clock},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &DeviceFacts::max_threads_per_multiprocessor},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &DeviceFacts::shared_per_block_optin},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, &DeviceFacts::shared_reserved_per_block}};

std::atomic<const Driver*> found{nullptr};

// Null until the program has loaded a driver, where that lacks a function, and without memory.
const Driver* driver() {
  if (const Driver* d = found.load()) return d;
  void* const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  std::unique_ptr<Driver> d(new (std::nothrow) Driver);
  if (d == nullptr) return nullptr;
  bool complete = true;
#define CUTRACE_LOAD(member, name, parameters) d->member = reinterpret_cast<decltype(d->member)>(dlsym(handle, name));
#define CUTRACE_REQUIRE(member, name, parameters) \
  CUTRACE_LOAD(member, name, parameters)          \
  complete = complete && d->member != nullptr;
  CUTRACE_DRIVER(CUTRACE_REQUIRE)
  CUTRACE_DRIVER_OPTIONAL(CUTRACE_LOAD)
#undef CUTRACE_REQUIRE
#undef CUTRACE_LOAD
  const Driver* none = nullptr;
  if (complete && found.compare_exchange_strong(none, d.get())) static_cast<void>(d.release());
  return found.load();
}

// While the program captures a stream, other contexts may be waited for only by a thread that says it knows what it does.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& d) : driver_(d) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    if (driver_.ExchangeCaptureMode) driver_.ExchangeCaptureMode(&mode_);
  }
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Waits for a context unless a stream of it is being captured, which a wait would end. False then.
bool synchronize(const Driver& d, CUcontext context, const StreamCaptures& captures) {
  if (captures.any_in(context)) return false;
  if (d.Push(context) != CUDA_SUCCESS) return true;
  CUstreamCaptureStatus status{};
  const bool captured =
      d.IsCapturing != nullptr && d.IsCapturing(CU_STREAM_LEGACY, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!captured) d.Synchronize();
  d.Pop(&context);
  return !captured;
}

// The context of a stream, for a default stream the current one; null when the driver does not tell, or driver() has not found
// it yet: this is called inside a callback, where looking for a library could wait.
CUcontext stream_context(CUstream stream) {
  const Driver* d = found.load();
  CUcontext context = nullptr;
  return d != nullptr && d->StreamContext != nullptr && d->StreamContext(stream, &context) == CUDA_SUCCESS ? context : nullptr;
}

int device_count(const Driver* d) {
  int count = 0;
  return d != nullptr && d->GetCount(&count) == CUDA_SUCCESS ? count : 0;  // an error before cuInit
}

}  // namespace

bool driver_is_loaded() { return driver() != nullptr; }

void* current_context() {
  const Driver* d = driver();
  CUcontext context = nullptr;
  return d != nullptr && d->GetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

std::uint32_t current_device() {
  const Driver* d = driver();
  CUdevice device = 0;
  return d != nullptr && d->GetDevice != nullptr && d->GetDevice(&device) == CUDA_SUCCESS ? static_cast<std::uint32_t>(device) : 0;
}

PushedContext::PushedContext(void* context) {
  if (const Driver* d = driver()) d->Push(static_cast<CUcontext>(context));
}
PushedContext::~PushedContext() {
  CUcontext context = nullptr;
  if (const Driver* d = driver()) d->Pop(&context);
}

bool synchronize_context(void* context, const StreamCaptures& captures) {
  const Driver* const d = driver();
  if (d == nullptr) return true;
  const RelaxedCapture relaxed(*d);
  return synchronize(*d, static_cast<CUcontext>(context), captures);
}

bool synchronize_contexts(void* context, const StreamCaptures& captures) {
  const Driver* const d = driver();
  const int count = device_count(d);
  if (count == 0) return true;
  bool everywhere = true;
  const RelaxedCapture relaxed(*d);
  for (int device = 0; device < count; ++device) {
    unsigned flags = 0;
    int active = 0;
    CUcontext primary = nullptr;
    if (d->PrimaryState(device, &flags, &active) != CUDA_SUCCESS || !active) continue;
    if (d->PrimaryRetain(&primary, device) != CUDA_SUCCESS) continue;
    everywhere &= synchronize(*d, primary, captures);
    d->PrimaryRelease(device);
    if (primary == context) context = nullptr;
  }
  if (context != nullptr) everywhere &= synchronize(*d, static_cast<CUcontext>(context), captures);
  return everywhere;
}

std::vector<DeviceFacts> device_facts() {
  const Driver* const d = driver();
  std::vector<DeviceFacts> facts;
  for (int device = 0, count = device_count(d); device < count; ++device) {
    DeviceFacts& fact = facts.emplace_back();
    fact.device = static_cast<std::uint32_t>(device);
    std::array<char, 32> pci{};
    if (d->GetPciBusId(pci.data(), static_cast<int>(pci.size()), device) == CUDA_SUCCESS) fact.pci = pci.data();
    for (const auto& [attribute, member] : kAttributes)
      if (int value = 0; d->GetAttribute(&value, attribute, device) == CUDA_SUCCESS)
        fact.*member = static_cast<std::uint32_t>(value);
  }
  return facts;
}

std::uint32_t driver_version() {
  const Driver* d = driver();
  int version = 0;
  return d != nullptr && d->GetVersion(&version) == CUDA_SUCCESS ? static_cast<std::uint32_t>(version) : 0;
}

std::uint32_t runtime_version() {
  for (const char* soname : {"libcudart.so.13", "libcudart.so.12"}) {
    void* const handle = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    const auto get = reinterpret_cast<int (*)(int*)>(dlsym(handle, "cudaRuntimeGetVersion"));
    int version = 0;
    if (get != nullptr && get(&version) == 0) return static_cast<std::uint32_t>(version);
  }
  return 0;
}

// ---- captures ----

void StreamCaptures::watch(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber) {
  {
    const std::lock_guard lock(mutex_);
    captures_.clear();
    forgotten_ = false;
  }
  if (cupti.EnableCallback == nullptr) return;
  driver_is_loaded();  // finds it for stream_context()
  constexpr std::pair<std::string_view, Does> kCalls[] = {{"StreamBeginCapture", Does::begin},
                                                          {"StreamBeginRecapture", Does::begin},
                                                          {"StreamEndCapture", Does::end},
                                                          {"StreamDestroy", Does::destroy}};
  if (calls_.empty())
    for (const ApiFunction& function : cupti.api_functions())
      for (const auto& [part, does] : kCalls)
        if (function.name.find(part) != function.name.npos) calls_.push_back({function.domain, function.id, does});
  for (const Call& call : calls_) cupti.EnableCallback(1, subscriber, call.domain, call.id);
}

void StreamCaptures::on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept {
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API && domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
  const auto call = std::find_if(calls_.begin(), calls_.end(), [&](const Call& c) { return c.domain == domain && c.id == id; });
  if (call == calls_.end() || data == nullptr) return;
  const auto& about = *static_cast<const CUpti_CallbackData*>(data);
  if (about.functionParams == nullptr) return;
  const CUstream stream = *static_cast<const CUstream*>(about.functionParams);  // the first parameter of all of them
  const bool enters = about.callbackSite == CUPTI_API_ENTER;
  // Both CUresult and cudaError_t.
  const int status = enters || about.functionReturnValue == nullptr ? 0 : *static_cast<const int*>(about.functionReturnValue);
  // Before the lock: the driver may wait.
  const CUcontext context = enters && call->does == Does::begin ? stream_context(stream) : nullptr;
  const std::lock_guard lock(mutex_);
  switch (call->does) {
    case Does::begin:
      // Before it begins, so that nobody waits just then.
      if (enters) {
        try {
          captures_.push_back({stream, context});
        } catch (const std::bad_alloc&) {
          forgotten_ = true;
        }
      } else if (status != 0) {
        remove(stream, false);
      }
      return;
    case Does::end:
      // An end that fails has ended an invalid capture, unless it came from the wrong thread.
      if (!enters && status != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        remove(stream, stream != CU_STREAM_PER_THREAD);  // that one stands for a stream of each thread
      return;
    case Does::destroy:
      if (enters) remove(stream, true);
      return;
  }
}

bool StreamCaptures::any_in(CUcontext context) const {
  const std::lock_guard lock(mutex_);
  return forgotten_ || std::any_of(captures_.begin(), captures_.end(),
                                   [&](const Capture& c) { return c.context == nullptr || c.context == context; });
}

void StreamCaptures::remove(CUstream stream, bool all) {
  const auto same = [&](const Capture& c) { return c.stream == stream; };
  if (all) {
    std::erase_if(captures_, same);
  } else if (const auto it = std::find_if(captures_.begin(), captures_.end(), same); it != captures_.end()) {
    captures_.erase(it);
  }
}

}  // namespace cutrace
