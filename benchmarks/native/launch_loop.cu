#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "launch_loop.h"

namespace {

using Clock = std::chrono::steady_clock;

__global__ void empty_kernel() {}

struct Failure {
  std::atomic<int> status{cudaSuccess};
  void note(cudaError_t error) {
    int none = cudaSuccess;
    if (error != cudaSuccess) status.compare_exchange_strong(none, error);
  }
};

// Does what LAUNCH_LOOP_BEFORE names: `unload` loads and unloads a module, `profiler` calls cudaProfilerStart().
bool asked_for(std::string_view word) {
  const char* const asked = std::getenv("LAUNCH_LOOP_BEFORE");
  return asked != nullptr && word == asked;
}

cudaError_t load_and_unload() {
  constexpr char kPtx[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry unloaded() { ret; }\n";
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  if (const cudaError_t error = cudaLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0)) return error;
  if (const cudaError_t error = cudaLibraryGetKernel(&kernel, library, "unloaded")) return error;
  if (const cudaError_t error = cudaLaunchKernel(reinterpret_cast<void*>(kernel), dim3(1), dim3(1), nullptr, 0, nullptr))
    return error;
  cudaDeviceSynchronize();
  return cudaLibraryUnload(library);
}

double since(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::nano>(end - begin).count();
}

}  // namespace

int launch_loop(int threads, std::uint64_t warm_up, std::uint64_t launches, LaunchLoopTimes* times) {
  Failure failure;
  std::barrier ready(threads + 1);
  std::vector<Clock::time_point> submitted(threads), finished(threads);

  auto work = [&](int index) {
    cudaStream_t stream = nullptr;
    failure.note(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (std::uint64_t i = 0; i < warm_up; ++i) empty_kernel<<<1, 32, 0, stream>>>();
    failure.note(cudaStreamSynchronize(stream));
    ready.arrive_and_wait();
    for (std::uint64_t i = 0; i < launches; ++i) empty_kernel<<<1, 32, 0, stream>>>();
    submitted[index] = Clock::now();
    failure.note(cudaStreamSynchronize(stream));
    finished[index] = Clock::now();
    failure.note(cudaGetLastError());
    failure.note(cudaStreamDestroy(stream));
  };

  failure.note(cudaFree(nullptr));
  if (asked_for("unload")) failure.note(load_and_unload());
  if (asked_for("profiler")) failure.note(cudaProfilerStart());
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work, i);
  ready.arrive_and_wait();
  const auto begin = Clock::now();
  for (auto& worker : workers) worker.join();
  if (asked_for("profiler")) failure.note(cudaProfilerStop());
  times->total_ns = since(begin, *std::max_element(finished.begin(), finished.end()));
  times->submit_ns = since(begin, *std::max_element(submitted.begin(), submitted.end()));
  times->kernels = threads * (warm_up + launches) + (asked_for("unload") ? 1 : 0);
  return failure.status;
}
