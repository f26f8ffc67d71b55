// Puts CUPTI's callbacks about CUDA graphs into the thread's ring as events, in order with the thread's NVTX ranges.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& graph_nodes_feature();

// Any thread, while a recording runs: records nodes from now on, also without NVTX.
void watch_graph_nodes(Callbacks& callbacks);

}  // namespace cutrace
