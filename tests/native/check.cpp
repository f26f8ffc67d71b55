#include "check.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace check {
namespace {

struct Test {
  const char* name;
  void (*body)();
};
std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

}  // namespace

Register::Register(const char* name, void (*body)()) { tests().push_back({name, body}); }

void failed(const char* file, int line, const std::string& what) {
  std::cerr << file << ":" << line << ": " << what << std::endl;
  if (about != nullptr) std::cerr << about() << std::endl;
  std::_Exit(1);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    for (const Test& test : tests()) std::printf("%s\n", test.name);
    return 0;
  }
  for (const Test& test : tests()) {
    if (std::strcmp(test.name, argv[1]) != 0) continue;
    test.body();
    return 0;
  }
  std::fprintf(stderr, "no test is called %s\n", argv[1]);
  return 2;
}

}  // namespace check
