// The parameters of all versions of the calls. This file is a separate translation unit, because here cuda.h declares the old
// versions too.
#define __CUDA_API_VERSION_INTERNAL
#include "memory_calls.h"

#include <cupti_driver_cbid.h>
#include <generated_cuda_meta.h>

#include <algorithm>
#include <iterator>

namespace cutrace {
namespace {

constexpr std::uint8_t kPinned = CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
constexpr std::uint8_t kManaged = CUPTI_ACTIVITY_MEMORY_KIND_MANAGED;
constexpr std::uint8_t kArray = CUPTI_ACTIVITY_MEMORY_KIND_ARRAY;

template <typename Pointer>
std::uint64_t number(Pointer pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// ---- linear memory ----

template <typename Parameters>
bool allocated(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const Parameters*>(parameters);
  request.address = *p.dptr;
  request.bytes = p.bytesize;
  return true;
}

bool allocated_pitch(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuMemAllocPitch_v2_params*>(parameters);
  request.address = *p.dptr;
  request.bytes = *p.pPitch * p.Height;
  return true;
}

bool allocated_managed(const void* parameters, MemoryRequest& request) {
  request.memory = kManaged;
  return allocated<cuMemAllocManaged_params>(parameters, request);
}

template <typename Parameters>
bool allocated_host(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const Parameters*>(parameters);
  request.address = number(*p.pp);
  request.bytes = p.bytesize;
  request.memory = kPinned;
  return true;
}

bool freed(const void* parameters, MemoryRequest& request) {
  request.address = static_cast<const cuMemFree_v2_params*>(parameters)->dptr;
  return request.address != 0;
}

bool freed_host(const void* parameters, MemoryRequest& request) {
  request.address = number(static_cast<const cuMemFreeHost_params*>(parameters)->p);
  request.memory = kPinned;
  return request.address != 0;
}

// Memory of the program that the driver pins. It is in a separate space, because no call frees it.
template <typename Parameters>
bool registered_host(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const Parameters*>(parameters);
  request.address = number(p.p);
  request.bytes = p.bytesize;
  request.space = Space::registered;
  request.memory = kPinned;
  return true;
}

bool unregistered_host(const void* parameters, MemoryRequest& request) {
  request.address = number(static_cast<const cuMemHostUnregister_params*>(parameters)->p);
  request.space = Space::registered;
  request.memory = kPinned;
  return request.address != 0;
}

// ---- in the order of a stream ----

// `_ptsz` marks calls that use the default stream of the thread.
enum class DefaultStream { legacy, of_thread };

void set_stream(CUstream stream, DefaultStream default_stream, MemoryRequest& request) {
  request.asynchronous = true;
  request.stream = stream == nullptr && default_stream == DefaultStream::of_thread ? CU_STREAM_PER_THREAD : stream;
}

template <typename Parameters, DefaultStream kDefault>
bool allocated_async(const void* parameters, MemoryRequest& request) {
  request.in_pool = true;
  set_stream(static_cast<const Parameters*>(parameters)->hStream, kDefault, request);
  return allocated<Parameters>(parameters, request);
}

template <typename Parameters, DefaultStream kDefault>
bool allocated_from_pool(const void* parameters, MemoryRequest& request) {
  request.other = number(static_cast<const Parameters*>(parameters)->pool);
  return allocated_async<Parameters, kDefault>(parameters, request);
}

template <typename Parameters, DefaultStream kDefault>
bool freed_async(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const Parameters*>(parameters);
  request.address = p.dptr;
  set_stream(p.hStream, kDefault, request);
  return request.address != 0;
}

// ---- pools ----

bool destroyed_pool(const void* parameters, MemoryRequest& request) {
  request.address = number(static_cast<const cuMemPoolDestroy_params*>(parameters)->pool);
  return true;
}

bool trimmed_pool(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuMemPoolTrimTo_params*>(parameters);
  request.address = number(p.pool);
  request.bytes = p.minBytesToKeep;
  return true;
}

bool imported_pointer(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuMemPoolImportPointer_params*>(parameters);
  request.address = *p.ptr_out;
  request.other = number(p.pool);
  request.in_pool = true;
  return true;
}

// ---- arrays ----

// Bits of an element, 0 when unknown (formats of video). Newer formats are numbers, which older headers lack.
std::uint64_t bits_per_element(CUarray_format format, unsigned channels) {
  switch (static_cast<unsigned>(format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 8 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 16 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 32 * channels;
    // Normalised integers: unsigned from 0xc0, signed from 0xc6; 8 bits, then 16; one, two and four channels.
    case 0xc0: case 0xc6: return 8;
    case 0xc1: case 0xc3: case 0xc7: case 0xc9: return 16;
    case 0xc2: case 0xc4: case 0xc8: case 0xca: return 32;
    case 0xc5: case 0xcb: return 64;
    // Compressed blocks: BC1 and BC4, then BC2, BC3, BC5, BC6H and BC7.
    case 0x91: case 0x92: case 0x97: case 0x98: return 4;
    case 0x93: case 0x94: case 0x95: case 0x96: case 0x99: case 0x9a: case 0x9b: case 0x9c: case 0x9d: case 0x9e: return 8;
    default: return 0;
  }
}

std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned level) {
  const auto extent = [level](std::size_t size) { return std::max<std::uint64_t>(size >> level, 1); };
  const bool layered = (array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const std::uint64_t depth = layered ? std::max<std::uint64_t>(array.Depth, 1) : extent(array.Depth);
  return extent(array.Width) * extent(array.Height) * depth * bits_per_element(array.Format, array.NumChannels) / 8;
}

// Sparse arrays, and arrays that are mapped later, own no memory.
bool has_memory(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  constexpr unsigned kSparse = 0x40, kDeferredMapping = 0x80;  // CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING
  return (array.Flags & (kSparse | kDeferredMapping)) == 0;
}

template <typename Handle>
bool created(Handle handle, const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels, MemoryRequest& request) {
  request.address = number(handle);
  request.space = Space::array;
  request.memory = kArray;
  for (unsigned level = 0; level < levels; ++level) request.bytes += array_bytes(array, level);
  return has_memory(array);
}

bool created_array(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuArrayCreate_v2_params*>(parameters);
  const CUDA_ARRAY_DESCRIPTOR& flat = *p.pAllocateArray;
  CUDA_ARRAY3D_DESCRIPTOR array{};
  array.Width = flat.Width;
  array.Height = flat.Height;
  array.Format = flat.Format;
  array.NumChannels = flat.NumChannels;
  return created(*p.pHandle, array, 1, request);
}

bool created_array_3d(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuArray3DCreate_v2_params*>(parameters);
  return created(*p.pHandle, *p.pAllocateArray, 1, request);
}

bool created_mipmapped(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuMipmappedArrayCreate_params*>(parameters);
  return created(*p.pHandle, *p.pMipmappedArrayDesc, std::min(p.numMipmapLevels, 32u), request);
}

bool destroyed_array(const void* parameters, MemoryRequest& request) {
  request.address = number(static_cast<const cuArrayDestroy_params*>(parameters)->hArray);
  request.space = Space::array;
  request.memory = kArray;
  return request.address != 0;
}

// ---- virtual memory management ----

bool created_physical(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuMemCreate_params*>(parameters);
  request.address = *p.handle;
  request.bytes = p.size;
  request.space = Space::physical;
  request.memory = kPhysicalMemory;
  request.device = p.prop->location.id;
  return p.prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

template <typename Parameters>
bool retained_physical(const void* parameters, MemoryRequest& request) {
  request.address = *static_cast<const Parameters*>(parameters)->handle;
  return true;
}

bool released_physical(const void* parameters, MemoryRequest& request) {
  request.address = static_cast<const cuMemRelease_params*>(parameters)->handle;
  return true;
}

bool mapped(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuMemMap_params*>(parameters);
  request.address = p.ptr;
  request.bytes = p.size;
  request.other = p.handle;
  return true;
}

bool unmapped(const void* parameters, MemoryRequest& request) {
  const auto& p = *static_cast<const cuMemUnmap_params*>(parameters);
  request.address = p.ptr;
  request.bytes = p.size;
  return true;
}

// ---- graphs ----

bool has_device(const CUmemLocation& location, MemoryRequest& request) {
  request.device = location.id;
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

bool added_allocation(const void* parameters, MemoryRequest& request) {
  return has_device(static_cast<const cuGraphAddMemAllocNode_params*>(parameters)->nodeParams->poolProps.location, request);
}

template <typename Parameters>
bool added_node(const void* parameters, MemoryRequest& request) {
  const CUgraphNodeParams& node = *static_cast<const Parameters*>(parameters)->nodeParams;
  return node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && has_device(node.alloc.poolProps.location, request);
}

bool any(const void*, MemoryRequest&) { return true; }

#define CUTRACE_ID(call) CUPTI_DRIVER_TRACE_CBID_##call
using enum MemoryEffect;
using enum DefaultStream;

constexpr MemoryCall kCalls[] = {
    {CUTRACE_ID(cuMemAlloc_v2), allocate, allocated<cuMemAlloc_v2_params>},
    {CUTRACE_ID(cuMemAllocPitch_v2), allocate, allocated_pitch},
    {CUTRACE_ID(cuMemAllocManaged), allocate, allocated_managed},
    {CUTRACE_ID(cuMemAllocHost_v2), allocate, allocated_host<cuMemAllocHost_v2_params>},
    {CUTRACE_ID(cuMemHostAlloc), allocate, allocated_host<cuMemHostAlloc_params>},
    {CUTRACE_ID(cuMemHostRegister), allocate, registered_host<cuMemHostRegister_params>},
    {CUTRACE_ID(cuMemHostRegister_v2), allocate, registered_host<cuMemHostRegister_v2_params>},
    {CUTRACE_ID(cuMemHostUnregister), release, unregistered_host},
    {CUTRACE_ID(cuMemFree_v2), release, freed},
    {CUTRACE_ID(cuMemFreeHost), release, freed_host},
    {CUTRACE_ID(cuMemAllocAsync), allocate, allocated_async<cuMemAllocAsync_params, legacy>},
    {CUTRACE_ID(cuMemAllocAsync_ptsz), allocate, allocated_async<cuMemAllocAsync_ptsz_params, of_thread>},
    {CUTRACE_ID(cuMemAllocFromPoolAsync), allocate, allocated_from_pool<cuMemAllocFromPoolAsync_params, legacy>},
    {CUTRACE_ID(cuMemAllocFromPoolAsync_ptsz), allocate, allocated_from_pool<cuMemAllocFromPoolAsync_ptsz_params, of_thread>},
    {CUTRACE_ID(cuMemFreeAsync), release, freed_async<cuMemFreeAsync_params, legacy>},
    {CUTRACE_ID(cuMemFreeAsync_ptsz), release, freed_async<cuMemFreeAsync_ptsz_params, of_thread>},
    {CUTRACE_ID(cuMemPoolDestroy), destroy_pool, destroyed_pool},
    {CUTRACE_ID(cuMemPoolTrimTo), trim_pool, trimmed_pool},
    {CUTRACE_ID(cuCtxSynchronize), wait, any},
    {CUTRACE_ID(cuCtxSynchronize_v2), wait, any},
    {CUTRACE_ID(cuStreamSynchronize), wait, any},
    {CUTRACE_ID(cuStreamSynchronize_ptsz), wait, any},
    {CUTRACE_ID(cuEventSynchronize), wait, any},
    {CUTRACE_ID(cuMemPoolImportPointer), import_pointer, imported_pointer},
    {CUTRACE_ID(cuArrayCreate_v2), allocate, created_array},
    {CUTRACE_ID(cuArray3DCreate_v2), allocate, created_array_3d},
    {CUTRACE_ID(cuArrayDestroy), release, destroyed_array},
    {CUTRACE_ID(cuMipmappedArrayCreate), allocate, created_mipmapped},
    {CUTRACE_ID(cuMipmappedArrayDestroy), release, destroyed_array},
    {CUTRACE_ID(cuMemCreate), create_physical, created_physical},
    {CUTRACE_ID(cuMemRetainAllocationHandle), retain_physical, retained_physical<cuMemRetainAllocationHandle_params>},
    {CUTRACE_ID(cuMemImportFromShareableHandle), retain_physical, retained_physical<cuMemImportFromShareableHandle_params>},
    {CUTRACE_ID(cuMemRelease), release_physical, released_physical},
    {CUTRACE_ID(cuMemMap), map, mapped},
    {CUTRACE_ID(cuGraphAddMemAllocNode), add_graph_memory, added_allocation},
    {CUTRACE_ID(cuGraphAddNode), add_graph_memory, added_node<cuGraphAddNode_params>},
    {CUTRACE_ID(cuGraphAddNode_v2), add_graph_memory, added_node<cuGraphAddNode_v2_params>},
    {CUTRACE_ID(cuGraphLaunch), use_graph_memory, any},
    {CUTRACE_ID(cuGraphLaunch_ptsz), use_graph_memory, any},
    {CUTRACE_ID(cuGraphUpload), use_graph_memory, any},
    {CUTRACE_ID(cuGraphUpload_ptsz), use_graph_memory, any},
    {CUTRACE_ID(cuDeviceGraphMemTrim), use_graph_memory, any},
    {CUTRACE_ID(cuMemUnmap), unmap, unmapped},
};
#undef CUTRACE_ID

}  // namespace

std::span<const MemoryCall> memory_calls() { return kCalls; }

}  // namespace cutrace
