// Allocations and releases, from the callbacks of the driver's calls.
#include <cuda.h>
#include <cupti_driver_cbid.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_cupti.h"
#include "fake_driver.h"

using namespace cutrace;

// cuda.h declares them under other names.
extern "C" {
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
}

namespace {

// The values of CUPTI's functionParams.
struct AllocationParameters {
  CUdeviceptr* address;
  std::size_t bytes;
};
struct FreeParameters {
  CUdeviceptr address;
};

constexpr int kAllocated = 1, kReleased = 2;
constexpr int kAsync = 1, kSizeUnknown = 2, kWithoutCall = 4;
constexpr int kPinned = CUPTI_ACTIVITY_MEMORY_KIND_PINNED, kDevice = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
constexpr int kArray = CUPTI_ACTIVITY_MEMORY_KIND_ARRAY, kManaged = CUPTI_ACTIVITY_MEMORY_KIND_MANAGED;
constexpr int kPhysical = 128;
constexpr std::size_t kBytes = 4096;

void use_context(std::uintptr_t number) { CHECK_EQUAL(cuCtxSetCurrent(reinterpret_cast<CUcontext>(number)), CUDA_SUCCESS); }

void initialise() {
  CUcontext context = nullptr;
  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

// A recorded program.
class Program {
 public:
  explicit Program(const std::string& options = "") {
    collector.begin(folder.options("flush_ms=5;" + options));
    initialise();
  }
  CaptureReader end() {
    CHECK_EQUAL(collector.stop(), 0);
    return CaptureReader(folder.only());
  }
  std::vector<rows::Allocations> rows() { return end().rows<rows::Allocations>(); }

  Collector collector;
  Folder folder;
};

CUdeviceptr allocated(std::size_t bytes = kBytes) {
  CUdeviceptr address = 0;
  CHECK_EQUAL(cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
  return address;
}

CUdeviceptr allocated_async(CUstream stream, std::size_t bytes = kBytes) {
  CUdeviceptr address = 0;
  CHECK_EQUAL(cuMemAllocAsync(&address, bytes, stream), CUDA_SUCCESS);
  return address;
}

void freed(CUdeviceptr address) { CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS); }

CUstream stream(std::uintptr_t number) { return reinterpret_cast<CUstream>(number); }

CUmemoryPool explicit_pool(CUmemLocationType where = CU_MEM_LOCATION_TYPE_DEVICE, int device = 0) {
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = where;
  wanted.location.id = device;
  CUmemoryPool pool = nullptr;
  CHECK_EQUAL(cuMemPoolCreate(&pool, &wanted), CUDA_SUCCESS);
  return pool;
}

void check_pair(const std::vector<rows::Allocations>& rows, int memory, std::uint64_t bytes, int flags = 0) {
  CHECK_EQUAL(rows.size(), std::size_t{2});
  CHECK(rows[0].operation == kAllocated && rows[1].operation == kReleased);
  for (const rows::Allocations& row : rows) {
    CHECK_EQUAL(int{row.memory}, memory);
    CHECK_EQUAL(row.bytes, bytes);
    CHECK_EQUAL(int{row.flags}, flags);
    CHECK_EQUAL(row.address, rows[0].address);
    CHECK_EQUAL(row.context, 1);
    CHECK(row.address != 0 && row.correlation != 0);
  }
  CHECK(rows[0].time <= rows[1].time && rows[0].correlation < rows[1].correlation);
}

// CUPTI's records are off, because the same limit would drop them.
std::uint64_t lost_rows(const CaptureReader& c) {
  std::uint64_t count = 0;
  for (const rows::Losses& row : c.rows<rows::Losses>())
    if (row.reason == static_cast<std::uint16_t>(rows::Loss::memory_limit) && c.text(row.detail).starts_with("allocations"))
      count += row.count;
  return count;
}

// Bytes in use after each row, by time. Equal times: releases first.
std::int64_t last_level(std::vector<rows::Allocations> rows) {
  std::ranges::stable_sort(rows, {}, [](const rows::Allocations& row) { return std::pair(std::uint64_t{row.time}, row.operation == kAllocated); });
  std::int64_t level = 0;
  for (const rows::Allocations& row : rows) {
    level += (row.operation == kAllocated ? 1 : -1) * static_cast<std::int64_t>(row.bytes);
    CHECK(level >= 0);
  }
  return level;
}

}  // namespace

// ---- kinds of memory ----

TEST(memory_of_a_device_is_recorded) {
  Program program;
  freed(allocated());
  const CaptureReader c = program.end();
  const auto rows = c.rows<rows::Allocations>();
  check_pair(rows, kDevice, kBytes);
  CHECK(rows[0].pool == 0 && rows[0].pool_type == 0 && rows[0].stream == 0 && rows[0].device == 0);
  // The rows belong to the calls.
  const auto calls = c.rows<rows::ApiCalls>();
  for (const rows::Allocations& row : rows) {
    const auto call = std::ranges::find(calls, std::uint32_t{row.correlation}, [](const rows::ApiCalls& one) { return std::uint32_t{one.correlation}; });
    CHECK(call != calls.end());
    CHECK(call->start <= row.time && row.time <= call->end);
  }
  CHECK(c.says("\"memory\""));
}

TEST(pitched_memory_has_its_whole_size) {
  Program program;
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  CHECK_EQUAL(cuMemAllocPitch_v2(&address, &pitch, 100, 30, 4), CUDA_SUCCESS);
  freed(address);
  check_pair(program.rows(), kDevice, pitch * 30);
}

TEST(managed_memory_is_recorded) {
  Program program;
  CUdeviceptr address = 0;
  CHECK_EQUAL(cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  freed(address);
  check_pair(program.rows(), kManaged, kBytes);
}

TEST(pinned_memory_is_recorded) {
  for (const bool flagged : {false, true}) {
    Program program;
    void* address = nullptr;
    CHECK_EQUAL(flagged ? cuMemHostAlloc(&address, kBytes, 0) : cuMemAllocHost_v2(&address, kBytes), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeHost(address), CUDA_SUCCESS);
    check_pair(program.rows(), kPinned, kBytes);
  }
}

TEST(registered_memory_is_pinned) {
  Program program;
  static char memory[2 * kBytes];
  CHECK_EQUAL(cuMemHostRegister_v2(memory, sizeof memory, 0), CUDA_SUCCESS);
  CHECK(cuMemHostRegister_v2(memory, sizeof memory, 0) != CUDA_SUCCESS);
  CHECK(cuMemFreeHost(memory) != CUDA_SUCCESS);  // the wrong call
  CHECK_EQUAL(cuMemHostUnregister(memory), CUDA_SUCCESS);
  CHECK(cuMemHostUnregister(memory) != CUDA_SUCCESS);
  const auto rows = program.rows();
  check_pair(rows, kPinned, sizeof memory);
  CHECK_EQUAL(rows[0].address, reinterpret_cast<std::uintptr_t>(memory));
}

TEST(memory_that_was_registered_before_the_recording_has_no_size) {
  initialise();
  static char memory[kBytes];
  CHECK_EQUAL(cuMemHostRegister_v2(memory, sizeof memory, 0), CUDA_SUCCESS);
  Program program;
  CHECK_EQUAL(cuMemHostUnregister(memory), CUDA_SUCCESS);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{1});
  CHECK(rows[0].operation == kReleased && rows[0].memory == kPinned && rows[0].bytes == 0 && rows[0].flags == kSizeUnknown);
}

TEST(arrays_have_the_size_of_their_elements) {
  Program program;
  CUarray flat = nullptr, solid = nullptr, sparse = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  const CUDA_ARRAY_DESCRIPTOR_v2 flat_size = {100, 0, CU_AD_FORMAT_FLOAT, 2};
  CUDA_ARRAY3D_DESCRIPTOR_v2 size = {8, 4, 2, CU_AD_FORMAT_UNSIGNED_INT16, 4, 0};
  CHECK_EQUAL(cuArrayCreate_v2(&flat, &flat_size), CUDA_SUCCESS);
  CHECK_EQUAL(cuArray3DCreate_v2(&solid, &size), CUDA_SUCCESS);
  CHECK_EQUAL(cuMipmappedArrayCreate(&mipmapped, &size, 3), CUDA_SUCCESS);
  size.Flags = 0x40;  // CUDA_ARRAY3D_SPARSE: no memory
  CHECK_EQUAL(cuArray3DCreate_v2(&sparse, &size), CUDA_SUCCESS);
  for (const CUarray array : {flat, solid}) CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
  CHECK_EQUAL(cuMipmappedArrayDestroy(mipmapped), CUDA_SUCCESS);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{6});
  CHECK(rows[0].bytes == 800 && rows[0].address == reinterpret_cast<std::uintptr_t>(flat));
  CHECK_EQUAL(rows[1].bytes, std::uint64_t{8 * 4 * 2 * 8});
  CHECK_EQUAL(rows[2].bytes, std::uint64_t{(8 * 4 * 2 + 4 * 2 * 1 + 2 * 1 * 1) * 8});
  for (std::size_t i = 0; i < 3; ++i) CHECK(rows[i].memory == kArray && rows[i + 3].bytes == rows[i].bytes);
  CHECK_EQUAL(last_level(rows), 0);
}

