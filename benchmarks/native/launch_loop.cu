#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
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
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work, i);
  ready.arrive_and_wait();
  const auto begin = Clock::now();
  for (auto& worker : workers) worker.join();
  times->total_ns = since(begin, *std::max_element(finished.begin(), finished.end()));
  times->submit_ns = since(begin, *std::max_element(submitted.begin(), submitted.end()));
  return failure.status;
}
