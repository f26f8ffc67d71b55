// The collector on the fake CUPTI: the rows of the capture, and the counts of losses.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <thread>

#include <dlfcn.h>

#include "capture_reader.h"
#include "cuda/cupti_library.h"
#include "collector/features/pc_sampling/source_lines.h"
#include "collector_under_test.h"
#include "fake_cupti.h"

using namespace cutrace;

namespace {

// Subscribes like another tool, with or without sharing.
CUptiResult other_tool(CUpti_SubscriberHandle& handle, bool shares) {
  shared::SubscriberParams params;
  params.allow_others = shares;
  auto* subscribe = reinterpret_cast<decltype(shared::Calls::Subscribe)>(dlsym(RTLD_DEFAULT, "cuptiSubscribe_v2"));
  return subscribe(&handle, [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}, nullptr, &params);
}

}  // namespace

TEST_OF_THREADS(launches_from_many_threads_all_arrive) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options());
  constexpr int kThreads = 8, kEach = 1'500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([t] {
      static constexpr const char* kNames[kThreads] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};
      for (int i = 0; i < kEach; ++i) {
        fake_launch(kNames[t], 1 + static_cast<std::uint32_t>(i % 3), 7, false);
        if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader capture(folder.only());
  const auto kernels = capture.rows<rows::Kernels>();
  const auto calls = capture.rows<rows::ApiCalls>();
  // A machine with few cores may not keep up; losses must then be counted.
  CHECK_EQUAL(kernels.size() + calls.size() + capture.lost(rows::Loss::memory_limit), std::size_t{2 * kThreads * kEach});
  std::set<std::uint32_t> seen;
  for (const rows::Kernels& k : kernels) CHECK(seen.insert(std::uint32_t{k.correlation}).second);
  CHECK_EQUAL(capture.rows<rows::Launches>().size(), std::size_t{kThreads * 3});
  CHECK_EQUAL(capture.text(capture.rows<rows::Functions>().at(0).name), std::string("cudaLaunchKernel"));
  CHECK(capture.says("\"ended\""));
  CHECK(capture.says("\"cupti_version\":130001"));
}

TEST(buffers_that_come_late_and_in_reverse_lose_nothing) {
  Collector collector;
  Folder folder;
  fake_deliver_late_and_reversed(true);
  collector.begin(folder.options("buffer_size=8192;flush_ms=5"));
  for (int i = 0; i < 5000; ++i) CHECK(fake_launch("k", 1, 1, false));
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Kernels>().size(), std::size_t{5000});
}

