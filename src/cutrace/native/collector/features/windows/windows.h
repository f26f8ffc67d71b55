// Windows that the program opens and closes: by cudaProfilerStart() and cudaProfilerStop(), or by an NVTX range of a name.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& windows_feature();

}  // namespace cutrace
