// Calls of the CUDA driver that the program has loaded, by name.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

namespace cutrace {

// Calls a function of libcuda. CUDA_ERROR_NOT_FOUND when the driver lacks it.
template <typename Function, typename... Arguments>
CUresult call_driver(const char* name, Arguments... arguments) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* const function = driver != nullptr ? reinterpret_cast<Function*>(dlsym(driver, name)) : nullptr;
  return function != nullptr ? function(arguments...) : CUDA_ERROR_NOT_FOUND;
}

}  // namespace cutrace
