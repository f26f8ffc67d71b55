#include "block_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "common/block.h"
#include "common/crc32c.h"

namespace cutrace {
namespace {

// Space for the end of a capture: losses, clocks, the last process block.
constexpr std::uint64_t kEndReserve = 64 << 10;

// The suffix of a file that will replace another one.
constexpr const char* kNext = ".next";

// An empty file that this process has locked, or -1 and errno: EWOULDBLOCK when another process is writing it.
int create_empty(const std::string& path, mode_t mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) return -1;
  // If two processes write to one file, the second must not truncate it.
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  // Do not truncate an empty file: ext4 flushes a truncated file at close, and its removal then waits for the disk. A test
  // suite creates and removes a file for each test.
  struct stat now {};
  const bool empty = ::fstat(fd, &now) == 0 && now.st_size == 0;
  if (locked && (empty || ::ftruncate(fd, 0) == 0 || errno == EINVAL)) return fd;  // EINVAL: a device, a pipe
  const int saved = errno;
  ::close(fd);
  errno = saved;
  return -1;
}

}  // namespace

// ---- Descriptor ----

void Descriptor::set(int fd) {
  constexpr int kHigh = 500, kAboveStandard = 3;
  int high = ::fcntl(fd, F_DUPFD_CLOEXEC, kHigh);
  // The limit on descriptors is low. Output of the program must not go into our file.
  if (high < 0 && fd < kAboveStandard) high = ::fcntl(fd, F_DUPFD_CLOEXEC, kAboveStandard);
  if (high >= 0) {
    ::close(fd);
    fd = high;
  }
  struct stat now {};
  ::fstat(fd, &now);
  device_.store(now.st_dev);
  inode_.store(now.st_ino);
  fd_.store(fd);
}

void Descriptor::take(Descriptor& other) {
  device_.store(other.device_.load());
  inode_.store(other.inode_.load());
  // At each moment at least one of the two descriptors owns the file, so that a forked child closes it.
  fd_.store(other.fd_.load());
  other.fd_.store(-1);
}

bool Descriptor::is(int fd) const {
  struct stat now {};
  return ::fstat(fd, &now) == 0 && now.st_dev == device_.load() && now.st_ino == inode_.load();
}

bool Descriptor::restore(const std::string& path, std::uint64_t offset) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  if (!is(fd) || ::lseek(fd, static_cast<off_t>(offset), SEEK_SET) < 0) return ::close(fd), false;
  set(fd);
  ::flock(number(), LOCK_EX | LOCK_NB);
  return true;
}

bool Descriptor::close() {
  const bool good = !ours() || ::close(fd_.load()) == 0 || errno == EINTR;
  fd_.store(-1);  // stored last: a child forked before the close still knows the descriptor
  return good;
}

// ---- BlockFile ----

bool BlockFile::create(const std::string& path, mode_t mode, std::uint32_t pid, std::uint64_t instance,
                       std::string& error) {
  const int fd = create_empty(path, mode);
  if (fd < 0) {
    error = errno == EWOULDBLOCK
                ? "another process is writing the capture '" + path + "'; record each process into its own file"
                : "cannot write the capture '" + path + "' (" + std::strerror(errno) + "); choose a folder that exists and is writable";
    return false;
  }
  file_.set(fd);
  path_ = path;
  mode_ = mode;
  pid_ = pid;
  instance_ = instance;
  return true;
}

bool BlockFile::write_all(iovec* parts, int count) {
  while (count > 0) {
    const ssize_t n = ::writev(file_.number(), parts, count);
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno_ = errno, false;
    }
    auto left = static_cast<std::size_t>(n);  // after a short write, continue where it stopped
    while (count > 0 && left >= parts->iov_len) {
      left -= parts->iov_len;
      ++parts;
      --count;
    }
    if (count > 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + left;
      parts->iov_len -= left;
    }
  }
  return true;
}

bool BlockFile::usable() {
  if (file_.number() < 0) return false;
  if (file_.ours() || file_.restore(path_, size_)) return true;
  return errno_ = EBADF, false;
}

