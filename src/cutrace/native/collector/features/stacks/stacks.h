// Python stacks of API calls (the option `stacks`).
//
// A call's stack is taken in CUPTI's callback at the end of the call, on the thread that made it. Its frames are the same as at the
// beginning, and so the stack comes to the writer together with the record of the call. A call of the driver inside a call of the
// runtime has none of its own.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& stacks_feature();

// Any thread: the calls whose stacks a recording with the option stacks=later records, from its next attach() or
// record_requested_stacks() on.
void request_stacks(CallGroups calls);
// The flusher, while CUPTI is attached.
void record_requested_stacks();

}  // namespace cutrace
