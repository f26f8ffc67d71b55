// Dumps: the files that a recording keeps, joined in one file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/block_file.h"

namespace cutrace {

// A complete file of a recording. A dump opens its files one after the other, so that few descriptors are in use at a time.
class KeptFile {
 public:
  explicit KeptFile(std::string path) : path_(std::move(path)) {}
  ~KeptFile();
  KeptFile(const KeptFile&) = delete;
  KeptFile& operator=(const KeptFile&) = delete;

  // Appends its contents to `target`. Returns 0 or an errno.
  int append_to(const Descriptor& target);
  // Keeps the file open, so that dumps can still read it after its name is removed.
  void hold();
  void remove();

 private:
  std::mutex mutex_;
  const std::string path_;
  Descriptor held_;
  int error_ = 0;  // why the file could not be held open
};

using KeptFiles = std::vector<std::shared_ptr<KeptFile>>;

// run-1.bin for run.bin, with at least `digits` digits.
std::string numbered_path(const std::string& path, unsigned number, int digits);

// A requested dump. From its construction on, an exit of the program waits for it.
class Dump {
 public:
  // The dump replaces `path`. With `numbered` it gets the first free name of run-1.bin, run-2.bin, ... for run.bin.
  Dump(KeptFiles files, std::string path, bool numbered, std::optional<mode_t> mode);
  ~Dump();
  Dump(const Dump&) = delete;
  Dump& operator=(const Dump&) = delete;

  // Writes the dump in one step. Returns its name. On failure returns "" and leaves a sentence in `error`, which is empty if the
  // dump was given up.
  std::string write(std::string& error);

  // Waits for all dumps of the process, for this time at most. False when some of them take longer.
  static bool wait_for_all(std::uint64_t milliseconds);
  // Gives up the unwritten dumps and removes their temporary files. Returns their paths.
  static std::vector<std::string> give_up_all();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();  // the dumps belong to the parent

 private:
  enum class Stage : std::uint8_t { writing, published, given_up };

  // These return 0 or an errno.
  int create();
  int publish(std::string& name);
  int link(const std::string& name) const;
  bool give_up();

  const KeptFiles files_;
  const std::string path_;
  const bool numbered_;
  const std::optional<mode_t> mode_;
  Descriptor target_;
  std::mutex mutex_;
  std::string temporary_;  // the name of an incomplete file, "" for none; only the writing thread changes it, under mutex_
  Stage stage_ = Stage::writing;  // under mutex_
};

// SIGUSR2, which requests a dump.
namespace dump_signal {

// Handles SIGUSR2 from now on: it wakes the writer, and requested() returns true once. After the recording the handler stays
// without effect, so that a late signal does not end the program. False when the program handles or ignores the signal.
bool take();
bool requested();
// In a forked child: restores the default action, unless the program has installed a handler since.
void release();

}  // namespace dump_signal
}  // namespace cutrace