TEST(every_kind_of_record_becomes_its_row) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("kinds=kernel,memcpy,memset,api,sync,event,memory,pool,overhead,device,context,stream,"
                                 "name,module,jit,unified_memory,environment,external,nvtx"));
  auto device = make<CUpti_ActivityDevice5>(CUPTI_ACTIVITY_KIND_DEVICE);
  device.name = "Fake GPU";
  device.numMultiprocessors = 132;
  device.numThreadsPerWarp = 32;
  device.maxWarpsPerMultiprocessor = 64;
  device.isCudaVisible = 1;
  put(device);
  auto context = make<CUpti_ActivityContext3>(CUPTI_ACTIVITY_KIND_CONTEXT);
  context.contextId = 1;
  context.nullStreamId = 7;
  put(context);
  auto stream = make<CUpti_ActivityStream>(CUPTI_ACTIVITY_KIND_STREAM);
  stream.streamId = 13;
  stream.priority = static_cast<std::uint32_t>(-1);
  put(stream);
  auto copy = make<CUpti_ActivityMemcpy5>(CUPTI_ACTIVITY_KIND_MEMCPY);
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  copy.bytes = 4096;
  copy.start = 100;
  copy.end = 200;
  copy.flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
  put(copy);
  auto peer = make<CUpti_ActivityMemcpyPtoP4>(CUPTI_ACTIVITY_KIND_MEMCPY2);
  peer.contextId = peer.srcContextId = 1;
  peer.dstContextId = 2;
  peer.dstDeviceId = 1;
  peer.start = 100;
  peer.end = 200;
  put(peer);
  auto fill = make<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
  fill.value = 255;
  fill.bytes = 64;
  fill.start = 100;
  fill.end = 200;
  put(fill);
  auto sync = make<CUpti_ActivitySynchronization2>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
  sync.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
  sync.streamId = 13;
  sync.cudaEventId = CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  sync.returnValue = 2;
  sync.start = 100;
  sync.end = 200;
  put(sync);
  auto event = make<CUpti_ActivityCudaEvent2>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
  event.eventId = 3;
  event.cudaEventSyncId = 9;
  put(event);
  auto overhead = make<CUpti_ActivityOverhead3>(CUPTI_ACTIVITY_KIND_OVERHEAD);
  overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
  overhead.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
  overhead.objectId.pt.threadId = 99;
  overhead.start = 100;
  overhead.end = 200;
  put(overhead);
  auto name = make<CUpti_ActivityName>(CUPTI_ACTIVITY_KIND_NAME);
  name.objectKind = CUPTI_ACTIVITY_OBJECT_STREAM;
  name.objectId.dcs.streamId = 13;
  name.name = "copy stream";
  put(name);
  auto external = make<CUpti_ActivityExternalCorrelation>(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
  external.externalId = 77;
  put(external);
  auto unified = make<CUpti_ActivityUnifiedMemoryCounter2>(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
  unified.value = 65536;
  unified.start = 100;
  put(unified);
  auto jit = make<CUpti_ActivityJit2>(CUPTI_ACTIVITY_KIND_JIT);
  jit.cachePath = "/cache/1";
  jit.threadId = 5;
  jit.start = 100;
  jit.end = 200;
  put(jit);
  auto environment = make<CUpti_ActivityEnvironment>(CUPTI_ACTIVITY_KIND_ENVIRONMENT);
  environment.timestamp = 150;
  environment.environmentKind = CUPTI_ACTIVITY_ENVIRONMENT_SPEED;
  environment.data.speed.smClock = 1980;
  environment.data.speed.memoryClock = 2619;
  put(environment);
  auto module = make<CUpti_ActivityModule>(CUPTI_ACTIVITY_KIND_MODULE);
  module.id = 4;
  put(module);
  auto function = make<CUpti_ActivityFunction>(CUPTI_ACTIVITY_KIND_FUNCTION);
  function.name = "_Z4axpy";
  put(function);
  CHECK_EQUAL(collector.stop(), 0);

  const CaptureReader c(folder.only());
  const auto devices = c.rows<rows::Devices>();
  CHECK_EQUAL(devices.size(), std::size_t{1});
  CHECK_EQUAL(c.text(devices[0].name), std::string("Fake GPU"));
  CHECK(devices[0].multiprocessors == 132 && devices[0].max_threads_per_multiprocessor == 2048);
  CHECK_EQUAL(c.rows<rows::Contexts>().at(0).null_stream, 7u);
  CHECK_EQUAL(c.rows<rows::Streams>().at(0).priority, -1);
  const auto copies = c.rows<rows::Memcpys>();
  CHECK_EQUAL(copies.size(), std::size_t{2});
  CHECK(copies[0].bytes == 4096 && copies[0].kind == 1 && copies[0].flags == 1);
  CHECK(copies[1].peer_context == 2 && copies[1].destination_device == 1);
  CHECK_EQUAL(c.rows<rows::Memsets>().at(0).value, 255u);
  const auto waits = c.rows<rows::Synchronizations>();
  CHECK(waits.at(0).stream == 13 && waits[0].event == 0 && waits[0].status == 2 && waits[0].type == 3);
  CHECK_EQUAL(c.rows<rows::CudaEvents>().at(0).event_record, std::uint64_t{9});
  CHECK_EQUAL(c.rows<rows::Overheads>().at(0).thread, 99u);
  CHECK_EQUAL(c.text(c.rows<rows::ResourceNames>().at(0).name), std::string("copy stream"));
  CHECK_EQUAL(c.rows<rows::ExternalCorrelations>().at(0).external, std::uint64_t{77});
  CHECK_EQUAL(c.rows<rows::UnifiedMemory>().at(0).value, std::uint64_t{65536});
  CHECK_EQUAL(c.text(c.rows<rows::Jit>().at(0).cache_path), std::string("/cache/1"));
  CHECK_EQUAL(c.rows<rows::Environment>().at(0).values & 0xFFFFFFFF, std::uint64_t{1980 | (2619u << 16)});
  CHECK_EQUAL(c.rows<rows::Modules>().at(0).module, 4u);
  CHECK_EQUAL(c.text(c.rows<rows::DeviceFunctions>().at(0).name), std::string("_Z4axpy"));
  CHECK(c.rows<rows::Clocks>().size() >= 2);
  CHECK_EQUAL(c.rows<rows::Losses>().size(), std::size_t{0});
}

TEST_OF_THREADS(a_queue_that_stays_full_is_one_row_a_thread) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=60000"));
  constexpr std::uint64_t kMillisecond = 1'000'000;
  const auto wait = [](std::uint32_t thread, std::uint64_t start, std::uint32_t correlation) {
    auto overhead = make<CUpti_ActivityOverhead3>(CUPTI_ACTIVITY_KIND_OVERHEAD);
    overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL;
    overhead.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
    overhead.objectId.pt.threadId = thread;
    overhead.correlationId = correlation;
    overhead.start = start;
    overhead.end = start + 2000;
    put(overhead);
  };
  for (std::uint32_t i = 0; i < 1000; ++i) {  // a wait every 10 us, alternating between two threads
    wait(5, kMillisecond + i * 10'000u, 1 + i);
    wait(6, kMillisecond + i * 10'000u + 5000, 5000 + i);
  }
  wait(5, 20 * kMillisecond, 3000);  // after a pause, and again
  CHECK_EQUAL(collector.stop(), 0);

  auto spells = CaptureReader(folder.only()).rows<rows::Overheads>();
  CHECK_EQUAL(spells.size(), std::size_t{3});
  std::sort(spells.begin(), spells.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  const std::uint64_t last = kMillisecond + 999 * 10'000 + 2000;
  CHECK(spells[0].thread == 5 && spells[0].start == kMillisecond && spells[0].end == last && spells[0].correlation == 1);
  CHECK(spells[1].thread == 6 && spells[1].end == last + 5000);
  CHECK(spells[2].thread == 5 && spells[2].start == 20 * kMillisecond && spells[2].end == spells[2].start + 2000);
}

TEST(a_spell_of_a_full_queue_is_in_the_file_after_a_flush) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=60000"));
  auto overhead = make<CUpti_ActivityOverhead3>(CUPTI_ACTIVITY_KIND_OVERHEAD);
  overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL;
  overhead.start = 100;
  overhead.end = 200;
  put(overhead);
  CHECK_EQUAL(collector.flush(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Overheads>().size(), std::size_t{1});
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Overheads>().size(), std::size_t{1});
}

TEST(records_of_cupti_12_0_are_read_without_what_came_later) {
  Collector collector;
  Folder folder;
  fake_set_version(19);
  collector.begin(folder.options("kinds=kernel,api,sync,event"));
  for (int i = 0; i < 3; ++i) {
    auto sync = make<CUpti_ActivitySynchronization>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
    sync.start = 100;
    sync.end = 200;
    sync.cudaEventId = 5;
    put(sync);
    auto event = make<CUpti_ActivityCudaEvent>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
    event.eventId = 6;
    put(event);
    CHECK(fake_launch("k", 1, 1, false));
  }
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{3});
  for (const auto& wait : c.rows<rows::Synchronizations>()) CHECK(wait.event_record == 0 && wait.status == 0 && wait.event == 5);
  for (const auto& event : c.rows<rows::CudaEvents>()) CHECK(event.device_time == 0 && event.event_record == 0);
}

TEST(losses_are_counted_by_their_cause) {
  Collector collector;
  Folder folder;
  fake_refuse_kind(CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ERROR_NOT_SUPPORTED);
  collector.begin(folder.options());
  CHECK(fake_launch("k", 1, 1, true));
  fake_drop(5);
  CHECK_EQUAL(collector.flush(), 0);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.lost(rows::Loss::unknown_time), std::uint64_t{1});
  CHECK_EQUAL(c.lost(rows::Loss::cupti_dropped), std::uint64_t{5});
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{1});
  CHECK(c.says("memset (CUPTI_ERROR_NOT_SUPPORTED)"));
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{1});  // still written
  CHECK_EQUAL(collector.statistics().records_dropped, std::uint64_t{5});
}

