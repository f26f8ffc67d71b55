// Allocations of the collector that fail on request of a test. The program defines the allocation functions, because the
// collector's library calls the program's functions: operator new with sanitizers, malloc() without.
#include <dlfcn.h>
#include <link.h>
#include <sys/prctl.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "fake_system.h"

namespace {

struct Shortage {
  std::atomic<std::int64_t> before{0}, count{0};
  std::atomic<bool> own_threads{true};
  std::atomic<std::uintptr_t> begin{0}, end{0};  // of the collector's code
  std::atomic<std::uint64_t> failed{0};
};
constinit Shortage shortage;

int find_collector(dl_phdr_info* object, std::size_t, void*) {
  if (std::string_view(object->dlpi_name).find("cutrace_collector") == std::string_view::npos) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
    shortage.begin = object->dlpi_addr + segment.p_vaddr;
    shortage.end = object->dlpi_addr + segment.p_vaddr + segment.p_memsz;
  }
  return 1;
}

bool fails(const void* caller) {
  if (shortage.count.load(std::memory_order_relaxed) <= 0) return false;
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  if (at < shortage.begin.load() || at >= shortage.end.load()) return false;
  char thread[16] = "";
  prctl(PR_GET_NAME, thread);
  if (shortage.own_threads.load() && std::strncmp(thread, "cutrace", 7) != 0) return false;
  if (shortage.before.fetch_sub(1) > 0) return false;
  if (shortage.count.fetch_sub(1) <= 0) return false;
  shortage.failed.fetch_add(1);
  return true;
}

}  // namespace

extern "C" void fault_allocations(std::int64_t before, std::int64_t count, bool own_threads) {
  shortage.count = 0;
  if (count != 0) dl_iterate_phdr(find_collector, nullptr);
  shortage.before = before;
  shortage.own_threads = own_threads;
  shortage.count = count;
}
extern "C" std::uint64_t fault_allocations_failed() { return shortage.failed.load(); }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
namespace {

void* allocate(std::size_t size, const void* caller) {
  void* memory = fails(caller) ? nullptr : std::malloc(size != 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Defines all variants, because a sanitizer's variants would reject memory from here.
void* operator new(std::size_t size) { return allocate(size, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return allocate(size, __builtin_return_address(0)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return fails(__builtin_return_address(0)) ? nullptr : std::malloc(size != 0 ? size : 1);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return fails(__builtin_return_address(0)) ? nullptr : std::malloc(size != 0 ? size : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
#else
extern "C" void* __libc_malloc(std::size_t size);
extern "C" __attribute__((visibility("default"))) void* malloc(std::size_t size) noexcept {
  if (!fails(__builtin_return_address(0))) return __libc_malloc(size);
  errno = ENOMEM;
  return nullptr;
}
#endif
