// Ranges around functions of a Python program, by their names (the option `annotate`).
//
// The collector has the interpreter run a Python file in the program, collect/annotate.py. The file finds the functions, and
// reports their calls through the functions of api.h. The library does not link Python. What it uses is part of Python's stable
// ABI, or all releases since 3.10 export it in the same form.
#pragma once

#include "core/options.h"
#include "core/process_info.h"

namespace cutrace::annotate {

// Asks the interpreter to run the file, on the main thread and outside of the running call. Notes say why it cannot.
void begin(const Options& options, Notes& notes);
// Asks the interpreter to remove the hooks, except at exit. The process block gets the names that had a range.
void end(const Options& options, Notes& notes, bool at_exit) noexcept;
// The file calls these: its hooks are in place; the name with this number has a range.
void in_place();
void matched(unsigned number);

// A profile function of Python before 3.12: `handler` is called as handler(frame, is_call) for calls and returns. If it
// returns False, it is not called for that code again; if None, it is called for all codes again.
int profile(void* handler, void* frame, int what);
// Sets the profile function of all threads of the interpreter; `function` is its entry point. With null, each thread removes it at
// its next event. On failure a Python exception is set.
void profile_all(void* handler, int (*function)(void*, void*, int, void*));

}  // namespace cutrace::annotate
