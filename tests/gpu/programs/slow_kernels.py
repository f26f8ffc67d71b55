"""One launch each of kernels that are slow for a known reason, and of kernels that are not slow. Needs CuPy."""

from __future__ import annotations

import cupy as cp

SOURCE = r"""
#define KERNEL extern "C" __global__ void

// Memory.

KERNEL copies(const float4* from, float4* to) {
  size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  to[at] = from[at];
}

// Reads a buffer that fits into L2 again and again, past L1.
KERNEL reads_l2(const float4* from, float* to, int count, int rounds) {
  float sum = 0;
  for (int round = 0; round < rounds; ++round)
    for (int at = threadIdx.x + blockDim.x * (blockIdx.x % 61); at < count; at += blockDim.x * 8) {
      float4 value = __ldcg(from + at);
      sum += value.x + value.y + value.z + value.w;
    }
  if (sum == -1) to[threadIdx.x] = sum;
}

KERNEL shared_rows(float* to, int rounds) {
  __shared__ float4 data[2048];
  for (int at = threadIdx.x; at < 2048; at += blockDim.x) data[at] = {1, 2, 3, 4};
  float sum = 0, other = 0;
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();  // the compiler has to load again
#pragma unroll
    for (int step = 0; step < 32; ++step) {
      float4 value = data[(threadIdx.x + step * 64) & 2047];
      sum += value.x + value.y;
      other += value.z + value.w;
    }
  }
  if (sum == -other) to[threadIdx.x] = sum;
}

// Threads use every eighth word, so eight of them use different words of a bank.
KERNEL shared_columns(float* to, int rounds) {
  __shared__ float data[8192];
  for (int at = threadIdx.x; at < 8192; at += blockDim.x) data[at] = at;
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
#pragma unroll
    for (int step = 0; step < 32; ++step) sum += data[(threadIdx.x * 8 + step * 256) & 8191];
  }
  if (sum == -1) to[threadIdx.x] = sum;
}

KERNEL stores_columns(float* to, int rounds) {
  __shared__ volatile float data[8192];
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < 32; ++step) data[(threadIdx.x * 8 + step * 1024) & 8191] = round;
  }
  __syncthreads();
  if (data[threadIdx.x] == -1) to[threadIdx.x] = 1;
}

KERNEL strided_loads(const float* from, float* to) {
  size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  to[at] = from[at * 32];
}

KERNEL strided_stores(const float* from, float* to) {
  size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  to[at * 32] = from[at];
}

// Compute.

#define EIGHT(statement) { \
  statement(0) statement(1) statement(2) statement(3) statement(4) statement(5) statement(6) statement(7) }

#define MULTIPLY_ADD(n) v[n] = v[n] * a + b;
template <typename T>
__device__ void multiply_add(T* to, int rounds, T a, T b) {
  T v[8];
  for (int n = 0; n < 8; ++n) v[n] = threadIdx.x + n;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < 16; ++step) EIGHT(MULTIPLY_ADD)
  }
  T sum = 0;
  for (int n = 0; n < 8; ++n) sum += v[n];
  if (sum == -1) to[threadIdx.x] = sum;
}

KERNEL fp32_operations(float* to, int rounds, float a, float b) { multiply_add(to, rounds, a, b); }
KERNEL fp64_operations(double* to, int rounds, double a, double b) { multiply_add(to, rounds, a, b); }
KERNEL idle_gpu(float* to, int rounds, float a, float b) { multiply_add(to, rounds, a, b); }
KERNEL partial_warps(float* to, int rounds, float a, float b) { multiply_add(to, rounds, a, b); }

#define LOGIC(n) asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(v[n]) : "r"(a), "r"(b));
KERNEL logic(unsigned* to, int rounds, unsigned a, unsigned b) {
  unsigned v[8];
  for (int n = 0; n < 8; ++n) v[n] = threadIdx.x + n;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < 16; ++step) EIGHT(LOGIC)
  }
  unsigned sum = 0;
  for (int n = 0; n < 8; ++n) sum += v[n];
  if (sum == 12345) to[threadIdx.x] = sum;
}

#define SINE(n) asm volatile("sin.approx.ftz.f32 %0, %0;" : "+f"(v[n]));
KERNEL special_functions(float* to, int rounds) {
  float v[8];
  for (int n = 0; n < 8; ++n) v[n] = threadIdx.x + n;
  for (int round = 0; round < rounds; ++round) EIGHT(SINE)
  float sum = 0;
  for (int n = 0; n < 8; ++n) sum += v[n];
  if (sum == -1) to[threadIdx.x] = sum;
}

// Latency. A chain of dependent operations takes as long on a full multiprocessor as on an empty one, if few warps fit.

__device__ void chain(float* to, int rounds, float a, float b) {
  float value = threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < 16; ++step) value = value * a + b;
  }
  if (value == -1) to[threadIdx.x] = value;
}

KERNEL last_wave(float* to, int rounds, float a, float b) { chain(to, rounds, a, b); }
KERNEL whole_waves(float* to, int rounds, float a, float b) { chain(to, rounds, a, b); }
KERNEL uneven(float* to, int rounds, float a, float b) { chain(to, blockIdx.x ? 4 : rounds, a, b); }

// Follows indices; its dynamic shared memory lets few blocks fit.
KERNEL few_blocks(const int* next, int* to, int steps) {
  int at = (blockIdx.x * blockDim.x + threadIdx.x) * 7919 & 0xffffff;
  for (int step = 0; step < steps; ++step) at = next[at];
  if (at == -1) to[threadIdx.x] = at;
}

// Keeps 216 values in registers, and exchanges a value with another thread before each dependent operation.
KERNEL many_registers(const float* from, float* to, int rounds) {
  float v[216];
#pragma unroll
  for (int n = 0; n < 216; ++n) v[n] = from[n * 32 + threadIdx.x];
  float sum = threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int n = 0; n < 216; ++n) {
      sum = __shfl_xor_sync(~0u, sum, 1) * v[n] + v[(n * 7 + 3) % 216];
      v[n] = sum;
    }
  }
  if (sum == -1) to[threadIdx.x] = sum;
}

// Instructions.

// Each of eight groups of four threads has its own loop.
KERNEL diverges(float* to, int rounds, float a, float b) {
  float value = threadIdx.x;
  switch (threadIdx.x & 7) {
#define LOOP(n) case n: for (int round = 0; round < rounds + n; ++round) value = value * (a + n) + b; break;
    LOOP(0) LOOP(1) LOOP(2) LOOP(3) LOOP(4) LOOP(5) LOOP(6) LOOP(7)
  }
  if (value == -1) to[threadIdx.x] = value;
}

// An array whose index is not known is in local memory.
KERNEL local_array(const int* order, float* to, int rounds) {
  float data[64];
  for (int n = 0; n < 64; ++n) data[n] = threadIdx.x + n;
  for (int round = 0; round < rounds; ++round) {
    int at = order[round & 63] & 63;
    data[at] = data[(at + 17) & 63] + 1;
  }
  float sum = 0;
  for (int n = 0; n < 64; ++n) sum += data[n];
  if (sum == -1) to[threadIdx.x] = sum;
}

// One warp works, the others wait.
KERNEL waits_at_barriers(float* to, int rounds, float a, float b) {
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < 32) chain(to, 64, a, b);
    __syncthreads();
  }
}
"""


