// The memory that the program has allocated in this recording and not yet freed, by address.
//
// Callbacks use this table on the program's threads, some of them inside malloc(). So the table gets its memory directly from the
// system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace cutrace {

// The kind of an address or a handle. Each space may use the same number.
enum class Space : std::uint8_t {
  none,
  pointer,     // memory of a device or of the host
  registered,  // memory of the host that the program has pinned
  array,       // a CUarray or CUmipmappedArray
  physical,    // a handle of cuMemCreate()
  mapping,     // an address that cuMemMap() has mapped
  pool,        // a CUmemoryPool that is not destroyed
  pool_base,   // a CUmemoryPool that is not destroyed, by its base address
  module,      // CUPTI's id of a loaded module
};

struct Live {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  // pointer: the base of its pool, 0 for none. physical: the number of references. mapping: the handle of its physical memory.
  // pool: its base; `bytes` is its size at the last wait, 0 after a later use; `context` is the number of contexts that had ended
  // at its last use. pool_base: its handle. module: bytes of managed variables; `bytes` has the bytes of other variables.
  std::uint64_t other = 0;
  std::uint16_t context = 0;
  std::uint16_t device = 0;
  Space space = Space::none;
  std::uint8_t memory = 0;     // CUpti_ActivityMemoryKind
  std::uint8_t pool_type = 0;  // CUpti_ActivityMemoryPoolType, 0 outside pools
};
static_assert(sizeof(Live) == 32);

// A hash table with open addressing. It has no lock.
class LiveMemory {
 public:
  LiveMemory() = default;
  ~LiveMemory() { release(); }
  LiveMemory(const LiveMemory&) = delete;
  LiveMemory& operator=(const LiveMemory&) = delete;

  // Removes all entries. From now on the table takes at most `limit` bytes.
  void reset(std::size_t limit);
  // Adds or replaces an entry. False when there is no room.
  bool add(const Live& entry);
  // Valid until the table changes; null when unknown.
  Live* find(Space space, std::uint64_t address);
  // Removes and returns an entry.
  std::optional<Live> take(Space space, std::uint64_t address);
  // Removes the entries that satisfy fits(entry), and calls visit(entry) for each of them.
  template <typename Fits, typename Visit>
  void take_all(Fits&& fits, Visit&& visit) {
    for (std::size_t slot = 0; slot < capacity_; ++slot) {
      while (slots_[slot].space != Space::none && fits(slots_[slot])) {
        const Live taken = slots_[slot];
        remove(slot);  // may move another entry into this slot
        visit(taken);
      }
    }
  }
  // Calls visit(entry), which must not change the space and the address.
  template <typename Visit>
  void each(Visit&& visit) {
    for (std::size_t slot = 0; slot < capacity_; ++slot)
      if (slots_[slot].space != Space::none) visit(slots_[slot]);
  }
  std::size_t size() const { return size_; }
  std::size_t memory() const { return capacity_ * sizeof(Live); }

 private:
  static constexpr std::size_t kFirstCapacity = 128;

  std::size_t first_slot(Space space, std::uint64_t address) const;
  // The slot of an entry, or the empty slot for a new one.
  std::size_t slot_of(Space space, std::uint64_t address) const;
  void remove(std::size_t slot);
  bool has_room() const { return size_ + 1 <= capacity_ / 8 * 7; }
  bool grow();
  void release();

  Live* slots_ = nullptr;
  std::size_t capacity_ = 0;  // a power of two
  std::size_t size_ = 0;
  std::size_t limit_ = 0;
};

}  // namespace cutrace
