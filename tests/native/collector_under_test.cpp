#include "collector_under_test.h"

Collector::Collector() {
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

void Collector::begin(const std::string& options) {
  if (start((options + ";cupti=" + fake_path()).c_str()) != 0) check::failed(__FILE__, __LINE__, last_error());
  CHECK_EQUAL(inject(), 1);
  fake_create_context();
  fake_load_module();
}

struct cutrace_stats Collector::statistics() {
  struct cutrace_stats s {};
  CHECK_EQUAL(stats(&s, sizeof s), 0);
  return s;
}

Folder::Folder() {
  char name[] = "/tmp/cutrace-test-XXXXXX";
  CHECK(mkdtemp(name) != nullptr);
  path = name;
}

Folder::~Folder() { std::filesystem::remove_all(path); }

std::vector<std::string> Folder::captures() const {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(path)) found.push_back(entry.path());
  return found;
}

std::string Folder::only() const {
  const auto found = captures();
  CHECK_EQUAL(found.size(), std::size_t{1});
  return found[0];
}

std::string Folder::options(const std::string& more) const { return "directory=" + path + ";" + more; }
