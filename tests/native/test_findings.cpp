// Races, stuck parts and forks that once lost data or wrote to the wrong file. Losses must be counted or noted, and each call
// must return in time.
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_cupti.h"
#include "fake_system.h"

// LeakSanitizer reports memory of forked children that only the parent's threads refer to. The recording of a child needs
// threads, which ThreadSanitizer allows by an option.
extern "C" int __lsan_is_turned_off() { return 1; }
extern "C" const char* __tsan_default_options() { return "die_after_fork=0:atexit_sleep_ms=50"; }

using namespace cutrace;

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kRuntime = CUPTI_CB_DOMAIN_RUNTIME_API;
constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

// The duration of `body` in milliseconds.
template <typename Body>
long time_of(Body&& body) {
  const auto before = Clock::now();
  body();
  return static_cast<long>(std::chrono::duration_cast<milliseconds>(Clock::now() - before).count());
}

template <typename Condition>
bool becomes_true(int within_ms, Condition&& condition) {
  for (const auto end = Clock::now() + milliseconds(within_ms); Clock::now() < end; sleep_ms(1))
    if (condition()) return true;
  return condition();
}

void launch(int count) {
  for (int i = 0; i < count; ++i) fake_launch("k", 1, 1, false);
}

std::size_t kernels(const CaptureReader& c) { return c.rows<rows::Kernels>().size(); }

// Rows that were counted as lost, for any reason.
std::uint64_t all_lost(const CaptureReader& c) {
  std::uint64_t count = 0;
  for (const auto& row : c.rows<rows::Losses>()) count += row.count;
  return count;
}

std::multiset<std::string> marks(const CaptureReader& c) {
  std::multiset<std::string> names;
  for (const auto& row : c.rows<rows::NvtxMarks>()) names.insert(c.text(row.name));
  return names;
}

// Files of the program itself, at the lowest free descriptors. ThreadSanitizer does not see closefrom(), so it must not see
// reused descriptors either.
class OwnFiles {
 public:
  void open(const Folder& folder) {
    for (std::size_t i = 0; i < files_.size(); ++i)
      files_[i] = static_cast<int>(
          syscall(SYS_openat, AT_FDCWD, (folder.path + "/own" + std::to_string(i)).c_str(), O_CREAT | O_RDWR, 0600));
  }
  void are_untouched() const {
    for (const int fd : files_) {
      struct stat status {};
      CHECK(fstat(fd, &status) == 0);  // the descriptor is still open
      CHECK_EQUAL(status.st_size, 0);
    }
  }

 private:
  std::array<int, 8> files_{};
};

// A capture that is a pipe: a writer blocks until there is a reader.
class Pipe {
 public:
  explicit Pipe(const Folder& folder) : path(folder.path + "/pipe") { CHECK_EQUAL(mkfifo(path.c_str(), 0600), 0); }
  ~Pipe() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    close(fd_);
  }
  void open_for_reading() {
    fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK);
    CHECK(fd_ >= 0);
  }
  void read_into(const std::string& copy) {
    thread_ = std::thread([this, copy] {
      std::ofstream file(copy, std::ios::binary);
      std::vector<char> bytes(1 << 16);
      for (;;) {
        const bool last = over_;
        const ssize_t n = read(fd_, bytes.data(), bytes.size());
        if (n > 0) file.write(bytes.data(), n);
        else if (last) return;
        else sleep_ms(1);
      }
    });
  }
  // The copy then has all written bytes.
  void finish() {
    over_ = true;
    thread_.join();
  }
  const std::string path;

 private:
  int fd_ = -1;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// A child that does not end by itself is killed. Its status shows the signal.
template <typename Body>
pid_t fork_child(Body&& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(30);
    body();
    _exit(0);
  }
  return child;
}
void ends_well(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(!WIFSIGNALED(status));
  CHECK_EQUAL(WEXITSTATUS(status), 0);
}

}  // namespace

// ---- a writer or a disk that fails ----

namespace {

// The kernels and losses of a recording without memory for its writer. The recording has either counted its losses or failed.
void end_without_memory(Collector& collector, const Folder& folder, std::size_t launched, int patience, bool stuck) {
  int stopped = -1;
  const long time = time_of([&] { stopped = collector.stop(); });
  CHECK(fault_allocations_failed() > 0);
  fault_allocations(0, 0, true);
  fake_set_flush_delay(0);
  CHECK(time < 3 * patience + 1500);
  CHECK_EQUAL(collector.running(), 0);
  const CaptureReader c(folder.only(), true);
  const bool counted = c.says("\"ended\"") && kernels(c) + all_lost(c) / 2 >= launched;
  CHECK(stopped != 0 || counted);
  if (stopped != 0) CHECK(std::string(collector.last_error()) != "");
  CHECK(stopped != 0 || !stuck);
  CHECK(becomes_true(8000, [] { return fake_subscribers() == 0; }));
  // The next recording is complete, or is refused with a reason.
  Folder next;
  if (collector.start(next.options("flush_ms=5;cupti=" + std::string(fake_path())).c_str()) != 0) {
    CHECK(std::string(collector.last_error()) != "");
    return;
  }
  collector.inject();
  fake_create_context();
  fake_load_module();
  launch(100);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(kernels(CaptureReader(next.only())), std::size_t{100});
}

}  // namespace

