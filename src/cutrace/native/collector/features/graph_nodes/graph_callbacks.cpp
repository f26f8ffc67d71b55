#include "graph_callbacks.h"

#include "features/nvtx/nvtx.h"

namespace cutrace {
namespace {

constexpr KindSet kInGraphs = bit(Kind::kernel) | bit(Kind::memcpy) | bit(Kind::memset);

// Replays of a graph make none of these callbacks.
constexpr CUpti_CallbackId kWatched[] = {
    CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED};

class GraphCallbacks final : public Feature {
 public:
  void cupti_loaded(const CuptiLibrary& cupti, Callbacks&) override { cupti_ = &cupti; }
  void attach(const AttachContext& context) override {
    const Options& options = context.options;
    if (options.records_nvtx() && options.graph_nodes && (options.kinds & kInGraphs)) watch(context.callbacks);
  }
  void watch(Callbacks& callbacks) {
    if (cupti_->GetGraphNodeId == nullptr) return;
    for (const CUpti_CallbackId id : kWatched) callbacks.watch(*this, CUPTI_CB_DOMAIN_RESOURCE, id);
  }

  void on_callback(CUpti_CallbackDomain, CUpti_CallbackId id, const void* data) noexcept override {
    if (data == nullptr) return;
    const void* const about = static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor;
    const auto* const graph = static_cast<const CUpti_GraphData*>(about);
    if (graph == nullptr) return;
    if (id == CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED) return instantiated(graph->graphExec);
    std::uint64_t node = 0;
    std::uint64_t original = 0;
    if (cupti_->GetGraphNodeId(graph->node, &node) != CUPTI_SUCCESS) return;
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) return nvtx::graph_node_created(node);
    if (cupti_->GetGraphNodeId(graph->originalNode, &original) == CUPTI_SUCCESS) nvtx::graph_node_copied(node, original);
  }

 private:
  void instantiated(CUgraphExec graph) const {
    std::uint32_t id = 0;
    if (cupti_->GetGraphExecId != nullptr && cupti_->GetGraphExecId(graph, &id) == CUPTI_SUCCESS) nvtx::graph_instantiated(id);
  }

  const CuptiLibrary* cupti_ = nullptr;
};

}  // namespace

static GraphCallbacks& graph_callbacks() {
  static auto& feature = *new GraphCallbacks;
  return feature;
}
Feature& graph_nodes_feature() { return graph_callbacks(); }
void watch_graph_nodes(Callbacks& callbacks) { graph_callbacks().watch(callbacks); }

}  // namespace cutrace
