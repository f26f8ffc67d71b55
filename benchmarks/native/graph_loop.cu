#include <cuda_runtime.h>

#include <cstdint>

namespace {

__global__ void node_kernel() {}

}  // namespace

extern "C" {

// Replays a CUDA graph of `nodes` empty kernels `replays` times, and waits for the GPU after every tenth replay.
// Returns 0, or the cudaError_t of the first call that failed.
int graph_loop(int nodes, std::uint64_t replays) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (status == cudaSuccess) status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; status == cudaSuccess && i < nodes; ++i) {
    node_kernel<<<1, 32, 0, stream>>>();
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) status = cudaStreamEndCapture(stream, &graph);
  if (status == cudaSuccess) status = cudaGraphInstantiate(&replay, graph, 0);
  for (std::uint64_t i = 0; status == cudaSuccess && i < replays; ++i) {
    status = cudaGraphLaunch(replay, stream);
    if (status == cudaSuccess && i % 10 == 9) status = cudaStreamSynchronize(stream);
  }
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (replay != nullptr) cudaGraphExecDestroy(replay);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (stream != nullptr) cudaStreamDestroy(stream);
  return status;
}
}
