// Standby: a process records nothing until its user asks for it with `cutrace attach`.
//
// One thread sleeps in poll() on a Unix socket that only the user of the process can reach. It does not load or subscribe to
// CUPTI, so standby costs a process only this thread and two descriptors. A recording belongs to the connection that started it,
// and ends with the connection.
//
// Each message of the protocol is one line. The process sends a greeting, and answers each request of the client. Each message of
// the process is a JSON object. The requests are `start OPTIONS`, `stop`, `status` and `dump PATH`. The status has `working`, which
// is true if the program has submitted work to the GPU since the start. It also has `worked_ns`, the time since the first such call
// returned.
#pragma once

#include <sys/types.h>

#include "core/options.h"

namespace cutrace::standby {

// The version of the protocol. A client refuses others.
inline constexpr unsigned kProtocol = 1;

// Puts this process on standby, once; further calls have no effect. `defaults` are the options of later recordings; the options
// of a request override them. Prints a sentence on failure.
void begin(const Options& defaults);
// The exit handler: ends a recording. Afterwards nobody can attach.
void at_exit();
// The process has initialised CUDA.
void note_cuda();

// Whether a user may attach to a process of the user `own`.
inline bool may_attach(uid_t user, uid_t own) { return user == own || user == 0; }

}  // namespace cutrace::standby
