// Demangling of C++ names.
#pragma once

#include <string>

namespace cutrace {

// Returns the plain form of an Itanium-ABI mangled name, as GNU's c++filt prints it. Returns other names unchanged. Also returns
// unchanged: names over 16 KiB, names that nest 2,048 parts, and names with a plain form larger than 4 KiB and 64 times their
// size. Parts of a name may refer to earlier parts, so the plain form of a short name may not fit in memory.
std::string demangle(const std::string& name);

}  // namespace cutrace
