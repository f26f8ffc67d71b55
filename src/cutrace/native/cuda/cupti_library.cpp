#include "cupti_library.h"

#include <dlfcn.h>

#include <algorithm>

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
#define CUTRACE_LOAD_SHARED(name, parameters) \
  of_several.name = reinterpret_cast<decltype(of_several.name)>(dlsym(handle, "cupti" #name "_v2"));
  CUTRACE_CUPTI_SHARED(CUTRACE_LOAD_SHARED)
#undef CUTRACE_LOAD_SHARED
  if (!missing.empty()) {
    error = "the loaded libcupti has no " + missing + "; use CUPTI 12.0 or later";
    return false;
  }
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(GetVersion), &where) != 0 && where.dli_fname != nullptr) path = where.dli_fname;
  GetVersion(&version);
  list_api_functions();
  return true;
}

void CuptiLibrary::list_api_functions() {
  constexpr CUpti_CallbackId kLast = 4000, kGap = 100;  // ids have gaps
  if (GetCallbackName == nullptr) return;
  for (const CUpti_CallbackDomain domain : {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API})
    for (CUpti_CallbackId id = 1, latest = 0; id < kLast && id - latest <= kGap; ++id) {
      const char* name = nullptr;
      if (GetCallbackName(domain, id, &name) != CUPTI_SUCCESS || name == nullptr) continue;
      api_functions_.push_back({domain, id, name});
      latest = id;
    }
}

std::string_view CuptiLibrary::api_function_name(CUpti_CallbackDomain domain, CUpti_CallbackId id) const {
  const auto it = std::ranges::find_if(api_functions_, [&](const ApiFunction& f) { return f.domain == domain && f.id == id; });
  return it != api_functions_.end() ? it->name : std::string_view();
}

CUptiResult CuptiLibrary::enable(CUpti_ActivityKind kind, bool dump) const {
  const CUpti_SubscriberHandle us = sharing.load();
  if (us != nullptr) return (dump ? of_several.ActivityEnableAndDump : of_several.ActivityEnable)(us, kind, nullptr);
  return (dump && ActivityEnableAndDump != nullptr ? ActivityEnableAndDump : ActivityEnable)(kind);
}

std::string CuptiLibrary::error_name(CUptiResult result) const {
  const char* text = nullptr;
  if (GetResultString != nullptr && GetResultString(result, &text) == CUPTI_SUCCESS && text != nullptr) return text;
  return "CUPTI error " + std::to_string(static_cast<int>(result));
}

}  // namespace cutrace