TEST(a_writer_without_memory_is_said) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=5;patience_ms=500"));
  launch(1);
  CHECK_EQUAL(collector.flush(), 0);
  fault_allocations(0, kForever, true);
  launch(5000);
  sleep_ms(100);
  end_without_memory(collector, folder, 5001, 500, false);
}

TEST(a_writer_without_memory_and_a_stuck_flush_end_in_time) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=5;patience_ms=300"));
  launch(1);
  CHECK_EQUAL(collector.flush(), 0);
  fake_set_flush_delay(5000);
  launch(5000);
  sleep_ms(50);
  fault_allocations(0, kForever, true);
  CHECK_EQUAL(collector.mark("wakes the writer"), 0);
  sleep_ms(100);
  end_without_memory(collector, folder, 5001, 300, true);
}

TEST(a_recording_after_one_without_memory_is_complete) {
  Collector collector;
  Folder folder;
  for (const char* more : {"finalize=1;", "share=1;", ""}) {
    fake_can_share(true);
    for (int number = 1; number <= 3; ++number) {
      const std::string path = folder.path + "/" + std::to_string(number) + ".bin";
      collector.begin(more + std::string("flush_ms=5;patience_ms=3000;output=") + path);
      launch(50);
      CHECK_EQUAL(collector.flush(), 0);
      if (number == 1) {
        const std::uint64_t failed = fault_allocations_failed();
        fault_allocations(0, 1, true);
        launch(5000);
        CHECK(becomes_true(5000, [&] { return fault_allocations_failed() > failed; }));
        fault_allocations(0, 0, true);
        collector.stop();
        continue;
      }
      CHECK_EQUAL(collector.stop(), 0);
      CHECK_EQUAL(kernels(CaptureReader(path)), std::size_t{50});
    }
  }
}

TEST_OF_THREADS(a_buffer_that_cupti_keeps_is_counted_at_each_end) {
  for (const bool shares : {false, true})
    for (const bool at_exit : {false, true}) {
      Folder folder;
      const pid_t child = fork_child([&] {
        fake_can_share(shares);
        Collector collector;
        collector.begin(folder.options(std::string("flush_ms=5;share=") + (shares ? "1" : "0")));
        launch(100);
        CHECK_EQUAL(collector.flush(), 0);
        std::atomic<bool> launched{false};
        std::thread([&] {
          fake_hold_buffer(true);
          launch(50);
          launched = true;
          for (;;) pause();
        }).detach();
        while (!launched) sleep_ms(1);
        if (at_exit) std::exit(0);
        CHECK_EQUAL(collector.stop(), 0);
      });
      ends_well(child);
      const CaptureReader c(folder.only());
      CHECK(c.says("\"ended\""));
      const bool forced = at_exit && !shares;
      CHECK_EQUAL(kernels(c), std::size_t{forced ? 150u : 100u});
      CHECK_EQUAL(c.lost(rows::Loss::kept_back), std::uint64_t{forced ? 0u : 1u});
    }
}

TEST_OF_THREADS(a_buffer_that_cupti_keeps_is_counted_by_each_recording_that_may_have_used_it) {
  Collector collector;
  Folder folder;
  std::atomic<int> asked{0}, launched{0};
  std::thread program([&] {
    fake_hold_buffer(true);
    for (int done = 0; done < 2; ++done) {
      while (asked == done) sleep_ms(1);
      launch(10);
      ++launched;
    }
    while (asked < 3) sleep_ms(1);
    fake_hold_buffer(false);
    ++launched;
  });
  const auto record = [&](int number) {
    const std::string path = folder.path + "/" + std::to_string(number) + ".bin";
    collector.begin("flush_ms=5;output=" + path);
    asked = number;
    while (launched < number) sleep_ms(1);
    CHECK_EQUAL(collector.stop(), 0);
    const CaptureReader c(path);
    return std::make_pair(kernels(c), c.lost(rows::Loss::kept_back));
  };
  const auto kept = std::make_pair(std::size_t{0}, std::uint64_t{1});
  CHECK(record(1) == kept);
  CHECK(record(2) == kept);
  CHECK(record(3) == std::make_pair(std::size_t{0}, std::uint64_t{0}));  // late records belong to no other recording
  program.join();
}

namespace {

// The number of times that two recordings in a separate process finalise CUPTI. `work` runs on another thread during the first
// recording. CUPTI keeps the buffer of that thread until `between` has run.
template <typename Work, typename Between>
unsigned finalized(const std::string& first, const std::string& second, Work&& work, Between&& between) {
  Folder folder;
  const pid_t child = fork_child([&] {
    Collector collector;
    const std::uint32_t graph = fake_graph();
    fake_graph_add(graph, "k");
    const std::uint32_t exec = fake_graph_instantiate(graph);
    std::atomic<bool> worked{false}, over{false};
    collector.begin("finalize=1;flush_ms=5;" + first + ";output=" + folder.path + "/1.bin");
    std::thread other([&] {
      work(exec);
      worked = true;
      while (!over) sleep_ms(1);
      fake_hold_buffer(false);
    });
    while (!worked) sleep_ms(1);
    CHECK_EQUAL(collector.stop(), 0);
    between();
    over = true;
    other.join();
    collector.begin("finalize=1;flush_ms=5;" + second + ";output=" + folder.path + "/2.bin");
    launch(1);
    CHECK_EQUAL(collector.stop(), 0);
    std::_Exit(static_cast<int>(10 + fake_finalized()));
  });
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) >= 10);
  return static_cast<unsigned>(WEXITSTATUS(status)) - 10;
}
template <typename Work>
unsigned finalized(const std::string& first, const std::string& second, Work&& work) {
  return finalized(first, second, work, [] {});
}

