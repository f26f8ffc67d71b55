// The ways in which a program can end, and the files that it leaves.
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "capture_reader.h"
#include "collector_under_test.h"

using namespace cutrace;

namespace {

constexpr int kTimedOut = -1000;

class Program {
 public:
  Program(const Folder& folder, const std::string& how, const std::string& more = "") {
    int out[2];
    CHECK(pipe(out) == 0);
    child_ = fork();
    if (child_ == 0) {
      setenv("CUTRACE_OPTIONS", folder.options("cupti=" + std::string(fake_path()) + ";" + more).c_str(), 1);
      setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
      dup2(out[1], 1);
      close(out[0]);
      close(out[1]);
      execl(PROGRAM_PATH, PROGRAM_PATH, how.c_str(), nullptr);
      _exit(127);
    }
    close(out[1]);
    output_ = out[0];
  }
  ~Program() { close(output_); }
  void wait_until_ready() {
    char c = 0;
    CHECK(read(output_, &c, 1) == 1);
  }
  void signal(int number) { kill(child_, number); }
  // The exit status, the negative number of a signal, or kTimedOut.
  int wait(int seconds = 60) {
    int status = 0;
    for (int i = 0; i < seconds * 100; ++i) {
      if (waitpid(child_, &status, WNOHANG) == child_)
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    signal(SIGKILL);
    waitpid(child_, &status, 0);
    return kTimedOut;
  }

 private:
  pid_t child_ = 0;
  int output_ = -1;
};

std::size_t kernels(const CaptureReader& c) { return c.rows<rows::Kernels>().size(); }

}  // namespace

TEST(an_orderly_end_is_complete) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "return").wait(), 0);
  const CaptureReader c(folder.only());
  CHECK(c.says("\"ended\""));
  CHECK(kernels(c) >= 1000);
}

TEST(a_program_that_touches_nothing_leaves_nothing) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "untouched").wait(), 0);
  CHECK(folder.captures().empty());
}

TEST(nvtx_alone_makes_a_capture) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "nvtx_only").wait(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::NvtxRanges>().size(), std::size_t{1});
  CHECK(c.says("\"nvtx\":true"));
}

TEST_OF_THREADS(killed_at_any_moment_the_file_is_readable) {
  std::minstd_rand random(1);
  for (int i = 0; i < 9; ++i) {
    Folder folder;
    Program program(folder, "run_until_killed", "flush_ms=20");
    program.wait_until_ready();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
    constexpr int kSignals[] = {SIGKILL, SIGTERM, SIGINT};
    program.signal(kSignals[i % 3]);
    CHECK_EQUAL(program.wait(), -kSignals[i % 3]);
    const CaptureReader c(folder.only(), true);
    CHECK(!c.says("\"ended\""));
  }
}

TEST(os_exit_abort_and_a_crash_keep_what_was_flushed) {
  const std::pair<const char*, int> endings[] = {{"os_exit", 5}, {"abort", -SIGABRT}, {"segfault", -SIGSEGV}};
  for (const auto& [how, status] : endings) {
    Folder folder;
    CHECK_EQUAL(Program(folder, how).wait(), status);
    const CaptureReader c(folder.only(), true);
    CHECK_EQUAL(kernels(c), std::size_t{1000});
  }
}

TEST_OF_THREADS(threads_that_launch_during_exit_are_no_danger) {
  for (int i = 0; i < 3; ++i) {
    Folder folder;
    CHECK_EQUAL(Program(folder, "exit_while_launching").wait(), 0);
    CHECK(CaptureReader(folder.only()).says("\"ended\""));
  }
}

TEST(static_destructors_launch_until_the_collector_has_ended) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "static_destructors").wait(), 0);
  const CaptureReader c(folder.only());
  std::map<std::string, int> counts;
  const auto launches = c.rows<rows::Launches>();
  for (const rows::Kernels& kernel : c.rows<rows::Kernels>())
    for (const rows::Launches& launch : launches)
      if (launch.id == kernel.launch) ++counts[c.text(launch.name)];
  CHECK_EQUAL(counts["k"], 1000);
  CHECK_EQUAL(counts["before the collector"], 10);
  CHECK_EQUAL(counts["after the collector"], 0);
  CHECK(c.says("\"ended\""));
}

TEST(a_stuck_cupti_delays_the_exit_and_does_not_stop_it) {
  Folder folder;
  const auto before = std::chrono::steady_clock::now();
  CHECK_EQUAL(Program(folder, "exit_with_stuck_cupti", "patience_ms=1000").wait(), 0);
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(20));
  CHECK(CaptureReader(folder.only()).says("did not respond"));
}

TEST(a_forked_child_records_its_nvtx_and_does_not_hang) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "fork").wait(), 0);
  const auto captures = folder.captures();
  CHECK_EQUAL(captures.size(), std::size_t{2});
  for (const std::string& path : captures) {
    const CaptureReader c(path);
    CHECK(c.says("\"ended\""));
    const auto ranges = c.rows<rows::NvtxRanges>();
    CHECK_EQUAL(ranges.size(), std::size_t{1});
    const bool child = c.text(ranges[0].name) == "child";
    CHECK(child ? kernels(c) == 0 : kernels(c) >= 2000 && kernels(c) < 2100);
    CHECK_EQUAL(c.says("1 fork(s) after CUDA was initialised"), !child);
  }
}