// ---- pools ----

TEST(memory_in_the_order_of_a_stream_has_its_pool_and_stream) {
  Program program;
  const CUdeviceptr first = allocated_async(stream(13), 1000);
  const CUdeviceptr second = allocated_async(stream(14), 500);
  CHECK_EQUAL(cuMemFreeAsync(first, stream(15)), CUDA_SUCCESS);
  freed(second);  // this order is also possible
  const CaptureReader c = program.end();
  const auto rows = c.rows<rows::Allocations>();
  const auto pools = c.rows<rows::MemoryPools>();
  CHECK_EQUAL(rows.size(), std::size_t{4});
  const std::uint64_t used[] = {1000, 1500, 500, 0};
  const std::uint32_t streams[] = {13, 14, 15, 0};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i].memory == kDevice && rows[i].pool_type == CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL);
    CHECK_EQUAL(rows[i].pool, pools[0].address);
    CHECK_EQUAL(rows[i].pool, first);
    CHECK_EQUAL(rows[i].pool_used, used[i]);
    CHECK_EQUAL(std::uint32_t{rows[i].stream}, streams[i]);
    CHECK_EQUAL(int{rows[i].flags}, i == 3 ? 0 : kAsync);
  }
}

TEST(an_explicit_pool_has_its_own_device_and_kind) {
  Program program;
  CUdeviceptr there = 0, host = 0;
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&there, 100, explicit_pool(CU_MEM_LOCATION_TYPE_DEVICE, 1), nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&host, 200, explicit_pool(CU_MEM_LOCATION_TYPE_HOST), nullptr), CUDA_SUCCESS);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{2});
  CHECK(rows[0].device == 1 && rows[0].memory == kDevice && rows[0].pool_used == 100);
  CHECK(rows[1].device == 0 && rows[1].memory == kPinned && rows[1].pool_used == 200);
  CHECK(rows[0].pool == there && rows[1].pool == host);
}

TEST(a_pool_has_one_address_as_long_as_it_lives) {
  Program program;
  CUmemoryPool pool = explicit_pool();
  CUdeviceptr first = 0, second = 0;
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&first, 100, pool, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&second, 200, pool, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  // Another pool gets its handle.
  CHECK_EQUAL(explicit_pool(), pool);
  CUdeviceptr third = 0;
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&third, 300, pool, nullptr), CUDA_SUCCESS);
  const CaptureReader c = program.end();
  std::vector<std::uint64_t> seen;
  for (const rows::Allocations& row : c.rows<rows::Allocations>()) seen.push_back(row.pool);
  CHECK((seen == std::vector<std::uint64_t>{first, first, first, first, third}));
  CHECK(third != first);
  std::set<std::uint64_t> pools;
  for (const rows::MemoryPools& row : c.rows<rows::MemoryPools>()) pools.insert(row.address);
  CHECK((pools == std::set<std::uint64_t>{first, third}));
}

