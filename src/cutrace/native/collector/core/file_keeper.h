// Work of a recording on its files besides writing: rotation, deletion of old files, copies to a dump.
#pragma once

#include <cstdint>
#include <string>

#include "watcher.h"

namespace cutrace {

class CuptiSource;
class Notes;
class Recording;
class RowFilter;
class Writer;
struct Options;

// The outcome of a request. `nothing`: the program did nothing since the last file, so no file was written.
enum class Outcome : std::uint8_t { done, nothing, failed };

// A recording has at most one. The writer's thread calls it, unless a comment names another thread.
class FileKeeper {
 public:
  virtual ~FileKeeper() = default;

  // The thread that starts the recording. Returns the watcher that gets reports from the decoders.
  virtual Watcher& watcher() { return no_watcher_; }
  // Which rows the files keep; null for all.
  virtual RowFilter* filter() { return nullptr; }
  // The thread that starts the recording, after the threads of the recording have started.
  virtual void begin() {}
  // The thread that attaches CUPTI, after CUPTI is in use. `before_cuda`: inside cuInit().
  virtual void attached(bool /*before_cuda*/) {}
  // The rows of a buffer are in the tables.
  virtual void buffer_read() {}
  // Before and after the tables are written.
  virtual void before_write() {}
  virtual void after_write() {}
  // After each round of the writer.
  virtual void round() {}
  // The thread that ends the recording, before it does so.
  virtual void stopping() {}
  // All records are read. The last file is not complete yet.
  virtual void end(bool at_exit) = 0;
  // The final path of the last file, in place of `path`; "" when the file is not kept.
  virtual std::string last_path(const std::string& path) { return path; }
  // Any thread: writes the kept rows to `path`. On failure `error` is a sentence.
  virtual Outcome dump(const std::string& path, std::string& error) = 0;
  // Any thread: the reason why the recording cannot be cut; null when it can be cut.
  virtual const char* why_not_cut() const = 0;

 private:
  Watcher no_watcher_;
};

// These objects outlive the keeper.
struct KeeperContext {
  const Options& options;
  Recording& recording;
  Writer& writer;
  CuptiSource& source;
  Notes& notes;
};

}  // namespace cutrace
