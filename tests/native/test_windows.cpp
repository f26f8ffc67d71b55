// Recordings of windows that the program opens and closes. Each window has a complete file with the work that was launched
// inside.
#include <nvtx3/nvToolsExt.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_driver.h"

using namespace cutrace;

namespace {

constexpr std::uint32_t kOne[3] = {1, 1, 1};
constexpr std::uint16_t kBeganBefore = 2, kWentOn = 4;
constexpr int kRuntime = CUPTI_CB_DOMAIN_RUNTIME_API, kDriver = CUPTI_CB_DOMAIN_DRIVER_API;

void launch(const char* name, std::uint64_t duration = 1000, std::uint32_t stream = 7) {
  CHECK_EQUAL(fake_gpu_launch("cudaLaunchKernel", name, kOne, kOne, stream, duration, 0, 0), 0);
}
void profiler(const char* call) { CHECK_EQUAL(fake_gpu_profiler(call), 0); }
void start() { profiler("cudaProfilerStart"); }
void stop() { profiler("cudaProfilerStop"); }

template <typename Condition>
void wait_until(Condition&& condition) {
  for (int i = 0; i < 30'000 && !condition(); ++i) sleep_ms(1);
  CHECK(condition());
}

// A program on the fake GPU that uses NVTX. NVTX looks for its tool at the first call of the process. That call is made here,
// before there are threads.
struct Program {
  Program() {
    setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
    nvtxInitialize(nullptr);
  }
  std::string options(const std::string& more) const { return folder.options() + more + ";cupti=" + fake_path(); }
  // The program has used CUDA before.
  void begin(const std::string& more = "capture_range=profiler") {
    CHECK_EQUAL(fake_gpu_init(), 0);
    if (collector.start(options(more).c_str()) != 0) check::failed(__FILE__, __LINE__, collector.last_error());
    CHECK_EQUAL(collector.statistics().cupti_active, 1u);
  }
  // The recording starts inside cuInit().
  void begin_before_cuda(const std::string& more = "capture_range=profiler") {
    setenv("CUDA_INJECTION64_PATH", COLLECTOR_PATH, 1);
    setenv("CUTRACE_OPTIONS", options(more).c_str(), 1);
    CHECK_EQUAL(fake_gpu_init(), 0);
    CHECK_EQUAL(collector.statistics().cupti_active, 1u);
  }
  void end() { CHECK_EQUAL(collector.stop(), 0); }
  // The path of a window's file, which may not exist.
  std::string place(int number) const {
    const std::string ending = "-w" + std::to_string(number) + ".bin";
    for (const std::string& path : folder.captures())
      if (path.ends_with(ending)) return path;
    return {};
  }
  bool has(int number) const { return !place(number).empty(); }
  CaptureReader window(int number) const {
    const std::string path = place(number);
    if (path.empty()) check::failed(__FILE__, __LINE__, "window " + std::to_string(number) + " has no file");
    return CaptureReader(path);
  }
  std::size_t files() const { return folder.captures().size(); }

  Collector collector;
  Folder folder;
};

std::vector<std::string> kernel_names(const CaptureReader& c) {
  std::map<std::uint32_t, std::uint32_t> names;
  for (const auto& launched : c.rows<rows::Launches>()) names[std::uint32_t{launched.id}] = launched.name;
  std::vector<std::string> found;
  for (const auto& kernel : c.rows<rows::Kernels>()) found.push_back(c.text(names.at(std::uint32_t{kernel.launch})));
  std::sort(found.begin(), found.end());
  return found;
}
using Names = std::vector<std::string>;

std::set<std::string> call_names(const CaptureReader& c) {
  std::set<std::string> found;
  for (const auto& function : c.rows<rows::Functions>()) found.insert(c.text(function.name));
  return found;
}

struct Range {
  std::string name;
  std::uint64_t start, end;
  std::uint16_t flags;
};
std::vector<Range> ranges(const CaptureReader& c) {
  std::vector<Range> found;
  for (const auto& row : c.rows<rows::NvtxRanges>()) found.push_back({c.text(row.name), row.start, row.end, row.flags});
  std::sort(found.begin(), found.end(), [](const Range& a, const Range& b) { return a.name < b.name; });
  return found;
}

// The start and the end of the file's window, from the last process block that has them.
std::pair<std::uint64_t, std::uint64_t> times_of_window(const CaptureReader& c) {
  constexpr std::string_view kKey = "\"windows\":[[";
  std::pair<std::uint64_t, std::uint64_t> times{0, 0};
  for (const std::string& json : c.processes) {
    const std::size_t at = json.find(kKey);
    if (at == json.npos) continue;
    char* next = nullptr;
    times.first = std::strtoull(json.c_str() + at + kKey.size(), &next, 10);
    times.second = std::strtoull(next + 1, nullptr, 10);
  }
  return times;
}

// Checks that the file of a window is complete.
void check_complete(const CaptureReader& c, const char* range = "profiler") {
  for (const auto& row : c.rows<rows::Losses>())
    check::failed(__FILE__, __LINE__, std::to_string(row.reason) + " " + std::to_string(row.count) + " " + c.text(row.detail));
  CHECK_EQUAL(c.rows<rows::Losses>().size(), std::size_t{0});
  CHECK(c.rows<rows::Clocks>().size() >= 2);
  for (const std::string& key :
       {std::string("\"format\":1"), std::string("\"ended\""), "\"capture_range\":\"" + std::string(range) + "\""})
    if (!c.says(key)) check::failed(__FILE__, __LINE__, key);
  const auto [begin, end] = times_of_window(c);
  CHECK(begin != 0 && begin <= end);
  for (const auto& row : c.rows<rows::ApiCalls>()) CHECK(row.end >= begin && row.start <= end);
  const auto devices = c.rows<rows::Devices>();
  CHECK_EQUAL(devices.size(), std::size_t{1});
  CHECK(c.text(devices[0].name) == "NVIDIA FAKE" && c.text(devices[0].pci) == "0000:01:00.0");
  CHECK(c.rows<rows::Contexts>().size() >= 1);
}

// Checks that each kernel of a file has its launching call, and that the file has all calls with numbers in between.
void check_consistent(const CaptureReader& c) {
  std::set<std::uint32_t> kernels, calls;
  for (const auto& row : c.rows<rows::Kernels>()) CHECK(kernels.insert(std::uint32_t{row.correlation}).second);
  for (const auto& row : c.rows<rows::ApiCalls>()) CHECK(calls.insert(std::uint32_t{row.correlation}).second);
  std::string only;
  for (const std::uint32_t id : kernels) only += calls.contains(id) ? "" : " kernel " + std::to_string(id);
  for (const std::uint32_t id : calls) only += kernels.contains(id) ? "" : " call " + std::to_string(id);
  if (!only.empty()) check::failed(__FILE__, __LINE__, only + ", last call " + std::to_string(*calls.rbegin()));
}

bool is_recording() { return fake_is_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }

}  // namespace

TEST(one_window_has_what_is_launched_inside) {
  Program program;
  program.begin("capture_range=profiler;capture_range_end=stop");
  launch("before");
  CHECK(!is_recording());
  start();
  CHECK(is_recording());
  launch("inside");
  launch("inside");
  stop();
  CHECK(!is_recording());
  const CaptureReader c = program.window(1);  // at once
  check_complete(c);
  CHECK(kernel_names(c) == (Names{"inside", "inside"}));
  CHECK(call_names(c) == std::set<std::string>{"cudaLaunchKernel"});
  CHECK_EQUAL(c.rows<rows::ApiCalls>().size(), std::size_t{2});
  CHECK_EQUAL(c.rows<rows::Streams>().at(0).stream, 7u);
  start();  // the option allows one window
  CHECK(!is_recording());
  launch("after");
  stop();
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{1});
}

