#include "cupti_library.h"

#include <dlfcn.h>

#include <type_traits>

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
  const auto load_shared = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
  };
  load_shared(of_several.Subscribe, "cuptiSubscribe_v2");
  load_shared(of_several.ActivityRegisterCallbacks, "cuptiActivityRegisterCallbacks_v2");
  load_shared(of_several.ActivityEnable, "cuptiActivityEnable_v2");
  load_shared(of_several.ActivityDisable, "cuptiActivityDisable_v2");
  load_shared(of_several.ActivityEnableRuntimeApi, "cuptiActivityEnableRuntimeApi_v2");
  load_shared(of_several.ActivityEnableDriverApi, "cuptiActivityEnableDriverApi_v2");
  load_shared(of_several.ActivityGetNextRecord, "cuptiActivityGetNextRecord_v2");
  load_shared(of_several.ActivityGetNumDroppedRecords, "cuptiActivityGetNumDroppedRecords_v2");
  load_shared(of_several.ActivitySetAttribute, "cuptiActivitySetAttribute_v2");
  if (!missing.empty()) {
    error = "the loaded libcupti has no " + missing + "; use CUPTI 12.0 or later";
    return false;
  }
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(GetVersion), &where) != 0 && where.dli_fname != nullptr) path = where.dli_fname;
  GetVersion(&version);
  return true;
}

CUptiResult CuptiLibrary::enable(CUpti_ActivityKind kind) const {
  const CUpti_SubscriberHandle us = sharing.load();
  return us != nullptr ? of_several.ActivityEnable(us, kind, nullptr) : ActivityEnable(kind);
}

CUptiResult CuptiLibrary::disable(CUpti_ActivityKind kind) const {
  const CUpti_SubscriberHandle us = sharing.load();
  return us != nullptr ? of_several.ActivityDisable(us, kind, nullptr) : ActivityDisable(kind);
}

CUptiResult CuptiLibrary::enable_call(CUpti_CallbackDomain domain, CUpti_CallbackId id, bool on) const {
  const CUpti_SubscriberHandle us = sharing.load();
  const bool runtime = domain == CUPTI_CB_DOMAIN_RUNTIME_API;
  if (us != nullptr) return (runtime ? of_several.ActivityEnableRuntimeApi : of_several.ActivityEnableDriverApi)(us, id, on);
  return (runtime ? ActivityEnableRuntimeApi : ActivityEnableDriverApi)(id, on);
}

CUptiResult CuptiLibrary::next_record(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) const {
  const CUpti_SubscriberHandle us = sharing.load();
  return us != nullptr ? of_several.ActivityGetNextRecord(us, buffer, valid, record)
                       : ActivityGetNextRecord(buffer, valid, record);
}

CUptiResult CuptiLibrary::take_dropped(std::size_t* dropped) const {
  const CUpti_SubscriberHandle us = sharing.load();
  if (us != nullptr) return of_several.ActivityGetNumDroppedRecords(us, nullptr, 0, dropped);
  return ActivityGetNumDroppedRecords != nullptr ? ActivityGetNumDroppedRecords(nullptr, 0, dropped) : CUPTI_ERROR_NOT_SUPPORTED;
}

CUptiResult CuptiLibrary::set_attribute(CUpti_ActivityAttribute attribute, std::size_t* size, void* value) const {
  const CUpti_SubscriberHandle us = sharing.load();
  if (us != nullptr) return of_several.ActivitySetAttribute(us, attribute, size, value);
  return ActivitySetAttribute != nullptr ? ActivitySetAttribute(attribute, size, value) : CUPTI_ERROR_NOT_SUPPORTED;
}

std::string CuptiLibrary::error_name(CUptiResult result) const {
  const char* text = nullptr;
  if (GetResultString != nullptr && GetResultString(result, &text) == CUPTI_SUCCESS && text != nullptr) return text;
  return "CUPTI error " + std::to_string(static_cast<int>(result));
}

}  // namespace cutrace