// A question about the use of a destroyed pool is an access to freed memory, and the fake driver then ends the program.
TEST(a_pool_that_is_destroyed_is_not_asked) {
  Program program;
  CUmemoryPool pool = explicit_pool();
  CUdeviceptr first = 0, second = 0;
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&first, 100, pool, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&second, 50, pool, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(second, nullptr), CUDA_SUCCESS);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{4});
  CHECK(rows[2].bytes == 100 && rows[2].pool_used == 50);
  CHECK(rows[3].bytes == 50 && rows[3].pool_used == 0 && rows[3].pool == rows[0].pool);
}

namespace {

constexpr int kCreated = 1, kDestroyed = 2, kTrimmed = 3;
constexpr std::uint64_t kPiece = 32 << 20;  // a pool of the fake driver has multiples of this

CUdeviceptr allocated_from(CUmemoryPool pool, std::size_t bytes) {
  CUdeviceptr address = 0;
  CHECK_EQUAL(cuMemAllocFromPoolAsync(&address, bytes, pool, nullptr), CUDA_SUCCESS);
  return address;
}

void freed_async(CUdeviceptr address) { CHECK_EQUAL(cuMemFreeAsync(address, nullptr), CUDA_SUCCESS); }
void waited() { CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS); }

CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  return pool;
}

void keep_at_waits(CUmemoryPool pool, std::uint64_t bytes) {
  CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes), CUDA_SUCCESS);
}

// The operation and the size of each row.
using Changes = std::vector<std::pair<int, std::uint64_t>>;
Changes changes(const CaptureReader& c) {
  Changes changes;
  for (const rows::MemoryPools& row : c.rows<rows::MemoryPools>()) changes.emplace_back(row.operation, row.size);
  return changes;
}

std::string call_of(const CaptureReader& c, const rows::MemoryPools& row) {
  for (const rows::ApiCalls& call : c.rows<rows::ApiCalls>()) {
    if (call.correlation != row.correlation || call.start > row.time || row.time > call.end) continue;
    for (const rows::Functions& function : c.rows<rows::Functions>())
      if (function.id == call.function) return c.text(function.name);
  }
  return "no call";
}

}  // namespace

TEST(a_pool_is_created_trimmed_and_destroyed) {
  Program program;
  CUmemoryPool pool = explicit_pool(CU_MEM_LOCATION_TYPE_DEVICE, 1);
  keep_at_waits(pool, 1000);
  const CUdeviceptr first = allocated_from(pool, 100), second = allocated_from(pool, 2 * kPiece);
  waited();  // all bytes are in use
  freed_async(second);
  waited();
  waited();
  freed_async(first);
  CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  const CaptureReader c = program.end();
  const auto rows = c.rows<rows::MemoryPools>();
  CHECK((changes(c) == Changes{{kCreated, kPiece}, {kTrimmed, kPiece}, {kDestroyed, kPiece}}));
  for (const rows::MemoryPools& row : rows) {
    CHECK(row.address == first && row.device == 1 && row.pool_type == CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL);
    CHECK(row.release_threshold == 1000 && row.minimum == 0);
  }
  CHECK(rows[0].used == 100 && rows[1].used == 100 && rows[2].used == 0);
  CHECK_EQUAL(call_of(c, rows[0]), std::string("cuMemAllocFromPoolAsync"));
  CHECK_EQUAL(call_of(c, rows[1]), std::string("cuCtxSynchronize"));
  CHECK_EQUAL(call_of(c, rows[2]), std::string("cuMemPoolDestroy"));
  for (const rows::Allocations& row : c.rows<rows::Allocations>()) CHECK_EQUAL(row.pool, first);
}

TEST(each_call_that_waits_may_trim_pools) {
  const std::pair<const char*, void (*)()> waits[] = {
      {"context", [] { waited(); }},
      {"stream", [] { CHECK_EQUAL(cuStreamSynchronize(stream(13)), CUDA_SUCCESS); }},
      {"event", [] { CHECK_EQUAL(cuEventSynchronize(nullptr), CUDA_SUCCESS); }},
      {"runtime, device", [] { CHECK_EQUAL(fake_gpu_wait("cudaDeviceSynchronize", kFakeAllStreams), 0); }},
      {"runtime, stream", [] { CHECK_EQUAL(fake_gpu_wait("cudaStreamSynchronize", 13), 0); }},
  };
  for (const auto& [what, wait] : waits) {
    Program program;
    CUmemoryPool pool = explicit_pool();
    for (int round = 0; round < 2; ++round) {  // the second wait is watched from its start
      freed_async(allocated_from(pool, 100));
      wait();
    }
    CHECK((changes(program.end()) == Changes{{kCreated, kPiece}, {kTrimmed, 0}, {kTrimmed, 0}}));
  }
}

TEST(a_pool_keeps_what_its_threshold_says) {
  Program program;
  CUmemoryPool kept = explicit_pool(), given = explicit_pool();
  keep_at_waits(kept, 4 * kPiece);
  keep_at_waits(given, kPiece);
  for (CUmemoryPool pool : {kept, given}) freed_async(allocated_from(pool, 3 * kPiece));
  waited();
  const CaptureReader c = program.end();
  CHECK((changes(c) == Changes{{kCreated, 3 * kPiece}, {kCreated, 3 * kPiece}, {kTrimmed, kPiece}}));
  const auto rows = c.rows<rows::MemoryPools>();
  CHECK(rows[2].address == rows[1].address && rows[2].address != rows[0].address);
}

TEST(a_program_may_trim_a_pool) {
  Program program;
  CUmemoryPool pool = explicit_pool(), unused = explicit_pool();
  keep_at_waits(pool, 1 << 30);
  CHECK_EQUAL(cuMemPoolTrimTo(unused, 0), CUDA_SUCCESS);  // the pool has no address yet
  freed_async(allocated_from(pool, 3 * kPiece));
  CHECK_EQUAL(cuMemPoolTrimTo(pool, 2 * kPiece), CUDA_SUCCESS);
  waited();
  CHECK_EQUAL(cuMemPoolTrimTo(pool, 5 * kPiece), CUDA_SUCCESS);
  CHECK(cuMemPoolTrimTo(reinterpret_cast<CUmemoryPool>(std::uintptr_t{0x777}), 0) != CUDA_SUCCESS);
  const CaptureReader c = program.end();
  CHECK((changes(c) == Changes{{kCreated, 3 * kPiece}, {kTrimmed, 2 * kPiece}, {kTrimmed, 2 * kPiece}}));
  const auto rows = c.rows<rows::MemoryPools>();
  CHECK(rows[1].minimum == 2 * kPiece && rows[2].minimum == 5 * kPiece);
  CHECK_EQUAL(call_of(c, rows[1]), std::string("cuMemPoolTrimTo"));
}

