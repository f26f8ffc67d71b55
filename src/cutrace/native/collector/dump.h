// Dumps of a recording that keeps only its newest rows: writing one, and SIGUSR2, which asks for one.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace cutrace {

// An open file of a recording. It can be read after its name is gone.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  int descriptor() const { return fd_; }

 private:
  int fd_;
};

// run-1.bin for run.bin, with as many digits as asked for at least.
std::string numbered_path(const std::string& path, unsigned number, int digits);

// Puts the contents of `files`, one after the other, at `path` in one step: what is there is replaced. `numbered`: puts them
// under the first free name of run-1.bin, run-2.bin, ... for `path` run.bin instead. Returns the name, or "" and a sentence in
// `error`.
std::string write_dump(const std::vector<OpenFile>& files, const std::string& path, bool numbered, mode_t mode,
                       std::string& error);

namespace dump_signal {

// Listens to SIGUSR2 where nobody does: it wakes the flusher, and asked() returns true once. False when the program handles
// the signal or ignores it.
bool take();
bool asked();
// Gives it back, unless the program has taken it since.
void release();

}  // namespace dump_signal
}  // namespace cutrace
