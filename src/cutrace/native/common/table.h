// The hash table of this module. Hashes depend on a random secret of the process, because a hostile file could choose keys that
// collide.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cutrace {

namespace hash_detail {

inline std::uint64_t random_word() {
  try {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  } catch (const std::exception&) {  // without a random source, use the time and an address
    const auto now = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return now * 0x9E3779B97F4A7C15u ^ reinterpret_cast<std::uintptr_t>(&now);
  }
}

// A factor has to be odd.
inline const std::uint64_t kSecret = random_word(), kSecretFactor = random_word() | 1;

inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t add(std::uint64_t hash, std::uint64_t word) { return fold(hash ^ word, kSecretFactor); }

// Fold twice, because one product maps an arithmetic progression of keys to another progression. That uses few slots for some
// secrets.
inline std::uint64_t finish(std::uint64_t hash) { return fold(hash, 0x9E3779B97F4A7C15u); }

template <typename T>
std::uint64_t load(const char* p) {
  T word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

}  // namespace hash_detail

// With a std::integral_constant as `words`, the compiler unrolls the loop.
template <typename Words>
std::uint64_t hash_of(const std::uint64_t* key, Words words) {
  std::uint64_t hash = hash_detail::kSecret;
  for (std::size_t i = 0; i < words; ++i) hash = hash_detail::add(hash, key[i]);
  return hash_detail::finish(hash);
}

inline std::uint64_t hash_of(std::uint64_t key) { return hash_of(&key, std::integral_constant<std::size_t, 1>()); }

inline std::uint64_t hash_of(std::string_view text) {
  using namespace hash_detail;
  const char* p = text.data();
  const char* const end = p + text.size();
  std::uint64_t hash = kSecret ^ text.size(), last = 0;
  if (text.size() >= 8) {
    for (; end - p > 8; p += 8) hash = add(hash, load<std::uint64_t>(p));
    last = load<std::uint64_t>(end - 8);
  } else if (text.size() >= 4) {
    last = load<std::uint32_t>(p) << 32 | load<std::uint32_t>(end - 4);
  } else if (!text.empty()) {
    last = load<std::uint8_t>(p) << 16 | load<std::uint8_t>(p + text.size() / 2) << 8 | load<std::uint8_t>(end - 1);
  }
  return finish(add(hash, last));
}

// Numbers keys from 0 in the order of their first appearance. The caller stores the keys. same(number) compares the searched key
// with the stored key of this number.
class Table {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  template <typename Same>
  std::uint32_t find(std::uint64_t hash, const Same& same) const {
    const auto low = static_cast<std::uint32_t>(hash);
    const Slot* const slots = slots_.data();
    for (std::size_t at = low & mask_;; at = (at + 1) & mask_) {
      const Slot slot = slots[at];
      if (slot.number == kNone || (slot.hash == low && same(slot.number))) return slot.number;
    }
  }

  // The number of a key; calls keep() for a new key.
  template <typename Same, typename Keep>
  std::uint32_t add(std::uint64_t hash, const Same& same, const Keep& keep) {
    const std::uint32_t number = find(hash, same);
    if (number != kNone) [[likely]] return number;
    keep();
    return insert(static_cast<std::uint32_t>(hash));
  }

  std::uint32_t size() const { return size_; }

 private:
  struct Slot {
    std::uint32_t hash = 0, number = kNone;
  };

  [[gnu::noinline]] std::uint32_t insert(std::uint32_t hash) {
    put({hash, size_++});
    if (std::size_t{size_} * 2 > mask_) {
      const std::vector<Slot> old = std::move(slots_);
      slots_ = std::vector<Slot>(old.size() * 2);
      mask_ = slots_.size() - 1;
      for (const Slot& slot : old)
        if (slot.number != kNone) put(slot);
    }
    return size_ - 1;
  }

  void put(Slot slot) {
    std::size_t at = slot.hash & mask_;
    while (slots_[at].number != kNone) at = (at + 1) & mask_;
    slots_[at] = slot;
  }

  std::size_t mask_ = 15;
  std::vector<Slot> slots_ = std::vector<Slot>(mask_ + 1);
  std::uint32_t size_ = 0;
};

// Values by key, created at the first access. Entries are in the order of their creation, so that results do not depend on the
// secret. A new entry may move the others.
template <typename Value>
class Map {
 public:
  // The index of a key's value, which never changes.
  std::size_t index(std::uint64_t key) {
    return numbers_.add(hash_of(key), same(key), [&] { entries_.emplace_back(key, Value{}); });
  }
  Value& operator[](std::uint64_t key) { return entries_[index(key)].second; }
  Value& at(std::size_t index) { return entries_[index].second; }
  // The index of a key's value; Table::kNone for a key without one.
  std::uint32_t find_index(std::uint64_t key) const { return numbers_.find(hash_of(key), same(key)); }
  // Null for a key without a value.
  const Value* find(std::uint64_t key) const {
    const std::uint32_t number = find_index(key);
    return number == Table::kNone ? nullptr : &entries_[number].second;
  }
  const std::vector<std::pair<std::uint64_t, Value>>& entries() const { return entries_; }

 private:
  auto same(std::uint64_t key) const {
    return [this, key](std::uint32_t number) { return entries_[number].first == key; };
  }

  std::vector<std::pair<std::uint64_t, Value>> entries_;
  Table numbers_;
};

}  // namespace cutrace
