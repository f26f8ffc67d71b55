#include <deque>
#include <new>
#include <string>

#include "nvtx.h"
#include "registry.h"

namespace cutrace::nvtx {
namespace {

// Never destroyed: programs call NVTX during exit too.
struct Registry : RegistryGuard {
  std::deque<std::string> strings;  // a deque: views of its elements stay valid
  std::deque<std::string> domains;
};
Registry& registry = *new Registry;

template <typename Number>
Number add(std::deque<std::string>& list, std::string_view text, std::size_t largest) {
  const std::lock_guard lock(registry.mutex);
  try {
    if (list.size() >= largest) return ++registry.refused, Number{0};
    if (!registry.take(text.size() + sizeof(std::string))) return Number{0};
    list.emplace_back(text);
  } catch (const std::bad_alloc&) {
    return ++registry.refused, Number{0};
  }
  return static_cast<Number>(list.size());
}

std::string_view look_up(const std::deque<std::string>& list, std::size_t number) {
  const std::lock_guard lock(registry.mutex);
  return number >= 1 && number <= list.size() ? std::string_view(list[number - 1]) : std::string_view();
}

}  // namespace

RegistryGuard& registry_guard() { return registry; }

std::uint32_t register_string(std::string_view text) {
  return add<std::uint32_t>(registry.strings, text, 0xFFFFFFF0u);
}
std::uint16_t register_domain(std::string_view name) { return add<std::uint16_t>(registry.domains, name, 0xFFF0u); }
std::string_view registered_string(std::uint32_t number) { return look_up(registry.strings, number); }
std::string_view domain_name(std::uint16_t number) { return look_up(registry.domains, number); }
std::uint64_t registrations_refused() {
  const std::lock_guard lock(registry.mutex);
  return registry.refused;
}

void before_fork() { registry.mutex.lock(); }
void after_fork_in_parent() { registry.mutex.unlock(); }

}  // namespace cutrace::nvtx
