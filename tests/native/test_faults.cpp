// A misbehaving CUPTI: errors from each of its calls, releases with structs of other sizes, slow or nested callbacks,
// short-lived names, competing tools. Nothing may crash, hang or be lost without a count.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_cupti.h"

using namespace cutrace;

namespace {

constexpr std::size_t kLaunches = 500;

// Records with a CUPTI in which `function` always fails. A note of the capture must contain `words`.
void record_without(const char* function, const std::string& words, bool kernels = true, bool calls = true,
                    int error = CUPTI_ERROR_UNKNOWN) {
  Collector collector;
  Folder folder;
  fake_fail(function, error);
  collector.begin(folder.options("flush_ms=5"));
  for (std::size_t i = 0; i < kLaunches; ++i) fake_launch("k", 1, 7, false);
  collector.flush();
  CHECK_EQUAL(collector.mark("still here"), 0);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), kernels ? kLaunches : std::size_t{0});
  CHECK_EQUAL(c.rows<rows::ApiCalls>().size(), calls ? kLaunches : std::size_t{0});
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size(), std::size_t{1});
  CHECK(c.says("\"ended\""));
  if (!words.empty()) CHECK(c.says(words));
  if (words.empty()) CHECK(!c.says("\"notes\""));
}

}  // namespace

TEST(a_version_that_is_not_told_is_read_as_the_oldest) { record_without("GetVersion", ""); }
TEST(a_failing_subscribe_is_said) { record_without("Subscribe", "CUPTI refused a subscriber", false, false); }
TEST(a_failing_unsubscribe_is_no_danger) { record_without("Unsubscribe", ""); }
TEST(failing_buffer_callbacks_are_said) { record_without("ActivityRegisterCallbacks", "CUPTI took no buffers", false, false); }
TEST(failing_kinds_are_said) { record_without("ActivityEnable", "CUPTI refused to record kernel", false); }
TEST(a_failing_disable_is_no_danger) { record_without("ActivityDisable", ""); }
TEST(a_failing_clock_is_said) { record_without("ActivityRegisterTimestampCallback", "on the REALTIME clock"); }
TEST(failing_thread_ids_are_said) { record_without("SetThreadIdType", "gives no system thread ids"); }
TEST(failing_attributes_are_no_danger) { record_without("ActivitySetAttribute", ""); }
TEST(failing_call_filters_are_said) { record_without("ActivityEnableRuntimeApi", "a part of api=launch", true, false); }
TEST(failing_driver_call_filters_are_said) { record_without("ActivityEnableDriverApi", "a part of api=launch"); }
TEST(calls_that_only_newer_drivers_have_are_no_loss) {
  record_without("ActivityEnableDriverApi", "", true, true, CUPTI_ERROR_INVALID_PARAMETER);
}
TEST(failing_call_names_leave_numbers) { record_without("GetCallbackName", "", true, false); }
TEST(failing_callbacks_enable_everything_at_once) { record_without("EnableCallback", "CUPTI refused to record memory (no callback)"); }
TEST(failing_flushes_are_said) { record_without("ActivityFlushAll", "did not return its last records", false, false); }
TEST(a_failing_count_of_drops_is_no_danger) { record_without("ActivityGetNumDroppedRecords", ""); }
TEST(failing_error_names_leave_numbers) {
  fake_fail("ActivityRegisterCallbacks", CUPTI_ERROR_UNKNOWN);
  record_without("GetResultString", "CUPTI error 999", false, false);
}

TEST(buffers_that_cannot_be_read_are_counted) {
  Collector collector;
  Folder folder;
  fake_fail("ActivityGetNextRecord", CUPTI_ERROR_INVALID_KIND);
  collector.begin(folder.options("buffer_size=4096"));
  for (std::size_t i = 0; i < kLaunches; ++i) fake_launch("k", 1, 7, false);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{0});
  CHECK(c.lost(rows::Loss::unknown_record) > 1);
}

TEST(failing_ids_leave_names_of_streams_out) {
  Collector collector;
  Folder folder;
  fake_fail("GetStreamIdEx", CUPTI_ERROR_INVALID_STREAM);
  fake_fail("GetContextId", CUPTI_ERROR_INVALID_CONTEXT);
  collector.begin(folder.options());
  CHECK(fake_launch("k", 1, 7, false));
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Kernels>().size(), std::size_t{1});
}

// ---- releases ----

