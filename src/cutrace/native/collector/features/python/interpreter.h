// The Python interpreter of the program, if there is one. The library does not link Python. It uses only functions of Python's
// stable ABI, and functions that all releases since 3.10 export in the same form.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "common/text.h"

namespace cutrace {

// A function of the interpreter, null in programs without one.
template <typename Function>
Function* python(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

inline bool interpreter_runs() {
  auto* const initialised = python<int()>("Py_IsInitialized");
  return initialised != nullptr && initialised() != 0;
}

// Has the main thread of the interpreter call `function`, with Python's lock held and outside of the running call. The argument
// is a copy of `text`; the function frees it. False when the interpreter accepts no such calls now.
inline bool call_soon(int (*function)(void*), const std::string& text) {
  auto* const add = python<int(int (*)(void*), void*)>("Py_AddPendingCall");
  char* const copy = add != nullptr ? strdup(text.c_str()) : nullptr;
  if (copy == nullptr) return false;
  if (add(function, copy) == 0) return true;
  std::free(copy);
  return false;
}

// A program as an expression, which leaves no names in __main__. `variables` are the items of a dict.
inline std::string expression(std::string_view program, std::string_view variables) {
  std::string text = "__import__('builtins').exec(";  // the program may redefine exec
  text += json_quoted(program);
  return text.append(", {").append(variables).append("})");
}

// The path of the collector's library.
inline std::string library_path() {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(&library_path), &info) != 0 ? info.dli_fname : "";
}

}  // namespace cutrace
