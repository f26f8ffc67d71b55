__device__ float inner(float, int);
__device__ float outer(float, int);
extern "C" __global__ void calls_inner(float* y, int n) { y[0] = inner(y[1], n); }
extern "C" __global__ void calls_outer(float* y, int n) { y[0] = outer(y[1], n); }