TEST(a_pool_that_cannot_be_destroyed_stays_known) {
  Program program;
  freed_async(allocated_async(nullptr));
  CHECK(cuMemPoolDestroy(default_pool()) != CUDA_SUCCESS);
  const CUdeviceptr held = allocated_async(nullptr, 2 * kPiece);
  waited();
  freed_async(held);
  waited();
  const CaptureReader c = program.end();
  CHECK((changes(c) == Changes{{kCreated, kPiece}, {kTrimmed, 0}}));
  for (const rows::Allocations& row : c.rows<rows::Allocations>()) CHECK_EQUAL(row.pool, c.rows<rows::MemoryPools>()[0].address);
}

// A question about a destroyed pool is an access to freed memory, and the fake driver then ends the program.
TEST(a_wait_does_not_ask_pools_that_are_gone) {
  Program program;
  CUmemoryPool pool = explicit_pool();
  const CUdeviceptr held = allocated_from(pool, 100);
  waited();
  CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  waited();
  freed_async(held);  // this releases the last memory of the pool
  waited();
  CHECK((changes(program.end()) == Changes{{kCreated, kPiece}, {kDestroyed, kPiece}}));
}

TEST_OF_THREADS(a_pool_that_ends_while_it_gives_memory_is_not_asked) {
  Program program;
  CUdeviceptr address = 0;
  CUmemoryPool pool = explicit_pool();
  struct {
    CUdeviceptr* address;
    std::size_t bytes;
    CUmemoryPool pool;
    CUstream stream;
  } const parameters{&address, 100, pool, nullptr};
  const int good = CUDA_SUCCESS;
  auto* const context = reinterpret_cast<void*>(std::uintptr_t{1});
  const auto tell = [&](const int* result) {
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync, 900, &parameters, context, result);
  };
  freed_async(allocated_from(explicit_pool(), 100));  // waits are watched
  tell(nullptr);
  // The driver has allocated the memory. Before this call ends, another thread frees the memory and destroys the pool.
  std::thread other([&] { CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS); });
  other.join();
  address = 0x5000;
  tell(&good);
  waited();
  CHECK((changes(program.end()) == Changes{{kCreated, kPiece}, {kTrimmed, 0}}));
}

TEST(pools_are_not_asked_after_the_end_of_a_context_until_they_are_used) {
  Program program;
  CUmemoryPool pool = explicit_pool();
  allocated_from(pool, 100);
  freed_async(allocated_from(pool, 2 * kPiece));
  use_context(2);
  CHECK_EQUAL(cuCtxDestroy_v2(reinterpret_cast<CUcontext>(std::uintptr_t{2})), CUDA_SUCCESS);
  use_context(1);
  waited();  // the driver trims the pool to one piece
  freed_async(allocated_from(pool, kPiece));
  waited();
  CHECK((changes(program.end()) == Changes{{kCreated, kPiece}, {kTrimmed, kPiece}}));
}

TEST(the_default_pool_from_before_the_recording_is_seen_at_a_free) {
  initialise();
  const CUdeviceptr before = allocated_async(nullptr, 100);
  CUmemoryPool pool = explicit_pool();
  const CUdeviceptr of_pool = allocated_from(pool, 100);
  Program program;
  waited();
  freed_async(of_pool);  // it is unknown whether its pool is destroyed
  freed_async(before);
  waited();
  CHECK((changes(program.end()) == Changes{{kCreated, kPiece}, {kTrimmed, 0}}));
}

TEST_OF_THREADS(threads_may_use_destroy_and_wait_for_pools) {
  Program program;
  constexpr int kThreads = 4, kRounds = 100;
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number)
    threads.emplace_back([] {
      use_context(1);
      for (int round = 0; round < kRounds; ++round) {
        CUmemoryPool pool = explicit_pool();
        const CUdeviceptr first = allocated_from(pool, 100), second = allocated_from(pool, kPiece);
        CHECK_EQUAL(cuEventSynchronize(nullptr), CUDA_SUCCESS);
        freed_async(first);
        if (round % 2 == 0) freed_async(second);
        CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
        if (round % 2 == 1) freed_async(second);
        CHECK_EQUAL(cuEventSynchronize(nullptr), CUDA_SUCCESS);
      }
    });
  for (std::thread& thread : threads) thread.join();
  const CaptureReader c = program.end();
  if (lost_rows(c) != 0) return;  // the writer did not keep up
  std::map<int, int> count;
  for (const auto& [operation, size] : changes(c)) ++count[operation];
  // A pool is listed at its second allocation if another thread destroys one during the first.
  CHECK(count[kCreated] <= kThreads * kRounds);
  CHECK_EQUAL(count[kDestroyed], count[kCreated]);
}

TEST(pools_are_recorded_without_allocations) {
  Program program("kinds=pool,api");
  freed(allocated());
  const CUdeviceptr held = allocated_async(stream(13), 100), more = allocated_async(stream(13), kPiece);
  CHECK_EQUAL(cuMemFreeAsync(more, stream(13)), CUDA_SUCCESS);
  waited();
  static_cast<void>(held);
  const CaptureReader c = program.end();
  CHECK((changes(c) == Changes{{kCreated, kPiece}, {kTrimmed, kPiece}}));
  CHECK(c.rows<rows::Allocations>().empty());
  CHECK(c.says("\"kinds\":[\"api\",\"pool\"]"));
}

