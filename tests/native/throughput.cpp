// Measures the writer's speed: THREADS threads fill the fake CUPTI's buffers; prints records a second as JSON.
//   throughput LAUNCHES THREADS
// A launch is two records. The producers run at full speed. Records that the writer is too slow for are dropped and reported.
#include <sys/resource.h>

#include <ctime>
#include <thread>

#include "collector_under_test.h"
#include "fake_cupti.h"

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 5'000'000, threads = argc > 2 ? std::atoi(argv[2]) : 1;
  Collector collector;
  Folder folder;
  collector.begin(folder.options("kinds=kernel,api"));
  const std::uint64_t start = collector.now();
  std::vector<std::thread> producers;
  for (int t = 0; t < threads; ++t)
    producers.emplace_back([&] {
      for (int i = 0; i < launches / threads; ++i)
        fake_launch("_ZN2at6native29vectorized_elementwise_kernelILi4E", 1 + static_cast<std::uint32_t>(i % 300), 7, false);
    });
  for (auto& producer : producers) producer.join();
  const double producing = static_cast<double>(collector.now() - start) / 1e9;
  collector.stop();
  const double seconds = static_cast<double>(collector.now() - start) / 1e9;
  timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  const auto s = collector.statistics();
  const double cpu_seconds = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) / 1e9;
  const auto rows = static_cast<double>(s.rows_written);
  std::printf("{\"rows\": %.0f, \"seconds\": %.3f, \"producing_seconds\": %.3f, \"rows_per_second\": %.0f, "
              "\"discarded\": %llu, \"bytes_per_launch\": %.2f, \"cpu_seconds\": %.3f}\n",
              rows, seconds, producing, rows / seconds, static_cast<unsigned long long>(s.records_discarded),
              static_cast<double>(s.bytes_written) / (rows / 2), cpu_seconds);
}
