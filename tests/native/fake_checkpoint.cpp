// CUPTI's library for checkpoints: saves and restores the memory of the fake GPU.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Result { kSuccess = 0, kInvalidParameter = 1, kInvalidOperation = 7, kOutOfMemory = 8 };

struct Handle {
  std::size_t size;
  void* context;
  std::size_t reserved_device_mb, reserved_host_mb;
  std::uint8_t may_overwrite, optimizations;
  std::uint64_t* saved;
};

std::uint64_t& memory() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return *reinterpret_cast<std::uint64_t* (*)()>(dlsym(driver, "fake_gpu_memory"))();
}

}  // namespace

// FAKE_CHECKPOINT=save makes saving fail, FAKE_CHECKPOINT=restore restoring.
EXPORT int cuptiCheckpointSave(Handle* handle) {
  const char* const fails = std::getenv("FAKE_CHECKPOINT");
  if (fails != nullptr && *fails == 's') return kOutOfMemory;
  if (handle->size != sizeof(Handle) || handle->context == nullptr) return kInvalidParameter;
  if (handle->saved != nullptr) return kInvalidOperation;
  handle->saved = new std::uint64_t(memory());
  return kSuccess;
}

EXPORT int cuptiCheckpointRestore(Handle* handle) {
  const char* const fails = std::getenv("FAKE_CHECKPOINT");
  if (fails != nullptr && *fails == 'r') return kOutOfMemory;
  if (handle->saved == nullptr) return kInvalidParameter;
  memory() = *handle->saved;
  return kSuccess;
}

EXPORT int cuptiCheckpointFree(Handle* handle) {
  if (handle->saved == nullptr) return kInvalidParameter;
  delete handle->saved;
  handle->saved = nullptr;
  return kSuccess;
}
