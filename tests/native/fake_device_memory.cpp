// The memory of the fake GPU: the driver's calls that allocate and release, reported to CUPTI with their parameters.
//
// Freed addresses are reused, the last one first, as in the driver.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <generated_cuda_meta.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "fake_cupti.h"
#include "fake_driver.h"
#include "fake_driver_parts.h"

#define EXPORT __attribute__((visibility("default")))

namespace {

enum class Kind { device, host, managed };

struct Pool {
  std::uint64_t base = 0;  // start of its memory, 0 before the first allocation
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;  // bytes that it has from the system
  std::uint64_t release_threshold = 0;
  std::size_t outstanding = 0;
  Kind kind = Kind::device;
  int device = 0;
  bool destroyed = false;
};

struct Block {
  std::uint64_t bytes = 0;
  Kind kind = Kind::device;
  CUmemoryPool pool = nullptr;
  CUcontext context = nullptr;
  bool context_ended = false;
};

struct Physical {
  std::uint64_t bytes = 0;
  unsigned handles = 0, mappings = 0;
};

constexpr std::uint64_t kDefaultPool = 0x1000;  // of device 0; the addresses of other devices follow

struct Memory {
  std::mutex mutex;
  std::map<std::uint64_t, Block> blocks;
  std::map<std::uint64_t, CUcontext> arrays;
  std::map<std::uint64_t, CUcontext> registered;  // memory of the host, by address
  std::map<std::uint64_t, Physical> physical;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> mappings;  // bytes and handle by address
  std::map<std::uint64_t, Pool> pools;
  std::multimap<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> free;  // addresses by pool and size
  std::vector<std::uint64_t> free_handles;
  // by device: the bytes kept for graphs, and the bytes that their nodes need
  std::map<int, std::uint64_t> graph_memory, graph_nodes;
  std::uint64_t used = 0, next_address = 0x7f0000000000, next_handle = 0x2000;
  bool cupti_is_broken = false;  // the next cuCtxSynchronize() will crash
};

Memory& memory() {
  static auto* m = [] {
    auto* made = new Memory;
    for (int device = 0; device < 8; ++device) made->pools[kDefaultPool + static_cast<std::uint64_t>(device)].device = device;
    return made;
  }();
  return *m;
}

std::uint64_t as_number(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
template <typename Handle>
Handle as_handle(std::uint64_t number) {
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(number));
}

// A call of the driver, inside a call of the program with this correlation id.
template <typename Parameters, typename Body>
CUresult inner(const char* call, std::uint32_t correlation, Parameters& parameters, Body&& body) {
  fake::tell(call, correlation, &parameters, nullptr);
  int result = 0;
  {
    const std::lock_guard lock(memory().mutex);
    result = body();
  }
  fake::tell(call, correlation, &parameters, &result);
  return static_cast<CUresult>(result);
}

// A call of the driver that the program makes.
template <typename Parameters, typename Body>
CUresult outer(const char* call, Parameters parameters, Body&& body) {
  return static_cast<CUresult>(
      fake::api_call(call, [&](std::uint32_t correlation) { return inner(call, correlation, parameters, body); }));
}

// ---- under the mutex ----

std::uint64_t take_address(std::uint64_t bytes, CUmemoryPool pool) {
  Memory& m = memory();
  const auto [first, last] = m.free.equal_range({as_number(pool), bytes});
  if (first != last) {
    const auto newest = std::prev(last);
    const std::uint64_t address = newest->second;
    m.free.erase(newest);
    return address;
  }
  const std::uint64_t address = m.next_address;
  m.next_address += (std::max<std::uint64_t>(bytes, 1) + 511) / 512 * 512;
  return address;
}

constexpr std::uint64_t kPiece = std::uint64_t{32} << 20;  // pools and graphs have multiples of this

std::uint64_t in_pieces(std::uint64_t bytes) { return (bytes + kPiece - 1) / kPiece * kPiece; }

// Keeps the bytes in use, and at least `minimum` bytes.
void trim(Pool& pool, std::uint64_t minimum) {
  pool.reserved = std::min(pool.reserved, in_pieces(std::max(pool.used, minimum)));
}

int allocate(std::uint64_t& address, std::uint64_t bytes, Kind kind, CUmemoryPool pool = nullptr) {
  Memory& m = memory();
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (kind == Kind::device && bytes > kFakeMemory - m.used) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pool != nullptr) {
    const auto it = m.pools.find(as_number(pool));
    if (it == m.pools.end() || it->second.destroyed) return CUDA_ERROR_INVALID_VALUE;
    it->second.used += bytes;
    it->second.reserved = std::max(it->second.reserved, in_pieces(it->second.used));
    ++it->second.outstanding;
    kind = it->second.kind;
  }
  address = take_address(bytes, pool);
  if (pool != nullptr && m.pools[as_number(pool)].base == 0) m.pools[as_number(pool)].base = address;
  m.blocks[address] = {bytes, kind, pool, fake::context(), false};
  if (kind == Kind::device) m.used += bytes;
  return 0;
}

