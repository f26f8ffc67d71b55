#include "string_table.h"

#include <algorithm>
#include <cstring>

#include "hash.h"

namespace cutrace {

const StringTable::Entry& StringTable::find(std::string_view text) {
  text = text.substr(0, kLongest);
  const std::uint64_t hash = hash_bytes(text.data(), text.size());
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  for (; slots_[at].id != 0; at = (at + 1) & mask) {
    const Entry& e = slots_[at];
    if (e.hash == hash && e.size == text.size() && std::memcmp(e.text, text.data(), text.size()) == 0) return e;
  }
  if (2 * (used_ + 1) > slots_.size()) {
    grow();
    return find(text);
  }
  ++used_;
  slots_[at] = {hash, next_id_++, static_cast<std::uint32_t>(text.size()), keep(text)};
  heads_.push_back(slots_[at].id);
  heads_.push_back(slots_[at].size);
  bytes_.insert(bytes_.end(), text.begin(), text.end());
  return slots_[at];
}

const char* StringTable::keep(std::string_view text) {
  const std::size_t need = text.size() + 1;
  if (need > chunk_left_) {
    constexpr std::size_t kChunk = 64 << 10;
    const std::size_t size = std::max(kChunk, need);
    arena_.push_back(std::make_unique<char[]>(size));
    arena_bytes_ += size;
    chunk_at_ = arena_.back().get();
    chunk_left_ = size;
  }
  char* copy = chunk_at_;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  chunk_at_ += need;
  chunk_left_ -= need;
  return copy;
}

void StringTable::grow() {
  std::vector<Entry> old(slots_.size() * 2);
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Entry& e : old) {
    if (e.id == 0) continue;
    std::size_t at = e.hash & mask;
    while (slots_[at].id != 0) at = (at + 1) & mask;
    slots_[at] = e;
  }
}

void StringTable::clear() {
  slots_.assign(1024, Entry{});
  slots_.shrink_to_fit();
  used_ = 0;
  arena_.clear();
  arena_bytes_ = chunk_left_ = 0;
}

void StringTable::written() {
  heads_.clear();
  bytes_.clear();
}

}  // namespace cutrace
