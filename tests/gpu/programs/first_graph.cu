// The first work of the program is a CUDA graph without kernels, so no module is loaded before. `first_graph NODE` replays it
// three times. NODE: empty, host, fill, event, memory (an allocation and its end). With `windows`, the graph has kernels and is
// replayed once before, inside, and after a range of cudaProfilerStart(). Prints a line of JSON: {"replays": n}
#include <cuda_profiler_api.h>

#include <string>

#include "common.h"

namespace {

__global__ void add(float* x) { x[threadIdx.x] += 1; }

void add_node(cudaGraph_t graph, const std::string& node, void* memory) {
  cudaGraphNode_t added;
  if (node == "empty") CHECK(cudaGraphAddEmptyNode(&added, graph, nullptr, 0));
  if (node == "host") {
    cudaHostNodeParams host{};
    host.fn = [](void*) {};
    CHECK(cudaGraphAddHostNode(&added, graph, nullptr, 0, &host));
  }
  if (node == "fill") {
    cudaMemsetParams fill{};
    fill.dst = memory;
    fill.elementSize = 4;
    fill.width = 256;
    fill.height = 1;
    CHECK(cudaGraphAddMemsetNode(&added, graph, nullptr, 0, &fill));
  }
  if (node == "event") {
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    CHECK(cudaGraphAddEventRecordNode(&added, graph, nullptr, 0, event));
  }
  if (node == "memory") {
    cudaMemAllocNodeParams allocation{};
    allocation.poolProps.allocType = cudaMemAllocationTypePinned;
    allocation.poolProps.location.type = cudaMemLocationTypeDevice;
    allocation.bytesize = 1 << 20;
    CHECK(cudaGraphAddMemAllocNode(&added, graph, nullptr, 0, &allocation));
    cudaGraphNode_t end;
    CHECK(cudaGraphAddMemFreeNode(&end, graph, &added, 1, allocation.dptr));
  }
}

}  // namespace

int main(int, char** arguments) {
  const std::string node = arguments[1];
  void* memory;
  cudaStream_t stream;
  CHECK(cudaMalloc(&memory, 4096));
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  if (node == "windows") {
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 3; ++i) add<<<1, 32, 0, stream>>>(static_cast<float*>(memory));
    CHECK(cudaStreamEndCapture(stream, &graph));
  } else {
    CHECK(cudaGraphCreate(&graph, 0));
    add_node(graph, node, memory);
  }
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    if (i == 1) CHECK(cudaProfilerStart());
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (i == 1) CHECK(cudaProfilerStop());
  }
  std::puts("{\"replays\": 3}");
}
