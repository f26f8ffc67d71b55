// Calls of the CUDA driver. libcuda is used only if the program has loaded it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cutrace {

struct DeviceInfo {
  std::uint32_t device = 0;
  std::string pci;  // domain:bus:device.function
  std::uint32_t memory_clock = 0;                 // kHz
  std::uint32_t max_threads_per_multiprocessor = 0;
  std::uint32_t shared_per_block_optin = 0;       // bytes
  std::uint32_t shared_reserved_per_block = 0;    // bytes
};

bool driver_is_loaded();
// The mangled name of a kernel, by either handle or by a node of a graph. Null when the driver does not report it, for nodes of
// other types, and before the first call of driver_is_loaded().
const char* kernel_name_of(CUfunction function, CUkernel kernel);
const char* kernel_name_of(CUgraphNode node);
// The context of a stream, or the current context for a default stream. Null when unknown, and before the first call of
// driver_is_loaded().
CUcontext stream_context(CUstream stream);
// Whether the program is capturing a stream.
bool is_captured(CUstream stream);
// The current context of the calling thread, null when there is none.
void* current_context();
// The UUID of a device as 32 hexadecimal digits; empty when the driver does not report it.
std::string device_uuid(std::uint32_t device);
// The existing contexts that can be found: primary contexts, and the current context of the calling thread.
std::vector<CUcontext> known_contexts();
// The device of the current context, 0 when there is none.
std::uint32_t current_device();
// The driver's knowledge of memory. These functions load nothing, so callbacks may call them once driver_is_loaded() was true.
struct PointerInfo {
  CUmemoryPool pool = nullptr;  // null outside pools
  std::uint64_t mapping = 0;    // the start of the mapping with this address, 0 when unknown
  std::uint64_t bytes = 0;      // of the allocation
  std::uint16_t device = 0;
  bool on_host = false;
  bool managed = false;
};
// False when the driver does not know the address.
bool pointer_info(CUdeviceptr pointer, PointerInfo& info);
bool is_default_pool(CUmemoryPool pool, std::uint32_t device);
// The reserved bytes of a pool and its bytes in use; 0 when the driver does not report them. The pool must exist.
struct PoolInfo {
  std::uint64_t reserved = 0;
  std::uint64_t used = 0;
  std::uint64_t release_threshold = 0;
};
std::uint64_t pool_used(CUmemoryPool pool);
std::uint64_t pool_reserved(CUmemoryPool pool);
// False when the driver does not report it.
bool pool_info(CUmemoryPool pool, PoolInfo& info);
// The bytes that the driver keeps on a device for allocation nodes of graphs. False when it does not report them.
bool graph_memory(std::uint32_t device, std::uint64_t& bytes);
// Makes a context current on this thread while it lives.
class PushedContext {
 public:
  explicit PushedContext(void* context);
  ~PushedContext();
  PushedContext(const PushedContext&) = delete;
  PushedContext& operator=(const PushedContext&) = delete;

 private:
  bool pushed_;
};
// Waits for all work of a context. Skips it as synchronize_contexts() does, and then returns false.
bool synchronize_context(void* context, const std::function<bool(CUcontext)>& may_wait);
// Waits for all work of the devices' primary contexts and of `context`. Skips contexts that `may_wait` excludes and contexts with
// a captured stream, and then returns false. A wait, by any thread and in any mode, would invalidate the capture. The driver
// knows only captures of blocking streams (streams that wait for the default stream). Call this function from a thread that may
// block.
bool synchronize_contexts(void* context, const std::function<bool(CUcontext)>& may_wait);
// Empty until the program has initialised CUDA.
std::vector<DeviceInfo> device_info();
// CUDA versions (13000), 0 when unknown.
std::uint32_t driver_version();
std::uint32_t runtime_version();

}  // namespace cutrace
