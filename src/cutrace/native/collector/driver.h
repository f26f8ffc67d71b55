// The few questions that only the CUDA driver answers. libcuda is used when the program loaded it, never loaded.
#pragma once

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
// Waits for all work of the devices' primary contexts and of `context`, but for contexts with a stream that is being
// captured; false when there was one. Calls that wait: a thread of its own.
bool synchronize_contexts(void* context, const StreamCaptures& captures);
// Empty until the program has initialised CUDA.
std::vector<DeviceFacts> device_facts();
// As CUDA counts versions (13000), 0 when unknown.
std::uint32_t driver_version();
std::uint32_t runtime_version();

}  // namespace cutrace
