// Calls of the CUDA driver, and the streams that the program is capturing. libcuda is used only if the program has loaded it.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "callbacks.h"
#include "cupti_library.h"

namespace cutrace {

// Which streams the program is capturing into CUDA graphs.
//
// A wait for a context, by any thread and in any mode, invalidates every capture of its streams: the program's next call on
// such a stream fails. So cutrace must not wait then. Captures that began during the recording are known from CUPTI's
// callbacks; for earlier ones see synchronize_contexts().
class StreamCaptures final : public CallbackHandler {
 public:
  void watch(const CuptiLibrary& cupti, Callbacks& callbacks);
  void on_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) noexcept override;
  // Whether a stream of this context is being captured.
  bool any_in(CUcontext context) const;
  // When streams were captured: begins and ends, earliest first, with 0 for the end of a running capture. Two early times are
  // one when there were many.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> times() const;
  // Around fork: the child must not inherit a lock that another thread holds.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  enum class Effect { begin, end, destroy };
  struct WatchedCall {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    Effect effect;
  };
  struct CapturedStream {
    CUstream stream;
    CUcontext context;  // of the stream; null when unknown, which means any context
  };
  void remove(CUstream stream, bool all);
  void note_times();

  std::vector<WatchedCall> calls_;  // filled once, before CUPTI calls back
  mutable std::mutex mutex_;
  // A capture is here once for each call that CUPTI reports: that of the runtime, and that of the driver inside it. A call of
  // the driver alone may end it.
  std::vector<CapturedStream> captures_;  // under mutex_
  bool incomplete_ = false;  // under mutex_: a capture is missing for lack of memory, so any context may have one
  std::array<std::pair<std::uint64_t, std::uint64_t>, 64> times_{};  // under mutex_
  std::size_t times_used_ = 0;                                       // under mutex_
};

struct DeviceInfo {
  std::uint32_t device = 0;
  std::string pci;  // domain:bus:device.function
  std::uint32_t memory_clock = 0;                 // kHz
  std::uint32_t max_threads_per_multiprocessor = 0;
  std::uint32_t shared_per_block_optin = 0;       // bytes
  std::uint32_t shared_reserved_per_block = 0;    // bytes
};

bool driver_is_loaded();
// The mangled name of a kernel, by either handle, and of the kernel of a graph's node. Null when the driver does not tell it:
// also for nodes that are no kernels, and before driver_is_loaded() was called.
const char* kernel_name_of(CUfunction function, CUkernel kernel);
const char* kernel_name_of(CUgraphNode node);
// Whether the program is capturing a stream.
bool is_captured(CUstream stream);
// The current context of the calling thread, null when there is none.
void* current_context();
// The UUID of a device as 32 hexadecimal digits; empty when the driver does not tell.
std::string device_uuid(std::uint32_t device);
// The contexts that are there, as far as they can be known: primary ones, and the current one of the calling thread.
std::vector<CUcontext> known_contexts();
// The device of that context, 0 when there is none.
std::uint32_t current_device();
// What the driver knows of memory. These functions load nothing, so callbacks may call them once driver_is_loaded() was true.
struct PointerInfo {
  CUmemoryPool pool = nullptr;  // null outside pools
  std::uint64_t bytes = 0;      // of the allocation
  std::uint16_t device = 0;
  bool on_host = false;
  bool managed = false;
};
// False when the driver does not know the address.
bool pointer_info(CUdeviceptr pointer, PointerInfo& info);
bool is_default_pool(CUmemoryPool pool, std::uint32_t device);
// The bytes in use of a pool, which must not be destroyed.
std::uint64_t pool_used(CUmemoryPool pool);
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
// Waits for all work of the devices' primary contexts and of `context`. Skips contexts with a captured stream and then
// returns false. Call it from a thread that may block. For captures that `captures` does not know, it asks the driver, which
// knows only blocking streams (streams that wait for the default stream).
bool synchronize_contexts(void* context, const StreamCaptures& captures);
// Empty until the program has initialised CUDA.
std::vector<DeviceInfo> device_info();
// CUDA versions (13000), 0 when unknown.
std::uint32_t driver_version();
std::uint32_t runtime_version();

}  // namespace cutrace
