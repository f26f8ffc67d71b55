// The origins of nodes of CUDA graphs: the rows of graph_nodes, with real NVTX calls and the graphs of the fake CUPTI.
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capture_reader.h"
#include "collector_under_test.h"

using namespace cutrace;

namespace {

// As in test_nvtx.cpp.
struct Program {
  Program() {
    setenv("NVTX_INJECTION64_PATH", COLLECTOR_PATH, 1);
    nvtxInitialize(nullptr);
  }
  void begin(const std::string& more = "") { collector.begin(folder.options(more)); }
  CaptureReader cut(const std::string& name) {
    CHECK_EQUAL(collector.synchronize(), 0);
    const std::string path = folder.path + "/" + name;
    CHECK_EQUAL(collector.cut(path.c_str()), 0);
    return CaptureReader(path);
  }
  CaptureReader end() {
    CHECK_EQUAL(collector.stop(), 0);
    return CaptureReader(folder.only());
  }
  Collector collector;
  Folder folder;
};

struct Range {
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

std::uint32_t this_thread() { return static_cast<std::uint32_t>(syscall(SYS_gettid)); }

std::map<std::uint64_t, rows::GraphNodes> origins(const CaptureReader& c) {
  std::map<std::uint64_t, rows::GraphNodes> found;
  for (const auto& row : c.rows<rows::GraphNodes>()) CHECK(found.emplace(std::uint64_t{row.graph_node}, row).second);
  return found;
}

// The ranges of each kernel by its name. "?" for an unknown origin.
std::map<std::string, std::set<std::string>> ranges_by_kernel(const CaptureReader& c) {
  const auto nodes = origins(c);
  std::map<std::uint32_t, rows::Launches> launches;
  for (const auto& row : c.rows<rows::Launches>()) launches[std::uint32_t{row.id}] = row;
  std::map<std::string, std::set<std::string>> found;
  for (const auto& kernel : c.rows<rows::Kernels>()) {
    const rows::Launches& launch = launches.at(std::uint32_t{kernel.launch});
    const auto node = nodes.find(std::uint64_t{launch.graph_node});
    found[c.text(launch.name)].insert(node == nodes.end() ? "?" : c.text(node->second.ranges));
  }
  return found;
}

using Found = std::map<std::string, std::set<std::string>>;

}  // namespace

TEST(a_replayed_node_has_the_ranges_of_its_creation) {
  Program program;
  program.begin();
  const std::uint64_t before = program.collector.now();
  const std::uint32_t graph = fake_graph();
  std::uint64_t first = 0, fill = 0;
  {
    const Range outer("forward");
    {
      const Range inner("layer \"1\"");
      first = fake_graph_add(graph, "k1");
      fake_graph_add(graph, "k2");
    }
    fill = fake_graph_add(graph, nullptr);
  }
  fake_graph_add(graph, "k3");
  const std::uint64_t captured = program.collector.now();
  std::uint32_t exec = 0;
  {
    const Range instantiation("instantiate");
    exec = fake_graph_instantiate(graph);
  }
  {
    const Range replay("replay");
    for (int i = 0; i < 3; ++i) fake_graph_replay(exec, 7);
  }
  const auto c = program.end();
  CHECK((ranges_by_kernel(c) ==
         Found{{"k1", {R"(["forward","layer \"1\""])"}}, {"k2", {R"(["forward","layer \"1\""])"}}, {"k3", {""}}}));
  const auto nodes = origins(c);
  CHECK_EQUAL(nodes.size(), std::size_t{4});
  const auto memsets = c.rows<rows::Memsets>();
  CHECK_EQUAL(memsets.size(), std::size_t{3});
  const rows::GraphNodes& filled = nodes.at(std::uint64_t{memsets[0].graph_node});
  CHECK(c.text(filled.ranges) == R"(["forward"])" && filled.original == fill);
  for (const auto& [id, row] : nodes) {
    CHECK_EQUAL(id >> 32, std::uint64_t{exec});
    CHECK(row.created >= before && row.created <= captured);
    CHECK_EQUAL(row.thread, this_thread());
  }
  CHECK_EQUAL(nodes.begin()->second.original, first);
  CHECK(c.rows<rows::Losses>().empty());
}

TEST(ranges_of_python_and_of_the_program_count_in_the_order_of_their_starts) {
  Program program;
  program.begin();
  void (*push)(const char*) = nullptr;
  program.collector.find(push, "cutrace_range_push");
  const std::uint32_t graph = fake_graph();
  push("Model");
  {
    const Range range("forward");
    push("layers.0");
    fake_graph_add(graph, "k");
  }
  fake_graph_replay(fake_graph_instantiate(graph), 7);
  CHECK((ranges_by_kernel(program.end()) == Found{{"k", {R"(["Model","forward","layers.0"])"}}}));
}

TEST(copies_of_copies_name_the_first_original) {
  Program program;
  program.begin();
  const std::uint32_t graph = fake_graph();
  std::uint64_t original = 0;
  {
    const Range range("here");
    original = fake_graph_add(graph, "k");
  }
  const Range elsewhere("elsewhere");
  const std::uint32_t exec = fake_graph_instantiate(fake_graph_clone(fake_graph_clone(graph)));
  fake_graph_replay(exec, 7);
  const auto c = program.end();
  const auto rows = c.rows<rows::GraphNodes>();
  CHECK(rows.size() == 1 && rows[0].original == original && c.text(rows[0].ranges) == R"(["here"])");
}

TEST_OF_THREADS(ranges_of_all_domains_and_styles_count_by_their_begin) {
  Program program;
  program.begin();
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("mine");
  nvtxEventAttributes_t a{};
  a.version = NVTX_VERSION;
  a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  a.message.registered = nvtxDomainRegisterStringA(domain, "registered");
  const std::uint32_t graph = fake_graph();
  nvtxRangePushA("a");
  nvtxDomainRangePushEx(domain, &a);
  const nvtxRangeId_t started = nvtxRangeStartA("started");
  nvtxRangeId_t foreign = 0;
  std::thread([&] { foreign = nvtxRangeStartA("of another thread"); }).join();
  nvtxRangePushA("b");
  const nvtxDomainHandle_t unnamed = nvtxDomainCreateA("");
  nvtxEventAttributes_t plain = a;
  plain.messageType = NVTX_MESSAGE_TYPE_ASCII;
  plain.message.ascii = "c";
  nvtxDomainRangePushEx(unnamed, &plain);
  fake_graph_add(graph, "k1");
  nvtxDomainRangePop(unnamed);
  nvtxRangeEnd(started);
  nvtxRangePop();
  fake_graph_add(graph, "k2");
  nvtxDomainRangePop(domain);
  nvtxRangePop();
  nvtxRangeEnd(foreign);
  fake_graph_replay(fake_graph_instantiate(graph), 7);
  const auto c = program.end();
  CHECK((ranges_by_kernel(c) ==
         Found{{"k1", {R"(["a","mine:registered","started","b","c"])"}}, {"k2", {R"(["a","mine:registered"])"}}}));
}

TEST_OF_THREADS(threads_that_capture_at_once_keep_their_own_ranges) {
  Program program;
  program.begin();
  constexpr int kThreads = 4, kNodes = 200;
  std::vector<std::thread> threads;
  std::vector<std::uint32_t> ids(kThreads);
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      ids[static_cast<std::size_t>(t)] = this_thread();
      const Range thread(("thread " + std::to_string(t)).c_str());
      const std::uint32_t graph = fake_graph();
      for (int i = 0; i < kNodes; ++i) {
        const Range step(("step " + std::to_string(i)).c_str());
        fake_graph_add(graph, ("k" + std::to_string(t) + "." + std::to_string(i)).c_str());
      }
      fake_graph_replay(fake_graph_instantiate(graph), 7);
    });
  for (auto& thread : threads) thread.join();
  const auto c = program.end();
  Found wanted;
  for (int t = 0; t < kThreads; ++t)
    for (int i = 0; i < kNodes; ++i)
      wanted["k" + std::to_string(t) + "." + std::to_string(i)] = {"[\"thread " + std::to_string(t) + "\",\"step " +
                                                                  std::to_string(i) + "\"]"};
  CHECK(ranges_by_kernel(c) == wanted);
  std::set<std::uint32_t> seen;
  for (const auto& row : c.rows<rows::GraphNodes>()) seen.insert(std::uint32_t{row.thread});
  CHECK((seen == std::set<std::uint32_t>(ids.begin(), ids.end())));
}

// The layouts and ids of the comments were seen on an H200 with CUPTI 13.0.
TEST(nodes_of_child_graphs_and_bodies_are_found) {
  Program program;
  program.begin();
  const auto add = [](std::uint32_t graph, const char* kernel) {
    const Range range(kernel);
    fake_graph_add(graph, kernel);
  };
  // parent k7, C(k6, A(k0 k1), k8): indices 2 to 6 are k6, A, k8, k0, k1
  const std::uint32_t a = fake_graph(), c = fake_graph(), parent = fake_graph();
  add(a, "k0");
  add(a, "k1");
  add(c, "k6");
  fake_graph_add_child(c, a);
  add(c, "k8");
  add(parent, "k7");
  fake_graph_add_child(parent, c);
  // A while node and an if node with their bodies. The second one was captured first. The fill makes the driver add a node.
  const std::uint32_t conditional = fake_graph();
  add(conditional, "k9");
  const std::uint32_t loop = fake_graph_add_conditional(conditional), choice = fake_graph_add_conditional(conditional);
  add(choice, "k4");
  add(choice, "k5");
  add(loop, "k2");
  add(loop, "k3");
  fake_graph_add(conditional, nullptr);
  for (const std::uint32_t graph : {parent, fake_graph_clone(parent), conditional}) fake_graph_replay(fake_graph_instantiate(graph), 7);
  Found wanted;
  for (int i = 0; i < 10; ++i) wanted["k" + std::to_string(i)] = {"[\"k" + std::to_string(i) + "\"]"};
  CHECK(ranges_by_kernel(program.end()) == wanted);
}

TEST(each_file_has_the_nodes_that_it_uses) {
  Program program;
  program.begin();
  const std::uint32_t graph = fake_graph(), other = fake_graph();
  {
    const Range range("here");
    fake_graph_add(graph, "k");
    fake_graph_add(graph, nullptr);
    fake_graph_add(other, "unused");
  }
  const std::uint32_t exec = fake_graph_instantiate(graph), second = fake_graph_instantiate(other);
  for (int i = 0; i < 3; ++i) {
    fake_graph_replay(exec, 7);
    fake_graph_replay(exec, 7);
    const auto c = program.cut("cut" + std::to_string(i));
    CHECK((ranges_by_kernel(c) == Found{{"k", {R"(["here"])"}}}));
    CHECK_EQUAL(c.rows<rows::GraphNodes>().size(), std::size_t{2});
    std::filesystem::remove(program.folder.path + "/cut" + std::to_string(i));
  }
  fake_graph_replay(second, 7);
  const auto c = program.end();
  CHECK((ranges_by_kernel(c) == Found{{"unused", {R"(["here"])"}}}));
  CHECK_EQUAL(c.rows<rows::GraphNodes>().size(), std::size_t{1});
}

TEST(a_recording_of_the_newest_rows_has_old_nodes) {
  Program program;
  program.begin("last_ms=400;flush_ms=10");
  const std::uint32_t graph = fake_graph();
  {
    const Range range("long ago");
    fake_graph_add(graph, "k");
  }
  const std::uint32_t exec = fake_graph_instantiate(graph);
  for (int i = 0; i < 60; ++i) {
    fake_graph_replay(exec, 7);
    sleep_ms(15);
  }
  const std::string path = program.folder.path + "/dump";
  CHECK_EQUAL(program.collector.dump(path.c_str()), 0);
  std::set<std::string> ranges;
  CaptureReader c(path);
  CHECK(c.rows<rows::Kernels>().size() < 60);
  for (const auto& row : c.rows<rows::GraphNodes>()) ranges.insert(c.text(row.ranges));
  CHECK((ranges == std::set<std::string>{R"(["long ago"])"}));
  CHECK_EQUAL(program.collector.stop(), 0);
}

TEST(graphs_from_before_the_recording_have_no_origin) {
  Program program;
  const std::uint32_t graph = fake_graph();
  fake_graph_add(graph, "old");
  program.begin();
  const Range range("now");
  fake_graph_add(graph, "new");
  fake_graph_replay(fake_graph_instantiate(graph), 7);
  const auto c = program.end();
  CHECK((ranges_by_kernel(c) == Found{{"old", {"?"}}, {"new", {R"(["now"])"}}}));
}

TEST(ranges_from_before_the_recording_do_not_count) {
  Program program;
  nvtxRangePushA("begun before");
  const std::uint32_t graph = fake_graph();
  program.begin();
  {
    const Range range("now");
    fake_graph_add(graph, "k");
  }
  nvtxRangePop();
  fake_graph_add(graph, "k");
  fake_graph_replay(fake_graph_instantiate(graph), 7);
  const auto c = program.end();
  CHECK((ranges_by_kernel(c) == Found{{"k", {R"(["now"])", ""}}}));
}

TEST(origins_need_nvtx_and_nodes) {
  fake_set_version(130500);  // a version with right names of kernels, which need no callbacks
  for (const char* options : {"nvtx=0", "graph=graph", "kinds=api,nvtx"}) {
    Program program;
    program.begin(options);
    const unsigned before = fake_callbacks();
    const std::uint32_t graph = fake_graph();
    fake_graph_add(graph, "k");
    const std::uint32_t exec = fake_graph_instantiate(graph);
    CHECK_EQUAL(fake_callbacks(), before);
    fake_graph_replay(exec, 7);
    CHECK(program.end().rows<rows::GraphNodes>().empty());
  }
}

namespace {

void start(Program& program, const std::string& options) {
  CHECK_EQUAL(program.collector.start((program.folder.options(options) + ";cupti=" + fake_path()).c_str()), 0);
}
// Starts a recording of a program that uses CUDA already.
void start_late(Program& program, const std::string& options) {
  CHECK(dlopen(DRIVER_PATH, RTLD_NOW) != nullptr);
  start(program, options);
}
std::uint32_t instantiated(const char* kernel) {
  const std::uint32_t graph = fake_graph();
  fake_graph_add(graph, kernel);
  return fake_graph_instantiate(graph);
}
constexpr const char* kByNode = "CUDA graphs were recorded by node";

}  // namespace

TEST(whole_graphs_are_traced_from_the_first_graph) {
  Program program;
  start(program, "graph=graph");
  CHECK_EQUAL(program.collector.inject(), 1);
  fake_create_context();
  fake_graph_replay(instantiated(nullptr), 7);  // without kernels, so no module is loaded before
  const auto c = program.end();
  CHECK_EQUAL(c.rows<rows::GraphLaunches>().size(), std::size_t{1});
  CHECK(c.rows<rows::Memsets>().empty() && !c.says(kByNode));
}

TEST(a_recording_in_mid_program_records_graphs_by_node) {
  for (const std::uint32_t version : {130001u, 130500u}) {
    fake_set_version(version);
    Program before;
    before.begin();
    const std::uint32_t exec = instantiated("k");
    before.end();
    Program program;
    start_late(program, "graph=graph");
    fake_graph_replay(exec, 7);
    const auto c = program.end();
    CHECK_EQUAL(c.rows<rows::Kernels>().size(), std::size_t{1});
    CHECK(c.rows<rows::GraphLaunches>().empty() && c.says(kByNode));
  }
}

TEST(graphs_that_were_traced_as_a_whole_before_are_told_where_cupti_records_no_nodes) {
  fake_set_version(130500);
  Program before;
  before.begin("graph=graph");
  const std::uint32_t exec = instantiated("k");
  before.end();
  Program program;
  start_late(program, "");
  fake_graph_replay(exec, 7);
  const auto c = program.end();
  CHECK(c.rows<rows::Kernels>().empty() && c.says("graphs of an earlier recording with graph=graph"));
  CHECK_EQUAL(c.lost(rows::Loss::kind_refused), std::uint64_t{1});
}

TEST(a_shared_cupti_reports_nodes_too) {
  Program program;
  fake_set_version(130500);
  fake_can_share(true);
  program.begin("share=1");
  const std::uint32_t graph = fake_graph();
  {
    const Range range("here");
    fake_graph_add(graph, "k");
  }
  fake_graph_replay(fake_graph_instantiate(graph), 7);
  CHECK((ranges_by_kernel(program.end()) == Found{{"k", {R"(["here"])"}}}));
}

TEST(only_the_first_replay_makes_a_callback) {
  Program program;
  program.begin();
  const std::uint32_t graph = fake_graph();
  fake_graph_add(graph, "k");
  const std::uint32_t exec = fake_graph_instantiate(graph);
  const unsigned before = fake_callbacks();
  for (int i = 0; i < 3; ++i) fake_graph_replay(exec, 7);
  CHECK_EQUAL(fake_callbacks(), before + 1);
  program.end();
}

TEST(a_cupti_that_cannot_name_nodes_gives_no_origins) {
  Program program;
  program.begin();
  fake_fail("GetGraphNodeId", 1);
  const std::uint32_t graph = fake_graph();
  fake_graph_add(graph, "k");
  fake_graph_replay(fake_graph_instantiate(graph), 7);
  CHECK((ranges_by_kernel(program.end()) == Found{{"k", {"?"}}}));
}

// Nodes are unknown or have the right ranges, but never wrong ranges.
TEST(nodes_that_find_the_ring_full_are_counted) {
  Program program;
  program.begin("max_memory=1048576");  // rings of 16 KiB
  constexpr std::uint32_t kGraphs = 40, kNodes = 100;
  std::vector<std::uint32_t> execs;
  for (std::uint32_t g = 0; g < kGraphs; ++g) {
    const std::uint32_t graph = fake_graph(), child = fake_graph();
    {
      const Range range("here");
      for (std::uint32_t i = 0; i < kNodes; ++i) fake_graph_add(graph, "k");
      fake_graph_add(child, "in a child");
      fake_graph_add_child(graph, child);
    }
    const Range instantiation("elsewhere");
    execs.push_back(fake_graph_instantiate(graph));
  }
  CHECK_EQUAL(program.collector.flush(), 0);
  for (const std::uint32_t exec : execs) fake_graph_replay(exec, 7);
  const auto c = program.end();
  for (const auto& [kernel, ranges] : ranges_by_kernel(c))
    for (const std::string& range : ranges) CHECK(range == "?" || range == R"(["here"])");
  std::uint64_t counted = 0;
  for (const auto& row : c.rows<rows::Losses>())
    if (c.text(row.detail).starts_with("graph nodes")) counted += row.count;  // for lack of space in the ring or of memory
  const std::size_t known = c.rows<rows::GraphNodes>().size();
  CHECK(known < kGraphs * (kNodes + 1) ? counted != 0 : true);
}

TEST(origins_are_bounded_and_their_loss_is_counted) {
  Program program;
  program.begin("max_memory=2097152");
  for (std::uint32_t g = 0; g < 400; ++g) {
    const std::uint32_t graph = fake_graph();
    {
      const Range range(("step " + std::to_string(g)).c_str());
      for (std::uint32_t i = 0; i < 20; ++i) fake_graph_add(graph, "k");
    }
    fake_graph_instantiate(graph);
    if (g % 50 == 0) CHECK_EQUAL(program.collector.flush(), 0);
    if (g % 8 == 0) sleep_ms(1);
  }
  CHECK_EQUAL(program.collector.flush(), 0);
  CHECK(program.collector.statistics().memory_bytes < (2 << 20));
  const auto c = program.end();
  std::uint64_t counted = 0;
  for (const auto& row : c.rows<rows::Losses>())
    if (c.text(row.detail) == "graph nodes") counted += row.count;
  CHECK(counted != 0);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
