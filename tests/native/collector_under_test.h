// The collector as a library opened by path, as in a program, and a folder for its captures.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collector/core/api.h"
#include "fake_cupti.h"

struct Collector {
  Collector() {
    library = dlopen(COLLECTOR_PATH, RTLD_NOW);
    if (library == nullptr) check::failed(__FILE__, __LINE__, dlerror());
    find(start, "cutrace_start");
    find(stop, "cutrace_stop");
    find(flush, "cutrace_flush");
    find(mark, "cutrace_mark");
    find(synchronize, "cutrace_synchronize");
    find(cut, "cutrace_cut");
    find(dump, "cutrace_dump");
    find(notes, "cutrace_notes");
    find(now, "cutrace_now");
    find(stats, "cutrace_stats");
    find(last_error, "cutrace_last_error");
    find(running, "cutrace_running");
    find(inject, "InitializeInjection");
  }
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    CHECK(function != nullptr);
  }
  // Starts a recording. Then simulates the program's first CUDA call: cuInit() and a context.
  void begin(const std::string& options) {
    if (start((options + ";cupti=" + fake_path()).c_str()) != 0) check::failed(__FILE__, __LINE__, last_error());
    CHECK_EQUAL(inject(), 1);
    fake_create_context();
    fake_load_module();
  }
  struct cutrace_stats statistics() {
    struct cutrace_stats s {};
    CHECK_EQUAL(stats(&s, sizeof s), 0);
    return s;
  }

  void* library = nullptr;
  int (*start)(const char*) = nullptr;
  int (*stop)() = nullptr;
  int (*flush)() = nullptr;
  int (*mark)(const char*) = nullptr;
  int (*synchronize)() = nullptr;
  int (*cut)(const char*) = nullptr;
  int (*dump)(const char*) = nullptr;
  const char* (*notes)() = nullptr;
  std::uint64_t (*now)() = nullptr;
  int (*stats)(struct cutrace_stats*, std::size_t) = nullptr;
  const char* (*last_error)() = nullptr;
  int (*running)() = nullptr;
  int (*inject)() = nullptr;
};

inline void sleep_ms(int time) { std::this_thread::sleep_for(std::chrono::milliseconds(time)); }

// An activity record for use here, and a record that the fake CUPTI delivers to the collector.
template <typename Record>
Record make(CUpti_ActivityKind kind) {
  Record record{};
  record.kind = kind;
  return record;
}
template <typename Record>
void put(const Record& record) {
  CHECK(fake_record(&record, sizeof record));
}

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/cutrace-test-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::vector<std::string> captures() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path)) found.push_back(entry.path());
    return found;
  }
  std::string only() const {
    const auto found = captures();
    CHECK_EQUAL(found.size(), std::size_t{1});
    return found[0];
  }
  std::string options(const std::string& more = "") const { return "directory=" + path + ";" + more; }

  std::string path;
};
