// Texts that a capture holds once and refers to by number. Writer thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hash.h"

namespace cutrace {

class StringTable {
 public:
  explicit StringTable(std::size_t limit_bytes) : limit_(limit_bytes) {}

  // A text and its id. Valid until the next clear().
  using Entry = std::pair<const std::string, std::uint32_t>;

  // The id of `text`, from 1; 0 for an empty text. What is longer than kLongest is cut.
  std::uint32_t intern(std::string_view text) { return text.empty() ? 0 : find(text).second; }
  const Entry& find(std::string_view text);

  // True once the table outgrew its limit: the owner calls clear(), and known texts get new ids from then on.
  bool full() const { return memory() > limit_; }
  void clear();
  std::size_t memory() const { return text_bytes_ + ids_.size() * (sizeof(Entry) + 32) + ids_.bucket_count() * sizeof(void*); }

  // Texts interned since the last written(): the payload of a strings block is `heads`, then `bytes`.
  const std::vector<std::uint32_t>& pending_heads() const { return heads_; }  // id, length, id, length, ...
  const std::vector<char>& pending_bytes() const { return bytes_; }
  void written();

  static constexpr std::size_t kLongest = 64 << 10;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return hash_bytes(text.data(), text.size()); }
  };

  std::size_t limit_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::size_t text_bytes_ = 0;
  std::uint32_t next_id_ = 1;
  std::vector<std::uint32_t> heads_;
  std::vector<char> bytes_;
};

}  // namespace cutrace
