#include "driver.h"

#include <cuda.h>
#include <dlfcn.h>

#include <array>

#include "stream_captures.h"

namespace cutrace {
namespace {

// Spelled out: the header gives some names to newer variants by macro, the library exports each under its own.
struct Driver {
  CUresult (*GetCount)(int*) = nullptr;
  CUresult (*GetAttribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult (*GetPciBusId)(char*, int, CUdevice) = nullptr;
  CUresult (*PrimaryState)(CUdevice, unsigned*, int*) = nullptr;
  CUresult (*PrimaryRetain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*PrimaryRelease)(CUdevice) = nullptr;
  CUresult (*Push)(CUcontext) = nullptr;
  CUresult (*Pop)(CUcontext*) = nullptr;
  CUresult (*Synchronize)() = nullptr;
  CUresult (*GetCurrent)(CUcontext*) = nullptr;
  CUresult (*GetVersion)(int*) = nullptr;
  CUresult (*ExchangeCaptureMode)(CUstreamCaptureMode*) = nullptr;  // not vital

  bool complete() const {
    return GetCount && GetAttribute && GetPciBusId && PrimaryState && PrimaryRetain && PrimaryRelease && Push && Pop &&
           Synchronize && GetCurrent && GetVersion;
  }
};

template <typename Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

Driver load() {
  Driver d;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return d;
  find(library, d.GetCount, "cuDeviceGetCount");
  find(library, d.GetAttribute, "cuDeviceGetAttribute");
  find(library, d.GetPciBusId, "cuDeviceGetPCIBusId");
  find(library, d.PrimaryState, "cuDevicePrimaryCtxGetState");
  find(library, d.PrimaryRetain, "cuDevicePrimaryCtxRetain");
  find(library, d.PrimaryRelease, "cuDevicePrimaryCtxRelease_v2");
  find(library, d.Push, "cuCtxPushCurrent_v2");
  find(library, d.Pop, "cuCtxPopCurrent_v2");
  find(library, d.Synchronize, "cuCtxSynchronize");
  find(library, d.GetCurrent, "cuCtxGetCurrent");
  find(library, d.GetVersion, "cuDriverGetVersion");
  find(library, d.ExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode");
  return d;
}

void synchronize(const Driver& d, CUcontext context) {
  CUcontext previous = nullptr;
  if (d.Push(context) != CUDA_SUCCESS) return;
  d.Synchronize();
  d.Pop(&previous);
}

std::uint32_t attribute(const Driver& d, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return d.GetAttribute(&value, which, device) == CUDA_SUCCESS ? static_cast<std::uint32_t>(value) : 0;
}

int device_count(const Driver& d) {
  int count = 0;
  return d.complete() && d.GetCount(&count) == CUDA_SUCCESS ? count : 0;  // an error before cuInit
}

}  // namespace

bool driver_is_loaded() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

void* current_context() {
  const Driver d = load();
  CUcontext context = nullptr;
  return d.complete() && d.GetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

bool synchronize_contexts(void* context, const StreamCaptures& captures) {
  const Driver d = load();
  const int count = device_count(d);
  bool everywhere = true;
  const auto wait = [&](CUcontext one) {
    if (captures.any_in(one))
      everywhere = false;
    else
      synchronize(d, one);
  };
  // While the program captures a stream, other contexts may be waited for only by a thread that says it knows what it does.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (d.ExchangeCaptureMode) d.ExchangeCaptureMode(&mode);
  for (int device = 0; device < count; ++device) {
    unsigned flags = 0;
    int active = 0;
    CUcontext primary = nullptr;
    if (d.PrimaryState(device, &flags, &active) != CUDA_SUCCESS || !active) continue;
    if (d.PrimaryRetain(&primary, device) != CUDA_SUCCESS) continue;
    wait(primary);
    d.PrimaryRelease(device);
    if (primary == context) context = nullptr;
  }
  if (context != nullptr && count != 0) wait(static_cast<CUcontext>(context));
  if (d.ExchangeCaptureMode) d.ExchangeCaptureMode(&mode);
  return everywhere;
}

std::vector<DeviceFacts> device_facts() {
  const Driver d = load();
  std::vector<DeviceFacts> facts;
  for (int device = 0, count = device_count(d); device < count; ++device) {
    DeviceFacts f;
    f.device = static_cast<std::uint32_t>(device);
    std::array<char, 32> pci{};
    if (d.GetPciBusId(pci.data(), static_cast<int>(pci.size()), device) == CUDA_SUCCESS) f.pci = pci.data();
    f.memory_clock = attribute(d, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
    f.max_threads_per_multiprocessor = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    f.shared_per_block_optin = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    f.shared_reserved_per_block = attribute(d, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
    facts.push_back(std::move(f));
  }
  return facts;
}

std::uint32_t driver_version() {
  const Driver d = load();
  int version = 0;
  return d.complete() && d.GetVersion(&version) == CUDA_SUCCESS ? static_cast<std::uint32_t>(version) : 0;
}

std::uint32_t runtime_version() {
  for (const char* soname : {"libcudart.so.13", "libcudart.so.12"}) {
    void* library = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) continue;
    int (*get)(int*) = nullptr;
    find(library, get, "cudaRuntimeGetVersion");
    int version = 0;
    if (get != nullptr && get(&version) == 0) return static_cast<std::uint32_t>(version);
  }
  return 0;
}

}  // namespace cutrace
