#include "driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <memory>
#include <new>
#include <string_view>
#include <utility>


namespace cutrace {
namespace {

// X(member, name in the library, parameters). Macros of the header redefine some names to newer variants. The library exports
// each variant under a separate name.
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
// Functions that a driver may lack; their pointers are then null.
#define CUTRACE_DRIVER_OPTIONAL(X)                                                   \
  X(GetDevice, "cuCtxGetDevice", (CUdevice*))                                        \
  X(ExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode*)) \
  X(StreamContext, "cuStreamGetCtx", (CUstream, CUcontext*))                         \
  X(IsCapturing, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus*))          \
  X(GetUuid, "cuDeviceGetUuid", (CUuuid*, CUdevice))                                 \
  X(NodeParams, "cuGraphKernelNodeGetParams_v2", (CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)) \
  X(FunctionName, "cuFuncGetName", (const char**, CUfunction))                       \
  X(KernelName, "cuKernelGetName", (const char**, CUkernel))                          \
  X(PointerAttributes, "cuPointerGetAttributes", (unsigned, CUpointer_attribute*, void**, CUdeviceptr)) \
  X(DefaultPool, "cuDeviceGetDefaultMemPool", (CUmemoryPool*, CUdevice))              \
  X(PoolAttribute, "cuMemPoolGetAttribute", (CUmemoryPool, CUmemPool_attribute, void*)) \
  X(GraphMemory, "cuDeviceGetGraphMemAttribute", (CUdevice, CUgraphMem_attribute, void*))

struct Driver {
#define CUTRACE_MEMBER(member, name, parameters) CUresult(*member) parameters = nullptr;
  CUTRACE_DRIVER(CUTRACE_MEMBER)
  CUTRACE_DRIVER_OPTIONAL(CUTRACE_MEMBER)
#undef CUTRACE_MEMBER
};

constexpr std::pair<CUdevice_attribute, std::uint32_t DeviceInfo::*> kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &DeviceInfo::memory_clock},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &DeviceInfo::max_threads_per_multiprocessor},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &DeviceInfo::shared_per_block_optin},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, &DeviceInfo::shared_reserved_per_block}};

std::atomic<const Driver*> loaded_driver{nullptr};

// Null until the program has loaded a driver. Also null when the driver lacks a function or memory is short.
const Driver* driver() {
  if (const Driver* d = loaded_driver.load()) return d;
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
  if (complete && loaded_driver.compare_exchange_strong(none, d.get())) static_cast<void>(d.release());
  return loaded_driver.load();
}

// While the program captures a stream, only a thread in relaxed mode may wait for other contexts.
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

bool synchronize(const Driver& d, CUcontext context, const std::function<bool(CUcontext)>& may_wait) {
  if (!may_wait(context)) return false;
  if (d.Push(context) != CUDA_SUCCESS) return true;
  CUstreamCaptureStatus status{};
  const bool captured =
      d.IsCapturing != nullptr && d.IsCapturing(CU_STREAM_LEGACY, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!captured) d.Synchronize();
  d.Pop(&context);
  return !captured;
}

int device_count(const Driver* d) {
  int count = 0;
  return d != nullptr && d->GetCount(&count) == CUDA_SUCCESS ? count : 0;  // an error before cuInit
}

}  // namespace

bool driver_is_loaded() { return driver() != nullptr; }

const char* kernel_name_of(CUfunction function, CUkernel kernel) {
  const Driver* const d = loaded_driver.load();
  const char* name = nullptr;
  if (d == nullptr) return nullptr;
  if (function != nullptr && d->FunctionName != nullptr && d->FunctionName(&name, function) == CUDA_SUCCESS) return name;
  if (kernel != nullptr && d->KernelName != nullptr && d->KernelName(&name, kernel) == CUDA_SUCCESS) return name;
  return nullptr;
}

const char* kernel_name_of(CUgraphNode node) {
  const Driver* const d = loaded_driver.load();
  CUDA_KERNEL_NODE_PARAMS params{};
  if (d == nullptr || d->NodeParams == nullptr || d->NodeParams(node, &params) != CUDA_SUCCESS) return nullptr;
  return kernel_name_of(params.func, params.kern);
}

// This runs inside a callback, where dlopen() could block.
CUcontext stream_context(CUstream stream) {
  const Driver* const d = loaded_driver.load();
  CUcontext context = nullptr;
  return d != nullptr && d->StreamContext != nullptr && d->StreamContext(stream, &context) == CUDA_SUCCESS ? context : nullptr;
}

bool is_captured(CUstream stream) {
  const Driver* const d = driver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return d != nullptr && d->IsCapturing != nullptr && d->IsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

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
  const Driver* d = driver();
  pushed_ = d != nullptr && d->Push(static_cast<CUcontext>(context)) == CUDA_SUCCESS;
}
PushedContext::~PushedContext() {
  CUcontext context = nullptr;
  if (pushed_) driver()->Pop(&context);  // without this, the program would keep the context
}

