// Interning tables for strings and launch configurations. Writer thread only; any thread may use the hash functions.
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blocked_signals.h"
#include "cutrace/rows.h"

namespace cutrace {

// A random seed for each process, so that a program cannot choose keys that collide.
inline const std::array<std::uint64_t, 2> hash_seed = [] {
  const BlockedCancellation whole;  // a call of the program may load the library
  std::array<std::uint64_t, 2> seed{};
  if (::getrandom(seed.data(), sizeof seed, GRND_NONBLOCK) != sizeof seed)  // too early in the boot
    seed = {reinterpret_cast<std::uintptr_t>(&hash_seed) * 0x9E3779B97F4A7C15u, ::getpid() * 0xD1B54A32D192ED03u};
  return seed;
}();

inline std::uint64_t hash_mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ hash_seed[0]) * (b ^ hash_seed[1]);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t hash_bytes(const void* data, std::size_t size) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t h = hash_mix(size, 0x2545F4914F6CDD1Du);
  std::uint64_t a = 0, b = 0;
  for (; size >= 16; p += 16, size -= 16) {
    std::memcpy(&a, p, 8);
    std::memcpy(&b, p + 8, 8);
    h = hash_mix(h ^ a, b);
  }
  a = b = 0;
  std::memcpy(&a, p, size < 8 ? size : 8);
  if (size > 8) std::memcpy(&b, p + 8, size - 8);
  return hash_mix(h ^ a, b ^ size);
}

// For std::unordered_map with integers, pointers or strings as keys.
struct SeededHash {
  using is_transparent = void;
  std::size_t operator()(std::uint64_t key) const { return hash_mix(key, 0); }
  std::size_t operator()(const void* key) const { return hash_mix(reinterpret_cast<std::uintptr_t>(key), 0); }
  std::size_t operator()(std::string_view text) const { return hash_bytes(text.data(), text.size()); }
};

// Strings by id. The owner writes them into the file.
class StringTable {
 public:
  explicit StringTable(std::size_t limit_bytes) : limit_(limit_bytes) {}

  // A string and its id. Valid until the next clear().
  using Entry = std::pair<const std::string, std::uint32_t>;

  // The id of `text`, from 1; 0 for an empty string. A string longer than kLongest is truncated.
  std::uint32_t intern(std::string_view text) { return text.empty() ? 0 : find(text).second; }
  const Entry& find(std::string_view text) {
    text = text.substr(0, kLongest);
    if (const auto it = ids_.find(text); it != ids_.end()) return *it;
    const std::size_t heads = heads_.size(), bytes = bytes_.size();
    try {
      heads_.insert(heads_.end(), {next_id_, static_cast<std::uint32_t>(text.size())});
      bytes_.insert(bytes_.end(), text.begin(), text.end());
      const auto it = ids_.emplace(text, next_id_).first;
      text_bytes_ += text.size();
      ++next_id_;
      return *it;
    } catch (const std::bad_alloc&) {  // undo both inserts: a failing recording still writes its pending strings
      heads_.resize(heads);
      bytes_.resize(bytes);
      throw;
    }
  }

  // Whether the table exceeds its limit. The owner then calls clear(), and strings get new ids.
  bool full() const { return memory() > limit_; }
  void clear() {
    ids_ = {};
    text_bytes_ = 0;
  }
  std::size_t memory() const { return text_bytes_ + ids_.size() * (sizeof(Entry) + 32) + ids_.bucket_count() * sizeof(void*); }

  // Strings interned since the last written(): the payload of a strings block is `heads`, then `bytes`.
  const std::vector<std::uint32_t>& pending_heads() const { return heads_; }  // id, length, id, length, ...
  const std::vector<char>& pending_bytes() const { return bytes_; }
  void written() {
    heads_.clear();
    bytes_.clear();
  }

  static constexpr std::size_t kLongest = 64 << 10;

 private:
  std::size_t limit_;
  std::unordered_map<std::string, std::uint32_t, SeededHash, std::equal_to<>> ids_;
  std::size_t text_bytes_ = 0;
  std::uint32_t next_id_ = 1;
  std::vector<std::uint32_t> heads_;
  std::vector<char> bytes_;
};

// Launch configurations by id. A training loop has a few hundred and launches them millions of times.
class LaunchTable {
 public:
  explicit LaunchTable(std::size_t limit_rows) : limit_(limit_rows) { clear(); }

  // The id of a configuration. `row` has all fields except `id` and `name`, which are 0; the argument `name` is CUPTI's. A new
  // configuration is passed to add(row) with both fields set.
  template <typename Add>
  std::uint32_t intern(const rows::Launches& row, const char* name, StringTable& strings, Add&& add) {
    const std::uint64_t hash = hash_mix(hash_bytes(&row, sizeof row), reinterpret_cast<std::uintptr_t>(name));
    Recent& recent = recent_[hash % kRecent];
    // Compare the string too: another name may have the address of an unloaded module's name.
    if (recent.id != 0 && recent.pointer == name && std::memcmp(&recent.row, &row, sizeof row) == 0 &&
        (name == nullptr || std::strcmp(name, recent.text) == 0))
      return recent.id;
    const StringTable::Entry* text = name != nullptr && *name != '\0' ? &strings.find(name) : nullptr;
    rows::Launches full = row;
    full.name = text ? text->second : 0;
    const auto [it, inserted] = ids_.try_emplace(full, next_id_);
    if (inserted) {
      full.id = next_id_++;
      add(full);
    }
    // A truncated name never compares equal, so it always takes this path.
    recent = {row, name, text ? text->first.c_str() : "", it->second};
    return it->second;
  }

  bool full() const { return ids_.size() >= limit_; }
  void clear() {
    ids_.clear();
    recent_.assign(kRecent, Recent{});
  }
  std::size_t memory() const { return ids_.size() * (sizeof(rows::Launches) + 32) + kRecent * sizeof(Recent); }

 private:
  static constexpr std::size_t kRecent = 2048;

  struct Recent {
    rows::Launches row{};
    const char* pointer = nullptr;
    const char* text = nullptr;  // in the string table
    std::uint32_t id = 0;
  };
  struct Hash {
    std::size_t operator()(const rows::Launches& row) const { return hash_bytes(&row, sizeof row); }
  };
  struct Equal {
    bool operator()(const rows::Launches& a, const rows::Launches& b) const { return std::memcmp(&a, &b, sizeof a) == 0; }
  };

  std::size_t limit_;
  std::unordered_map<rows::Launches, std::uint32_t, Hash, Equal> ids_;
  std::vector<Recent> recent_;
  std::uint32_t next_id_ = 1;
};

}  // namespace cutrace
