#include "caches.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>

#include "driver_calls.h"
#include "launch_calls.h"
#include "session.h"

namespace cutrace {
namespace {

// The buffer is this many times the size of the cache, because the cache does not always replace its oldest lines.
constexpr std::size_t kTimesTheCache = 2;
constexpr unsigned kBlocks = 1024, kThreads = 256;

// Reads `count` vectors of 16 bytes, which are zero. It would store a nonzero sum, which never happens. The store keeps the
// compiler from removing the reads.
constexpr char kSweep[] = R"(.version 6.0
.target sm_70
.address_size 64
.visible .entry cutrace_sweep(.param .u64 buffer, .param .u64 count) {
  .reg .b64 %base, %count, %at, %step, %address, %thread;
  .reg .b32 %block, %threads, %blocks, %index, %sum, %a, %b, %c, %d;
  .reg .pred %done, %never;
  ld.param.u64 %base, [buffer];
  ld.param.u64 %count, [count];
  cvta.to.global.u64 %base, %base;
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %index, %tid.x;
  cvt.u64.u32 %thread, %index;
  mad.wide.u32 %at, %block, %threads, %thread;
  mul.wide.u32 %step, %blocks, %threads;
  mov.u32 %sum, 0;
next:
  setp.ge.u64 %done, %at, %count;
  @%done bra all;
  mad.lo.u64 %address, %at, 16, %base;
  ld.global.cg.v4.u32 {%a, %b, %c, %d}, [%address];
  or.b32 %a, %a, %b;
  or.b32 %c, %c, %d;
  or.b32 %a, %a, %c;
  or.b32 %sum, %sum, %a;
  add.u64 %at, %at, %step;
  bra next;
all:
  setp.eq.u32 %never, %sum, 0;
  @%never ret;
  st.global.u32 [%base], %sum;
  ret;
})";

// CUpti_Checkpoint of cupti_checkpoint.h, which not all packages of CUPTI have.
struct Handle {
  std::size_t size = sizeof(Handle);
  CUcontext context = nullptr;
  std::size_t reserved_device_mb = 0, reserved_host_mb = 0;
  std::uint8_t may_overwrite = 0, optimizations = 0;
  void* own = nullptr;
};
static_assert(sizeof(Handle) == 48);

using Step = CUptiResult(Handle*);

struct Library {
  Step *save = nullptr, *restore = nullptr, *free = nullptr;

