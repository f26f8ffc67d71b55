// The machine code of kernels (the option `code`): its hash, registers, shared and local memory, and size.
//
// CUPTI tells the code of a module when it is loaded. The thread that loads it reads the cubin there, because its memory may
// go afterwards. A launch configuration gets the hash of the code where it is certain which code ran: the launched function
// was found in a module by calls that CUPTI told, or all modules are known and they have one code for the name.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& code_feature();

}  // namespace cutrace
