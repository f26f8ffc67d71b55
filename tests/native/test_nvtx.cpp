// Real NVTX calls, through the header-only library that programs use, without a GPU.
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"

// The declarations of the CUDA runtime that nvToolsExtCudaRt.h needs.
using cudaStream_t = CUstream;
using cudaEvent_t = CUevent;
#include <nvtx3/nvToolsExtCudaRt.h>

using namespace cutrace;

// The symbols that the collector looks for in a Python program.
namespace interpreter {
bool runs = false, full = false;
std::vector<std::pair<int (*)(void*), void*>> pending;
std::vector<std::string> programs;

void run_pending() {
  for (const auto& [function, argument] : std::exchange(pending, {})) CHECK_EQUAL(function(argument), 0);
}
}  // namespace interpreter
extern "C" {
int Py_IsInitialized() { return interpreter::runs; }
int Py_AddPendingCall(int (*function)(void*), void* argument) {
  if (!interpreter::full) interpreter::pending.emplace_back(function, argument);
  return interpreter::full ? -1 : 0;
}
int PyRun_SimpleString(const char* text) { return interpreter::programs.emplace_back(text), 0; }
}

namespace {

// NVTX looks for its tool at the first call of the process. That call is made here, before there are threads: NVTX
// itself reads its table of callbacks while another thread fills it.
struct Injected {
  Injected() {
    setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
    nvtxInitialize(nullptr);
  }
  Collector collector;
  Folder folder;
  void begin(const std::string& more = "") { CHECK_EQUAL(collector.start(folder.options(more).c_str()), 0); }
  CaptureReader end() {
    CHECK_EQUAL(collector.stop(), 0);
    return CaptureReader(folder.only());
  }
};

nvtxEventAttributes_t attributes() {
  nvtxEventAttributes_t a{};
  a.version = NVTX_VERSION;
  a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  return a;
}

}  // namespace

TEST(push_and_pop_nest) {
  Injected program;
  program.begin();
  CHECK_EQUAL(nvtxRangePushA("outer"), 0);
  CHECK_EQUAL(nvtxRangePushA("inner"), 1);
  CHECK_EQUAL(nvtxRangePop(), 1);
  CHECK_EQUAL(nvtxRangePop(), 0);
  const auto c = program.end();
  const auto ranges = c.rows<rows::NvtxRanges>();
  CHECK_EQUAL(ranges.size(), std::size_t{2});
  const auto &inner = ranges[0], &outer = ranges[1];
  CHECK(c.text(inner.name) == "inner" && c.text(outer.name) == "outer");
  CHECK(inner.depth == 1 && outer.depth == 0);
  CHECK(outer.start <= inner.start && inner.start <= inner.end && inner.end <= outer.end);
  CHECK_EQUAL(inner.thread, static_cast<std::uint32_t>(syscall(SYS_gettid)));
  CHECK(c.rows<rows::Losses>().empty());
}

TEST(ranges_of_python_nest_apart_from_those_of_the_program) {
  Injected program;
  void (*push)(const char*) = nullptr;
  void (*pop)() = nullptr;
  program.collector.find(push, "cutrace_range_push");
  program.collector.find(pop, "cutrace_range_pop");
  push("before");
  program.begin();
  pop();  // started before the recording
  push("function");
  nvtxRangePushA("step");
  push("inner");
  pop();
  pop();
  CHECK_EQUAL(nvtxRangePop(), 0);
  const auto c = program.end();
  push("after");
  pop();
  const auto ranges = c.rows<rows::NvtxRanges>();
  CHECK_EQUAL(ranges.size(), std::size_t{3});
  const auto &inner = ranges[0], &function = ranges[1], &step = ranges[2];
  CHECK(c.text(inner.name) == "inner" && c.text(function.name) == "function" && c.text(step.name) == "step");
  CHECK(function.start <= step.start && step.start <= inner.start && inner.end <= function.end && function.end <= step.end);
  CHECK(function.depth == 0 && inner.depth == 1 && step.depth == 0);
  CHECK(function.domain == 0 && inner.domain == 0 && step.domain == 0);
  CHECK(c.rows<rows::Losses>().empty());
}