TEST(each_window_has_a_file_that_is_complete_by_itself) {
  Program program;
  program.begin();
  std::uint64_t instance = 0;
  for (int i = 1; i <= 3; ++i) {
    launch("outside");
    start();
    const std::string name = "inside" + std::to_string(i);
    launch("again");
    launch(name.c_str());
    stop();
    const CaptureReader c = program.window(i);
    check_complete(c);
    CHECK(kernel_names(c) == (Names{"again", name}));
    CHECK_EQUAL(c.rows<rows::Streams>().size(), std::size_t{1});
    CHECK(c.rows<rows::Threads>().size() >= 1);
    CHECK(!c.strings.contains(0xFFFFFFFF));
    for (const auto& [id, text] : c.strings) CHECK(text != "outside");
    CHECK(instance == 0 || c.instance == instance);
    instance = c.instance;
  }
  launch("outside");
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{3});  // no rows from after the last window
}

TEST(a_number_of_windows_is_a_limit) {
  Program program;
  program.begin("capture_range=profiler;capture_range_end=repeat:2");
  for (int i = 0; i < 4; ++i) {
    start();
    launch("k");
    stop();
  }
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{2});
  CHECK(program.has(1) && program.has(2));
}

TEST(a_window_without_work_has_a_file_too) {
  Program program;
  program.begin();
  start();
  stop();
  const CaptureReader c = program.window(1);
  check_complete(c);
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{0});
  program.end();
}

