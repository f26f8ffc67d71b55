// The relation of a launch to the NVTX ranges of a domain.
#pragma once

#include <cstdint>

namespace cutrace {

// kOwn: in a range of its own thread. kAdopted: in a range of the only thread of its process with an open range of the domain.
// kSeveral: in no range, because several threads have an open one. kNone: in no range, because no thread has an open one.
enum HowInRange : std::uint8_t { kOwn, kAdopted, kSeveral, kNone };

}  // namespace cutrace
