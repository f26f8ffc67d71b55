#include "interpreter_check.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "python_frames.h"
#include "thread_stacks.h"

namespace cutrace::python {
namespace {

std::atomic<Trust> state{Trust::unknown};
std::atomic<const char*> why_refused{""};
std::atomic<void (*)()> on_checked{nullptr};

// ---- Python's public API ----

using Object = void;

struct DropReference {
  void operator()(Object* object) const;
};
using Reference = std::unique_ptr<Object, DropReference>;

// A method of a built-in function, as in methodobject.h.
struct MethodDefinition {
  const char* name;
  Object* (*function)(Object* self, Object* arguments);
  int flags;
  const char* documentation;
};
constexpr int kNoArguments = 4;      // METH_NOARGS
constexpr int kDeallocSlot = 52;     // Py_tp_dealloc
constexpr int kFileInput = 257;      // Py_file_input

// Functions of the stable ABI, or exported in the same form by all releases since 3.10. Looked up at the first use.
struct PublicApi {
  int (*add_pending_call)(int (*)(void*), void*);
  Object* (*thread_state)();
  Object* (*top_frame)(Object*);
  Object* (*outer_frame)(Object*);
  Object* (*code_of_frame)(Object*);
  int (*line_of_frame)(Object*);
  Object* (*attribute)(Object*, const char*);
  const char* (*utf8)(Object*, std::int64_t*);
  Object* (*string_of_utf8)(const char*, std::int64_t);
  void* (*slot)(Object*, int);
  Object* (*import)(const char*);
  Object* (*call)(Object*, ...);
  Object* (*function)(MethodDefinition*, Object*, Object*);
  Object* (*compile)(const char*, const char*, int);
  Object* (*evaluate)(Object*, Object*, Object*);
  Object* (*dictionary)();
  int (*set_item)(Object*, const char*, Object*);
  Object* (*none)(const char*, ...);
  void (*drop)(Object*);
  void (*clear_error)();
  bool complete = false;

  void find_all() {
    complete = true;
    find(add_pending_call, "Py_AddPendingCall");
    find(thread_state, "PyThreadState_Get");
    find(top_frame, "PyThreadState_GetFrame");
    find(outer_frame, "PyFrame_GetBack");
    find(code_of_frame, "PyFrame_GetCode");
    find(line_of_frame, "PyFrame_GetLineNumber");
    find(attribute, "PyObject_GetAttrString");
    find(utf8, "PyUnicode_AsUTF8AndSize");
    find(string_of_utf8, "PyUnicode_FromStringAndSize");
    find(slot, "PyType_GetSlot");
    find(import, "PyImport_ImportModule");
    find(call, "PyObject_CallFunctionObjArgs");
    find(function, "PyCFunction_NewEx");
    find(compile, "Py_CompileString");
    find(evaluate, "PyEval_EvalCode");
    find(dictionary, "PyDict_New");
    find(set_item, "PyDict_SetItemString");
    find(none, "Py_BuildValue");
    find(drop, "Py_DecRef");
    find(clear_error, "PyErr_Clear");
  }