def main() -> None:
    module = cp.RawModule(code=SOURCE, options=("-std=c++17",))
    device = cp.cuda.Device()
    multiprocessors = device.attributes["MultiProcessorCount"]
    full = multiprocessors * 16

    def launch(name: str, grid: int, block: int, *arguments: object, shared: int = 0) -> None:
        kernel = module.get_function(name)
        if shared:
            kernel.max_dynamic_shared_size_bytes = shared
        kernel((grid,), (block,), arguments, shared_mem=shared)

    out = cp.zeros(1 << 20, cp.float32)
    big = cp.ones(1 << 27, cp.float32)  # 512 MiB
    copy = cp.empty_like(big)
    launch("copies", (1 << 25) // 256, 256, big, copy)
    cached = 1 << 20  # of 16 bytes
    launch("reads_l2", full, 512, big, out, cp.int32(cached), cp.int32(2))
    launch("shared_rows", full, 256, out, cp.int32(200))
    launch("shared_columns", full, 256, out, cp.int32(50))
    launch("stores_columns", full, 256, out, cp.int32(50))
    launch("strided_loads", (1 << 22) // 256, 256, big, copy)
    launch("strided_stores", (1 << 22) // 256, 256, copy, big)
    one = cp.float32(0.999)
    launch("fp32_operations", full, 256, out, cp.int32(500), one, one)
    launch("fp64_operations", full, 256, out, cp.int32(50), cp.float64(0.999), cp.float64(0.5))
    launch("idle_gpu", 8, 256, out, cp.int32(2000), one, one)
    launch("partial_warps", full, 40, out, cp.int32(500), one, one)
    launch("logic", full, 256, out, cp.int32(500), cp.uint32(7), cp.uint32(11))
    launch("special_functions", full, 256, out, cp.int32(1000))
    # Two blocks of four warps fit on a multiprocessor.
    half = device.attributes["MaxSharedMemoryPerBlockOptin"] // 2 - 2048
    launch("last_wave", int(2.2 * multiprocessors), 128, out, cp.int32(3000), one, one, shared=half)
    launch("whole_waves", 8 * multiprocessors, 128, out, cp.int32(3000), one, one, shared=half)
    launch("uneven", 64 * multiprocessors, 256, out, cp.int32(30000), one, one)
    following = cp.random.permutation(1 << 24).astype(cp.int32)
    launch("few_blocks", 8 * multiprocessors, 64, following, out, cp.int32(300), shared=half)
    launch("many_registers", 16 * multiprocessors, 128, big, out, cp.int32(50))
    launch("diverges", full, 256, out, cp.int32(2000), one, one)
    launch("local_array", full, 256, cp.arange(64, dtype=cp.int32), out, cp.int32(2000))
    launch("waits_at_barriers", 8 * multiprocessors, 512, out, cp.int32(50), one, one)
    half_precision = cp.ones((8192, 8192), cp.float16)
    cp.matmul(half_precision, half_precision)
    device.synchronize()
    print("sum", float(out.sum()))


if __name__ == "__main__":
    main()
