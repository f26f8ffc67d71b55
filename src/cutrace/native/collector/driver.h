// The few questions that only the CUDA driver answers, and which streams are being captured. libcuda is used when the program loaded it, never loaded.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cupti_library.h"

namespace cutrace {

// Which streams the program is capturing into CUDA graphs.
//
// A wait for a context makes every capture of its streams invalid, whoever waits and in whatever mode: the program's next call
// on such a stream fails. So whoever waits for the GPU has to know. Captures that began during the recording are known from
// CUPTI's callbacks. For earlier ones the driver is asked, which tells of streams that wait for the default stream: see
// synchronize_contexts().
class StreamCaptures {
 public:
  // Has CUPTI tell of captures from now on. The subscriber's callback must then lead to on_callback().
  void watch(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber);
  // The program's threads, inside CUPTI's callbacks; other calls are passed over.
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept;
  // Whether a stream of this context is being captured.
  bool any_in(CUcontext context) const;
  // Around fork: the child must not inherit the lock of a thread that it lacks.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  enum class Does { begin, end, destroy };
  struct Call {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    Does does;
  };
  struct Capture {
    CUstream stream;
    CUcontext context;  // of the stream; null when the driver does not tell, which stands for any
  };
  void remove(CUstream stream, bool all);

  std::vector<Call> calls_;  // once, before CUPTI calls back
  mutable std::mutex mutex_;
  // A capture is here once for each call that CUPTI tells of: that of the runtime and that of the driver inside it. It may
  // end by one of the driver alone.
  std::vector<Capture> captures_;  // under mutex_
  bool forgotten_ = false;         // likewise: there was no memory for a capture, so any context may have one
};

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
// The device of that context, 0 when there is none.
std::uint32_t current_device();
// Makes a context current on this thread while it lives.
class PushedContext {
 public:
  explicit PushedContext(void* context);
  ~PushedContext();
  PushedContext(const PushedContext&) = delete;
  PushedContext& operator=(const PushedContext&) = delete;
};
// Waits for all work of a context, unless a stream of it is being captured; false then, as in synchronize_contexts().
bool synchronize_context(void* context, const StreamCaptures& captures);
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
