// Launches empty kernels as fast as possible on one thread or several. This workload shows a tool's cost per launch.
//
// It is a library, so that the same native loop runs in a native program (launch_main.cpp) and inside Python under a Python
// profiler.
#pragma once

#include <cstdint>

extern "C" {

struct LaunchLoopTimes {
  double total_ns;        // from the first launch until the GPU has run the last kernel
  double submit_ns;       // from the first launch until the last call has returned
  std::uint64_t kernels;  // launched in all
};

// Each of `threads` threads creates a stream, launches `warm_up` kernels, waits for the other threads, and launches
// `launches` more kernels. Returns 0, or the cudaError_t of the first call that failed.
int launch_loop(int threads, std::uint64_t warm_up, std::uint64_t launches, LaunchLoopTimes* times);
}
