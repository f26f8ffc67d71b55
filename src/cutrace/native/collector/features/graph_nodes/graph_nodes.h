// Where the nodes of CUDA graphs were created: under which NVTX ranges, when, and on which thread. Writer thread only.
//
// A node is created once, by a captured launch or an explicit call, and is copied when its graph is cloned or instantiated.
// Records of the GPU refer to the copies in executable graphs. So a copy gets the origin of its original.
//
// The upper half of an id is the number of the graph, which counts up. The lower half is an index in the graph (CUPTI 12 and 13).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/interning.h"

namespace cutrace {

class GraphNodes {
 public:
  // A JSON array of the names of ranges, and the number of nodes with this array.
  using Ranges = std::pair<const std::string, std::uint32_t>;

  // The kernel of a node, if CUPTI's name may be wrong (features/names). `name` is null if no kernel was noted for the node, or
  // if the noted kernel has no known name (`unknown`).
  struct Kernel {
    const std::string* name = nullptr;
    bool unknown = false;
  };

  struct Node {
    std::uint64_t created = 0;   // ns; 0 when the origin is unknown
    std::uint64_t original = 0;  // the node at the start of the chain of copies, 0 when this is no copy
    Ranges* ranges = nullptr;    // null for none
    std::uint32_t index = 0;
    std::uint32_t thread = 0;
    std::uint32_t inner = 0;  // the graph with the nodes of a child graph or of a conditional body, 0 for none
    std::uint32_t file = 0;   // the last file that has its row
    Kernel kernel{};          // since its creation
    bool kernel_changed = false;
  };

  explicit GraphNodes(std::size_t limit_bytes) : limit_(limit_bytes) {}

  // A node was created under these ranges (a JSON array, empty for none). A `time` of 0 means an unknown origin.
  void created(std::uint64_t node, std::uint64_t time, std::uint32_t thread, std::string_view ranges);
  // A node is a copy. CUPTI has already reported it as created.
  void copied(std::uint64_t node, std::uint64_t original, std::uint32_t thread);
  // An executable graph was made. `complete`: all of its nodes and copies were reported.
  void instantiated(std::uint32_t graph, bool complete);

  // A node has this kernel since its creation, or with `changed` since a later call.
  void set_kernel(std::uint64_t node, Kernel kernel, bool changed);
  // The copy of `node` in an executable graph has this kernel in launches after the call `correlation`; `node` 0: all nodes.
  void set_kernel_in(std::uint32_t graph, std::uint64_t node, Kernel kernel, std::uint32_t correlation);
  // Events about nodes were lost: kernels without an event are unknown from now on.
  void drop_kernels() { kernels_dropped_ = true; }
  // The kernel of a node in the graph launch `correlation`.
  Kernel kernel(std::uint64_t node, std::uint32_t correlation);

  // The origin of a node at its first use in a file. Null at later uses, and when the origin is unknown.
  const Node* first_use(std::uint64_t node, std::uint32_t file);

  // The number of nodes of executable graphs that lost their origins for lack of memory before their first use. It counts from the
  // previous call of this function.
  std::uint64_t take_dropped() { return std::exchange(dropped_, 0); }
  std::size_t memory() const { return bytes_; }

 private:
  struct KernelChange {
    std::uint64_t original;  // of the node, 0 for all
    Kernel kernel;
    std::uint32_t correlation;
  };
  static constexpr std::size_t kMostKernelChanges = 1 << 14;  // of a graph
  struct Graph {
    std::vector<Node> nodes;  // by index
    std::uint32_t thread = 0;  // that made the graph
    bool executable = false;
    bool is_inner = false;  // a node refers to it as its inner graph
    std::vector<KernelChange> kernel_changes;  // of an executable graph, in the order of the calls
    std::uint32_t forgotten = 0;               // the last change that was dropped, 0 for none
    std::list<std::uint32_t>::iterator position;
  };

  // In place of an inner graph, for a conditional node with several bodies, because their order is unknown.
  static constexpr std::uint32_t kSeveral = 0xFFFFFFFF;

  static constexpr std::uint32_t graph_of(std::uint64_t node) { return static_cast<std::uint32_t>(node >> 32); }
  static constexpr std::uint32_t index_of(std::uint64_t node) { return static_cast<std::uint32_t>(node); }

  // Only copies can have an origin, because GPU work refers to copies. A node without an original was added by the driver, or the
  // recording missed its copying. The ranges around the instantiation are not the ranges of the program's work.
  static bool has_origin(const Node& node) { return node.created != 0 && node.original != 0; }

  Node* find(std::uint64_t node);
  // The entry of a node, without ranges.
  Node& entry(std::uint64_t node, std::uint32_t thread);
  void set_ranges(Node& node, Ranges* ranges);
  std::uint32_t take_inner_graph(std::uint32_t graph, std::uint32_t thread);
  void place_inner_nodes(std::uint32_t graph);
  // Drops the least recently used graphs, except this one.
  void make_room(std::uint32_t graph);
  void use(Graph& graph) { recent_.splice(recent_.end(), recent_, graph.position); }

  std::size_t limit_;
  std::size_t bytes_ = 0;
  std::uint64_t dropped_ = 0;
  bool kernels_dropped_ = false;  // events, or a graph with noted kernels
  std::map<std::uint32_t, Graph> graphs_;
  std::list<std::uint32_t> recent_;  // graphs, the least recently used first
  std::unordered_map<std::string, std::uint32_t, SeededHash, std::equal_to<>> ranges_;
};

}  // namespace cutrace
