// The features of the collector. To add one, write its folder and name its instance here.
#include "core/feature.h"

#include <array>

#include "features/children/children.h"
#include "features/code/code.h"
#include "features/graph_nodes/graph_callbacks.h"
#include "features/graph_nodes/graph_launches.h"
#include "features/memory/memory.h"
#include "features/names/kernel_names.h"
#include "features/newest/newest.h"
#include "features/pc_sampling/pc_sampling.h"
#include "features/standby/first_work.h"
#include "features/stacks/stacks.h"
#include "features/stream_captures/capture_watch.h"
#include "features/windows/windows.h"

namespace cutrace {

std::span<Feature* const> features() {
  static std::array all{
      &children_feature(),
      &code_feature(),
      &graph_launches_feature(),
      &graph_nodes_feature(),
      &memory_feature(),
      &kernel_names_feature(),
      &newest_feature(),
      &pc_sampling_feature(),
      &first_work_feature(),
      &stacks_feature(),
      &stream_captures_feature(),
      &windows_feature(),
  };
  return all;
}

}  // namespace cutrace