void trace_graph(std::uint32_t exec) {
  auto trace = make<CUpti_ActivityGraphTrace>(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  trace.correlationId = fake_next_correlation();
  trace.start = fake_now();
  trace.end = trace.start + 1000;
  trace.graphId = exec;
  put(trace);
}

}  // namespace

TEST(cupti_is_finalized_only_where_no_graph_can_have_run) {
  const auto work = [](std::uint32_t) { launch(1); };
  const auto replay = [](std::uint32_t exec) { fake_graph_replay(exec, 7); };
  const auto trace_and_hold = [](std::uint32_t exec) {
    fake_hold_buffer(true);
    trace_graph(exec);
  };
  CHECK_EQUAL(finalized("", "", work), 2u);
  CHECK_EQUAL(finalized("", "", replay), 0u);
  CHECK_EQUAL(finalized("kinds=api,nvtx", "", replay), 0u);
  CHECK_EQUAL(finalized("api=none;kinds=memory", "kinds=memory", replay), 0u);
  CHECK_EQUAL(finalized("finalize=0", "", replay), 0u);
  CHECK_EQUAL(finalized("graph=graph", "graph=graph", trace_graph), 0u);
  CHECK_EQUAL(finalized("graph=graph", "", trace_and_hold), 0u);  // its record arrives in the second recording
  fake_fail("GetCallbackName", CUPTI_ERROR_UNKNOWN);  // the calls that launch graphs are unknown
  CHECK_EQUAL(finalized("", "", work), 0u);
}

TEST(cupti_is_finalized_after_a_kept_buffer_is_read_but_not_after_it_is_discarded) {
  const auto hold = [](std::uint32_t) {
    fake_hold_buffer(true);
    launch(1);
  };
  CHECK_EQUAL(finalized("", "", hold), 1u);
  // CUPTI returns the buffer while no recording runs, so its contents are unknown.
  CHECK_EQUAL(finalized("", "", hold, [] { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); }), 0u);
}

TEST(a_stop_needs_no_memory_and_is_final) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=60000;patience_ms=300"));
  launch(10);
  CHECK_EQUAL(collector.flush(), 0);  // its threads have started, and a start needs memory
  fake_set_flush_delay(2000);
  fault_allocations(0, kForever, false);
  const int stopped = collector.stop();
  const std::string error = collector.last_error();
  const int again = collector.stop();
  fault_allocations(0, 0, false);
  fake_set_flush_delay(0);
  CHECK(stopped != 0 && again != 0);
  CHECK(error.find("did not respond in time") != std::string::npos);
  CHECK(std::string(collector.last_error()).find("no recording") != std::string::npos);
  CHECK_EQUAL(collector.running(), 0);
}

TEST(a_stop_of_an_annotated_recording_needs_no_memory) {
  Collector collector;
  for (std::int64_t before = 0; before < 12; ++before) {
    Folder folder;
    collector.begin(folder.options("annotate=a.b,c.d;flush_ms=60000;patience_ms=300"));
    launch(10);
    CHECK_EQUAL(collector.flush(), 0);
    fault_allocations(before, kForever, false);
    const int stopped = collector.stop();
    fault_allocations(0, 0, false);
    CHECK(stopped == 0 || std::string(collector.last_error()) != "");
    CHECK_EQUAL(collector.running(), 0);
  }
}

TEST(calls_without_memory_fail_and_throw_nothing) {
  Collector collector;
  setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
  const auto without_memory = [](std::int64_t before, auto&& call) {
    fault_allocations(before, kForever, false);
    call();
    fault_allocations(0, 0, false);
  };
  for (int before = 0; before < 100; before += 3) {
    Folder folder;
    const std::string options = folder.options("flush_ms=5;patience_ms=300;kinds=nvtx;last_ms=1000;dump=" + folder.path + "/run.bin");
    int started = -1;
    without_memory(before, [&] { started = collector.start(options.c_str()); });
    if (started != 0) {
      CHECK(std::string(collector.last_error()) != "");
      CHECK_EQUAL(collector.running(), 0);
      CHECK_EQUAL(collector.start(options.c_str()), 0);
    }
    collector.mark("m");
    const std::string text = "a text " + std::to_string(before), path = folder.path + "/dump";
    without_memory(before % 10, [&] { nvtxDomainRegisterStringA(domain, text.c_str()); });
    without_memory(before % 10, [&] { collector.notes(); });
    without_memory(before, [&] { collector.dump(path.c_str()); });
    without_memory(before, [&] {
      raise(SIGUSR2);
      sleep_ms(5);
    });
    collector.stop();
    CHECK_EQUAL(collector.running(), 0);
  }
  CHECK(fault_allocations_failed() > 0);
}

