// Ranges around functions of a Python program, by their names (the option `annotate`).
//
// The collector has the interpreter run a Python file in the program, collect/annotate.py. The file finds the functions, and
// reports their calls through the functions of api.h. Nothing of Python is linked: what is used is part of its stable ABI,
// or is exported alike by all its releases since 3.10.
#pragma once

#include "core/options.h"
#include "core/process_info.h"

namespace cutrace::annotate {

// Asks the interpreter to run the file, on the main thread and outside of the call that is running. Notes say why it cannot.
void begin(const Options& options, Notes& notes);
// Asks it to take its hooks out again, except at exit. The process block gets the names that had a range.
void end(const Options& options, Notes& notes, bool at_exit) noexcept;
// The file reports: it is in place; the name of this number has a range.
void in_place();
void matched(unsigned number);

// A profile function of Python before 3.12: `handler` is called as handler(frame, is_call) for calls and returns. If it
// returns False, it is not called for that code again; if None, it is called for all codes again.
int profile(void* handler, void* frame, int what);
// Sets it for all threads of the interpreter, `function` being its entry point. With null, each thread removes it at its next
// event. On failure a Python exception is set.
void profile_all(void* handler, int (*function)(void*, void*, int, void*));

}  // namespace cutrace::annotate
