// Appends blocks to a run.bin. Writer thread only.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

namespace cutrace {

// The mode of new files. The system clears the bits of the umask.
constexpr mode_t kNewFile = 0666;

enum class Written { yes, size_limit, error };

// A file descriptor that the program may close, as daemons close all descriptors. The program may then open its own file
// under the same number.
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  // Owns the open file `fd`, under a high number that the program's own files rarely get.
  void set(int fd);
  // Takes over the file of `other`. This descriptor must be closed.
  void take(Descriptor& other);
  // Whether the number still refers to our file. Any thread, also in a forked child.
  bool ours() const { return is(fd_.load()); }
  // Opens the file again at `offset` after the program has closed it. False when it is no longer at `path`.
  bool restore(const std::string& path, std::uint64_t offset);
  int number() const { return fd_.load(); }
  // Does nothing when the program has closed it. False when the system reports a late write error.
  bool close();

 private:
  bool is(int fd) const;

  std::atomic<int> fd_{-1};
  std::atomic<dev_t> device_{0};
  std::atomic<ino_t> inode_{0};
};

class BlockFile {
 public:
  BlockFile() = default;
  ~BlockFile() { drop_next(); }
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
    bool at_end = false;  // may use the space that the size limit reserves for the end of the capture
  };

  // Appends a whole block or nothing: after a failure the file is truncated to its last whole block.
  Written append(const Block& block, std::span<const iovec> payload);

  // Continues in a new file, in three steps. A failure of the first two changes nothing.
  //   prepare_next: creates the new file in the same folder.
  //   move_to: renames this file to `target`; it may still be written.
  //   switch_to_next: closes this file and gives its original name to the new one. Block numbers continue.
  // False and a sentence in `error` when a step fails.
  bool prepare_next(std::string& error);
  bool move_to(const std::string& target, std::string& error);
  bool switch_to_next(std::string& error);

  void set_size_limit(std::uint64_t bytes) { size_limit_ = bytes; }
  bool close();  // false when the system reports a late write error
  void remove();
  // After fork, in the child: closes the descriptors and leaves the files to the parent.
  void forget() {
    file_.close();
    next_.close();
  }
  std::uint64_t size() const { return size_; }
  std::uint64_t bytes() const { return earlier_ + size_; }  // of all files so far
  std::uint64_t blocks() const { return sequence_; }
  int last_errno() const { return errno_; }
  bool removed() const;  // whether the file has no name any more
  const std::string& path() const { return path_; }

 private:
  bool write_all(iovec* parts, int count);

  bool usable();
  void drop_next();

  Descriptor file_;
  Descriptor next_;
  mode_t mode_ = kNewFile;
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
