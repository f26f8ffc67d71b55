#include "children.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "features/python/interpreter.h"

namespace cutrace {
namespace {

// The finalizer runs after the program's finalizers. Before Python 3.13, threads that the program does not wait for continue after
// this finalizer. If there are such threads, the finalizer only writes the rows so far, and the recording continues.
constexpr std::string_view kAddFinalizer =
    "import sys\n"
    "try:\n"
    "    if sys.modules['multiprocessing.process'].parent_process() is not None:\n"
    "        import ctypes, threading\n"
    "        from multiprocessing.util import Finalize\n"
    "        library = ctypes.CDLL(path)\n"
    "        def finish():\n"
    "            this = threading.current_thread()\n"
    "            goes_on = any(thread is not this and not thread.daemon for thread in threading.enumerate())\n"
    "            library.cutrace_flush() if goes_on else library.cutrace_exit()\n"
    "        Finalize(None, finish, exitpriority=-1000)\n"
    "except Exception:\n"
    "    pass\n";  // such a child is recorded up to the last flush

std::atomic<pid_t> asked{0};  // the process that has been asked for a finalizer

bool uses_multiprocessing() {
  auto* const modules = python<void*()>("PyImport_GetModuleDict");
  auto* const item = python<void*(void*, const char*)>("PyDict_GetItemString");  // not a new reference
  return modules != nullptr && item != nullptr && item(modules(), "multiprocessing.process") != nullptr;
}

// The interpreter calls it with its lock held.
int add_finalizer(void* program) {
  auto* const run = python<int(const char*)>("PyRun_SimpleString");
  if (run != nullptr && uses_multiprocessing() && asked.exchange(getpid()) != getpid()) run(static_cast<const char*>(program));
  std::free(program);
  return 0;
}

class Children final : public Feature {
 public:
  std::unique_ptr<Decoder> decoder(const DecoderContext&) override {
    if (interpreter_runs()) call_soon(add_finalizer, expression(kAddFinalizer, "'path': " + json_quoted(library_path())));
    return nullptr;
  }
};

}  // namespace

Feature& children_feature() {
  static auto& feature = *new Children;
  return feature;
}

}  // namespace cutrace
