#include "cupti_library.h"

#include <dlfcn.h>

namespace cutrace {
namespace {

constexpr const char* kSonames[] = {"libcupti.so.13", "libcupti.so.12"};

void* open_library(const std::string& wanted, std::string& error) {
  for (const char* soname : kSonames)
    if (void* handle = dlopen(soname, RTLD_NOW | RTLD_NOLOAD)) return handle;
  std::string reasons;
  if (!wanted.empty()) {
    if (void* handle = dlopen(wanted.c_str(), RTLD_NOW)) return handle;
    if (const char* reason = dlerror()) reasons = reason;
  }
  for (const char* soname : kSonames) {
    if (void* handle = dlopen(soname, RTLD_NOW)) return handle;
    if (const char* reason = dlerror()) reasons += (reasons.empty() ? "" : "; ") + std::string(reason);
  }
  error = "libcupti was not found (" + reasons + "); install it with: pip install nvidia-cuda-cupti";
  return nullptr;
}

}  // namespace

bool CuptiLibrary::load(const std::string& wanted, std::string& error) {
  void* handle = open_library(wanted, error);
  if (handle == nullptr) return false;
  std::string missing;
#define CUTRACE_LOAD(name) name = reinterpret_cast<decltype(name)>(dlsym(handle, "cupti" #name));
#define CUTRACE_REQUIRE(name) \
  CUTRACE_LOAD(name)          \
  if (name == nullptr && missing.empty()) missing = "cupti" #name;
  CUTRACE_CUPTI_REQUIRED(CUTRACE_REQUIRE)
  CUTRACE_CUPTI_OPTIONAL(CUTRACE_LOAD)
#undef CUTRACE_REQUIRE
#undef CUTRACE_LOAD
  if (!missing.empty()) {
    error = "the loaded libcupti has no " + missing + "; use CUPTI 12.0 or later";
    return false;
  }
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(GetVersion), &where) != 0 && where.dli_fname != nullptr) path = where.dli_fname;
  GetVersion(&version);
  return true;
}

std::string CuptiLibrary::error_name(CUptiResult result) const {
  const char* text = nullptr;
  if (GetResultString != nullptr && GetResultString(result, &text) == CUPTI_SUCCESS && text != nullptr) return text;
  return "CUPTI error " + std::to_string(static_cast<int>(result));
}

}  // namespace cutrace
