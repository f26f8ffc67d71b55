// The few questions that only the CUDA driver answers. libcuda is used when the program loaded it, never loaded.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cutrace {

class StreamCaptures;

struct DeviceFacts {
  std::uint32_t device = 0;
  std::string pci;  // domain:bus:device.function
  std::uint32_t memory_clock = 0;                 // kHz
  std::uint32_t max_threads_per_multiprocessor = 0;
  std::uint32_t shared_per_block_optin = 0;       // bytes
  std::uint32_t shared_reserved_per_block = 0;    // bytes
};

bool driver_is_loaded();
// The current context of the calling thread, null when there is none.
void* current_context();
// The context of a stream, for a default stream the current one; null when the driver does not tell, or no other function of
// these has found it yet: this one may be called inside a callback, where looking for a library could wait.
CUcontext stream_context(CUstream stream);
// Waits for all work of the devices' primary contexts and of `context`, but for contexts with a stream that is being
// captured; false when there was one. Calls that wait: a thread of its own. The driver tells of captures that `captures` does
// not know, of streams that wait for the default stream (blocking streams); of others it tells nothing.
bool synchronize_contexts(void* context, const StreamCaptures& captures);
// Empty until the program has initialised CUDA.
std::vector<DeviceFacts> device_facts();
// As CUDA counts versions (13000), 0 when unknown.
std::uint32_t driver_version();
std::uint32_t runtime_version();

}  // namespace cutrace
