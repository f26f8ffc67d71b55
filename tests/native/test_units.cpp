// Unit tests of the collector's parts.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "capture_reader.h"
#include "check.h"
#include "collector/core/block_file.h"
#include "collector/core/capture.h"
#include "collector/core/feature.h"
#include "collector/core/interning.h"
#include "collector/core/kinds.h"
#include "collector/features/nvtx/nvtx.h"
#include "collector/features/nvtx/nvtx_decoder.h"
#include "collector/core/options.h"
#include "collector/core/pool.h"
#include "collector/core/process_info.h"
#include "collector/core/rings.h"
#include "collector/features/standby/first_work.h"
#include "collector/features/stream_captures/capture_watch.h"
#include "collector/features/windows/window.h"
#include "common/text.h"

using namespace cutrace;

TEST_OF_THREADS(index_stack_loses_and_doubles_nothing_under_threads) {
  constexpr std::uint32_t kCount = 64, kRounds = 20000;
  IndexStack free, full;
  free.reset(kCount);
  full.reset(kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) free.push(i);
  std::atomic<std::uint64_t> moved{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (std::uint32_t i = 0; i < kRounds; ++i) {
        const std::uint32_t index = free.pop();
        if (index == IndexStack::kNone) continue;
        full.push(index);
        ++moved;
      }
    });
  std::uint64_t taken = 0;
  std::thread consumer([&] {
    while (!done.load() || !full.empty())
      full.take_all([&](std::uint32_t index) {
        ++taken;
        free.push(index);
      });
  });
  for (auto& thread : threads) thread.join();
  done = true;
  consumer.join();
  CHECK_EQUAL(taken, moved.load());
  std::set<std::uint32_t> rest;
  while (true) {
    const std::uint32_t index = free.pop();
    if (index == IndexStack::kNone) break;
    CHECK(rest.insert(index).second);
  }
  CHECK_EQUAL(rest.size(), std::size_t{kCount});
}

TEST(index_stack_hands_out_the_oldest_first) {
  IndexStack stack;
  stack.reset(4);
  for (std::uint32_t i = 0; i < 4; ++i) stack.push(i);
  std::vector<std::uint32_t> order;
  stack.take_all([&](std::uint32_t i) { order.push_back(i); });
  CHECK((order == std::vector<std::uint32_t>{0, 1, 2, 3}));
  CHECK(stack.empty());
}

TEST(pool_refuses_at_its_limit_and_reuses_what_comes_back) {
  BufferPool pool;
  CHECK(pool.open(4096, 4 * 4096));
  CHECK(pool.request() == nullptr);  // closed
  pool.set_open(true);
  std::vector<std::uint8_t*> held;
  for (int i = 0; i < 4; ++i) held.push_back(pool.request());
  CHECK(std::set<std::uint8_t*>(held.begin(), held.end()).size() == 4 && held[3] != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(held[0]) % 8 == 0);
  CHECK(pool.request() == nullptr);
  CHECK_EQUAL(pool.refused(), std::uint64_t{1});
  held[2][0] = 7;
  pool.complete(held[2], 1);
  pool.complete(held[1], 0);
  std::size_t seen = 0;
  CHECK_EQUAL(pool.drain([&](std::uint8_t* buffer, std::size_t valid) {
    ++seen;
    CHECK(buffer == held[2] && valid == 1 && buffer[0] == 7);
  }), std::size_t{2});
  CHECK_EQUAL(seen, std::size_t{1});  // an empty buffer is not visited
  CHECK(pool.request() != nullptr);
  CHECK_EQUAL(pool.memory(), std::size_t{4 * 4096});
}

TEST(pool_knows_the_unread_buffers_of_a_recording) {
  BufferPool pool;
  pool.set_time(5);
  CHECK(pool.open(4096, 16 * 4096));
  pool.set_open(true);
  CHECK_EQUAL(pool.unread(0, 100).oldest, std::uint64_t{100});
  std::uint8_t* const first = pool.request();
  pool.set_time(7);
  std::uint8_t* const second = pool.request();
  CHECK_EQUAL(pool.unread(0, 100).oldest, std::uint64_t{5});
  CHECK_EQUAL(pool.unread(6, 100).oldest, std::uint64_t{7});
  CHECK(pool.unread(0, 100).count == 2 && pool.unread(6, 100).count == 1);
  pool.end_recording();
  std::uint8_t* const later = pool.request();
  CHECK_EQUAL(pool.unread(0, 100).count, std::uint64_t{2});
  pool.complete(first, 0);
  CHECK_EQUAL(pool.unread(0, 100).oldest, std::uint64_t{5});  // it waits for the writer
  CHECK_EQUAL(pool.unread(0, 100).with_cupti, std::uint64_t{1});
  pool.drain([](std::uint8_t*, std::size_t) {});
  CHECK_EQUAL(pool.unread(0, 100).oldest, std::uint64_t{7});
  pool.complete(second, 0);
  pool.drain([](std::uint8_t*, std::size_t) {});
  CHECK_EQUAL(pool.unread(0, 100).count, std::uint64_t{0});
  pool.begin_recording();
  CHECK_EQUAL(pool.unread(0, 100).count, std::uint64_t{1});  // CUPTI may still write into it
  pool.complete(later, 0);
  CHECK(!pool.all_read());
  pool.drain([](std::uint8_t*, std::size_t) {});
  CHECK(pool.all_read());
}

