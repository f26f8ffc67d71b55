// Names of kernels with reused function handles. CUPTI 13.0 to 13.3 give them the first name of the handle.
#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"

using namespace cutrace;

namespace {

constexpr std::uint32_t kMixesUp = 130001;
const std::string kUnknown = "(unknown kernel)";

struct Program {
  explicit Program(std::uint32_t version = kMixesUp) { fake_set_version(version); }
  // Starts inside cuInit(), like the injection. Names of nodes come from the driver.
  void begin(const std::string& more = "") {
    CHECK_EQUAL(collector.start((folder.options(more) + ";cupti=" + fake_path()).c_str()), 0);
    CHECK(dlopen(DRIVER_PATH, RTLD_NOW | RTLD_GLOBAL) != nullptr);
    CHECK_EQUAL(collector.inject(), 1);
    fake_create_context();
    fake_load_module();
  }
  // Loads a module, calls `use` on it and unloads it.
  template <typename Use>
  void with_module(const std::string& name, Use&& use) {
    const std::uintptr_t function = fake_load_function(name.c_str());
    use(function);
    fake_unload_function(function);
  }
  CaptureReader end() {
    CHECK_EQUAL(collector.stop(), 0);
    return CaptureReader(folder.only());
  }
  Collector collector;
  Folder folder;
};

// By correlation id.
std::map<std::uint32_t, std::string> names(const CaptureReader& c) {
  std::map<std::uint32_t, rows::Launches> launches;
  for (const auto& row : c.rows<rows::Launches>()) launches[std::uint32_t{row.id}] = row;
  std::map<std::uint32_t, std::string> found;
  for (const auto& kernel : c.rows<rows::Kernels>())
    found[std::uint32_t{kernel.correlation}] = c.text(launches.at(std::uint32_t{kernel.launch}).name);
  return found;
}

// Of the kernels of graphs, in the order of their rows.
std::vector<std::string> graph_names(const CaptureReader& c) {
  std::map<std::uint32_t, rows::Launches> launches;
  for (const auto& row : c.rows<rows::Launches>()) launches[std::uint32_t{row.id}] = row;
  std::vector<std::string> found;
  for (const auto& kernel : c.rows<rows::Kernels>()) {
    const rows::Launches& launch = launches.at(std::uint32_t{kernel.launch});
    if (launch.graph_node != 0) found.push_back(c.text(launch.name));
  }
  return found;
}

std::uint64_t losses(const CaptureReader& c, rows::Loss reason) {
  std::uint64_t count = 0;
  for (const auto& row : c.rows<rows::Losses>())
    if (row.reason == static_cast<std::uint16_t>(reason)) count += row.count;
  return count;
}

}  // namespace

namespace {

// Under a CUPTI of this version, 200 modules are loaded, launched five times and unloaded one after another.
void use_modules_one_after_another(std::uint32_t version) {
  Program program(version);
  program.begin();
  std::map<std::uint32_t, std::string> launched;
  for (int i = 0; i < 200; ++i) {
    const std::string name = "kernel_" + std::to_string(i);
    program.with_module(name, [&](std::uintptr_t function) {
      for (int n = 0; n < 5; ++n) launched[fake_launch_function(function)] = name;
    });
  }
  const CaptureReader c = program.end();
  CHECK((names(c) == launched));
  CHECK_EQUAL(losses(c, rows::Loss::name_unknown), std::uint64_t{0});
}

}  // namespace

TEST(cupti_12_9_names_kernels_of_unloaded_modules) { use_modules_one_after_another(28); }
TEST(cupti_13_0_names_kernels_of_unloaded_modules) { use_modules_one_after_another(kMixesUp); }
TEST(cupti_13_3_names_kernels_of_unloaded_modules) { use_modules_one_after_another(130301); }
TEST(cupti_13_5_names_kernels_of_unloaded_modules) { use_modules_one_after_another(130500); }

