// One recording of this process: its state, its requests, and the two threads that carry them out.
//
// A request goes from the caller to the flusher, to the writer, and back as an answer. The flusher makes the calls that can
// block inside CUPTI or the driver (flush, synchronise, disable). The writer makes the calls that can block on a disk. Neither
// holds a lock during such a call, and patience_ms bounds every wait of a caller, so a stuck driver or disk does not stop the
// program.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "cupti_source.h"
#include "file_keeper.h"
#include "options.h"
#include "process_info.h"
#include "writer.h"

namespace cutrace {

// stop() makes a recording `stopping`, and the writer makes it `ended` when its file is complete.
//
//   recording ─▶ stopping ─▶ ended
//       └──────────┴───────▶ failed
//
// A recording fails when a thread cannot be started, when the flusher or the writer gets no memory, and when one of them does
// not answer stop() in time. A failed recording collects nothing more. Its file has no end, which readers count as a loss,
// and a note gives the reason.
enum class State : std::uint8_t { recording, stopping, ended, failed };

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  explicit Recording(const Options& options);

  // Creates the file and starts the threads. Each thread holds a shared_ptr to this object. False and a sentence in `error`
  // on failure.
  bool start(std::string& error);

  // Starts recording GPU activity; only the first call has an effect. `before_cuda`: inside cuInit().
  void attach_cupti(bool before_cuda);
  void note_nvtx();
  // In the parent, after fork: counts children in which CUDA cannot work.
  void count_fork() {
    if (source_.active()) forks_.fetch_add(1);
  }

  // Writes all complete records.
  Outcome flush(std::string& error);
  // Waits for the GPU on the flusher's thread, so that the capture does not show the wait. Does nothing while CUPTI does not
  // record.
  Outcome synchronize(std::string& error);
  // Records the stacks of the calls of request_stacks(), on the flusher's thread.
  Outcome record_requested_stacks(std::string& error);
  // Waits like synchronize(), completes the file with all complete records, moves it to `path` and continues in a new file. On
  // failure `error` is a sentence, and the recording continues.
  Outcome cut(const std::string& path, std::string& error);
  // Writes the rows of a recording that keeps only its newest rows to `path`, as a capture.
  Outcome dump(const std::string& path, std::string& error);
  // For any thread except the threads of the recording. Flushes CUPTI, has the writer carry out a request, and waits. `what`
  // completes the sentence "the recording could not be ...".
  Outcome carry_out(std::function<Outcome(std::string&)> on_writer, const std::string& what, std::string& error);
  // Like the function above, but calls `on_flusher` on the flusher's thread before the flush; it may block in CUPTI. `on_writer`
  // may be null. `surely`: carry out the request even when the caller has given up.
  Outcome carry_out(std::function<void()> on_flusher, std::function<Outcome(std::string&)> on_writer, const std::string& what,
                    std::string& error, bool surely = false);
  // Any thread: has the writer call `on_writer` after a flush of CUPTI, and does not wait. `on_writer` is not called if the
  // recording ends first.
  void post(std::function<void()> on_writer);
  // Ends the recording. Returns the reason if the end was incomplete, else "". Call it once; needs no memory.
  std::string_view stop(bool at_exit);

  bool uses_cupti() const { return writer_.uses_cupti(); }
  // Waits until attach_cupti() is over, if it has started.
  void wait_for_attach();
  // Whether the exit of the program ends the recording.
  bool is_exiting();
  FileKeeper* keeper() const { return keeper_.get(); }
  // Stops taking events of the program's threads.
  void end_events();
  bool running() const { return state_.load() == State::recording; }
  // Whether its writer still reads NVTX events and CUPTI's buffers. No other recording may start meanwhile.
  bool writes() const { return !writer_left_.load(); }
  struct cutrace_stats statistics() const { return writer_.statistics(); }
  Notes& notes() { return notes_; }
  // After fork, in the child: closes the files and leaks the rest, because threads of the parent may hold its locks. Returns
  // the options for a recording of the child's NVTX events, null for none.
  static const char* forget(std::shared_ptr<Recording> recording);

 private:
  struct Request {
    std::function<Outcome(std::string&)> on_writer;  // may be null, like on_flusher
    std::function<void()> on_flusher = nullptr;
    bool surely = false;  // carry it out even when its caller has given up
    // The flusher owns it while `flushing`, the writer from `written` on.
    enum class Stage : std::uint8_t { submitted, flushing, flushed, written, begun, answered } stage = Stage::submitted;
    Outcome outcome = Outcome::failed;
    std::string error;
  };
  using Stage = Request::Stage;
  using SharedRequest = std::shared_ptr<Request>;

  bool start_threads(std::string& error);
  // Under mutex_. False when `to` cannot follow the current state. `why` is the reason for the state `failed`.
  bool enter(State to, std::string_view why = {});
  // After an exception.
  void fail() noexcept;

  // Submits a request and waits for its answer.
  Outcome submit(const SharedRequest& request, const std::string& what, std::string& error);
  // Under mutex_: moves requests at stage `from` to `to`. Returns whether there were any.
  bool advance(Stage from, Stage to);
  // Moves the first request with a part for the writer, or for the flusher, from stage `from` to `to`. Returns the request, or
  // null for none.
  SharedRequest next(Stage from, Stage to, bool of_writer);
  void answer(Request& request, Outcome outcome);

  // What waits for the GPU on the flusher's thread; null while CUPTI does not record.
  std::function<void()> wait_for_gpu();

  void run_flusher();
  void flush_loop();
  // Does the flusher's part of requests, before the flush. Returns whether there are requests for the writer, which need a flush.
  bool begin_requests();
  State wait_for_requests(std::uint64_t until);
  void read_device_info();
  void detach(bool in_order);

  void run_writer();
  void write_loop();

  const Options options_;
  CuptiSource& source_ = CuptiSource::instance();
  Notes notes_;
  const std::unique_ptr<FileKeeper> keeper_;  // null for none
  Writer writer_;
  std::string end_error_;     // why the file could not be completed; owned by the writer until it has left
  std::atomic<std::uint32_t> rings_{0};  // the recording's number in rings.h
  std::uint64_t forks_noted_ = 0;
  std::atomic<std::uint64_t> forks_{0};

  std::mutex mutex_;
  std::condition_variable changed_;  // callers wait for answers, stop() for the threads, the flusher for attach_cupti()
  std::atomic<State> state_{State::recording};  // changed under mutex_
  enum class Attach : std::uint8_t { none, trying, tried } attach_ = Attach::none;
  bool tick_ = false;         // a periodic flush was done
  std::string_view failure_;  // why the recording failed
  bool at_exit_ = false;      // argument of stop()
  void* context_ = nullptr;   // of the caller of stop(), to wait for
  std::list<SharedRequest> requests_;
  std::atomic<std::uint32_t> flusher_id_{0};
  bool flusher_left_ = false;  // the flusher has detached from CUPTI
  std::atomic<bool> writer_left_{false};
  std::shared_ptr<Recording> self_;  // set in a forked child, so that nothing is destroyed
  std::thread writer_thread_;
  std::thread flusher_thread_;
};

}  // namespace cutrace
