#include "dump.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace cutrace {
namespace {

bool write_all(int to, const char* data, std::size_t size) {
  while (size != 0) {
    const ssize_t n = ::write(to, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool copy(int from, int to) {
  off_t at = 0;
  constexpr std::size_t kPiece = 1 << 30;
  for (ssize_t n = 0; (n = ::copy_file_range(from, &at, to, nullptr, kPiece, 0)) != 0;)
    if (n < 0) break;  // not between these file systems: by hand, from where it stopped
  std::vector<char> piece(1 << 20);
  for (ssize_t n = 0; (n = ::pread(from, piece.data(), piece.size(), at)) != 0; at += n) {
    if (n < 0 && errno == EINTR) n = 0;
    else if (n < 0 || !write_all(to, piece.data(), static_cast<std::size_t>(n))) return false;
  }
  return true;
}

// A file with all that is to be in the dump, beside its place; removed when it has not been moved there.
class Temporary {
 public:
  Temporary(const std::string& path, mode_t mode) : name_(path + ".XXXXXX") {
    fd_ = ::mkostemp(name_.data(), O_CLOEXEC);
    good_ = fd_ >= 0 && ::fchmod(fd_, mode) == 0;
  }
  ~Temporary() {
    const int saved = errno;
    if (fd_ >= 0) {
      ::close(fd_);
      ::unlink(name_.c_str());
    }
    errno = saved;
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  bool fill(const std::vector<OpenFile>& files) {
    for (const OpenFile& file : files)
      if (good_) good_ = file.descriptor() >= 0 && copy(file.descriptor(), fd_);
    return good_;
  }
  const char* name() const { return name_.c_str(); }

 private:
  std::string name_;
  int fd_ = -1;
  bool good_ = false;
};

std::string refusal(const std::string& path) {
  return "cannot write the dump '" + path + "' (" + std::strerror(errno) + "); choose a folder that is writable and has room";
}

// ---- the signal ----

std::atomic<Wake*> listener{nullptr};
std::atomic<bool> signalled{false};

void on_signal(int) {
  signalled.store(true);
  if (Wake* wake = listener.load()) wake->signal();
}

bool is_ours(const struct sigaction& action) { return !(action.sa_flags & SA_SIGINFO) && action.sa_handler == on_signal; }

}  // namespace

OpenFile::OpenFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
OpenFile::~OpenFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool write_dump(const std::vector<OpenFile>& files, const std::string& path, mode_t mode, std::string& error) {
  Temporary whole(path, mode);
  if (whole.fill(files) && ::rename(whole.name(), path.c_str()) == 0) return true;
  error = refusal(path);
  return false;
}

bool write_numbered_dump(const std::vector<OpenFile>& files, const std::string& path, mode_t mode, std::string& written,
                         std::string& error) {
  Temporary whole(path, mode);
  bool good = whole.fill(files);
  const bool ending = path.ends_with(".bin");
  const std::string stem = path.substr(0, path.size() - (ending ? 4 : 0));
  // A link takes a free name or fails: two processes never write the same dump.
  for (int number = 1; good; ++number) {
    written = stem + "-" + std::to_string(number) + (ending ? ".bin" : "");
    if (::link(whole.name(), written.c_str()) == 0) return true;
    good = errno == EEXIST;
  }
  error = refusal(path);
  return false;
}

bool DumpSignal::take(Wake& wake) {
  struct sigaction before {};
  if (::sigaction(SIGUSR2, nullptr, &before) != 0) return false;
  if (!is_ours(before) && ((before.sa_flags & SA_SIGINFO) || before.sa_handler != SIG_DFL)) return false;
  signalled.store(false);
  listener.store(&wake);
  struct sigaction ours {};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  return ::sigaction(SIGUSR2, &ours, nullptr) == 0;
}

bool DumpSignal::asked() { return signalled.exchange(false); }

void DumpSignal::release() {
  struct sigaction now {};
  if (::sigaction(SIGUSR2, nullptr, &now) != 0 || !is_ours(now)) return;
  struct sigaction none {};
  none.sa_handler = SIG_DFL;
  ::sigaction(SIGUSR2, &none, nullptr);
}

}  // namespace cutrace
