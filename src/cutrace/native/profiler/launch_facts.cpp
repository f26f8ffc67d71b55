#include "launch_facts.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string_view>
#include <utility>

#include "../cuda/driver.h"
#include "driver_calls.h"
#include "session.h"

namespace cutrace {
namespace {

constexpr std::pair<std::string_view, CUfunction_attribute> kOfFunction[] = {
    {"registers", CU_FUNC_ATTRIBUTE_NUM_REGS},
    {"static_shared", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
    {"local_per_thread", CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES}};

constexpr std::pair<std::string_view, CUdevice_attribute> kOfDevice[] = {
    {"compute_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {"compute_minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {"multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {"core_clock", CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
    {"memory_clock", CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
    {"l2_cache", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {"warp_size", CU_DEVICE_ATTRIBUTE_WARP_SIZE},
    {"max_threads_per_block", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {"max_threads_per_multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {"max_blocks_per_multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
    {"registers_per_multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
    {"registers_per_block", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
    {"shared_per_multiprocessor", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
    {"shared_per_block", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
    {"shared_per_block_optin", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    {"shared_reserved_per_block", CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK},
    {"copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT}};

class FactList {
 public:
  void add(std::string_view column, std::string_view value) { line_.append("\t").append(column).append("=").append(value); }
  void add(std::string_view column, std::uint64_t value) { add(column, std::to_string(value)); }
  std::string take() { return std::move(line_); }

 private:
  std::string line_;
};

// Programs launch with either handle: newer runtimes use kernels of libraries, which belong to no context.
bool attribute_of(CUfunction function, CUfunction_attribute attribute, int& value) {
  using OfFunction = CUresult(int*, CUfunction_attribute, CUfunction);
  using OfKernel = CUresult(int*, CUfunction_attribute, CUkernel, CUdevice);
  if (call_driver<OfFunction>("cuFuncGetAttribute", &value, attribute, function) == CUDA_SUCCESS) return true;
  const auto kernel = reinterpret_cast<CUkernel>(function);
  return call_driver<OfKernel>("cuKernelGetAttribute", &value, attribute, kernel, static_cast<CUdevice>(current_device())) == CUDA_SUCCESS;
}

}  // namespace

std::string launch_facts(const Launch& launch, std::uint64_t started) {
  FactList facts;
  facts.add("start", started);
  facts.add("thread", static_cast<std::uint64_t>(::syscall(SYS_gettid)));
  facts.add("device", current_device());
  std::uint32_t stream = 0;
  if (session.cupti.GetStreamIdEx != nullptr &&
      session.cupti.GetStreamIdEx(static_cast<CUcontext>(current_context()), launch.stream, 0, &stream) == CUPTI_SUCCESS)
    facts.add("stream", stream);
  facts.add("dynamic_shared", launch.shared_bytes);
  constexpr std::string_view kCluster[] = {"cluster_x", "cluster_y", "cluster_z"};
  for (std::size_t axis = 0; axis < 3; ++axis) facts.add(kCluster[axis], launch.cluster[axis]);
  facts.add("launch_type", launch.cooperative ? 1 : 0);
  for (const auto& [column, attribute] : kOfFunction)
    if (int value = 0; attribute_of(launch.function, attribute, value)) facts.add(column, static_cast<std::uint64_t>(value));
  return facts.take();
}

std::string device_facts(std::uint32_t device) {
  using Attribute = CUresult(int*, CUdevice_attribute, CUdevice);
  using Name = CUresult(char*, int, CUdevice);
  using Memory = CUresult(std::size_t*, CUdevice);
  const auto id = static_cast<CUdevice>(device);
  FactList facts;
  facts.add("device", device);
  std::array<char, 256> name{};
  if (call_driver<Name>("cuDeviceGetName", name.data(), static_cast<int>(name.size()), id) == CUDA_SUCCESS) facts.add("name", name.data());
  for (const DeviceInfo& info : device_info())
    if (info.device == device) facts.add("pci", info.pci);
  facts.add("uuid", device_uuid(device));
  std::size_t memory = 0;
  if (call_driver<Memory>("cuDeviceTotalMem_v2", &memory, id) == CUDA_SUCCESS) facts.add("memory", memory);
  int width = 0;
  if (call_driver<Attribute>("cuDeviceGetAttribute", &width, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, id) == CUDA_SUCCESS)
    facts.add("memory_bus_width", static_cast<std::uint64_t>(width));
  for (const auto& [column, attribute] : kOfDevice)
    if (int value = 0; call_driver<Attribute>("cuDeviceGetAttribute", &value, attribute, id) == CUDA_SUCCESS)
      facts.add(column, static_cast<std::uint64_t>(value));
  return facts.take();
}

}  // namespace cutrace
