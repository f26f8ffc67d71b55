// Counts hardware metrics of whole NVTX ranges. Each range is counted in one pass, without replays.
//
// The line of a range in <pid>.values has its index in the plan (from 0), the device and the values.
#pragma once

namespace cutrace {

// Inside cuInit(), for a plan of ranges: loads CUPTI.
void count_ranges();

}  // namespace cutrace
