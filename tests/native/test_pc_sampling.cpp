// Samples of program counters on a scripted CUPTI: the rows of the capture, and the notes about missing samples.
#include <nvtx3/nvToolsExt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "capture_reader.h"
#include "collector_under_test.h"
#include "fake_cupti.h"

using namespace cutrace;

namespace {

using At = std::tuple<std::string, std::uint32_t, std::string>;  // function, offset, stall

struct Count {
  std::uint64_t samples = 0, not_issued = 0;
  bool operator==(const Count&) const = default;
};

// The sums of all rows; each row has a time.
std::map<At, Count> sums(const CaptureReader& capture) {
  std::map<At, Count> found;
  for (const rows::PcSamples& row : capture.rows<rows::PcSamples>()) {
    CHECK(row.start != 0 && row.start <= row.end);
    Count& count = found[{capture.text(row.function), std::uint32_t{row.offset}, capture.text(row.stall)}];
    count.samples += row.samples;
    count.not_issued += row.not_issued;
  }
  return found;
}

// The samples of the fake CUPTI for this number of kernels.
std::map<At, Count> profile(const std::string& kernel, std::uint64_t n) {
  return {{{kernel, 16, "selected"}, {n, 0}},
          {{kernel, 32, "selected"}, {n, 0}},
          {{kernel, 32, "long_scoreboard"}, {8 * n, 5 * n}},
          {{kernel, 48, "barrier"}, {2 * n, 0}}};
}

// The program's first call makes a context and gives work to the GPU.
void begin(Collector& collector, const std::string& options) {
  if (collector.start((options + ";cupti=" + fake_path()).c_str()) != 0) check::failed(__FILE__, __LINE__, collector.last_error());
  CHECK_EQUAL(collector.inject(), 1);
  fake_create_context();
  fake_enter_call(CUPTI_CB_DOMAIN_RUNTIME_API, kFakeLaunchKernel);
}

std::string recorded(const Folder& folder, const std::string& options, void (*program)()) {
  Collector collector;
  begin(collector, folder.options(options));
  program();
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(fake_sampled_contexts(), 0u);
  return folder.only();
}

void ten_kernels() {
  for (int i = 0; i < 10; ++i) fake_launch("_Z4axpyPf", 1, 7, false);
}

}  // namespace

TEST(samples_of_kernels_arrive_with_their_lines) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=4096", ten_kernels));
  CHECK(sums(capture) == profile("_Z4axpyPf", 10));
  CHECK_EQUAL(fake_sampling_period(), 12u);
  for (const rows::PcSamples& row : capture.rows<rows::PcSamples>()) {
    CHECK_EQUAL(capture.text(row.file), std::string("/home/user/project/axpy.cu"));
    CHECK_EQUAL(std::uint32_t{row.line}, 10 + row.offset / 32);
  }
  CHECK_EQUAL(capture.rows<rows::Kernels>().size(), std::size_t{10});  // as without samples
}

TEST(a_program_that_begins_with_a_module_is_sampled_from_the_next_flush_on) {
  Folder folder;
  Collector collector;
  collector.begin(folder.options("sample=pc=32768;flush_ms=10"));
  for (int i = 0; i < 1000 && fake_sampled_contexts() == 0; ++i) sleep_ms(10);
  ten_kernels();
  CHECK_EQUAL(collector.stop(), 0);
  const CaptureReader capture(folder.only());
  CHECK(sums(capture) == profile("_Z4axpyPf", 10));
  CHECK_EQUAL(capture.rows<rows::Kernels>().size(), std::size_t{10});
}

TEST(samples_need_no_activity_kinds) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=32768;kinds=nvtx", ten_kernels));
  CHECK(sums(capture) == profile("_Z4axpyPf", 10));
  CHECK(capture.rows<rows::Kernels>().empty());
}

TEST(a_recording_of_the_newest_rows_keeps_its_newest_samples) {
  Folder folder;
  Collector collector;
  begin(collector, folder.options("sample=pc=32768;flush_ms=10;last_ms=2000"));
  ten_kernels();
  sleep_ms(5000);
  ten_kernels();
  CHECK_EQUAL(collector.stop(), 0);
  std::uint64_t kept = 0, gone = 0;
  for (const std::string& path : folder.captures()) {
    const CaptureReader capture(path);
    kept += capture.rows<rows::PcSamples>().size();
    for (const rows::Losses& row : capture.rows<rows::Losses>())
      if (capture.text(row.detail) == "pc_samples") gone += row.count;
  }
  CHECK_EQUAL(kept, std::uint64_t{4});
  CHECK_EQUAL(gone, std::uint64_t{4});
}

