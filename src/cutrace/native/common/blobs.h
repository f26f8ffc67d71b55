// Encoded pieces by id, for programs that copy a piece into a row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cutrace {

// Grows only; ids count from 0.
class Blobs {
 public:
  static constexpr std::size_t kRoom = 32;  // bytes behind the end that may be read

  std::uint32_t add(const void* piece, std::size_t size) {
    const auto* p = static_cast<const std::uint8_t*>(piece);
    data_.resize(data_.size() - kRoom);
    data_.insert(data_.end(), p, p + size);
    begins_.push_back(data_.size());
    data_.resize(data_.size() + kRoom);
    longest_ = std::max(longest_, size);
    return static_cast<std::uint32_t>(this->size() - 1);
  }
  std::size_t size() const { return begins_.size() - 1; }
  std::size_t longest() const { return longest_; }
  const std::uint8_t* begin(std::size_t id) const { return data_.data() + begins_[id]; }
  std::size_t length(std::size_t id) const { return begins_[id + 1] - begins_[id]; }

 private:
  std::vector<std::uint8_t> data_ = std::vector<std::uint8_t>(kRoom);
  std::vector<std::size_t> begins_{0};  // and the end of the last piece
  std::size_t longest_ = 0;
};

}  // namespace cutrace