Written BlockFile::append(const Block& block, std::span<const iovec> payload) {
  if (!usable()) return Written::error;
  std::uint64_t bytes = 0;
  for (const iovec& part : payload) bytes += part.iov_len;
  const std::uint64_t padding = (8 - bytes % 8) % 8;
  const std::uint64_t total = sizeof(BlockHeader) + bytes + padding;
  if (size_limit_ != 0 && size_ + total + (block.at_end ? 0 : kEndReserve) > size_limit_) return Written::size_limit;

  BlockHeader header{};
  std::memcpy(header.magic, kBlockMagic, sizeof header.magic);
  header.kind = block.kind;
  header.row_size = block.row_size;
  header.rows = block.rows;
  header.payload_size = static_cast<std::uint32_t>(bytes);
  for (const iovec& part : payload) header.payload_crc = crc32c(part.iov_base, part.iov_len, header.payload_crc);
  header.pid = pid_;
  header.sequence = sequence_;
  header.first_time = block.first_time;
  header.last_time = block.last_time;
  header.instance = instance_;
  header.header_crc = crc32c(&header, offsetof(BlockHeader, header_crc));

  static constexpr char kZeros[8] = {};
  iovec parts[6] = {{&header, sizeof header}};
  int count = 1;
  for (const iovec& part : payload)
    if (part.iov_len != 0) parts[count++] = part;
  if (padding != 0) parts[count++] = {const_cast<char*>(kZeros), padding};

  if (!write_all(parts, count)) {
    // If truncating fails too, a reader still finds the next block by its magic.
    const auto end = static_cast<off_t>(size_);
    if (::ftruncate(file_.number(), end) == 0) ::lseek(file_.number(), end, SEEK_SET);
    return Written::error;
  }
  size_ += total;
  ++sequence_;
  return Written::yes;
}

bool BlockFile::prepare_next(std::string& error) {
  struct stat status {};
  if (!usable() || ::fstat(file_.number(), &status) != 0 || !S_ISREG(status.st_mode)) {
    error = "the capture '" + path_ + "' cannot be cut, because it is not a regular file; record into a file or a folder";
    return false;
  }
  drop_next();
  if (const int fd = create_empty(path_ + kNext, mode_); fd >= 0) return next_.set(fd), true;
  error = "cannot go on in a new file beside the capture '" + path_ + "' (" + std::strerror(errno) +
          "); the recording goes on in the old one";
  return false;
}

bool BlockFile::move_to(const std::string& target, std::string& error) {
  if (::rename(path_.c_str(), target.c_str()) == 0) return true;
  error = "cannot move the capture '" + path_ + "' to '" + target + "' (" + std::strerror(errno) +
          "); choose a writable folder on the same file system";
  drop_next();
  return false;
}

bool BlockFile::switch_to_next(std::string& error) {
  const std::string first = path_;
  std::string next = path_ + kNext;
  const bool closed = close();
  file_.take(next_);
  earlier_ += std::exchange(size_, 0);
  const bool renamed = ::rename(next.c_str(), first.c_str()) == 0;
  if (!renamed) errno_ = errno, path_.swap(next);
  if (closed && renamed) return true;
  error = "the capture '" + first + "' was cut with an error (" + std::strerror(errno_) + "); check the space on the disk";
  return false;
}

bool BlockFile::removed() const {
  struct stat status {};
  return file_.ours() && ::fstat(file_.number(), &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0;
}

void BlockFile::drop_next() {
  if (next_.number() < 0) return;
  ::unlink((path_ + kNext).c_str());
  next_.close();
}

void BlockFile::remove() {
  struct stat status {};
  // A device, such as /dev/full, stays.
  const bool regular = ::lstat(path_.c_str(), &status) == 0 && S_ISREG(status.st_mode);
  if (regular && !removed()) ::unlink(path_.c_str());
  close();
}

bool BlockFile::close() {
  if (file_.close()) return true;
  return errno_ = errno, false;
}

}  // namespace cutrace
