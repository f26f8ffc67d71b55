#include "dump.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/wake.h"

namespace cutrace {
namespace {

bool copy(int from, int to) {
  constexpr std::size_t kPiece = 1 << 30;
  off_t at = 0;
  for (ssize_t n = 1; n != 0;) {
    n = ::sendfile(to, from, &at, kPiece);
    if (n < 0 && errno != EINTR) return false;
  }
  return true;
}

// A temporary file in the folder of `path`, removed unless it was renamed.
struct Temporary {
  explicit Temporary(const std::string& path) : name(path + ".XXXXXX"), fd(::mkostemp(name.data(), O_CLOEXEC)) {}
  ~Temporary() {
    if (fd < 0) return;
    ::close(fd);
    ::unlink(name.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  std::string name;
  const int fd;
};

std::atomic<bool> signalled{false};

void on_signal(int) {
  signalled.store(true);
  flusher_wake.signal();
}

bool is_ours(const struct sigaction& action) { return !(action.sa_flags & SA_SIGINFO) && action.sa_handler == on_signal; }

}  // namespace

OpenFile::OpenFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
OpenFile::~OpenFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::string numbered_path(const std::string& path, unsigned number, int digits) {
  const std::size_t stem = path.size() - (path.ends_with(".bin") ? 4 : 0);
  char text[16];
  std::snprintf(text, sizeof text, "-%0*u", digits, number);
  return path.substr(0, stem) + text + path.substr(stem);
}

std::string write_dump(const std::vector<OpenFile>& files, const std::string& path, bool numbered, mode_t mode,
                       std::string& error) {
  const Temporary whole(path);
  bool good = whole.fd >= 0 && ::fchmod(whole.fd, mode) == 0;
  for (const OpenFile& file : files) good = good && copy(file.descriptor(), whole.fd);
  if (good && !numbered && ::rename(whole.name.c_str(), path.c_str()) == 0) return path;
  for (unsigned number = 1; good && numbered; ++number) {
    // link() fails when the name exists, so two processes never write the same dump.
    std::string written = numbered_path(path, number, 1);
    if (::link(whole.name.c_str(), written.c_str()) == 0) return written;
    good = errno == EEXIST;
  }
  error = "cannot write the dump '" + path + "' (" + std::strerror(errno) + "); choose a writable folder with enough space";
  return {};
}

bool dump_signal::take() {
  struct sigaction before {};
  if (::sigaction(SIGUSR2, nullptr, &before) != 0) return false;
  if (!is_ours(before) && ((before.sa_flags & SA_SIGINFO) || before.sa_handler != SIG_DFL)) return false;
  signalled.store(false);
  struct sigaction ours {};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  return ::sigaction(SIGUSR2, &ours, nullptr) == 0;
}

bool dump_signal::requested() { return signalled.exchange(false); }

void dump_signal::release() {
  struct sigaction now {};
  if (::sigaction(SIGUSR2, nullptr, &now) == 0 && is_ours(now)) ::signal(SIGUSR2, SIG_DFL);
}

}  // namespace cutrace
