// Python stacks of API calls (the option `stacks`).
//
// CUPTI's callback at the end of a call takes the stack, on the thread that made the call. The frames are the same as at the start
// of the call. So the stack reaches the writer together with the record of the call. A driver call inside a runtime call has no
// stack of its own.
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