void end_pool(std::uint64_t pool) {
  const auto it = memory().pools.find(pool);
  if (!it->second.destroyed || it->second.outstanding != 0) return;
  memory().pools.erase(it);
  memory().free_handles.push_back(pool);
}

int release(std::uint64_t address, bool host, bool async) {
  Memory& m = memory();
  if (address == 0) return 0;
  const auto it = m.blocks.find(address);
  if (it == m.blocks.end() || (it->second.kind == Kind::host && it->second.pool == nullptr) != host) return CUDA_ERROR_INVALID_VALUE;
  const Block block = it->second;
  // Like CUPTI 13.0 and 13.5 with their records of memory.
  if (async && block.pool == nullptr && fake::is_enabled(CUPTI_ACTIVITY_KIND_MEMORY2)) std::raise(SIGSEGV);
  if (async && block.context_ended) m.cupti_is_broken |= fake::is_enabled(CUPTI_ACTIVITY_KIND_MEMORY_POOL);
  m.blocks.erase(it);
  m.free.emplace(std::pair(as_number(block.pool), block.bytes), address);
  if (block.kind == Kind::device) m.used -= block.bytes;
  if (block.pool == nullptr) return 0;
  Pool& pool = m.pools[as_number(block.pool)];
  pool.used -= block.bytes;
  --pool.outstanding;
  end_pool(as_number(block.pool));
  return 0;
}

std::uint64_t take_handle() {
  Memory& m = memory();
  if (m.free_handles.empty()) return m.next_handle++;
  const std::uint64_t handle = m.free_handles.back();
  m.free_handles.pop_back();
  return handle;
}

void end_physical(std::uint64_t handle) {
  Memory& m = memory();
  const auto it = m.physical.find(handle);
  if (it->second.handles != 0 || it->second.mappings != 0) return;
  m.used -= it->second.bytes;
  m.physical.erase(it);
  m.free_handles.push_back(handle);
}

template <typename Handle>
int create_array(Handle* handle) {
  const std::uint64_t number = take_handle();
  memory().arrays[number] = fake::context();
  *handle = as_handle<Handle>(number);
  return 0;
}

