// The content of a capture with the rows of its blocks as columns of bytes. Neighbours in a column are alike, so these bytes
// compress faster and to half the size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "common/block.h"

namespace cutrace {
namespace transpose_detail {

constexpr std::size_t kTile = 16;
using Line = unsigned char __attribute__((vector_size(kTile)));

// Each round rotates the number of a byte, its line and its place, by one bit. After four rounds lines and places are exchanged.
inline void transpose_tile(const unsigned char* in, std::size_t in_line, unsigned char* out, std::size_t out_line) {
  Line lines[kTile], mixed[kTile];
  for (std::size_t i = 0; i < kTile; ++i) std::memcpy(&lines[i], in + i * in_line, kTile);
  for (unsigned round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < kTile / 2; ++i) {
      const Line a = lines[i], b = lines[i + kTile / 2];
      mixed[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      mixed[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::memcpy(lines, mixed, sizeof lines);
  }
  for (std::size_t i = 0; i < kTile; ++i) std::memcpy(out + i * out_line, &lines[i], kTile);
}

// The last tiles of a row or column overlap the tiles before. Rows are in groups, which fill whole cache lines of the output.
inline void transpose(const unsigned char* in, std::size_t rows, std::size_t columns, unsigned char* out) {
  constexpr std::size_t kGroup = 4 * kTile;
  if (rows < kTile || columns < kTile) {
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t column = 0; column < columns; ++column) out[column * rows + row] = in[row * columns + column];
    return;
  }
  for (std::size_t group = 0; group < rows; group += kGroup) {
    for (std::size_t column = 0; column < columns; column += kTile) {
      const std::size_t left = std::min(column, columns - kTile);
      for (std::size_t row = group; row < std::min(group + kGroup, rows); row += kTile) {
        const std::size_t top = std::min(row, rows - kTile);
        transpose_tile(in + top * columns + left, columns, out + left * rows + top, rows);
      }
    }
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
