// Recordings that keep only their newest rows: all rows are written or counted, for dumps by any thread at any time.
#include <cuda.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_driver.h"
#include "fake_system.h"

using namespace cutrace;

namespace {

constexpr std::uint32_t kOne[3] = {1, 1, 1};

void launch(const char* name) { CHECK_EQUAL(fake_gpu_launch("cudaLaunchKernel", name, kOne, kOne, 7, 100, 0, 0), 0); }

bool handles_signal() {
  struct sigaction action {};
  CHECK_EQUAL(sigaction(SIGUSR2, nullptr, &action), 0);
  return action.sa_handler != SIG_DFL;
}

struct Program {
  void begin(const std::string& more) {
    CHECK_EQUAL(fake_gpu_init(), 0);
    const std::string options = folder.options(more) + ";flush_ms=10;dump=" + dumps.path + "/run.bin;cupti=" + fake_path();
    if (collector.start(options.c_str()) != 0) check::failed(__FILE__, __LINE__, collector.last_error());
  }
  std::string dump_path(int number) const { return dumps.path + "/run-" + std::to_string(number) + ".bin"; }
  void wait_for(const std::string& path) const {
    for (int i = 0; i < 1000 && !std::filesystem::exists(path); ++i) sleep_ms(10);
    CHECK(std::filesystem::exists(path));
  }
  // The kernels in the remaining files, and the number of dropped kernels. `torn`: the recording continues.
  std::pair<std::size_t, std::uint64_t> left(bool torn = false) const {
    std::size_t kernels = 0;
    std::uint64_t gone = 0;
    for (const std::string& path : folder.captures()) {
      const CaptureReader c(path, torn);
      kernels += c.rows<rows::Kernels>().size();
      for (const auto& row : c.rows<rows::Losses>())
        if (c.text(row.detail) == "kernels") gone += row.count;
    }
    return {kernels, gone};
  }
  Collector collector;
  Folder folder;
  Folder dumps;
};

}  // namespace

TEST(new_files_have_the_mode_that_the_umask_allows) {
  const auto mode_of = [](const std::string& path) {
    struct stat found {};
    CHECK_EQUAL(stat(path.c_str(), &found), 0);
    return found.st_mode & 0777u;
  };
  struct Case {
    mode_t umask;
    const char* option;
    mode_t capture, dump;
  };
  for (const Case& c : {Case{022, "", 0644, 0644}, Case{077, "", 0600, 0600}, Case{022, ";file_mode=0640", 0640, 0640}}) {
    const mode_t before = umask(c.umask);
    Program program;
    program.begin(std::string("last_ms=60000") + c.option);
    launch("k");
    const std::string dump = program.dumps.path + "/dump.bin";
    CHECK_EQUAL(program.collector.dump(dump.c_str()), 0);
    CHECK_EQUAL(program.collector.stop(), 0);
    umask(before);
    CHECK_EQUAL(mode_of(dump), c.dump);
    const auto captures = program.folder.captures();
    CHECK(!captures.empty());
    for (const std::string& path : captures) CHECK_EQUAL(mode_of(path), c.capture);
  }
}

TEST(dropped_rows_are_counted) {
  Program program;
  program.begin("last_ms=80");
  std::size_t launched = 0;
  for (int i = 0; i < 40; ++i, sleep_ms(10))
    for (int j = 0; j < 25; ++j, ++launched) launch("k");
  CHECK_EQUAL(program.collector.stop(), 0);
  const auto [kernels, gone] = program.left();
  CHECK(kernels > 0 && gone > 0);
  CHECK_EQUAL(kernels + gone, launched);
  CHECK(program.folder.captures().size() > 1);
}

TEST(losses_survive_the_file_of_their_time) {
  Program program;
  program.begin("last_ms=50");
  launch("k");
  fake_drop(5);
  for (int i = 0; i < 30; ++i, sleep_ms(10)) launch("k");
  CHECK_EQUAL(program.collector.stop(), 0);
  std::uint64_t dropped = 0;
  for (const std::string& path : program.folder.captures()) dropped += CaptureReader(path).lost(rows::Loss::cupti_dropped);
  CHECK_EQUAL(dropped, std::uint64_t{5});
}

