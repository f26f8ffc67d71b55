// Dumps of a recording that keeps only its newest rows: writing one, and SIGUSR2, which asks for one.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "wake.h"

namespace cutrace {

// An open file of a recording. It can be read after its name is gone.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OpenFile& operator=(OpenFile&&) = delete;
  int descriptor() const { return fd_; }

 private:
  int fd_;
};

// Puts the contents of `files`, one after the other, at `path` in one step: what is there is replaced. False and a sentence
// in `error` when that fails.
bool write_dump(const std::vector<OpenFile>& files, const std::string& path, mode_t mode, std::string& error);

// The same under the first free name of run-1.bin, run-2.bin, ... for `path` run.bin; the name is put into `written`.
bool write_numbered_dump(const std::vector<OpenFile>& files, const std::string& path, mode_t mode, std::string& written,
                         std::string& error);

// SIGUSR2 in this process.
class DumpSignal {
 public:
  // Listens to the signal where nobody does: `wake` is signalled and asked() returns true once. False when the program
  // handles the signal or ignores it.
  static bool take(Wake& wake);
  static bool asked();
  // Gives it back, unless the program has taken it since.
  static void release();
};

}  // namespace cutrace