TEST(a_start_inside_a_window_and_a_stop_outside_do_nothing) {
  Program program;
  program.begin();
  stop();
  CHECK_EQUAL(program.files(), std::size_t{1});  // the file of the recording itself
  start();
  launch("a");
  start();
  launch("b");
  stop();
  CHECK(program.has(1));
  CHECK(!is_recording());
  launch("c");
  stop();
  CHECK(!program.has(2));
  program.end();
  CHECK(kernel_names(program.window(1)) == (Names{"a", "b"}));
  CHECK_EQUAL(program.files(), std::size_t{1});
}

TEST(calls_of_the_driver_open_and_close_too) {
  Program program;
  program.begin();
  profiler("cuProfilerStart");
  launch("a");
  profiler("cuProfilerStop");
  launch("b");
  start();
  launch("c");
  profiler("cuProfilerStop");
  program.end();
  CHECK(kernel_names(program.window(1)) == Names{"a"});
  CHECK(kernel_names(program.window(2)) == Names{"c"});
}

// A call of the runtime makes a call of the driver. If another thread opens a window between the two, the call of the driver does
// not close the window.
TEST_OF_THREADS(a_call_of_the_runtime_and_its_call_of_the_driver_are_one) {
  Program program;
  program.begin();
  start();
  const auto tell = [](int domain, std::uint32_t id, bool enters) {
    const int status = 0;
    fake_set_correlation(fake_next_correlation());
    fake_tell_call(domain, id, enters ? nullptr : &status);
  };
  tell(kRuntime, kFakeProfilerStop, true);
  CHECK(program.has(1));
  std::thread([] { start(); }).join();
  tell(kDriver, kFakeDriverProfilerStop, true);
  tell(kDriver, kFakeDriverProfilerStop, false);
  tell(kRuntime, kFakeProfilerStop, false);
  CHECK(is_recording());
  launch("second");
  profiler("cuProfilerStop");
  program.end();
  CHECK(kernel_names(program.window(2)) == Names{"second"});
}

// The first CUDA call of a program may be cudaProfilerStart(), which loads the collector.
TEST(the_end_of_a_start_is_enough) {
  Program program;
  program.begin();
  const int status = 0;
  fake_set_correlation(fake_next_correlation());
  fake_tell_call(kRuntime, kFakeProfilerStart, &status);
  CHECK(is_recording());
  launch("a");
  stop();
  CHECK(kernel_names(program.window(1)) == Names{"a"});
  program.end();
}

TEST(between_windows_nothing_is_enabled) {
  Program program;
  program.begin_before_cuda();
  const auto enabled_kinds = [] {
    int count = 0;
    for (int kind = 0; kind < CUPTI_ACTIVITY_KIND_COUNT; ++kind) count += fake_is_enabled(kind);
    return count;
  };
  // CUPTI 13.0 records calls in mid-program only if one call was enabled inside cuInit().
  const auto enabled_calls = [] {
    std::set<std::pair<int, std::uint32_t>> calls;
    for (const int domain : {kDriver, kRuntime})
      for (std::uint32_t id = 0; id < 1024; ++id)
        if (fake_call_is_enabled(domain, id)) calls.emplace(domain, id);
    return calls;
  };
  const std::set<std::pair<int, std::uint32_t>> kept = {{kRuntime, kFakeDeviceReset}, {kDriver, kFakeLinkComplete}};
  for (int i = 1; i <= 2; ++i) {
    CHECK_EQUAL(enabled_kinds(), 0);
    CHECK(enabled_calls() == kept);
    launch("outside");
    start();
    CHECK(enabled_kinds() > 5);
    CHECK(fake_call_is_enabled(kRuntime, kFakeLaunchKernel));
    CHECK(!fake_call_is_enabled(kRuntime, kFakeGetDevice));
    launch("inside");
    stop();
    const CaptureReader c = program.window(i);
    check_complete(c);
    CHECK(kernel_names(c) == Names{"inside"});
    CHECK_EQUAL(c.rows<rows::ApiCalls>().size(), std::size_t{1});
  }
  const unsigned flushes = fake_flushes();
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(program.collector.flush(), 0);
  CHECK_EQUAL(fake_flushes(), flushes);
  program.end();
}

