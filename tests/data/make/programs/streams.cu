// A program without Python. It has two named threads with a named stream each, copies of every kind, fills, events,
// every kind of wait, pool allocations, NVTX of every kind, and launches with shared memory and clusters.
//
// The last line of its output is JSON: the exact contents of a complete capture of the program.

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common.h"

namespace {

constexpr int kElements = 1 << 20;
constexpr size_t kBytes = kElements * sizeof(float);
constexpr int kWorkers = 2;
constexpr int kSteps = 6;
constexpr int kScalesPerStep = 2;

__global__ void scale(float* data, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] *= factor;
}

// Static and dynamic shared memory, which limits the occupancy.
__global__ void block_sum(const float* data, float* sums, int n) {
  __shared__ float warps[32];
  extern __shared__ float values[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  values[threadIdx.x] = i < n ? data[i] : 0.0f;
  __syncthreads();
  float sum = values[threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += warps[w];
    sums[blockIdx.x] = total;
  }
}

template <typename T, int kTimes>
__global__ void templated(T* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int t = 0; t < kTimes; ++t)
    if (i < n) data[i] += T(1);
}

__global__ void clustered(float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += 1.0f;
}

// Uses NVTX with a domain, a category, a registered name, a colour and a payload.
struct Domain {
  nvtxDomainHandle_t handle = nvtxDomainCreateA("solver");
  nvtxStringHandle_t step = nvtxDomainRegisterStringA(handle, "step");
  Domain() { nvtxDomainNameCategoryA(handle, 7, "iterations"); }

  void push_step(uint64_t number) const {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.category = 7;
    event.colorType = NVTX_COLOR_ARGB;
    event.color = 0xff2060c0;
    event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    event.payload.ullValue = number;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = step;
    nvtxDomainRangePushEx(handle, &event);
  }
  void pop() const { nvtxDomainRangePop(handle); }
};

struct Worker {
  long tid = 0;
  int launches = 0;
};

void work(int index, const Domain& domain, Worker& result) {
  const std::string name = "worker " + std::to_string(index);
  nvtxNameOsThreadA(static_cast<uint32_t>(thread_id()), name.c_str());
  result.tid = thread_id();

  cudaStream_t stream;
  CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, index == 0 ? 0 : -1));
  nvtxNameCudaStreamA(stream, (name + " stream").c_str());
  cudaEvent_t done;
  CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));

  float *pinned, *device, *sums;
  CHECK(cudaMallocHost(&pinned, kBytes));
  CHECK(cudaMalloc(&device, kBytes));
  CHECK(cudaMallocAsync(&sums, kBytes / 256, stream));
  for (int i = 0; i < kElements; ++i) pinned[i] = 1.0f;

  for (int step = 0; step < kSteps; ++step) {
    domain.push_step(static_cast<uint64_t>(step));
    CHECK(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, stream));
    nvtxRangePushA("compute");
    for (int i = 0; i < kScalesPerStep; ++i) {
      scale<<<kElements / 256, 256, 0, stream>>>(device, 0.5f, kElements);
      ++result.launches;
    }
    block_sum<<<kElements / 256, 256, 256 * sizeof(float), stream>>>(device, sums, kElements);
    ++result.launches;
    CHECK(cudaGetLastError());
    nvtxRangePop();
    CHECK(cudaMemcpyAsync(pinned, sums, kBytes / 256, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaEventRecord(done, stream));
    if (step % 2 == 0)
      CHECK(cudaEventSynchronize(done));
    else
      CHECK(cudaStreamSynchronize(stream));
    domain.pop();
  }
  CHECK(cudaFreeAsync(sums, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaFree(device));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaEventDestroy(done));
  CHECK(cudaStreamDestroy(stream));
}

// Returns the number of launches: 1, or 0 on a GPU without clusters.
int launch_cluster(float* data) {
  int major = 0;
  CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < 9) return 0;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 2;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(64);
  config.blockDim = dim3(128);
  config.attrs = &attribute;
  config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, clustered, data, kElements));
  return 1;
}

}  // namespace

int main() {
  nvtxRangeId_t whole = nvtxRangeStartA("whole program");
  nvtxMarkA("begin");
  const Domain domain;

  std::vector<float> host(kElements, 1.0f);
  float *a, *b;
  CHECK(cudaMalloc(&a, kBytes));
  CHECK(cudaMalloc(&b, kBytes));

  nvtxRangePushA("copies");
  CHECK(cudaMemcpy(a, host.data(), kBytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(b, a, kBytes, cudaMemcpyDeviceToDevice));
  CHECK(cudaMemcpy2D(b, 1024, a, 2048, 1024, 64, cudaMemcpyDeviceToDevice));
  CHECK(cudaMemset(a, 0x2a, 4096));
  CHECK(cudaMemsetAsync(b, 0, kBytes / 2, nullptr));
  CHECK(cudaMemcpy(host.data(), b, kBytes / 4, cudaMemcpyDeviceToHost));
  nvtxRangePop();

  templated<float, 3><<<8, 128>>>(a, 1024);
  templated<int, 1><<<dim3(2, 3, 4), dim3(8, 4, 2)>>>(reinterpret_cast<int*>(b), 1024);
  const int clusters = launch_cluster(a);
  CHECK(cudaGetLastError());

  // A stream waits for the event of another stream.
  cudaStream_t first, second;
  cudaEvent_t ready;
  CHECK(cudaStreamCreate(&first));
  CHECK(cudaStreamCreate(&second));
  CHECK(cudaEventCreate(&ready));
  scale<<<kElements / 256, 256, 0, first>>>(a, 2.0f, kElements);
  CHECK(cudaEventRecord(ready, first));
  CHECK(cudaStreamWaitEvent(second, ready, 0));
  scale<<<kElements / 256, 256, 0, second>>>(b, 2.0f, kElements);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());

  Worker workers[kWorkers];
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorkers; ++i) threads.emplace_back(work, i, std::cref(domain), std::ref(workers[i]));
  for (auto& thread : threads) thread.join();

  CHECK(cudaStreamDestroy(first));
  CHECK(cudaStreamDestroy(second));
  CHECK(cudaEventDestroy(ready));
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  CHECK(cudaDeviceSynchronize());
  nvtxMarkA("end");
  nvtxRangeEnd(whole);

  std::printf(
      "{\"kernels\": {\"scale\": %d, \"block_sum\": %d, \"templated\": 2, \"clustered\": %d}, "
      "\"copied\": {\"HtoD\": [%d, %zu], \"DtoH\": [%d, %zu], \"DtoD\": [2, %zu]}, "
      "\"memsets\": [[4096, %d], [%zu, 0]], "
      "\"nvtx\": {\"whole program\": 1, \"copies\": 1, \"step\": %d, \"compute\": %d}, \"marks\": [\"begin\", \"end\"], "
      "\"main_thread\": {\"tid\": %ld, \"launches\": %d}, "
      "\"workers\": [{\"tid\": %ld, \"launches\": %d}, {\"tid\": %ld, \"launches\": %d}]}\n",
      2 + kWorkers * kSteps * kScalesPerStep, kWorkers * kSteps, clusters,            //
      1 + kWorkers * kSteps, kBytes + kWorkers * kSteps * kBytes,                     //
      1 + kWorkers * kSteps, kBytes / 4 + kWorkers * kSteps * (kBytes / 256),         //
      kBytes + 1024 * 64, 0x2a, kBytes / 2, kWorkers * kSteps, kWorkers * kSteps,     //
      thread_id(), 4 + clusters, workers[0].tid, workers[0].launches, workers[1].tid, workers[1].launches);
  return 0;
}
