// Counts hardware metrics of whole NVTX ranges, in the second run of `cutrace profile --ranges`. Each range is counted in one
// pass: nothing is replayed.
//
// The folder of CUTRACE_PROFILE has a file `ranges` of null-terminated texts:
//
//   the libcupti to load when the program has loaded none; may be empty
//   metrics, separated by commas
//   for each range: its number among the ranges of its domain and name in this process, from 0; the domain; the name
//
// Each process with such a range writes <pid>.values into the folder. A line has the index of a range in the file, from 0, the
// device and the values, separated by tabs; or "error", a tab and a message.
#pragma once

#include <string>

namespace cutrace {

// Inside cuInit(): loads CUPTI if `folder` has a file of ranges. False if it has none.
bool count_ranges(const std::string& folder);

}  // namespace cutrace