int destroy_array(std::uint64_t handle) {
  if (memory().arrays.erase(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  memory().free_handles.push_back(handle);
  return 0;
}

// ---- the calls, inside a call of the runtime or of the program ----

CUresult mem_alloc(std::uint32_t correlation, CUdeviceptr* address, std::size_t bytes) {
  cuMemAlloc_v2_params p{address, bytes};
  return inner("cuMemAlloc_v2", correlation, p, [&] { std::uint64_t at = 0; const int r = allocate(at, bytes, Kind::device); *address = at; return r; });
}
CUresult mem_alloc_managed(std::uint32_t correlation, CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  cuMemAllocManaged_params p{address, bytes, flags};
  return inner("cuMemAllocManaged", correlation, p, [&] { std::uint64_t at = 0; const int r = allocate(at, bytes, Kind::managed); *address = at; return r; });
}
CUresult mem_host_alloc(std::uint32_t correlation, void** address, std::size_t bytes, unsigned flags) {
  cuMemHostAlloc_params p{address, bytes, flags};
  return inner("cuMemHostAlloc", correlation, p, [&] { std::uint64_t at = 0; const int r = allocate(at, bytes, Kind::host); *address = as_handle<void*>(at); return r; });
}
bool is_captured(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void add_graph_node(int device, std::uint64_t bytes) {
  std::uint64_t& needed = memory().graph_nodes[device];
  needed += in_pieces(bytes);
}

CUresult mem_alloc_async(std::uint32_t correlation, CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  cuMemAllocAsync_params p{address, bytes, stream};
  return inner("cuMemAllocAsync", correlation, p, [&] {
    std::uint64_t at = 0;
    const int r = allocate(at, bytes, Kind::device, as_handle<CUmemoryPool>(kDefaultPool));
    *address = at;
    if (is_captured(stream)) add_graph_node(0, bytes);
    return r;
  });
}
CUresult mem_free(std::uint32_t correlation, CUdeviceptr address) {
  cuMemFree_v2_params p{address};
  return inner("cuMemFree_v2", correlation, p, [&] { return release(address, false, false); });
}
CUresult mem_free_host(std::uint32_t correlation, void* address) {
  cuMemFreeHost_params p{address};
  return inner("cuMemFreeHost", correlation, p, [&] { return release(as_number(address), true, false); });
}
CUresult mem_free_async(std::uint32_t correlation, CUdeviceptr address, CUstream stream) {
  cuMemFreeAsync_params p{address, stream};
  return inner("cuMemFreeAsync", correlation, p, [&] { return release(address, false, true); });
}
CUresult array_create(std::uint32_t correlation, CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v2* wanted) {
  cuArrayCreate_v2_params p{array, wanted};
  return inner("cuArrayCreate_v2", correlation, p, [&] { return create_array(array); });
}
CUresult array_destroy(std::uint32_t correlation, CUarray array) {
  cuArrayDestroy_params p{array};
  return inner("cuArrayDestroy", correlation, p, [&] { return destroy_array(as_number(array)); });
}

bool contains(std::string_view string, std::string_view part) { return string.find(part) != std::string_view::npos; }

template <typename Body>
CUresult called(const char* call, Body&& body) {
  return static_cast<CUresult>(fake::api_call(call, [&](std::uint32_t correlation) { return body(correlation); }));
}

}  // namespace

void fake::after_wait(bool of_context) {
  const std::lock_guard lock(memory().mutex);
  // Like CUPTI 13.0 and 13.5, as far as known.
  if (of_context && memory().cupti_is_broken) std::raise(SIGSEGV);
  for (auto& [handle, pool] : memory().pools) trim(pool, pool.release_threshold);
}

extern "C" {

// ---- for tests ----

EXPORT int fake_gpu_allocate(const char* call, std::uint64_t bytes, std::uint64_t* address) {
  if (const int status = fake::initialise_runtime()) return status;
  return called(call, [&](std::uint32_t correlation) -> int {
    CUdeviceptr at = 0;
    CUresult result = CUDA_SUCCESS;
    if (contains(call, "Async")) {
      result = mem_alloc_async(correlation, &at, bytes, nullptr);
    } else if (contains(call, "Managed")) {
      result = mem_alloc_managed(correlation, &at, bytes, CU_MEM_ATTACH_GLOBAL);
    } else if (contains(call, "Host")) {
      void* pointer = nullptr;
      result = mem_host_alloc(correlation, &pointer, bytes, 0);
      at = as_number(pointer);
    } else if (contains(call, "Array")) {
      CUarray array = nullptr;
      const CUDA_ARRAY_DESCRIPTOR_v2 wanted = {bytes, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
      result = array_create(correlation, &array, &wanted);
      at = as_number(array);
    } else {
      result = mem_alloc(correlation, &at, bytes);
    }
    *address = at;
    return result;
  });
}

EXPORT int fake_gpu_release(const char* call, std::uint64_t address) {
  if (const int status = fake::initialise_runtime()) return status;
  return called(call, [&](std::uint32_t correlation) {
    if (contains(call, "Async")) return mem_free_async(correlation, address, nullptr);
    if (contains(call, "Host")) return mem_free_host(correlation, as_handle<void*>(address));
    if (contains(call, "Array")) return array_destroy(correlation, as_handle<CUarray>(address));
    return mem_free(correlation, address);
  });
}

// ---- the driver ----

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  return called("cuMemAlloc_v2", [&](std::uint32_t c) { return mem_alloc(c, address, bytes); });
}
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height, unsigned element) {
  return outer("cuMemAllocPitch_v2", cuMemAllocPitch_v2_params{address, pitch, width, height, element}, [&] {
    *pitch = (width + 511) / 512 * 512;
    std::uint64_t at = 0;
    const int result = allocate(at, *pitch * height, Kind::device);
    *address = at;
    return result;
  });
}
EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  return called("cuMemAllocManaged", [&](std::uint32_t c) { return mem_alloc_managed(c, address, bytes, flags); });
}
EXPORT CUresult cuMemAllocHost_v2(void** address, std::size_t bytes) {
  return outer("cuMemAllocHost_v2", cuMemAllocHost_v2_params{address, bytes}, [&] {
    std::uint64_t at = 0;
    const int result = allocate(at, bytes, Kind::host);
    *address = as_handle<void*>(at);
    return result;
  });
}
EXPORT CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  return called("cuMemHostAlloc", [&](std::uint32_t c) { return mem_host_alloc(c, address, bytes, flags); });
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  return called("cuMemFree_v2", [&](std::uint32_t c) { return mem_free(c, address); });
}
EXPORT CUresult cuMemFreeHost(void* address) {
  return called("cuMemFreeHost", [&](std::uint32_t c) { return mem_free_host(c, address); });
}
EXPORT CUresult cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
  return outer("cuMemHostRegister_v2", cuMemHostRegister_v2_params{address, bytes, flags}, [&]() -> int {
    if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const bool added = memory().registered.emplace(as_number(address), fake::context()).second;
    return added ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  });
}
EXPORT CUresult cuMemHostUnregister(void* address) {
  return outer("cuMemHostUnregister", cuMemHostUnregister_params{address}, [&]() -> int {
    return memory().registered.erase(as_number(address)) != 0 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}
EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  return called("cuMemAllocAsync", [&](std::uint32_t c) { return mem_alloc_async(c, address, bytes, stream); });
}
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  return outer("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync_params{address, bytes, pool, stream}, [&] {
    std::uint64_t at = 0;
    const int result = allocate(at, bytes, Kind::device, pool);
    *address = at;
    return result;
  });
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return called("cuMemFreeAsync", [&](std::uint32_t c) { return mem_free_async(c, address, stream); });
}
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  return outer("cuMemAllocAsync_ptsz", cuMemAllocAsync_ptsz_params{address, bytes, stream}, [&] {
    std::uint64_t at = 0;
    const int result = allocate(at, bytes, Kind::device, as_handle<CUmemoryPool>(kDefaultPool));
    *address = at;
    return result;
  });
}
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return outer("cuMemFreeAsync_ptsz", cuMemFreeAsync_ptsz_params{address, stream}, [&] { return release(address, false, true); });
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* wanted) {
  return outer("cuMemPoolCreate", cuMemPoolCreate_params{pool, wanted}, [&] {
    const std::uint64_t handle = take_handle();
    Pool& made = memory().pools[handle];
    made.kind = wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? Kind::device : Kind::host;
    made.device = made.kind == Kind::device ? wanted->location.id : 0;
    *pool = as_handle<CUmemoryPool>(handle);
    return 0;
  });
}
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return outer("cuMemPoolDestroy", cuMemPoolDestroy_params{pool}, [&]() -> int {
    const auto it = memory().pools.find(as_number(pool));
    const bool of_device = as_number(pool) >= kDefaultPool && as_number(pool) < kDefaultPool + 8;
    if (it == memory().pools.end() || of_device) return CUDA_ERROR_INVALID_VALUE;
    it->second.destroyed = true;
    end_pool(as_number(pool));
    return 0;
  });
}
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t minimum) {
  return outer("cuMemPoolTrimTo", cuMemPoolTrimTo_params{pool, minimum}, [&]() -> int {
    const auto it = memory().pools.find(as_number(pool));
    if (it == memory().pools.end()) return CUDA_ERROR_INVALID_VALUE;
    trim(it->second, minimum);
    return 0;
  });
}
// For a destroyed pool, this is an access to freed memory.
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const std::lock_guard lock(memory().mutex);
  const auto it = memory().pools.find(as_number(pool));
  if (it == memory().pools.end()) std::raise(SIGSEGV);
  const auto tell = [&](std::uint64_t bytes) {
    std::memcpy(value, &bytes, sizeof bytes);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return tell(it->second.used);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return tell(it->second.reserved);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return tell(it->second.release_threshold);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const std::lock_guard lock(memory().mutex);
  const auto it = memory().pools.find(as_number(pool));
  if (it == memory().pools.end() || attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&it->second.release_threshold, value, sizeof it->second.release_threshold);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  *pool = as_handle<CUmemoryPool>(kDefaultPool + static_cast<std::uint64_t>(device));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr pointer) {
  const std::lock_guard lock(memory().mutex);
  const auto it = memory().blocks.find(pointer);
  const Block block = it != memory().blocks.end() ? it->second : Block{};
  const bool known = it != memory().blocks.end();
  for (unsigned i = 0; i < count; ++i) {
    const auto set = [&](auto value) { std::memcpy(values[i], &value, sizeof value); };
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        set(!known ? 0u : block.kind == Kind::host ? unsigned{CU_MEMORYTYPE_HOST} : unsigned{CU_MEMORYTYPE_DEVICE});
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        set(block.pool != nullptr ? memory().pools[as_number(block.pool)].device : 0);
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: set(block.kind == Kind::managed ? 1u : 0u); break;
      case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: set(block.pool); break;
      case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: set(block.pool != nullptr ? memory().pools[as_number(block.pool)].base : std::uint64_t{0}); break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE: set(std::size_t{block.bytes}); break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v2* wanted) {
  return called("cuArrayCreate_v2", [&](std::uint32_t c) { return array_create(c, array, wanted); });
}
EXPORT CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR_v2* wanted) {
  return outer("cuArray3DCreate_v2", cuArray3DCreate_v2_params{array, wanted}, [&] { return create_array(array); });
}
EXPORT CUresult cuArrayDestroy(CUarray array) {
  return called("cuArrayDestroy", [&](std::uint32_t c) { return array_destroy(c, array); });
}
EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR_v2* wanted, unsigned levels) {
  return outer("cuMipmappedArrayCreate", cuMipmappedArrayCreate_params{array, wanted, levels}, [&] { return create_array(array); });
}
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return outer("cuMipmappedArrayDestroy", cuMipmappedArrayDestroy_params{array}, [&] { return destroy_array(as_number(array)); });
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* wanted, unsigned long long flags) {
  return outer("cuMemCreate", cuMemCreate_params{handle, bytes, wanted, flags}, [&]() -> int {
    if (bytes > kFakeMemory - memory().used) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = take_handle();
    memory().physical[*handle] = {bytes, 1, 0};
    memory().used += bytes;
    return 0;
  });
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return outer("cuMemRelease", cuMemRelease_params{handle}, [&]() -> int {
    const auto it = memory().physical.find(handle);
    if (it == memory().physical.end() || it->second.handles == 0) return CUDA_ERROR_INVALID_VALUE;
    --it->second.handles;
    end_physical(handle);
    return 0;
  });
}
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return outer("cuMemRetainAllocationHandle", cuMemRetainAllocationHandle_params{handle, address}, [&]() -> int {
    const auto it = memory().mappings.find(as_number(address));
    if (it == memory().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    *handle = it->second.second;
    ++memory().physical[*handle].handles;
    return 0;
  });
}
EXPORT CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return outer("cuMemMap", cuMemMap_params{address, bytes, offset, handle, flags}, [&]() -> int {
    const auto it = memory().physical.find(handle);
    if (it == memory().physical.end()) return CUDA_ERROR_INVALID_VALUE;
    ++it->second.mappings;
    memory().mappings[address] = {bytes, handle};
    return 0;
  });
}
EXPORT CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  return outer("cuMemUnmap", cuMemUnmap_params{address, bytes}, [&]() -> int {
    std::vector<std::uint64_t> found;
    for (std::uint64_t at = address; at < address + bytes;) {
      const auto it = memory().mappings.find(at);
      if (it == memory().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
      found.push_back(at);
      at += it->second.first;
    }
    for (const std::uint64_t at : found) {
      const std::uint64_t handle = memory().mappings.extract(at).mapped().second;
      --memory().physical[handle].mappings;
      end_physical(handle);
    }
    return 0;
  });
}