TEST(an_interpreter_runs_the_file_that_annotates_outside_of_the_call) {
  Injected program;
  interpreter::runs = true;
  void (*annotated)(int) = nullptr;
  program.collector.find(annotated, "cutrace_annotated");
  program.begin("annotate=a.b, c*:d;annotator=/tmp/it's \"here\".py");
  CHECK(interpreter::programs.empty());
  interpreter::run_pending();
  CHECK_EQUAL(interpreter::programs.size(), std::size_t{1});
  CHECK(interpreter::programs[0].find(R"('path': "/tmp/it's \"here\".py")") != std::string::npos);
  CHECK(interpreter::programs[0].find(R"('names': ["a.b","c*:d",])") != std::string::npos);
  CHECK(interpreter::programs[0].find(COLLECTOR_PATH) != std::string::npos);
  annotated(-1);
  annotated(1);
  annotated(64);
  const auto c = program.end();
  interpreter::run_pending();
  CHECK_EQUAL(interpreter::programs.size(), std::size_t{2});
  CHECK(interpreter::programs[1].find(".stop()") != std::string::npos);
  CHECK(c.says("\"annotated\":[\"c*:d\"]"));
}

TEST(an_interpreter_that_cannot_annotate_is_noted) {
  Injected program;
  for (const bool runs : {false, true}) {
    interpreter::runs = interpreter::full = runs;
    program.begin("annotate=a.b;annotator=/tmp/a.py");
    CHECK(interpreter::pending.empty());
    CHECK_EQUAL(program.collector.stop(), 0);
    const std::string notes = program.collector.notes();
    CHECK((notes.find("takes no pending calls now") != std::string::npos) == runs);
    const auto captures = program.folder.captures();
    CHECK(CaptureReader(captures[0]).says("not_annotated"));
    std::filesystem::remove(captures[0]);
  }
}

TEST(attributes_arrive_whole) {
  Injected program;
  program.begin();
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("my.domain");
  const nvtxStringHandle_t text = nvtxDomainRegisterStringA(domain, "registered");
  nvtxDomainNameCategoryA(domain, 3, "loading");
  auto a = attributes();
  a.category = 3;
  a.colorType = NVTX_COLOR_ARGB;
  a.color = 0xFF123456;
  a.payloadType = NVTX_PAYLOAD_TYPE_INT32;
  a.payload.iValue = -5;
  a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  a.message.registered = text;
  CHECK_EQUAL(nvtxDomainRangePushEx(domain, &a), 0);
  CHECK_EQUAL(nvtxRangePushW(L"h\u00e9llo \U0001F600"), 0);  // each domain has a separate stack
  CHECK_EQUAL(nvtxRangePop(), 0);
  CHECK_EQUAL(nvtxDomainRangePop(domain), 0);
  a.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
  a.payload.dValue = 2.5;
  nvtxDomainMarkEx(domain, &a);
  nvtxNameOsThreadA(static_cast<std::uint32_t>(syscall(SYS_gettid)), "the main one");
  nvtxNameCudaDeviceA(0, "big GPU");
  const auto c = program.end();
  const auto ranges = c.rows<rows::NvtxRanges>();
  CHECK_EQUAL(ranges.size(), std::size_t{2});
  CHECK_EQUAL(c.text(ranges[0].name), std::string("h\u00e9llo \U0001F600"));
  CHECK_EQUAL(ranges[0].domain, 0u);
  const auto& r = ranges[1];
  CHECK(c.text(r.name) == "registered" && c.text(r.domain) == "my.domain" && r.category == 3);
  CHECK(r.color == 0xFF123456 && r.payload_type == 5 && static_cast<std::int32_t>(r.payload) == -5);
  const auto mark = c.rows<rows::NvtxMarks>().at(0);
  double value = 0;
  std::memcpy(&value, &mark.payload, 8);
  CHECK(mark.payload_type == 3 && value == 2.5 && mark.source == 0);
  const auto category = c.rows<rows::NvtxCategories>().at(0);
  CHECK(c.text(category.name) == "loading" && category.category == 3 && c.text(category.domain) == "my.domain");
  bool named = false;
  for (const auto& t : c.rows<rows::Threads>()) named = named || (t.source == 2 && c.text(t.name) == "the main one");
  CHECK(named);
  CHECK_EQUAL(c.text(c.rows<rows::ResourceNames>().at(0).name), std::string("big GPU"));
}

TEST(every_way_to_describe_an_event_says_the_same) {
  Injected program;
  program.begin();
  auto narrow = attributes(), wide = attributes();
  narrow.messageType = NVTX_MESSAGE_TYPE_ASCII;
  narrow.message.ascii = "text";
  wide.messageType = NVTX_MESSAGE_TYPE_UNICODE;
  wide.message.unicode = L"text";
  nvtxMarkA("text");
  nvtxMarkW(L"text");
  for (const auto* a : {&narrow, &wide}) {
    nvtxMarkEx(a);
    nvtxDomainMarkEx(nullptr, a);
    nvtxRangeEnd(nvtxRangeStartEx(a));
    nvtxDomainRangeEnd(nullptr, nvtxDomainRangeStartEx(nullptr, a));
    CHECK_EQUAL(nvtxRangePushEx(a), 0);
    CHECK_EQUAL(nvtxDomainRangePushEx(nullptr, a), 1);
    CHECK_EQUAL(nvtxDomainRangePop(nullptr), 1);
    CHECK_EQUAL(nvtxRangePop(), 0);
  }
  nvtxRangeEnd(nvtxRangeStartA("text"));
  nvtxRangeEnd(nvtxRangeStartW(L"text"));
  nvtxNameCategoryW(1, L"text");
  nvtxDomainNameCategoryW(nvtxDomainCreateW(L"text"), 2, L"text");
  nvtxNameOsThreadW(77, L"text");
  nvtxNameCudaDeviceW(3, L"text");
  const nvtxDomainHandle_t other = nvtxDomainCreateA("text");
  wide.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  wide.message.registered = nvtxDomainRegisterStringW(other, L"text");
  nvtxDomainMarkEx(other, &wide);
  nvtxDomainDestroy(other);
  const auto c = program.end();
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size(), std::size_t{7});
  for (const auto& mark : c.rows<rows::NvtxMarks>()) CHECK_EQUAL(c.text(mark.name), std::string("text"));
  CHECK_EQUAL(c.rows<rows::NvtxRanges>().size(), std::size_t{10});
  for (const auto& range : c.rows<rows::NvtxRanges>()) CHECK(c.text(range.name) == "text" && range.end != 0);
  for (const auto& category : c.rows<rows::NvtxCategories>()) CHECK_EQUAL(c.text(category.name), std::string("text"));
  CHECK_EQUAL(c.rows<rows::NvtxCategories>().size(), std::size_t{2});
  CHECK_EQUAL(c.text(c.rows<rows::ResourceNames>().at(0).name), std::string("text"));
}

TEST_OF_THREADS(start_and_end_may_be_on_different_threads) {
  Injected program;
  program.begin();
  std::vector<nvtxRangeId_t> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(nvtxRangeStartA("job"));
  std::thread other([&] {
    for (const nvtxRangeId_t id : ids) nvtxRangeEnd(id);
  });
  other.join();
  nvtxRangeEnd(123456789);  // an unknown range
  const auto c = program.end();
  const auto ranges = c.rows<rows::NvtxRanges>();
  CHECK_EQUAL(ranges.size(), std::size_t{1000});
  for (const auto& r : ranges) CHECK(r.kind == 1 && r.end >= r.start && r.thread != r.end_thread && r.range_id != 0);
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_unmatched_pop), std::uint64_t{1});
}

