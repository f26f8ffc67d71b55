// Allocations and releases of memory, from the callbacks of the driver's calls.
//
// CUPTI's own records of memory (CUPTI_ACTIVITY_KIND_MEMORY2) are never enabled: with them, cuMemFreeAsync() of memory from
// cuMemAlloc() is a segmentation fault inside CUPTI 13.0 and 13.5.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& memory_feature();

}  // namespace cutrace
