// One recording of this process: its state, its requests, and the two threads that carry them out.
//
// A request goes one way: caller ─▶ flusher ─▶ writer ─▶ answer. The flusher makes the calls that can wait inside CUPTI or
// the driver (flush, synchronise, disable), the writer those that can wait for a disk. No lock is held across either, and
// every wait of a caller is bounded by the options' patience, so neither a stuck driver nor a stuck disk stops the program.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cupti_source.h"
#include "dump.h"
#include "options.h"
#include "process_info.h"
#include "writer.h"

namespace cutrace {

// stop() makes a recording `stopping`, the writer makes it `ended` when its file is complete, and both are final.
//
//   recording ─▶ stopping ─▶ ended
//       └──────────┴───────▶ failed
//
// It fails when a thread could not be started, when the flusher or the writer gets no memory, and when one of them does not
// answer stop() in time. A failed recording collects no more, its file has no end, which readers count as a loss, and a note
// says why.
enum class State : std::uint8_t { recording, stopping, ended, failed };

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  explicit Recording(const Options& options);

  // Creates the file and starts the threads, each of which holds a share of this object. False and a sentence in `error` on
  // failure.
  bool start(std::string& error);

  // Begins to record GPU activity; does nothing when that has been tried already. `before_cuda`: inside cuInit().
  void attach_cupti(bool before_cuda);
  void note_nvtx();
  // In the parent, after fork: CUDA does not work in a child of a process that uses it.
  void count_fork() {
    if (source_.active()) forks_.fetch_add(1);
  }

  // Writes out all that is complete.
  Outcome flush(std::string& error);
  // Waits for the GPU, on the flusher's thread, so that the capture does not show it. Nothing to do while CUPTI is not
  // recording.
  Outcome synchronize(std::string& error);
  // Completes the file with all that is complete, moves it to `path` and goes on in a new one. On failure `error` is a
  // sentence, and the recording goes on.
  Outcome cut(const std::string& path, std::string& error);
  // Writes what a recording that keeps only its newest rows holds now, as a capture at `path`.
  Outcome dump(const std::string& path, std::string& error);
  // Ends the recording. Returns why it did not end in order, "" when it did. Called once; needs no memory.
  std::string_view stop(bool at_exit);

  bool uses_cupti() const { return writer_.uses_cupti(); }
  bool running() const { return state_.load() == State::recording; }
  // Its writer still reads NVTX events and CUPTI's buffers, so there must be no other.
  bool writes() const { return !writer_left_.load(); }
  const Counters& counters() const { return writer_.counters(); }
  Notes& notes() { return notes_; }
  // After fork, in the child: closes the files and keeps the rest for good, since its locks may be held by threads that are
  // gone. Returns the options for a recording of the child's NVTX events, null for none.
  static const char* forget(std::shared_ptr<Recording> recording);

 private:
  struct Request {
    enum class Kind : std::uint8_t { flush, synchronize, cut, dump } kind;
    explicit Request(Kind k) : kind(k) {}
    // The flusher has it while `flushing`, the writer from `written` on.
    enum class Stage : std::uint8_t { asked, flushing, flushed, written, begun, answered } stage = Stage::asked;
    std::string path;         // of a cut
    void* context = nullptr;  // the caller's, to wait for
    Outcome outcome = Outcome::failed;
    std::string error;
    std::vector<OpenFile> files;  // of a dump
  };
  using Stage = Request::Stage;
  using Shared = std::shared_ptr<Request>;

  bool start_threads(std::string& error);
  // Under mutex_. False when `to` cannot follow the present state; `why` says what failed.
  bool enter(State to, std::string_view why = {});
  // After an exception.
  void fail() noexcept;

  // Waits for the answer. `what` ends the sentence "the recording could not be ...".
  Outcome ask(const Shared& request, const std::string& what, std::string& error, Stage stage = Stage::asked);
  // Under mutex_: requests at stage `from` go on to `to`. Whether there were any.
  bool advance(Stage from, Stage to);
  // The first request at stage `from`, which goes on to `to`; null for none. Either those to synchronize or the others.
  Shared next(Stage from, Stage to, bool synchronize);
  void answer(Request& request, Outcome outcome);

  void run_flusher();
  void flush_loop();
  State wait_for_requests(std::uint64_t until);
  void gather_device_facts();
  void dump_on_signal();
  void detach(bool in_order);

  void run_writer();
  void write_loop();
  void carry_out(Request& request);

  const Options options_;
  CuptiSource& source_ = CuptiSource::instance();
  Notes notes_;
  Writer writer_;
  std::string end_error_;     // why the file could not be completed; the writer's until it has left
  bool dump_wanted_ = false;  // flusher only: the signal came
  std::uint64_t forks_noted_ = 0;
  std::atomic<std::uint64_t> forks_{0};

  std::mutex mutex_;
  std::condition_variable changed_;  // callers wait for answers, stop() for the threads, the flusher for attach_cupti()
  std::atomic<State> state_{State::recording};  // changed under mutex_
  enum class Attach : std::uint8_t { none, trying, tried } attach_ = Attach::none;
  bool tick_ = false;         // a periodic flush is over
  std::string_view failure_;  // why it failed
  bool at_exit_ = false;      // of stop(), as the context to wait for
  void* context_ = nullptr;
  std::list<Shared> requests_;
  std::atomic<std::uint32_t> flusher_id_{0};
  bool flusher_left_ = false;  // having let go of CUPTI
  std::atomic<bool> writer_left_{false};
  std::shared_ptr<Recording> itself_;  // in a forked child
  std::thread writer_thread_;
  std::thread flusher_thread_;
};

}  // namespace cutrace
