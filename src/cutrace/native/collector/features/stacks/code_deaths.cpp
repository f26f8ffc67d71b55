#include "code_deaths.h"

#include <array>
#include <atomic>

#include "core/interning.h"
#include "python_layout.h"

namespace cutrace::python {
namespace {

using Deallocator = void (*)(void*);

// The objects that captures have read, by address, in a table of cache lines. The address determines the line of an object.
struct alignas(64) NotedCodes {
  std::array<std::atomic<std::uint64_t>, 7> codes{};
  std::atomic<std::uint64_t> overflowed{0};  // the line was full: every death in this line raises the epoch
};
constexpr std::size_t kLines = 4096;
std::array<NotedCodes, kLines> noted{};

std::atomic<std::uint32_t> epoch{1};
Deallocator* slot = nullptr;  // PyCode_Type.tp_dealloc
bool installed = false;  // on_death() is in the slot, or the function of another tool in the slot calls it
// The function that on_death() calls. It stays when Python's deallocator is put back, because another thread may be inside
// on_death().
std::atomic<Deallocator> original{nullptr};

NotedCodes& line_of(std::uint64_t code) { return noted[hash_mix(code, 1) % kLines]; }

// Replaces PyCode_Type.tp_dealloc. Callers hold Python's lock of the object's interpreter. Takes no lock and no memory.
void on_death(void* object) {
  const auto code = reinterpret_cast<std::uint64_t>(object);
  NotedCodes& line = line_of(code);
  bool was_noted = line.overflowed.load(std::memory_order_acquire) != 0;
  for (auto& place : line.codes) {
    if (place.load(std::memory_order_acquire) != code) continue;
    place.store(0, std::memory_order_release);
    was_noted = true;
  }
  if (was_noted) raise_code_epoch();
  original.load(std::memory_order_acquire)(object);
}

}  // namespace

void watch_code_deaths(void* code_type) {
  slot = reinterpret_cast<Deallocator*>(static_cast<std::uint8_t*>(code_type) + kTypeDealloc);
  for (NotedCodes& line : noted) {
    for (auto& place : line.codes) place.store(0, std::memory_order_relaxed);
    line.overflowed.store(0, std::memory_order_relaxed);
  }
  if (!installed) {
    const std::atomic_ref<Deallocator> present(*slot);
    original.store(present.load());
    present.store(on_death);
    installed = true;
  }
  raise_code_epoch();
}

void unwatch_code_deaths() {
  if (!installed) return;
  Deallocator ours = on_death;
  installed = !std::atomic_ref<Deallocator>(*slot).compare_exchange_strong(ours, original.load());
}

void note_code(std::uint64_t code) {
  NotedCodes& line = line_of(code);
  for (auto& place : line.codes)
    if (place.load(std::memory_order_acquire) == code) return;
  for (auto& place : line.codes) {
    std::uint64_t empty = 0;
    if (place.compare_exchange_strong(empty, code)) return;
  }
  line.overflowed.store(1, std::memory_order_release);
}

std::uint32_t code_epoch() { return epoch.load(std::memory_order_acquire); }
void raise_code_epoch() { epoch.fetch_add(1); }

}  // namespace cutrace::python
