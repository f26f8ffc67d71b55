// Measures the cost of one NVTX push and pop in the program, with the tool that NVTX_INJECTION64_PATH names.
//
//   nvtx_cost BURSTS PAIRS THREADS
//
// Each thread makes BURSTS bursts of PAIRS pushes and pops. In the pauses between bursts the tool can empty its
// buffers, as in a program that does more than call NVTX. Prints JSON: the median, smallest and largest nanoseconds of
// a pair over the bursts, for a plain string, a registered string, and attributes with a payload.

#include <nvtx3/nvToolsExt.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

template <typename Push>
std::vector<double> measure(int bursts, int pairs, int threads, Push push) {
  std::vector<std::vector<double>> times(static_cast<std::size_t>(threads));
  std::vector<std::thread> all;
  for (auto& mine : times)
    all.emplace_back([&, bursts, pairs] {
      for (int b = 0; b < bursts; ++b) {
        const double start = now();
        for (int i = 0; i < pairs; ++i) {
          push();
          nvtxRangePop();
        }
        mine.push_back((now() - start) / pairs);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  for (auto& thread : all) thread.join();
  std::vector<double> joined;
  for (auto& mine : times) joined.insert(joined.end(), mine.begin(), mine.end());
  std::sort(joined.begin(), joined.end());
  return joined;
}

void print(const char* name, const std::vector<double>& times, const char* end) {
  std::printf("\"%s\": {\"median_ns\": %.1f, \"min_ns\": %.1f, \"max_ns\": %.1f}%s", name, times[times.size() / 2],
              times.front(), times.back(), end);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s BURSTS PAIRS THREADS\n", argv[0]);
    return 2;
  }
  const int bursts = std::atoi(argv[1]), pairs = std::atoi(argv[2]), threads = std::atoi(argv[3]);
  nvtxEventAttributes_t registered{};
  registered.version = NVTX_VERSION;
  registered.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  registered.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  registered.message.registered = nvtxDomainRegisterStringA(nullptr, "forward pass of a layer");
  nvtxEventAttributes_t full = registered;
  full.category = 1;
  full.colorType = NVTX_COLOR_ARGB;
  full.color = 0xFF00FF00;
  full.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  full.payload.llValue = 42;
  full.messageType = NVTX_MESSAGE_TYPE_ASCII;
  full.message.ascii = "forward pass of a layer";
  std::printf("{\"bursts\": %d, \"pairs\": %d, \"threads\": %d, ", bursts, pairs, threads);
  print("text", measure(bursts, pairs, threads, [] { nvtxRangePushA("forward pass of a layer"); }), ", ");
  print("registered", measure(bursts, pairs, threads, [&] { nvtxRangePushEx(&registered); }), ", ");
  print("attributes", measure(bursts, pairs, threads, [&] { nvtxRangePushEx(&full); }), "}\n");
  return 0;
}
