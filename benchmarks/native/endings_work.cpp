// The work of the programs of endings.py. Each call is counted in a file that outlives the process.
//
// ENDINGS_COUNTS is a folder. Each process creates a file <pid>-<number> there, and maps a Counts in it as shared
// memory. Kernels are launched through libcuda, or the fake driver of the tests. Ranges are pushed and popped with
// NVTX.

#include <cuda.h>
#include <nvtx3/nvToolsExt.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kSlots = 60'000;  // one entry per millisecond of a minute

struct Series {
  std::atomic<std::uint64_t> begun{0}, done{0};
  std::atomic<std::uint32_t> by_millisecond[kSlots];  // the number of calls up to the end of that millisecond
};

struct Counts {
  std::uint64_t start = 0;  // BOOTTIME, ns
  char role[48]{};
  std::atomic<std::int32_t> error{0};  // CUresult of the first call of CUDA that failed
  std::uint32_t padding = 0;
  Series launches, ranges;
};
static_assert(sizeof(Counts) == 64 + 2 * (16 + 4 * kSlots));

std::uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

std::atomic<Counts*> mapped{nullptr};
std::mutex mapping;
char next_role[48] = "main";

Counts& counts() {
  if (Counts* ours = mapped.load()) return *ours;
  const std::lock_guard lock(mapping);
  if (Counts* ours = mapped.load()) return *ours;
  int file = -1;
  for (int number = 0; file < 0 && number < 100; ++number) {
    char path[4096];
    std::snprintf(path, sizeof path, "%s/%d-%d", std::getenv("ENDINGS_COUNTS"), getpid(), number);
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  }
  void* memory = MAP_FAILED;
  if (file >= 0 && ftruncate(file, sizeof(Counts)) == 0)
    memory = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    std::perror("endings: no file for counts");
    std::_Exit(99);
  }
  close(file);
  auto* ours = static_cast<Counts*>(memory);
  ours->start = now();
  std::memcpy(ours->role, next_role, sizeof next_role);
  mapped.store(ours);
  return *ours;
}

void finished(Counts& c, Series& series) {
  const std::uint64_t done = series.done.fetch_add(1) + 1;
  const std::uint64_t slot = (now() - c.start) / 1'000'000;
  if (slot < kSlots) series.by_millisecond[slot].store(static_cast<std::uint32_t>(done));
}

struct Driver {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  template <typename Function>
  Function* find(const char* name) const {
    return library != nullptr ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
  }
  CUcontext context = nullptr;
  CUfunction kernel = nullptr;
  decltype(&cuCtxSetCurrent) set_current = find<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent");
  decltype(&cuLaunchKernel) launch = find<decltype(cuLaunchKernel)>("cuLaunchKernel");
  decltype(&cuCtxSynchronize) synchronize = find<decltype(cuCtxSynchronize)>("cuCtxSynchronize");
  // Only the fake driver has these functions.
  int (*fake_init)() = find<int()>("fake_gpu_init");
  int (*fake_wait)(const char*, std::uint32_t) = find<int(const char*, std::uint32_t)>("fake_gpu_wait");
  using FakeLaunch = int(const char*, const char*, const std::uint32_t*, const std::uint32_t*, std::uint32_t, std::uint64_t,
                         std::uint64_t, std::uint32_t);
  FakeLaunch* fake_launch = find<FakeLaunch>("fake_gpu_launch");
};

Driver* driver = nullptr;
thread_local bool current = false;

int note(int status) {
  std::int32_t none = 0;
  if (status != 0) counts().error.compare_exchange_strong(none, status);
  return status;
}

int launch_one() {
  Counts& c = counts();
  if (!current && driver->fake_launch == nullptr) {
    if (const int status = note(driver->set_current(driver->context))) return status;
    current = true;
  }
  ++c.launches.begun;
  constexpr std::uint32_t kGrid[] = {1, 1, 1}, kBlock[] = {32, 1, 1};
  const int status = driver->fake_launch != nullptr
                         ? driver->fake_launch("cuLaunchKernel", "work", kGrid, kBlock, 7, 100, 0, 0)
                         : driver->launch(driver->kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
  if (status == 0) finished(c, c.launches);
  return note(status);
}

}  // namespace

extern "C" {

// A forked child counts in a separate file.
__attribute__((constructor)) void work_forks() {
  pthread_atfork(nullptr, nullptr, [] { mapped.store(nullptr); });
}

// Each function returns 0, or the CUresult of the first call that failed.

// Sets the name under which this process and its forks count. Call it before the first counted call.
void work_role(const char* role) { std::strncpy(next_role, role, sizeof next_role - 1); }

int work_start() {
  driver = new Driver;
  if (driver->fake_init != nullptr) return note(driver->fake_init());
  constexpr const char* kPtx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry work() { ret; }\n";
  CUmodule module = nullptr;
  auto* init = driver->find<decltype(cuInit)>("cuInit");
  auto* retain = driver->find<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  auto* load = driver->find<decltype(cuModuleLoadData)>("cuModuleLoadData");
  auto* function = driver->find<decltype(cuModuleGetFunction)>("cuModuleGetFunction");
  if (!init || !retain || !load || !function || !driver->set_current || !driver->launch || !driver->synchronize)
    return note(CUDA_ERROR_NOT_FOUND);
  int status = init(0);
  if (status == 0) status = retain(&driver->context, 0);
  if (status == 0) status = driver->set_current(driver->context);
  if (status == 0) status = load(&module, kPtx);
  if (status == 0) status = function(&driver->kernel, module, "work");
  return note(status);
}

int work_launch(int count) {
  for (int i = 0; i < count; ++i)
    if (const int status = launch_one()) return status;
  return 0;
}

int work_synchronize() {
  return note(driver->fake_wait != nullptr ? driver->fake_wait("cuCtxSynchronize", 0xFFFFFFFFu) : driver->synchronize());
}

void work_ranges(int count) {
  Counts& c = counts();
  for (int i = 0; i < count; ++i) {
    ++c.ranges.begun;
    nvtxRangePushA("work");
    nvtxRangePop();
    finished(c, c.ranges);
  }
}

// Makes `count` launches and ranges in each of `threads` threads at the same time. Returns when all threads have ended.
int work_threads(int threads, int count) {
  std::atomic<int> waiting{threads}, first{0};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&] {
      for (--waiting; waiting.load() > 0;) std::this_thread::yield();
      for (int i = 0; i < count; ++i) {
        const int status = launch_one();
        int none = 0;
        if (status != 0) first.compare_exchange_strong(none, status);
        work_ranges(1);
      }
    });
  for (std::thread& thread : all) thread.join();
  return first;
}

// Starts a thread that nobody joins. It makes launches and ranges until the driver refuses or the process ends.
void work_in_background() {
  std::thread([] {
    for (;;) {
      for (int i = 0; i < 20; ++i) {
        if (launch_one() != 0) return;
        work_ranges(1);
      }
      if (work_synchronize() != 0) return;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }).detach();
}
}