TEST(an_injection_without_memory_fails_the_recording_or_changes_nothing) {
  Collector collector;
  for (int before = 0; before < 80; before += 2) {
    Folder folder;
    const std::string options = folder.options("flush_ms=5;cupti=") + fake_path();
    setenv("CUTRACE_OPTIONS", options.c_str(), 1);
    CHECK_EQUAL(collector.start(options.c_str()), 0);
    fault_allocations(before, kForever, false);
    collector.inject();
    fault_allocations(0, 0, false);
    const bool active = collector.statistics().cupti_active == 1;
    CHECK(collector.stop() != 0 || active);
  }
  unsetenv("CUTRACE_OPTIONS");
}

TEST(a_recording_that_gets_no_thread_leaves_a_file_that_says_so) {
  Collector collector;
  Folder folder;
  pthread_attr_t before, huge;
  pthread_getattr_default_np(&before);
  pthread_getattr_default_np(&huge);
  pthread_attr_setstacksize(&huge, std::size_t{1} << 46);
  pthread_setattr_default_np(&huge);
  CHECK(collector.start(folder.options().c_str()) != 0);
  pthread_setattr_default_np(&before);
  const CaptureReader c(folder.only());
  CHECK(c.says("cannot start the threads of the collector") && !c.says("\"ended\""));
}

TEST(a_size_limit_leaves_room_for_the_losses_whatever_the_names) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(collector.start(folder.options("kinds=nvtx;flush_ms=5;max_size=300000").c_str()), 0);
  constexpr int kSent = 20'000;
  for (int i = 0; i < kSent; ++i) {
    if (i % 500 == 499) sleep_ms(1);
    CHECK_EQUAL(collector.mark(("a mark with a name of its own " + std::to_string(i)).c_str()), 0);
  }
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK(c.says("\"ended\""));
  CHECK(std::filesystem::file_size(folder.only()) <= 300'000);
  std::uint64_t lost = c.lost(rows::Loss::nvtx_dropped);
  for (const auto& loss : c.rows<rows::Losses>())
    if (c.text(loss.detail) == rows::NvtxMarks::kName) lost += loss.count;
  CHECK_EQUAL(marks(c).size() + lost, std::size_t{kSent});
}

TEST(a_cut_on_a_full_disk_leaves_no_reference_without_its_target) {
  for (int writes = 0; writes < 12; ++writes) {
    Collector collector;
    Folder folder;
    collector.begin(folder.options("flush_ms=60000;patience_ms=1000"));
    launch(10);
    CHECK_EQUAL(collector.flush(), 0);
    fake_launch("another", 2, 1, false);
    fault_writes(ENOSPC, writes, kForever);
    collector.cut((folder.path + "/cut").c_str());
    fault_writes(0, 0, 0);
    launch(10);
    fake_launch("another", 2, 1, false);
    const int stopped = collector.stop();
    std::size_t seen = 0;
    std::uint64_t lost = 0;
    for (const std::string& path : folder.captures()) {
      const CaptureReader c(path, true);  // which checks references
      seen += kernels(c);
      lost += all_lost(c);
    }
    CHECK(stopped != 0 || seen + lost >= 22);
  }
}

TEST(a_cut_without_memory_leaves_no_reference_without_its_target) {
  setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
  Collector collector;
  for (int before = 0; before < 100; ++before) {
    Folder folder;
    CHECK_EQUAL(collector.start(folder.options("kinds=nvtx;flush_ms=60000;patience_ms=1000").c_str()), 0);
    for (int i = 0; i < 2; ++i) {
      nvtxRangePushA("a name that is in the file already");
      if (i == 0) nvtxRangePop();
    }
    CHECK_EQUAL(collector.flush(), 0);
    fault_allocations(before, 1, true);
    collector.cut((folder.path + "/cut").c_str());
    fault_allocations(0, 0, true);
    collector.stop();
    nvtxRangePop();
    for (const std::string& path : folder.captures()) CaptureReader(path, true);  // which checks references
  }
}

// If strings have no room for a while, they are given up with all rows that refer to them.
TEST(no_launch_refers_to_a_name_that_was_given_up) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("kinds=kernel;flush_ms=60000;max_size=300000"));
  std::deque<std::string> names;
  const auto launch_new = [&](int from, int to) {
    for (int i = from; i < to; ++i) {
      names.push_back("kernel_" + std::to_string(i) + std::string(1000, 'x'));
      fake_launch(names.back().c_str(), 1, 1, false);
    }
  };
  launch_new(0, 100);
  CHECK_EQUAL(collector.flush(), 0);
  launch_new(100, 5000);
  CHECK_EQUAL(collector.flush(), 0);
  launch_new(5000, 5050);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());  // checks references
  std::map<std::string, std::uint64_t> lost;
  for (const rows::Losses& row : c.rows<rows::Losses>()) lost[c.text(row.detail)] += row.count;
  CHECK_EQUAL(c.rows<rows::Kernels>().size() + lost["kernels"], std::size_t{5050});
  CHECK(lost["kernels"] >= 4900 && lost["strings"] >= 4900 && lost["launches"] >= 4900);
}