TEST(graph_kernels_without_times_are_explained) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options());
  auto kernel = make<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  kernel.graphNodeId = 5;
  kernel.name = "node";
  put(kernel);
  CHECK_EQUAL(collector.flush(), 0);
  CHECK_EQUAL(collector.flush(), 0);
  CHECK(CaptureReader(folder.only(), true).says("1 kernels of CUDA graphs came without times"));  // at once
  put(kernel);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK(c.says("2 kernels of CUDA graphs came without times"));
  CHECK_EQUAL(c.lost(rows::Loss::unknown_time), std::uint64_t{2});
}

TEST(at_the_memory_limit_records_are_refused_and_counted) {
  Collector collector;
  Folder folder;
  fake_deliver_late_and_reversed(true);  // no buffer is completed before a flush
  collector.begin(folder.options("max_memory=1048576;buffer_size=65536;flush_ms=60000"));
  std::size_t kept = 0, refused = 0;
  for (int i = 0; i < 10'000; ++i) fake_launch("k", 1, 1, false) ? ++kept : ++refused;
  CHECK(refused > 0);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  const std::size_t rows = c.rows<rows::Kernels>().size() + c.rows<rows::ApiCalls>().size();
  CHECK_EQUAL(rows + c.lost(rows::Loss::memory_limit), std::size_t{20'000});
  CHECK(c.lost(rows::Loss::memory_limit) > 0);
  CHECK(collector.statistics().memory_bytes < 3'000'000);
}

TEST(the_api_filter_goes_by_call) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("api=launch"));
  CHECK(fake_call_is_enabled(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeLaunchKernel));
  CHECK(fake_call_is_enabled(CUPTI_CB_DOMAIN_DRIVER_API, kFakeDriverLaunch));
  CHECK(!fake_call_is_enabled(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeGetDevice));
  CHECK(!fake_is_enabled(CUPTI_ACTIVITY_KIND_KERNEL));  // would make kernels run one by one
  CHECK_EQUAL(collector.stop(), 0);
  CHECK(!fake_call_is_enabled(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeLaunchKernel));
  collector.begin(folder.options("api=all"));
  CHECK(fake_call_is_enabled(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeGetDevice));
  CHECK_EQUAL(collector.stop(), 0);
  collector.begin(folder.options("api=none;kinds=kernel,api"));
  CHECK(!fake_call_is_enabled(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeLaunchKernel));
  CHECK(fake_is_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) && !fake_is_enabled(CUPTI_ACTIVITY_KIND_MEMCPY));
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(another_tool_that_holds_cupti_is_left_alone) {
  Collector collector;
  Folder folder;
  fake_fail_subscribe(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  collector.begin(folder.options());
  CHECK(!fake_is_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CHECK_EQUAL(collector.mark("still here"), 0);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK(c.says("another tool holds CUPTI"));
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{1});
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size(), std::size_t{1});
}

TEST(a_tool_that_shares_cupti_is_joined) {
  Collector collector;
  Folder folder;
  fake_can_share(true);
  CUpti_SubscriberHandle other = nullptr;
  CHECK_EQUAL(other_tool(other, true), CUPTI_SUCCESS);
  collector.begin(folder.options());
  CHECK_EQUAL(fake_subscribers(), 2u);
  for (int i = 0; i < 5000; ++i) fake_launch("k", 1, 7, false);
  CHECK_EQUAL(collector.flush(), 0);
  for (int i = 0; i < 5000; ++i) fake_launch("k", 1, 7, false);
  fake_drop(3);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(fake_subscribers(), 1u);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{10000});
  CHECK_EQUAL(c.lost(rows::Loss::cupti_dropped), 3u);
  CHECK(!c.says("not recorded"));
  CHECK(!c.says("REALTIME"));
}

