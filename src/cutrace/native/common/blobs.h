// Encoded pieces by id, for programs that copy pieces into rows.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace cutrace {

// Append-only; ids count from 0. Pieces and their entries never move, so that a thread can read known pieces while another
// adds new ones.
class Blobs {
 public:
  static constexpr std::size_t kRoom = 32;  // bytes after each piece that may be read

  std::uint32_t add(const void* piece, std::size_t size) {
    if (size + kRoom > free_) {
      free_ = std::max(kChunk, size + kRoom);
      chunks_.push_back(std::make_unique<std::uint8_t[]>(free_));
      next_ = chunks_.back().get();
    }
    std::memcpy(next_, piece, size);
    const Position at = position(size_);
    if (entries_[at.part] == nullptr) entries_[at.part] = std::make_unique<Piece[]>(kFirst << at.part);
    entries_[at.part][at.index] = {next_, size};
    next_ += size + kRoom;
    free_ -= size + kRoom;
    longest_ = std::max(longest_, size);
    return static_cast<std::uint32_t>(size_++);
  }
  std::size_t size() const { return size_; }
  std::size_t longest() const { return longest_; }
  const std::uint8_t* begin(std::size_t id) const { return piece(id).begin; }
  std::size_t length(std::size_t id) const { return piece(id).size; }

 private:
  static constexpr std::size_t kChunk = 1 << 12, kFirstBits = 6, kFirst = 1 << kFirstBits;

  struct Piece {
    const std::uint8_t* begin = nullptr;
    std::size_t size = 0;
  };
  // The entries are in parts. Each part is twice as long as the previous part. The sum of an id and kFirst has its part in the
  // position of the highest bit, and its index in the lower bits.
  struct Position {
    std::size_t part, index;
  };
  static Position position(std::size_t id) {
    const std::size_t sum = id + kFirst;
    const auto high = static_cast<std::size_t>(std::bit_width(sum)) - 1;
    return {high - kFirstBits, sum ^ std::size_t{1} << high};
  }
  const Piece& piece(std::size_t id) const {
    const Position at = position(id);
    return entries_[at.part][at.index];
  }

  std::vector<std::unique_ptr<std::uint8_t[]>> chunks_;
  std::uint8_t* next_ = nullptr;
  std::size_t free_ = 0;
  std::array<std::unique_ptr<Piece[]>, 32> entries_;
  std::size_t size_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace cutrace
