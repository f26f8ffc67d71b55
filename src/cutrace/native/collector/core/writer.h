// Writes the files of a recording: buffers of CUPTI and NVTX events become rows, rows become blocks, blocks go into files.
//
// Once the writer thread runs, only that thread uses the writer, so there is no lock. The writer makes no call of CUPTI or the
// driver that can block. It may throw std::bad_alloc at any time, and the recording then fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "activity.h"
#include "api.h"
#include "capture.h"
#include "clock.h"
#include "cupti_source.h"
#include "feature.h"
#include "file_keeper.h"
#include "features/nvtx/nvtx_decoder.h"
#include "options.h"
#include "process_info.h"

namespace cutrace {

class Writer {
 public:
  // `keeper` is null for a recording that just writes its file.
  Writer(const Options& options, CuptiSource& source, Notes& notes, FileKeeper* keeper);

  // Creates the file and writes its first block. False and a sentence in `error` when that fails.
  bool open(std::string& error);
  // After fork, in the child.
  void forget() { capture_.file().forget(); }
  // Any thread: the counters of this recording, as of the last write_out(). Other counters are 0.
  struct cutrace_stats statistics() const {
    const std::lock_guard lock(statistics_mutex_);
    return statistics_;
  }

  // Leaves out API calls of this thread of the collector.
  void ignore_thread(std::uint32_t thread) { activity_.ignore_thread(thread); }
  // Any thread: lets the writer read CUPTI's buffers from now on.
  void use_cupti() { uses_cupti_.store(true); }
  bool uses_cupti() const { return uses_cupti_.load(); }
  // Any thread: tells the writer that CUPTI records nothing. A note gives the reason.
  void lack_cupti() { lacks_cupti_.store(true); }
  // Converts all complete records to rows.
  void drain();
  // Writes all rows, and the periodic rows that are due.
  void write_out();
  // Completes the file with all complete records, moves it to `path` and continues in a new file. On failure `error` is a
  // sentence, and the recording continues.
  Outcome cut(const std::string& path, std::string& error);
  // Stops reading buffers and counts the lost ones. finish() does so too.
  void count_lost();
  // Completes and closes the file. `in_order`: all losses are counted, so the file gets the "ended" mark. Returns the reason if
  // the file could not be completed, else "".
  std::string finish(bool in_order);

  // ---- for the keeper of the files ----

  Capture& capture() { return capture_; }
  std::uint64_t started_at() const { return started_; }
  std::uint64_t file_began_at() const { return file_began_; }
  // When the last drain started.
  std::uint64_t drained_at() const { return drained_; }
  // Counts the records that CUPTI has dropped so far.
  void count_dropped();
  // The file gets no more records, but the recording continues. Writes the part of each open range that is in the file, and
  // counts the losses.
  void end_window();
  // Adds members to the process block of this file.
  void describe_file(const JsonObject& members) { capture_.process(members.str(), true); }
  void write_clocks(std::uint64_t now);
  void write_process();
  // Completes the file under the name `path` and continues in a new file. Returns the contents of the completed file. On failure
  // returns nullopt, and the recording continues in the same file.
  std::optional<Capture::Contents> split(const std::string& path, std::string& error);

 private:
  // Returns the refused kinds and calls, and adds a note for each new one.
  std::vector<Refusal> note_refusals();
  void read_rings();
  void note_disk_error();
  void note_graph_kernels();
  void write_devices(bool without_info);
  void write_end();
  void complete_file();
  void publish_statistics();

  const Options& options_;
  CuptiSource& source_;
  Notes& notes_;
  mutable std::mutex statistics_mutex_;
  struct cutrace_stats statistics_ {};
  std::uint64_t dropped_ = 0, discarded_ = 0;  // records, by CUPTI and at the memory limit
  std::atomic<bool> uses_cupti_{false};
  std::atomic<bool> lacks_cupti_{false};
  const std::uint64_t started_;
  Capture capture_;
  ThreadNames thread_names_{capture_};
  Watcher no_watcher_;
  FileKeeper* const keeper_;  // null for none
  Watcher& watcher_;
  ActivityDecoder activity_;
  NvtxDecoder nvtx_;
  std::vector<std::unique_ptr<Decoder>> decoders_;  // of the features
  std::array<Decoder*, static_cast<std::size_t>(EventType::count)> by_event_{};
  JsonObject process_;                 // the members of all process blocks
  bool process_missing_ = false;       // a process block could not be written, so the next one has all members
  std::uint64_t next_names_ = 0;
  std::uint64_t next_clock_ = 0;
  std::uint64_t drained_ = 0;          // when the last drain started
  std::uint64_t file_began_;
  std::uint64_t discarded_counted_ = 0;  // buffers that the writer could not read
  std::uint64_t refused_buffers_;      // refused requests of CUPTI, counted so far
  bool lost_counted_ = false;
  std::size_t refusals_noted_ = 0;
  std::size_t refusals_counted_ = 0;
  std::uint64_t graph_kernels_noted_ = 0;
  bool disk_error_noted_ = false;
};

}  // namespace cutrace
