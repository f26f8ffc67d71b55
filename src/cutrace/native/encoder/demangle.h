// Names of C++ symbols, as their source had them.
#pragma once

#include <string>

namespace cutrace {

// The name behind one that is mangled as the Itanium ABI says. Any other comes back as it is, and so does one whose
// plain form is out of proportion: parts of a name may stand for parts before them, so a few hundred bytes can unfold
// into more than fits in memory.
std::string demangle(const std::string& name);

}  // namespace cutrace
