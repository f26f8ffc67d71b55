// How a launch belongs to NVTX ranges of a domain.
#pragma once

#include <cstdint>

namespace cutrace {

// kOwn: to a range of its own thread. kAdopted: to a range of the only thread of its process that has a range of the domain open.
// kSeveral: to no range, because several threads have one open. kNone: to no range, because no thread has one open.
enum HowInRange : std::uint8_t { kOwn, kAdopted, kSeveral, kNone };

}  // namespace cutrace
