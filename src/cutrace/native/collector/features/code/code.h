// The machine code of kernels (the option `code`): its hash, registers, shared and local memory, and size.
//
// CUPTI reports the code of a module when it is loaded. The thread that loads it reads the cubin at once, because its memory may
// be freed afterwards. A launch configuration gets the hash of the code only if the code is certain. It is certain if reported
// calls found the launched function in a module. It is also certain if all modules are known and have one code for the name.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& code_feature();

}  // namespace cutrace