namespace {

// The marks of a recording that starts while a disk blocks the writer of the previous one. `before` marks were made earlier. Each
// mark is in the capture once or counted as lost, or the recording is refused until the previous one has ended.
void record_behind_a_stuck_writer(const std::string& options, int before, int pause_every) {
  Collector collector;
  Folder folder, second;
  Pipe pipe(folder);
  pipe.open_for_reading();
  CHECK_EQUAL(collector.start(("output=" + pipe.path + ";kinds=nvtx;patience_ms=300;" + options).c_str()), 0);
  for (int i = 0; i < before; ++i) {
    if (i % pause_every == pause_every - 1) sleep_ms(1);
    collector.mark(("mark " + std::to_string(i) + " of the first recording").c_str());
  }
  sleep_ms(100);
  int stopped = -1;
  CHECK(time_of([&] { stopped = collector.stop(); }) < 3 * 300 + 1500);
  CHECK(stopped != 0);
  const std::string more = second.options("kinds=nvtx;flush_ms=5;patience_ms=3000");
  const bool refused = collector.start(more.c_str()) != 0;
  if (refused) CHECK(std::string(collector.last_error()).find("previous") != std::string::npos);
  pipe.read_into(folder.path + "/copy");
  if (refused) CHECK(becomes_true(10'000, [&] { return collector.start(more.c_str()) == 0; }));
  constexpr int kSent = 30'000;
  for (int i = 0; i < kSent; ++i) {
    if (i % 1000 == 999) sleep_ms(2);
    CHECK_EQUAL(collector.mark(("mark " + std::to_string(i) + " of the second recording").c_str()), 0);
  }
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(second.only());
  std::set<int> seen;
  for (const std::string& name : marks(c)) {
    CHECK(name.ends_with("of the second recording"));
    CHECK(seen.insert(std::stoi(name.substr(5))).second);
  }
  CHECK_EQUAL(seen.size() + c.lost(rows::Loss::nvtx_dropped), std::size_t{kSent});
}

}  // namespace

TEST(a_recording_behind_a_stuck_writer_loses_nothing_in_silence) { record_behind_a_stuck_writer("flush_ms=5", 6000, 6000); }
TEST(a_recording_behind_a_writer_stuck_amid_marks_loses_nothing_in_silence) {
  record_behind_a_stuck_writer("flush_ms=60000", 40'000, 500);
}

TEST_OF_THREADS(a_shared_cupti_is_not_called_after_it_was_left) {
  Collector collector;
  Folder folder;
  Pipe pipe(folder);
  pipe.open_for_reading();
  fake_can_share(true);
  const std::string options = "output=" + pipe.path + ";share=1;flush_ms=5;patience_ms=4000;cupti=" + fake_path();
  CHECK_EQUAL(collector.start(options.c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  fake_create_context();
  fake_load_module();
  constexpr int kRounds = 20, kEach = 1000;
  for (int i = 0; i < kRounds; ++i) {
    launch(kEach);
    sleep_ms(10);
  }
  std::atomic<int> stopped{-1};
  std::thread stopper([&] { stopped = collector.stop(); });
  sleep_ms(1800);
  pipe.read_into(folder.path + "/copy");
  stopper.join();
  pipe.finish();
  CHECK_EQUAL(fake_stale_calls(), 0u);
  const CaptureReader c(folder.path + "/copy", stopped != 0);
  if (stopped == 0) CHECK(kernels(c) + all_lost(c) >= std::size_t{kRounds * kEach});
  CHECK(becomes_true(3000, [] { return fake_subscribers() == 0; }));
}

// ---- attaching ----

TEST_OF_THREADS(launches_while_kinds_are_being_enabled_are_recorded_or_counted) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(collector.start((folder.options("flush_ms=5") + ";cupti=" + fake_path()).c_str()), 0);
  CHECK_EQUAL(collector.inject(), 1);
  fake_create_context();
  fake_delay_enabling(30);
  const auto launch_from = [](int count) {
    for (int i = 0; i < count; ++i) {
      fake_enter_call(kRuntime, kFakeLaunchKernel);
      launch(1);
    }
  };
  std::thread first([&] { launch_from(1); });
  sleep_ms(5);
  std::thread second([&] { launch_from(100); }), third([&] { launch_from(100); });
  for (std::thread* thread : {&first, &second, &third}) thread->join();
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(kernels(c) + all_lost(c), std::size_t{201});
}

TEST(refusals_are_of_their_recording) {
  Collector collector;
  Folder first, second;
  fake_refuse_kind(CUPTI_ACTIVITY_KIND_OVERHEAD, CUPTI_ERROR_NOT_SUPPORTED);
  collector.begin(first.options("flush_ms=5"));
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(CaptureReader(first.only()).lost(rows::Loss::kind_refused), std::uint64_t{1});
  CHECK_EQUAL(collector.start(second.options("kinds=nvtx").c_str()), 0);
  CHECK_EQUAL(collector.mark("m"), 0);
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(second.only());
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{0});
  CHECK(!c.says("refused"));
}

TEST_OF_THREADS(cuts_while_cupti_is_attached_count_a_refusal_once_a_file) {  // without a race with its writer
  setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
  nvtxInitialize(nullptr);
  fake_refuse_kind(CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ERROR_NOT_SUPPORTED);
  for (int round = 0; round < 5; ++round) {
    Collector collector;
    Folder folder;
    CHECK_EQUAL(collector.start((folder.options("flush_ms=1") + ";cupti=" + fake_path()).c_str()), 0);
    std::atomic<bool> done{false};
    std::thread cutter([&] {
      for (int i = 0; !done; ++i) {
        nvtxMarkA("work");
        const std::string path = folder.path + "/cut" + std::to_string(i);
        if (collector.cut(path.c_str()) == 0) CHECK(CaptureReader(path).lost(rows::Loss::kind_refused) <= 1);
      }
    });
    sleep_ms(5);
    CHECK_EQUAL(collector.inject(), 1);
    fake_create_context();
    fake_load_module();
    launch(10);
    sleep_ms(10);
    done = true;
    cutter.join();
    CHECK_EQUAL(collector.stop(), 0);
  }
}

TEST_OF_THREADS(a_stop_during_the_attachment_leaves_cupti_to_the_next_recording) {
  Collector collector;
  Folder first, second;
  CHECK_EQUAL(collector.start((first.options("flush_ms=5;patience_ms=1000") + ";cupti=" + fake_path()).c_str()), 0);
  fake_delay_subscribing(100);
  std::thread attaches([&] { collector.inject(); });
  sleep_ms(20);
  const long time = time_of([&] {
    if (collector.stop() != 0) CHECK(std::string(collector.last_error()) != "");
  });
  CHECK(time < 3 * 1000 + 1500);
  CHECK_EQUAL(collector.running(), 0);
  attaches.join();
  fake_delay_subscribing(0);
  CHECK(becomes_true(2000, [] { return fake_subscribers() == 0; }));
  collector.begin(second.options("flush_ms=5"));
  launch(100);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(kernels(CaptureReader(second.only())), std::size_t{100});
}

// ---- descriptors that the program closes, as daemons do ----

namespace {

// A recorded program that has closed all descriptors and then opened files.
struct Daemon {
  Daemon() {
    collector.begin(folder.options("flush_ms=5;patience_ms=1000"));
    launch(1);
    CHECK_EQUAL(collector.flush(), 0);
    closefrom(3);
    files.open(own);
  }
  Collector collector;
  Folder folder, own;
  OwnFiles files;
};

}  // namespace

TEST(a_closed_descriptor_harms_no_file_of_the_program) {
  Daemon program;
  sleep_ms(50);
  launch(100);
  program.collector.flush();
  int stopped = -1;
  CHECK(time_of([&] { stopped = program.collector.stop(); }) < 3 * 1000 + 1500);
  program.files.are_untouched();
  const CaptureReader c(program.folder.only(), true);
  if (stopped != 0) CHECK(std::string(program.collector.last_error()) != "");
  else CHECK(c.says("\"ended\"") && kernels(c) + all_lost(c) >= 101);
}

TEST(cuts_go_on_after_the_descriptors_were_closed) {
  Daemon program;
  std::size_t seen = 0;
  std::uint64_t lost = 0;
  bool said = false;
  for (int i = 0; i < 3; ++i) {
    launch(100);
    const std::string path = program.folder.path + "/cut" + std::to_string(i);
    const int status = program.collector.cut(path.c_str());
    if (status < 0) said = true;
    if (status != 0) continue;
    const CaptureReader c(path);
    seen += kernels(c);
    lost += all_lost(c);
  }
  if (program.collector.stop() != 0) said = true;
  program.files.are_untouched();
  for (const std::string& path : program.folder.captures()) {
    if (path.find("/cut") != std::string::npos) continue;
    const CaptureReader c(path, said);
    seen += kernels(c);
    lost += all_lost(c);
  }
  CHECK(said || seen + lost >= 301);
}

TEST(a_stop_after_the_descriptors_were_closed_waits_for_no_dump) {
  Collector collector;
  Folder folder;
  constexpr int kPatience = 4000;
  collector.begin(folder.options("flush_ms=5;last_ms=1000;patience_ms=4000;dump=" + folder.path + "/run.bin"));
  closefrom(3);
  CHECK(time_of([&] { collector.stop(); }) < kPatience / 2);
  CHECK_EQUAL(collector.running(), 0);
}

TEST(a_signal_dumps_once_after_the_descriptors_were_closed) {
  Collector collector;
  Folder folder, dumps, own;
  collector.begin(folder.options("flush_ms=50;last_ms=10000;dump=" + dumps.path + "/run.bin"));
  launch(1);
  closefrom(3);
  OwnFiles files;
  files.open(own);
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
  };
  const long before = used();
  sleep_ms(400);
  CHECK(used() - before < 200);
  CHECK_EQUAL(dumps.captures().size(), std::size_t{0});
  CHECK_EQUAL(kill(getpid(), SIGUSR2), 0);
  CHECK(becomes_true(5000, [&] { return std::filesystem::exists(dumps.path + "/run-1.bin"); }));
  sleep_ms(100);
  CHECK_EQUAL(kernels(CaptureReader(dumps.only())), std::size_t{1});
  files.are_untouched();
  collector.stop();
  files.are_untouched();
}

// ---- the contents of each file ----

TEST(facts_that_were_forgotten_are_counted_once) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=5"));
  constexpr unsigned kStreams = 17'000;
  for (unsigned i = 0; i < kStreams; ++i) {
    CUpti_ActivityStream stream{};
    stream.kind = CUPTI_ACTIVITY_KIND_STREAM;
    stream.contextId = 1;
    stream.streamId = 100 + i;
    CHECK(fake_record(&stream, sizeof stream));
  }
  CHECK_EQUAL(collector.flush(), 0);
  std::uint64_t lost = 0;
  std::size_t streams = 0;
  for (int i = 0; i < 5; ++i) {
    launch(1);
    CHECK_EQUAL(collector.flush(), 0);
    const std::string path = folder.path + "/cut" + std::to_string(i);
    CHECK_EQUAL(collector.cut(path.c_str()), 0);
    const CaptureReader c(path);
    streams = c.rows<rows::Streams>().size();
    lost += c.lost(rows::Loss::table_limit);
  }
  CHECK_EQUAL(collector.stop(), 0);
  for (const std::string& path : folder.captures())
    if (path.ends_with(".bin")) lost += CaptureReader(path).lost(rows::Loss::table_limit);
  CHECK(streams < kStreams);
  CHECK_EQUAL(lost, std::uint64_t{kStreams - streams});
}

TEST_OF_THREADS(a_thread_of_five_milliseconds_has_its_name) {
  Collector collector;
  Folder folder;
  CHECK_EQUAL(collector.start(folder.options("kinds=nvtx;flush_ms=50").c_str()), 0);
  sleep_ms(100);  // names of all threads are read at the start
  std::map<std::uint32_t, std::string> expected;
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      const std::string name = "brief " + std::to_string(i);
      pthread_setname_np(pthread_self(), name.c_str());
      collector.mark("m");
      expected[static_cast<std::uint32_t>(syscall(SYS_gettid))] = name;
      sleep_ms(5);
    }).join();
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader c(folder.only());
  std::map<std::uint32_t, std::string> found;
  for (const auto& row : c.rows<rows::Threads>())
    if (c.text(row.name).starts_with("brief")) found[row.thread] = c.text(row.name);
  CHECK(found == expected);
}

