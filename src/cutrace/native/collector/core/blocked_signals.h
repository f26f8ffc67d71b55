// Keeps the program's signals off the collector's threads, the collector's signals off the program, and cancellation of the program's
// threads out of the collector.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <ctime>
#include <string_view>

namespace cutrace {

// Blocks signals while it lives. The program survives a write of the collector to a file at its size limit, or to a pipe without a
// reader.
class BlockedSignals {
 public:
  // `all`: the threads that the collector starts inherit the mask, so they do not receive the program's signals. `of_writes`: for
  // long writes on a thread of the program.
  enum class Which : std::uint8_t { all, of_writes };

  explicit BlockedSignals(Which which = Which::all) {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int number : kOfWrites) sigaddset(&blocked, number);
    if (which == Which::all) sigfillset(&blocked);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~BlockedSignals() {
    sigset_t of_writes;
    sigemptyset(&of_writes);
    for (const int number : kOfWrites)
      if (sigismember(&before_, number) == 0) sigaddset(&of_writes, number);
    const timespec now{};
    while (sigtimedwait(&of_writes, nullptr, &now) > 0) {  // discard the signals of the collector's own writes
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  static constexpr int kOfWrites[] = {SIGXFSZ, SIGPIPE};
  sigset_t before_{};
};

// While it lives, the calling thread cannot be cancelled (pthread_cancel()). Wherever a call of the program may wait in the
// collector, the cancellation would leave a start half done, or end the program in a function that throws nothing.
class BlockedCancellation {
 public:
  BlockedCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~BlockedCancellation() { pthread_setcancelstate(before_, nullptr); }
  BlockedCancellation(const BlockedCancellation&) = delete;
  BlockedCancellation& operator=(const BlockedCancellation&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// Writes a sentence for the user on the program's stderr. Needs no memory and no lock.
inline void tell(std::string_view sentence, std::string_view rest = {}) noexcept {
  const BlockedSignals blocked;
  const BlockedCancellation whole;
  const auto part = [](std::string_view text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
  const iovec line[] = {part("cutrace: "), part(sentence), part(rest), part("\n")};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, line, 4);
}

}  // namespace cutrace
