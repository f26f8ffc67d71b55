// Work for the fake GPU. Each function is an API call, recorded with the name `call` (the version suffix is optional), and
// returns a CUresult. The first call initialises CUDA, like the CUDA runtime. Times are nanoseconds, sizes bytes.
#pragma once

#include <cstdint>

inline constexpr std::uint32_t kFakeAllStreams = 0xFFFFFFFFu;
inline constexpr std::uint32_t kFakeNoEnd = 1;     // the kernel's record has no end
inline constexpr std::uint32_t kFakeDetached = 2;  // no synchronising call waits for the kernel
inline constexpr std::uint32_t kFakeFails = 4;     // the launch fails: nothing runs

extern "C" {
// The GPUs. Call these functions first.
void fake_gpu_describe(const char* name, int major, int minor, int devices);
int fake_gpu_init();
unsigned fake_gpu_context_waits();  // calls of cuCtxSynchronize()
// Sets the context of a stream, and whether the program captures it. The stream is a blocking one: it waits for the default
// stream.
void fake_gpu_stream(void* stream, void* context, bool capturing);

int fake_gpu_call(const char* call, std::uint64_t duration);
// Calls cudaProfilerStart or cudaProfilerStop, which call the driver, or cuProfilerStart or cuProfilerStop.
int fake_gpu_profiler(const char* call);
// `grid` and `block` have three numbers. The kernel starts with a delay of `delay`.
int fake_gpu_launch(const char* call, const char* name, const std::uint32_t* grid, const std::uint32_t* block,
                    std::uint32_t stream, std::uint64_t duration, std::uint64_t delay, std::uint32_t flags);
// The executable graph `graph`: kernels that run one after the other, each for `duration`.
int fake_gpu_graph(const char* call, const char* const* names, std::uint32_t count, std::uint32_t graph,
                   std::uint32_t stream, std::uint64_t duration);
// Start and end the capture of kernels and fills of a stream into a graph. The graph and its executable graph have CUPTI's
// numbers, 0 while the process has not loaded CUPTI. A replay of 0 does nothing.
int fake_gpu_begin_capture(std::uint32_t stream);
int fake_gpu_end_capture(std::uint32_t stream, std::uint32_t* graph);
int fake_gpu_instantiate(std::uint32_t graph, std::uint32_t* exec);
int fake_gpu_replay(std::uint32_t exec, std::uint32_t stream, std::uint64_t duration);
// `kind` is a CUpti_ActivityMemcpyKind. A call that is not named Async waits for the copy.
int fake_gpu_copy(const char* call, std::uint32_t kind, std::uint32_t pinned, std::uint64_t bytes, std::uint32_t stream,
                  std::uint64_t duration);
int fake_gpu_fill(const char* call, std::uint64_t bytes, std::uint32_t value, std::uint32_t stream,
                  std::uint64_t duration);
int fake_gpu_wait(const char* call, std::uint32_t stream);
// `*address` is the argument of release. Calls named Async use the device's memory pool.
int fake_gpu_allocate(const char* call, std::uint64_t bytes, std::uint64_t* address);
int fake_gpu_release(const char* call, std::uint64_t address);
}