namespace {

// Records of all sizes in sequence: reading a struct with the size of another release breaks the next record.
void read_records_of(std::uint32_t version) {
  Collector collector;
  Folder folder;
  fake_set_version(version);
  collector.begin(folder.options("kinds=kernel,memcpy,memset,sync,event,memory,pool,overhead,device,context,jit,unified_memory"));
  constexpr std::uint32_t kRounds = 50;
  for (std::uint32_t i = 1; i <= kRounds; ++i) {
    auto kernel = make<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    kernel.name = "node";
    kernel.graphNodeId = i;
    kernel.graphId = 5;
    kernel.start = i;
    kernel.end = i + 1;
    kernel.maxActiveClusters = 3;
    put(kernel);
    auto copy = make<CUpti_ActivityMemcpy5>(CUPTI_ACTIVITY_KIND_MEMCPY);
    copy.bytes = i;
    copy.graphId = 6;
    copy.start = i;
    copy.end = i + 1;
    put(copy);
    auto fill = make<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
    fill.bytes = i;
    fill.graphId = 7;
    fill.start = i;
    fill.end = i + 1;
    put(fill);
    auto sync = make<CUpti_ActivitySynchronization2>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
    sync.cudaEventId = i;
    sync.cudaEventSyncId = i;
    sync.start = i;
    sync.end = i + 1;
    put(sync);
    auto event = make<CUpti_ActivityCudaEvent2>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
    event.eventId = i;
    event.cudaEventSyncId = i;
    put(event);
    auto overhead = make<CUpti_ActivityOverhead3>(CUPTI_ACTIVITY_KIND_OVERHEAD);
    overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
    overhead.start = i;
    overhead.end = i + 1;
    overhead.correlationId = i;
    put(overhead);
    auto context = make<CUpti_ActivityContext>(CUPTI_ACTIVITY_KIND_CONTEXT);
    context.contextId = i;
    context.nullStreamId = static_cast<std::uint16_t>(i);
    put(context);
    auto device = make<CUpti_ActivityDevice4>(CUPTI_ACTIVITY_KIND_DEVICE);
    device.id = i;
    device.name = "GPU";
    device.isCudaVisible = 1;
    put(device);
    auto jit = make<CUpti_ActivityJit2>(CUPTI_ACTIVITY_KIND_JIT);
    jit.cacheSize = i;
    jit.threadId = i;
    jit.start = i;
    jit.end = i + 1;
    put(jit);
    auto unified = make<CUpti_ActivityUnifiedMemoryCounter2>(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
    unified.value = i;
    unified.start = i;
    put(unified);
  }
  CHECK_EQUAL(collector.stop(), 0);

  const CaptureReader c(folder.only());
  const bool second = version >= 20, eighth = version >= 26;
  const auto kernels = c.rows<rows::Kernels>();
  const auto launches = c.rows<rows::Launches>();
  CHECK_EQUAL(kernels.size(), std::size_t{kRounds});
  CHECK_EQUAL(launches.size(), std::size_t{kRounds});
  const auto copies = c.rows<rows::Memcpys>();
  const auto fills = c.rows<rows::Memsets>();
  const auto waits = c.rows<rows::Synchronizations>();
  const auto events = c.rows<rows::CudaEvents>();
  const auto overheads = c.rows<rows::Overheads>();
  const auto contexts = c.rows<rows::Contexts>();
  const auto jits = c.rows<rows::Jit>();
  const auto counters = c.rows<rows::UnifiedMemory>();
  CHECK_EQUAL(c.rows<rows::Devices>().size(), std::size_t{kRounds});
  for (std::uint32_t i = 1; i <= kRounds; ++i) {
    const std::size_t at = i - 1;
    CHECK(kernels.at(at).start == i && launches.at(at).graph_node == i && launches[at].graph == 5);
    CHECK(launches[at].max_active_clusters == 3 && c.text(launches[at].name) == "node");
    CHECK(copies.at(at).bytes == i && copies[at].graph == 6);
    CHECK(fills.at(at).bytes == i && fills[at].graph == 7);
    CHECK(waits.at(at).event == i && waits[at].event_record == (eighth ? i : 0));
    CHECK(events.at(at).event == i && events[at].event_record == (eighth ? i : 0));
    CHECK(overheads.at(at).start == i && overheads[at].correlation == (second ? i : 0));
    CHECK(contexts.at(at).context == i && contexts[at].null_stream == i);
    CHECK(jits.at(at).cache_size == i && jits[at].thread == (eighth ? i : 0));
    CHECK_EQUAL(counters.at(at).value, std::uint64_t{i});
  }
  CHECK_EQUAL(c.rows<rows::Losses>().size(), std::size_t{0});
  CHECK(c.says("\"cupti_version\":" + std::to_string(version)));
}

}  // namespace

TEST(records_of_cupti_12_0) { read_records_of(18); }
TEST(records_of_cupti_12_2) { read_records_of(20); }
TEST(records_of_cupti_12_8) { read_records_of(26); }
TEST(records_of_cupti_12_9) { read_records_of(28); }
TEST(records_of_cupti_13_0) { read_records_of(130000); }
TEST(records_of_cupti_13_1) { read_records_of(130100); }
TEST(records_of_cupti_13_3) { read_records_of(130300); }
TEST(records_of_cupti_13_5) { read_records_of(130500); }

// ---- callbacks and names ----

TEST_OF_THREADS(slow_callbacks_that_come_inside_each_other_lose_nothing) {
  Collector collector;
  Folder folder;
  fake_slow_callbacks(300);
  fake_reenter(true);
  collector.begin(folder.options("buffer_size=8192;flush_ms=2"));
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < kEach; ++i) fake_launch("k", 1, 7, false);
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size() + c.rows<rows::ApiCalls>().size() + c.lost(rows::Loss::memory_limit),
              std::size_t{2 * kThreads * kEach});
}

