// The header of a run.bin block; docs/internals/run-bin.md has its bytes, src/cutrace/runbin/blocks.py reads it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cutrace {

inline constexpr unsigned char kBlockMagic[8] = {0x89, 'C', 'U', 'T', 'R', '\r', '\n', 0x1A};

struct BlockHeader {
  unsigned char magic[8];
  std::uint16_t kind;
  std::uint16_t row_size;
  std::uint32_t rows;
  std::uint32_t payload_size;
  std::uint32_t payload_crc;
  std::uint32_t pid;
  std::uint32_t sequence;
  std::uint64_t first_time;
  std::uint64_t last_time;
  std::uint64_t instance;
  std::uint32_t reserved;
  std::uint32_t header_crc;
};
static_assert(sizeof(BlockHeader) == 64);  // the sum of the field sizes: there is no padding

}  // namespace cutrace
