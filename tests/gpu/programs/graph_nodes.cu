// CUDA graphs made in each possible way, inside NVTX ranges. Each kernel belongs to one list of ranges. Prints a line of JSON:
// {"ranges": {kernel: [name, ...]}, "threads": {kernel: id}, "replays": n}
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <thread>
#include <vector>

#include "common.h"

#define KERNEL(name) \
  __global__ void name(int* p) { *p += 1; }
KERNEL(captured)
KERNEL(nested)
KERNEL(on_a_thread)
KERNEL(outside)
KERNEL(explicitly)
KERNEL(in_child)
KERNEL(in_grandchild)
KERNEL(after_child)
KERNEL(updated)
KERNEL(before_loop)
KERNEL(in_body)
KERNEL(in_choice)

constexpr int kReplays = 3;
std::vector<std::string> open_ranges;
std::string ranges, threads;

struct Range {
  explicit Range(const char* name) {
    nvtxRangePushA(name);
    open_ranges.push_back(name);
  }
  ~Range() {
    nvtxRangePop();
    open_ranges.pop_back();
  }
};

void expect(const char* kernel) {
  std::string list;
  for (const std::string& name : open_ranges) list += (list.empty() ? "\"" : ", \"") + name + "\"";
  ranges += (ranges.empty() ? "\"" : ", \"") + std::string(kernel) + "\": [" + list + "]";
  threads += (threads.empty() ? "\"" : ", \"") + std::string(kernel) + "\": " + std::to_string(thread_id());
}

#define LAUNCH(kernel, stream)       \
  do {                               \
    expect(#kernel);                 \
    kernel<<<1, 1, 0, stream>>>(memory); \
    CHECK(cudaGetLastError());       \
  } while (0)

int* memory;
cudaStream_t stream;

void begin() { CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed)); }
cudaGraph_t end() {
  cudaGraph_t graph;
  CHECK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

void replay(cudaGraphExec_t exec) {
  const nvtxRangeId_t range = nvtxRangeStartA("replay");
  for (int i = 0; i < kReplays; ++i) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  nvtxRangeEnd(range);
}
cudaGraphExec_t instantiate(cudaGraph_t graph) {
  nvtxRangePushA("instantiate");
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  nvtxRangePop();
  return exec;
}
void run(cudaGraph_t graph) { replay(instantiate(graph)); }

void add_kernel(cudaGraph_t graph, void (*kernel)(int*), const char* name) {
  expect(name);
  void* arguments[] = {&memory};
  cudaKernelNodeParams parameters{};
  parameters.func = reinterpret_cast<void*>(kernel);
  parameters.gridDim = parameters.blockDim = dim3(1);
  parameters.kernelParams = arguments;
  cudaGraphNode_t node;
  CHECK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &parameters));
}

void stream_capture() {
  cudaStream_t side;
  cudaEvent_t event;
  CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  begin();
  {
    const Range outer("forward");
    LAUNCH(captured, stream);
    {
      const Range inner("layer");
      LAUNCH(nested, stream);
      CHECK(cudaMemsetAsync(memory + 64, 0, 64, stream));
      CHECK(cudaMemcpyAsync(memory + 128, memory + 64, 64, cudaMemcpyDeviceToDevice, stream));
    }
  }
  CHECK(cudaEventRecord(event, stream));
  CHECK(cudaStreamWaitEvent(side, event, 0));
  std::thread([&] {
    const Range range("worker");
    LAUNCH(on_a_thread, side);
  }).join();
  CHECK(cudaEventRecord(event, side));
  CHECK(cudaStreamWaitEvent(stream, event, 0));
  LAUNCH(outside, stream);
  const cudaGraph_t graph = end();
  run(graph);
  cudaGraph_t copy;
  CHECK(cudaGraphClone(&copy, graph));
  CHECK(cudaGraphDestroy(graph));
  run(copy);
}

void explicit_graphs() {
  cudaGraph_t grandchild, child, parent;
  CHECK(cudaGraphCreate(&grandchild, 0));
  CHECK(cudaGraphCreate(&child, 0));
  CHECK(cudaGraphCreate(&parent, 0));
  cudaGraphNode_t node;
  {
    const Range range("grandchild");
    add_kernel(grandchild, in_grandchild, "in_grandchild");
  }
  {
    const Range range("child");
    add_kernel(child, in_child, "in_child");
    CHECK(cudaGraphAddChildGraphNode(&node, child, nullptr, 0, grandchild));
  }
  {
    const Range range("parent");
    add_kernel(parent, explicitly, "explicitly");
    CHECK(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
  }
  add_kernel(parent, after_child, "after_child");
  run(parent);
}

void update() {
  begin();
  {
    const Range range("first capture");
    LAUNCH(updated, stream);
  }
  const cudaGraphExec_t exec = instantiate(end());
  replay(exec);
  begin();
  nvtxRangePushA("second capture");
  updated<<<1, 1, 0, stream>>>(memory + 1);
  nvtxRangePop();
  const cudaGraph_t second = end();
  cudaGraphExecUpdateResultInfo result{};
  CHECK(cudaGraphExecUpdate(exec, second, &result));
  replay(exec);
}

#if CUDART_VERSION >= 12040
__global__ void condition(cudaGraphConditionalHandle handle, int* p) {
  *p += 1;
  cudaGraphSetConditional(handle, *p % 2 ? 1 : 0);
}

cudaGraph_t add_conditional(cudaGraph_t graph, cudaGraphConditionalNodeType type, cudaGraphConditionalHandle* handle) {
  CHECK(cudaGraphConditionalHandleCreate(handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams parameters{};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = *handle;
  parameters.conditional.type = type;
  parameters.conditional.size = 1;
  cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
  CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &parameters));
#else
  CHECK(cudaGraphAddNode(&node, graph, nullptr, 0, &parameters));
#endif
  return parameters.conditional.phGraph_out[0];
}

void begin_body(cudaGraph_t body) {
  CHECK(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
}

void conditional() {
  CHECK(cudaMemset(memory, 0, 4));
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  {
    const Range range("before");
    add_kernel(graph, before_loop, "before_loop");
  }
  cudaGraphConditionalHandle loop, choice;
  const cudaGraph_t body = add_conditional(graph, cudaGraphCondTypeWhile, &loop);
  const cudaGraph_t branch = add_conditional(graph, cudaGraphCondTypeIf, &choice);
  begin_body(branch);
  {
    const Range range("branch");
    LAUNCH(in_choice, stream);
  }
  CHECK(cudaStreamEndCapture(stream, nullptr));
  begin_body(body);
  {
    const Range range("body");
    expect("condition");
    condition<<<1, 1, 0, stream>>>(loop, memory + 256);
    CHECK(cudaGetLastError());
    LAUNCH(in_body, stream);
  }
  CHECK(cudaStreamEndCapture(stream, nullptr));
  run(graph);
}
#endif

int main() {
  CHECK(cudaMalloc(&memory, 4096));
  CHECK(cudaMemset(memory, 0, 4096));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_capture();
  explicit_graphs();
  update();
#if CUDART_VERSION >= 12040
  conditional();
#endif
  std::printf("{\"ranges\": {%s}, \"threads\": {%s}, \"replays\": %d}\n", ranges.c_str(), threads.c_str(), kReplays);
  return 0;
}
