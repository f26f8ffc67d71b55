// What a capture tells about a counted launch and its device, besides the values.
#pragma once

#include <cstdint>
#include <string>

#include "launch_calls.h"

namespace cutrace {

// Fields after tabs, each a name of a column of `launches` or `kernels` in layout.py, "=", and its value. `started` is in
// nanoseconds of BOOTTIME. Unknown values are left out.
std::string launch_facts(const Launch& launch, std::uint64_t started);
// The same for the columns of `devices`.
std::string device_facts(std::uint32_t device);

}  // namespace cutrace
