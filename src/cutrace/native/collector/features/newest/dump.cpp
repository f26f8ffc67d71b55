#include "dump.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <thread>

#include "core/process_info.h"
#include "core/wake.h"

namespace cutrace {
namespace {

// The largest number of files that stay open until dumps have read them. A slow dump of more files fails.
constexpr int kMostHeld = 32;
std::atomic<int> held_files{0};

struct AllDumps {
  std::mutex mutex;
  std::list<Dump*> list;
};
AllDumps& all = *new AllDumps;

std::string folder_of(const std::string& path) {
  const std::size_t end = path.rfind('/');
  return end == path.npos ? "." : path.substr(0, end + 1);
}

}  // namespace

// ---- files ----

int KeptFile::append_to(const Descriptor& target) {
  constexpr off_t kPiece = 16 << 20;
  Descriptor own;
  {
    const std::lock_guard lock(mutex_);
    if (error_ != 0) return error_;
    if (held_.number() < 0) {
      const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) return errno;
      own.set(fd);
    }
  }
  const Descriptor& source = own.number() >= 0 ? own : held_;
  struct stat status {};
  if (::fstat(source.number(), &status) != 0) return errno;
  for (off_t at = 0; at < status.st_size;) {
    // The program may have closed the collector's descriptors and opened other files under their numbers.
    if (!source.ours() || !target.ours()) return EBADF;
    const auto piece = static_cast<std::size_t>(std::min(kPiece, status.st_size - at));
    const ssize_t n = ::sendfile(target.number(), source.number(), &at, piece);
    if (n == 0) return EIO;
    if (n < 0 && errno != EINTR) return errno;
  }
  return 0;
}

void KeptFile::hold() {
  const std::lock_guard lock(mutex_);
  if (held_.number() >= 0 || error_ != 0) return;
  const bool too_many = held_files.fetch_add(1) >= kMostHeld;
  const int fd = too_many ? -1 : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) return held_.set(fd);
  error_ = too_many ? EMFILE : errno;
  held_files.fetch_sub(1);  // the destructor decrements the count for held files
}

KeptFile::~KeptFile() {
  if (held_.number() >= 0) held_files.fetch_sub(1);
}

void KeptFile::remove() { ::unlink(path_.c_str()); }

std::string numbered_path(const std::string& path, unsigned number, int digits) {
  const std::size_t stem = path.size() - (path.ends_with(".bin") ? 4 : 0);
  char text[16];
  std::snprintf(text, sizeof text, "-%0*u", digits, number);
  return path.substr(0, stem) + text + path.substr(stem);
}

// ---- dumps ----

Dump::Dump(KeptFiles files, std::string path, bool numbered, std::optional<mode_t> mode)
    : files_(std::move(files)), path_(std::move(path)), numbered_(numbered), mode_(mode) {
  const std::lock_guard lock(all.mutex);
  all.list.push_back(this);
}

Dump::~Dump() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  const std::lock_guard lock(all.mutex);
  std::erase(all.list, this);
}

std::string Dump::write(std::string& error) {
  std::string name;
  int failure = create();
  for (const auto& file : files_)
    if (failure == 0) failure = file->append_to(target_);
  if (failure == 0) failure = publish(name);
  error.clear();
  const std::lock_guard lock(mutex_);
  if (failure != 0 && stage_ != Stage::given_up)
    error = "cannot write the dump '" + path_ + "' (" + std::strerror(failure) + "); choose a writable folder with enough space";
  return name;
}

// A file without a name vanishes with the process, for all ways of ending. Some file systems lack such files.
int Dump::create() {
  int fd = ::open(folder_of(path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kNewFile);
  if (fd < 0) {
    std::string name = path_ + '.' + std::to_string(random_instance());
    {
      const std::lock_guard lock(mutex_);
      if (stage_ == Stage::given_up) return ECANCELED;
      temporary_ = std::move(name);
    }
    fd = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, kNewFile);
  }
  if (fd < 0) return errno;
  target_.set(fd);
  return !mode_ || ::fchmod(target_.number(), *mode_) == 0 ? 0 : errno;
}

int Dump::link(const std::string& name) const {
  const std::string self = "/proc/self/fd/" + std::to_string(target_.number());
  const int status = temporary_.empty() ? ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW)
                                        : ::link(temporary_.c_str(), name.c_str());
  return status == 0 ? 0 : errno;
}

int Dump::publish(std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (stage_ == Stage::given_up) return ECANCELED;
    stage_ = Stage::published;
  }
  if (!target_.ours()) return EBADF;
  for (unsigned number = 1; numbered_; ++number) {
    // A link fails when the name exists, so two processes cannot write the same dump.
    std::string candidate = numbered_path(path_, number, 1);
    const int failure = link(candidate);
    if (failure == 0) name = std::move(candidate);
    if (failure != EEXIST) return failure;
  }
  if (temporary_.empty()) {  // only a file with a name can replace another file
    std::string named = path_ + '.' + std::to_string(random_instance());
    if (const int failure = link(named)) return failure;
    const std::lock_guard lock(mutex_);
    temporary_ = std::move(named);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return errno;
  name = path_;
  const std::lock_guard lock(mutex_);
  temporary_.clear();
  return 0;
}

bool Dump::give_up() {
  const std::lock_guard lock(mutex_);
  if (stage_ != Stage::writing) return false;
  stage_ = Stage::given_up;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  return true;
}

bool Dump::wait_for_all(std::uint64_t milliseconds) {
  for (;; --milliseconds) {
    {
      const std::lock_guard lock(all.mutex);
      if (all.list.empty()) return true;
    }
    if (milliseconds == 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<std::string> Dump::give_up_all() {
  std::vector<std::string> paths;
  const std::lock_guard lock(all.mutex);
  for (Dump* const dump : all.list)
    if (dump->give_up()) paths.push_back(dump->path_);
  return paths;
}

void Dump::before_fork() { all.mutex.lock(); }
void Dump::after_fork_in_parent() { all.mutex.unlock(); }
void Dump::after_fork_in_child() {
  all.list.clear();
  all.mutex.unlock();
}

// ---- the signal ----

namespace {

std::atomic<bool> signalled{false};

void on_signal(int) {
  signalled.store(true);
  writer_wake.signal();
}

bool is_ours(const struct sigaction& action) { return !(action.sa_flags & SA_SIGINFO) && action.sa_handler == on_signal; }

}  // namespace

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