TEST(allocations_are_recorded_without_pools) {
  Program program("kinds=memory,api");
  const CUdeviceptr address = allocated_async(stream(13));
  const unsigned callbacks = fake_callbacks();
  waited();
  CHECK_EQUAL(fake_callbacks(), callbacks);
  CHECK_EQUAL(cuMemFreeAsync(address, stream(13)), CUDA_SUCCESS);
  const CaptureReader c = program.end();
  CHECK(c.rows<rows::MemoryPools>().empty());
  const auto rows = c.rows<rows::Allocations>();
  check_pair(rows, kDevice, kBytes, kAsync);
  CHECK(rows[0].pool == address && rows[0].pool_used == kBytes);
}

TEST(waits_are_free_until_there_is_a_pool) {
  Program program;
  const unsigned callbacks = fake_callbacks();
  waited();
  CHECK_EQUAL(fake_callbacks(), callbacks);
  CHECK(program.rows().empty());
}

TEST(the_default_stream_of_a_thread_is_understood) {
  Program program;
  CUdeviceptr address = 0;
  CHECK_EQUAL(cuMemAllocAsync_ptsz(&address, kBytes, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync_ptsz(address, nullptr), CUDA_SUCCESS);
  check_pair(program.rows(), kDevice, kBytes, kAsync);
}

// ---- ways to free ----

// With CUPTI's records of memory the fake ends the program here, as CUPTI 13.0 and 13.5 do.
TEST(other_memory_can_be_freed_in_the_order_of_a_stream) {
  Program program;
  const CUdeviceptr address = allocated();
  CHECK_EQUAL(cuMemFreeAsync(address, stream(13)), CUDA_SUCCESS);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{2});
  CHECK(rows[0].flags == 0 && rows[1].flags == kAsync && rows[1].stream == 13);
  CHECK(rows[1].bytes == kBytes && rows[1].pool == 0 && rows[1].pool_type == 0);
}

namespace {

// Stream-ordered memory in a context that is destroyed.
void outlive_the_context() {
  use_context(2);
  const CUdeviceptr pooled = allocated_async(stream(13));
  CHECK_EQUAL(cuCtxDestroy_v2(reinterpret_cast<CUcontext>(std::uintptr_t{2})), CUDA_SUCCESS);
  use_context(1);
  CHECK_EQUAL(cuMemFreeAsync(pooled, stream(14)), CUDA_SUCCESS);
  waited();
}

}  // namespace

// With CUPTI's records of memory or of pools the fake ends the program here.
TEST(memory_may_outlive_the_context_of_its_stream) {
  Program program;
  outlive_the_context();
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{2});
  CHECK(rows[0].operation == kAllocated && rows[0].context == 2 && rows[1].operation == kReleased && rows[1].bytes == kBytes);
}

TEST(the_fake_ends_programs_as_cupti_does) {
  const std::pair<CUpti_ActivityKind, void (*)()> cases[] = {
      {CUPTI_ACTIVITY_KIND_MEMORY2, [] { cuMemFreeAsync(allocated(), nullptr); }},
      {CUPTI_ACTIVITY_KIND_MEMORY_POOL, outlive_the_context}};
  for (const auto& [kind, run] : cases) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGSEGV, SIG_DFL);
      CUpti_SubscriberHandle subscriber = nullptr;
      CHECK_EQUAL(cuptiSubscribe(&subscriber, [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}, nullptr), CUPTI_SUCCESS);
      CHECK_EQUAL(cuptiActivityEnable(kind), CUPTI_SUCCESS);
      initialise();
      run();
      _exit(0);
    }
    int status = 0;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  }
}

TEST(records_of_memory_are_never_enabled) {
  Program program("kinds=default,sync,event,module,jit,unified_memory,environment,external");
  for (const int kind : {CUPTI_ACTIVITY_KIND_MEMORY2, CUPTI_ACTIVITY_KIND_MEMORY, CUPTI_ACTIVITY_KIND_MEMORY_POOL})
    CHECK(!fake_is_enabled(kind));
  const CaptureReader c = program.end();
  CHECK(c.says("\"memory\"") && c.says("\"pool\""));
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{0});
}

TEST(other_ways_to_free_are_complete) {
  const std::pair<const char*, void (*)()> cases[] = {
      {"stream 0", [] { cuMemFreeAsync(allocated_async(nullptr), nullptr); }},
      {"legacy", [] { cuMemFreeAsync(allocated_async(CU_STREAM_LEGACY), CU_STREAM_LEGACY); }},
      {"of the thread", [] { cuMemFreeAsync(allocated_async(CU_STREAM_PER_THREAD), CU_STREAM_PER_THREAD); }},
      {"without a context",
       [] {
         const CUdeviceptr at = allocated_async(stream(13));
         CUcontext context = nullptr;
         cuCtxPopCurrent_v2(&context);
         CHECK_EQUAL(cuMemFreeAsync(at, stream(13)), CUDA_SUCCESS);
         cuCtxPushCurrent_v2(context);
       }},
      {"in another context",
       [] {
         const CUdeviceptr at = allocated_async(stream(13));
         use_context(2);
         CHECK_EQUAL(cuMemFreeAsync(at, stream(14)), CUDA_SUCCESS);
         use_context(1);
       }},
  };
  for (const auto& [what, run] : cases) {
    Program program;
    run();
    check_pair(program.rows(), kDevice, kBytes, kAsync);
  }
}

TEST(calls_without_effect_have_no_rows) {
  Program program;
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, std::size_t{1} << 60) != CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeAsync(0, nullptr), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFreeHost(nullptr), CUDA_SUCCESS);
  CHECK(cuMemFree_v2(0x123) != CUDA_SUCCESS);
  CHECK(program.rows().empty());
}

TEST(a_second_free_fails_and_is_no_release) {
  Program program;
  const CUdeviceptr address = allocated();
  freed(address);
  CHECK(cuMemFree_v2(address) != CUDA_SUCCESS);
  check_pair(program.rows(), kDevice, kBytes);
}

TEST(a_free_that_fails_leaves_the_memory_known) {
  Program program;
  void* pinned = nullptr;
  CHECK_EQUAL(cuMemHostAlloc(&pinned, kBytes, 0), CUDA_SUCCESS);
  CHECK(cuMemFree_v2(reinterpret_cast<std::uintptr_t>(pinned)) != CUDA_SUCCESS);  // the wrong call
  CHECK_EQUAL(cuMemFreeHost(pinned), CUDA_SUCCESS);
  check_pair(program.rows(), kPinned, kBytes);
}

