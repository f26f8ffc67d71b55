// Standby: a process records nothing until its user asks for it with `cutrace attach`.
//
// One thread sleeps in poll() on a Unix socket that only the user of the process can reach. It subscribes to nothing and does
// not load CUPTI, so a process on standby pays for that thread and two descriptors. A recording belongs to the connection
// that started it, and ends with it.
//
// The protocol is text, one message a line. The process sends a greeting, the client sends requests, and the process answers each.
// Each message of the process is a JSON object. The requests: `start OPTIONS`, `stop`, `status`, `dump PATH`. The status says
// whether the program has submitted work to the GPU since the start (`working`), and how long ago the first such call returned
// (`worked_ns`).
#pragma once

#include <sys/types.h>

#include "core/options.h"

namespace cutrace::standby {

// The version of the protocol. A client refuses others.
inline constexpr unsigned kProtocol = 1;

// Puts this process on standby, once; further calls have no effect. `defaults` are the options of later recordings, which the
// options of a request override. Prints a sentence when that fails.
void begin(const Options& defaults);
// The handler of exit: ends a recording; afterwards nobody can attach.
void at_exit();
// The process has initialised CUDA.
void note_cuda();

// Whether a user may attach to a process of the user `own`.
inline bool may_attach(uid_t user, uid_t own) { return user == own || user == 0; }

}  // namespace cutrace::standby
