// How a launch belongs to NVTX ranges.
#pragma once

#include <cstdint>

namespace cutrace {

// To a range of its own thread; to one of the only thread of its process that has a range open; to none, because several
// threads have one open, or because no thread has.
enum HowInRange : std::uint8_t { kOwn, kAdopted, kSeveral, kNone };

}  // namespace cutrace