// ---- memory from before the recording ----

TEST(memory_from_before_the_recording_has_no_size) {
  initialise();
  const CUdeviceptr plain = allocated(), pooled = allocated_async(stream(13), 100), kept = allocated_async(stream(13), 50);
  CUdeviceptr managed = 0;
  CHECK_EQUAL(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  Program program;
  freed(plain);
  freed(managed);
  CHECK_EQUAL(cuMemFreeAsync(pooled, stream(13)), CUDA_SUCCESS);
  const CUdeviceptr more = allocated_async(stream(13), 200);
  CHECK_EQUAL(cuMemFreeAsync(more, stream(13)), CUDA_SUCCESS);
  static_cast<void>(kept);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{5});
  const int memory[] = {kDevice, kManaged, kDevice};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(rows[i].operation == kReleased && rows[i].bytes == 0 && (rows[i].flags & kSizeUnknown) != 0);
    CHECK_EQUAL(int{rows[i].memory}, memory[i]);
  }
  // A pool from before the recording. Its bytes in use count.
  CHECK(rows[2].pool != 0 && rows[2].pool_used == 50 && rows[2].flags == (kAsync | kSizeUnknown));
  CHECK(rows[3].pool_used == 250 && rows[4].pool_used == 50 && rows[4].bytes == 200);
}

TEST(a_recording_does_not_know_the_memory_of_an_earlier_one) {
  CUdeviceptr address = 0;
  {
    Program program;
    address = allocated();
    CHECK_EQUAL(program.rows().size(), std::size_t{1});
  }
  // Meanwhile the program may free the memory and get its address again.
  freed(address);
  CHECK_EQUAL(allocated(), address);
  Program program;
  freed(address);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{1});
  CHECK(rows[0].bytes == 0 && rows[0].flags == kSizeUnknown);
}

TEST(a_call_that_began_before_the_recording_counts) {
  Program program;
  CUdeviceptr address = 0x5000;
  const int good = CUDA_SUCCESS;
  const AllocationParameters allocation{&address, kBytes};
  const FreeParameters release{address};
  auto* const context = reinterpret_cast<void*>(std::uintptr_t{1});
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, 50, &allocation, context, &good);
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, 51, &release, context, &good);
  check_pair(program.rows(), kDevice, kBytes);
}

// ---- order ----

TEST_OF_THREADS(an_address_that_another_thread_gets_at_once_is_not_mixed_up) {
  Program program;
  CUdeviceptr address = 0x5000;
  const int good = CUDA_SUCCESS;
  const AllocationParameters small{&address, 100}, large{&address, 700};
  const FreeParameters release{address};
  auto* const context = reinterpret_cast<void*>(std::uintptr_t{1});
  const auto allocate = [&](const AllocationParameters& parameters, std::uint32_t correlation) {
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, correlation, &parameters, context, nullptr);
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, correlation, &parameters, context, &good);
  };
  allocate(small, 1);
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, 2, &release, context, nullptr);
  // The driver has freed the memory and gives it to another thread before the call of the first thread ends.
  std::thread other([&] { allocate(large, 3); });
  other.join();
  program.collector.flush();  // the other thread's event is read first
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, 2, &release, context, &good);
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, 4, &release, context, nullptr);
  fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, 4, &release, context, &good);
  auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{4});
  std::ranges::stable_sort(rows, {}, [](const rows::Allocations& row) { return std::uint64_t{row.time}; });
  const std::uint64_t bytes[] = {100, 100, 700, 700};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK_EQUAL(rows[i].bytes, bytes[i]);
    CHECK_EQUAL(int{rows[i].operation}, i % 2 == 0 ? kAllocated : kReleased);
  }
}

TEST_OF_THREADS(threads_that_share_addresses_have_right_rows) {
  Program program;
  constexpr int kThreads = 4, kRounds = 500;
  std::atomic<CUdeviceptr> shared[16]{};
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number)
    threads.emplace_back([&, number] {
      use_context(1);
      std::mt19937 random(static_cast<unsigned>(number));
      for (int round = 0; round < kRounds; ++round) {
        CUdeviceptr address = 0;
        const std::size_t bytes = 512 * (1 + random() % 3);
        CHECK_EQUAL(random() % 2 ? cuMemAlloc_v2(&address, bytes) : cuMemAllocAsync(&address, bytes, stream(13)), CUDA_SUCCESS);
        address = shared[random() % std::size(shared)].exchange(address);
        if (address != 0) CHECK_EQUAL(random() % 2 ? cuMemFree_v2(address) : cuMemFreeAsync(address, stream(14)), CUDA_SUCCESS);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (auto& address : shared)
    if (address.load() != 0) freed(address.load());
  const CaptureReader c = program.end();
  auto rows = c.rows<rows::Allocations>();
  CHECK_EQUAL(rows.size() + lost_rows(c), std::size_t{2 * kThreads * kRounds});
  if (lost_rows(c) != 0) return;  // the writer did not keep up
  CHECK_EQUAL(last_level(rows), 0);
  std::ranges::stable_sort(rows, {}, [](const rows::Allocations& row) { return std::pair(std::uint64_t{row.time}, row.operation == kAllocated); });
  std::map<std::uint64_t, std::uint64_t> live;
  for (const rows::Allocations& row : rows) {
    CHECK((row.flags & (kSizeUnknown | kWithoutCall)) == 0);
    if (row.operation == kAllocated) CHECK(live.emplace(row.address, row.bytes).second);
    else CHECK_EQUAL(live.extract(row.address).mapped(), std::uint64_t{row.bytes});
  }
  CHECK(live.empty());
}

TEST(an_address_that_is_given_out_again_was_free) {
  Program program;
  CUdeviceptr address = 0x5000;
  const int good = CUDA_SUCCESS;
  const AllocationParameters small{&address, 100}, large{&address, 700};
  auto* const context = reinterpret_cast<void*>(std::uintptr_t{1});
  for (const auto* parameters : {&small, &large})
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, 1, parameters, context, &good);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{3});
  CHECK_EQUAL(last_level(rows), 700);
  CHECK(rows[2].operation == kReleased && rows[2].bytes == 100 && rows[2].flags == kWithoutCall);
}

