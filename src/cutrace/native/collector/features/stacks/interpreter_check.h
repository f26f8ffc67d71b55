// Checks that frames which are read by offsets agree with Python's public API.
//
// The check runs once per process, on the main thread of Python and with Python's lock, before the first stack is taken. It also
// registers close_captures() to run at the end of the interpreter.
#pragma once

#include <cstdint>
#include <string_view>

namespace cutrace::python {

enum class Trust : std::uint8_t {
  unknown,   // the check was not requested
  asked,     // the main thread of Python will check when it runs Python code again
  trusted,
  refused
};

Trust trust();
// The reason for a refused interpreter, "" for an accepted one.
std::string_view refusal();

// Asks the main thread of Python once for the check. That thread calls `checked` afterwards. Needs find_interpreter(). False when
// the interpreter accepts no request now.
bool ask_for_check(void (*checked)());

// The check. The caller has Python's lock. Returns the result.
Trust check_interpreter();

}  // namespace cutrace::python