TEST(without_calls_of_the_api_none_is_enabled) {
  Program program;
  program.begin_before_cuda("capture_range=profiler;api=none");
  CHECK(!fake_call_is_enabled(kRuntime, kFakeDeviceReset));
  start();
  launch("inside");
  stop();
  program.end();
  const CaptureReader c = program.window(1);
  CHECK(kernel_names(c) == Names{"inside"});
  CHECK_EQUAL(c.rows<rows::ApiCalls>().size(), std::size_t{0});
}

// CUPTI traces only those graphs as a whole that are instantiated meanwhile.
TEST(graphs_of_a_window_are_recorded_by_node) {
  Program program;
  program.begin_before_cuda("capture_range=profiler;graph=graph");
  const std::uint32_t graph = fake_graph();
  fake_graph_add(graph, "node");
  std::uint32_t exec = 0;
  CHECK_EQUAL(fake_gpu_instantiate(graph, &exec), 0);
  start();
  CHECK_EQUAL(fake_gpu_replay(exec, 7, 1000), 0);
  stop();
  program.end();
  const CaptureReader c = program.window(1);
  CHECK(kernel_names(c) == Names{"node"});
  CHECK(c.says("CUDA graphs were recorded by node"));
}

// CUPTI keeps the buffer of a thread that is in a recorded call, and cudaProfilerStop() waits inside.
TEST(all_calls_of_a_window_are_recorded_but_those_that_end_it) {
  for (const bool early : {true, false}) {
    if (early && fork() != 0) {
      int status = 0;
      CHECK(wait(&status) > 0);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      continue;
    }
    Program program;
    const char* const options = "capture_range=profiler;capture_range_end=repeat;api=all";
    if (early) program.begin_before_cuda(options);
    else program.begin(options);
    for (int i = 1; i <= 2; ++i) {
      start();
      launch("k");
      CHECK_EQUAL(fake_gpu_call("cudaGetDevice", 0), 0);
      start();
      stop();
      const CaptureReader c = program.window(i);
      check_complete(c);
      CHECK(kernel_names(c) == Names{"k"});
      CHECK(call_names(c) == (std::set<std::string>{"cudaLaunchKernel", "cudaGetDevice"}));
    }
    program.end();
    if (early) std::_Exit(0);
  }
}

TEST(work_that_runs_at_the_end_is_in_the_file) {
  Program program;
  program.begin();
  constexpr std::uint64_t kLong = 200'000'000;
  start();
  launch("long", kLong);
  const std::uint64_t before = program.collector.now();
  stop();
  CHECK(program.collector.now() - before >= kLong / 2);
  const CaptureReader c = program.window(1);
  check_complete(c);
  CHECK(kernel_names(c) == Names{"long"});
  program.end();
}

TEST(work_of_before_that_ends_inside_is_not_in_the_file) {
  Program program;
  program.begin();
  launch("before", 50'000'000);
  start();
  launch("inside");  // after it, in its stream
  stop();
  CHECK(kernel_names(program.window(1)) == Names{"inside"});
  program.end();
}

// A wait would invalidate the capture.
TEST(a_captured_stream_is_not_waited_for) {
  Program program;
  program.begin();
  start();
  launch("short");
  launch("long", 300'000'000, 8);
  CHECK_EQUAL(fake_gpu_begin_capture(9), 0);
  const unsigned waits = fake_gpu_context_waits();
  sleep_ms(1);
  stop();
  CHECK_EQUAL(fake_gpu_context_waits(), waits);
  const CaptureReader first = program.window(1);
  CHECK(kernel_names(first) == Names{"short"});
  CHECK(first.says("did not wait for the GPU at the end of this range"));
  std::uint32_t graph = 0;
  CHECK_EQUAL(fake_gpu_end_capture(9, &graph), 0);
  start();
  launch("next", 1000, 8);  // after the long one
  stop();
  const CaptureReader second = program.window(2);
  check_complete(second);
  CHECK(kernel_names(second) == Names{"next"});
  CHECK(!second.says("did not wait"));
  program.end();
}

TEST(an_open_window_is_complete_at_the_end) {
  Program program;
  program.begin();
  start();
  launch("first");
  stop();
  start();
  launch("second", 50'000'000);
  nvtxRangePushA("open");
  program.end();
  nvtxRangePop();
  CHECK_EQUAL(program.files(), std::size_t{2});
  const CaptureReader c = program.window(2);
  check_complete(c);
  CHECK(kernel_names(c) == Names{"second"});
  CHECK_EQUAL(ranges(c).size(), std::size_t{1});
  CHECK_EQUAL(ranges(c)[0].flags, kWentOn);
}

