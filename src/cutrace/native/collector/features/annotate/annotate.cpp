#include "annotate.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "common/text.h"
#include "features/python/interpreter.h"

namespace cutrace::annotate {
namespace {

// State of the recording that started last. It has no lock, because a fork could leave the lock held in the child.
std::atomic<std::uint64_t> names_matched{0};
std::atomic<bool> is_in_place{false};
std::atomic<bool> has_run{false};  // the file was run, or its run failed

// The interpreter calls it with its lock held.
int run_program(void* text) {
  has_run.store(true);
  if (auto* const run = python<int(const char*)>("PyRun_SimpleString")) run(static_cast<const char*>(text));
  std::free(text);
  return 0;
}

// The module keeps its state between recordings under this name. The program is an expression, so that it leaves no names in
// __main__.
constexpr std::string_view kLoad =
    "import sys, types\n"
    "module = sys.modules.get('_cutrace_annotate')\n"
    "try:\n"
    "    if sys.version_info < (3, 10): raise RuntimeError('Python is older than 3.10')\n"
    "    if module is None:\n"
    "        module = types.ModuleType('_cutrace_annotate')\n"
    "        with open(path, 'rb') as file:\n"
    "            exec(compile(file.read(), path, 'exec'), module.__dict__)\n"
    "        sys.modules['_cutrace_annotate'] = module\n"
    "    module.start(names, library)\n"
    "except Exception as error:\n"
    "    print('cutrace: no function is annotated:', error, file=sys.stderr)\n";
constexpr std::string_view kUnload =
    "import sys\n"
    "if '_cutrace_annotate' in sys.modules: sys.modules['_cutrace_annotate'].stop()\n";

// Marks code objects that get no calls of the handler. The mark is an extra field of the code object, so it ends with the object
// and keeps no object alive. Callers hold Python's lock, so the marks need no other lock.
class UnwantedCode {
 public:
  bool contains(void* code) {
    void* mark = nullptr;
    return index() >= 0 && get_(code, index_, &mark) == 0 && reinterpret_cast<std::uintptr_t>(mark) == round_;
  }
  // If Python accepts no mark, the handler is called for each call of this code.
  void add(void* code) {
    static auto* const clear_error = python<void()>("PyErr_Clear");
    if (index() >= 0 && set_(code, index_, reinterpret_cast<void*>(round_)) != 0) clear_error();
  }
  void forget_all() { ++round_; }

 private:
  using Index = std::intptr_t;  // Py_ssize_t

  Index index() {
    static auto* const request = python<Index(void (*)(void*))>("_PyEval_RequestCodeExtraIndex");
    if (index_ == kNone && request != nullptr && get_ != nullptr && set_ != nullptr) index_ = request(nullptr);
    return index_;
  }

  static constexpr Index kNone = -1;
  Index index_ = kNone;
  std::uintptr_t round_ = 1;  // 0: code without a mark
  int (*const get_)(void*, Index, void**) = python<int(void*, Index, void**)>("_PyCode_GetExtra");
  int (*const set_)(void*, Index, void*) = python<int(void*, Index, void*)>("_PyCode_SetExtra");
};

void* active_handler = nullptr;
UnwantedCode& unwanted_code() {
  static auto& code = *new UnwantedCode;
  return code;
}

}  // namespace

void begin(const Options& options, Notes& notes) {
  names_matched.store(0);
  is_in_place.store(false);
  has_run.store(false);
  if (options.annotator.empty() || !interpreter_runs()) return;  // end() notes it
  std::string names;
  for (const std::string& name : options.annotate) names += json_quoted(name) + ",";
  // A JSON string is also a Python string literal.
  if (!call_soon(run_program, expression(kLoad, "'path': " + json_quoted(options.annotator) + ", 'library': " + json_quoted(library_path()) +
                                      ", 'names': [" + names + "]")))
    notes.add_quietly("no function is annotated: the Python interpreter takes no pending calls now");
}

namespace {

JsonObject outcome(const Options& options) {
  JsonObject json;
  if (is_in_place.load()) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < options.annotate.size(); ++i)
      if (names_matched.load() >> i & 1) names.push_back(options.annotate[i]);
    json.texts("annotated", names);
  } else if (python<int()>("Py_IsInitialized") == nullptr) {
    json.text("not_annotated", "the process is no Python program");
  } else {
    json.text("not_annotated", has_run.load()
        ? "the hooks could not be set, as the program's stderr says; they need Python 3.10 or newer"
        : "the main thread of Python ran no code after the first CUDA or NVTX call");
  }
  return json;
}

}  // namespace

void end(const Options& options, Notes& notes, bool at_exit) noexcept {
  if (options.annotate.empty()) return;
  try {
    notes.set(outcome(options));
    if (!options.annotator.empty() && !at_exit && interpreter_runs()) call_soon(run_program, expression(kUnload, ""));
  } catch (const std::exception&) {
    // Without memory the capture lacks this result, and the hooks stay until the next recording. Until then they do nothing.
  }
}

void in_place() { is_in_place.store(true); }
void matched(unsigned number) {
  if (number < Options::kMostAnnotated) names_matched.fetch_or(std::uint64_t{1} << number);
}

int profile(void* handler, void* frame, int what) {
  constexpr int kCall = 0, kReturn = 3;  // PyTrace_CALL, PyTrace_RETURN
  static auto* const code_of = python<void*(void*)>("PyFrame_GetCode");
  static auto* const call = python<void*(void*, ...)>("PyObject_CallFunctionObjArgs");
  static auto* const drop = python<void(void*)>("Py_DecRef");
  static auto* const set = python<void(void*, void*)>("PyEval_SetProfile");
  static void* const yes = dlsym(RTLD_DEFAULT, "_Py_TrueStruct");
  static void* const no = dlsym(RTLD_DEFAULT, "_Py_FalseStruct");
  static void* const none = dlsym(RTLD_DEFAULT, "_Py_NoneStruct");
  UnwantedCode& unwanted = unwanted_code();
  if (handler != active_handler) return set(nullptr, nullptr), 0;  // this thread still has the function of an ended recording
  if (what != kCall && what != kReturn) return 0;
  void* const code = code_of(frame);
  int status = 0;
  if (!unwanted.contains(code)) {
    void* const wanted = call(handler, frame, what == kCall ? yes : no, nullptr);
    if (wanted == nullptr) status = -1;  // KeyboardInterrupt: the handler lets no other exception through
    if (wanted == none) unwanted.forget_all();
    if (wanted == no) unwanted.add(code);
    if (wanted != nullptr) drop(wanted);
  }
  drop(code);
  return status;
}

void profile_all(void* handler, int (*function)(void*, void*, int, void*)) {
  unwanted_code().forget_all();
  active_handler = handler;
  if (handler == nullptr) return;
  // As PyEval_SetProfileAllThreads() of Python 3.12 does.
  auto* const set = python<int(void*, int (*)(void*, void*, int, void*), void*)>("_PyEval_SetProfile");
  auto* const next = python<void*(void*)>("PyThreadState_Next");
  void* const interpreter = python<void*()>("PyInterpreterState_Get")();
  void* thread = python<void*(void*)>("PyInterpreterState_ThreadHead")(interpreter);
  while (thread != nullptr && set(thread, function, handler) == 0) thread = next(thread);
}

}  // namespace cutrace::annotate
