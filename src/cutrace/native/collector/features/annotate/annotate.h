// Ranges around functions of a Python program, by their names (the option `annotate`).
//
// The collector has the interpreter run the Python file collect/annotate.py in the program. The file finds the functions, and
// reports their calls through the functions of api.h. The library does not link Python. It uses only functions of Python's stable
// ABI, and functions that all releases since 3.10 export in the same form.
#pragma once

#include "core/options.h"
#include "core/process_info.h"

namespace cutrace::annotate {

// Asks the interpreter to run the file, on the main thread and outside of the running call. On failure a note gives the reason.
void begin(const Options& options, Notes& notes);
// Asks the interpreter to remove the hooks, except at exit. Writes the names that had a range to the process block.
void end(const Options& options, Notes& notes, bool at_exit) noexcept;
// The file calls in_place() when its hooks are in place, and matched() for the number of each name with a range.
void in_place();
void matched(unsigned number);

// A profile function of Python before 3.12. It calls handler(frame, is_call) for calls and returns. If the handler returns False,
// it gets no more calls for that code. If it returns None, it gets calls for all code again.
int profile(void* handler, void* frame, int what);
// Sets the profile function of all threads of the interpreter; `function` is its entry point. If it is null, each thread removes
// its profile function at its next event. On failure a Python exception is set.
void profile_all(void* handler, int (*function)(void*, void*, int, void*));

}  // namespace cutrace::annotate
