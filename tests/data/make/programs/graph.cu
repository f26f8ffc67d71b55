// A CUDA graph with two branches, captured from streams and replayed. Its nodes are copies, a fill and kernels.
//
// The last line of its output is JSON: the contents of one replay, and the number of replays.

#include <nvtx3/nvToolsExt.h>

#include "common.h"

namespace {

constexpr int kElements = 1 << 18;
constexpr size_t kBytes = kElements * sizeof(float);
constexpr int kKernelsPerBranch = 4;
constexpr int kReplays = 20;

__global__ void left(float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = data[i] * 0.5f + 1.0f;
}

__global__ void right(float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = data[i] * 2.0f - 1.0f;
}

__global__ void join(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

}  // namespace

int main() {
  float *pinned, *a, *b, *out;
  CHECK(cudaMallocHost(&pinned, kBytes));
  CHECK(cudaMalloc(&a, kBytes));
  CHECK(cudaMalloc(&b, kBytes));
  CHECK(cudaMalloc(&out, kBytes));
  for (int i = 0; i < kElements; ++i) pinned[i] = 1.0f;

  cudaStream_t stream, side;
  cudaEvent_t fork, joined;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));

  nvtxRangePushA("capture");
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaMemcpyAsync(a, pinned, kBytes, cudaMemcpyHostToDevice, stream));
  CHECK(cudaEventRecord(fork, stream));
  CHECK(cudaStreamWaitEvent(side, fork, 0));
  CHECK(cudaMemsetAsync(b, 0, kBytes, side));
  for (int i = 0; i < kKernelsPerBranch; ++i) {
    left<<<kElements / 256, 256, 0, stream>>>(a, kElements);
    right<<<kElements / 256, 256, 0, side>>>(b, kElements);
  }
  CHECK(cudaEventRecord(joined, side));
  CHECK(cudaStreamWaitEvent(stream, joined, 0));
  join<<<kElements / 256, 256, 0, stream>>>(a, b, out, kElements);
  CHECK(cudaMemcpyAsync(pinned, out, kBytes, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  nvtxRangePop();

  nvtxRangePushA("replay");
  for (int i = 0; i < kReplays; ++i) CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  nvtxRangePop();

  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaDeviceSynchronize());
  std::printf(
      "{\"replays\": %d, \"kernels\": {\"left\": %d, \"right\": %d, \"join\": 1}, "
      "\"copied\": {\"HtoD\": [1, %zu], \"DtoH\": [1, %zu]}, \"memsets\": [[%zu, 0]]}\n",
      kReplays, kKernelsPerBranch, kKernelsPerBranch, kBytes, kBytes, kBytes);
  return 0;
}
