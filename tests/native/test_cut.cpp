// A recording that is cut into files. Each file is a complete capture, and together the files hold all rows.
#include <nvtx3/nvToolsExt.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_driver.h"
#include "fake_system.h"

using namespace cutrace;

namespace {

constexpr std::uint32_t kOne[3] = {1, 1, 1};

void launch(const char* name, std::uint64_t duration = 1000, std::uint64_t delay = 0, std::uint32_t flags = 0) {
  CHECK_EQUAL(fake_gpu_launch("cudaLaunchKernel", name, kOne, kOne, 7, duration, delay, flags), 0);
}

// A recorded program on the fake GPU that uses NVTX. NVTX looks for its tool at the first call of the process. That call is made
// here, before there are threads.
struct Program {
  Program() {
    setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
    nvtxInitialize(nullptr);
  }
  void begin(const std::string& more = "") {
    CHECK_EQUAL(fake_gpu_init(), 0);
    CHECK_EQUAL(collector.start((folder.options() + more + ";cupti=" + fake_path()).c_str()), 0);
    CHECK_EQUAL(collector.statistics().cupti_active, 1u);
  }
  std::string place(int number) const { return folder.path + "/cut" + std::to_string(number); }
  // Cuts the recording and reads the capture.
  CaptureReader cut(int number) {
    if (const int status = collector.cut(place(number).c_str())) {
      check::failed(__FILE__, __LINE__, std::to_string(status) + " " + collector.last_error());
    }
    return CaptureReader(place(number));
  }
  Collector collector;
  Folder folder;
};

std::set<std::string> kernel_names(const CaptureReader& c) {
  std::map<std::uint32_t, std::uint32_t> names;
  for (const auto& launched : c.rows<rows::Launches>()) names[std::uint32_t{launched.id}] = launched.name;
  std::set<std::string> found;
  for (const auto& kernel : c.rows<rows::Kernels>()) found.insert(c.text(names.at(std::uint32_t{kernel.launch})));
  return found;
}

std::set<std::string> call_names(const CaptureReader& c) {
  std::set<std::string> found;
  for (const auto& function : c.rows<rows::Functions>()) found.insert(c.text(function.name));
  return found;
}

}  // namespace

TEST(each_cut_is_a_capture_by_itself) {
  Program program;
  program.begin();
  std::uint64_t instance = 0;
  std::uint32_t next = 0;
  std::set<std::uint32_t> ids;
  for (int i = 0; i < 3; ++i) {
    launch("again");
    launch(i == 1 ? "second" : "other");
    const CaptureReader c = program.cut(i);
    CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{2});
    CHECK(kernel_names(c) == (std::set<std::string>{"again", i == 1 ? "second" : "other"}));
    CHECK(call_names(c) == std::set<std::string>{"cudaLaunchKernel"});
    const auto devices = c.rows<rows::Devices>();
    CHECK_EQUAL(devices.size(), std::size_t{1});
    CHECK(c.text(devices[0].name) == "NVIDIA FAKE" && c.text(devices[0].pci) == "0000:01:00.0");
    CHECK_EQUAL(c.rows<rows::Contexts>().size(), std::size_t{1});
    CHECK_EQUAL(c.rows<rows::Streams>().at(0).stream, 7u);
    CHECK(c.rows<rows::Threads>().size() >= 1);
    CHECK(c.rows<rows::Clocks>().size() >= 2);
    CHECK_EQUAL(c.rows<rows::Losses>().size(), std::size_t{0});
    for (const char* key : {"\"format\":1", "\"tables\"", "\"started\"", "\"ended\"", "\"cupti_version\":130001",
                            "\"driver_version\":13000", "\"kinds\":[\"kernel\""})
      CHECK(c.says(key));
    CHECK(instance == 0 || c.instance == instance);
    CHECK_EQUAL(c.first_block, next);  // block numbers continue
    instance = c.instance;
    next = c.next_block;
    for (const auto& launched : c.rows<rows::Launches>()) CHECK(ids.insert(std::uint32_t{launched.id}).second);
  }
  launch("last");
  CHECK_EQUAL(program.collector.stop(), 0);
  std::string rest;
  for (const std::string& path : program.folder.captures())
    if (path.ends_with(".bin")) rest = path;
  const CaptureReader c(rest);
  CHECK(kernel_names(c) == std::set<std::string>{"last"});
  CHECK_EQUAL(c.first_block, next);
  CHECK(c.says("\"ended\""));
  CHECK_EQUAL(program.folder.captures().size(), std::size_t{4});  // no other file is left
}

