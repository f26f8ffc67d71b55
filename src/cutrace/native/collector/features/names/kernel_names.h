// The right names of kernels under a CUPTI that mixes them up.
//
// CUPTI 13.0 to 13.3 keep the name of a kernel by its function handle. After a module is unloaded, the driver gives its handles
// to other functions. Records of these functions then have the old name. The callback of a launch has the right name. So from the
// first unload on, each launch puts its correlation id and a hash of the name into the thread's ring, and the writer prefers that
// name. The name itself is put into the ring once. Before the first unload only unloads are watched. Nodes of graphs get their
// names when they are created or changed. If the right name is unknown and CUPTI's name may be wrong, the kernel is named
// kUnknownKernel, and counts as a loss.
#pragma once

#include "core/feature.h"

namespace cutrace {

// Whether a CUPTI of this version gives kernels the names of other kernels.
constexpr bool mixes_up_names(std::uint32_t version) { return version >= kCupti_13_0 && version <= 130400; }

inline constexpr const char* kUnknownKernel = "(unknown kernel)";

Feature& kernel_names_feature();

}  // namespace cutrace
