// Programs that leave, or fork, while they launch: leaving WAY
//
//   destructors  objects made before and after CUDA was initialised launch ten kernels each in their destructors
//   threads      four threads, which nobody joins, launch while the program exits
//   forks        a thread launches and waits without end while the program forks fifty children
//
// Each prints one JSON line with the kernels that must be in its capture, by name.

#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "common.h"

namespace {

constexpr int kKernels = 1000;

__global__ void tick() {}
__global__ void background() {}
__global__ void of_an_early_object() {}
__global__ void of_a_late_object() {}

void launch(int kernels) {
  for (int i = 0; i < kernels; ++i) tick<<<1, 32>>>();
  CHECK(cudaGetLastError());
}

// It is destroyed after the end of the recording, and perhaps after the end of CUDA. The test does not check for these launches.
struct Early {
  ~Early() {
    for (int i = 0; i < 10; ++i) of_an_early_object<<<1, 32>>>();
  }
} early;

struct Late {
  ~Late() {
    for (int i = 0; i < 10; ++i) of_a_late_object<<<1, 32>>>();
  }
};

// Launches until the driver refuses at the end of the process.
void launch_in_background(std::atomic<long>& batches) {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return;
  for (;;) {
    for (int i = 0; i < 20; ++i) background<<<1, 32, 0, stream>>>();
    if (cudaStreamSynchronize(stream) != cudaSuccess) return;
    ++batches;
  }
}

int exit_while_threads_launch() {
  static std::atomic<long> batches[4];
  auto* threads = new std::vector<std::thread>;  // never destroyed: a thread that was not joined would end the program
  for (auto& of : batches) threads->emplace_back([&of] { launch_in_background(of); });
  for (auto& of : batches)
    while (of < 10) std::this_thread::yield();
  std::printf("{\"tick\": %d}\n", kKernels);
  return 0;
}

int fork_while_a_thread_launches() {
  std::atomic<bool> done{false};
  long kernels = kKernels;
  std::thread thread([&] {
    for (; !done; kernels += 20) {
      launch(20);
      CHECK(cudaDeviceSynchronize());
    }
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  done = true;
  thread.join();
  std::printf("{\"tick\": %ld}\n", kernels);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* way = argc > 1 ? argv[1] : "";
  CHECK(cudaFree(nullptr));
  launch(kKernels);
  CHECK(cudaDeviceSynchronize());
  if (!std::strcmp(way, "destructors")) {
    static Late late;
    std::printf("{\"tick\": %d, \"of_a_late_object\": 10}\n", kKernels);
    return 0;
  }
  if (!std::strcmp(way, "threads")) return exit_while_threads_launch();
  if (!std::strcmp(way, "forks")) return fork_while_a_thread_launches();
  return 2;
}
