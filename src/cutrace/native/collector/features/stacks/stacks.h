// Python stacks of API calls (the option `stacks`).
//
// A call's stack is taken in CUPTI's callback at the end of the call, on the thread that made it. Its frames are the same as at the
// beginning, and so the stack comes to the writer together with the record of the call. A call of the driver inside a call of the
// runtime has none of its own.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& stacks_feature();

}  // namespace cutrace