TEST_OF_THREADS(what_is_open_at_the_end_or_never_pushed_is_said) {
  Injected program;
  program.begin();
  CHECK_EQUAL(nvtxRangePop(), -1);
  nvtxRangePushA("open");
  const nvtxRangeId_t id = nvtxRangeStartA("started");
  CHECK(id != 0);
  std::thread([] { nvtxRangePushA("its thread ended"); }).join();
  const auto c = program.end();
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_unmatched_pop), std::uint64_t{1});
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_open), std::uint64_t{3});
  for (const auto& r : c.rows<rows::NvtxRanges>()) CHECK(r.end == 0 && r.flags == 1);
}

TEST_OF_THREADS(ranges_from_many_threads_all_arrive_or_are_counted) {
  Injected program;
  program.begin("flush_ms=10");
  constexpr int kThreads = 8, kEach = 2'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < kEach; ++i) {
        nvtxRangePushA("outer");
        nvtxRangePushA("inner");
        nvtxRangePop();
        nvtxRangePop();
        if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  for (auto& thread : threads) thread.join();
  const auto c = program.end();
  std::uint64_t closed = 0, open = 0;
  for (const auto& r : c.rows<rows::NvtxRanges>()) {
    r.end != 0 ? ++closed : ++open;
    CHECK(r.end == 0 || r.end >= r.start);
    CHECK_EQUAL(c.text(r.name), std::string(r.depth == 0 ? "outer" : "inner"));
  }
  // Each range is two events. A dropped push makes its pop unmatched, a dropped pop leaves its range open.
  const std::uint64_t dropped = c.lost(rows::Loss::nvtx_dropped);
  const std::uint64_t events = 2 * closed + open + c.lost(rows::Loss::nvtx_unmatched_pop) + dropped;
  CHECK_EQUAL(events, std::uint64_t{kThreads * kEach * 4});
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_open), open);
}

