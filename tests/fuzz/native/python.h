// An embedded Python with cutrace._native built in. Native functions are called as Python calls them. Columns are in
// memory of their exact sizes, so that AddressSanitizer detects each read beyond the end of a column.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "input.h"

extern "C" PyObject* PyInit__native();

namespace fuzz {
namespace nb = nanobind;

// Starts the interpreter on first use. The module lives as long as the program.
inline nb::object& native() {
  static nb::object* module = [] {
    PyImport_AppendInittab("_native", &PyInit__native);
    PyPreConfig before;
    PyPreConfig_InitPythonConfig(&before);
    before.allocator = PYMEM_ALLOCATOR_MALLOC;  // so that the sanitizer sees each object separately
    Py_PreInitialize(&before);
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    PyConfig_SetBytesString(&config, &config.program_name, PYTHON_PATH);  // so that numpy of that interpreter is found
    const PyStatus status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    return new nb::object(nb::module_::import_("_native"));
  }();
  return *module;
}

// Runs a call that may raise a Python exception. Any other failure is a bug.
template <typename Call>
bool accepted(const Call& call) {
  try {
    call();
    return true;
  } catch (nb::python_error&) {
    return false;
  }
}

// Memory for the columns of one execution.
class Columns {
 public:
  // Makes a column of `rows` numbers of a struct code, filled from the input. The stride is in numbers.
  nb::object column(Input& input, char code, std::size_t rows, std::size_t stride = 1, bool writable = false) {
    const std::size_t size = std::strchr("Bb", code)    ? 1
                             : std::strchr("Hh", code)  ? 2
                             : std::strchr("IifL", code) ? 4
                                                        : 8;
    const std::size_t bytes = rows == 0 ? 0 : ((rows - 1) * stride + 1) * size;
    auto& memory = memory_.emplace_back(new char[bytes == 0 ? 1 : bytes]());
    const std::string given = input.text(bytes);
    std::copy_n(given.data(), given.size(), memory.get());
    return view(memory.get(), bytes, code == 'L' ? 'I' : code, stride, writable);
  }

  // Makes a column of given numbers.
  template <typename T>
  nb::object column(const std::vector<T>& values, char code, bool writable = false) {
    const std::size_t bytes = values.size() * sizeof(T);
    auto& memory = memory_.emplace_back(new char[bytes == 0 ? 1 : bytes]);
    std::copy_n(reinterpret_cast<const char*>(values.data()), bytes, memory.get());
    return view(memory.get(), bytes, code, 1, writable);
  }

 private:
  static nb::object view(char* memory, std::size_t bytes, char code, std::size_t stride, bool writable) {
    nb::object raw = nb::steal(PyMemoryView_FromMemory(memory, static_cast<Py_ssize_t>(bytes), writable ? PyBUF_WRITE : PyBUF_READ));
    const char format[2] = {code, 0};
    nb::object typed = raw.attr("cast")(format);
    if (stride == 1) return typed;
    return typed[nb::slice(nb::none(), nb::none(), nb::int_(stride))];
  }

  std::vector<std::unique_ptr<char[]>> memory_;
};

// The numbers of an array from a native function.
template <typename T>
std::vector<T> numbers(nb::handle array) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  std::vector<T> out(static_cast<std::size_t>(buffer.len) / sizeof(T));
  std::copy_n(static_cast<const char*>(buffer.buf), out.size() * sizeof(T), reinterpret_cast<char*>(out.data()));
  PyBuffer_Release(&buffer);
  return out;
}

}  // namespace fuzz