// ---- contexts, graphs, processes ----

TEST(memory_ends_with_its_context) {
  Program program;
  allocated(100);
  use_context(2);
  allocated(200);
  void* pinned = nullptr;
  CHECK_EQUAL(cuMemHostAlloc(&pinned, 300, 0), CUDA_SUCCESS);
  static char registered[500];
  CHECK_EQUAL(cuMemHostRegister_v2(registered, sizeof registered, 0), CUDA_SUCCESS);
  const CUdeviceptr pooled = allocated_async(stream(13), 400);
  CHECK_EQUAL(cuCtxDestroy_v2(reinterpret_cast<CUcontext>(std::uintptr_t{2})), CUDA_SUCCESS);
  use_context(1);
  CHECK_EQUAL(cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);  // the memory belonged to the pool
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{9});
  std::map<std::uint64_t, int> ended;
  for (const rows::Allocations& row : rows)
    if (row.flags & kWithoutCall) {
      CHECK(row.operation == kReleased && row.context == 2 && row.correlation == 0);
      ended[row.bytes] = row.memory;
    }
  CHECK((ended == std::map<std::uint64_t, int>{{200, kDevice}, {300, kPinned}, {500, kPinned}}));
  CHECK_EQUAL(last_level(rows), 100);
}

TEST(a_captured_stream_allocates_nothing_yet) {
  Program program;
  fake_gpu_stream(stream(13), reinterpret_cast<void*>(std::uintptr_t{1}), true);
  const CUdeviceptr node = allocated_async(stream(13));
  CHECK_EQUAL(cuMemFreeAsync(node, stream(13)), CUDA_SUCCESS);
  const CUdeviceptr other = allocated_async(stream(14));
  CHECK_EQUAL(cuMemFreeAsync(other, stream(14)), CUDA_SUCCESS);
  check_pair(program.rows(), kDevice, kBytes, kAsync);
}

TEST(memory_of_graphs_is_what_the_driver_keeps_for_them) {
  initialise();
  constexpr std::uint64_t kPiece = 32 << 20;
  const auto launch = [] { CHECK_EQUAL(cuGraphLaunch(nullptr, nullptr), CUDA_SUCCESS); };
  const auto add_node = [](int device, std::size_t bytes) {
    CUgraphNode node = nullptr;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
    wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    wanted.bytesize = bytes;
    CHECK_EQUAL(cuGraphAddMemAllocNode(&node, nullptr, nullptr, 0, &wanted), CUDA_SUCCESS);
  };
  add_node(1, 1);
  launch();  // bytes kept before the recording do not count
  Program program;
  launch();
  add_node(1, kPiece + 1);
  launch();
  launch();
  fake_gpu_stream(stream(13), reinterpret_cast<void*>(std::uintptr_t{1}), true);
  allocated_async(stream(13));
  launch();
  CHECK_EQUAL(cuDeviceGraphMemTrim(1), CUDA_SUCCESS);
  const CaptureReader c = program.end();
  const auto rows = c.rows<rows::Allocations>();
  CHECK_EQUAL(rows.size(), std::size_t{3});
  const std::uint64_t bytes[] = {2 * kPiece, kPiece, 3 * kPiece};
  const std::uint16_t devices[] = {1, 0, 1};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK_EQUAL(rows[i].bytes, bytes[i]);
    CHECK_EQUAL(rows[i].device, devices[i]);
    CHECK_EQUAL(int{rows[i].operation}, i == 2 ? kReleased : kAllocated);
    CHECK(rows[i].memory == kDevice && rows[i].address == 0 && rows[i].flags == 0);
  }
}

// ---- modules ----

namespace {

std::string cubin(const char* name) {
  std::ifstream file(std::string(CUBINS_PATH) + "/" + name, std::ios::binary);
  CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr int kVariable = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC, kManagedVariable = CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC;

}  // namespace

TEST(variables_of_modules_live_as_long_as_their_module) {
  Program program;
  const std::string file = cubin("variables.cubin");
  fake_module_loaded(5, 1, file.data(), file.size());
  fake_module_loaded(6, 1, file.data(), file.size());
  fake_module_unloading(5, 1);
  fake_module_unloading(7, 1);  // from before the recording
  const auto rows = program.rows();
  std::multiset<std::pair<int, std::uint64_t>> allocated, released;
  for (const rows::Allocations& row : rows) {
    (row.operation == kAllocated ? allocated : released).emplace(row.memory, row.bytes);
    CHECK(row.address == 0 && row.correlation == 0 && row.flags == 0 && row.context == 1);
  }
  CHECK((allocated == std::multiset<std::pair<int, std::uint64_t>>{
                          {kVariable, 1}, {kVariable, 1}, {kVariable, 40}, {kVariable, 40}, {kVariable, 64}, {kVariable, 64},
                          {kVariable, 1000}, {kVariable, 1000}, {kManagedVariable, 400}, {kManagedVariable, 400}}));
  CHECK((released == std::multiset<std::pair<int, std::uint64_t>>{{kVariable, 1105}, {kManagedVariable, 400}}));
}

TEST(machine_code_that_cannot_be_read_has_no_variables) {
  Program program;
  const std::string file = cubin("variables.cubin");
  fake_module_loaded(5, 1, nullptr, 0);
  for (std::size_t size = 0; size < file.size(); size += 7) {
    const std::string part = file.substr(0, size);  // a separate copy, so that sanitizers detect a read beyond its end
    fake_module_loaded(6, 1, part.data(), part.size());
  }
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::string wrong = file;
    for (int i = 0; i < 4; ++i) wrong[random() % (round % 2 ? wrong.size() : 64)] = static_cast<char>(random());
    fake_module_loaded(7, 1, wrong.data(), wrong.size());
  }
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(a_child_that_was_forked_leaves_memory_alone) {
  Program program;
  const CUdeviceptr address = allocated();
  const pid_t child = fork();
  if (child == 0) {
    const FreeParameters release{address};
    const int good = CUDA_SUCCESS;
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, 9, &release, nullptr, nullptr);
    fake_driver_call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, 9, &release, nullptr, &good);
    _exit(0);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  freed(address);
  CHECK_EQUAL(program.collector.stop(), 0);
  std::vector<rows::Allocations> rows;
  for (const std::string& path : program.folder.captures()) {
    const CaptureReader c(path);
    if (c.pid == static_cast<std::uint32_t>(getpid())) rows = c.rows<rows::Allocations>();
  }
  check_pair(rows, kDevice, kBytes);
}

