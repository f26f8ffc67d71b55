#include "live_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/interning.h"

namespace cutrace {

void LiveMemory::reset(std::size_t limit) {
  release();
  limit_ = limit;
}

void LiveMemory::release() {
  if (slots_ != nullptr) ::munmap(slots_, memory());
  slots_ = nullptr;
  capacity_ = 0;
  size_ = 0;
}

std::size_t LiveMemory::first_slot(Space space, std::uint64_t address) const {
  return hash_mix(address, static_cast<std::uint64_t>(space)) & (capacity_ - 1);
}

std::size_t LiveMemory::slot_of(Space space, std::uint64_t address) const {
  std::size_t slot = first_slot(space, address);
  while (slots_[slot].space != Space::none && (slots_[slot].space != space || slots_[slot].address != address))
    slot = (slot + 1) & (capacity_ - 1);
  return slot;
}

bool LiveMemory::grow() {
  const std::size_t capacity = std::max(kFirstCapacity, 2 * capacity_);
  if (capacity * sizeof(Live) > limit_) return false;
  void* const memory = ::mmap(nullptr, capacity * sizeof(Live), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  Live* const before = slots_;
  const std::size_t count = capacity_;
  slots_ = static_cast<Live*>(memory);  // zeros are empty slots
  capacity_ = capacity;
  for (std::size_t slot = 0; slot < count; ++slot)
    if (before[slot].space != Space::none) slots_[slot_of(before[slot].space, before[slot].address)] = before[slot];
  if (before != nullptr) ::munmap(before, count * sizeof(Live));
  return true;
}

bool LiveMemory::add(const Live& entry) {
  if (!has_room() && !grow()) {
    Live* const known = find(entry.space, entry.address);
    if (known == nullptr) return false;
    *known = entry;
    return true;
  }
  Live& slot = slots_[slot_of(entry.space, entry.address)];
  if (slot.space == Space::none) ++size_;
  slot = entry;
  return true;
}

Live* LiveMemory::find(Space space, std::uint64_t address) {
  if (size_ == 0) return nullptr;
  Live& slot = slots_[slot_of(space, address)];
  return slot.space != Space::none ? &slot : nullptr;
}

std::optional<Live> LiveMemory::take(Space space, std::uint64_t address) {
  if (size_ == 0) return std::nullopt;
  const std::size_t slot = slot_of(space, address);
  if (slots_[slot].space == Space::none) return std::nullopt;
  const Live taken = slots_[slot];
  remove(slot);
  return taken;
}

// Moves later entries back into the gap, because a search would end at an empty slot.
void LiveMemory::remove(std::size_t slot) {
  const std::size_t mask = capacity_ - 1;
  std::size_t gap = slot;
  for (std::size_t next = (gap + 1) & mask; slots_[next].space != Space::none; next = (next + 1) & mask) {
    const std::size_t first = first_slot(slots_[next].space, slots_[next].address);
    const bool reaches_gap = ((next - first) & mask) >= ((next - gap) & mask);
    if (!reaches_gap) continue;
    slots_[gap] = slots_[next];
    gap = next;
  }
  slots_[gap] = Live{};
  --size_;
}

}  // namespace cutrace