// All graphs run at the same time.
EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return outer("cuGraphLaunch", cuGraphLaunch_params{graph, stream}, [&] {
    for (const auto& [device, needed] : memory().graph_nodes) memory().graph_memory[device] = std::max(memory().graph_memory[device], needed);
    return 0;
  });
}
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* wanted) {
  return outer("cuGraphAddMemAllocNode", cuGraphAddMemAllocNode_params{node, graph, after, count, wanted}, [&] {
    add_graph_node(wanted->poolProps.location.id, wanted->bytesize);
    wanted->dptr = take_address(wanted->bytesize, nullptr);
    return 0;
  });
}
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return outer("cuDeviceGraphMemTrim", cuDeviceGraphMemTrim_params{device}, [&] {
    memory().graph_memory[device] = 0;
    return 0;
  });
}
EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  if (attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(memory().mutex);
  std::memcpy(value, &memory().graph_memory[device], sizeof(cuuint64_t));
  return CUDA_SUCCESS;
}

// The memory of a context ends with it, except memory of pools.
EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
  fake::tell_of_context(context, false);
  const std::lock_guard lock(memory().mutex);
  Memory& m = memory();
  std::vector<std::uint64_t> ended;
  for (auto& [address, block] : m.blocks) {
    if (block.context != context) continue;
    block.context_ended = true;
    if (block.pool == nullptr) ended.push_back(address);
  }
  for (const std::uint64_t address : ended) release(address, m.blocks[address].kind == Kind::host, false);
  std::erase_if(m.arrays, [&](const auto& array) { return array.second == context; });
  std::erase_if(m.registered, [&](const auto& one) { return one.second == context; });
  return CUDA_SUCCESS;
}

}  // extern "C"
