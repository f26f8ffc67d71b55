// Counts hardware metrics of whole NVTX ranges, in the second run of `cutrace profile --ranges`. Each range is counted in one
// pass: nothing is replayed.
//
// The folder of CUTRACE_PROFILE then has a file `ranges` of texts, each with a zero byte behind it:
//
//   the libcupti to load when the program has loaded none; may be empty
//   metrics, with commas between them
//   of each range: which of its domain and name in this process it is, from 0; the domain; the name
//
// Each process that meets one of them writes <pid>.values there, a line for each: which range of the file it is, from 0, the
// device and the values, with tabs between them; or "error", a tab and a sentence.
#pragma once

#include <string>

namespace cutrace {

// Inside cuInit(): loads CUPTI when `folder` asks for ranges. False when it does not.
bool count_ranges(const std::string& folder);

}  // namespace cutrace