bool pointer_info(CUdeviceptr pointer, PointerInfo& info) {
  const Driver* const d = loaded_driver.load();
  if (d == nullptr || d->PointerAttributes == nullptr) return false;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                      CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR};
  std::uint32_t type = 0, managed = 0;
  int device = 0;
  std::size_t bytes = 0;
  void* mapping = nullptr;
  void* values[] = {&type, &device, &managed, &info.pool, &bytes, &mapping};
  if (d->PointerAttributes(std::size(attributes), attributes, values, pointer) != CUDA_SUCCESS || type == 0) return false;
  info.bytes = bytes;
  info.mapping = reinterpret_cast<std::uintptr_t>(mapping);
  info.device = static_cast<std::uint16_t>(std::max(device, 0));
  info.on_host = type == CU_MEMORYTYPE_HOST;
  info.managed = managed != 0;
  return true;
}

bool is_default_pool(CUmemoryPool pool, std::uint32_t device) {
  const Driver* const d = loaded_driver.load();
  CUmemoryPool standard = nullptr;
  return d != nullptr && d->DefaultPool != nullptr && d->DefaultPool(&standard, static_cast<CUdevice>(device)) == CUDA_SUCCESS &&
         standard == pool;
}

static bool pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, std::uint64_t& value) {
  const Driver* const d = loaded_driver.load();
  cuuint64_t told = 0;
  if (d == nullptr || d->PoolAttribute == nullptr || d->PoolAttribute(pool, attribute, &told) != CUDA_SUCCESS) return false;
  value = told;
  return true;
}

std::uint64_t pool_used(CUmemoryPool pool) {
  std::uint64_t bytes = 0;
  pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, bytes);
  return bytes;
}

std::uint64_t pool_reserved(CUmemoryPool pool) {
  std::uint64_t bytes = 0;
  pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
  return bytes;
}

bool pool_info(CUmemoryPool pool, PoolInfo& info) {
  return pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, info.reserved) &&
         pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, info.used) &&
         pool_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, info.release_threshold);
}

bool graph_memory(std::uint32_t device, std::uint64_t& bytes) {
  const Driver* const d = loaded_driver.load();
  if (d == nullptr || d->GraphMemory == nullptr) return false;
  const RelaxedCapture relaxed(*d);  // in other modes, a stream capture forbids this call
  cuuint64_t kept = 0;
  if (d->GraphMemory(static_cast<CUdevice>(device), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &kept) != CUDA_SUCCESS) return false;
  bytes = kept;
  return true;
}

// Calls `visit` with the primary context of each device that has one, and retains the context meanwhile.
template <typename Visit>
static void each_primary(const Driver* d, Visit visit) {
  for (int device = 0, count = device_count(d); device < count; ++device) {
    unsigned flags = 0;
    int active = 0;
    CUcontext primary = nullptr;
    if (d->PrimaryState(device, &flags, &active) != CUDA_SUCCESS || !active) continue;
    if (d->PrimaryRetain(&primary, device) != CUDA_SUCCESS) continue;
    visit(primary);
    d->PrimaryRelease(device);
  }
}

bool synchronize_context(void* context, const std::function<bool(CUcontext)>& may_wait) {
  const Driver* const d = driver();
  if (d == nullptr || context == nullptr) return true;
  const RelaxedCapture relaxed(*d);
  return synchronize(*d, static_cast<CUcontext>(context), may_wait);
}

bool synchronize_contexts(void* context, const std::function<bool(CUcontext)>& may_wait) {
  const Driver* const d = driver();
  if (device_count(d) == 0) return true;
  bool everywhere = true;
  const RelaxedCapture relaxed(*d);
  each_primary(d, [&](CUcontext primary) {
    everywhere &= synchronize(*d, primary, may_wait);
    if (primary == context) context = nullptr;
  });
  if (context != nullptr) everywhere &= synchronize(*d, static_cast<CUcontext>(context), may_wait);
  return everywhere;
}

std::string device_uuid(std::uint32_t device) {
  const Driver* const d = driver();
  CUuuid uuid{};
  if (d == nullptr || d->GetUuid == nullptr || d->GetUuid(&uuid, static_cast<CUdevice>(device)) != CUDA_SUCCESS) return {};
  std::string text;
  for (const char byte : uuid.bytes)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> shift & 15];
  return text;
}

std::vector<CUcontext> known_contexts() {
  std::vector<CUcontext> contexts;
  each_primary(driver(), [&](CUcontext primary) { contexts.push_back(primary); });
  const auto current = static_cast<CUcontext>(current_context());
  if (current != nullptr && std::ranges::find(contexts, current) == contexts.end()) contexts.push_back(current);
  return contexts;
}

std::vector<DeviceInfo> device_info() {
  const Driver* const d = driver();
  std::vector<DeviceInfo> infos;
  for (int device = 0, count = device_count(d); device < count; ++device) {
    DeviceInfo& info = infos.emplace_back();
    info.device = static_cast<std::uint32_t>(device);
    std::array<char, 32> pci{};
    if (d->GetPciBusId(pci.data(), static_cast<int>(pci.size()), device) == CUDA_SUCCESS) info.pci = pci.data();
    for (const auto& [attribute, member] : kAttributes)
      if (int value = 0; d->GetAttribute(&value, attribute, device) == CUDA_SUCCESS)
        info.*member = static_cast<std::uint32_t>(value);
  }
  return infos;
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

}  // namespace cutrace
