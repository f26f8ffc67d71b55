// The state of the GPU's caches and memory at the start of a counted kernel.
#pragma once

#include "../cuda/cupti_library.h"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace cutrace {

// As in the column `caches` of kernel_metrics.
enum class Caches : std::uint8_t { unknown, flushed, kept };

// Replaces the contents of the L2 cache of a context's device by reading a larger buffer. It leaves clean cache lines, so that
// none is written back later. The L1 caches need no sweep, because the GPU invalidates them when a kernel starts.
class CacheSweep {
 public:
  explicit CacheSweep(CUcontext context) : context_(context) {}
  ~CacheSweep();
  CacheSweep(const CacheSweep&) = delete;
  CacheSweep& operator=(const CacheSweep&) = delete;
  // Waits for the end of the sweep. Returns CUDA's error on failure. The first call allocates memory.
  CUresult run();

 private:
  CUresult prepare();

  const CUcontext context_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUdeviceptr buffer_ = 0;
  std::size_t bytes_ = 0;
};

// The contents of a context's memory at one time. CUPTI's library for checkpoints, which is next to libcupti, saves the contents.
//
// The library skips memory of kinds that it does not know, without an error. It certainly saves memory of cuMemAlloc(). So the
// profiler stops using the library once the program has allocated memory of other kinds.
class Checkpoint {
 public:
  explicit Checkpoint(CUcontext context) : context_(context) {}
  ~Checkpoint() { release(); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  // The reason why it cannot be used, empty if it can.
  static std::string unavailable();
  // Follows the calls that allocate memory of other kinds. The subscriber's callback must then call on_call().
  static void watch_calls();
  static void on_call(CUpti_CallbackId id);
  // On failure returns false with a message in error().
  bool save();
  bool restore();
  void release();
  const std::string& error() const { return error_; }

 private:
  const CUcontext context_;
  void* saved_ = nullptr;
  std::string error_;
};

}  // namespace cutrace
