// What a recording writes: buffers of CUPTI and NVTX events become rows, rows become blocks, blocks go into its files.
//
// Only the writer thread uses it once that thread runs, so it has no lock. It calls nothing in CUPTI or the driver that
// could wait. It may throw std::bad_alloc at any time: the recording then fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "activity.h"
#include "capture.h"
#include "cupti_source.h"
#include "dump.h"
#include "nvtx_decoder.h"
#include "options.h"
#include "process_info.h"

namespace cutrace {

// The outcome of a request. `nothing`: the program has done nothing since the last file, so no file was written.
enum class Outcome { done, nothing, failed };

// Counts for cutrace_stats(), which any thread reads.
struct Counters {
  std::atomic<std::uint64_t> rows{0}, bytes{0}, blocks{0}, dropped{0}, discarded{0}, nvtx_events{0}, memory{0};
};

class Writer {
 public:
  Writer(const Options& options, CuptiSource& source, Notes& notes);

  // Creates the file and writes its first block. False and a sentence in `error` when that fails.
  bool open(std::string& error);
  // After fork, in the child.
  void forget() { capture_.file().forget(); }
  const Counters& counters() const { return counters_; }

  // Calls of this thread are the collector's own.
  void ignore_thread(std::uint32_t thread) { activity_.ignore_thread(thread); }
  // Any thread: from now on there are buffers of CUPTI to read.
  void use_cupti() { uses_cupti_.store(true); }
  bool uses_cupti() const { return uses_cupti_.load(); }
  // Turns all that is complete into rows.
  void drain();
  // Writes out all rows, and what is due from time to time.
  void write_out();
  // Completes the file with all that is complete, moves it to `path` and goes on in a new one. On failure `error` is a
  // sentence, and the recording goes on.
  Outcome cut(const std::string& path, std::string& error);
  // Of a recording that keeps only its newest rows: does so too, and opens all files that are kept.
  Outcome open_kept(std::vector<OpenFile>& files, std::string& error);
  // Completes and closes the file. `in_order`: nothing that was recorded is missing without a count, and the file says that
  // it has ended. Returns why the file could not be completed, "" when it was.
  std::string finish(bool in_order);

 private:
  // A file that a recording of only the newest rows has left and keeps.
  struct Segment {
    std::string path;
    std::uint64_t end = 0;  // when the recording left it
    std::uint64_t bytes = 0;
    Capture::Contents contents;
  };
  // So much more than was asked for may be kept, or less of the room be used.
  static constexpr std::uint64_t kParts = 8;

  void count_dropped();
  std::vector<Refusal> note_refusals();
  void note_disk_error();
  void note_graph_kernels();
  void write_devices(bool without_facts);
  void write_process();
  void write_end();
  void write_clocks(std::uint64_t now);
  void complete_file();
  std::optional<Capture::Contents> split(const std::string& path, std::string& error);
  bool file_is_full() const { return options_.max_size != 0 && capture_.file().size() >= options_.max_size / kParts; }
  bool rotate_out(std::string& error);
  void keep_newest();
  void publish_counters();

  const Options& options_;
  CuptiSource& source_;
  Notes& notes_;
  Counters counters_;
  std::atomic<bool> uses_cupti_{false};
  const std::uint64_t started_;
  Capture capture_;
  ThreadNames thread_names_{capture_};
  ActivityDecoder activity_;
  NvtxDecoder nvtx_;
  std::deque<Segment> kept_;
  std::uint64_t kept_bytes_ = 0;
  unsigned segments_ = 0;              // so far
  JsonObject process_;                 // all that process blocks have said
  bool process_missing_ = false;       // the disk had no room for a process block: the next one says it all again
  std::uint64_t next_names_ = 0;
  std::uint64_t next_clock_ = 0;
  std::uint64_t next_rotation_ = 0;    // not before, after one that failed
  std::uint64_t file_began_;
  std::uint64_t refused_buffers_;      // requests of CUPTI, counted so far
  std::size_t refusals_noted_ = 0;
  bool refusals_counted_ = false;
  std::uint64_t graph_kernels_noted_ = 0;
  bool disk_error_noted_ = false;
};

}  // namespace cutrace