TEST(nothing_is_sampled_unless_it_is_asked_for) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "", [] {
    ten_kernels();
    CHECK_EQUAL(fake_sampled_contexts(), 0u);
  }));
  CHECK(capture.rows<rows::PcSamples>().empty());
}

TEST(samples_of_a_long_run_are_summed_by_interval) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=32768;flush_ms=10", [] {
    for (int i = 0; i < 120; ++i) {
      ten_kernels();
      sleep_ms(10);
    }
  }));
  CHECK(sums(capture) == profile("_Z4axpyPf", 1200));
  std::set<std::uint64_t> starts;
  for (const rows::PcSamples& row : capture.rows<rows::PcSamples>()) starts.insert(row.start);
  CHECK(starts.size() >= 2 && starts.size() <= 5);
}

TEST(a_child_of_a_sampled_program_has_no_samples_of_its_parent) {
  Folder folder;
  Collector collector;
  setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
  begin(collector, folder.options("sample=pc=32768;flush_ms=60000"));
  ten_kernels();
  CHECK_EQUAL(collector.flush(), 0);  // the samples become rows later
  const pid_t child = fork();
  if (child == 0) {
    nvtxMarkA("child");
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK_EQUAL(folder.captures().size(), std::size_t{2});
  for (const std::string& path : folder.captures()) {
    const CaptureReader capture(path);
    const auto wanted = static_cast<pid_t>(capture.pid) == child ? std::map<At, Count>() : profile("_Z4axpyPf", 10);
    CHECK(sums(capture) == wanted);
  }
}

TEST(a_context_that_is_destroyed_leaves_its_samples) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=32768", [] {
    ten_kernels();
    fake_context(1, false);
    CHECK_EQUAL(fake_sampled_contexts(), 0u);
    fake_launch("unseen", 1, 7, false);
    fake_context(2, true);
    CHECK_EQUAL(fake_sampled_contexts(), 1u);
    ten_kernels();
  }));
  CHECK(sums(capture) == profile("_Z4axpyPf", 20));
}

TEST_OF_THREADS(a_context_that_is_destroyed_while_cupti_hangs_is_dropped) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=32768;flush_ms=1", [] {
    fake_fetch_takes(5500);
    sleep_ms(100);  // the collector asks for samples
    fake_destroy_sampled();
    fake_fetch_takes(0);
    fake_context(2, true);
    ten_kernels();
  }));
  CHECK(sums(capture) == profile("_Z4axpyPf", 10));
  CHECK(capture.says("the last samples of a context are missing"));
}

TEST_OF_THREADS(contexts_come_and_go_while_samples_are_fetched) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=32768;flush_ms=1", [] {
    fake_context(1, false);
    for (std::uintptr_t i = 2; i < 80; ++i) {
      fake_context(i, true);
      ten_kernels();
      if (i % 10 == 0) sleep_ms(3);
      fake_unload_module();
      fake_context(i, false);
    }
  }));
  CHECK(sums(capture) == profile("_Z4axpyPf", 780));
}

TEST_OF_THREADS(modules_and_contexts_come_while_sampling_ends) {
  for (int i = 0; i < 5; ++i) {
    Folder folder;
    Collector collector;
    begin(collector, folder.options("sample=pc=32768"));
    ten_kernels();
    std::atomic<bool> over{false};
    std::thread program([&over] {
      while (!over.load()) {
        fake_load_cubin(".debug_line");
        fake_context(2, true);
      }
    });
    CHECK_EQUAL(collector.stop(), 0);
    over.store(true);
    program.join();
    CHECK_EQUAL(fake_sampled_contexts(), 0u);
    CHECK(sums(CaptureReader(folder.only())) == profile("_Z4axpyPf", 10));
  }
}

TEST(a_second_context_of_a_gpu_is_said_to_be_missing) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=32768", [] {
    fake_context(2, true);
    ten_kernels();
  }));
  CHECK(sums(capture) == profile("_Z4axpyPf", 10));
  CHECK(capture.says("of a second context on GPU 0 were not sampled: a GPU samples one context at a time"));
}