TEST(beside_a_tool_that_records_times_are_converted) {
  Collector collector;
  Folder folder;
  fake_can_share(true);
  CUpti_SubscriberHandle other = nullptr;
  CHECK_EQUAL(other_tool(other, true), CUPTI_SUCCESS);
  auto* enable = reinterpret_cast<decltype(shared::Calls::ActivityEnable)>(dlsym(RTLD_DEFAULT, "cuptiActivityEnable_v2"));
  CHECK_EQUAL(enable(other, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, nullptr), CUPTI_SUCCESS);
  collector.begin(folder.options() + "share=1");
  const std::uint64_t before = collector.now();
  fake_launch("k", 1, 7, false);
  fake_launch("k", 1, 7, true);
  const std::uint64_t after = collector.now();
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK(c.says("while another tool records"));
  constexpr std::uint64_t kNear = 5'000'000;
  const auto kernels = c.rows<rows::Kernels>();
  CHECK_EQUAL(kernels.size(), std::size_t{2});
  for (const auto& kernel : kernels) CHECK(kernel.start + kNear > before && kernel.start < after + kNear);
  CHECK_EQUAL(kernels[0].end, kernels[0].start + 1000);
  CHECK_EQUAL(kernels[1].end, std::uint64_t{0});  // unknown
  for (const auto& call : c.rows<rows::ApiCalls>()) CHECK(call.start + kNear > before && call.end < after + kNear);
}

