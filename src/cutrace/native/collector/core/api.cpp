// The entry points: C API, CUDA injection, NVTX injection.
#include "api.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "blocked_signals.h"
#include "features/annotate/annotate.h"
#include "clock.h"
#include "features/nvtx/nvtx.h"
#include "options.h"
#include "process.h"
#include "features/stacks/stacks.h"
#include "features/standby/standby.h"

namespace cutrace {
namespace {

using process::current, process::fail, process::guarded, process::start, process::succeed;

// Does what CUTRACE_OPTIONS asks for: starts a recording unless one runs, or puts the process on standby. The driver and NVTX do not
// report a failure, so this function tells it.
void begin_by_environment() noexcept {
  const char* text = std::getenv("CUTRACE_OPTIONS");
  if (text == nullptr || *text == '\0') return;
  try {
    Options options;
    std::string error;
    if (parse_options(text, options, error) && options.standby) return standby::begin(options);
    if (current() == nullptr && start(text) != 0 && current() == nullptr) tell(process::last_error());
  } catch (const std::exception&) {
    if (current() == nullptr) tell("this process is not recorded, because the collector got no memory");
  }
}

// The status of a request that had nothing to do.
constexpr int kNothing = 2;

template <typename Request>
int ask(Request&& request) {
  return guarded([&] {
    const auto recording = current();
    if (recording == nullptr) return process::none_running();
    std::string error;
    const Outcome outcome = std::invoke(request, *recording, error);
    if (outcome == Outcome::failed) return fail(error);
    return succeed(), outcome == Outcome::nothing ? kNothing : 0;
  });
}

// The status of cutrace_cut() and cutrace_dump().
int make_file(const char* path, Outcome (Recording::*make)(const std::string&, std::string&)) {
  if (path == nullptr || *path == '\0') return -fail("a path is needed for the capture");
  const int status = ask([&](Recording& recording, std::string& error) { return (recording.*make)(path, error); });
  return status == kNothing ? 1 : -status;
}

}  // namespace
}  // namespace cutrace

using namespace cutrace;

extern "C" {

int cutrace_start(const char* options) {
  return guarded([&] { return process::start_now(options); });
}

int cutrace_stop(void) { return process::stop(false); }

void cutrace_exit(void) {
  process::at_exit();
  standby::at_exit();
}

int cutrace_flush(void) { return ask(&Recording::flush); }
int cutrace_synchronize(void) { return current() == nullptr ? succeed() : ask(&Recording::synchronize); }
int cutrace_cut(const char* path) { return make_file(path, &Recording::cut); }
int cutrace_dump(const char* path) { return make_file(path, &Recording::dump); }

int cutrace_stacks(const char* calls) {
  return guarded([&] {
    const std::optional<CallGroups> groups = parse_call_groups(calls != nullptr ? calls : "");
    if (!groups) return fail("stacks are those of calls of the groups sync, alloc, copy and launch");
    request_stacks(*groups);
    return current() == nullptr ? succeed() : ask(&Recording::record_requested_stacks);
  });
}

int cutrace_mark(const char* text) {
  if (cutrace_running() == 0) return process::none_running();
  if (nvtx::armed.load() == 0) return fail("marks need NVTX recording; leave nvtx=0 out of the options");
  nvtx::cutrace_mark(text != nullptr ? text : "");
  return succeed();
}

void cutrace_range_push(const char* name) { nvtx::push(name != nullptr ? name : ""); }
void cutrace_range_pop(void) { nvtx::pop(); }
void cutrace_annotated(int number) { number < 0 ? annotate::in_place() : annotate::matched(static_cast<unsigned>(number)); }
void cutrace_note(const char* sentence) {
  if (const auto recording = current()) recording->notes().add_quietly(sentence);
}
int cutrace_python_profile(void* handler, void* frame, int what, void*) {
  try {
    return annotate::profile(handler, frame, what);
  } catch (const std::exception&) {
    return 0;  // no memory
  }
}
void cutrace_python_profile_all(void* handler) { annotate::profile_all(handler, cutrace_python_profile); }

uint64_t cutrace_now(void) { return now_ns(); }

int cutrace_stats(struct cutrace_stats* stats, size_t size) {
  if (stats == nullptr || size < sizeof stats->size) return fail("cutrace_stats() needs a struct to fill");
  struct cutrace_stats now = process::statistics();
  now.size = std::min(size, sizeof now);
  std::memcpy(stats, &now, static_cast<size_t>(now.size));
  return succeed();
}

const char* cutrace_notes(void) {
  process::ThreadStrings* const strings = process::strings_of_thread();
  if (strings == nullptr) return "";
  strings->notes[0] = '\0';
  guarded([strings] {
    std::string joined;
    for (const std::string& note : process::notes()) joined += (joined.empty() ? "" : "\n") + note;
    strings->notes[joined.copy(strings->notes, sizeof strings->notes - 1)] = '\0';
    return 0;
  });
  return strings->notes;
}

const char* cutrace_last_error(void) { return process::last_error(); }
const char* cutrace_version(void) { return CUTRACE_VERSION; }
int cutrace_running(void) {
  const auto recording = current();
  return recording != nullptr && recording->running() ? 1 : 0;
}

// The driver calls this inside cuInit() of a program started with CUDA_INJECTION64_PATH.
CUTRACE_EXPORT int InitializeInjection(void) {
  const BlockedCancellation whole;
  standby::note_cuda();
  begin_by_environment();
  if (const auto recording = current()) recording->attach_cupti(true);
  return 1;
}

// With NVTX_INJECTION64_PATH set, NVTX calls this at the first NVTX call of each shared object. The callbacks are always
// installed, because a recording may start later.
CUTRACE_EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  if (!nvtx::install(get_export_table)) return 0;
  guarded([] {
    begin_by_environment();
    if (const auto recording = current()) recording->note_nvtx();
    return 0;
  });
  return 1;
}

// With the same variable set, NVTX calls this for each extension module, such as payloads, at the first call of one of its
// functions.
CUTRACE_EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t* module) {
  if (module == nullptr) return 0;
  const bool known = nvtx::install_extension(*module);
  guarded([&] {
    begin_by_environment();
    const auto recording = current();
    if (recording != nullptr) recording->note_nvtx();
    if (recording != nullptr && !known)
      recording->notes().add_quietly("the program uses version " + std::to_string(module->compatId) + " of NVTX's extension module " +
                                     std::to_string(module->moduleId) + ", which is not recorded");
    return 0;
  });
  return known ? 1 : 0;
}

}  // extern "C"
