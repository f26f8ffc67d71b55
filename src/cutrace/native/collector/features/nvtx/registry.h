// The registrations of a program with NVTX. They live as long as the process, because a program keeps its handles and ids for the
// next recording.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace cutrace::nvtx {

// Guards registrations and bounds their memory. fork() holds the mutex, so that no child inherits it locked.
struct RegistryGuard {
  static constexpr std::size_t kLimitBytes = std::size_t{16} << 20;

  std::mutex mutex;
  std::size_t bytes = 0;
  std::uint64_t refused = 0;

  // Under the mutex: takes memory for a registration. Beyond the limit, counts the refusal and returns false.
  bool take(std::size_t size) {
    if (bytes + size > kLimitBytes) return ++refused, false;
    bytes += size;
    return true;
  }
};
RegistryGuard& registry_guard();

// Registrations by domain and id. A look-up takes no lock, because events make look-ups. Registrations are never removed, because
// events in rings refer to them. The last registration of an id counts. `Entry` has the members domain, id and next.
template <typename Entry>
class Registrations {
 public:
  const Entry* find(std::uint16_t domain, std::uint64_t id) const {
    const Entry* entry = heads_[slot(domain, id)].load(std::memory_order_acquire);
    while (entry != nullptr && (entry->domain != domain || entry->id != id)) entry = entry->next;
    return entry;
  }
  // Under the mutex of the guard.
  void add(Entry& entry) {
    std::atomic<const Entry*>& head = heads_[slot(entry.domain, entry.id)];
    entry.next = head.load(std::memory_order_relaxed);
    head.store(&entry, std::memory_order_release);
  }

 private:
  static constexpr std::size_t kSlots = 512;

  static std::size_t slot(std::uint16_t domain, std::uint64_t id) {
    // Ids of a domain count up from a large number.
    return (id + domain * std::uint64_t{37} + (id >> 32)) % kSlots;
  }
  std::array<std::atomic<const Entry*>, kSlots> heads_{};
};

// The first id that the collector assigns.
inline constexpr std::uint64_t kFirstOwnId = std::uint64_t{1} << 32;

}  // namespace cutrace::nvtx
