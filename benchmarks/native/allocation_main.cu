// allocation_main PAIRS WARM_UP: time pairs of an allocation and its release, with and without stream order.
//
// Prints a JSON line for each kind of allocation, and a last one with the moment of exit (ns of CLOCK_BOOTTIME).
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBytes = 64 << 10;
constexpr std::uint64_t kSlower = 10;  // cudaFree() waits for the GPU, so fewer pairs are enough

cudaError_t in_stream_order(cudaStream_t stream) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocAsync(&memory, kBytes, stream);
  return error == cudaSuccess ? cudaFreeAsync(memory, stream) : error;
}

cudaError_t at_once(cudaStream_t) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, kBytes);
  return error == cudaSuccess ? cudaFree(memory) : error;
}

// Returns the nanoseconds of a pair. Ends the program after an error.
double time_pairs(cudaError_t (*pair)(cudaStream_t), cudaStream_t stream, std::uint64_t warm_up, std::uint64_t pairs) {
  cudaError_t error = cudaSuccess;
  for (std::uint64_t i = 0; i < warm_up && error == cudaSuccess; ++i) error = pair(stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  const auto start = Clock::now();
  for (std::uint64_t i = 0; i < pairs && error == cudaSuccess; ++i) error = pair(stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
  if (error == cudaSuccess) return taken.count() / static_cast<double>(pairs);
  std::fprintf(stderr, "allocation_main: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

void report(const char* workload, std::uint64_t pairs, double nanoseconds) {
  std::printf("{\"workload\": \"%s\", \"operations\": %llu, \"ns_per_op\": %.2f}\n", workload,
              static_cast<unsigned long long>(pairs), nanoseconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s PAIRS WARM_UP\n", argv[0]);
    return 2;
  }
  const std::uint64_t pairs = std::strtoull(argv[1], nullptr, 10);
  const std::uint64_t warm_up = std::strtoull(argv[2], nullptr, 10);
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  std::uint64_t everything = UINT64_MAX;
  // The pool keeps its memory, as in frameworks.
  if (cudaStreamCreate(&stream) != cudaSuccess || cudaDeviceGetDefaultMemPool(&pool, 0) != cudaSuccess ||
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything) != cudaSuccess) {
    std::fprintf(stderr, "allocation_main: no stream or no pool\n");
    return 1;
  }
  report("malloc_async", pairs, time_pairs(in_stream_order, stream, warm_up, pairs));
  report("malloc", pairs / kSlower, time_pairs(at_once, stream, warm_up / kSlower, pairs / kSlower));
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  std::printf("{\"exit_boottime_ns\": %lld}\n", now.tv_sec * 1000000000LL + now.tv_nsec);
  return 0;
}
