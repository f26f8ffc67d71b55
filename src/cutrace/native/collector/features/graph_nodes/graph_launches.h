// Whether a CUDA graph was launched while CUPTI had a subscriber: CUPTI must not be finalised then.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& graph_launches_feature();

}  // namespace cutrace
