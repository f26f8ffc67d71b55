#include "session.h"

#include <dlfcn.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "../common/text.h"

namespace cutrace {

Session& session = *new Session;

Session::Session() {
  const char* const given = std::getenv("CUTRACE_PROFILE");
  if (given == nullptr) return;
  folder = given;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen((folder + "/plan").c_str(), "r"), &std::fclose);
  std::vector<std::string> texts;
  char* text = nullptr;
  std::size_t room = 0;
  while (file != nullptr && getdelim(&text, &room, '\0', file.get()) >= 0) texts.emplace_back(text);
  std::free(text);
  if (texts.size() < 7) {
    fail("the plan cannot be read");
    return;
  }
  if (const char* milliseconds = std::getenv("CUTRACE_PROFILE_PATIENCE_MS"))
    patience = std::chrono::milliseconds(std::strtoul(milliseconds, nullptr, 10));
  wanted_cupti = texts[0];
  subject = texts[1];
  for (std::string_view line = texts[2]; !line.empty();) metrics.emplace_back(next_word(line, ","));
  flushes_caches = texts[3] == "flush";
  for (std::size_t at = 4; at + 2 < texts.size(); at += 3)
    plan.push_back({std::strtoul(texts[at].c_str(), nullptr, 10), texts[at + 1], texts[at + 2]});
}

bool Session::subscribe(CUpti_CallbackFunc callback, void* self) {
  std::string error;
  if (!cupti.load(wanted_cupti, error)) return fail(error), false;
  void* const handle = dlopen(cupti.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  bool complete = handle != nullptr;
#define CUTRACE_LOAD(name)                                                 \
  if (handle != nullptr) {                                                 \
    name = reinterpret_cast<decltype(name)>(dlsym(handle, "cupti" #name)); \
    complete = complete && name != nullptr;                                \
  }
  CUTRACE_PROFILER_FUNCTIONS(CUTRACE_LOAD)
#undef CUTRACE_LOAD
  if (!complete) return fail("this libcupti has no range profiler; use CUPTI 12.6 or later"), false;
  const CUptiResult result = cupti.Subscribe(&subscriber, callback, self);
  if (result != CUPTI_SUCCESS) fail("CUPTI is held by another tool: " + cupti.error_name(result));
  return result == CUPTI_SUCCESS;
}

void Session::write(std::string line, const std::vector<double>& values) const {
  for (const double value : values) {
    char digits[32];
    // Not printf(), which writes a comma in many locales.
    line += '\t';
    line.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  const std::string path = folder + "/" + std::to_string(getpid()) + ".values";
  if (std::FILE* file = std::fopen(path.c_str(), "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

}  // namespace cutrace
