// Demangling of C++ names.
#pragma once

#include <string>

namespace cutrace {

// Returns the plain form of an Itanium-ABI mangled name, as GNU's c++filt prints it. Returns other names unchanged, and also
// names over 16 KiB, names that nest 2,048 parts, and names whose plain form is larger than 4 KiB and 64 times their size:
// parts of a name may refer to earlier parts, so a few hundred bytes can expand to more than fits in memory.
std::string demangle(const std::string& name);

}  // namespace cutrace