TEST(what_cupti_drops_after_the_end_is_no_loss) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options());
  fake_launch("k", 1, 7, false);
  fake_drop(1);
  fake_drop_at_unsubscribe(2);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).lost(rows::Loss::cupti_dropped), 1u);
  Folder next;
  collector.begin(next.options());
  fake_launch("k", 1, 7, false);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(next.only()).lost(rows::Loss::cupti_dropped), 0u);
}

TEST(a_tool_that_does_not_share_is_left_alone_and_named) {
  Collector collector;
  Folder folder;
  fake_can_share(true);
  CUpti_SubscriberHandle other = nullptr;
  CHECK_EQUAL(other_tool(other, false), CUPTI_SUCCESS);
  collector.begin(folder.options());
  CHECK_EQUAL(fake_subscribers(), 1u);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK(CaptureReader(folder.only()).says("an old tool"));
}

TEST(others_may_join_when_that_is_asked_for) {
  Collector collector;
  Folder folder;
  fake_can_share(true);
  collector.begin(folder.options() + "share=1");
  CUpti_SubscriberHandle other = nullptr;
  fake_launch("k", 1, 7, false);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(fake_subscribers(), 0u);
  const CaptureReader first(folder.only());
  CHECK_EQUAL(first.rows<rows::Kernels>().size(), std::size_t{1});
  CHECK(!first.says("no other tool"));
  CHECK_EQUAL(other_tool(other, true), CUPTI_SUCCESS);
}

TEST(where_cupti_cannot_be_shared_it_is_taken_alone_and_that_is_said) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options() + "share=1");
  fake_launch("k", 1, 7, false);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{1});
  CHECK(c.says("CUPTI serves no other tool"));
}

TEST(a_recording_alone_after_a_shared_one) {
  Collector collector;
  fake_can_share(true);
  for (const char* share : {"share=1", "share=0", "share=1"}) {
    Folder folder;
    collector.begin(folder.options() + share);
    for (int i = 0; i < 100; ++i) fake_launch("k", 1, 7, false);
    CHECK_EQUAL(collector.stop(), 0);
    CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Kernels>().size(), std::size_t{100});
  }
}