TEST_OF_THREADS(threads_dump_while_others_launch) {
  Program program;
  program.begin("last_ms=60000");
  std::atomic<bool> end{false};
  std::atomic<std::size_t> launched{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (; !end; ++launched) launch("k");
    });
  // A flush leaves out the buffer of a thread that is in a call. So the first dump has the kernels of this thread.
  launch("k");
  ++launched;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const std::string path = program.dumps.path + "/" + std::to_string(t);
        CHECK_EQUAL(program.collector.dump(path.c_str()), 0);
        std::ifstream file(path);
        CHECK(file.good());
      }
    });
  for (std::size_t t = 2; t < threads.size(); ++t) threads[t].join();
  end = true;
  for (int t = 0; t < 2; ++t) threads[t].join();
  CHECK_EQUAL(program.collector.stop(), 0);
  const auto [kernels, gone] = program.left();
  CHECK_EQUAL(kernels, launched.load());
  CHECK_EQUAL(gone, std::uint64_t{0});
}

TEST_OF_THREADS(triggers_dump_while_threads_launch_dump_and_signal) {
  Program program;
  // A late round ignores gaps that the dump would not contain. With 100 ms of kept time this can happen on a busy machine.
  program.begin("last_ms=2000;dump_when=gpu idle > 20ms;dump_when=nvtx:none > 1s;dump_limit=1000;dump_pause_ms=1");
  std::vector<std::thread> threads;
  std::atomic<std::size_t> launched{0};
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 15; ++i, sleep_ms(60))
        for (int j = 0; j < 50; ++j, ++launched) launch("k");
    });
  threads.emplace_back([&] {
    while (launched == 0) sleep_ms(1);
    for (int i = 0; i < 10; ++i, sleep_ms(50)) {
      const std::string path = program.dumps.path + "/own";
      CHECK(program.collector.dump(path.c_str()) >= 0);
      kill(getpid(), SIGUSR2);
    }
  });
  for (std::thread& thread : threads) thread.join();
  // On a busy machine the two threads may never have left the GPU idle for 20 ms. From here on only this thread launches.
  const auto dumped_idle = [&] {
    const std::vector<std::string> dumps = program.dumps.captures();
    return std::ranges::any_of(dumps, [](const std::string& path) {
      return path.ends_with(".bin") && CaptureReader(path).says("GPU 0 was idle for");  // other dumps are being written
    });
  };
  for (int i = 0; i < 100 && !dumped_idle(); ++i, sleep_ms(100), ++launched) launch("k");
  CHECK(dumped_idle());
  CHECK_EQUAL(program.collector.stop(), 0);
  const auto [kernels, gone] = program.left();
  CHECK_EQUAL(kernels + gone, launched.load());
  bool noted = false;
  for (const std::string& path : program.folder.captures()) noted = noted || CaptureReader(path).says("no NVTX range was named 'none'");
  CHECK(noted);
}

TEST_OF_THREADS(signals_at_any_time_end_no_program) {
  for (int i = 0; i < 10; ++i) {
    Program program;
    program.begin("last_ms=60000");
    CHECK(handles_signal());
    launch("k");
    std::atomic<bool> end{false};
    std::thread sender([&] {
      while (!end) {
        if (handles_signal()) kill(getpid(), SIGUSR2);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (program.collector.running() == 0) break;
      }
    });
    program.wait_for(program.dump_path(1));
    end = true;
    sender.join();
    CHECK_EQUAL(program.collector.stop(), 0);
    CHECK_EQUAL(CaptureReader(program.dump_path(1)).rows<rows::Kernels>().size(), std::size_t{1});
    const std::size_t dumps = program.dumps.captures().size();
    raise(SIGUSR2);  // too late
    CHECK_EQUAL(program.collector.start(("kinds=nvtx;output=" + program.folder.path + "/later.bin").c_str()), 0);
    raise(SIGUSR2);  // for a recording that keeps all its rows
    CHECK_EQUAL(program.collector.stop(), 0);
    CHECK_EQUAL(program.dumps.captures().size(), dumps);
  }
}