TEST(pool_accounts_for_each_buffer) {
  BufferPool pool;
  CHECK(pool.open(4096, 16 * 4096));
  pool.set_open(true);
  std::vector<std::uint8_t*> buffers(6);
  for (std::uint8_t*& buffer : buffers) buffer = pool.request();
  for (int i = 0; i < 4; ++i) pool.complete(buffers[static_cast<std::size_t>(i)], 8);
  pool.complete(buffers[0], 8);  // it is not with CUPTI
  CHECK_EQUAL(pool.completed(), std::uint64_t{4});
  int visits = 0;
  const auto fail_at_the_second = [&](std::uint8_t*, std::size_t) {
    if (++visits == 2) throw std::bad_alloc();
  };
  bool failed = false;
  try {
    pool.drain(fail_at_the_second);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  CHECK(failed && visits == 2);
  CHECK_EQUAL(pool.discarded(), std::uint64_t{3});
  CHECK(pool.none_waits() && !pool.all_read());
  pool.complete(buffers[4], 8);
  pool.complete(buffers[5], 0);
  CHECK(!pool.none_waits());
  pool.begin_recording();  // both came too late for their recording
  CHECK(pool.none_waits());
  CHECK_EQUAL(pool.discarded(), std::uint64_t{0});
  CHECK(!pool.all_read());  // for the rest of the process, because their contents are unknown
  pool.complete(pool.request(), 8);
  pool.drain([](std::uint8_t*, std::size_t) {});
  CHECK(pool.none_waits() && !pool.all_read());
}

TEST(pool_passes_over_buffers_that_are_not_its_own) {
  BufferPool pool;
  CHECK(pool.open(4096, 4 * 4096));
  pool.set_open(true);
  std::uint8_t foreign[8] = {};
  pool.complete(foreign, 8);
  pool.complete(nullptr, 8);
  std::uint8_t* own = pool.request();
  pool.complete(own + 8, 8);
  CHECK_EQUAL(pool.completed(), std::uint64_t{0});
}

TEST(pool_zeroes_what_it_hands_out_again) {
  BufferPool pool;
  CHECK(pool.open(4096, 2 * 4096));
  pool.set_open(true);
  pool.set_zeroing(true);
  std::uint8_t* buffer = pool.request();
  buffer[4000] = 1;
  pool.complete(buffer, 4096);
  pool.drain([](std::uint8_t*, std::size_t) {});
  CHECK_EQUAL(int{buffer[4000]}, 0);
}

TEST(a_ring_takes_one_event_at_a_time) {
  alignas(8) std::array<std::uint8_t, 64> bytes{};
  Ring ring(bytes.data(), bytes.size());
  std::uint8_t* const first = ring.reserve(16);
  CHECK(first != nullptr);
  CHECK(ring.reserve(16) == nullptr);  // as of a signal handler
  ring.commit(16);
  CHECK(ring.reserve(16) == first + 16);
  ring.commit(0);
  CHECK(ring.reserve(16) == first + 16);
  ring.take_over();
  CHECK(ring.reserve(64) == nullptr);
  CHECK(ring.reserve(16) == first + 16);
}

TEST(strings_keep_one_id_a_text) {
  StringTable table(1 << 20);
  CHECK_EQUAL(table.intern(""), 0u);
  const std::uint32_t a = table.intern("kernel");
  CHECK_EQUAL(table.intern("kernel"), a);
  for (int i = 0; i < 5000; ++i) table.intern("text " + std::to_string(i));
  CHECK_EQUAL(table.intern("kernel"), a);
  CHECK_EQUAL(table.intern("text 4999"), a + 5000);
  CHECK_EQUAL(table.pending_heads().size(), std::size_t{2 * 5001});
  CHECK_EQUAL(table.intern(std::string(100'000, 'x')), table.intern(std::string(StringTable::kLongest, 'x')));
}

TEST(strings_start_over_when_full_with_new_ids) {
  StringTable table(256 << 10);
  std::uint32_t last = 0;
  while (!table.full()) last = table.intern("some text " + std::to_string(last));
  table.clear();
  CHECK(!table.full());
  CHECK(table.intern("some text 0") > last);
}

TEST(launches_trust_no_name_pointer) {
  StringTable strings(1 << 20);
  LaunchTable launches(100);
  std::vector<rows::Launches> added;
  const auto add = [&](const rows::Launches& row) { added.push_back(row); };
  rows::Launches row;
  row.grid_x = 4;
  char name[] = "first";
  const std::uint32_t first = launches.intern(row, name, strings, add);
  CHECK_EQUAL(launches.intern(row, name, strings, add), first);
  std::memcpy(name, "other", 5);  // another module's name is at the same address
  const std::uint32_t other = launches.intern(row, name, strings, add);
  CHECK(other != first);
  std::memcpy(name, "first", 5);
  CHECK_EQUAL(launches.intern(row, name, strings, add), first);
  char copy[] = "first";  // the same name at another address is the same configuration
  CHECK_EQUAL(launches.intern(row, copy, strings, add), first);
  row.grid_x = 5;
  CHECK(launches.intern(row, name, strings, add) != first);
  CHECK_EQUAL(added.size(), std::size_t{3});
  CHECK_EQUAL(added[1].name, strings.intern("other"));
}

namespace {

RowFilter::Facts kernel_of(std::uint32_t call, std::uint64_t start) {
  rows::Kernels row;
  row.correlation = call;
  row.start = start;
  return RowFilter::facts_of(row);
}
RowFilter::Facts call_at(std::uint32_t call, std::uint64_t start) {
  rows::ApiCalls row;
  row.correlation = call;
  row.start = start;
  return RowFilter::facts_of(row);
}

}  // namespace

TEST(a_window_has_work_by_its_launch_and_other_rows_by_their_start) {
  CHECK(!CaptureWindow{}.has(kernel_of(1, 1)));
  const CaptureWindow window{1, {1000, 10}, {2000, 20}};
  CHECK(window.has(kernel_of(11, 5000)) && window.has(kernel_of(19, 900)));
  CHECK(!window.has(kernel_of(10, 1500)) && !window.has(kernel_of(20, 1500)));
  CHECK(window.has(call_at(11, 1000)) && !window.has(call_at(9, 1500)) && !window.has(call_at(21, 1500)));
  rows::NvtxMarks mark;
  for (const auto& [time, inside] : {std::pair{999, false}, {1000, true}, {1999, true}, {2000, false}}) {
    mark.time = static_cast<std::uint64_t>(time);
    CHECK_EQUAL(window.has(RowFilter::facts_of(mark)), inside);
  }
  // The numbers of calls start again after 2^32 calls.
  const CaptureWindow at_the_seam{1, {1000, 0xFFFFFFF0u}, {2000, 16}};
  CHECK(at_the_seam.has(kernel_of(0xFFFFFFF1u, 0)) && at_the_seam.has(kernel_of(15, 0)));
  CHECK(!at_the_seam.has(kernel_of(0xFFFFFFEFu, 0)) && !at_the_seam.has(kernel_of(17, 0)));
  // Without numbers, times decide, and work may start after the end.
  const CaptureWindow by_time{1, {1000, 0}, {2000, 0}};
  CHECK(by_time.has(kernel_of(5, 3000)) && by_time.has(kernel_of(5, 0)) && !by_time.has(kernel_of(5, 999)));
  CHECK(by_time.has(call_at(5, 1000)) && !by_time.has(call_at(5, 2000)) && !by_time.has(call_at(5, 999)));
  const CaptureWindow open{1, {1000, 10}, {}};
  CHECK(open.has(kernel_of(11, 9000)) && open.has(call_at(11, 9000)) && !open.has(kernel_of(9, 9000)));
}

TEST(a_window_clips_ranges) {
  const CaptureWindow window{1, {1000, 0}, {2000, 0}};
  struct Case {
    std::uint64_t start, end;
    bool inside;
    std::uint64_t first, last;
    std::uint16_t flags;
  };
  for (const Case& c : {Case{1100, 1200, true, 1100, 1200, 0}, {500, 1200, true, 1000, 1200, 2}, {1100, 2500, true, 1100, 2000, 4},
                        {500, 2500, true, 1000, 2000, 6}, {500, 0, true, 1000, 2000, 6}, {1100, 0, true, 1100, 2000, 4},
                        {500, 999, false, 0, 0, 0}, {2000, 2100, false, 0, 0, 0}, {2000, 0, false, 0, 0, 0}}) {
    std::uint64_t start = c.start, end = c.end;
    std::uint16_t flags = c.end == 0 ? 1 : 0;
    CHECK_EQUAL(window.clip(start, end, flags), c.inside);
    if (c.inside) CHECK(start == c.first && end == c.last && flags == c.flags);
  }
  const CaptureWindow open{1, {1000, 0}, {}};
  std::uint64_t start = 1500, end = 0;
  std::uint16_t flags = 1;
  CHECK(open.clip(start, end, flags) && end == 0 && flags == 1);
}

TEST(the_latest_window_opens_and_closes_once) {
  LatestWindow latest;
  const auto at = [](std::uint64_t time) { return [time] { return std::optional<Moment>({time, 0}); }; };
  latest.close({5, 0});
  CHECK_EQUAL(latest.get().number, 0u);
  CHECK(!latest.open([] { return std::optional<Moment>(); }));
  CHECK(latest.open(at(10)) && latest.is_open());
  CHECK(!latest.open(at(11)));
  CHECK_EQUAL(latest.get().begin.time, 10u);
  latest.close({20, 0});
  latest.close({30, 0});
  CHECK_EQUAL(latest.get().end.time, 20u);
  CHECK(latest.open(at(40)));
  latest.close({35, 0});  // requested before it was open
  CHECK_EQUAL(latest.get().number, 2u);
  CHECK_EQUAL(latest.get().end.time, 40u);
}

TEST(the_release_of_the_driver_is_found_however_it_is_worded) {
  CHECK(release_of("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:") ==
        "535.183.01");
  CHECK(release_of("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (r@b)") == "580.95.05");
  CHECK(release_of("580.1") == "580.1");
  CHECK(release_of("NVRM version: none\n1.2") == "");
  CHECK(release_of("") == "");
}

TEST(options_say_what_they_do_not_understand) {
  Options o;
  std::string error;
  CHECK(parse_options("directory=/tmp; kinds=kernel,api\nmax_memory=1000000;graph=graph;nvtx=0;file_mode=0640", o, error));
  CHECK(o.directory == "/tmp" && o.max_memory == 1'000'000 && !o.graph_nodes && !o.nvtx && o.file_mode == 0640);
  CHECK_EQUAL(o.kinds, bit(Kind::kernel) | bit(Kind::api));
  Options dumped;
  CHECK(parse_options("directory=/a;last_ms=9;dump=/b;dump_when=nvtx:a = b > 1s;dump_when=gpu idle > 2s;dump_limit=7", dumped, error));
  CHECK(dumped.dump_when.size() == 2 && dumped.dump_when[0].name == "a = b" && dumped.dump_limit == 7);
  CHECK(dumped.given[3].second == "nvtx:a = b > 1s; gpu idle > 2s");
  for (const char* bad : {"", "directory=/a;output=/b", "directory=/a;kinds=kernels", "directory=/a;max_memory=many",
                          "directory=/a;colour=red", "directory=/a;api", "directory=/a;flush_ms=0", "directory=/a;dump_when=gpu idle > 1s",
                          "directory=/a;last_ms=9;dump_when=gpu idle > 1s", "directory=/a;last_ms=9;dump=/b;dump_when=gpu > 1s",
                          "directory=/a;last_ms=9;dump=/b;dump_limit=0", "directory=/a;annotate=",
                          "directory=/a;annotate=,a.b", "directory=/a;nvtx=0;annotate=a.b"}) {
    Options other;
    error.clear();
    CHECK(!parse_options(bad, other, error));
    CHECK(!error.empty());
  }
}

TEST(api_filter_keeps_work_and_drops_queries) {
  for (const char* name : {"cudaLaunchKernel_v7000", "cudaLaunchKernelExC_ptsz_v11060", "cudaMemcpyAsync_v3020",
                           "cudaGraphLaunch_v10000", "cudaGraphAddKernelNode_v10000", "cudaStreamSynchronize_v3020", "cudaMallocAsync_v11020",
                           "cudaFreeAsync_ptsz_v11020", "cudaLaunchCooperativeKernel_v9000", "cuLaunchKernelEx",
                           "cuMemcpyHtoDAsync_v2", "cuModuleLoadData", "cuLibraryLoadData", "cuMemAlloc_v2", "cuGraphLaunch"})
    CHECK(keeps_api_call(name));
  for (const char* name : {"cudaGetLastError_v3020", "cudaGetDevice_v3020", "cudaEventQuery_v3020", "cudaEventRecord_v3020",
                           "cudaStreamWaitEvent_v3020", "cudaStreamIsCapturing_v10000", "cudaFuncGetAttributes_v3020",
                           "cuCtxGetCurrent", "cuDeviceGetAttribute", "cuGetProcAddress", "cuEventRecord"})
    CHECK(!keeps_api_call(name));
}

TEST(block_file_writes_what_the_format_says) {
  const std::string path = "/tmp/cutrace-block-" + std::to_string(getpid());
  BlockFile file;
  std::string error;
  CHECK(file.create(path, 0600, 77, 5, error));
  const char json[] = "{\"format\": 1}";
  const iovec payload{const_cast<char*>(json), sizeof json - 1};
  CHECK(file.append({rows::kProcessBlock, 0, 1, 0, 0, false}, {&payload, 1}) == Written::yes);
  CHECK_EQUAL(file.size() % 8, std::uint64_t{0});
  BlockFile second;
  CHECK(!second.create(path, 0600, 78, 6, error));  // one writer a file
  CHECK(error.find("another process") != std::string::npos);
  CHECK(file.close());
  CHECK_EQUAL(CaptureReader(path).processes[0], std::string(json));
  std::filesystem::remove(path);
}

TEST(a_full_disk_leaves_whole_blocks_and_counts_the_rest) {
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string path = "/tmp/cutrace-full-" + std::to_string(getpid());
  {
    Capture capture(1 << 20);
    std::string error;
    CHECK(capture.file().create(path, 0600, 1, 1, error));
    CHECK(capture.process("{}", true));
    const rlimit small{100'000, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    rows::ApiCalls row;
    row.start = 1;
    row.end = 2;
    for (int i = 0; i < 10'000; ++i) capture.add(row);
    capture.flush();
    const rlimit large{RLIM_INFINITY, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &large) == 0);
    capture.add(row);
    capture.flush(true);
  }
  const CaptureReader reader(path);
  CHECK_EQUAL(reader.rows<rows::ApiCalls>().size(), std::size_t{1});
  CHECK_EQUAL(reader.lost(rows::Loss::write_error), std::uint64_t{10'000});
  std::filesystem::remove(path);
}

TEST(a_size_limit_reserves_space_for_the_end) {
  const std::string path = "/tmp/cutrace-limit-" + std::to_string(getpid());
  {
    Capture capture(1 << 20);
    std::string error;
    CHECK(capture.file().create(path, 0600, 1, 1, error));
    capture.file().set_size_limit(200'000);
    CHECK(capture.process("{}", true));
    rows::ApiCalls row;
    row.start = row.end = 1;
    for (int block = 0; block < 10; ++block) {
      for (int i = 0; i < 1000; ++i) capture.add(row);
      capture.flush();
    }
    CHECK(capture.process("{\"ended\": 1}", true));
  }
  CHECK(std::filesystem::file_size(path) <= 200'000);
  const CaptureReader reader(path);
  CHECK(reader.says("ended"));
  CHECK_EQUAL(reader.rows<rows::ApiCalls>().size() + reader.lost(rows::Loss::size_limit), std::size_t{10'000});
  std::filesystem::remove(path);
}

TEST(facts_are_in_every_file_up_to_a_limit_that_is_told) {
  const std::string path = "/tmp/cutrace-facts-" + std::to_string(getpid()), first = path + "-first",
                    second = path + "-second";
  constexpr std::uint32_t kStreams = 20'000;
  {
    Capture capture(1 << 20);
    std::string error;
    CHECK(capture.file().create(path, 0600, 1, 1, error));
    CHECK(capture.process("{}", true));
    for (std::uint32_t i = 0; i < kStreams; ++i) {
      rows::Streams stream;
      stream.stream = i;
      capture.object_info(stream);
    }
    rows::Threads thread;
    thread.thread = 7;
    capture.object_info(thread, "first name");
    capture.object_info(thread, "later name");
    CHECK_EQUAL(capture.events(), std::uint64_t{0});
    capture.flush(true);
    CHECK(capture.file().prepare_next(error) && capture.file().move_to(first, error));
    CHECK(capture.file().switch_to_next(error));
    CHECK(capture.process("{}", true));
    capture.begin_file();
    capture.flush(true);
    CHECK(capture.file().prepare_next(error) && capture.file().move_to(second, error));
    CHECK(capture.file().switch_to_next(error));
    CHECK(capture.process("{}", true));
    capture.begin_file();
    capture.flush(true);
  }
  CHECK_EQUAL(CaptureReader(path).lost(rows::Loss::table_limit), std::uint64_t{0});  // counted once
  CHECK_EQUAL(CaptureReader(first).rows<rows::Streams>().size(), std::size_t{kStreams});
  CHECK_EQUAL(CaptureReader(first).lost(rows::Loss::table_limit), std::uint64_t{0});
  const CaptureReader reader(second);
  const std::size_t kept = reader.rows<rows::Streams>().size();
  CHECK(kept > 10'000 && kept < kStreams);
  CHECK_EQUAL(reader.lost(rows::Loss::table_limit), std::uint64_t{kStreams - kept});
  CHECK_EQUAL(reader.rows<rows::Threads>().size(), std::size_t{1});
  CHECK(reader.text(reader.rows<rows::Threads>()[0].name) == "later name");
  std::filesystem::remove(path);
  std::filesystem::remove(first);
  std::filesystem::remove(second);
}

TEST(json_is_valid_whatever_the_text) {
  CHECK_EQUAL(json_quoted("a\"b\\c\n\x01"), std::string("\"a\\\"b\\\\c\\n\\u0001\""));
  CHECK_EQUAL(json_quoted("\xff\xc3\xa9\xed\xa0\x80"), std::string("\"\xEF\xBF\xBD\xc3\xa9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""));
  JsonObject json;
  json.texts("list", {"a", "b"});
  json.number("n", 5);
  CHECK_EQUAL(json.str(), std::string("{\"list\":[\"a\",\"b\"],\"n\":5}"));
}

TEST(characters_become_utf8_and_are_recognised) {
  std::size_t size = 1;
  for (const std::uint32_t code : {0x41u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    char bytes[4];
    const std::size_t length = put_utf8(code, bytes);
    CHECK(length >= size);
    CHECK_EQUAL(utf8_length({bytes, length}), length);
    CHECK_EQUAL(utf8_length({bytes, length - (length > 1)}), std::size_t{length == 1});
    size = length;
  }
  for (const std::uint32_t code : {0xD800u, 0xDFFFu, 0x110000u, 0xFFFFFFFFu}) {
    char bytes[4];
    CHECK_EQUAL(std::string(bytes, put_utf8(code, bytes)), std::string("\xEF\xBF\xBD"));
  }
  for (const char* bad : {"\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80"})
    CHECK_EQUAL(utf8_length(bad), std::size_t{0});
}

TEST(keys_that_were_chosen_to_collide_do_not) {
  // With constant seeds they make a factor zero, so that all keys have one hash.
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u, kBefore = 0x67654E533D6AF10u;
  std::set<std::uint64_t> mixed, texts;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    mixed.insert(hash_mix(kFactor, i));
    const std::uint64_t block[] = {kBefore ^ kFactor, i};
    texts.insert(hash_bytes(block, sizeof block));
  }
  CHECK_EQUAL(mixed.size(), std::size_t{1000});
  CHECK_EQUAL(texts.size(), std::size_t{1000});
  CHECK(SeededHash()(std::uint64_t{1}) != SeededHash()(std::uint64_t{2}));
}

namespace {

// A CUPTI that enables kinds slowly, calls back meanwhile, and counts requests for names.
struct SlowCupti : CuptiLibrary {
  static inline std::atomic<unsigned> asked{0};
  static inline std::atomic<bool> enabling{false}, enabled{false}, watched{false};
  static inline Enabler enabler;
  static inline Callbacks callbacks;
  static constexpr CUpti_CallbackId kLaunch = 1, kRetain = 2;

  static void call(CUpti_CallbackId id) { enabler.on_callback(CUPTI_CB_DOMAIN_DRIVER_API, id, nullptr); }
  static void resource(CUpti_CallbackId id) { enabler.on_callback(CUPTI_CB_DOMAIN_RESOURCE, id, nullptr); }

  SlowCupti() {
    GetCallbackName = [](CUpti_CallbackDomain domain, std::uint32_t id, const char** name) {
      ++asked;
      const bool known = domain == CUPTI_CB_DOMAIN_DRIVER_API && (id == kLaunch || id == kRetain);
      *name = !known ? nullptr : id == kLaunch ? "cuLaunchKernel" : "cuDevicePrimaryCtxRetain";
      return known ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
    };
    EnableCallback = [](std::uint32_t on, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
      watched = on != 0;
      return CUPTI_SUCCESS;
    };
    ActivityEnable = [](CUpti_ActivityKind kind) {
      enabling = true;
      call(kLaunch);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      enabled = true;
      return kind == CUPTI_ACTIVITY_KIND_MEMSET ? CUPTI_ERROR_NOT_SUPPORTED : CUPTI_SUCCESS;
    };
    ActivityDisable = [](CUpti_ActivityKind) { return CUPTI_SUCCESS; };
    list_api_functions();
    callbacks.add(enabler);
    callbacks.add(capture_watch());
    callbacks.open(*this, nullptr);
  }
};

}  // namespace

TEST_OF_THREADS(threads_with_work_wait_for_the_one_that_enables_kinds) {
  const SlowCupti cupti;
  const auto begin = std::chrono::steady_clock::now();
  Enabler& enabler = SlowCupti::enabler;
  enabler.enable(cupti, SlowCupti::callbacks, bit(Kind::kernel) | bit(Kind::memset), {}, false, true);
  CHECK(!SlowCupti::enabled && !enabler.settled());
  SlowCupti::resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  std::thread first([] { SlowCupti::resource(CUPTI_CBID_RESOURCE_MODULE_LOADED); });
  while (!SlowCupti::enabling) std::this_thread::yield();
  SlowCupti::call(SlowCupti::kRetain);
  CHECK(!SlowCupti::enabled);  // no work
  SlowCupti::call(SlowCupti::kLaunch);
  CHECK(SlowCupti::enabled);
  enabler.settle();
  CHECK(!SlowCupti::watched);
  CHECK_EQUAL(enabler.refused().size(), std::size_t{1});
  first.join();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(4));  // the nested callback did not wait
  enabler.disable();
  enabler.enable(cupti, SlowCupti::callbacks, bit(Kind::kernel), {}, false, false);
  CHECK(enabler.refused().empty());
  enabler.disable();
}

TEST(cupti_is_asked_once_for_its_names) {
  const SlowCupti cupti;
  CHECK_EQUAL(cupti.api_functions().size(), std::size_t{2});
  const unsigned asked = SlowCupti::asked;
  SlowCupti::enabler.enable(cupti, SlowCupti::callbacks, bit(Kind::kernel) | bit(Kind::api), {ApiFilter::launch}, false, true);
  SlowCupti::enabler.settle();
  const Options options;
  Notes notes;
  std::vector<Refusal> refused;
  capture_watch().cupti_loaded(cupti, SlowCupti::callbacks);
  capture_watch().attach({options, cupti, SlowCupti::callbacks, SlowCupti::enabler, notes, refused, false});
  CHECK(cupti.api_function_name(CUPTI_CB_DOMAIN_DRIVER_API, SlowCupti::kLaunch) == "cuLaunchKernel");
  CHECK(cupti.api_function_name(CUPTI_CB_DOMAIN_RUNTIME_API, SlowCupti::kLaunch).empty());
  CHECK_EQUAL(SlowCupti::asked.load(), asked);
}

TEST(the_first_work_is_a_call_that_was_entered_in_the_recording) {
  const SlowCupti cupti;
  FirstWork feature;
  feature.cupti_loaded(cupti, SlowCupti::callbacks);
  const auto call = [&](CUpti_ApiCallbackSite site) {
    CUpti_CallbackData data{};
    data.callbackSite = site;
    feature.on_callback(CUPTI_CB_DOMAIN_DRIVER_API, SlowCupti::kLaunch, &data);
  };
  std::function<void()> meanwhile = [] {};  // the kinds are enabled
  const auto start = [&] {
    const Options options;
    Notes notes;
    std::vector<Refusal> refused;
    const AttachContext context{options, cupti, SlowCupti::callbacks, SlowCupti::enabler, notes, refused, false};
    feature.expect();
    feature.attach(context);
    meanwhile();
    feature.kinds_enabled(context);
  };
  start();
  call(CUPTI_API_EXIT);
  CHECK(!feature.begun() && feature.returned() == 0);
  call(CUPTI_API_ENTER);
  CHECK(feature.begun() && feature.returned() == 0);
  start();
  CHECK(!feature.begun());
  call(CUPTI_API_EXIT);
  CHECK(feature.returned() == 0);
  call(CUPTI_API_ENTER);
  call(CUPTI_API_EXIT);
  CHECK(feature.returned() != 0);
  const std::uint64_t first = feature.returned();
  call(CUPTI_API_ENTER);
  call(CUPTI_API_EXIT);
  CHECK_EQUAL(feature.returned(), first);
  meanwhile = [&] { call(CUPTI_API_ENTER); };
  start();
  CHECK(feature.begun() && feature.returned() == 0);
  call(CUPTI_API_EXIT);
  CHECK(feature.returned() != 0);
  meanwhile = [&] {
    call(CUPTI_API_ENTER);
    call(CUPTI_API_EXIT);
  };
  start();
  CHECK(!feature.begun() && feature.returned() == 0);
}

TEST_OF_THREADS(names_of_threads_are_read_at_their_first_record) {
  const std::string path = "/tmp/cutrace-names-" + std::to_string(getpid());
  const auto self = static_cast<std::uint32_t>(syscall(SYS_gettid));
  std::uint32_t gone = 0;
  {
    Capture capture(1 << 20);
    std::string error;
    CHECK(capture.file().create(path, 0600, 1, 1, error) && capture.process("{}", true));
    ThreadNames names(capture);
    pthread_setname_np(pthread_self(), "first");
    names.seen(self);
    std::thread([&] {
      pthread_setname_np(pthread_self(), "brief");
      ThreadNames::note_this_thread();
      ThreadNames::note_this_thread();
      gone = static_cast<std::uint32_t>(syscall(SYS_gettid));
    }).join();
    for (int i = 0; i < 3; ++i) names.seen(gone);
    names.refresh();
    pthread_setname_np(pthread_self(), "later");
    names.refresh();
    names.refresh();
    capture.flush(true);
  }
  const CaptureReader reader(path);
  std::vector<std::pair<std::uint32_t, std::string>> found;
  for (const auto& row : reader.rows<rows::Threads>()) found.emplace_back(std::uint32_t{row.thread}, reader.text(row.name));
  CHECK((found == std::vector<std::pair<std::uint32_t, std::string>>{{self, "first"}, {gone, "brief"}, {self, "later"}}));
  std::filesystem::remove(path);
}

TEST(a_ring_gives_back_what_went_in_and_says_when_it_is_full) {
  Ring* ring = rings::of_this_thread(1, EventSource::nvtx);
  CHECK(ring != nullptr);
  std::uint64_t written = 0, read = 0, refused = 0;
  const auto drain = [&] {
    ring->drain([&](const std::uint8_t* bytes) {
      nvtx::EventHeader header;
      std::memcpy(&header, bytes, sizeof header);
      CHECK_EQUAL(header.time, read);
      ++read;
    });
  };
  for (int i = 0; i < 200'000; ++i) {
    const std::uint32_t size = 24 + 8 * static_cast<std::uint32_t>(i % 40);
    std::uint8_t* at = ring->reserve(size);
    if (at == nullptr) {
      ++refused;
      drain();
      continue;
    }
    const nvtx::EventHeader header{size, EventType::mark, 0, 0, written++, 0, 0};
    std::memcpy(at, &header, sizeof header);
    ring->commit(size);
  }
  drain();
  CHECK_EQUAL(read, written);
  CHECK(refused > 0);
}

// ---- keys that a program chose to collide ----

namespace {

// An unseeded fast hash of two words: all keys that make one factor 0 have the same hash.
constexpr std::uint64_t kFirst = 0x9E3779B97F4A7C15u, kSecond = 0xD1B54A32D192ED03u;
std::uint64_t unseeded_mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ kFirst) * (b ^ kSecond);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// The keys 0, 1, ... fill the buckets of a table like random keys. The fullest bucket of random keys has seven or eight.
template <typename KeyOf>
void spread_over_buckets(KeyOf&& key_of) {
  std::vector<std::uint32_t> buckets(100'003);
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const std::string key = key_of(i);
    ++buckets[hash_bytes(key.data(), key.size()) % buckets.size()];
  }
  CHECK(*std::max_element(buckets.begin(), buckets.end()) < 20);
}

std::string bytes_of(std::initializer_list<std::uint64_t> words, std::size_t size) {
  std::string text;
  for (const std::uint64_t word : words) text.append(reinterpret_cast<const char*>(&word), sizeof word);
  text.resize(size, 'x');
  return text;
}

std::string launch_of(std::uint64_t grid_xy, std::uint64_t grid_z_block_x, std::uint64_t block_yz) {
  std::string row(sizeof(rows::Launches), '\0');
  std::memcpy(row.data() + offsetof(rows::Launches, grid_x), &grid_xy, 8);
  std::memcpy(row.data() + offsetof(rows::Launches, grid_z), &grid_z_block_x, 8);
  std::memcpy(row.data() + offsetof(rows::Launches, block_y), &block_yz, 8);
  return row;
}

}  // namespace

TEST(strings_that_were_made_to_collide_are_spread_over_buckets) {
  const std::uint64_t first = unseeded_mix(15, 0x2545F4914F6CDD1Du) ^ kFirst;
  spread_over_buckets([&](std::uint64_t i) { return bytes_of({first, i}, 15); });
}
TEST(strings_that_collide_whatever_comes_before_are_spread_over_buckets) {  // a seed in only the first step has no effect
  spread_over_buckets([](std::uint64_t i) { return bytes_of({i, kSecond}, 20); });
}

TEST(launches_that_were_made_to_collide_are_spread_over_buckets) {
  const std::uint64_t start = unseeded_mix(sizeof(rows::Launches), 0x2545F4914F6CDD1Du);
  const std::uint64_t first = unseeded_mix(start ^ (std::uint64_t{1} << 32), 1) ^ kFirst;  // the name is number 1
  spread_over_buckets([&](std::uint64_t i) { return launch_of(1, first, i); });
}
TEST(launches_that_collide_whatever_comes_before_are_spread_over_buckets) {
  spread_over_buckets([](std::uint64_t i) { return launch_of(1, i, kSecond); });
}

namespace {

constexpr std::uint64_t node_id(std::uint32_t graph, std::uint32_t index) { return (std::uint64_t{graph} << 32) + index; }

// Reports the copy of a node as CUPTI does.
void copy_node(GraphNodes& nodes, std::uint64_t node, std::uint64_t original) {
  nodes.created(node, 9, 1, "[\"instantiate\"]");
  nodes.copied(node, original, 1);
}

}  // namespace

// Graph 1 has a conditional node, graph 2 is its body of two kernels. The executable graph 3 has the body at indices 1 and 2.
TEST(inner_graph_nodes_have_an_origin_unless_a_number_contradicts) {
  for (const std::uint32_t added : {2u, 3u, 4u}) {
    GraphNodes nodes(1 << 20);
    nodes.created(node_id(1, 0), 5, 1, "");
    nodes.created(node_id(2, 0), 6, 1, "[\"a\"]");
    nodes.created(node_id(2, 1), 7, 1, "[\"b\"]");
    copy_node(nodes, node_id(4, 0), node_id(2, 0));
    copy_node(nodes, node_id(4, 1), node_id(2, 1));
    copy_node(nodes, node_id(3, 0), node_id(1, 0));
    nodes.created(node_id(3, added), 9, 1, "[\"instantiate\"]");  // by the driver
    nodes.instantiated(3, true);
    for (const std::uint32_t index : {1u, 2u}) {
      const GraphNodes::Node* const inner = nodes.first_use(node_id(3, index), 1);
      CHECK_EQUAL(inner != nullptr, added == 3);
      if (inner == nullptr) continue;
      CHECK(inner->created == 5 + index && inner->ranges->first == (index == 1 ? "[\"a\"]" : "[\"b\"]"));
      CHECK_EQUAL(inner->original, node_id(2, index - 1));
    }
    CHECK(nodes.first_use(node_id(3, added), 1) == nullptr);
  }
}

TEST(inner_graph_nodes_have_no_origin_where_they_could_be_others) {
  for (const bool complete : {true, false}) {
    GraphNodes nodes(1 << 20);
    nodes.created(node_id(1, 0), 5, 1, "");
    for (const std::uint32_t body : {2u, 3u}) nodes.created(node_id(body, 0), 6, 1, "");
    copy_node(nodes, node_id(5, 0), node_id(2, 0));
    if (complete) copy_node(nodes, node_id(6, 0), node_id(3, 0));  // two bodies
    copy_node(nodes, node_id(4, 0), node_id(1, 0));
    nodes.instantiated(4, complete);
    CHECK(nodes.first_use(node_id(4, 0), 1) != nullptr);
    CHECK(nodes.first_use(node_id(4, 1), 1) == nullptr && nodes.first_use(node_id(4, 2), 1) == nullptr);
  }
}

// A recording can end between the two callbacks for a copy, and still record its work.
TEST(nodes_have_no_origin_before_their_original_is_known) {
  GraphNodes nodes(1 << 20);
  nodes.created(node_id(1, 0), 5, 1, "[\"a\"]");
  nodes.created(node_id(2, 0), 9, 1, "[\"instantiate\"]");
  CHECK(nodes.first_use(node_id(2, 0), 1) == nullptr);
  nodes.copied(node_id(2, 0), node_id(1, 0), 1);
  const GraphNodes::Node* const node = nodes.first_use(node_id(2, 0), 1);
  CHECK(node != nullptr && node->ranges->first == "[\"a\"]");
}

TEST(graphs_in_use_keep_their_origins) {
  GraphNodes nodes(64 << 10);
  nodes.created(node_id(1, 0), 5, 1, "[\"kept\"]");
  copy_node(nodes, node_id(5000, 0), node_id(1, 0));
  for (std::uint32_t graph = 2; graph < 1000; ++graph) {
    for (std::uint32_t i = 0; i < 20; ++i) nodes.created(node_id(graph, i), 5, 1, "[\"step " + std::to_string(graph) + "\"]");
    CHECK(nodes.first_use(node_id(5000, 0), graph) != nullptr);
    CHECK(nodes.memory() <= 64 << 10);
  }
  CHECK(nodes.first_use(node_id(2, 0), 1) == nullptr);
  CHECK_EQUAL(nodes.take_dropped(), std::uint64_t{0});  // none of them was executable
  for (std::uint32_t i = 0; i < 10'000; ++i) nodes.created(node_id(2000, i), 5, 1, "");
  CHECK(nodes.take_dropped() != 0);  // one graph is larger than the limit
}

int main(int argc, char** argv) { return check::main(argc, argv); }
