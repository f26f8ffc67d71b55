// Names of C++ symbols, as their source had them.
#pragma once

#include <string>

namespace cutrace {

// Returns the plain form of a name that is mangled as the Itanium ABI says, written as GNU's c++filt writes it. Returns
// any other name as it is, and also a name of more than 16 KiB, a name that nests 2,048 parts, and a name whose plain
// form is larger than 4 KiB and 64 times its own size: parts of a name may stand for parts before them, so a few hundred
// bytes can unfold into more than fits in memory.
std::string demangle(const std::string& name);

}  // namespace cutrace