TEST(a_child_of_a_clone_exits_at_once_and_leaves_the_recording_alone) {
  Folder folder;
  // A child that waited for threads of its parent would exceed the time limit of this test.
  CHECK_EQUAL(Program(folder, "clone", "patience_ms=600000").wait(), 0);
  const CaptureReader c(folder.only());
  CHECK(c.says("\"ended\""));
  CHECK_EQUAL(kernels(c), std::size_t{1000});
}

TEST(an_exit_in_a_signal_handler_during_a_fork_is_orderly) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "exit_while_forking").wait(20), 4);
  CHECK(CaptureReader(folder.only()).says("\"ended\""));
}

TEST(an_exit_in_a_handler_of_fork_does_not_hang) {
  for (const char* const options : {"", "standby=1"}) {
    Folder folder;
    CHECK_EQUAL(Program(folder, "exit_in_fork_handler", options).wait(20), 4);
  }
}

TEST(a_forked_child_records_a_signal_handler_that_interrupts_its_first_event) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "interrupt_first_event_of_child").wait(20), 0);
  std::multiset<std::string> marks;
  for (const std::string& path : folder.captures()) {
    const CaptureReader c(path);
    for (const rows::NvtxMarks& mark : c.rows<rows::NvtxMarks>()) marks.insert(c.text(mark.name));
  }
  CHECK(marks == (std::multiset<std::string>{"child", "handler", "parent"}));
}

TEST(a_thread_is_not_cancelled_in_the_first_call) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "cancel_a_thread").wait(20), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::NvtxRanges>().size(), std::size_t{1});
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size(), std::size_t{1});
}

TEST(a_thread_is_not_cancelled_at_a_window) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "cancel_a_thread_later", "capture_range=nvtx:step").wait(20), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::NvtxRanges>().size(), std::size_t{1});
}

TEST(a_note_that_nobody_reads_does_not_end_the_program) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "write_to_nobody").wait(), 0);
  CHECK(CaptureReader(folder.only()).says("GPU activity is not recorded"));
}

TEST(the_capture_does_not_take_the_place_of_stdout) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "close_stdout").wait(), 0);
  CHECK(CaptureReader(folder.only()).says("\"ended\""));
}

TEST(a_program_that_uses_all_keys_of_threads_keeps_their_values) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "use_all_keys").wait(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::NvtxRanges>().size(), std::size_t{2});
}

TEST(rings_serve_several_threads_of_a_program_that_uses_all_keys) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "use_nvtx_in_many_threads", "max_memory=1048576").wait(), 0);
  const CaptureReader c(folder.only());
  CHECK_EQUAL(c.rows<rows::NvtxMarks>().size(), std::size_t{101});
  CHECK_EQUAL(c.lost(rows::Loss::nvtx_dropped), std::uint64_t{0});
}

TEST(a_first_event_in_a_signal_handler_allocates_nothing) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "use_nvtx_first_in_handlers").wait(), 0);
  CHECK_EQUAL(CaptureReader(folder.only()).rows<rows::NvtxRanges>().size(), std::size_t{3});
}

namespace {
std::size_t bytes_of_thread_local_memory(const char* library) {
  std::pair<std::string_view, std::size_t> wanted(library, 0);
  const auto find = [](dl_phdr_info* object, std::size_t, void* data) {
    auto& [name, bytes] = *static_cast<std::pair<std::string_view, std::size_t>*>(data);
    for (int i = 0; object->dlpi_name == name && i < object->dlpi_phnum; ++i)
      if (object->dlpi_phdr[i].p_type == PT_TLS) bytes = object->dlpi_phdr[i].p_memsz;
    return 0;
  };
  dl_iterate_phdr(find, &wanted);
  return wanted.second;
}
}  // namespace

// The C library keeps about 1.6 KiB for all libraries with such memory that are loaded late.
TEST(the_library_takes_little_of_the_reserve_of_thread_local_memory) {
  const Collector collector;
  const std::size_t bytes = bytes_of_thread_local_memory(COLLECTOR_PATH);
  CHECK(bytes > 0);
  CHECK(bytes <= 256);
}

TEST_OF_THREADS(forks_while_launching_and_flushing_hang_nobody) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "fork_while_busy", "flush_ms=2").wait(), 0);
  CHECK(CaptureReader(folder.only()).says("\"ended\""));
}

TEST(an_executed_child_has_a_file_of_its_own) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "exec").wait(), 0);
  const auto captures = folder.captures();
  CHECK_EQUAL(captures.size(), std::size_t{2});
  for (const std::string& path : captures) CHECK(kernels(CaptureReader(path)) >= 1000);
}

#ifndef __SANITIZE_THREAD__  // which does not allow threads after a fork
TEST(a_fork_before_cuda_records_both_processes) {
  Folder folder;
  CHECK_EQUAL(Program(folder, "fork_then_cuda").wait(), 0);
  std::size_t sum = 0;
  for (const std::string& path : folder.captures()) sum += kernels(CaptureReader(path));
  CHECK_EQUAL(folder.captures().size(), std::size_t{2});
  CHECK(sum >= 30 && sum <= 50);
}
#endif

int main(int argc, char** argv) { return check::main(argc, argv); }
