// One recording of this process: its file, its two threads, and the order in which it ends.
//
// The writer turns buffers and NVTX events into blocks and calls nothing in CUPTI that could wait. The flusher
// makes the calls that can (flush, synchronise, disable), so that a stuck driver stops neither the writer nor,
// because every wait for it is bounded, the exit of the program. No lock is held across a CUPTI call.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "activity.h"
#include "capture.h"
#include "cupti_source.h"
#include "driver.h"
#include "dump.h"
#include "nvtx_decoder.h"
#include "options.h"
#include "process_info.h"
#include "segments.h"
#include "wake.h"

namespace cutrace {

struct SessionStats {
  std::atomic<std::uint64_t> rows{0}, bytes{0}, blocks{0}, dropped{0}, discarded{0}, nvtx_events{0}, memory{0};
};

class Session {
 public:
  // Creates the file and starts the threads. Null and a sentence in `error` on failure.
  static std::unique_ptr<Session> start(const Options& options, std::string& error);

  // Begins to record GPU activity; does nothing when that has been tried already. `before_cuda`: inside cuInit().
  void attach_cupti(bool before_cuda);
  void note_nvtx();

  // Writes out all that is complete. False when that took longer than `milliseconds`.
  bool flush(std::uint32_t milliseconds);

  // Waits for the GPU, on the flusher's thread, so that the capture does not show it. Nothing to do while CUPTI is not
  // recording. False when that took longer than the options' patience.
  bool synchronize();

  // Completes the file with all that is complete, moves it to `path` and goes on in a new one. Nothing happens when the
  // program has done nothing since the last time. On failure `error` is a sentence, and the recording goes on.
  enum class Cut { done, nothing, failed };
  Cut cut(const std::string& path, std::string& error);

  // Writes what a recording that keeps only its newest rows holds now, as a capture at `path`.
  Cut dump(const std::string& path, std::string& error);

  // Ends the recording. False when a thread did not answer in time: the session must then not be deleted.
  bool stop(bool at_exit);

  const Options& options() const { return options_; }
  const SessionStats& stats() const { return stats_; }
  int descriptor() const { return capture_.file().descriptor(); }
  // Sentences about what could not be recorded, as in the process block.
  std::vector<std::string> notes();
  // Why the file ended early, empty when it did not.
  const std::string& close_error() const { return close_error_; }

 private:
  explicit Session(const Options& options);
  bool start_threads(std::string& error);
  template <void (Session::*Loop)()>
  static void* thread_main(void* self);

  void note_refusals(const std::vector<Refusal>& refused);  // under mutex_
  void write_loop();
  void drain();
  void periodic(std::uint64_t now);
  void finish();
  void write_devices(bool now);
  void count_dropped();
  void publish_stats();
  void tell_of_disk();
  void tell_of_graphs();
  void update_process();
  void complete_file();
  void cut_file(const std::string& path);
  void end_process();
  std::optional<Capture::Contents> split(const std::string& path, std::string& error);
  void keep_newest(std::uint64_t now);
  bool next_segment(std::string& error);
  void open_segments();
  void answer(Cut result, std::string error, std::vector<OpenFile> files = {});

  void flush_loop();
  void gather_device_facts();

  void take_signal();
  bool end_dumps(bool at_exit);
  void dump_loop();
  Cut gather(std::vector<OpenFile>& files, std::string& error);

  // One for all recordings: a late callback of CUPTI or of NVTX may still signal after its recording is gone.
  static Wake& writer_wake();

  const Options options_;
  const std::uint64_t started_;
  Wake& wake_;
  Capture capture_;
  CuptiSource& source_ = CuptiSource::instance();
  SessionStats stats_;

  // Writer thread.
  ActivityDecoder activity_;
  NvtxDecoder nvtx_;
  std::unordered_map<std::uint32_t, std::uint64_t> thread_names_;
  std::uint64_t refused_seen_ = 0;
  std::uint64_t next_clock_ = 0;
  std::uint64_t next_names_ = 0;
  std::uint64_t graph_kernels_noted_ = 0;
  JsonObject process_;             // all that process blocks have said
  bool identity_missing_ = false;  // the disk had no room for a process block: the next one says it all again
  Segments segments_;
  std::uint64_t file_began_;
  std::uint64_t next_split_ = 0;     // not before, after one that failed
  bool refusals_counted_ = false;
  bool disk_told_ = false;
  std::string close_error_;

  // Under mutex_: what the process blocks say, and who waits for whom.
  std::mutex mutex_;
  std::condition_variable changed_;
  JsonObject news_;  // keys for the next process block
  std::vector<std::string> notes_;
  std::vector<DeviceFacts> facts_;
  bool attach_tried_ = false;
  bool attached_ = false;
  std::size_t refusals_noted_ = 0;
  std::uint64_t flush_wanted_ = 0;
  std::uint64_t synchronize_wanted_ = 0;
  std::uint64_t synchronized_ = 0;
  struct CutRequest {
    enum class State { none, wanted, working, answered } state = State::none;
    std::uint64_t after = 0;  // the flush that comes before it
    bool dump = false;
    std::string path;  // of a cut
    Cut result = Cut::nothing;
    std::string error;
    std::vector<OpenFile> files;  // of a dump
  } cut_;
  CutRequest ask(bool dump, const std::string& path);
  bool stop_wanted_ = false;
  bool at_exit_ = false;
  void* context_ = nullptr;
  bool flusher_done_ = false;
  bool writer_done_ = false;
  bool dumps_end_ = false;
  bool dumper_done_ = false;
  std::uint64_t written_ = 0;

  std::atomic<std::uint64_t> flushed_{0};   // flush requests that the flusher has carried out
  std::atomic<std::uint64_t> ticks_{0};     // periodic flushes carried out
  std::atomic<bool> finish_{false};         // the writer may end
  std::atomic<std::uint32_t> flusher_id_{0};
  pthread_t writer_{};
  pthread_t flusher_{};
  pthread_t dumper_{};
  bool dumps_on_signal_ = false;
  bool threads_started_ = false;
};

}  // namespace cutrace
