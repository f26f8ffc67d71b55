#include "demangle.h"

#include <csetjmp>
#include <cstddef>

// The demangler of the C++ library, which hands out its result in parts. abi::__cxa_demangle gathers them itself and
// cannot be stopped. It is in the library's static form only, so that is what this module is linked with.
extern "C" int __gcclibcxx_demangle_callback(const char* name, void (*take)(const char*, std::size_t, void*), void* to);

namespace cutrace {
namespace {

// Templates of templates that real libraries have unfold to some ten times their mangled size.
constexpr std::size_t kLeast = 4096, kTimes = 64;

struct Plain {
  std::string text;
  std::size_t most;
  std::jmp_buf stop;
};

void take(const char* part, std::size_t size, void* to) {
  auto& plain = *static_cast<Plain*>(to);
  // The way out of the demangler: it is C, and keeps all it has on its stack.
  if (size > plain.most - plain.text.size()) std::longjmp(plain.stop, 1);
  plain.text.append(part, size);  // within what was reserved, so nothing is thrown through the demangler
}

}  // namespace

std::string demangle(const std::string& name) {
  if (name.compare(0, 2, "_Z") != 0) return name;  // the ABI's function reads "f" as a type: float
  Plain plain{{}, kLeast + kTimes * name.size(), {}};
  plain.text.reserve(plain.most);
  if (setjmp(plain.stop) != 0 || __gcclibcxx_demangle_callback(name.c_str(), take, &plain) != 0) return name;
  plain.text.shrink_to_fit();
  return std::move(plain.text);
}

}  // namespace cutrace
