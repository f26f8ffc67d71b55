// The windows of a recording: opening and closing them, and their files.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "core/file_keeper.h"
#include "core/recording.h"
#include "window.h"

namespace cutrace {

class WindowFiles final : public FileKeeper {
 public:
  // `never_opened()` returns the note of a recording without a window, "" for none.
  WindowFiles(const KeeperContext& context, std::function<std::string()> never_opened)
      : options_(context.options),
        recording_(context.recording),
        writer_(context.writer),
        source_(context.source),
        notes_(context.notes),
        never_opened_(std::move(never_opened)) {}

  // Any thread may open and close windows, one after the other. open() returns when recording works. close() returns when the
  // window has a complete file. Both return after patience_ms at the latest. open() calls `call_number` on the flusher. That
  // function returns the number of a call that is made now, or 0. open() returns false when there is no window.
  bool open(const std::function<std::uint32_t()>& call_number);
  // `context`: a context to wait for, besides the devices' primary contexts. `last`: no window follows.
  void close(Moment end, void* context, bool last);

  RowFilter* filter() override { return &window_; }
  void attached(bool before_cuda) override;
  void before_write() override;
  void stopping() override;
  void end(bool at_exit) override;
  std::string last_path(const std::string& path) override;
  Outcome dump(const std::string& path, std::string& error) override;
  const char* why_not_cut() const override {
    return "a recording of capture ranges cannot be cut; each range has a file of its own";
  }

 private:
  void resume();
  void enable(bool before_cuda);
  void suspend(void* context);
  void skip();
  void describe(std::uint64_t read);
  Outcome complete(bool last, std::string& error);

  const Options& options_;
  Recording& recording_;
  Writer& writer_;
  CuptiSource& source_;
  Notes& notes_;
  const std::function<std::string()> never_opened_;
  LatestWindow window_;
  std::uint64_t described_ = 0;               // the number of the window that the file describes; writer only
  bool holds_windows_ = false;                // the file has complete windows, because there could be no new file; writer only
  bool failure_noted_ = false;                // writer only
  std::uint64_t skipped_ = 0;                 // the thread that opens
  std::atomic<bool> enabled_{false};          // the kinds of CUPTI are enabled
  std::atomic<bool> unfinished_work_{false};  // nobody waited for the GPU at the end of the window

  std::mutex mutex_;
  std::condition_variable closed_;
  bool closing_ = false;  // under mutex_: a window has no complete file yet
};

}  // namespace cutrace
