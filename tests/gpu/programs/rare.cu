// Ways to give work to a GPU that few programs use, by the argument. Prints a line of JSON:
// {"kernels": {name: launches by the host}, "runs": kernels that ran, also those that kernels launched}
#include <cooperative_groups.h>
#include <cuda.h>

#include <cstdlib>
#include <string>

#include "common.h"

namespace cg = cooperative_groups;

__global__ void plain(int* runs) { atomicAdd(runs, 1); }
__global__ void parent(int* runs) {
  atomicAdd(runs, 1);
  plain<<<1, 1>>>(runs);
  plain<<<1, 1, 0, cudaStreamTailLaunch>>>(runs);
}
__global__ void cooperative(int* runs) {
  cg::this_grid().sync();
  if (cg::this_grid().thread_rank() == 0) atomicAdd(runs, 1);
}
__global__ void launching(int* runs, cudaGraphExec_t graph) {
  atomicAdd(runs, 1);
  cudaGraphLaunch(graph, cudaStreamGraphFireAndForget);
}
__global__ void deciding(int* runs, cudaGraphConditionalHandle handle) {
  cudaGraphSetConditional(handle, atomicAdd(runs, 1) % 10 < 8);
}

int* runs;
cudaStream_t stream;
std::string kernels;

void launched(const char* kernel, int count) {
  kernels += (kernels.empty() ? "\"" : ", \"") + std::string(kernel) + "\": " + std::to_string(count);
}

void launch(cudaStream_t on = stream) {
  plain<<<1, 1, 0, on>>>(runs);
  CHECK(cudaGetLastError());
}

void from_kernels() {
  for (int i = 0; i < 10; ++i) parent<<<1, 1, 0, stream>>>(runs);
  launched("parent", 10);
}

void cooperatively() {
  void* arguments[] = {&runs};
  for (int i = 0; i < 10; ++i)
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(cooperative), 4, 32, arguments, 0, stream));
  launched("cooperative", 10);
}

void before_the_last_kernel_ends() {
  for (int i = 0; i < 50; ++i) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = config.blockDim = 1;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, plain, runs));
  }
  launched("plain", 50);
}

cudaGraph_t captured(void (*work)()) {
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  work();
  CHECK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

cudaGraphExec_t on_device;

void graphs_from_kernels() {
  CHECK(cudaGraphInstantiate(&on_device, captured([] { launch(); }), cudaGraphInstantiateFlagDeviceLaunch));
  CHECK(cudaGraphUpload(on_device, stream));
  cudaGraphExec_t outer;
  CHECK(cudaGraphInstantiate(&outer, captured([] { launching<<<1, 1, 0, stream>>>(runs, on_device); }), 0));
  for (int i = 0; i < 10; ++i) {
    CHECK(cudaGraphLaunch(outer, stream));
    CHECK(cudaStreamSynchronize(stream));
  }
  launched("launching", 10);
}

void loops_in_graphs() {
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphConditionalHandle handle;
  CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams loop{};
  loop.type = cudaGraphNodeTypeConditional;
  loop.conditional.handle = handle;
  loop.conditional.type = cudaGraphCondTypeWhile;
  loop.conditional.size = 1;
  cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
  CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &loop));
#else
  CHECK(cudaGraphAddNode(&node, graph, nullptr, 0, &loop));
#endif
  CHECK(cudaStreamBeginCaptureToGraph(stream, loop.conditional.phGraph_out[0], nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
  launch();
  deciding<<<1, 1, 0, stream>>>(runs, handle);
  CHECK(cudaStreamEndCapture(stream, nullptr));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  // Each replay adds 10: five rounds of two kernels.
  for (int i = 0; i < 5; ++i) CHECK(cudaGraphLaunch(executable, stream));
  launched("plain", 25);
  launched("deciding", 25);
}

void on_some_multiprocessors() {
  CUdevResource all, part;
  unsigned groups = 1;
  CUdevResourceDesc description;
  CUgreenCtx context;
  CUstream own;
  if (cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
      cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 8) != CUDA_SUCCESS ||
      cuDevResourceGenerateDesc(&description, &part, 1) != CUDA_SUCCESS ||
      cuGreenCtxCreate(&context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS ||
      cuGreenCtxStreamCreate(&own, context, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS)
    std::exit(1);
  for (int i = 0; i < 10; ++i) launch(own);
  if (cuStreamSynchronize(own) != CUDA_SUCCESS || cuStreamDestroy(own) != CUDA_SUCCESS ||
      cuGreenCtxDestroy(context) != CUDA_SUCCESS)
    std::exit(1);
  launch();
  launched("plain", 11);
}

int main(int, char** arguments) {
  const std::string way = arguments[1];
  CHECK(cudaMalloc(&runs, sizeof *runs));
  CHECK(cudaMemset(runs, 0, sizeof *runs));
  CHECK(cudaStreamCreate(&stream));
  if (way == "from kernels") from_kernels();
  if (way == "cooperatively") cooperatively();
  if (way == "before the last kernel ends") before_the_last_kernel_ends();
  if (way == "graphs from kernels") graphs_from_kernels();
  if (way == "loops in graphs") loops_in_graphs();
  if (way == "on some multiprocessors") on_some_multiprocessors();
  CHECK(cudaDeviceSynchronize());
  int ran = 0;
  CHECK(cudaMemcpy(&ran, runs, sizeof ran, cudaMemcpyDeviceToHost));
  std::printf("{\"kernels\": {%s}, \"runs\": %d}\n", kernels.c_str(), ran);
}
