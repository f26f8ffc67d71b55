#include "counters.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "nvtx.h"
#include "registry.h"
#include "time_domains.h"

namespace cutrace::nvtx {
namespace {

struct CounterRegistrations : Registrations<Counter> {
  std::uint64_t next_id = NVTX_COUNTER_ID_DYNAMIC_START;
};
CounterRegistrations& counters = *new CounterRegistrations;

std::string counter_name(const char* name) { return name != nullptr ? std::string(name, strnlen(name, Ring::kLongestText)) : std::string(); }

}  // namespace

std::uint64_t register_counter(std::uint16_t domain, const nvtxCounterAttr_t* attributes) {
  if (attributes == nullptr || attributes->structSize < sizeof *attributes) return NVTX_COUNTER_ID_NONE;
  const std::uint64_t given = attributes->counterId;
  const bool allowed = given >= NVTX_COUNTER_ID_STATIC_START && given < NVTX_COUNTER_ID_DYNAMIC_START;
  if (given != NVTX_COUNTER_ID_NONE && !allowed) return NVTX_COUNTER_ID_NONE;
  std::optional<std::uint64_t> clock;
  std::uint64_t id = NVTX_COUNTER_ID_NONE;
  {
    const std::lock_guard lock(registry_guard().mutex);
    try {
      auto counter = std::make_unique<Counter>();
      counter->domain = domain;
      counter->id = given != NVTX_COUNTER_ID_NONE ? given : counters.next_id++;
      counter->name = counter_name(attributes->name);
      counter->schema = attributes->schemaId;
      counter->semantics = read_semantics(attributes->semantics);
      if (counter->semantics.scope == NVTX_SCOPE_NONE) counter->semantics.scope = attributes->scopeId;
      if (!registry_guard().take(sizeof(Counter) + counter->name.size() + counter->semantics.unit.size())) return NVTX_COUNTER_ID_NONE;
      clock = counter->semantics.time_domain;
      id = counter->id;
      counters.add(*counter.release());
    } catch (const std::bad_alloc&) {
      return ++registry_guard().refused, NVTX_COUNTER_ID_NONE;
    }
  }
  if (clock) note_time(domain, *clock);
  return id;
}

const Counter* find_counter(std::uint16_t domain, std::uint64_t id) { return counters.find(domain, id); }

}  // namespace cutrace::nvtx