// ---- virtual memory management ----

namespace {

CUmemGenericAllocationHandle created(std::size_t bytes, int device = 0) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  CUmemGenericAllocationHandle handle = 0;
  CHECK_EQUAL(cuMemCreate(&handle, bytes, &wanted, 0), CUDA_SUCCESS);
  return handle;
}

constexpr CUdeviceptr kReserved = 0x10'0000'0000;

}  // namespace

TEST(physical_memory_lives_as_long_as_its_handle) {
  Program program;
  const auto handle = created(1 << 21, 1);
  CHECK_EQUAL(cuMemMap(kReserved, 1 << 21, 0, handle, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemUnmap(kReserved, 1 << 21), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
  const auto rows = program.rows();
  check_pair(rows, kPhysical, 1 << 21);
  CHECK_EQUAL(int{rows[0].device}, 1);
}

TEST(physical_memory_lives_as_long_as_its_mappings) {
  Program program;
  const auto first = created(1 << 21), second = created(1 << 22);
  CHECK_EQUAL(cuMemMap(kReserved, 1 << 21, 0, first, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemMap(kReserved + (1 << 21), 1 << 22, 0, second, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemRelease(first), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemRelease(second), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemUnmap(kReserved + (1 << 21), 1 << 22), CUDA_SUCCESS);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{3});
  CHECK(rows[2].operation == kReleased && rows[2].bytes == 1 << 22);
  CHECK_EQUAL(last_level(rows), 1 << 21);
}

TEST(one_call_unmaps_several_pieces) {
  Program program;
  for (int i = 0; i < 3; ++i) {
    const auto handle = created(1 << 21);
    CHECK_EQUAL(cuMemMap(kReserved + static_cast<CUdeviceptr>(i) * (1 << 21), 1 << 21, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
  }
  CHECK_EQUAL(cuMemUnmap(kReserved, 3 << 21), CUDA_SUCCESS);
  const auto rows = program.rows();
  CHECK_EQUAL(rows.size(), std::size_t{6});
  CHECK_EQUAL(last_level(rows), 0);
}

TEST(a_retained_handle_keeps_physical_memory) {
  Program program;
  const auto handle = created(1 << 21);
  CHECK_EQUAL(cuMemMap(kReserved, 1 << 21, 0, handle, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle again = 0;
  CHECK_EQUAL(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(kReserved)), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemUnmap(kReserved, 1 << 21), CUDA_SUCCESS);
  CHECK(cuMemRelease(handle + 77) != CUDA_SUCCESS);
  program.collector.flush();
  CHECK_EQUAL(cuMemRelease(again), CUDA_SUCCESS);
  CHECK(cuMemRelease(again) != CUDA_SUCCESS);
  check_pair(program.rows(), kPhysical, 1 << 21);
}

// ---- limits ----

TEST(a_full_table_is_counted_and_its_memory_has_no_rows) {
  Program program("max_memory=1048576");  // 64 KiB for the table
  constexpr std::size_t kAll = 3000;
  std::vector<CUdeviceptr> addresses;
  for (std::size_t i = 0; i < kAll; ++i) {
    addresses.push_back(allocated());
    if (i % 50 == 0) program.collector.flush();
  }
  CHECK(program.collector.statistics().memory_bytes >= std::size_t{64} << 10);
  for (std::size_t i = 0; i < kAll; ++i) {
    freed(addresses[i]);
    if (i % 50 == 0) program.collector.flush();
  }
  const CaptureReader c = program.end();
  const auto rows = c.rows<rows::Allocations>();
  const auto allocations = static_cast<std::size_t>(std::ranges::count(rows, kAllocated, [](const rows::Allocations& row) { return int{row.operation}; }));
  CHECK_EQUAL(lost_rows(c), std::uint64_t{0});
  CHECK(allocations > 1000 && allocations < kAll);
  CHECK_EQUAL(allocations + c.lost(rows::Loss::table_limit), kAll);
  CHECK_EQUAL(rows.size(), allocations + kAll);
  CHECK_EQUAL(last_level(rows), 0);
}

TEST(a_full_ring_is_counted) {
  Program program("max_memory=1048576");  // a ring holds some 200 rows
  constexpr std::size_t kAll = 6'000;
  for (std::size_t i = 0; i < kAll; ++i) freed(allocated());
  const CaptureReader c = program.end();
  const auto rows = c.rows<rows::Allocations>();
  CHECK_EQUAL(rows.size() + lost_rows(c), 2 * kAll);
  for (const rows::Allocations& row : rows) CHECK(row.operation != kReleased || row.bytes == kBytes || row.flags == kSizeUnknown);
}

TEST_OF_THREADS(threads_without_a_ring_are_counted) {
  for (const char* const options : {"max_memory=1048576", "max_memory=1048576;nvtx=0"}) {
    Program program(options);  // fewer rings than threads
    constexpr int kThreads = 40;
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([&] {
        use_context(1);
        freed(allocated());
        // The ring of an ended thread is reused.
        ready.fetch_add(1);
        while (ready.load() < kThreads) std::this_thread::yield();
      });
    for (std::thread& thread : threads) thread.join();
    const CaptureReader c = program.end();
    CHECK(lost_rows(c) != 0);
    CHECK_EQUAL(c.rows<rows::Allocations>().size() + lost_rows(c), std::size_t{2 * kThreads});
    CHECK_EQUAL(c.lost(rows::Loss::nvtx_dropped), std::uint64_t{0});
  }
}

TEST(without_its_kind_no_memory_is_recorded) {
  Program program("kinds=kernel,api");
  const unsigned callbacks = fake_callbacks();
  freed(allocated());
  CHECK_EQUAL(fake_callbacks(), callbacks);
  CHECK(program.rows().empty());
}

int main(int argc, char** argv) { return check::main(argc, argv); }
