#include "graph_nodes.h"

#include <algorithm>

namespace cutrace {
namespace {

// Bytes of an entry, with its part of the table.
constexpr std::size_t kPerText = sizeof(GraphNodes::Ranges) + 32;
constexpr std::size_t kPerGraph = 144;

}  // namespace

GraphNodes::Node* GraphNodes::find(std::uint64_t node) {
  const auto graph = graphs_.find(graph_of(node));
  if (graph == graphs_.end()) return nullptr;
  use(graph->second);
  auto& nodes = graph->second.nodes;
  const auto it = std::ranges::lower_bound(nodes, index_of(node), {}, &Node::index);
  return it != nodes.end() && it->index == index_of(node) ? &*it : nullptr;
}

GraphNodes::Node& GraphNodes::entry(std::uint64_t node, std::uint32_t thread) {
  auto it = graphs_.find(graph_of(node));
  if (it == graphs_.end()) {
    std::list<std::uint32_t> added{graph_of(node)};
    it = graphs_.emplace(graph_of(node), Graph{.nodes = {}, .thread = thread, .kernel_changes = {}, .position = added.begin()}).first;
    recent_.splice(recent_.end(), added);
    bytes_ += kPerGraph;
  }
  Graph& graph = it->second;
  use(graph);
  auto at = std::ranges::lower_bound(graph.nodes, index_of(node), {}, &Node::index);
  if (at == graph.nodes.end() || at->index != index_of(node)) {
    const std::size_t before = graph.nodes.capacity();
    at = graph.nodes.insert(at, Node{});
    bytes_ += (graph.nodes.capacity() - before) * sizeof(Node);
  }
  set_ranges(*at, nullptr);
  *at = Node{.index = index_of(node), .thread = thread};
  return *at;
}

void GraphNodes::set_ranges(Node& node, Ranges* ranges) {
  if (ranges != nullptr) ++ranges->second;
  Ranges* const before = std::exchange(node.ranges, ranges);
  if (before == nullptr || --before->second != 0) return;
  bytes_ -= kPerText + before->first.size();
  ranges_.erase(ranges_.find(before->first));
}

void GraphNodes::created(std::uint64_t node, std::uint64_t time, std::uint32_t thread, std::string_view ranges) {
  Node& made = entry(node, thread);
  if (!ranges.empty()) {
    auto it = ranges_.find(ranges);
    if (it == ranges_.end()) {
      it = ranges_.emplace(ranges, 0).first;
      bytes_ += kPerText + ranges.size();
    }
    set_ranges(made, &*it);
  }
  made.created = time;
  make_room(graph_of(node));
}

void GraphNodes::copied(std::uint64_t node, std::uint64_t original, std::uint32_t thread) {
  const Node* const from = find(original);
  Node origin = from != nullptr ? *from : Node{.original = original};
  if (origin.ranges != nullptr) ++origin.ranges->second;  // keep the ranges while the table changes
  if (origin.original == 0) origin.original = original;
  Node& copy = entry(node, thread);
  copy.created = origin.created;
  copy.original = origin.original;
  copy.kernel = origin.kernel;
  if (from != nullptr) copy.thread = origin.thread;
  set_ranges(copy, origin.ranges);
  set_ranges(origin, nullptr);
  copy.inner = take_inner_graph(graph_of(node), thread);
  make_room(graph_of(node));
}

// The inner graph of a node is copied before the node, and its number is higher than the number of the node's graph.
std::uint32_t GraphNodes::take_inner_graph(std::uint32_t graph, std::uint32_t thread) {
  std::uint32_t inner = 0;
  for (auto it = graphs_.upper_bound(graph); it != graphs_.end(); ++it) {
    Graph& other = it->second;
    if (other.thread != thread || other.is_inner || other.nodes.empty() || other.nodes.front().original == 0) continue;
    other.is_inner = true;
    inner = inner == 0 ? it->first : kSeveral;
  }
  return inner;
}

void GraphNodes::instantiated(std::uint32_t id, bool complete) {
  const auto graph = graphs_.find(id);
  if (graph == graphs_.end()) return;
  graph->second.executable = true;
  if (complete) place_inner_nodes(id);
}

// The nodes of a child graph, and of the body of a conditional node, are copied twice: first into a separate inner graph, then
// into the executable graph. CUPTI reports only the first copy, but records name the second one. CUPTI 13.0 numbers the second
// copies in this order: from the first node on, the inner nodes of each node are appended to the list. Nodes that the driver adds
// come last, so the first of them shows whether the numbers are right.
void GraphNodes::place_inner_nodes(std::uint32_t id) {
  const Graph& graph = graphs_.find(id)->second;
  std::vector<Node> all;
  const auto append = [&](const Graph& from) {
    for (const Node& node : from.nodes)
      if (node.original != 0) all.push_back(node);
  };
  append(graph);
  const std::size_t reported = all.size();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].inner == 0) continue;
    const auto inner = graphs_.find(all[i].inner);
    if (inner == graphs_.end()) return;
    append(inner->second);
  }
  if (all.size() == reported || graph.nodes[reported - 1].index + 1 != reported) return;
  const auto added = std::ranges::find(graph.nodes, std::uint64_t{0}, &Node::original);
  if (added != graph.nodes.end() && added->index != all.size()) return;
  for (std::size_t i = reported; i < all.size(); ++i) {
    Node& copy = entry((std::uint64_t{id} << 32) + i, all[i].thread);
    copy.created = all[i].created;
    copy.original = all[i].original;
    copy.kernel = all[i].kernel;
    set_ranges(copy, all[i].ranges);
  }
  make_room(id);
}

