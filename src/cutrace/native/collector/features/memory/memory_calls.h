// The calls of the driver that allocate or release memory, and their parameters.
//
// The driver's calls are enough, because the runtime and the libraries allocate through them. CUPTI gives a driver call inside a
// runtime call the correlation id of the runtime call.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

#include "cuda/cupti_library.h"
#include "live_memory.h"

namespace cutrace {

// The kind of physical memory in the table `allocations`. CUPTI has no kind for it.
inline constexpr std::uint8_t kPhysicalMemory = 128;

enum class MemoryEffect : std::uint8_t {
  allocate,
  release,
  create_physical,   // physical memory of virtual memory management: it lives while a handle or a mapping refers to it
  retain_physical,
  release_physical,
  map,
  unmap,
  destroy_pool,
  trim_pool,         // `bytes`: the bytes that a pool keeps
  wait,              // pools give memory back to the system
  import_pointer,    // memory of an imported pool
  add_graph_memory,  // a node of a graph that will allocate
  use_graph_memory,  // graphs get memory or give it back
};

// The effect of a call.
struct MemoryRequest {
  std::uint64_t address = 0;  // or a handle
  std::uint64_t bytes = 0;
  std::uint64_t other = 0;    // the pool, or the physical memory that is mapped
  std::int32_t device = 0;    // of physical memory, and of nodes of graphs
  CUstream stream = nullptr;
  Space space = Space::pointer;
  std::uint8_t memory = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;  // for the release of an unknown allocation
  bool in_pool = false;
  bool asynchronous = false;
};

struct MemoryCall {
  CUpti_CallbackId id;
  MemoryEffect effect;
  // Reads the parameters. Effects that allocate or map are read at the end of the call, others also at its start. False: the call
  // has no effect on memory.
  bool (*read)(const void* parameters, MemoryRequest& request);
};

// All of these calls are driver calls.
std::span<const MemoryCall> memory_calls();

}  // namespace cutrace