TEST(nothing_is_watched_before_the_first_unload) {
  Program program;
  program.begin();
  const std::uintptr_t first = fake_load_function("first");
  fake_launch_function(first);
  const unsigned before = fake_callbacks();
  for (int i = 0; i < 100; ++i) fake_launch_function(first);
  CHECK_EQUAL(fake_callbacks(), before);
  program.with_module("second", [](std::uintptr_t function) { fake_launch_function(function); });
  const unsigned unloaded = fake_callbacks();
  fake_launch_function(first);
  CHECK(fake_callbacks() > unloaded);
  program.end();
}

TEST(a_cupti_with_right_names_is_left_alone) {
  Program program(130401);
  program.begin("kinds=kernel,api");  // without the kind memory, which watches modules
  program.with_module("first", [](std::uintptr_t function) { fake_launch_function(function); });
  const unsigned before = fake_callbacks();
  program.with_module("second", [](std::uintptr_t function) { fake_launch_function(function); });
  CHECK(fake_callbacks() <= before + 1);  // the callback of the module, if it is watched
  program.end();
}

TEST(names_are_right_when_the_program_unloaded_before_the_recording) {
  Program program;
  program.begin();
  program.with_module("old", [](std::uintptr_t function) { fake_launch_function(function); });
  CHECK_EQUAL(program.collector.stop(), 0);
  std::filesystem::remove(program.folder.only());
  const Folder second;
  CHECK_EQUAL(program.collector.start((second.options() + ";cupti=" + fake_path()).c_str()), 0);
  const std::uintptr_t function = fake_load_function("new");
  const std::uint32_t launch = fake_launch_function(function);
  CHECK_EQUAL(program.collector.stop(), 0);
  CHECK(names(CaptureReader(second.only())).at(launch) == "new");
}

