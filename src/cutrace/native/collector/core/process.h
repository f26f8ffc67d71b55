// The recording of this process. There is one at a time, for all ways to start it.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api.h"
#include "blocked_signals.h"
#include "recording.h"

#ifndef CUTRACE_VERSION
#define CUTRACE_VERSION "0"
#endif

namespace cutrace::process {

// The strings that the C API returns to a thread. Plain arrays, because exit handlers run after the thread's C++ objects are gone.
struct ThreadStrings {
  char error[1024] = "";
  char notes[4096] = "";
};
// Null when there is no memory for them.
ThreadStrings* strings_of_thread();

// The calling thread's last failure, "" for none. Functions that return a status (0: success) set it.
const char* last_error();
int fail(std::string_view message);
int succeed();
int none_running();

// C callers must not see exceptions. The only possible one is bad_alloc.
template <typename Body>
int guarded(Body&& body) {
  const BlockedCancellation whole;
  try {
    return body();
  } catch (const std::exception&) {
    return fail("the collector got no memory; the recording goes on");
  }
}

// The recording. Null when there is none, and while a thread starts or stops one.
std::shared_ptr<Recording> current();
// Installs the handlers of fork and exit, once. start() does so too.
void install_handlers();
// Whether exit() leaves the recording and the standby alone. They belong to the parent in a process that was created without the
// handlers of fork(), such as by clone(). A signal handler may call exit() while its thread is inside fork(), and holds the locks.
bool ignores_exit();
// The exit handler.
void at_exit();
// Starts a recording with these options.
int start(const char* options);
// Like start(), and records GPU activity at once if the process has a driver. Without a driver, recording of GPU activity waits for
// the injection.
int start_now(const char* options);
// Ends the recording. At exit it does nothing while another thread starts or stops the recording.
int stop(bool at_exit);

// The counters and notes of the recording, or of the last one when none runs.
struct cutrace_stats statistics();
std::vector<std::string> notes();

}  // namespace cutrace::process