TEST(a_refusal_is_said_and_the_rest_is_recorded) {
  for (const auto& [function, error, part] :
       {std::tuple{"PCSamplingEnable", 35, "only administrators may read counters (ERR_NVGPUCTRPERM)"},
        std::tuple{"PCSamplingSetConfigurationAttribute", 26, "CUPTI_ERROR_HARDWARE_BUSY"},
        std::tuple{"PCSamplingStart", 7, "CUPTI_ERROR_INVALID_OPERATION"},
        std::tuple{"PCSamplingGetStallReasons", 27, "CUPTI_ERROR_NOT_SUPPORTED"}}) {
    Folder folder;
    fake_fail(function, error);
    const CaptureReader capture(recorded(folder, "sample=pc=32768", ten_kernels));
    fake_fail(function, 0);
    CHECK(capture.says(part));
    CHECK(capture.rows<rows::PcSamples>().empty());
    CHECK_EQUAL(capture.rows<rows::Kernels>().size(), std::size_t{10});
  }
}

TEST(samples_that_cannot_be_fetched_are_said_to_be_missing) {
  Folder folder;
  fake_fail("PCSamplingGetData", 26);
  const CaptureReader capture(recorded(folder, "sample=pc=32768", ten_kernels));
  fake_fail("PCSamplingGetData", 0);
  CHECK(capture.says("CUPTI did not return them (CUPTI_ERROR_HARDWARE_BUSY)"));
  CHECK(capture.says("only one process can sample a GPU at a time"));
  CHECK(sums(capture) == profile("_Z4axpyPf", 10));  // they came at the end
}

TEST(samples_that_the_gpu_had_no_room_for_are_counted) {
  Folder folder;
  const CaptureReader capture(recorded(folder, "sample=pc=32768;flush_ms=10", [] {
    ten_kernels();
    fake_overflow(77);
    sleep_ms(100);
    fake_drop_samples(3);
    ten_kernels();
  }));
  CHECK_EQUAL(capture.lost(rows::Loss::samples_lost), std::uint64_t{80});
  CHECK(capture.says("take a longer period"));
}

TEST(a_module_without_lines_has_offsets) {
  Folder folder;
  fake_fail("GetSassToSourceCorrelation", 999);
  const CaptureReader capture(recorded(folder, "sample=pc=32768", ten_kernels));
  fake_fail("GetSassToSourceCorrelation", 0);
  CHECK(sums(capture) == profile("_Z4axpyPf", 10));
  for (const rows::PcSamples& row : capture.rows<rows::PcSamples>()) CHECK(row.line == 0 && row.file == 0);
}

TEST(a_second_recording_has_its_own_samples) {
  Folder first, second;
  CHECK(sums(CaptureReader(recorded(first, "sample=pc=32768", ten_kernels))) == profile("_Z4axpyPf", 10));
  const CaptureReader capture(recorded(second, "sample=pc=32768", [] { fake_launch("_Z4axpyPf", 1, 7, false); }));
  CHECK(sums(capture) == profile("_Z4axpyPf", 1));
}

TEST(a_second_recording_looks_for_lines_again) {
  Folder first, second;
  fake_fail("GetSassToSourceCorrelation", 999);
  recorded(first, "sample=pc=32768", [] { fake_launch("_Z4axpyPfi", 1, 7, false); });
  fake_fail("GetSassToSourceCorrelation", 0);
  const CaptureReader capture(recorded(second, "sample=pc=32768", [] {
    fake_load_cubin(".debug_line\n_Z4axpyPf /home/user/project/axpy.cu 10\n_Z4axpyPfi /home/user/project/axpy.cu 20\n");
    fake_launch("_Z4axpyPfi", 1, 7, false);
  }));
  for (const rows::PcSamples& row : capture.rows<rows::PcSamples>()) CHECK_EQUAL(std::uint32_t{row.line}, 20 + row.offset / 32);
}

TEST(a_file_that_is_cut_has_its_samples) {
  Folder folder, cut;
  Collector collector;
  begin(collector, folder.options("sample=pc=32768"));
  ten_kernels();
  CHECK_EQUAL(collector.cut((cut.path + "/first.bin").c_str()), 0);
  fake_launch("_Z4axpyPf", 1, 7, false);
  CHECK_EQUAL(collector.stop(), 0);
  CHECK(sums(CaptureReader(cut.only())) == profile("_Z4axpyPf", 10));
  CHECK(sums(CaptureReader(folder.only())) == profile("_Z4axpyPf", 1));
}

TEST(a_period_is_a_power_of_two) {
  for (const char* given : {"sample=pc", "sample=pc=1000", "sample=pc=16", "sample=pcs", "sample=metrics", "sample=pc=4294967296"}) {
    Folder folder;
    Collector collector;
    CHECK(collector.start(folder.options(given).c_str()) != 0);
  }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
