#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>

namespace {

__global__ void empty_kernel() {}

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double, std::nano>(Clock::now() - begin).count(); }

cudaStream_t stream = nullptr;

cudaError_t launch(std::uint64_t count) {
  cudaError_t status = cudaSuccess;
  for (std::uint64_t i = 0; i < count; ++i) {
    const cudaError_t launched = cudaLaunchKernel(reinterpret_cast<const void*>(empty_kernel), 1, 32, nullptr, 0, stream);
    if (status == cudaSuccess) status = launched;
  }
  return status;
}

}  // namespace

extern "C" {

// Each function stores the nanoseconds per call in `*each`. It returns 0, or the cudaError_t of the first call that
// failed.

// The time from the first launch until the GPU has run the last kernel. The first call creates the stream.
int launch_loop(std::uint64_t count, double* each) {
  if (stream == nullptr)
    if (const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) return status;
  const auto begin = Clock::now();
  cudaError_t status = launch(count);
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  *each = since(begin) / static_cast<double>(count);
  return status;
}

// The time of the launching thread alone. Batches fit into the GPU's queue, and the waits between them are not counted.
int launch_batches(std::uint64_t count, double* each) {
  constexpr std::uint64_t kBatch = 256;
  double total = 0;
  for (std::uint64_t done = 0; done < count; done += kBatch) {
    const auto begin = Clock::now();
    const cudaError_t launched = launch(kBatch);
    total += since(begin);
    if (launched != cudaSuccess) return launched;
    if (const cudaError_t status = cudaStreamSynchronize(stream)) return status;
  }
  *each = total / static_cast<double>((count + kBatch - 1) / kBatch * kBatch);
  return 0;
}

// Calls that no recording keeps. Half of them are cudaGetDevice, half cudaStreamQuery of an idle stream.
int queries(std::uint64_t count, double* each) {
  cudaError_t status = cudaSuccess;
  int device = 0;
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; i < count / 2; ++i) {
    if (const cudaError_t asked = cudaGetDevice(&device)) status = asked;
    if (const cudaError_t asked = cudaStreamQuery(stream)) status = asked;
  }
  *each = since(begin) / static_cast<double>(count);
  return status;
}
}