// ---- forks ----

TEST_OF_THREADS(a_fork_amid_stream_captures_hangs_nobody) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=5"));
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  const auto capture = [](void* stream) {
    fake_stream_call(CUPTI_CB_DOMAIN_DRIVER_API, kFakeBeginCapture, stream, nullptr, 0);
    fake_stream_call(CUPTI_CB_DOMAIN_DRIVER_API, kFakeEndCapture, stream, nullptr, 0);
  };
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      int stream = 0;
      while (!done) capture(&stream);
    });
  for (int i = 0; i < 60; ++i)
    ends_well(fork_child([&] {
      int stream = 0;
      alarm(5);
      capture(&stream);
    }));
  done = true;
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(collector.stop(), 0);
}

TEST_OF_THREADS(a_start_that_waits_for_its_disk_holds_up_no_fork_and_no_stop) {
  Collector collector;
  Folder folder;
  {
    Folder other;  // the first recording installs the fork handlers
    CHECK_EQUAL(collector.start(other.options("kinds=nvtx").c_str()), 0);
    CHECK_EQUAL(collector.stop(), 0);
  }
  Pipe pipe(folder);
  std::thread starter([&] { collector.start(("output=" + pipe.path + ";kinds=nvtx;patience_ms=500").c_str()); });
  sleep_ms(100);  // now it waits for a reader
  std::atomic<int> ended{0};
  std::thread forker([&] {
    ends_well(fork_child([] {}));
    ++ended;
  });
  std::thread stopper([&] {
    collector.stop();
    ++ended;
  });
  std::thread asker([&] {
    collector.statistics();
    collector.notes();
    ++ended;
  });
  const bool in_time = becomes_true(3000, [&] { return ended == 3; });
  pipe.open_for_reading();
  pipe.read_into(folder.path + "/copy");
  for (std::thread* thread : {&starter, &forker, &stopper, &asker}) thread->join();
  CHECK(in_time);
  if (collector.running()) CHECK_EQUAL(collector.stop(), 0);
}