TEST(a_dump_beyond_the_limit_on_the_size_of_files_fails) {
  Program program;
  program.begin("last_ms=600000");
  const std::string path = program.dumps.path + "/now.bin";
  const auto dump = [&] {
    for (int i = 0; i < 1000; ++i) launch("k");
    return program.collector.dump(path.c_str());
  };
  CHECK_EQUAL(dump(), 0);
  // Each file fits, but not the third dump, which has three files.
  const auto limit = static_cast<rlim_t>(2 * std::filesystem::file_size(path));
  CHECK_EQUAL(dump(), 0);
  rlimit sizes{};
  CHECK_EQUAL(getrlimit(RLIMIT_FSIZE, &sizes), 0);
  sizes.rlim_cur = limit;
  CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &sizes), 0);
  CHECK(dump() < 0);
  CHECK(std::string(program.collector.last_error()).find("File too large") != std::string::npos);
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK_EQUAL(program.left(), (std::pair<std::size_t, std::uint64_t>{3000, 0}));
}

TEST(a_signal_that_the_program_ignores_stays_ignored) {
  signal(SIGUSR2, SIG_IGN);
  Program program;
  program.begin("last_ms=60000");
  struct sigaction action {};
  sigaction(SIGUSR2, nullptr, &action);
  CHECK(action.sa_handler == SIG_IGN);
  CHECK(std::string(program.collector.notes()).find("SIGUSR2") != std::string::npos);
  CHECK_EQUAL(program.collector.stop(), 0);
  signal(SIGUSR2, SIG_DFL);
}