TEST_OF_THREADS(threads_that_launch_while_others_unload_have_right_names) {
  Program program;
  program.begin();
  constexpr int kThreads = 4, kModules = 100;
  std::vector<std::map<std::uint32_t, std::string>> launched(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kModules; ++i) {
        const std::string name = "kernel_" + std::to_string(t) + "_" + std::to_string(i);
        program.with_module(name, [&](std::uintptr_t function) {
          for (int n = 0; n < 3; ++n) launched[static_cast<std::size_t>(t)][fake_launch_function(function)] = name;
        });
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::map<std::uint32_t, std::string> all;
  for (auto& some : launched) all.merge(some);
  const CaptureReader c = program.end();
  CHECK((names(c) == all));
}

TEST(nodes_of_graphs_have_the_names_of_their_kernels) {
  for (const bool nvtx : {true, false}) {
    Program program;
    program.begin(nvtx ? "" : "nvtx=0");
    std::vector<std::string> expected;
    for (int i = 0; i < 20; ++i) {
      const std::string captured = "captured_" + std::to_string(i), added = "added_" + std::to_string(i);
      const std::uintptr_t one = fake_load_function(captured.c_str()), two = fake_load_function(added.c_str());
      const std::uint32_t child = fake_graph(), graph = fake_graph();
      fake_graph_add_function(child, two, false);
      fake_graph_add_function(graph, one, true);
      fake_graph_add_function(graph, two, false);
      fake_graph_add_child(graph, child);
      const std::uint32_t exec = fake_graph_instantiate(fake_graph_clone(graph));
      fake_graph_replay(exec, 7);
      expected.insert(expected.end(), {captured, added, added});
      fake_unload_function(one);
      fake_unload_function(two);
    }
    const CaptureReader c = program.end();
    CHECK((graph_names(c) == expected));
  }
}

// More nodes are copied than the smallest ring holds.
TEST(nodes_whose_events_were_dropped_have_no_names_of_others) {
  for (const bool nvtx : {true, false}) {
    Program program;
    program.begin(std::string("max_memory=1048576") + (nvtx ? "" : ";nvtx=0"));
    program.with_module("old", [](std::uintptr_t function) { fake_launch_function(function); });
    const std::uintptr_t function = fake_load_function("new");
    const std::uint32_t graph = fake_graph();
    for (int i = 0; i < 5000; ++i) fake_graph_add_function(graph, function, true);
    fake_graph_replay(fake_graph_instantiate(graph), 7);
    const CaptureReader c = program.end();
    for (const std::string& name : graph_names(c)) CHECK(name == "new" || name == kUnknown);
  }
}

TEST(a_node_whose_kernel_is_changed_has_the_new_name_or_none) {
  Program program;
  program.begin();
  program.with_module("before", [](std::uintptr_t function) { fake_launch_function(function); });
  const std::uintptr_t one = fake_load_function("one"), two = fake_load_function("two");
  const std::uint32_t graph = fake_graph();
  const std::uint64_t node = fake_graph_add_function(graph, one, true);
  const std::uint32_t exec = fake_graph_instantiate(graph);
  fake_graph_replay(exec, 7);
  fake_graph_set_function(exec, node, two);
  fake_graph_replay(exec, 7);
  fake_graph_update(exec, node, one);
  fake_graph_replay(exec, 7);
  const CaptureReader c = program.end();
  CHECK((graph_names(c) == std::vector<std::string>{"one", "two", kUnknown}));
  CHECK_EQUAL(losses(c, rows::Loss::name_unknown), std::uint64_t{1});
}

// The writer waits for its disk during more launches than the smallest ring holds.
TEST(a_name_that_was_dropped_is_unknown_and_a_loss) {
  Program program;
  program.begin("max_memory=1048576");
  program.with_module("old", [](std::uintptr_t function) { fake_launch_function(function); });
  const std::string longest(30'000, 'x');
  std::map<std::uint32_t, std::string> launched;
  for (int i = 0; i < 50; ++i) {
    const std::string name = longest + std::to_string(i);
    program.with_module(name, [&](std::uintptr_t function) { launched[fake_launch_function(function)] = name; });
  }
  const CaptureReader c = program.end();
  std::uint64_t unknown = 0;
  for (const auto& [correlation, name] : names(c)) {
    if (!launched.contains(correlation)) continue;
    CHECK(name == launched[correlation] || name == kUnknown);
    unknown += name == kUnknown ? 1 : 0;
  }
  CHECK(unknown != 0);
  CHECK_EQUAL(losses(c, rows::Loss::name_unknown), unknown);
}

// Runs at each flush at the end. Then some calls of the program are not noted, but CUPTI still records.
TEST_OF_THREADS(launches_while_the_recording_stops_have_no_names_of_others) {
  Program program;
  program.begin("flush_ms=60000");
  std::uint32_t old = 0;
  program.with_module("old", [&](std::uintptr_t function) { old = fake_launch_function(function); });
  fake_on_flush([](bool) {
    const std::uintptr_t function = fake_load_function("new");
    fake_launch_function(function);
    fake_unload_function(function);
  });
  const CaptureReader c = program.end();
  fake_on_flush(nullptr);
  CHECK(names(c).size() > 1);
  for (const auto& [correlation, name] : names(c)) CHECK(correlation == old ? name == "old" : name != "old");
}

TEST(files_of_a_cut_recording_have_the_names) {
  Program program;
  program.begin();
  std::map<std::uint32_t, std::string> launched;
  const Folder cuts;
  for (int i = 0; i < 5; ++i) {
    const std::string name = "kernel_" + std::to_string(i), path = cuts.path + "/" + std::to_string(i) + ".bin";
    program.with_module(name, [&](std::uintptr_t function) { launched[fake_launch_function(function)] = name; });
    CHECK_EQUAL(program.collector.cut(path.c_str()), 0);
    for (const auto& [correlation, found] : names(CaptureReader(path))) CHECK(found == launched.at(correlation));
  }
  program.end();
}

int main(int argc, char** argv) { return check::main(argc, argv); }
