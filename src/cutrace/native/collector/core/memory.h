// Reads memory of this process that may be unmapped.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace cutrace {

// Copies bytes of this process without a fault. `to` has space for `size` bytes. Reads at most 12 KiB. Returns the number of
// bytes before the first unmapped page, or -1 with errno.
inline ssize_t try_read(std::uint64_t address, void* to, std::size_t size) {
  constexpr std::size_t kPage = 4096;
  // A transfer stops only between two elements of the vector, so each page is one element.
  std::array<iovec, 4> remote{};
  std::size_t parts = 0;
  const std::size_t wanted = std::min(size, (remote.size() - 1) * kPage);
  for (std::size_t done = 0; done < wanted; ++parts) {
    const std::size_t to_page = kPage - (address + done) % kPage;
    remote[parts] = {reinterpret_cast<void*>(address + done), std::min(wanted - done, to_page)};
    done += remote[parts].iov_len;
  }
  const iovec local = {to, wanted};
  return ::process_vm_readv(::getpid(), &local, 1, remote.data(), parts, 0);
}

}  // namespace cutrace