TEST(a_forked_child_has_neither_the_signal_nor_the_recording) {
  Program program;
  program.begin("last_ms=60000");
  launch("k");
  const pid_t child = fork();
  if (child == 0) _exit(handles_signal() ? 1 : 0);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(handles_signal());
  kill(getpid(), SIGUSR2);
  program.wait_for(program.dump_path(1));
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(only_such_recordings_can_be_dumped_and_they_cannot_be_cut) {
  Program program;
  program.begin("last_ms=60000");
  const std::string path = program.dumps.path + "/x.bin";
  CHECK_EQUAL(program.collector.dump(path.c_str()), 1);  // nothing yet
  launch("k");
  CHECK(program.collector.cut(path.c_str()) < 0);
  CHECK(std::string(program.collector.last_error()).find("dump it") != std::string::npos);
  CHECK(program.collector.dump("/nowhere/at/all") < 0);
  CHECK(std::string(program.collector.last_error()).find("choose") != std::string::npos);
  CHECK_EQUAL(program.collector.dump(path.c_str()), 0);
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(program.collector.dump(path.c_str()) < 0);
  program.begin("max_size=67108864");
  launch("k");
  CHECK(program.collector.dump(path.c_str()) < 0);
  CHECK(std::string(program.collector.last_error()).find("last=") != std::string::npos);
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(program.collector.start(program.folder.options("rotate=1").c_str()) != 0);
  CHECK(std::string(program.collector.last_error()).find("max_size") != std::string::npos);
}

// ---- slow disks ----

namespace {

std::size_t kernels(const std::string& path) { return CaptureReader(path).rows<rows::Kernels>().size(); }

template <typename Condition>
void wait_until(Condition&& condition) {
  for (int i = 0; i < 10'000 && !condition(); ++i) sleep_ms(1);
  CHECK(condition());
}

std::size_t descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.path().empty() ? 0 : 1;
  return count;
}

// A dump by SIGUSR2 waits in its first copy.
void hold_a_dump() {
  fault_hold_copies(true);
  const std::uint64_t before = fault_copies_begun();
  raise(SIGUSR2);
  wait_until([&] { return fault_copies_begun() > before; });
}

// Runs `body` in a separate process, and returns its status.
template <typename Body>
int run_apart(Body&& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);
    body();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST(a_slow_dump_delays_nothing_and_outlives_its_recording) {
  Program program;
  program.begin("last_ms=60000;patience_ms=60000");
  for (int i = 0; i < 10; ++i) launch("k");
  CHECK_EQUAL(program.collector.flush(), 0);
  hold_a_dump();
  launch("k");
  CHECK_EQUAL(program.collector.flush(), 0);
  CHECK_EQUAL(program.left(true).first, std::size_t{11});  // the files have them, while the dump waits
  launch("k");
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK_EQUAL(program.left().first, std::size_t{12});
  for (const std::string& path : program.folder.captures()) std::filesystem::remove(path);  // like cutrace.record()
  Program next;
  next.begin("last_ms=60000");
  launch("k");
  CHECK_EQUAL(next.collector.stop(), 0);
  CHECK_EQUAL(next.left().first, std::size_t{1});
  CHECK(program.dumps.captures().empty());
  fault_hold_copies(false);
  program.wait_for(program.dump_path(1));
  CHECK_EQUAL(kernels(program.dump_path(1)), std::size_t{10});
}

TEST_OF_THREADS(files_may_expire_while_a_slow_dump_needs_them) {
  Program program;
  program.begin("last_ms=1000");  // long enough that the dump starts before the row expires, even on a busy machine
  launch("k");
  CHECK_EQUAL(program.collector.flush(), 0);
  hold_a_dump();
  const auto files = program.folder.captures();
  std::size_t launched = 1;
  const auto exists = [](const std::string& path) { return std::filesystem::exists(path); };
  for (; std::ranges::all_of(files, exists); ++launched, sleep_ms(5)) launch("k");
  fault_hold_copies(false);
  program.wait_for(program.dump_path(1));
  CHECK_EQUAL(kernels(program.dump_path(1)), std::size_t{1});
  CHECK_EQUAL(program.collector.stop(), 0);
  const auto [left, gone] = program.left();
  CHECK_EQUAL(left + gone, launched);
}

TEST(dumps_of_many_files_need_few_descriptors) {
  Program program;
  program.begin("last_ms=600000");
  const std::string path = program.dumps.path + "/d.bin";
  for (int i = 0; i < 60; ++i) {
    launch("k");
    CHECK_EQUAL(program.collector.dump(path.c_str()), 0);
  }
  const std::size_t before = descriptors();
  launch("k");
  hold_a_dump();
  CHECK(program.folder.captures().size() > 60);
  CHECK(descriptors() <= before + 2);
  // More files than may stay open at the end of the recording. Then the dump fails, but the program's open() does not.
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(descriptors() <= before + 2 + 32);
  CHECK_EQUAL(program.left().first, std::size_t{61});
  fault_hold_copies(false);
  wait_until([&] { return descriptors() <= before; });
  CHECK(!std::filesystem::exists(program.dump_path(1)));
}

namespace {

void allocate(std::uint64_t bytes) {
  CUdeviceptr address = 0;
  CHECK_EQUAL(cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
}

// `ask` starts a dump that takes too long, and the program exits meanwhile.
template <typename Ask>
void exit_during_a_dump(bool nameless, bool stopped, Ask&& ask) {
  Program program;
  const int status = run_apart([&] {
    fault_nameless_files(nameless ? 0 : EOPNOTSUPP);
    program.begin("last_ms=60000;patience_ms=2000;dump_when=memory > 1KiB");
    launch("k");
    CHECK_EQUAL(program.collector.flush(), 0);
    fault_hold_copies(true);
    ask(program);
    if (stopped) {
      wait_until([] { return fault_copies_begun() != 0; });
      CHECK_EQUAL(program.collector.stop(), 0);
    }
    std::exit(0);
  });
  CHECK_EQUAL(status, 0);
  CHECK(program.dumps.captures().empty());
  CHECK_EQUAL(program.left().first, std::size_t{1});
  bool ended = false, noted = false;
  for (const std::string& path : program.folder.captures()) {
    const CaptureReader c(path);
    ended = ended || c.says("\"ended\"");
    noted = noted || c.says("was given up at the end of the program");
  }
  CHECK(ended);
  CHECK(noted != stopped);  // a complete capture gets no more notes
}

void signal_and_wait(Program&) {
  raise(SIGUSR2);
  wait_until([] { return fault_copies_begun() != 0; });
}

}  // namespace

TEST_OF_THREADS(an_exit_gives_up_dumps_that_take_too_long) {
  for (const bool nameless : {true, false}) exit_during_a_dump(nameless, false, signal_and_wait);
  exit_during_a_dump(true, false, [](Program&) { allocate(1 << 20); });  // a condition: the dump is due at the end
  exit_during_a_dump(false, false, [](Program& program) {
    std::thread([&] { program.collector.dump((program.dumps.path + "/own.bin").c_str()); }).detach();
    wait_until([] { return fault_copies_begun() != 0; });
  });
}

TEST(an_exit_gives_up_dumps_of_recordings_that_have_ended) {
  for (const bool nameless : {true, false}) exit_during_a_dump(nameless, true, signal_and_wait);
}

TEST_OF_THREADS(an_exit_completes_the_dumps_that_it_can) {
  for (const bool nameless : {true, false})
    for (const bool stopped : {false, true}) {
      Program program;
      const int status = run_apart([&] {
        fault_nameless_files(nameless ? 0 : EOPNOTSUPP);
        program.begin("last_ms=60000;patience_ms=50000");
        launch("k");
        CHECK_EQUAL(program.collector.flush(), 0);
        hold_a_dump();
        if (stopped) CHECK_EQUAL(program.collector.stop(), 0);
        std::thread([] {
          sleep_ms(100);
          fault_hold_copies(false);
        }).detach();
        std::exit(0);
      });
      CHECK_EQUAL(status, 0);
      CHECK_EQUAL(program.dumps.captures().size(), std::size_t{1});
      CHECK_EQUAL(kernels(program.dump_path(1)), std::size_t{1});
    }
}

TEST(a_signal_right_before_the_end_makes_a_dump) {
  for (const bool exits : {false, true}) {
    Program program;
    const int status = run_apart([&] {
      program.begin("last_ms=60000;flush_ms=60000");
      launch("k");
      CHECK_EQUAL(program.collector.flush(), 0);
      raise(SIGUSR2);
      if (exits) std::exit(0);
      CHECK_EQUAL(program.collector.stop(), 0);
      program.wait_for(program.dump_path(1));
    });
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(kernels(program.dump_path(1)), std::size_t{1});
  }
}

TEST(a_program_that_is_killed_while_it_dumps_leaves_nothing_of_the_dump) {
  Program program;
  const int status = run_apart([&] {
    program.begin("last_ms=60000");
    launch("k");
    CHECK_EQUAL(program.collector.flush(), 0);
    hold_a_dump();
    for (int i = 0; i < 10; ++i) launch("k");
    CHECK_EQUAL(program.collector.flush(), 0);
    raise(SIGKILL);
  });
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(program.dumps.captures().empty());
  CHECK_EQUAL(program.left().first, std::size_t{11});
}

TEST(a_forked_child_leaves_the_dumps_of_its_parent_alone) {
  for (const bool nameless : {true, false}) {
    fault_nameless_files(nameless ? 0 : EOPNOTSUPP);
    Program program;
    program.begin("last_ms=60000");
    launch("k");
    CHECK_EQUAL(program.collector.flush(), 0);
    hold_a_dump();
    const int status = run_apart([] { std::exit(0); });
    CHECK_EQUAL(status, 0);
    fault_hold_copies(false);
    program.wait_for(program.dump_path(1));
    CHECK_EQUAL(program.collector.stop(), 0);
    CHECK_EQUAL(program.dumps.captures().size(), std::size_t{1});
    CHECK_EQUAL(kernels(program.dump_path(1)), std::size_t{1});
  }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
