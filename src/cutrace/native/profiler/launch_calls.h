// The driver's calls that launch one kernel, as CUPTI's callbacks report them, and functions to repeat them.
#pragma once

#include "../cuda/cupti_library.h"

#include <cuda.h>
#include <cupti_driver_cbid.h>

#include <functional>

namespace cutrace {

struct Launch {
  CUstream stream = nullptr;
  unsigned grid[3]{}, block[3]{}, cluster[3]{};  // a cluster of 0: no clusters
  unsigned shared_bytes = 0;                     // dynamic shared memory
  CUfunction function = nullptr;                 // or a CUkernel
  bool cooperative = false;
};

struct LaunchCall {
  CUpti_CallbackId id;
  Launch (*read)(const void* arguments);
  // Makes the call with the same arguments.
  CUresult (*again)(const void* arguments);
};

inline constexpr std::size_t kLaunchCalls = 6;
extern const LaunchCall launch_calls[kLaunchCalls];

// The repetition of a counted launch. Valid until its callback returns.
struct Replay {
  std::function<bool()> start;  // false when other work may run, because restored memory would undo that work
  std::function<CUresult()> again;
};

// While an object exists, CUPTI's callbacks on this thread are about calls of the profiler.
class OwnCalls {
 public:
  OwnCalls() { ++depth_; }
  ~OwnCalls() { --depth_; }
  OwnCalls(const OwnCalls&) = delete;
  OwnCalls& operator=(const OwnCalls&) = delete;
  static bool active() { return depth_ != 0; }

 private:
  static thread_local int depth_;
};

}  // namespace cutrace