TEST(functions_keep_their_ids) {
  Program program;
  program.begin();
  std::uint16_t id = 0;
  for (int i = 0; i < 3; ++i) {
    launch("k");
    const auto functions = program.cut(i).rows<rows::Functions>();
    CHECK_EQUAL(functions.size(), std::size_t{1});
    CHECK(id == 0 || functions[0].id == id);
    id = functions[0].id;
  }
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(without_anything_new_there_is_no_file) {
  Program program;
  program.begin();
  const std::string path = program.place(0);
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(program.collector.cut(path.c_str()), 1);
  launch("k");
  CHECK_EQUAL(program.collector.cut(path.c_str()), 0);
  CHECK_EQUAL(program.collector.mark("a mark is no work"), 0);
  CHECK_EQUAL(program.collector.synchronize(), 0);  // the waits of the collector do not count either
  CHECK_EQUAL(program.collector.cut(program.place(1).c_str()), 1);
  CHECK(!std::filesystem::exists(program.place(1)));
  CHECK_EQUAL(program.collector.statistics().cupti_active, 1u);
  launch("k");
  const CaptureReader c = program.cut(1);
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size(), std::size_t{1});  // the mark is not lost
  CHECK_EQUAL(c.rows<rows::ApiCalls>().size(), std::size_t{1});
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(synchronize_waits_and_does_not_show) {
  Program program;
  program.begin("api=all");
  constexpr std::uint64_t kLong = 50'000'000;
  launch("long", kLong);
  const std::uint64_t before = program.collector.now();
  CHECK_EQUAL(program.collector.synchronize(), 0);
  CHECK(program.collector.now() - before >= kLong / 2);
  CHECK_EQUAL(program.collector.cut(program.place(0).c_str()), 0);
  const CaptureReader c(program.place(0));
  CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{1});
  CHECK(call_names(c) == std::set<std::string>{"cudaLaunchKernel"});
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK_EQUAL(program.collector.synchronize(), 0);  // nothing is recorded, so there is no wait
}

