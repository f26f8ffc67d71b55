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
  Collector();
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    CHECK(function != nullptr);
  }
  // Starts a recording. Then simulates the program's first CUDA call: cuInit() and a context.
  void begin(const std::string& options);
  struct cutrace_stats statistics();

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
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::vector<std::string> captures() const;
  std::string only() const;
  std::string options(const std::string& more = "") const;

  std::string path;
};
