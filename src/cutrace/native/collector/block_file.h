// Appends blocks to a run.bin. Writer thread only.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

namespace cutrace {

enum class Written { yes, size_limit, error };

class BlockFile {
 public:
  BlockFile() = default;
  ~BlockFile() {
    close();
    drop_next();
  }
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

  // Going on in a new file, in three steps, so that a failure of the first two changes nothing: a file beside this one is
  // made; this one gets the name `target`, and may still be written to; it is closed, and the new one takes its place
  // and its first name. Block numbers go on. False and a sentence in `error` when a step fails.
  bool prepare_next(std::string& error);
  bool move_to(const std::string& target, std::string& error);
  bool switch_to_next(std::string& error);

  void set_size_limit(std::uint64_t bytes) { size_limit_ = bytes; }
  bool close();  // false when the system reports an error only now
  bool is_open() const { return fd_ >= 0; }
  // Any thread: the file that is being written, -1 when there is none.
  int descriptor() const { return fd_.load(); }
  std::uint64_t size() const { return size_; }
  std::uint64_t bytes() const { return earlier_ + size_; }  // of all files so far
  std::uint64_t blocks() const { return sequence_; }
  int last_errno() const { return errno_; }
  bool removed() const;  // nobody will find this file any more
  const std::string& path() const { return path_; }

 private:
  bool write_all(iovec* parts, int count);

  static int create(const std::string& path, mode_t mode);
  void drop_next();

  std::atomic<int> fd_{-1};
  int next_ = -1;
  mode_t mode_ = 0600;
  int errno_ = 0;
  std::string path_;
  std::uint64_t size_ = 0;
  std::uint64_t earlier_ = 0;
  std::uint64_t size_limit_ = 0;
  std::uint64_t instance_ = 0;
  std::uint32_t pid_ = 0;
  std::uint32_t sequence_ = 0;
};

}  // namespace cutrace
