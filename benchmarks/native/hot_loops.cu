// Kernels with a known hot line and a known stall reason there. pc_sampling.py looks for both in samples.
//
//     hot_loops loads|chain|barrier|small LAUNCHES
//
// Prints the time of a launch (ns), averaged over all launches up to a synchronisation, after a warm-up. Also prints
// the memory that is in use on the GPU (MiB).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <chrono>
#include <numeric>
#include <vector>

constexpr int kEntries = 1 << 24, kStride = 4'800'011;  // coprime, so the loads form one ring through 64 MiB

__global__ void loads(const int* next, int steps, int* out) {
  int at = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) * 977 % kEntries);
  for (int i = 0; i < steps; ++i)
    at = next[at];  // hot: loads long_scoreboard
  out[blockIdx.x * blockDim.x + threadIdx.x] = at;
}

__global__ void chain(float a, float b, int steps, float* out) {
  float x = static_cast<float>(threadIdx.x);
  for (int i = 0; i < steps; ++i)
    x = fmaf(x, a, b);  // hot: chain wait
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// The first warp computes, and the others wait for it.
__global__ void barrier(float a, float b, int steps, float* out) {
  __shared__ float shared;
  float x = static_cast<float>(threadIdx.x);
  for (int round = 0; round < 16; ++round) {
    if (threadIdx.x < 32)
      for (int i = 0; i < steps; ++i) x = fmaf(x, a, b);
    if (threadIdx.x == 0) shared = x;
    __syncthreads();
    x += shared;  // hot: barrier barrier, since warps that wait have issued the barrier
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

__global__ void small(float* out) { out[threadIdx.x] += 1; }

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const char* which = arguments[1];
  const int launches = std::atoi(arguments[2]);
  std::vector<int> ring(kEntries);
  for (int i = 0; i < kEntries; ++i) ring[i] = static_cast<int>((static_cast<long long>(i) + kStride) % kEntries);
  int *next = nullptr, *ends = nullptr;
  float* out = nullptr;
  cudaMalloc(&next, sizeof(int) * kEntries);
  cudaMalloc(&ends, sizeof(int) << 20);
  cudaMalloc(&out, sizeof(float) << 20);
  cudaMemcpy(next, ring.data(), sizeof(int) * kEntries, cudaMemcpyHostToDevice);
  const auto launch = [&] {
    if (!std::strcmp(which, "loads")) loads<<<264, 256>>>(next, 2000, ends);
    if (!std::strcmp(which, "chain")) chain<<<264, 128>>>(0.999f, 0.5f, 200'000, out);
    if (!std::strcmp(which, "barrier")) barrier<<<264, 512>>>(0.999f, 0.5f, 20'000, out);
    if (!std::strcmp(which, "small")) small<<<1, 32>>>(out);
  };
  for (int i = 0; i < launches / 10 + 1; ++i) launch();
  cudaDeviceSynchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < launches; ++i) launch();
  cudaDeviceSynchronize();
  const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  std::printf("%.1f %zu\n", ns / launches, (total - free) >> 20);
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
