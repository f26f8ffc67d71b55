#include "block_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/block.h"
#include "common/crc32c.h"

namespace cutrace {
namespace {

// What the end of a capture needs: losses, clocks, the last process block.
constexpr std::uint64_t kLastWords = 64 << 10;

// CRC-32C over several pieces. Blocks of more than one piece are small, so joining them costs nothing.
std::uint32_t crc_of(std::span<const iovec> parts) {
  if (parts.size() == 1) return crc32c(parts[0].iov_base, parts[0].iov_len);
  std::vector<char> joined;
  for (const iovec& part : parts) {
    const char* data = static_cast<const char*>(part.iov_base);
    joined.insert(joined.end(), data, data + part.iov_len);
  }
  return crc32c(joined.data(), joined.size());
}

}  // namespace

bool BlockFile::create(const std::string& path, mode_t mode, std::uint32_t pid, std::uint64_t instance,
                       std::string& error) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
  // Two processes told to write one file: the second must not wipe out what the first has written.
  if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(std::exchange(fd_, -1));
    error = "another process is writing the capture '" + path + "'; record each process into a file of its own";
    return false;
  }
  if (fd_ < 0 || (::ftruncate(fd_, 0) != 0 && errno != EINVAL)) {  // EINVAL: a device, a pipe
    const int saved = errno;
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    errno = saved;
    error = "cannot write the capture '" + path + "' (" + std::strerror(errno) +
            "); choose a folder that exists and is writable";
    return false;
  }
  path_ = path;
  pid_ = pid;
  instance_ = instance;
  size_ = 0;
  sequence_ = 0;
  return true;
}

bool BlockFile::write_all(iovec* parts, int count) {
  while (count > 0) {
    const ssize_t n = ::writev(fd_, parts, count);
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno_ = errno, false;
    }
    auto left = static_cast<std::size_t>(n);  // a short write: go on where it stopped
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

Written BlockFile::append(const Block& block, std::span<const iovec> payload) {
  if (fd_ < 0) return Written::error;
  std::uint64_t bytes = 0;
  for (const iovec& part : payload) bytes += part.iov_len;
  const std::uint64_t padding = (8 - bytes % 8) % 8;
  const std::uint64_t total = sizeof(BlockHeader) + bytes + padding;
  if (size_limit_ != 0 && size_ + total + (block.last_words ? 0 : kLastWords) > size_limit_) return Written::size_limit;

  BlockHeader header{};
  std::memcpy(header.magic, kBlockMagic, sizeof header.magic);
  header.kind = block.kind;
  header.row_size = block.row_size;
  header.rows = block.rows;
  header.payload_size = static_cast<std::uint32_t>(bytes);
  header.payload_crc = crc_of(payload);
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
    // Where this fails too, a reader still finds the next block by its magic.
    if (::ftruncate(fd_, static_cast<off_t>(size_)) == 0) ::lseek(fd_, static_cast<off_t>(size_), SEEK_SET);
    return Written::error;
  }
  size_ += total;
  ++sequence_;
  return Written::yes;
}

bool BlockFile::close() {
  if (fd_ < 0) return true;
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) == 0 || errno == EINTR) return true;
  return errno_ = errno, false;
}

}  // namespace cutrace
