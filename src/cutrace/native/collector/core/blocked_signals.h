// Keeps the program's signals off the collector's threads.
#pragma once

#include <signal.h>

#include <ctime>

namespace cutrace {

// Blocks all signals while it lives. The collector's threads inherit the mask, so they do not receive the program's signals.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() {
    sigset_t too_large;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&too_large, nullptr, &now);  // discard the SIGXFSZ of our own write
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace cutrace
