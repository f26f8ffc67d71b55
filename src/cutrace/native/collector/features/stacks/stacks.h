// Python stacks of API calls (the option `stacks`).
//
// CUPTI's callback at the end of a call takes the stack, on the thread that made the call. The frames are the same as at the
// start of the call, and the stack reaches the writer together with the record of the call. A driver call inside a runtime call
// gets no separate stack.
#pragma once

#include "core/feature.h"

namespace cutrace {

Feature& stacks_feature();

// Any thread: selects the calls that get stacks in a recording with the option stacks=later. The next attach() or
// record_requested_stacks() applies the selection.
void request_stacks(CallGroups calls);
// The flusher, while CUPTI is attached.
void record_requested_stacks();

}  // namespace cutrace
