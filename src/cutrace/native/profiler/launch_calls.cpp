#include "launch_calls.h"

#include <algorithm>
#include <array>
#include <span>

#include "driver_calls.h"

namespace cutrace {
namespace {

// The arguments of cuLaunchKernel(), as CUPTI passes them. cuLaunchCooperativeKernel() has no `extra`.
struct Arguments {
  CUfunction function;
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  void** parameters;
  void** extra;
};

// The arguments of cuLaunchKernelEx().
struct ExtendedArguments {
  const CUlaunchConfig* config;
  CUfunction function;
  void** parameters;
  void** extra;
};

Launch plain(const void* arguments) {
  const auto& a = *static_cast<const Arguments*>(arguments);
  return {.stream = a.stream, .grid = {a.grid[0], a.grid[1], a.grid[2]}, .block = {a.block[0], a.block[1], a.block[2]},
          .shared_bytes = a.shared_bytes, .function = a.function};
}

Launch cooperative(const void* arguments) {
  Launch launch = plain(arguments);
  launch.cooperative = true;
  return launch;
}

Launch extended(const void* arguments) {
  const auto& a = *static_cast<const ExtendedArguments*>(arguments);
  const CUlaunchConfig& c = *a.config;
  Launch launch{.stream = c.hStream, .grid = {c.gridDimX, c.gridDimY, c.gridDimZ}, .block = {c.blockDimX, c.blockDimY, c.blockDimZ},
                .shared_bytes = c.sharedMemBytes, .function = a.function};
  for (const CUlaunchAttribute& attribute : std::span(c.attrs, c.attrs == nullptr ? 0 : c.numAttrs)) {
    const auto& [x, y, z] = attribute.value.clusterDim;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) std::ranges::copy(std::array{x, y, z}, launch.cluster);
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) launch.cooperative = attribute.value.cooperative != 0;
  }
  return launch;
}

template <const char* const& name>
CUresult plain_again(const void* arguments) {
  using Call = CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**);
  const auto& a = *static_cast<const Arguments*>(arguments);
  return call_driver<Call>(name, a.function, a.grid[0], a.grid[1], a.grid[2], a.block[0], a.block[1], a.block[2], a.shared_bytes,
                           a.stream, a.parameters, a.extra);
}

template <const char* const& name>
CUresult cooperative_again(const void* arguments) {
  using Call = CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**);
  const auto& a = *static_cast<const Arguments*>(arguments);
  return call_driver<Call>(name, a.function, a.grid[0], a.grid[1], a.grid[2], a.block[0], a.block[1], a.block[2], a.shared_bytes,
                           a.stream, a.parameters);
}

template <const char* const& name>
CUresult extended_again(const void* arguments) {
  using Call = CUresult(const CUlaunchConfig*, CUfunction, void**, void**);
  const auto& a = *static_cast<const ExtendedArguments*>(arguments);
  return call_driver<Call>(name, a.config, a.function, a.parameters, a.extra);
}

// Calls with the suffix _ptsz use the default stream of the thread instead of the legacy default stream.
constexpr const char* kPlain = "cuLaunchKernel";
constexpr const char* kPlainOfThread = "cuLaunchKernel_ptsz";
constexpr const char* kCooperative = "cuLaunchCooperativeKernel";
constexpr const char* kCooperativeOfThread = "cuLaunchCooperativeKernel_ptsz";
constexpr const char* kExtended = "cuLaunchKernelEx";
constexpr const char* kExtendedOfThread = "cuLaunchKernelEx_ptsz";

}  // namespace

thread_local int OwnCalls::depth_ = 0;

const LaunchCall launch_calls[] = {
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, plain, plain_again<kPlain>},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz, plain, plain_again<kPlainOfThread>},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, cooperative, cooperative_again<kCooperative>},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz, cooperative, cooperative_again<kCooperativeOfThread>},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, extended, extended_again<kExtended>},
    {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz, extended, extended_again<kExtendedOfThread>},
};

}  // namespace cutrace
