// Lines with a known number of executions. instruction_lines.py looks for the words after "// line".
//
// An assembly statement is one instruction of the GPU, and no loop is unrolled. So a marked line has one instruction.
#include <cstdio>

constexpr int kBlocks = 64, kThreads = 256, kTimes = 1000, kLaunches = 3;

// Every warp, all threads.
__global__ void known_loop(int n, float* to) {
  float x = threadIdx.x;
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    asm volatile("add.rn.f32 %0, %0, 0f3F000000;" : "+f"(x));  // line loop
  }
  to[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// Every warp, 8 of its 32 threads.
__global__ void known_divergence(int n, float* to) {
  float x = threadIdx.x;
  if (threadIdx.x % 32 < 8) {
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      asm volatile("add.rn.f32 %0, %0, 0f3F000000;" : "+f"(x));  // line divergence
    }
  }
  to[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// A separate function, which two warps of each block call.
__device__ __noinline__ float helper(float x, int n) {
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    asm volatile("add.rn.f32 %0, %0, 0f3F000000;" : "+f"(x));  // line function
  }
  return x;
}
__global__ void known_function(int n, float* to) {
  float x = threadIdx.x;
  if (threadIdx.x < 64) x = helper(x, n);
  to[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

int main() {
  float* to = nullptr;
  if (cudaMalloc(&to, sizeof(float) * kBlocks * kThreads) != cudaSuccess) return 1;
  float host[kBlocks * kThreads];
  double sum = 0;
  for (int launch = 0; launch < kLaunches; ++launch)
    for (const auto kernel : {known_loop, known_divergence, known_function}) {
      kernel<<<kBlocks, kThreads>>>(kTimes, to);
      if (cudaMemcpy(host, to, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) return 2;
      for (const float x : host) sum += x;
    }
  std::printf("result %.6f\n", sum);
}