  Library() {
    const std::string folder = session.cupti.path.substr(0, session.cupti.path.rfind('/') + 1);
    void* const loaded = dlopen((folder + "libcheckpoint.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr) return;
    save = reinterpret_cast<Step*>(dlsym(loaded, "cuptiCheckpointSave"));
    restore = reinterpret_cast<Step*>(dlsym(loaded, "cuptiCheckpointRestore"));
    free = reinterpret_cast<Step*>(dlsym(loaded, "cuptiCheckpointFree"));
  }
  bool complete() const { return save != nullptr && restore != nullptr && free != nullptr; }
};

// Calls that give a program memory of pools, mappings, other GPUs, processes and interfaces, managed or registered memory, and
// arrays.
constexpr CUpti_CallbackId kUnsaved[] = {
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2,
    CUPTI_DRIVER_TRACE_CBID_cuCtxEnablePeerAccess,
    CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemAllocNode,
    CUPTI_DRIVER_TRACE_CBID_cuMemCreate,
    CUPTI_DRIVER_TRACE_CBID_cuMemImportFromShareableHandle,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuMemPoolImportPointer,
    CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle,
    CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2,
    CUPTI_DRIVER_TRACE_CBID_cuExternalMemoryGetMappedBuffer,
    CUPTI_DRIVER_TRACE_CBID_cuExternalMemoryGetMappedMipmappedArray,
    CUPTI_DRIVER_TRACE_CBID_cuGraphicsResourceGetMappedPointer_v2,
    CUPTI_DRIVER_TRACE_CBID_cuArrayCreate_v2,
    CUPTI_DRIVER_TRACE_CBID_cuArray3DCreate_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayCreate,
};
std::atomic<bool> has_unsaved_memory{false};

const Library& library() {
  static const Library& loaded = *new Library;
  return loaded;
}

}  // namespace

CUresult CacheSweep::prepare() {
  CUdevice device = 0;
  int cache = 0;
  CUresult result = call_driver<CUresult(CUdevice*)>("cuCtxGetDevice", &device);
  if (result == CUDA_SUCCESS)
    result = call_driver<CUresult(int*, CUdevice_attribute, CUdevice)>("cuDeviceGetAttribute", &cache,
                                                                       CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
  bytes_ = static_cast<std::size_t>(cache) * kTimesTheCache;
  if (result == CUDA_SUCCESS && module_ == nullptr)
    result = call_driver<CUresult(CUmodule*, const void*)>("cuModuleLoadData", &module_, kSweep);
  if (result == CUDA_SUCCESS)
    result = call_driver<CUresult(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction", &kernel_, module_, "cutrace_sweep");
  if (result == CUDA_SUCCESS) result = call_driver<CUresult(CUdeviceptr*, std::size_t)>("cuMemAlloc_v2", &buffer_, bytes_);
  if (result == CUDA_SUCCESS)
    result = call_driver<CUresult(CUdeviceptr, unsigned char, std::size_t)>("cuMemsetD8_v2", buffer_, static_cast<unsigned char>(0), bytes_);
  return result;
}

CUresult CacheSweep::run() {
  const OwnCalls own;
  const PushedContext current(context_);
  CUresult result = buffer_ == 0 ? prepare() : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) return result;
  std::uint64_t count = bytes_ / 16;
  void* parameters[] = {&buffer_, &count};
  using Call = CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**);
  result = call_driver<Call>("cuLaunchKernel", kernel_, kBlocks, 1u, 1u, kThreads, 1u, 1u, 0u, nullptr, parameters, nullptr);
  return result == CUDA_SUCCESS ? call_driver<CUresult()>("cuCtxSynchronize") : result;
}

CacheSweep::~CacheSweep() {
  const OwnCalls own;
  const PushedContext current(context_);
  if (buffer_ != 0) call_driver<CUresult(CUdeviceptr)>("cuMemFree_v2", buffer_);
  if (module_ != nullptr) call_driver<CUresult(CUmodule)>("cuModuleUnload", module_);
}

std::string Checkpoint::unavailable() {
  if (!library().complete()) return "libcheckpoint.so is not in the folder of " + session.cupti.path;
  if (has_unsaved_memory.load())
    return "the program uses memory of pools, mappings, arrays, other GPUs or processes, or managed or registered memory, which may "
           "not be restored";
  return "";
}

void Checkpoint::watch_calls() {
  for (const CUpti_CallbackId id : kUnsaved)
    session.cupti.EnableCallback(1, session.subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
}

void Checkpoint::on_call(CUpti_CallbackId id) {
  if (std::find(std::begin(kUnsaved), std::end(kUnsaved), id) != std::end(kUnsaved)) has_unsaved_memory.store(true);
}

bool Checkpoint::save() {
  const OwnCalls own;
  release();
  auto handle = std::make_unique<Handle>();
  handle->context = context_;
  const CUptiResult result = library().save(handle.get());
  if (result != CUPTI_SUCCESS) {
    error_ = "the memory could not be saved: cuptiCheckpointSave failed with " + session.cupti.error_name(result) + ". Try --caches keep";
    return false;
  }
  saved_ = handle.release();
  return true;
}

bool Checkpoint::restore() {
  const OwnCalls own;
  const CUptiResult result = library().restore(static_cast<Handle*>(saved_));
  if (result != CUPTI_SUCCESS)
    error_ = "the memory could not be restored: cuptiCheckpointRestore failed with " + session.cupti.error_name(result);
  return result == CUPTI_SUCCESS;
}

void Checkpoint::release() {
  const OwnCalls own;
  const std::unique_ptr<Handle> handle(static_cast<Handle*>(saved_));
  saved_ = nullptr;
  if (handle != nullptr) library().free(handle.get());
}

}  // namespace cutrace
