// Dumps of a recording that keeps only its newest rows, and SIGUSR2, the signal that requests one.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace cutrace {

// An open file of a recording. It stays readable after its name is removed.
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

// The files that a recording keeps, and why its triggers want a dump of them: sentences, none for other dumps.
struct Kept {
  std::vector<OpenFile> files;
  std::vector<std::string> reasons;
};

// run-1.bin for run.bin, with at least `digits` digits.
std::string numbered_path(const std::string& path, unsigned number, int digits);

// Concatenates `files` to `path` in one step; replaces the file. With `numbered`, writes to the first free name of run-1.bin,
// run-2.bin, ... for `path` run.bin. Returns the name, or "" and a sentence in `error`.
std::string write_dump(const std::vector<OpenFile>& files, const std::string& path, bool numbered, mode_t mode,
                       std::string& error);

namespace dump_signal {

// Handles SIGUSR2: it wakes the flusher, and requested() returns true once. False when the program handles or ignores the
// signal.
bool take();
bool requested();
// Restores the default action, unless the program has installed a handler since.
void release();

}  // namespace dump_signal
}  // namespace cutrace
