// System calls with faults that a test chooses. The library is preloaded (LD_PRELOAD) into the measured program, or linked into a
// test.
//
// Affects only writes, truncations and closes of captures (files named *.bin), copies between files (sendfile), files without a
// name (O_TMPFILE), and the REALTIME clock of the whole program.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

struct Faults {
  std::atomic<int> write_error{0};
  std::atomic<std::int64_t> writes_before{0}, writes_failing{0}, writes_interrupted{0};
  std::atomic<std::uint64_t> most_bytes{0}, bytes_per_second{0};
  std::atomic<int> truncate_error{0}, close_error{0}, copy_error{0}, nameless_error{0};
  std::atomic<unsigned> copies_take{0};
  std::atomic<bool> copies_held{false};
  std::atomic<std::uint64_t> copies{0};
  std::atomic<std::int64_t> realtime_step{0};
  std::atomic<std::uint64_t> faults{0};
};

Faults& faults() {
  static auto* f = new Faults;
  return *f;
}

bool is_capture(int fd) {
  char link[32] = "/proc/self/fd/", path[1024];
  std::size_t at = std::strlen(link);
  char digits[12];
  int count = 0;
  for (int n = fd; n > 0 || count == 0; n /= 10) digits[count++] = static_cast<char>('0' + n % 10);
  while (count > 0) link[at++] = digits[--count];
  const ssize_t size = ::readlink(link, path, sizeof path - 1);
  if (size <= 0) return false;
  path[size] = '\0';
  const auto ends_with = [&](const char* end) {
    const auto length = static_cast<ssize_t>(std::strlen(end));
    return size >= length && std::strcmp(path + size - length, end) == 0;
  };
  return ends_with(".bin") || ends_with(".bin.next") || ends_with(".bin (deleted)");
}

ssize_t fail(int error) {
  faults().faults.fetch_add(1);
  errno = error;
  return -1;
}

bool take(std::atomic<std::int64_t>& count) {
  std::int64_t n = count.load();
  while (n > 0)
    if (count.compare_exchange_weak(n, n - 1)) return true;
  return false;
}

// The next function with this name: the system's function, or a sanitizer's, which must see the call.
#define NEXT(function)                                                                                  \
  ([] {                                                                                                 \
    static const auto next = reinterpret_cast<decltype(&::function)>(dlsym(RTLD_NEXT, #function)); \
    return next;                                                                                        \
  }())

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// After `before` good writes, `count` fail with `error`.
EXPORT void fault_writes(int error, std::int64_t before, std::int64_t count) {
  faults().write_error = error;
  faults().writes_before = before;
  faults().writes_failing = count;
}
// Each write takes at most `bytes`; 0: no limit.
EXPORT void fault_short_writes(std::uint64_t bytes) { faults().most_bytes = bytes; }
EXPORT void fault_interrupted_writes(std::int64_t count) { faults().writes_interrupted = count; }
EXPORT void fault_slow_writes(std::uint64_t bytes_per_second) { faults().bytes_per_second = bytes_per_second; }
EXPORT void fault_truncates(int error) { faults().truncate_error = error; }
EXPORT void fault_closes(int error) { faults().close_error = error; }
EXPORT void fault_copies(int error, unsigned milliseconds) {
  faults().copy_error = error;
  faults().copies_take = milliseconds;
}
// Copies wait until this is off again.
EXPORT void fault_hold_copies(bool on) { faults().copies_held = on; }
// The number of started copies.
EXPORT std::uint64_t fault_copies_begun() { return faults().copies.load(); }
EXPORT void fault_nameless_files(int error) { faults().nameless_error = error; }
EXPORT void fault_realtime(std::int64_t nanoseconds) { faults().realtime_step = nanoseconds; }
// The number of calls that failed or were shortened.
EXPORT std::uint64_t fault_count() { return faults().faults.load(); }

EXPORT ssize_t writev(int fd, const iovec* parts, int count) {
  Faults& f = faults();
  if (!is_capture(fd)) return NEXT(writev)(fd, parts, count);
  if (take(f.writes_interrupted)) return fail(EINTR);
  if (f.writes_failing.load() > 0 && !take(f.writes_before) && take(f.writes_failing)) return fail(f.write_error.load());
  std::uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  if (const std::uint64_t speed = f.bytes_per_second.load()) usleep(static_cast<useconds_t>(bytes * 1'000'000 / speed));
  const std::uint64_t most = f.most_bytes.load();
  if (most == 0 || bytes <= most) return NEXT(writev)(fd, parts, count);
  f.faults.fetch_add(1);
  std::vector<iovec> some;
  for (std::uint64_t left = most; left > 0 && count > 0; ++parts, --count) {
    some.push_back({parts->iov_base, std::min<std::size_t>(parts->iov_len, left)});
    left -= some.back().iov_len;
  }
  return NEXT(writev)(fd, some.data(), static_cast<int>(some.size()));
}

EXPORT int ftruncate(int fd, off_t size) noexcept {
  const int error = faults().truncate_error.load();
  if (error != 0 && size != 0 && is_capture(fd)) return static_cast<int>(fail(error));
  return NEXT(ftruncate)(fd, size);
}

EXPORT ssize_t sendfile(int to, int from, off_t* offset, std::size_t count) noexcept {
  faults().copies.fetch_add(1);
  while (faults().copies_held.load()) ::usleep(1000);
  if (const unsigned milliseconds = faults().copies_take.load()) ::usleep(milliseconds * 1000);
  if (const int error = faults().copy_error.load()) return fail(error);
  return NEXT(sendfile)(to, from, offset, count);
}

EXPORT int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : mode_t{0};
  va_end(arguments);
  const int error = faults().nameless_error.load();
  if (error != 0 && (flags & O_TMPFILE) == O_TMPFILE) return static_cast<int>(fail(error));
  return NEXT(open)(path, flags, mode);
}

EXPORT int close(int fd) {
  const int error = faults().close_error.load();
  const bool fails = error != 0 && is_capture(fd);
  const int status = NEXT(close)(fd);
  return fails ? static_cast<int>(fail(error)) : status;
}

EXPORT int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int status = NEXT(clock_gettime)(clock, time);
  const std::int64_t step = faults().realtime_step.load(std::memory_order_relaxed);
  if (status != 0 || clock != CLOCK_REALTIME || step == 0) return status;
  const std::int64_t now = std::int64_t{time->tv_sec} * 1'000'000'000 + time->tv_nsec + step;
  time->tv_sec = now / 1'000'000'000;
  time->tv_nsec = now % 1'000'000'000;
  return status;
}

}  // extern "C"