TEST(a_context_with_a_stream_in_capture_is_not_waited_for) {
  Program program;
  program.begin();
  int stream = 0, other = 0;
  const auto call = [](std::uint32_t id, void* of, int result = 0) {
    fake_stream_call(CUPTI_CB_DOMAIN_DRIVER_API, id, of, nullptr, result);
  };
  const auto waits = [&] {
    const unsigned before = fake_gpu_context_waits();
    CHECK_EQUAL(program.collector.synchronize(), 0);
    return fake_gpu_context_waits() != before;
  };
  CHECK(waits());
  call(kFakeBeginCapture, &stream);
  CHECK(!waits());
  call(kFakeEndCapture, &stream, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  CHECK(!waits());
  call(kFakeBeginCapture, &other);
  call(kFakeEndCapture, &stream);
  CHECK(!waits());
  call(kFakeEndCapture, &other, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(waits());
  call(kFakeBeginCapture, &stream, CUDA_ERROR_INVALID_VALUE);
  CHECK(waits());
  call(kFakeBeginCapture, &stream);
  call(kFakeBeginCapture, &stream);  // the driver call inside the runtime call
  call(kFakeEndCapture, &stream);    // a driver call alone
  CHECK(waits());
  call(kFakeBeginCapture, CU_STREAM_PER_THREAD);  // of two threads
  call(kFakeBeginCapture, CU_STREAM_PER_THREAD);
  call(kFakeEndCapture, CU_STREAM_PER_THREAD);
  CHECK(!waits());
  call(kFakeEndCapture, CU_STREAM_PER_THREAD);
  CHECK(waits());
  fake_gpu_stream(&stream, &program, false);  // in another context
  call(kFakeBeginCapture, &stream);
  CHECK(waits());
  call(kFakeBeginCapture, &other);
  call(kFakeDestroyStream, &other);
  CHECK(waits());
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(!CaptureReader(program.folder.only()).says("did not wait for the GPU"));
}

namespace {

// Whether the collector waits for the program's context.
bool waits(Program& program) {
  const unsigned before = fake_gpu_context_waits();
  CHECK_EQUAL(program.collector.synchronize(), 0);
  return fake_gpu_context_waits() != before;
}

}  // namespace

TEST(a_capture_counts_for_the_context_of_its_stream) {
  Program program;
  program.begin();
  int stream = 0, another_context = 0;
  CUcontext context = nullptr;
  CHECK(cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr);
  const auto call = [&](std::uint32_t id, void* current) {
    fake_stream_call(CUPTI_CB_DOMAIN_DRIVER_API, id, &stream, current, 0);
  };
  fake_gpu_stream(&stream, context, true);
  call(kFakeBeginCapture, &another_context);
  CHECK(!waits(program));
  fake_gpu_stream(&stream, context, false);
  call(kFakeEndCapture, context);
  CHECK(waits(program));
  fake_gpu_stream(&stream, &another_context, true);
  call(kFakeBeginCapture, context);
  CHECK(waits(program));
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(a_capture_from_before_the_recording_is_not_waited_for) {
  Program program;
  CHECK_EQUAL(fake_gpu_init(), 0);
  int stream = 0;
  CUcontext context = nullptr;
  CHECK(cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr);
  fake_gpu_stream(&stream, context, true);
  program.begin();
  CHECK(!waits(program));
  fake_gpu_stream(&stream, context, false);
  CHECK(waits(program));
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(a_capture_that_there_is_no_memory_for_is_not_waited_for) {
  Program program;
  program.begin("flush_ms=60000");
  int stream = 0;
  CHECK_EQUAL(program.collector.flush(), 0);  // afterwards the collector's threads sleep and need no memory
  fault_allocations(0, 1'000, false);
  fake_stream_call(CUPTI_CB_DOMAIN_DRIVER_API, kFakeBeginCapture, &stream, nullptr, 0);
  CHECK(fault_allocations_failed() > 0);
  fault_allocations(0, 0, false);
  CHECK(!waits(program));
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(an_end_inside_a_capture_leaves_it_alone_and_is_said) {
  Program program;
  program.begin();
  int stream = 0;
  launch("k");
  fake_stream_call(CUPTI_CB_DOMAIN_DRIVER_API, kFakeBeginCapture, &stream, nullptr, 0);
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK_EQUAL(fake_gpu_context_waits(), 0u);
  CHECK(CaptureReader(program.folder.only()).says("did not wait for the GPU at the end"));
}

TEST(synchronize_gives_up_on_a_gpu_that_does_not_answer) {
  Program program;
  program.begin("patience_ms=50;sync=0");
  launch("stuck", 1'000'000'000);
  CHECK(program.collector.synchronize() != 0);
  CHECK(std::string(program.collector.last_error()).find("patience_ms") != std::string::npos);
  CHECK(program.collector.cut(program.place(0).c_str()) < 0);  // the same thread would have to flush
  CHECK(std::string(program.collector.last_error()).find("in time") != std::string::npos);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  CHECK_EQUAL(program.cut(0).rows<rows::Kernels>().size(), std::size_t{1});
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(work_that_is_not_over_is_in_the_next_file) {
  Program program;
  program.begin();
  launch("done");
  launch("late", 1000, 300'000'000, kFakeDetached);
  CHECK(kernel_names(program.cut(0)) == std::set<std::string>{"done"});
  std::this_thread::sleep_for(std::chrono::milliseconds(310));
  CHECK(kernel_names(program.cut(1)) == std::set<std::string>{"late"});
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(ranges_open_across_cuts_are_whole_where_they_end) {
  Program program;
  program.begin();
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
  const nvtxStringHandle_t registered = nvtxDomainRegisterStringA(domain, "a registered name");
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = registered;
  nvtxDomainRangePushEx(domain, &attributes);
  nvtxRangePushA("a name that is too long for a small string");
  const nvtxRangeId_t range = nvtxRangeStartA("started");
  for (int i = 0; i < 2; ++i) {
    launch("k");
    CHECK_EQUAL(program.cut(i).rows<rows::NvtxRanges>().size(), std::size_t{0});
  }
  nvtxRangePop();
  nvtxRangeEnd(range);
  nvtxDomainRangePop(domain);
  CaptureReader c = program.cut(2);
  std::set<std::string> names;
  for (const auto& row : c.rows<rows::NvtxRanges>()) {
    CHECK(row.start != 0 && row.end > row.start && row.flags == 0);
    names.insert(c.text(row.domain) + ":" + c.text(row.name));
  }
  CHECK(names == (std::set<std::string>{":a name that is too long for a small string", ":started",
                                        "library:a registered name"}));
  // A registered name is known in later files too.
  nvtxDomainMarkEx(domain, &attributes);
  c = program.cut(3);
  const auto marks = c.rows<rows::NvtxMarks>();
  CHECK_EQUAL(marks.size(), std::size_t{1});
  CHECK(c.text(marks[0].name) == "a registered name" && c.text(marks[0].domain) == "library");
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(names_given_once_are_in_every_file) {
  Program program;
  program.begin();
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
  nvtxDomainNameCategoryA(domain, 3, "i/o");
  nvtxNameCategoryA(3, "forward");
  nvtxNameOsThreadA(4711, "pump");
  for (int i = 0; i < 2; ++i) {
    launch("k");
    const CaptureReader c = program.cut(i);
    std::set<std::string> categories;
    for (const auto& row : c.rows<rows::NvtxCategories>())
      categories.insert(c.text(row.domain) + ":" + c.text(row.name) + std::to_string(row.category));
    CHECK(categories == (std::set<std::string>{":forward3", "library:i/o3"}));
    const auto threads = c.rows<rows::Threads>();
    CHECK(std::any_of(threads.begin(), threads.end(), [&](const rows::Threads& row) {
      return row.thread == 4711 && row.source == 2 && c.text(row.name) == "pump";
    }));
  }
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(losses_are_in_the_file_of_their_time) {
  Program program;
  fake_refuse_kind(CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ERROR_NOT_SUPPORTED);
  program.begin();
  launch("k");
  CHECK_EQUAL(program.cut(0).lost(rows::Loss::cupti_dropped), std::uint64_t{0});
  launch("k");
  fake_drop(5);
  CHECK_EQUAL(program.cut(1).lost(rows::Loss::cupti_dropped), std::uint64_t{5});
  fake_drop(3);  // losses alone make a file
  CHECK_EQUAL(program.cut(2).lost(rows::Loss::cupti_dropped), std::uint64_t{3});
  launch("k");
  const CaptureReader c = program.cut(3);
  CHECK_EQUAL(c.lost(rows::Loss::cupti_dropped), std::uint64_t{0});
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{1});  // as in each file
  CHECK(c.says("refused to record memset"));
  CHECK(std::string(program.collector.notes()).find("refused to record memset") != std::string::npos);
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(notes_say_who_holds_cupti) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(std::string(collector.notes()), std::string());
  fake_fail_subscribe(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  CHECK_EQUAL(fake_gpu_init(), 0);
  CHECK_EQUAL(collector.start(folder.options("cupti=" + std::string(fake_path())).c_str()), 0);
  CHECK(std::string(collector.notes()).find("another tool holds CUPTI") != std::string::npos);
  CHECK_EQUAL(collector.synchronize(), 0);
  CHECK_EQUAL(collector.mark("m"), 0);
  CHECK_EQUAL(collector.cut((folder.path + "/cut").c_str()), 1);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK(std::string(collector.notes()).find("another tool holds CUPTI") != std::string::npos);
}

TEST(a_cupti_that_is_being_finalised_is_waited_for) {
  Program program;
  fake_fail_subscribe(CUPTI_ERROR_NOT_INITIALIZED);
  std::thread finalising([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fake_fail_subscribe(CUPTI_SUCCESS);
  });
  program.begin();
  finalising.join();
  CHECK_EQUAL(std::string(program.collector.notes()), std::string());
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(a_cupti_that_stays_uninitialised_is_said) {
  Collector collector;
  Folder folder;
  fake_fail_subscribe(CUPTI_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(fake_gpu_init(), 0);
  CHECK_EQUAL(collector.start(folder.options("cupti=" + std::string(fake_path())).c_str()), 0);
  CHECK(fake_subscription_attempts() > 1);
  CHECK(std::string(collector.notes()).find("CUPTI refused a subscriber (CUPTI_ERROR_NOT_INITIALIZED)") != std::string::npos);
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(a_cut_that_fails_loses_nothing) {
  Program program;
  program.begin();
  launch("k");
  CHECK(program.collector.cut("/nowhere/at/all") < 0);
  const std::string error = program.collector.last_error();
  CHECK(error.find("/nowhere/at/all") != std::string::npos && error.find("choose") != std::string::npos);
  CHECK(program.collector.cut("") < 0);
  CHECK(program.collector.cut(nullptr) < 0);
  launch("l");
  const CaptureReader c = program.cut(0);
  CHECK(kernel_names(c) == (std::set<std::string>{"k", "l"}));
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(program.collector.cut(program.place(1).c_str()) < 0);
  CHECK(std::string(program.collector.last_error()).find("no recording") != std::string::npos);
}

TEST(what_is_no_file_cannot_be_cut) {
  Collector collector;
  CHECK_EQUAL(fake_gpu_init(), 0);
  CHECK_EQUAL(collector.start(("output=/dev/null;cupti=" + std::string(fake_path())).c_str()), 0);
  launch("k");
  CHECK(collector.cut("/dev/shm/cutrace-test") < 0);
  CHECK(std::string(collector.last_error()).find("not a regular file") != std::string::npos);
  CHECK(std::filesystem::exists("/dev/null"));
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(output_names_the_file_that_goes_on) {
  Program program;
  CHECK_EQUAL(fake_gpu_init(), 0);
  const std::string output = program.folder.path + "/run.bin";
  CHECK_EQUAL(program.collector.start(("output=" + output + ";file_mode=0600;cupti=" + fake_path()).c_str()), 0);
  launch("k");
  CHECK(kernel_names(program.cut(0)) == std::set<std::string>{"k"});
  launch("l");
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(kernel_names(CaptureReader(output)) == std::set<std::string>{"l"});
  CHECK((std::filesystem::status(output).permissions() & std::filesystem::perms::all) ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_OF_THREADS(cuts_while_threads_launch_lose_and_double_nothing) {
  Program program;
  program.begin("flush_ms=3;buffer_size=16384");
  constexpr int kThreads = 4, kEach = 1000;
  std::atomic<int> running{kThreads}, cuts{0};
  std::atomic<std::size_t> launched{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      static constexpr const char* kNames[kThreads] = {"k0", "k1", "k2", "k3"};
      int i = 0;
      for (; i < kEach || cuts.load() < 2; ++i) {
        nvtxRangePushA("step");
        launch(kNames[t], 10);
        nvtxRangePop();
        if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      launched += static_cast<std::size_t>(i);
      --running;
    });
  std::thread waiter([&] {
    while (running.load() != 0) CHECK_EQUAL(program.collector.synchronize(), 0);
  });
  std::set<std::uint32_t> seen;
  std::size_t ranges = 0;
  const auto take = [&](const std::string& path) {
    const CaptureReader c(path);
    for (const auto& kernel : c.rows<rows::Kernels>()) CHECK(seen.insert(std::uint32_t{kernel.correlation}).second);
    ranges += c.rows<rows::NvtxRanges>().size();
    CHECK_EQUAL(c.rows<rows::Losses>().size(), std::size_t{0});
  };
  while (running.load() != 0) {
    const int status = program.collector.cut(program.place(cuts).c_str());
    CHECK(status >= 0);
    if (status == 0) take(program.place(cuts++));
  }
  for (auto& thread : threads) thread.join();
  waiter.join();
  if (program.collector.cut(program.place(cuts).c_str()) == 0) take(program.place(cuts));
  CHECK_EQUAL(seen.size(), launched.load());
  CHECK_EQUAL(ranges, launched.load());
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST_OF_THREADS(threads_may_cut_at_the_same_time) {
  Program program;
  program.begin();
  std::atomic<int> number{0};
  std::atomic<std::size_t> kernels{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        launch("k");
        const std::string path = program.place(number.fetch_add(1));
        const int status = program.collector.cut(path.c_str());
        CHECK(status >= 0);
        if (status == 0) kernels += CaptureReader(path).rows<rows::Kernels>().size();
      }
    });
  for (auto& thread : threads) thread.join();
  const std::string path = program.place(number);
  if (program.collector.cut(path.c_str()) == 0) kernels += CaptureReader(path).rows<rows::Kernels>().size();
  CHECK_EQUAL(kernels.load(), std::size_t{80});
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST_OF_THREADS(a_stop_during_a_cut_ends_both) {
  for (int i = 0; i < 20; ++i) {
    Program program;
    program.begin();
    launch("k");
    std::thread cutter([&] {
      for (int n = 0; n < 5; ++n)
        if (program.collector.cut(program.place(n).c_str()) < 0)
          CHECK(std::string(program.collector.last_error()).find("recording") != std::string::npos);
    });
    CHECK_EQUAL(program.collector.stop(), 0);
    cutter.join();
  }
}

TEST(a_fork_after_a_cut_leaves_the_child_no_file) {
  Program program;
  program.begin();
  launch("k");
  program.cut(0);
  launch("k");
  const pid_t child = fork();
  if (child == 0) {
    int open = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      open += std::filesystem::read_symlink(entry.path(), gone).string().starts_with(program.folder.path);
    }
    _exit(open);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_EQUAL(program.cut(1).rows<rows::Kernels>().size(), std::size_t{1});
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(memory_does_not_grow_with_cuts) {
  Program program;
  program.begin();
  std::uint64_t memory = 0;
  for (int i = 0; i < 120; ++i) {
    const std::string name = "kernel" + std::to_string(i);
    launch(name.c_str());
    program.cut(0);
    if (i == 50) memory = program.collector.statistics().memory_bytes;
  }
  CHECK(program.collector.statistics().memory_bytes <= memory + (1 << 20));  // up to four buffers, and not one per cut
  CHECK_EQUAL(program.collector.stop(), 0);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
