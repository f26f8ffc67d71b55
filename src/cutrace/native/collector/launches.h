// Launch configurations: a training loop has a few hundred and launches them millions of times. Writer thread only.
#pragma once

#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "cutrace/rows.h"
#include "hash.h"
#include "string_table.h"

namespace cutrace {

class LaunchTable {
 public:
  explicit LaunchTable(std::size_t limit_rows) : limit_(limit_rows) { clear(); }

  // The id of a configuration. `row` holds everything but `id` and `name`, which stay 0; `name` is CUPTI's.
  // A new configuration is passed to add(row) with both filled in.
  template <typename Add>
  std::uint32_t intern(const rows::Launches& row, const char* name, StringTable& strings, Add&& add) {
    const std::uint64_t hash = hash_of(row, name);
    Recent& recent = recent_[hash % kRecent];
    // The pointer alone proves nothing: a name can move in where an unloaded module's name was.
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
    // A name that was cut never compares equal, so it takes this path each time.
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
    bool operator()(const rows::Launches& a, const rows::Launches& b) const {
      return std::memcmp(&a, &b, sizeof a) == 0;
    }
  };

  static std::uint64_t hash_of(const rows::Launches& row, const char* name) {
    return hash_mix(hash_bytes(&row, sizeof row), reinterpret_cast<std::uintptr_t>(name));
  }

  std::size_t limit_;
  std::unordered_map<rows::Launches, std::uint32_t, Hash, Equal> ids_;
  std::vector<Recent> recent_;
  std::uint32_t next_id_ = 1;
};

}  // namespace cutrace