TEST(an_open_window_is_complete_at_exit) {
  const Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    Program program;
    const std::string options = folder.options("capture_range=profiler;cupti=") + fake_path();
    CHECK_EQUAL(fake_gpu_init(), 0);
    CHECK_EQUAL(program.collector.start(options.c_str()), 0);
    launch("before");
    start();
    launch("inside", 20'000'000);
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const std::string path = folder.only();
  CHECK(path.ends_with("-w1.bin"));
  const CaptureReader c(path);
  check_complete(c);
  CHECK(kernel_names(c) == Names{"inside"});
}

TEST(a_range_that_never_opens_leaves_no_file) {
  Program program;
  program.begin();
  launch("k");
  stop();
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{0});
  CHECK(std::string(program.collector.notes()).find("the capture range 'profiler' never opened") != std::string::npos);
}

TEST(a_name_that_no_range_has_is_said_with_those_that_were_seen) {
  Program program;
  program.begin("capture_range=nvtx:stepp");
  for (int i = 0; i < 3; ++i) {
    nvtxRangePushA("step");
    nvtxRangePop();
  }
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{0});
  const std::string notes = program.collector.notes();
  CHECK(notes.find("'nvtx:stepp' never opened") != std::string::npos);
  CHECK(notes.find("names of NVTX ranges: step)") != std::string::npos);
}

TEST(ranges_of_the_program_are_clipped_to_the_window) {
  Program program;
  program.begin();
  nvtxRangePushA("past");
  nvtxRangePop();
  const nvtxRangeId_t started = nvtxRangeStartA("started");
  nvtxRangePushA("around");
  nvtxRangePushA("begin");
  const std::uint64_t before = program.collector.now();
  start();
  nvtxRangePop();
  nvtxRangePushA("inside");
  nvtxRangePop();
  nvtxRangePushA("end");
  nvtxMarkA("mark inside");
  stop();
  const std::uint64_t after = program.collector.now();
  nvtxMarkA("mark outside");
  nvtxRangePop();
  nvtxRangePop();
  nvtxRangePushA("future");
  nvtxRangePop();
  start();
  stop();
  nvtxRangeEnd(started);
  program.end();

  const CaptureReader c = program.window(1);
  check_complete(c);
  const std::vector<Range> found = ranges(c);
  CHECK_EQUAL(found.size(), std::size_t{5});
  const std::vector<std::pair<std::string, std::uint16_t>> expected = {
      {"around", kBeganBefore | kWentOn}, {"begin", kBeganBefore}, {"end", kWentOn}, {"inside", 0}, {"started", kBeganBefore | kWentOn}};
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].name == expected[i].first);
    CHECK_EQUAL(found[i].flags, expected[i].second);
    CHECK(before <= found[i].start && found[i].start <= found[i].end && found[i].end <= after);
  }
  CHECK_EQUAL(found[0].start, found[4].start);  // both at the start of the window
  CHECK_EQUAL(found[0].end, found[4].end);
  const auto marks = c.rows<rows::NvtxMarks>();
  CHECK_EQUAL(marks.size(), std::size_t{1});
  CHECK(c.text(marks[0].name) == "mark inside");

  const std::vector<Range> later = ranges(program.window(2));
  CHECK_EQUAL(later.size(), std::size_t{1});
  CHECK(later[0].name == "started");
}

TEST(pushed_ranges_of_a_name_are_windows) {
  Program program;
  program.begin("capture_range=nvtx:step;capture_range_end=repeat");
  for (int i = 1; i <= 2; ++i) {
    launch("outside");
    nvtxRangePushA("epoch");
    launch("outside");
    nvtxRangePushA("step");
    launch("inside");
    nvtxRangePushA("step");  // once
    nvtxRangePop();
    nvtxRangePushA("other");
    launch("inside");
    nvtxRangePop();
    CHECK(is_recording());
    nvtxRangePop();
    CHECK(!is_recording());
    nvtxRangePop();
    const CaptureReader c = program.window(i);
    check_complete(c, "nvtx:step");
    CHECK(kernel_names(c) == (Names{"inside", "inside"}));
    check_consistent(c);
    const std::vector<Range> found = ranges(c);
    CHECK_EQUAL(found.size(), std::size_t{4});
    CHECK(found[0].name == "epoch" && found[1].name == "other" && found[2].name == "step" && found[3].name == "step");
    CHECK_EQUAL(found[0].flags, kBeganBefore | kWentOn);
    CHECK_EQUAL(found[1].flags, 0);
  }
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{2});
}