TEST(a_range_whose_end_may_be_lost_does_not_hang) {
  for (const bool lossy : {false, true}) {
    Injected program;
    const std::string dump = program.folder.path + "/dump.bin";
    program.begin("flush_ms=10;last_ms=100;dump=" + dump + ";dump_when=nvtx:hanging > 10ms");
    nvtxRangePushA("hanging");
    const std::string mark(4000, 'm');
    std::uint64_t sent = 1;
    const auto lost = [&] { return program.collector.flush() == 0 && program.collector.statistics().nvtx_events < sent; };
    while (lossy && !lost())
      for (int i = 0; i < 2000; ++i, ++sent) nvtxMarkA(mark.c_str());
    sleep_ms(500);
    const auto dumped = std::filesystem::exists(program.folder.path + "/dump-1.bin");
    CHECK_EQUAL(program.collector.stop(), 0);
    CHECK_EQUAL(dumped, !lossy);
  }
}

TEST_OF_THREADS(hundreds_of_threads_share_the_memory) {
  Injected program;
  program.begin("flush_ms=60000");
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 50; ++t)
      threads.emplace_back([] {
        nvtxRangePushA("short");
        nvtxRangePop();
      });
    for (auto& thread : threads) thread.join();
    sleep_ms(20);  // the ends of threads wake the writer
  }
  CHECK(program.collector.statistics().memory_bytes < (64 << 20));
  const auto c = program.end();
  CHECK_EQUAL(c.rows<rows::NvtxRanges>().size(), std::size_t{1000});
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_dropped), std::uint64_t{0});
}

TEST_OF_THREADS(threads_that_start_at_once_share_the_memory) {
  constexpr int kThreads = 100;
  Injected program;
  program.begin();
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      nvtxRangePushA("short");
      nvtxRangePop();
      start.arrive_and_wait();  // each thread has a separate buffer
    });
  for (auto& thread : threads) thread.join();
  const auto c = program.end();
  CHECK_EQUAL(c.rows<rows::NvtxRanges>().size(), std::size_t{kThreads});
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_dropped), std::uint64_t{0});
}

namespace {
std::atomic<int> marks_of_handler{0};
}