TEST_OF_THREADS(a_fork_during_a_cut_leaves_the_child_no_file) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options("flush_ms=5"));
  for (int round = 0; round < 5; ++round) {
    launch(200);
    CHECK_EQUAL(collector.flush(), 0);
    const std::size_t files = folder.captures().size();
    fault_slow_writes(20'000);
    std::thread cutter([&] { CHECK_EQUAL(collector.cut((folder.path + "/cut" + std::to_string(round)).c_str()), 0); });
    CHECK(becomes_true(5000, [&] { return folder.captures().size() > files; }));  // the next one already exists
    sleep_ms(20);  // a child forked before the writer stores the new descriptor keeps the descriptor until exec()
    const pid_t child = fork_child([&] {
      for (int fd = 0; fd < 256; ++fd) {
        std::error_code gone;
        const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), gone).string();
        if (path.starts_with(folder.path)) _exit(1);
      }
    });
    fault_slow_writes(0);
    ends_well(child);
    cutter.join();
  }
  CHECK_EQUAL(collector.stop(), 0);
}

namespace {

// A program with a first NVTX call that starts a recording, as under `cutrace record`. The call is made here.
struct Recorded {
  explicit Recorded(int flush_ms = 60'000) {
    setenv("CUTRACE_OPTIONS", folder.options("flush_ms=" + std::to_string(flush_ms) + ";cupti=" + std::string(fake_path())).c_str(), 1);
    setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
    nvtxMarkA("first");
    CHECK_EQUAL(collector.running(), 1);
    // The collector's threads must sleep when the program forks: AddressSanitizer of GCC 12 copies held locks of its
    // allocator to the child.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // Marks by process. Each process has its own file.
  std::map<pid_t, std::multiset<std::string>> by_process(bool torn = false) const {
    std::map<pid_t, std::multiset<std::string>> found;
    for (const std::string& path : folder.captures()) {
      const CaptureReader c(path, torn);
      CHECK(found.emplace(static_cast<pid_t>(c.pid), marks(c)).second);
      CHECK_EQUAL(all_lost(c), std::uint64_t{0});
      CHECK(torn || c.says("\"ended\""));
    }
    return found;
  }
  Collector collector;
  Folder folder;
};

using Names = std::multiset<std::string>;

}  // namespace

TEST(a_child_of_a_process_that_used_nvtx_is_recorded) {
  Recorded program;
  const pid_t child = fork_child([] {
    nvtxMarkA("child");
    std::exit(0);
  });
  ends_well(child);
  nvtxMarkA("parent");
  CHECK_EQUAL(program.collector.stop(), 0);
  const auto found = program.by_process();
  CHECK_EQUAL(found.size(), std::size_t{2});
  CHECK(found.at(child) == Names{"child"});
  CHECK(found.at(getpid()) == (Names{"first", "parent"}));
}

TEST(a_child_that_ends_without_handlers_keeps_what_was_flushed) {
  Recorded program(20);
  const pid_t child = fork_child([] {
    nvtxMarkA("child");
    sleep_ms(500);
    _exit(0);
  });
  ends_well(child);
  CHECK_EQUAL(program.collector.stop(), 0);
  const auto found = program.by_process(true);
  CHECK_EQUAL(found.size(), std::size_t{2});
  CHECK(found.at(child) == Names{"child"});
}

TEST(a_child_that_records_itself_leaves_the_cupti_of_its_parent_alone) {
  Collector collector;
  Folder folder;
  collector.begin(folder.options());
  const pid_t child = fork_child([&] {
    fake_fail_subscribe(CUPTI_ERROR_UNKNOWN);
    CHECK_EQUAL(collector.start(folder.options().c_str()), 0);
    CHECK_EQUAL(collector.inject(), 1);
    const std::string notes = collector.notes();
    CHECK_EQUAL(collector.stop(), 0);
    CHECK(notes.find("was forked after CUDA was initialised") != notes.npos);
    CHECK(notes.find("refused a subscriber") == notes.npos);
    _exit(0);
  });
  ends_well(child);
  launch(10);
  CHECK_EQUAL(collector.stop(), 0);
}

TEST(a_child_without_nvtx_leaves_no_file) {
  Recorded program;
  ends_well(fork_child([] { std::exit(0); }));
  ends_well(fork_child([] { _exit(0); }));
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK_EQUAL(program.by_process().size(), std::size_t{1});
}

TEST(a_pool_of_children_is_recorded_each_by_itself) {
  Recorded program;
  std::map<pid_t, Names> expected{{getpid(), {"first"}}};
  const auto mark_often = [](const std::string& who, Names* made) {
    for (int i = 0; i < 50; ++i) {
      const std::string name = who + " " + std::to_string(i);
      nvtxMarkA(name.c_str());
      if (made != nullptr) made->insert(name);
    }
  };
  for (int n = 0; n < 4; ++n) {
    const std::string who = "child " + std::to_string(n);
    const pid_t child = fork_child([&] {
      mark_often(who, nullptr);
      sleep_ms(20);
      std::exit(0);
    });
    for (int i = 0; i < 50; ++i) expected[child].insert(who + " " + std::to_string(i));
    mark_often("parent " + std::to_string(n), &expected[getpid()]);
  }
  for (const auto& [process, names] : expected)
    if (process != getpid()) ends_well(process);
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(program.by_process() == expected);
}

TEST(a_child_that_forks_again_is_recorded_as_its_child_is) {
  Recorded program;
  const pid_t child = fork_child([] {
    nvtxMarkA("child before");
    ends_well(fork_child([] {
      nvtxMarkA("grandchild");
      std::exit(0);
    }));
    nvtxMarkA("child after");
    std::exit(0);
  });
  ends_well(child);
  CHECK_EQUAL(program.collector.stop(), 0);
  const auto found = program.by_process();
  CHECK_EQUAL(found.size(), std::size_t{3});
  CHECK(found.at(child) == (Names{"child after", "child before"}));
  CHECK(std::ranges::any_of(found, [](const auto& one) { return one.second == Names{"grandchild"}; }));
}

TEST_OF_THREADS(children_forked_amid_nvtx_calls_are_recorded) {
  Recorded program;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      const nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
      while (!done) {
        nvtxDomainRegisterStringA(domain, "a text");
        nvtxRangePushA("step");
        nvtxRangePop();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  std::set<pid_t> children;
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork_child([] {
      nvtxDomainRegisterStringA(nvtxDomainCreateA("child's"), "a text of the child");
      nvtxMarkA("child");
      std::exit(0);
    });
    ends_well(child);
    children.insert(child);
  }
  done = true;
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(program.collector.stop(), 0);
  std::size_t recorded = 0;
  for (const std::string& path : program.folder.captures()) {
    const CaptureReader c(path);
    if (static_cast<pid_t>(c.pid) == getpid()) continue;
    CHECK(children.contains(static_cast<pid_t>(c.pid)));
    CHECK(marks(c) == Names{"child"});
    ++recorded;
  }
  CHECK_EQUAL(recorded, children.size());
}

int main(int argc, char** argv) { return check::main(argc, argv); }
