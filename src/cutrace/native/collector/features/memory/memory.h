// Allocations and releases of memory, and memory pools, from the callbacks of the driver's calls.
//
// CUPTI's own records of memory and of pools (CUPTI_ACTIVITY_KIND_MEMORY2, _MEMORY_POOL) are never enabled, because legal
// programs crash inside CUPTI 13.0 and 13.5 then (docs/internals/collector.md).
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& memory_feature();

}  // namespace cutrace
