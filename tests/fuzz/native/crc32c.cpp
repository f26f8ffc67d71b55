// Checksums: the processor's instruction and the tables agree for any bytes, size and alignment.
#include "common/crc32c.h"

#include <memory>

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t shift = input.below(16), times = 1 + input.below(64);
  const std::string piece = input.text(SIZE_MAX);
  // Memory of the exact size, so that a read beyond the end is detected.
  const std::size_t bytes = piece.size() * times;
  const std::unique_ptr<unsigned char[]> memory(new unsigned char[shift + bytes]);
  for (std::size_t i = 0; i < times; ++i) std::memcpy(memory.get() + shift + i * piece.size(), piece.data(), piece.size());
  const std::uint32_t tables = ~cutrace::crc_detail::portable(0xFFFFFFFFu, memory.get() + shift, bytes);
  fuzz::require(cutrace::crc32c(memory.get() + shift, bytes) == tables, "both ways to a checksum agree");
  return 0;
}