TEST_OF_THREADS(started_ranges_of_a_name_are_windows_and_may_end_on_another_thread) {
  Program program;
  program.begin("capture_range=nvtx:request;capture_range_end=repeat");
  const nvtxRangeId_t other = nvtxRangeStartA("other");
  const nvtxRangeId_t first = nvtxRangeStartA("request");
  const nvtxRangeId_t second = nvtxRangeStartA("request");  // next to the first file
  launch("inside");
  nvtxRangeEnd(second);
  nvtxRangeEnd(other);
  CHECK(is_recording());
  std::thread([&] { nvtxRangeEnd(first); }).join();
  CHECK(!is_recording());
  launch("outside");
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{1});
  CHECK(kernel_names(program.window(1)) == Names{"inside"});
}

TEST(names_of_ranges_are_patterns_and_may_have_a_domain) {
  const auto push = [&](const char* name, nvtxDomainHandle_t in) {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    nvtxDomainRangePushEx(in, &attributes);
  };
  const auto windows = [&](const std::string& range) {
    Program program;
    program.begin("capture_range=" + range + ";capture_range_end=repeat");
    const nvtxDomainHandle_t in = nvtxDomainCreateA("train");
    nvtxRangePushA("step 1");
    nvtxRangePop();
    push("step 2", in);
    nvtxDomainRangePop(in);
    const nvtxStringHandle_t text = nvtxDomainRegisterStringA(in, "step 3");
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = text;
    nvtxDomainRangePushEx(in, &attributes);
    nvtxDomainRangePop(in);
    program.end();
    return program.files();
  };
  CHECK_EQUAL(windows("nvtx:step 1"), std::size_t{1});
  CHECK_EQUAL(windows("nvtx:step*"), std::size_t{3});
  CHECK_EQUAL(windows("nvtx:train:step 2"), std::size_t{1});
  CHECK_EQUAL(windows("nvtx:train:*"), std::size_t{2});
  CHECK_EQUAL(windows("nvtx:step 3"), std::size_t{1});
  CHECK_EQUAL(windows("nvtx:step ?"), std::size_t{3});
  CHECK_EQUAL(windows("nvtx:other:step*"), std::size_t{0});
}

TEST(a_process_without_cuda_has_windows_of_nvtx) {
  Program program;
  CHECK_EQUAL(program.collector.start(program.options("kinds=nvtx;capture_range=nvtx:a").c_str()), 0);
  nvtxRangePushA("before");
  nvtxRangePop();
  nvtxRangePushA("a");
  nvtxRangePushA("b");
  nvtxRangePop();
  nvtxRangePop();
  program.end();
  const std::vector<Range> found = ranges(program.window(1));
  CHECK_EQUAL(found.size(), std::size_t{2});
  CHECK(found[0].name == "a" && found[1].name == "b");
}

TEST_OF_THREADS(threads_that_launch_meanwhile_are_cut_at_one_moment) {
  Program program;
  program.begin_before_cuda();
  launch("warm up");
  std::atomic<bool> running{true};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      while (running.load()) {
        launch("k", 1000, static_cast<std::uint32_t>(7 + t));
        nvtxRangePushA("range");
        nvtxRangePop();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    });
  constexpr int kWindows = 8;
  for (int i = 1; i <= kWindows; ++i) {
    start();
    launch("marker");
    if (i % 3 == 0) sleep_ms(3);
    launch("marker");
    stop();
  }
  running = false;
  for (std::thread& thread : threads) thread.join();
  program.end();
  std::uint64_t latest = 0;
  for (int i = 1; i <= kWindows; ++i) {
    const CaptureReader c = program.window(i);
    check_complete(c);
    check_consistent(c);
    const Names names = kernel_names(c);
    CHECK_EQUAL(std::count(names.begin(), names.end(), "marker"), 2);
    std::uint64_t first = ~std::uint64_t{0}, last = 0;
    for (const auto& row : c.rows<rows::ApiCalls>()) {
      first = std::min(first, std::uint64_t{row.start});
      last = std::max(last, std::uint64_t{row.start});
    }
    CHECK(first > latest);
    latest = last;
  }
}

