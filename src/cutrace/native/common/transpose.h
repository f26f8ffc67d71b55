// The content of a capture with the rows of its blocks as columns of bytes. Neighbours in a column are alike, so these bytes
// compress faster and to half the size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/block.h"

namespace cutrace {
namespace transpose_detail {

// The bytes of 8 words become the words of 8 bytes.
inline void transpose_words(std::uint64_t (&words)[8]) {
  constexpr std::uint64_t kMasks[] = {0, 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0, 0x00000000FFFFFFFF};
  for (unsigned step = 4; step; step /= 2) {
    for (unsigned i = 0; i < 8; ++i) {
      if (i & step) continue;
      const std::uint64_t swapped = ((words[i] >> (8 * step)) ^ words[i + step]) & kMasks[step];
      words[i + step] ^= swapped;
      words[i] ^= swapped << (8 * step);
    }
  }
}

inline void transpose(const unsigned char* in, std::size_t rows, std::size_t columns, unsigned char* out) {
  constexpr std::size_t kWord = 8;
  const std::size_t whole_rows = rows - rows % kWord, whole_columns = columns - columns % kWord;
  for (std::size_t column = 0; column < whole_columns; column += kWord) {
    for (std::size_t row = 0; row < whole_rows; row += kWord) {
      std::uint64_t words[kWord];
      for (std::size_t i = 0; i < kWord; ++i) std::memcpy(&words[i], in + (row + i) * columns + column, kWord);
      transpose_words(words);
      for (std::size_t i = 0; i < kWord; ++i) std::memcpy(out + (column + i) * rows + row, &words[i], kWord);
    }
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t first = row < whole_rows ? whole_columns : 0;
    for (std::size_t column = first; column < columns; ++column) out[column * rows + row] = in[row * columns + column];
  }
}

}  // namespace transpose_detail

// Writes a part of a capture to `out`. The part has `size` bytes. The rows of each block become columns. With `back`, the columns
// become rows again. Both directions find a block by its header, which is copied unchanged.
inline void transpose_rows(const unsigned char* in, std::size_t size, unsigned char* out, bool back) {
  const unsigned char* const end = in + size;
  while (in != end) {
    const unsigned char* const block = std::search(in, end, std::begin(kBlockMagic), std::end(kBlockMagic));
    const auto before = static_cast<std::size_t>(std::min(end - block, std::ptrdiff_t{sizeof(BlockHeader)}) + (block - in));
    std::memcpy(out, in, before);
    in += before;
    out += before;
    if (end - block < std::ptrdiff_t{sizeof(BlockHeader)}) continue;
    BlockHeader header;
    std::memcpy(&header, block, sizeof header);
    if (header.row_size == 0) continue;
    const std::size_t rows = std::min<std::size_t>(header.payload_size, end - in) / header.row_size;
    const std::size_t columns = header.row_size;
    transpose_detail::transpose(in, back ? columns : rows, back ? rows : columns, out);
    in += rows * columns;
    out += rows * columns;
  }
}

}  // namespace cutrace