TEST(names_outlive_their_module) {
  Collector collector;
  Folder folder;
  fake_names_expire(true);
  collector.begin(folder.options("buffer_size=4096;flush_ms=2"));
  for (int i = 0; i < 2000; ++i) fake_launch(i % 2 ? "odd" : "even", 1, 7, false);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  const auto launches = c.rows<rows::Launches>();
  CHECK_EQUAL(launches.size(), std::size_t{2});
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{2000});
  for (const auto& launch : launches) CHECK(c.text(launch.name) == "odd" || c.text(launch.name) == "even");
}

TEST(records_without_any_time_are_kept_apart_and_counted) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options());
  auto kernel = make<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  kernel.name = "k";
  put(kernel);
  auto copy = make<CUpti_ActivityMemcpy5>(CUPTI_ACTIVITY_KIND_MEMCPY);
  put(copy);
  CHECK(fake_launch("endless", 1, 7, true));
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{2});
  CHECK_EQUAL(c.lost(rows::Loss::unknown_time), std::uint64_t{3});
}

TEST(many_kinds_refused_are_each_said) {
  Collector collector;
  Folder folder;
  const int kinds[] = {CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_DEVICE,
                       CUPTI_ACTIVITY_KIND_STREAM, CUPTI_ACTIVITY_KIND_OVERHEAD};
  for (const int kind : kinds) fake_refuse_kind(kind, CUPTI_ERROR_NOT_SUPPORTED);
  collector.begin(folder.options());
  CHECK(fake_launch("k", 1, 7, false));
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{std::size(kinds)});
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{1});
}

TEST(a_tool_that_comes_during_the_recording_is_refused_and_one_before_it_is_found) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options());
  CUpti_SubscriberHandle other = nullptr;
  CHECK(cuptiSubscribe(&other, nullptr, nullptr) != CUPTI_SUCCESS);
  CHECK(fake_launch("k", 1, 7, false));
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Kernels>().size(), std::size_t{1});

  CHECK(cuptiSubscribe(&other, nullptr, nullptr) == CUPTI_SUCCESS);  // now the other tool holds CUPTI
  Folder second;
  collector.begin(second.options());
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(fake_subscribers(), 1u);  // untouched
  CHECK(CaptureReader(second.only()).says("another tool holds CUPTI"));
  CHECK(cuptiUnsubscribe(other) == CUPTI_SUCCESS);
  Folder third;
  collector.begin(third.options());
  CHECK(fake_launch("k", 1, 7, false));
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(third.only()).rows<rows::Kernels>().size(), std::size_t{1});
}

TEST_OF_THREADS(injection_and_starts_from_several_threads_make_one_recording) {
  Collector collector;
  Folder folder;
  setenv("CUTRACE_OPTIONS", folder.options("cupti=" + std::string(fake_path())).c_str(), 1);
  std::atomic<int> ready{0}, started{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      ready.fetch_add(1);
      while (ready.load() < 6) std::this_thread::yield();
      if (t % 2 == 0) {
        CHECK_EQUAL(collector.inject(), 1);
      } else if (collector.start(folder.options("cupti=" + std::string(fake_path())).c_str()) == 0) {
        started.fetch_add(1);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(started.load() <= 1);
  CHECK_EQUAL(collector.running(), 1);
  CHECK_EQUAL(fake_subscribers(), 1u);
  fake_create_context();
  fake_load_module();
  CHECK(fake_launch("k", 1, 7, false));
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::Kernels>().size(), std::size_t{1});
}

int main(int argc, char** argv) { return check::main(argc, argv); }
