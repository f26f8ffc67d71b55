// How a launch belongs to NVTX ranges of a domain.
#pragma once

#include <cstdint>

namespace cutrace {

// To a range of its own thread; to one of the only thread of its process that has a range of the domain open; to none,
// because several threads have one open, or because no thread has.
enum HowInRange : std::uint8_t { kOwn, kAdopted, kSeveral, kNone };

}  // namespace cutrace