// A signal can interrupt the thread while it records an event.
TEST(a_signal_handler_may_mark) {
  Injected program;
  program.begin("max_memory=268435456");
  struct sigaction action {};
  action.sa_handler = [](int) {
    nvtxMarkA("a name of the signal handler that is longer than the names of the ranges");
    marks_of_handler.fetch_add(1);
  };
  CHECK(sigaction(SIGALRM, &action, nullptr) == 0);
  const itimerval often{{0, 50}, {0, 50}}, never{};
  CHECK(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  std::uint64_t ranges = 0;
  for (; marks_of_handler.load() < 3000; ++ranges) {
    nvtxRangePushA("range");
    nvtxRangePop();
  }
  CHECK(setitimer(ITIMER_REAL, &never, nullptr) == 0);
  const auto c = program.end();
  const std::uint64_t events = 2 * c.rows<rows::NvtxRanges>().size() + c.rows<rows::NvtxMarks>().size();
  const std::uint64_t lost = c.lost(rows::Loss::nvtx_dropped) + c.lost(rows::Loss::nvtx_unmatched_pop);
  CHECK_EQUAL(events + lost - c.lost(rows::Loss::nvtx_open), 2 * ranges + marks_of_handler.load());
}

namespace {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The number of bytes that a signal handler takes of an alternate stack.
std::size_t stack_of_handler(void (*handler)(int)) {
  constexpr unsigned char kUnused = 0xA5;
  std::vector<unsigned char> stack(1 << 18, kUnused);
  const stack_t alternate{stack.data(), 0, stack.size()};
  CHECK_EQUAL(sigaltstack(&alternate, nullptr), 0);
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK;
  CHECK_EQUAL(sigaction(SIGUSR1, &action, nullptr), 0);
  CHECK_EQUAL(raise(SIGUSR1), 0);
  const stack_t none{nullptr, SS_DISABLE, 0};
  CHECK_EQUAL(sigaltstack(&none, nullptr), 0);
  const auto used = std::ranges::find_if(stack, [](unsigned char byte) { return byte != kUnused; });
  return static_cast<std::size_t>(stack.end() - used);
}
}  // namespace

// The registers of AVX-512 take 3.5 KiB of an alternate stack of 8 KiB.
TEST(a_signal_handler_with_a_small_stack_may_use_ranges) {
  if (kSanitized) return;  // sanitizers need more stack
  Injected program;
  program.begin();
  std::thread([] {
    const std::size_t frame = stack_of_handler([](int) {});
    for (int event = 0; event < 2; ++event) {  // the first one makes a ring
      const std::size_t used = stack_of_handler([](int) {
        nvtxRangePushA("range");
        nvtxRangePop();
        nvtxMarkA("mark");
      });
      CHECK(used - frame <= 2048);
    }
  }).join();
  CHECK_EQUAL(program.end().rows<rows::NvtxRanges>().size(), std::size_t{2});
}

namespace {
cpu_set_t cpus_of(pid_t thread) {
  cpu_set_t cpus;
  CHECK_EQUAL(sched_getaffinity(thread, sizeof cpus, &cpus), 0);
  return cpus;
}
int move_to_first_of(const cpu_set_t& cpus) {
  int first = 0;
  while (!CPU_ISSET(first, &cpus)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  CHECK_EQUAL(sched_setaffinity(0, sizeof one, &one), 0);
  return first;
}

// The ids of the collector's threads.
std::vector<pid_t> own_threads() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    if (name.starts_with("cutrace-")) found.push_back(static_cast<pid_t>(std::stol(entry.path().filename())));
  }
  return found;
}
}  // namespace

TEST(a_thread_on_one_cpu_starts_threads_on_all_cpus) {
  Injected program;
  const cpu_set_t all = cpus_of(0);
  std::thread([&] {
    move_to_first_of(all);
    program.begin();
  }).join();
  const std::vector<pid_t> threads = own_threads();
  CHECK_EQUAL(threads.size(), std::size_t{2});
  for (const pid_t thread : threads) {
    const cpu_set_t cpus = cpus_of(thread);
    CHECK(CPU_EQUAL(&cpus, &all));
  }
  program.end();
}

TEST(a_real_time_thread_on_one_cpu_starts_ordinary_threads_on_others) {
  Injected program;
  const cpu_set_t all = cpus_of(0);
  const int busy = move_to_first_of(all);
  const sched_param lowest{sched_get_priority_min(SCHED_FIFO)};
  if (CPU_COUNT(&all) < 2 || sched_setscheduler(0, SCHED_FIFO, &lowest) != 0) return;  // not permitted here
  program.begin();
  const std::vector<pid_t> threads = own_threads();
  CHECK_EQUAL(threads.size(), std::size_t{2});
  for (const pid_t thread : threads) {
    const cpu_set_t cpus = cpus_of(thread);
    CHECK(!CPU_ISSET(busy, &cpus));
    CHECK_EQUAL(sched_getscheduler(thread), SCHED_OTHER);
  }
  program.end();
}

// The first file is complete before the program uses CUDA.
TEST(a_refusal_after_the_first_rotation_is_counted_once) {
  Injected program;
  program.begin("last_ms=400;flush_ms=10;cupti=" + std::string(fake_path()));
  const auto work_until = [&](std::size_t files) {
    for (int i = 0; i < 500 && program.folder.captures().size() < files; ++i, sleep_ms(10)) {
      nvtxRangePushA("range");
      nvtxRangePop();
    }
    CHECK(program.folder.captures().size() >= files);
  };
  work_until(2);
  fake_refuse_kind(CUPTI_ACTIVITY_KIND_OVERHEAD, CUPTI_ERROR_INVALID_KIND);
  CHECK_EQUAL(program.collector.inject(), 1);
  work_until(5);
  CHECK_EQUAL(program.collector.stop(), 0);
  std::uint64_t refused = 0;
  for (const std::string& path : program.folder.captures()) refused += CaptureReader(path).lost(rows::Loss::kind_refused);
  CHECK_EQUAL(refused, std::uint64_t{1});
}

