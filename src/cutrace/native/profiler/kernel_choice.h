// Asks `cutrace profile` which kernels to count.
//
// The folder of CUTRACE_PROFILE has the socket `kernels` (SOCK_SEQPACKET). A question is one message: the process id, a null
// character, and the mangled name of a kernel. The answer is "1" or "0".
#pragma once

#include <string>

namespace cutrace {

// Whether launches of a kernel are counted. Without an answer `error` has the reason.
bool ask_for_kernel(const std::string& folder, const std::string& name, std::string& error);

}  // namespace cutrace
