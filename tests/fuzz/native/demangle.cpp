// Demangling: the length of the plain form is proportional to the length of the name.
#include "common/demangle.h"

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::string name = (input.flip() ? "_Z" : "") + input.text(20000);
  const std::string plain = cutrace::demangle(name);
  fuzz::require(plain.size() <= 4096 + 64 * name.size(), "a plain name is in proportion to the mangled one");
  return 0;
}