TEST(open_ranges_are_bounded) {
  Injected program;
  program.begin("max_memory=8388608");
  constexpr int kPushes = 30'000, kStarts = 30'000;
  const auto settle = [&](int i) {
    if (i % 200 == 0) CHECK_EQUAL(program.collector.flush(), 0);
  };
  const nvtxRangeId_t first = nvtxRangeStartA("started first");
  for (int i = 0; i < kPushes; ++i) {
    CHECK_EQUAL(nvtxRangePushA("a range that is not ended, with a name of some length"), i);
    settle(i);
  }
  for (int i = 1; i < kStarts; ++i) {
    nvtxRangeStartA("a range that is not ended, with a name of some length");
    settle(i);
  }
  CHECK_EQUAL(program.collector.flush(), 0);
  const auto memory = program.collector.statistics().memory_bytes;
  CHECK(memory < (8 << 20) && memory > (1 << 20));
  // The innermost ranges are still exact, and ends of the others are not counted as lost again.
  for (int i = kPushes; i-- > 0;) {
    CHECK_EQUAL(nvtxRangePop(), i);
    settle(i);
  }
  nvtxRangeEnd(first);
  CHECK_EQUAL(nvtxRangePushA("after"), 0);
  CHECK_EQUAL(nvtxRangePop(), 0);
  const auto c = program.end();
  std::uint64_t closed = 0, open = 0;
  for (const auto& r : c.rows<rows::NvtxRanges>()) {
    (r.end != 0 ? closed : open) += 1;
    CHECK_EQUAL(r.flags, r.end != 0 ? 0 : 1);
  }
  CHECK_EQUAL(closed + open, std::uint64_t{kPushes + kStarts + 1});
  CHECK(closed > 1000 && open > 0);
  CHECK(c.lost(rows::Loss::memory_limit) > 0);
  CHECK_EQUAL(c.lost(rows::Loss::memory_limit) + c.lost(rows::Loss::nvtx_open), open);
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_unmatched_pop), std::uint64_t{0});
  CHECK_EQUAL(c.text(c.rows<rows::NvtxRanges>().back().name).empty(), false);
}

TEST(nothing_is_recorded_before_start_and_after_stop) {
  Injected program;
  CHECK_EQUAL(nvtxRangePushA("before"), NVTX_NO_PUSH_POP_TRACKING);
  program.begin();
  CHECK_EQUAL(nvtxRangePushA("during"), 0);
  CHECK_EQUAL(nvtxRangePop(), 0);
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK_EQUAL(nvtxRangePushA("after"), NVTX_NO_PUSH_POP_TRACKING);
  const CaptureReader first(program.folder.only());
  CHECK_EQUAL(first.rows<rows::NvtxRanges>().size(), std::size_t{1});
  std::filesystem::remove(program.folder.only());
  program.begin();
  CHECK_EQUAL(nvtxRangePushA("again"), 0);  // depths start again at 0
  CHECK_EQUAL(nvtxRangePop(), 0);
  const auto second = program.end();
  CHECK_EQUAL(second.text(second.rows<rows::NvtxRanges>().at(0).name), std::string("again"));
}

TEST(nvtx_can_be_left_out) {
  Injected program;
  program.begin("nvtx=0");
  nvtxRangePushA("unseen");
  nvtxRangePop();
  CHECK(program.collector.mark("unseen") != 0);
  CHECK(program.end().rows<rows::NvtxRanges>().empty());
}

TEST(a_long_or_missing_message_is_no_danger) {
  Injected program;
  program.begin();
  const std::string text(100'000, 'x');
  nvtxMarkA(text.c_str());
  nvtxMarkA(nullptr);
  nvtxMarkEx(nullptr);
  nvtxMarkW(nullptr);
  auto a = attributes();
  a.size = 4;  // a struct of an older, shorter version
  nvtxMarkEx(&a);
  const auto c = program.end();
  const auto marks = c.rows<rows::NvtxMarks>();
  CHECK_EQUAL(marks.size(), std::size_t{5});
  CHECK_EQUAL(c.text(marks[0].name), std::string(4096, 'x'));
  CHECK_EQUAL(marks[1].name, 0u);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
