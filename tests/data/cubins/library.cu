__device__ float table[8];
__device__ __noinline__ float inner(float x, int n) { return x * table[n & 7]; }
__device__ __noinline__ float outer(float x, int n) { return inner(x, n + 1) + 1; }