void GraphNodes::make_room(std::uint32_t kept) {
  while (bytes_ > limit_ && recent_.front() != kept) {
    const auto it = graphs_.find(recent_.front());
    Graph& graph = it->second;
    for (Node& node : graph.nodes) {
      if (graph.executable && has_origin(node) && node.file == 0) ++dropped_;
      if (node.kernel.name != nullptr || node.kernel.unknown) kernels_dropped_ = true;
      set_ranges(node, nullptr);
    }
    bytes_ -= graph.nodes.capacity() * sizeof(Node) + graph.kernel_changes.size() * sizeof(KernelChange) + kPerGraph;
    recent_.pop_front();
    graphs_.erase(it);
  }
  if (bytes_ <= limit_) return;
  // One graph is larger than the limit.
  Graph& graph = graphs_.find(kept)->second;
  if (graph.nodes.back().created != 0) ++dropped_;
  set_ranges(graph.nodes.back(), nullptr);
  graph.nodes.pop_back();
}

void GraphNodes::set_kernel(std::uint64_t node, Kernel kernel, bool changed) {
  Node* const known = find(node);
  Node& named = known != nullptr ? *known : entry(node, 0);
  named.kernel = kernel;
  named.kernel_changed = named.kernel_changed || changed;
  make_room(graph_of(node));
}

void GraphNodes::set_kernel_in(std::uint32_t id, std::uint64_t node, Kernel kernel, std::uint32_t correlation) {
  const Node* const given = node != 0 ? find(node) : nullptr;
  const std::uint64_t original = given != nullptr && given->original != 0 ? given->original : node;
  const auto graph = graphs_.find(id);
  if (graph == graphs_.end()) {
    kernels_dropped_ = true;
    return;
  }
  auto& changes = graph->second.kernel_changes;
  if (changes.size() == kMostKernelChanges) {
    graph->second.forgotten = changes[kMostKernelChanges / 2 - 1].correlation;
    changes.erase(changes.begin(), changes.begin() + kMostKernelChanges / 2);
    bytes_ -= kMostKernelChanges / 2 * sizeof(KernelChange);
  }
  changes.push_back({original, kernel, correlation});
  bytes_ += sizeof(KernelChange);
  make_room(id);
}

GraphNodes::Kernel GraphNodes::kernel(std::uint64_t id, std::uint32_t correlation) {
  const Node* const found = find(id);
  if (found == nullptr) return {nullptr, kernels_dropped_};
  const Node node = *found;
  Kernel kernel = node.kernel;
  if (kernel.name == nullptr && !kernel.unknown && node.original != 0) {
    // Another thread made the original, and its events were read after the events of the copy.
    const Node* const original = find(node.original);
    if (original != nullptr) kernel = original->kernel_changed ? Kernel{nullptr, true} : original->kernel;
  }
  const Graph& graph = graphs_.find(graph_of(id))->second;
  const auto is_before = [&](std::uint32_t change) { return static_cast<std::int32_t>(correlation - change) > 0; };
  if (graph.forgotten != 0) kernel = {nullptr, true};
  for (const KernelChange& change : graph.kernel_changes)
    if (is_before(change.correlation) && (change.original == 0 || change.original == node.original)) kernel = change.kernel;
  if (kernel.name == nullptr && kernels_dropped_) kernel.unknown = true;
  return kernel;
}

const GraphNodes::Node* GraphNodes::first_use(std::uint64_t node, std::uint32_t file) {
  Node* const used = find(node);
  return used != nullptr && has_origin(*used) && std::exchange(used->file, file) != file ? used : nullptr;
}

}  // namespace cutrace
