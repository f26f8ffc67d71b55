// Texts that a capture holds once and refers to by number. Writer thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace cutrace {

class StringTable {
 public:
  explicit StringTable(std::size_t limit_bytes) : limit_(limit_bytes) { clear(); }

  struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t id = 0;
    std::uint32_t size = 0;
    const char* text = nullptr;  // ends with a zero byte; valid until the next clear()
  };

  // The id of `text`, from 1; 0 for an empty text. What is longer than kLongest is cut.
  std::uint32_t intern(std::string_view text) { return text.empty() ? 0 : find(text).id; }
  const Entry& find(std::string_view text);

  // True once the table outgrew its limit: the owner calls clear(), and known texts get new ids from then on.
  bool full() const { return memory() > limit_; }
  void clear();
  std::size_t memory() const { return arena_bytes_ + slots_.size() * sizeof(Entry); }

  // Texts interned since the last written(): the payload of a strings block is `heads`, then `bytes`.
  const std::vector<std::uint32_t>& pending_heads() const { return heads_; }  // id, length, id, length, ...
  const std::vector<char>& pending_bytes() const { return bytes_; }
  void written();

  static constexpr std::size_t kLongest = 64 << 10;

 private:
  const char* keep(std::string_view text);
  void grow();

  std::size_t limit_;
  std::vector<Entry> slots_;  // open addressing, a power of two
  std::size_t used_ = 0;
  std::vector<std::unique_ptr<char[]>> arena_;
  std::size_t arena_bytes_ = 0;
  std::size_t chunk_left_ = 0;
  char* chunk_at_ = nullptr;
  std::uint32_t next_id_ = 1;
  std::vector<std::uint32_t> heads_;
  std::vector<char> bytes_;
};

}  // namespace cutrace
