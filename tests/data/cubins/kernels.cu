__device__ float table[8];
__device__ __noinline__ float stacked(float x, int n) {
  float values[8];
  for (int i = 0; i < 8; ++i) values[i] = x * table[i];
  return values[n & 7];
}
extern "C" __global__ void scale(float* y, float factor) {
  __shared__ float block[32];
  block[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = factor * block[31 - threadIdx.x];
}
extern "C" __global__ void calls(float* y, int n) { y[0] = stacked(y[1], n); }
