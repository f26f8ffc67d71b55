// A test is a function. The first argument of a test program names the test to run.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

// The C library frees thread-local memory of a late-loaded library when it reuses the stack for a new thread.
// ThreadSanitizer sees no synchronization with the earlier thread.
extern "C" __attribute__((weak)) const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }

namespace check {

struct Register {
  Register(const char* name, void (*body)());
};

// Printed with a failure: the seed and the actions of a random test.
inline std::string (*about)() = nullptr;

[[noreturn]] void failed(const char* file, int line, const std::string& what);

template <typename A, typename B>  // by value: a packed field cannot bind to a reference
void equal(A a, B b, const char* text, const char* file, int line) {
  if (a == b) return;
  if constexpr (requires { std::cerr << a << b; }) std::cerr << "left: " << a << "\nright: " << b << "\n";
  failed(file, line, text);
}

// The function main() of a test program.
int main(int argc, char** argv);

}  // namespace check

#define TEST(name)                                           \
  static void test_##name();                                 \
  static const check::Register reg_##name(#name, test_##name); \
  static void test_##name()
// A test with concurrent threads of the program. ThreadSanitizer runs only these tests.
#define TEST_OF_THREADS(name) TEST(name)

#define CHECK(condition) \
  do {                   \
    if (!(condition)) check::failed(__FILE__, __LINE__, #condition); \
  } while (0)
#define CHECK_EQUAL(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
