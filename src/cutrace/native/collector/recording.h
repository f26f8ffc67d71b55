// One recording of this process: its state, its queue of requests, and the two threads that carry them out.
//
// A request goes one way: caller ─▶ flusher ─▶ writer ─▶ answer. The flusher makes the calls that can wait inside CUPTI or
// the driver (flush, synchronise, disable), the writer those that can wait for a disk. No lock is held across either, and
// every wait of a caller is bounded by the options' patience, so neither a stuck driver nor a stuck disk stops the program.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cupti_source.h"
#include "dump.h"
#include "notes.h"
#include "options.h"
#include "wake.h"
#include "writer.h"

namespace cutrace {

enum class State : std::uint8_t { recording, stopping, ended, failed };
enum class Part : std::uint8_t { caller, flusher, writer };

// All that can happen to a recording. `ended` and `failed` are final. A failed recording collects no more, its file has no
// end, which readers count as a loss, and a note says why.
struct Transition {
  State from;
  State to;
  Part by;
};
inline constexpr std::array kTransitions = {
    Transition{State::recording, State::stopping, Part::caller},  // stop()
    Transition{State::stopping, State::ended, Part::writer},      // the file is complete
    Transition{State::stopping, State::failed, Part::caller},     // the flusher or the writer did not answer in time
    Transition{State::recording, State::failed, Part::caller},    // a thread could not be started
    Transition{State::recording, State::failed, Part::flusher},   // an exception: there is no memory
    Transition{State::stopping, State::failed, Part::flusher},
    Transition{State::recording, State::failed, Part::writer},
    Transition{State::stopping, State::failed, Part::writer},
};

class Recording {
 public:
  explicit Recording(const Options& options);

  // Creates the file and starts the threads, each of which holds a share of `self`. False and a sentence in `error` on
  // failure.
  static bool start(const std::shared_ptr<Recording>& self, std::string& error);

  // Begins to record GPU activity; does nothing when that has been tried already. `before_cuda`: inside cuInit().
  void attach_cupti(bool before_cuda);
  void note_nvtx() { notes_.members([](JsonObject& json) { json.raw("nvtx", "true"); }); }
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
  // Ends the recording. False and a sentence in `error` when it did not end in order.
  bool stop(bool at_exit, std::string& error);

  bool uses_cupti() const { return writer_.uses_cupti(); }
  bool running() const { return state_.load() == State::recording; }
  // Its writer still reads NVTX events and CUPTI's buffers, so there must be no other.
  bool writes() const { return !writer_left_.load(); }
  const Counters& counters() const { return writer_.counters(); }
  std::vector<std::string> notes() const { return notes_.sentences(); }
  // Once stopped; needs no memory.
  std::vector<std::string> take_notes() { return notes_.take_sentences(); }
  // After fork, in the child: closes the files and keeps the rest for good, since its locks may be held by threads that are
  // gone. Returns the options for a recording of the child's NVTX events, null for none.
  static const char* forget(std::shared_ptr<Recording> recording);

 private:
  struct Request {
    enum class Kind : std::uint8_t { flush, synchronize, cut, dump, stop } kind;
    explicit Request(Kind k) : kind(k) {}
    enum class Stage : std::uint8_t { asked, flushed, begun, answered, withdrawn } stage = Stage::asked;
    std::string path;         // of a cut
    void* context = nullptr;  // the caller's, to wait for
    bool at_exit = false;
    Outcome outcome = Outcome::failed;
    std::string error;
    std::vector<OpenFile> files;  // of a dump
  };
  using Requests = std::list<std::shared_ptr<Request>>;

  template <void (Recording::*Loop)(), Part part>
  static void* thread_main(void* self);
  bool start_threads(const std::shared_ptr<Recording>& self, std::string& error);
  // Under mutex_. False when kTransitions has no such way; `why` says what failed.
  bool enter(State to, Part part, const char* why = "");
  // Of a thread that caught an exception.
  void fail(Part part) noexcept;
  void take_signal();

  // Callers.
  // `what` ends the sentence "the recording could not be ...".
  Outcome ask(const std::shared_ptr<Request>& request, const std::string& what, std::string& error);

  void flush_loop();
  bool wait_for_requests(std::uint64_t until);
  Request* synchronize_in_turn();
  void gather_device_facts();
  void dump_on_signal();
  void detach(const Request* stop);

  void write_loop();
  void end();
  void carry_out(Request& request);
  void answer(Request& request, Outcome outcome);
  void refuse_requests();  // under mutex_
  void note_forks();

  const Options options_;
  CuptiSource& source_ = CuptiSource::instance();
  Notes notes_;
  Writer writer_;
  std::string end_error_;      // why the file could not be completed; the writer's until it has left
  bool dump_wanted_ = false;   // flusher only: the signal came
  std::uint64_t forks_noted_ = 0;
  std::atomic<std::uint64_t> forks_{0};

  std::mutex mutex_;
  std::condition_variable changed_;  // callers wait for answers, stop() for the threads, the flusher for attach_cupti()
  std::atomic<State> state_{State::recording};  // changed under mutex_
  enum class Attach : std::uint8_t { none, trying, tried } attach_ = Attach::none;
  bool tick_ = false;                        // a periodic flush is over
  const char* failure_ = "";                 // why it failed
  Requests asked_;                           // by callers
  Requests flushing_;                        // the flusher's
  Requests flushed_;                         // handed to the writer
  Requests writing_;                         // the writer's
  const std::shared_ptr<Request> stop_request_ = std::make_shared<Request>(Request::Kind::stop);
  Requests stop_{stop_request_};             // made in advance: stopping needs no memory
  std::atomic<std::uint32_t> flusher_id_{0};
  std::atomic<bool> writer_left_{false};
  bool flusher_left_ = false;
  bool joined_ = false;
  std::shared_ptr<Recording> itself_;  // in a forked child
  pthread_t writer_thread_{};
  pthread_t flusher_thread_{};
};

}  // namespace cutrace