TEST_OF_THREADS(threads_may_open_and_close_at_once) {
  Program program;
  program.begin_before_cuda();
  launch("warm up");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 5; ++i) {
        start();
        launch("k");
        stop();
      }
    });
  for (std::thread& thread : threads) thread.join();
  program.end();
  const std::size_t files = program.files();
  CHECK(files >= 1);
  std::set<std::uint32_t> seen;
  for (int i = 1; i <= static_cast<int>(files); ++i) {
    const CaptureReader c = program.window(i);
    check_complete(c);
    check_consistent(c);
    for (const auto& row : c.rows<rows::Kernels>()) CHECK(seen.insert(std::uint32_t{row.correlation}).second);
  }
}

TEST(a_start_gives_up_when_cupti_does_not_answer) {
  Program program;
  program.begin("capture_range=profiler;capture_range_end=repeat;patience_ms=1000");
  fake_delay_enabling(100'000);
  start();
  launch("not recorded");
  CHECK(std::string(program.collector.notes()).find("1 capture range(s) were not recorded") != std::string::npos);
  fake_delay_enabling(0);
  wait_until([] { return !is_recording(); });
  wait_until([&] { return program.collector.flush() == 0; });  // the flusher has disabled the kinds again
  stop();
  start();
  launch("recorded");
  stop();
  wait_until([&] { return program.has(1); });
  CHECK(kernel_names(program.window(1)) == Names{"recorded"});
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{1});
}

TEST(a_stop_gives_up_on_a_slow_gpu_and_the_file_is_complete_later) {
  Program program;
  program.begin("capture_range=profiler;capture_range_end=repeat;patience_ms=1000");
  start();
  launch("slow", 4'000'000'000);
  stop();
  CHECK(!program.has(1));
  launch("outside");
  wait_until([&] { return program.has(1); });
  const CaptureReader c = program.window(1);
  check_complete(c);
  CHECK(kernel_names(c) == Names{"slow"});
  CHECK_EQUAL(program.collector.flush(), 0);
  start();
  launch("next");
  stop();
  CHECK(kernel_names(program.window(2)) == Names{"next"});
  program.end();
}

TEST_OF_THREADS(the_end_of_a_recording_completes_a_window_that_is_being_closed) {
  Program program;
  program.begin("capture_range=profiler");
  start();
  launch("slow", 300'000'000);
  std::thread closer([] { stop(); });
  wait_until([] { return fake_gpu_context_waits() != 0; });
  program.end();
  closer.join();
  CHECK_EQUAL(program.files(), std::size_t{1});
  const CaptureReader c = program.window(1);
  check_complete(c);
  CHECK(kernel_names(c) == Names{"slow"});
}

TEST(losses_are_in_the_file_of_their_window) {
  Program program;
  program.begin();
  fake_drop(3);  // outside
  start();
  launch("a");
  stop();
  start();
  launch("b");
  fake_drop(5);
  stop();
  program.end();
  CHECK_EQUAL(program.window(1).rows<rows::Losses>().size(), std::size_t{0});
  CHECK_EQUAL(program.window(2).lost(rows::Loss::cupti_dropped), std::uint64_t{5});
}

TEST(a_refused_kind_is_counted_in_each_window) {
  fake_refuse_kind(CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ERROR_NOT_SUPPORTED);
  Program program;
  program.begin();
  for (int i = 1; i <= 2; ++i) {
    start();
    launch("k");
    stop();
    const CaptureReader c = program.window(i);
    CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{1});
    CHECK(c.says("CUPTI refused to record memset"));
  }
  program.end();
}

TEST(a_child_that_is_forked_leaves_the_windows_to_its_parent) {
  Program program;
  program.begin();
  start();
  launch("a");
  const pid_t inside = fork();
  if (inside == 0) {
    nvtxRangePushA("child");
    nvtxRangePop();
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(inside, &status, 0) == inside);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  launch("b");
  stop();
  CHECK(kernel_names(program.window(1)) == (Names{"a", "b"}));
  start();
  launch("c");
  stop();
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{2});
}

TEST(a_forked_child_records_windows_of_its_own_ranges) {
  Program program;
  program.begin("capture_range=nvtx:work");
  nvtxRangePushA("work");
  launch("parent");
  const pid_t child = fork();
  if (child == 0) {
    nvtxRangePop();
    nvtxRangePushA("work");
    nvtxRangePushA("of the child");
    nvtxRangePop();
    nvtxRangePop();
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  nvtxRangePop();
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{2});
  int of_children = 0;
  for (const std::string& path : program.folder.captures()) {
    const CaptureReader c(path);
    CHECK_EQUAL(c.rows<rows::Losses>().size(), std::size_t{0});
    if (c.pid != static_cast<std::uint32_t>(child)) continue;
    ++of_children;
    CHECK(ranges(c).at(0).name == "of the child");
  }
  CHECK_EQUAL(of_children, 1);
}

