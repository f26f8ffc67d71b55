// Programs that do not end by a return from main: endings WAY [SECONDS]
//
//   return   returns from main
//   _exit    leaves through _exit: no exit handler runs
//   fork     forks after CUDA was initialised; the child exits as programs do, without using CUDA
//   forever  launches until it is killed; prints a line after the first second
//   idle     launches 1000 kernels, says so, and sleeps until it is killed
//   abort    aborts
//   tail     launches 1000 kernels and leaves without waiting for them
//
// Each prints one JSON line with the number of kernels that it launched before its end.

#include <sys/wait.h>

#include <chrono>
#include <cstring>

#include "common.h"

namespace {

constexpr int kKernels = 1000;

__global__ void tick(unsigned* counter) { atomicAdd(counter, 1u); }

unsigned* counter = nullptr;

void launch(int kernels) {
  for (int i = 0; i < kernels; ++i) tick<<<1, 32>>>(counter);
  CHECK(cudaGetLastError());
}

void say(long kernels) {
  std::printf("{\"pid\": %d, \"kernels\": %ld}\n", getpid(), kernels);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const char* way = argc > 1 ? argv[1] : "return";
  CHECK(cudaMalloc(&counter, sizeof *counter));
  launch(kKernels);
  if (!std::strcmp(way, "tail")) {
    say(kKernels);
    return 0;
  }
  CHECK(cudaDeviceSynchronize());

  if (!std::strcmp(way, "forever")) {
    const auto begin = std::chrono::steady_clock::now();
    bool said = false;
    for (long kernels = 2 * kKernels;; kernels += kKernels) {
      launch(kKernels);
      CHECK(cudaDeviceSynchronize());
      if (!said && std::chrono::steady_clock::now() - begin > std::chrono::seconds(1)) {
        say(kernels);
        said = true;
      }
    }
  }
  if (!std::strcmp(way, "idle")) {
    say(kKernels);
    for (;;) pause();
  }
  if (!std::strcmp(way, "fork")) {
    const pid_t child = fork();
    if (child == 0) std::exit(0);  // with the exit handlers that it inherited
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) return 1;
    launch(kKernels);
    CHECK(cudaDeviceSynchronize());
    say(2 * kKernels);
    return 0;
  }
  say(kKernels);
  if (!std::strcmp(way, "_exit")) _exit(0);
  if (!std::strcmp(way, "abort")) std::abort();
  return 0;
}
