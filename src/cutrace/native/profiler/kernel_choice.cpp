#include "kernel_choice.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace cutrace {
namespace {

class OwnedFd {
 public:
  explicit OwnedFd(int number) : number_(number) {}
  ~OwnedFd() {
    if (number_ >= 0) ::close(number_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  operator int() const { return number_; }

 private:
  const int number_;
};

char answer(const std::string& folder, const std::string& question) {
  const OwnedFd place(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const OwnedFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (place < 0 || socket < 0) return 0;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Addresses hold 107 bytes, and folders can have longer names.
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/kernels", static_cast<int>(place));
  constexpr timeval kPatience{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return 0;
  if (::send(socket, question.data(), question.size(), MSG_NOSIGNAL) < 0) return 0;
  char received = 0;
  errno = ETIMEDOUT;
  return ::recv(socket, &received, 1, 0) == 1 ? received : 0;
}

}  // namespace

bool ask_for_kernel(const std::string& folder, const std::string& name, std::string& error) {
  const char received = answer(folder, std::to_string(::getpid()) + '\0' + name);
  if (received == 0) error = std::string("cutrace profile did not answer: ") + std::strerror(errno);
  return received == '1';
}

}  // namespace cutrace
