// Appends blocks to a run.bin. Writer thread only.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

namespace cutrace {

enum class Written { yes, size_limit, error };

class BlockFile {
 public:
  BlockFile() = default;
  ~BlockFile() { close(); }
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // Creates `path`. False and a sentence in `error` when that fails.
  bool create(const std::string& path, mode_t mode, std::uint32_t pid, std::uint64_t instance, std::string& error);

  struct Block {
    std::uint16_t kind = 0;
    std::uint16_t row_size = 0;
    std::uint32_t rows = 0;
    std::uint64_t first_time = 0;
    std::uint64_t last_time = 0;
    bool last_words = false;  // may use the room that the size limit keeps back for the end of the capture
  };

  // One whole block or nothing: after a failure the file is cut back to its last whole block.
  Written append(const Block& block, std::span<const iovec> payload);

  void set_size_limit(std::uint64_t bytes) { size_limit_ = bytes; }
  bool close();  // false when the system reports an error only now
  bool is_open() const { return fd_ >= 0; }
  int descriptor() const { return fd_; }
  std::uint64_t size() const { return size_; }
  std::uint64_t blocks() const { return sequence_; }
  int last_errno() const { return errno_; }
  const std::string& path() const { return path_; }

 private:
  bool write_all(iovec* parts, int count);

  int fd_ = -1;
  int errno_ = 0;
  std::string path_;
  std::uint64_t size_ = 0;
  std::uint64_t size_limit_ = 0;
  std::uint64_t instance_ = 0;
  std::uint32_t pid_ = 0;
  std::uint32_t sequence_ = 0;
};

}  // namespace cutrace
