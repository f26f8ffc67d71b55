// Writes the files of a recording: buffers of CUPTI and NVTX events become rows, rows become blocks, blocks go into files.
//
// Only the writer thread uses it once that thread runs, so it has no lock. It makes no call of CUPTI or the driver that can
// block. It may throw std::bad_alloc at any time: the recording then fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
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
#include "features/newest/dump.h"
#include "feature.h"
#include "features/nvtx/nvtx_decoder.h"
#include "options.h"
#include "process_info.h"
#include "features/triggers/triggers.h"

namespace cutrace {

// The outcome of a request. `nothing`: the program did nothing since the last file, so no file was written.
enum class Outcome { done, nothing, failed };

class Writer {
 public:
  Writer(const Options& options, CuptiSource& source, Notes& notes);

  // Creates the file and writes its first block. False and a sentence in `error` when that fails.
  bool open(std::string& error);
  // After fork, in the child.
  void forget() { capture_.file().forget(); }
  // Any thread: the counters of this recording, as of the last write_out(); others are 0.
  struct cutrace_stats statistics() const {
    const std::lock_guard lock(statistics_mutex_);
    return statistics_;
  }

  // Does not record API calls of this thread of the collector.
  void ignore_thread(std::uint32_t thread) { activity_.ignore_thread(thread); }
  // Any thread: the writer reads CUPTI's buffers from now on.
  void use_cupti() { uses_cupti_.store(true); }
  bool uses_cupti() const { return uses_cupti_.load(); }
  // Converts all complete records to rows.
  void drain();
  // Writes all rows, and the periodic rows that are due.
  void write_out();
  // Completes the file with all complete records, moves it to `path` and goes on in a new file. On failure `error` is a
  // sentence, and the recording goes on.
  Outcome cut(const std::string& path, std::string& error);
  // Completes the file of a recording of the newest rows, goes on in a new file, and opens all files that are kept.
  // `for_triggers`: begins the dump that the triggers want, if one is due, and the file says why.
  Outcome open_kept(Kept& kept, bool for_triggers, std::string& error);
  // Whether the triggers want a dump now. The result of that dump is the argument of end_dump().
  bool dump_is_due() const { return triggers_.due(now_ns()); }
  void end_dump(bool written) { triggers_.end_dump(written); }
  // All records are drained and none will follow. Returns whether the triggers want a last dump.
  bool finish_triggers();
  // Completes and closes the file. `in_order`: all losses are counted, so the file gets its "ended" mark. Returns the reason
  // if the file could not be completed, else "".
  std::string finish(bool in_order);

 private:
  // A complete file that a recording of the newest rows keeps.
  struct Segment {
    std::string path;
    std::uint64_t end = 0;  // when it was completed
    std::uint64_t bytes = 0;
    Capture::Contents contents;
  };
  // A file holds this part of the time or size to keep: so much more time may be kept, or less of the size be used.
  static constexpr std::uint64_t kParts = 8;

  void count_dropped();
  void count_unread_buffers();
  std::vector<Refusal> note_refusals();
  void read_rings();
  void note_disk_error();
  void note_graph_kernels();
  void write_devices(bool without_info);
  void write_process();
  void write_end();
  void write_clocks(std::uint64_t now);
  void complete_file();
  std::optional<Capture::Contents> split(const std::string& path, std::string& error);
  bool file_is_full() const { return options_.max_size != 0 && capture_.file().size() >= options_.max_size / kParts; }
  bool rotate_out(std::string& error);
  void keep_newest();
  void publish_statistics();
  void settle_triggers();
  void write_marks();

  const Options& options_;
  CuptiSource& source_;
  Notes& notes_;
  mutable std::mutex statistics_mutex_;
  struct cutrace_stats statistics_ {};
  std::uint64_t dropped_ = 0, discarded_ = 0;  // records, by CUPTI and at the memory limit
  std::atomic<bool> uses_cupti_{false};
  const std::uint64_t started_;
  Capture capture_;
  ThreadNames thread_names_{capture_};
  Triggers triggers_;
  ActivityDecoder activity_;
  NvtxDecoder nvtx_;
  std::vector<std::unique_ptr<Decoder>> decoders_;  // of the features
  std::array<Decoder*, static_cast<std::size_t>(EventType::count)> by_event_{};
  std::deque<Segment> kept_;
  std::uint64_t kept_bytes_ = 0;
  unsigned segments_ = 0;              // so far
  JsonObject process_;                 // the members of all process blocks
  bool process_missing_ = false;       // a process block could not be written: the next one has all members
  std::uint64_t next_names_ = 0;
  std::uint64_t next_clock_ = 0;
  std::uint64_t next_rotation_ = 0;    // the earliest next attempt after a failed rotation
  std::uint64_t drained_ = 0;          // when the last drain began
  std::uint64_t file_began_;
  std::uint64_t refused_buffers_;      // refused requests of CUPTI, counted so far
  std::size_t refusals_noted_ = 0;
  bool refusals_counted_ = false;
  std::uint64_t graph_kernels_noted_ = 0;
  bool disk_error_noted_ = false;
};

}  // namespace cutrace
