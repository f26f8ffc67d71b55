// Variables of each kind, for the static memory of modules.
__device__ int array[250];
static __device__ int hidden[10];
__device__ unsigned char small;
__managed__ int managed[100];
__constant__ float constants[16];

__global__ void use(int* out) {
  __shared__ int shared[32];
  shared[threadIdx.x % 32] = array[threadIdx.x % 250] + hidden[threadIdx.x % 10] + small + managed[threadIdx.x % 100];
  out[threadIdx.x] = shared[0] + static_cast<int>(constants[threadIdx.x % 16]);
}
