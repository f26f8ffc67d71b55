// launch_main LAUNCHES WARM_UP THREADS...: for each number of threads, time LAUNCHES launches that the threads share.
//
// Prints a JSON line for each number of threads. A last line has the moment of exit (ns of CLOCK_BOOTTIME), the number
// of all launched kernels, and the peak memory of the process (VmHWM).

#include <ctime>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "launch_loop.h"

namespace {

unsigned long long peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s LAUNCHES WARM_UP THREADS...\n", argv[0]);
    return 2;
  }
  const std::uint64_t launches = std::strtoull(argv[1], nullptr, 10);
  const std::uint64_t warm_up = std::strtoull(argv[2], nullptr, 10);
  std::uint64_t kernels = 0;
  for (int i = 3; i < argc; ++i) {
    const int threads = std::atoi(argv[i]);
    const std::uint64_t each = launches / threads;
    LaunchLoopTimes times{};
    if (const int status = launch_loop(threads, warm_up / threads, each, &times)) {
      std::fprintf(stderr, "launch_loop with %d threads: CUDA error %d\n", threads, status);
      return 1;
    }
    const auto operations = static_cast<double>(each * threads);
    kernels += times.kernels;
    std::printf("{\"workload\": \"launches_%d\", \"operations\": %.0f, \"ns_per_op\": %.2f, \"submit_ns_per_op\": %.2f}\n",
                threads, operations, times.total_ns / operations, times.submit_ns / operations);
  }
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  std::printf("{\"exit_boottime_ns\": %lld, \"kernels\": %llu, \"peak_memory\": %llu}\n",
              now.tv_sec * 1000000000LL + now.tv_nsec, static_cast<unsigned long long>(kernels), peak_memory());
  std::fflush(stdout);
  return 0;
}
