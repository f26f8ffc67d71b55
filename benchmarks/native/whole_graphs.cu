// Does the steps of its arguments in order, then prints {"whole": n, "nodes": n} and ends: what CUPTI recorded of kLaunches
// launches of a graph of kNodes kernels. Steps: make (and instantiate the graph), launch (it once), whole and kernels (enable
// tracing of whole graphs, of kernels), off (disable both), measure (the launches that count).
#include <cupti.h>

#include <cstdint>
#include <string>

#include "../../tests/data/make/programs/common.h"

namespace {

constexpr int kLaunches = 100, kNodes = 3;
int whole = 0, nodes = 0;

__global__ void add(float* x) { x[threadIdx.x] += 1; }

void cupti(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  std::fprintf(stderr, "%s: CUPTI error %d\n", what, result);
  std::exit(1);
}

void request(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
  *size = 1 << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most = 0;
}

void complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    whole += record->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
    nodes += record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  }
  std::free(buffer);
}

cudaGraphExec_t make(float* memory, cudaStream_t stream) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  for (int i = 0; i < kNodes; ++i) add<<<1, 32, 0, stream>>>(memory);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

void launch(cudaGraphExec_t graph, cudaStream_t stream, int times) {
  for (int i = 0; i < times; ++i) CHECK(cudaGraphLaunch(graph, stream));
  CHECK(cudaStreamSynchronize(stream));
}

}  // namespace

int main(int count, char** steps) {
  CUpti_SubscriberHandle subscriber;
  cupti(cuptiSubscribe(&subscriber, nullptr, nullptr), "cuptiSubscribe");
  cupti(cuptiActivityRegisterCallbacks(request, complete), "cuptiActivityRegisterCallbacks");
  float* memory;
  cudaStream_t stream;
  CHECK(cudaMalloc(&memory, 4096));
  CHECK(cudaStreamCreate(&stream));
  add<<<1, 32, 0, stream>>>(memory);
  CHECK(cudaStreamSynchronize(stream));
  cudaGraphExec_t graph = nullptr;
  for (int i = 1; i < count; ++i) {
    const std::string step = steps[i];
    if (step == "make") graph = make(memory, stream);
    if (step == "launch") launch(graph, stream, 1);
    if (step == "whole") cupti(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE), "enable");
    if (step == "kernels") cupti(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "enable");
    if (step == "off") {
      cuptiActivityDisable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
      cupti(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "disable");
    }
    if (step == "measure") {
      cupti(cuptiActivityFlushAll(0), "flush");
      whole = nodes = 0;
      launch(graph, stream, kLaunches);
    }
  }
  cupti(cuptiActivityFlushAll(0), "flush");
  std::printf("{\"whole\": %d, \"nodes\": %d}\n", whole, nodes);
}