TEST(without_libcupti_the_capture_says_so) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(collector.start((folder.options() + "cupti=/nowhere/libcupti.so").c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  CHECK_EQUAL(collector.statistics().cupti_active, 0u);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK(c.says("GPU activity is not recorded"));
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{1});
}

TEST(instructions_are_traced_to_lines_of_their_module) {
  CuptiLibrary cupti;
  std::string error;
  CHECK(cupti.load(fake_path(), error));
  SourceLines lines(cupti);
  const std::string text = "_Z4axpyPfi /home/me/axpy.cu 10\n_Z4plainv\n", other = "_Z4axpyPfi axpy.cu 70\n";
  const auto crc = [&](const std::string& cubin) {
    CUpti_GetCubinCrcParams params{};
    params.size = CUpti_GetCubinCrcParamsSize;
    params.cubin = cubin.data();
    params.cubinSize = cubin.size();
    CHECK_EQUAL(cupti.GetCubinCrc(&params), CUPTI_SUCCESS);
    return params.cubinCrc;
  };
  lines.add(text.data(), text.size());
  lines.add(other.data(), other.size());
  const SourceLine found = lines.find(crc(text), "_Z4axpyPfi", 64);
  CHECK_EQUAL(found.file, "/home/me/axpy.cu");
  CHECK_EQUAL(found.line, 12u);
  CHECK_EQUAL(lines.find(crc(other), "_Z4axpyPfi", 0).line, 70u);
  CHECK(lines.find(crc(text), "_Z4plainv", 0).file.empty());
  CHECK(lines.find(crc(text), "_Z7unknownv", 0).file.empty());
  CHECK(lines.find(1, "_Z4axpyPfi", 0).file.empty());
  cupti.GetSassToSourceCorrelation = nullptr;
  CHECK(lines.find(crc(text), "_Z4axpyPfi", 0).file.empty());
}

TEST(a_module_that_is_loaded_again_and_again_is_kept_once) {
  CuptiLibrary cupti;
  std::string error;
  CHECK(cupti.load(fake_path(), error));
  SourceLines lines(cupti, 100);
  const std::string again(40, 'a'), other(60, 'b');
  for (int i = 0; i < 10; ++i) {
    CHECK(lines.add(again.data(), again.size()));
    CHECK_EQUAL(lines.add(again.data(), again.size()), i == 0);  // a later row is already kept
    CHECK(!lines.add(again.data(), again.size()));
    lines.drop_repeated();
    CHECK(lines.add(other.data(), other.size()));
    CHECK(!lines.add("c", 1));
    fake_fail("GetCubinCrc", 999);
    lines.drop_repeated();
    fake_fail("GetCubinCrc", 0);
  }
}

bool records_kernels() { return fake_is_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }

TEST(gpu_kinds_wait_for_a_module_and_calls_do_not) {
  Collector collector;
  Folder folder;
  fake_refuse_kind(CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(collector.start((folder.options("kinds=kernel,memcpy,memset,overhead,api") + ";cupti=" + fake_path()).c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  CHECK(fake_call_is_enabled(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeLaunchKernel));
  CHECK(fake_is_enabled(CUPTI_ACTIVITY_KIND_OVERHEAD));
  fake_create_context();
  CHECK(!records_kernels() && !fake_is_enabled(CUPTI_ACTIVITY_KIND_MEMCPY));
  fake_load_module();
  CHECK(records_kernels() && fake_is_enabled(CUPTI_ACTIVITY_KIND_MEMCPY));
  const unsigned callbacks = fake_callbacks();
  fake_create_context();  // no kind waits any more
  fake_load_module();
  CHECK_EQUAL(fake_callbacks(), callbacks);
  CHECK(fake_launch("first", 1, 1, false));
  CHECK_EQUAL(collector.stop(), 0);
  CHECK(!records_kernels() && !fake_is_enabled(CUPTI_ACTIVITY_KIND_OVERHEAD));
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{1});
  CHECK(c.says("CUPTI refused to record memset"));
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{1});
}

TEST(a_copy_before_any_module_is_recorded) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(collector.start((folder.options() + ";cupti=" + fake_path()).c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  fake_create_context();
  fake_enter_call(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeGetDevice);
  CHECK(!records_kernels());
  fake_enter_call(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeMemcpyAsync);
  CHECK(records_kernels());
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(a_first_call_that_makes_the_context_on_its_way_is_recorded) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(collector.start((folder.options() + ";cupti=" + fake_path()).c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  fake_enter_call(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeMemcpyAsync);
  CHECK(!records_kernels());
  fake_create_context();
  CHECK(!fake_kernels_were_enabled_inside_context_creation());
  CHECK(records_kernels());
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(a_recording_that_ends_before_there_is_a_context_enables_nothing_later) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(collector.start((folder.options() + ";cupti=" + fake_path()).c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  CHECK_EQUAL(collector.stop(), 0);
  fake_create_context();
  fake_load_module();
  CHECK(!records_kernels());
  CHECK(CaptureReader(folder.only()).says("\"ended\""));
}

TEST_OF_THREADS(start_and_stop_many_times) {
  constexpr std::size_t kRecordings = 15;
  Collector collector;
  Folder folder;
  std::uint64_t memory = 0;
  for (std::size_t i = 0; i < kRecordings; ++i) {
    collector.begin(folder.options());
    CHECK(collector.start(folder.options().c_str()) != 0);  // one recording at a time
    CHECK(std::string(collector.last_error()).find("already running") != std::string::npos);
    CHECK_EQUAL(fake_subscribers(), 1u);
    for (int k = 0; k < 10; ++k) CHECK(fake_launch("k", 1, 1, false));
    CHECK_EQUAL(collector.stop(), 0);
    CHECK_EQUAL(fake_subscribers(), 0u);
    if (i == 4) memory = collector.statistics().memory_bytes;
  }
  CHECK(collector.statistics().memory_bytes <= memory + (1 << 18));
  CHECK(collector.stop() != 0);
  const auto captures = folder.captures();
  CHECK_EQUAL(captures.size(), kRecordings);
  for (const std::string& path : captures) CHECK_EQUAL(CaptureReader(path).rows<rows::Kernels>().size(), std::size_t{10});
}

TEST_OF_THREADS(launches_during_stop_neither_crash_nor_leak_into_the_next_recording) {
  Collector collector;
  Folder folder;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!done.load()) fake_launch("busy", 1, 1, false);
    });
  for (int i = 0; i < 4; ++i) {
    collector.begin(folder.options("flush_ms=3"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK_EQUAL(collector.stop(), 0);
  }
  done = true;
  for (auto& thread : threads) thread.join();
  for (const std::string& path : folder.captures()) CHECK(CaptureReader(path).says("ended"));
}

TEST(flush_puts_everything_so_far_into_the_file) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=60000"));
  for (int i = 0; i < 100; ++i) CHECK(fake_launch("k", 1, 1, false));
  CHECK_EQUAL(collector.flush(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Kernels>().size(), std::size_t{100});
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(an_idle_program_is_not_flushed) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=5"));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_EQUAL(fake_flushes(), 0u);
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(a_slow_flush_holds_up_nobody) {
  Collector collector;
  Folder folder;
  fake_set_flush_delay(60'000);
  collector.begin(folder.options("flush_ms=5;buffer_size=8192"));
  for (int i = 0; i < 20'000; ++i) CHECK(fake_launch("k", 1, 1, false));
  CHECK_EQUAL(collector.mark("during"), 0);
  // The writer continues during the first flush.
  for (int i = 0; i < 20'000 && (fake_flushes() == 0 || collector.statistics().rows_written <= 30'000); ++i) sleep_ms(1);
  CHECK(collector.statistics().rows_written > 30'000);
  CHECK_EQUAL(fake_flushes(), 1u);
  fake_set_flush_delay(0);
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(output_names_one_file_and_its_mode_holds) {
  Collector collector;
  Folder folder;
  const std::string path = folder.path + "/run.bin";
  CHECK_EQUAL(collector.start(("output=" + path + ";file_mode=0600").c_str()), 0);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK(CaptureReader(path).says("\"ended\""));
  CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::all) ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST(an_unwritable_place_is_refused_with_a_reason) {
  Collector collector;
  CHECK(collector.start("directory=/nowhere/at/all") != 0);
  CHECK(std::string(collector.last_error()).find("/nowhere/at/all") != std::string::npos);
  CHECK_EQUAL(collector.running(), 0);
  CHECK(collector.start("output=/dev/full") != 0);
  CHECK(std::string(collector.last_error()).find("No space left") != std::string::npos);
  CHECK(std::filesystem::is_character_file("/dev/full"));  // only files are removed
  CHECK(collector.start("nonsense") != 0);
  CHECK(collector.mark("x") != 0);
}

#define SAME_PLACE(Old, New, field) static_assert(offsetof(Old, field) == offsetof(New, field))
// The assumptions of activity.cpp, checked against the newest structs of the available headers.
#if CUPTI_API_VERSION >= 130000
SAME_PLACE(CUpti_ActivityKernel9, CUpti_ActivityKernel10, maxActiveClusters);
#endif
#if CUPTI_API_VERSION >= 130500
SAME_PLACE(CUpti_ActivityKernel9, CUpti_ActivityKernel13, start);
SAME_PLACE(CUpti_ActivityKernel9, CUpti_ActivityKernel13, name);
SAME_PLACE(CUpti_ActivityKernel9, CUpti_ActivityKernel13, maxActiveClusters);
SAME_PLACE(CUpti_ActivityMemcpy5, CUpti_ActivityMemcpy7, graphId);
SAME_PLACE(CUpti_ActivityMemset4, CUpti_ActivityMemset5, graphId);
SAME_PLACE(CUpti_ActivityDevice4, CUpti_ActivityDevice6, migUuid);
SAME_PLACE(CUpti_ActivityContext, CUpti_ActivityContext4, nullStreamId);
SAME_PLACE(CUpti_ActivityCudaEvent2, CUpti_ActivityCudaEvent3, cudaEventSyncId);
#endif
SAME_PLACE(CUpti_ActivityMemcpy5, CUpti_ActivityMemcpy6, graphId);
SAME_PLACE(CUpti_ActivitySynchronization, CUpti_ActivitySynchronization2, cudaEventId);
SAME_PLACE(CUpti_ActivityOverhead, CUpti_ActivityOverhead3, end);
SAME_PLACE(CUpti_ActivityUnifiedMemoryCounter2, CUpti_ActivityUnifiedMemoryCounter3, flags);
SAME_PLACE(CUpti_ActivityGraphTrace, CUpti_ActivityGraphTrace2, streamId);
SAME_PLACE(CUpti_ActivityJit, CUpti_ActivityJit2, cachePath);

TEST(a_late_start_knows_the_contexts_that_there_are) {
  Collector collector;
  Folder folder;
  fake_have_context(7);
  CHECK_EQUAL(collector.start(folder.options("flush_ms=5;cupti=" + std::string(fake_path())).c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Contexts>().size(), std::size_t{0});  // inside cuInit()

  Folder late;
  CHECK(dlopen(DRIVER_PATH, RTLD_NOW) != nullptr);
  CHECK_EQUAL(collector.start(late.options("flush_ms=5;cupti=" + std::string(fake_path())).c_str()), 0);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(late.only());
  const auto contexts = c.rows<rows::Contexts>();
  CHECK_EQUAL(contexts.size(), std::size_t{1});
  CHECK_EQUAL(std::uint32_t{contexts[0].context}, 7u);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
