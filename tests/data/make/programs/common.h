// Helpers that the CUDA programs of the captures share: checked calls, and the kernel's id of a thread.
#pragma once

#include <cuda_runtime.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

inline void check(cudaError_t status, const char* what, int line) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s: %s\n", line, what, cudaGetErrorString(status));
  std::exit(1);
}

#define CHECK(call) check((call), #call, __LINE__)

inline long thread_id() { return syscall(SYS_gettid); }