 private:
  template <typename Function>
  void find(Function*& function_pointer, const char* name) {
    function_pointer = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
    if (function_pointer == nullptr) complete = false;
  }
};

PublicApi api;

void DropReference::operator()(Object* object) const { api.drop(object); }

// ---- comparing ----

std::string_view view(Object* string) {
  std::int64_t size = 0;
  const char* const text = string != nullptr ? api.utf8(string, &size) : nullptr;
  if (text == nullptr) api.clear_error();  // writes a lone surrogate
  return text != nullptr ? std::string_view(text, static_cast<std::size_t>(size)) : std::string_view();
}

// A name that is read by offsets may be truncated.
bool same_name(std::string_view read, std::string_view given, std::size_t room) {
  constexpr std::size_t kLongestCharacter = 4;
  if (read == given) return true;
  return read.size() + kLongestCharacter > room && given.starts_with(read);
}

// Compares the address of a string in a code object, before its contents are read.
bool same_attribute(const FramePosition& position, std::uint32_t offset, const Reference& attribute) {
  return attribute != nullptr && read_at<Object*>(reinterpret_cast<const void*>(position.code), offset) == attribute.get();
}

bool same_frame(const FramePosition& position, Object* frame) {
  static FrameText text;  // with Python's lock
  const PythonLayout& layout = kLayouts[interpreter.version];
  const Reference code(api.code_of_frame(frame));
  if (reinterpret_cast<std::uint64_t>(code.get()) != position.code) return false;
  const Reference file(api.attribute(code.get(), "co_filename"));
  const Reference name(api.attribute(code.get(), layout.minor >= 11 ? "co_qualname" : "co_name"));
  const Reference lines(api.attribute(code.get(), "co_linetable"));
  api.clear_error();
  const bool same_objects = same_attribute(position, layout.file, file) && same_attribute(position, layout.name, name) &&
                            same_attribute(position, layout.line_table, lines);
  if (!same_objects || read_frame(position, text) != FrameKind::shown) return false;
  const std::string_view file_name = view(file.get());
  const std::string_view function_name = view(name.get());
  const int line = std::max(api.line_of_frame(frame), 0);
  return (file_name.empty() || same_name(text.file_name(), file_name, text.file.size())) &&
         (function_name.empty() || same_name(text.function_name(), function_name, text.function.size())) &&
         text.line == static_cast<std::uint32_t>(line);
}

// Both walks advance together, so that a wrong offset is seen before the next frame is read.
bool same_stack() {
  const void* const own_state = interpreter.this_thread_state();
  Object* const state_of_api = api.thread_state();
  if (own_state != state_of_api) return false;
  Reference frame(api.top_frame(state_of_api));
  bool same = true;
  const WalkedFrames walked = walk_frames(own_state, [&](const FramePosition& position) {
    same = frame != nullptr && same_frame(position, frame.get());
    if (same) frame.reset(api.outer_frame(frame.get()));
    return same;
  });
  return same && (frame == nullptr || walked.truncated);
}

// Strings of all character widths, because the names of a program may all have one width.
bool same_strings() {
  constexpr std::string_view kSamples[] = {"ascii", "\xC3\xBC", "\xE6\xBC\xA2 \xD1\x8F", "\xF0\x9D\x84\x9E \xE6\xBC\xA2"};
  std::array<char, 64> read{};
  for (const std::string_view sample : kSamples) {
    const Reference string(api.string_of_utf8(sample.data(), static_cast<std::int64_t>(sample.size())));
    std::uint32_t bytes = 0;
    if (!read_string(string.get(), read.data(), read.size(), bytes)) return false;
    if (std::string_view(read.data(), bytes) != sample) return false;
  }
  return true;
}

// ---- a program with frames of several kinds ----

constexpr const char* kProgram =
    "def plain(): check()\n"
    "def generated():\n"
    "    check()\n"
    "    yield check()\n"
    "plain(); list(generated()); [check() for _ in 'ab']; (lambda: check())()\n"
    "class Body: check()\n"
    "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"
    "plain(\n"
    ")\n";
constexpr int kChecks = 8;

bool checks_agree = true;  // needs Python's lock, like all members below
int checks_done = 0;

Object* on_check(Object*, Object*) {
  ++checks_done;
  checks_agree = checks_agree && same_stack();
  return api.none("");
}
Object* on_exit(Object*, Object*) {
  close_captures();
  return api.none("");
}

MethodDefinition check_definition{"check", on_check, kNoArguments, nullptr};
MethodDefinition exit_definition{"close_captures", on_exit, kNoArguments, nullptr};

bool same_stacks_in_program() {
  checks_agree = true;
  checks_done = 0;
  const Reference check(api.function(&check_definition, nullptr, nullptr));
  const Reference variables(api.dictionary());
  const Reference code(api.compile(kProgram, "<cutrace>", kFileInput));
  if (check == nullptr || variables == nullptr || code == nullptr) return false;
  if (api.set_item(variables.get(), "check", check.get()) != 0) return false;
  const Reference result(api.evaluate(code.get(), variables.get(), variables.get()));
  return result != nullptr && checks_agree && checks_done == kChecks;
}

// The interpreter runs functions of atexit before it ends its other threads.
bool register_exit() {
  const Reference module(api.import("atexit"));
  const Reference add(module != nullptr ? api.attribute(module.get(), "register") : nullptr);
  const Reference close(api.function(&exit_definition, nullptr, nullptr));
  if (add == nullptr || close == nullptr) return false;
  const Reference result(api.call(add.get(), close.get(), nullptr));
  return result != nullptr;
}

// "" when the interpreter is as expected.
const char* find_problem() {
  if (!api.complete) return "this Python lacks functions of CPython's API";
  const bool same_deallocator = api.slot(interpreter.code_type, kDeallocSlot) == read_at<void*>(interpreter.code_type, kTypeDealloc);
  if (!same_deallocator) return "this Python has its types at other offsets than the releases of CPython";
  if (!same_strings()) return "this Python has its strings at other offsets than the releases of CPython";
  if (!same_stack() || !same_stacks_in_program()) return "its frames differ from those that Python itself shows";
  if (!register_exit()) return "Python takes no function that runs at its exit";
  return "";
}

// The interpreter calls it with its lock held, on its main thread.
int on_pending_call(void*) {
  check_interpreter();
  if (auto* const checked = on_checked.load()) checked();
  return 0;
}

}  // namespace

Trust trust() { return state.load(std::memory_order_acquire); }
std::string_view refusal() { return why_refused.load(); }

bool ask_for_check(void (*checked)()) {
  if (trust() != Trust::unknown) return true;
  on_checked.store(checked);
  if (interpreter.is_initialized() == 0) return false;
  api.find_all();
  Trust unknown = Trust::unknown;
  if (!state.compare_exchange_strong(unknown, Trust::asked)) return true;
  if (api.add_pending_call != nullptr && api.add_pending_call(on_pending_call, nullptr) == 0) return true;
  state.store(Trust::unknown);
  return false;
}

Trust check_interpreter() {
  static bool checking = false;  // guarded by Python's lock; the check runs Python code, which may run this pending call again
  if (checking || trust() == Trust::trusted || trust() == Trust::refused) return trust();
  checking = true;
  if (!api.complete) api.find_all();
  const char* const problem = find_problem();
  if (api.clear_error != nullptr) api.clear_error();
  why_refused.store(problem);
  state.store(*problem == '\0' ? Trust::trusted : Trust::refused, std::memory_order_release);
  checking = false;
  return trust();
}

}  // namespace cutrace::python