TEST(recordings_of_one_process_have_windows_of_their_own) {
  Program program;
  program.begin("capture_range=profiler");
  start();
  launch("first");
  program.end();
  CHECK(kernel_names(CaptureReader(program.folder.only())) == Names{"first"});
  std::filesystem::remove(program.folder.only());
  CHECK_EQUAL(program.collector.start(program.options("").c_str()), 0);  // without windows
  launch("second");
  stop();
  launch("second");
  program.end();
  CHECK(kernel_names(CaptureReader(program.folder.only())) == (Names{"second", "second"}));
  std::filesystem::remove(program.folder.only());
  CHECK_EQUAL(program.collector.start(program.options("capture_range=profiler").c_str()), 0);
  launch("outside");
  start();
  launch("third");
  stop();
  program.end();
  CHECK(kernel_names(program.window(1)) == Names{"third"});
}

TEST(an_output_names_the_files_of_windows) {
  Program program;
  CHECK_EQUAL(fake_gpu_init(), 0);
  const std::string options = "output=" + program.folder.path + "/run.bin;capture_range=profiler;capture_range_end=repeat;cupti=";
  CHECK_EQUAL(program.collector.start((options + fake_path()).c_str()), 0);
  start();
  stop();
  start();
  program.end();
  std::set<std::string> names;
  for (const std::string& path : program.folder.captures()) names.insert(path.substr(program.folder.path.size() + 1));
  CHECK(names == (std::set<std::string>{"run-w1.bin", "run-w2.bin"}));
}

TEST(a_file_that_cannot_be_written_is_said) {
  Program program;
  program.begin();
  start();
  launch("k");
  std::filesystem::remove_all(program.folder.path);
  stop();
  CHECK(std::string(program.collector.notes()).find("the file of a capture range could not be completed") != std::string::npos);
  start();  // no thread hangs
  stop();
  program.collector.stop();
}

TEST(windows_stay_in_one_file_while_there_can_be_no_new_file) {
  Program program;
  program.begin();
  const std::string obstacle = program.folder.only() + ".next";
  std::filesystem::create_directory(obstacle);
  for (const char* name : {"first", "second"}) {
    start();
    launch(name);
    stop();
    launch("outside");
  }
  std::filesystem::remove(obstacle);
  start();
  launch("third");
  stop();
  CHECK(kernel_names(program.window(3)) == (Names{"first", "second", "third"}));
  std::filesystem::create_directory(obstacle);
  start();
  launch("fourth");
  stop();
  program.end();
  CHECK(kernel_names(program.window(4)) == Names{"fourth"});
  CHECK(program.window(4).says("\"ended\""));
  const std::string note = "could not be completed", notes = program.collector.notes();
  CHECK(notes.find(note) != notes.npos && notes.find(note) == notes.rfind(note));
}

TEST(a_recording_of_windows_is_not_cut) {
  Program program;
  program.begin();
  start();
  launch("k");
  CHECK(program.collector.cut((program.folder.path + "/cut.bin").c_str()) < 0);
  CHECK(std::string(program.collector.last_error()).find("capture ranges") != std::string::npos);
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{1});
}

TEST(bad_values_are_refused) {
  Program program;
  const auto refused = [&](const std::string& options, const char* part) {
    CHECK(program.collector.start(program.options(options).c_str()) != 0);
    const std::string error = program.collector.last_error();
    if (error.find(part) == error.npos) check::failed(__FILE__, __LINE__, options + ": " + error);
  };
  for (const char* value : {"", "cudaProfilerApi", "nvtx", "nvtx:", "nvtx: ", "profiler:1"})
    refused("capture_range=" + std::string(value), "capture range");
  for (const char* value : {"", "repeat:", "repeat:0", "repeat:-1", "repeat:x", "repeat2", "stop:1", "once"})
    refused("capture_range=profiler;capture_range_end=" + std::string(value), "capture_range_end");
  refused("capture_range=nvtx:a;nvtx=0", "needs a recording of NVTX");
  refused("capture_range=nvtx:a;kinds=kernel", "needs a recording of NVTX");
  refused("capture_range=profiler;last_ms=1000", "newest rows");
  refused("capture_range=profiler;sample=pc=4096", "sample");
  CHECK_EQUAL(program.collector.start(program.options("capture_range=profiler;capture_range=none").c_str()), 0);
  program.end();
  CHECK_EQUAL(program.files(), std::size_t{1});
}

int main(int argc, char** argv) { return check::main(argc, argv); }
