#include "recording.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "clock.h"
#include "driver.h"
#include "nvtx_ring.h"

namespace cutrace {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr const char* kNoMemory = "the recording stopped early, because the collector got no memory; the capture lacks what came after";
constexpr const char* kNoAnswer = "the recording ended, but a part of it did not answer in time; the capture may lack its last records";
constexpr std::string_view kForkNote =
    " fork(s) after CUDA was initialised: CUDA does not work in such a child, so no GPU work of it can be recorded";

std::uint32_t thread_id() { return static_cast<std::uint32_t>(syscall(SYS_gettid)); }

// The program's signals are for the program's threads.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() {
    sigset_t too_large;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&too_large, nullptr, &now);  // our own write's
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_{};
};

// One each for all recordings: a late callback of CUPTI or NVTX, or a late signal, may come when its recording is gone.
constinit Wake writer_wake;
constinit Wake flusher_wake;

}  // namespace

Recording::Recording(const Options& options) : options_(options), writer_(options_, source_, notes_) {}

bool Recording::start(const std::shared_ptr<Recording>& self, std::string& error) {
  Recording& recording = *self;
  const BlockedSignals blocked;  // a limit on the size of files (SIGXFSZ) must not end the program
  if (!recording.writer_.open(error)) return false;
  recording.take_signal();
  if (!recording.start_threads(self, error)) return DumpSignal::release(), false;
  if (recording.options_.records_nvtx()) nvtx::arm(writer_wake, recording.options_.max_memory / 4);
  return true;
}

template <void (Recording::*Loop)(), Part part>
void* Recording::thread_main(void* argument) {
  const std::unique_ptr<std::shared_ptr<Recording>> share(static_cast<std::shared_ptr<Recording>*>(argument));
  Recording& self = **share;
  try {
    (self.*Loop)();
  } catch (const std::exception&) {
    self.fail(part);
  }
  const std::lock_guard lock(self.mutex_);
  if (part == Part::writer) self.writer_left_.store(true);
  else self.flusher_left_ = true;
  if (self.writer_left_.load()) self.refuse_requests();
  self.changed_.notify_all();
  return nullptr;
}

bool Recording::start_threads(const std::shared_ptr<Recording>& self, std::string& error) {
  using Share = std::unique_ptr<std::shared_ptr<Recording>>;
  const auto begin = [&](pthread_t& thread, void* (*main)(void*), const char* name, Share& share) {
    if (pthread_create(&thread, nullptr, main, share.get()) != 0) return false;
    static_cast<void>(share.release());
    pthread_setname_np(thread, name);
    return true;
  };
  // Both before the first thread: nothing throws once it runs.
  auto writers = std::make_unique<std::shared_ptr<Recording>>(self);
  auto flushers = std::make_unique<std::shared_ptr<Recording>>(self);
  const bool writes = begin(writer_thread_, thread_main<&Recording::write_loop, Part::writer>, "cutrace-writer", writers);
  if (writes &&
      begin(flusher_thread_, thread_main<&Recording::flush_loop, Part::flusher>, "cutrace-flusher", flushers))
    return true;
  error = "cannot start the threads of the collector; raise the limit on threads (ulimit -u)";
  if (writes) {
    {
      const std::lock_guard lock(mutex_);
      enter(State::failed, Part::caller);
    }
    writer_wake.signal();
    pthread_join(writer_thread_, nullptr);
  }
  return false;
}

bool Recording::enter(State to, Part part, const char* why) {
  const State from = state_.load();
  const bool known = std::any_of(kTransitions.begin(), kTransitions.end(), [&](const Transition& t) {
    return t.from == from && t.to == to && t.by == part;
  });
  if (!known) return false;
  if (to == State::failed) failure_ = why;
  state_.store(to);
  return true;
}

void Recording::fail(Part part) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (enter(State::failed, part, kNoMemory)) {
      nvtx::disarm();
      source_.pool().set_open(false);
    }
  }
  try {
    notes_.add(kNoMemory);
  } catch (const std::exception&) {
  }
  try {
    if (part == Part::writer) end_error_ = writer_.finish(false);
    if (part == Part::flusher) detach(nullptr);
  } catch (const std::exception&) {
  }
  flusher_wake.signal();
  writer_wake.signal();
}

void Recording::attach_cupti(bool before_cuda) {
  {
    const std::lock_guard lock(mutex_);
    if (!running() || attach_ != Attach::none || (options_.kinds & ~bit(Kind::nvtx)) == 0) return;
    attach_ = Attach::trying;
  }
  try {
    CuptiSource::Report report = source_.attach(options_, writer_wake, before_cuda);
    if (report.active) writer_.use_cupti();
    if (nvtx::armed.load() != 0) report.kinds.push_back(kind_name(Kind::nvtx));
    notes_.members([&](JsonObject& json) {
      json.texts("kinds", report.kinds);
      if (source_.library().version == 0) return;
      json.number("cupti_version", source_.library().version);
      json.text("cupti_path", source_.library().path);
    });
    for (const std::string& note : report.notes) notes_.add(note);
  } catch (const std::exception&) {
    fail(Part::caller);
  }
  const std::lock_guard lock(mutex_);
  attach_ = Attach::tried;
  changed_.notify_all();
}

void Recording::take_signal() {
  if (options_.keeps_newest() && !options_.dump.empty() && !DumpSignal::take(flusher_wake))
    notes_.add_quietly("SIGUSR2 has a meaning in this program already, so it dumps nothing; cutrace.dump() does");
}

// ---- callers ----

Outcome Recording::ask(const std::shared_ptr<Request>& request, const std::string& what, std::string& error) {
  using Stage = Request::Stage;
  const auto patience = std::chrono::milliseconds(options_.patience_ms);
  const auto answered = [&] { return request->stage == Stage::answered; };
  Requests asked{request};
  std::unique_lock lock(mutex_);
  if (!running()) {
    error = "the recording ended before it could be " + what;
    return Outcome::failed;
  }
  asked_.splice(asked_.end(), asked);
  flusher_wake.signal();
  bool done = changed_.wait_for(lock, patience, answered);
  // What the writer has begun it will end: only a disk can hold it up then.
  if (!done && request->stage == Stage::begun) done = changed_.wait_for(lock, patience, answered);
  if (done && request->outcome == Outcome::failed && request->error.empty())
    error = "the recording ended before it could be " + what;
  else if (done)
    error = request->error;
  if (done) return request->outcome;
  request->stage = Stage::withdrawn;
  error = "the recording could not be " + what + ", because CUPTI or the disk did not answer in time (patience_ms); it goes on";
  return Outcome::failed;
}

Outcome Recording::flush(std::string& error) {
  return ask(std::make_shared<Request>(Request::Kind::flush), "written out", error);
}

Outcome Recording::synchronize(std::string& error) {
  if (!source_.active()) return Outcome::done;
  const auto request = std::make_shared<Request>(Request::Kind::synchronize);
  request->context = current_context();
  const Outcome outcome = ask(request, "brought up to the GPU's last work", error);
  return outcome;
}

Outcome Recording::cut(const std::string& path, std::string& error) {
  if (options_.keeps_newest()) {
    error = "a recording that keeps only its newest rows cannot be cut; dump it, or record without last and rotate";
    return Outcome::failed;
  }
  const auto request = std::make_shared<Request>(Request::Kind::cut);
  request->path = path;
  return ask(request, "cut", error);
}

Outcome Recording::dump(const std::string& path, std::string& error) {
  if (!options_.keeps_newest()) {
    error = "this recording keeps all its rows and ends in one file; record with last=30s to dump it while it goes on";
    return Outcome::failed;
  }
  const auto request = std::make_shared<Request>(Request::Kind::dump);
  const Outcome outcome = ask(request, "dumped", error);
  if (outcome != Outcome::done) return outcome;
  return write_dump(request->files, path, options_.file_mode, error) ? Outcome::done : Outcome::failed;
}

bool Recording::stop(bool at_exit, std::string& error) {
  const auto patience = std::chrono::milliseconds(options_.patience_ms);
  stop_request_->at_exit = at_exit;
  stop_request_->context = options_.synchronize && source_.active() ? current_context() : nullptr;
  // At exit the signal stays harmless: whoever sends it does not know that the program is about to end.
  if (!at_exit) DumpSignal::release();
  std::unique_lock lock(mutex_);
  if (enter(State::stopping, Part::caller)) {
    nvtx::disarm();
    asked_.splice(asked_.end(), stop_);
    flusher_wake.signal();
    const auto flushed = [&] { return stop_request_->stage != Request::Stage::asked || state_.load() == State::failed; };
    if (!changed_.wait_for(lock, patience, flushed) && enter(State::failed, Part::caller, kNoAnswer)) {
      notes_.add_quietly("CUPTI did not answer at the end of the recording, so its last records are missing");
      writer_wake.signal();
    }
    source_.pool().set_open(false);
  }
  if (!changed_.wait_for(lock, patience, [&] { return writer_left_.load(); })) enter(State::failed, Part::caller, kNoAnswer);
  if (failure_ != kNoAnswer) changed_.wait_for(lock, patience, [&] { return flusher_left_; });
  const bool written = writer_left_.load(), flushed = flusher_left_;
  const bool in_order = state_.load() == State::ended;
  error = in_order && written ? end_error_ : failure_;
  if (std::exchange(joined_, true)) return in_order && error.empty();
  lock.unlock();
  // A thread that has not left goes on alone: it holds a share of this recording.
  (written ? pthread_join(writer_thread_, nullptr) : pthread_detach(writer_thread_));
  (flushed ? pthread_join(flusher_thread_, nullptr) : pthread_detach(flusher_thread_));
  return in_order && error.empty();
}

const char* Recording::forget(std::shared_ptr<Recording> recording) {
  Recording& r = *recording;
  r.writer_.forget();
  r.itself_ = std::move(recording);
  return !r.options_.directory.empty() && r.options_.records_nvtx() ? r.options_.text.c_str() : nullptr;
}

// ---- flusher ----

void Recording::flush_loop() {
  flusher_id_.store(thread_id());
  const std::uint64_t interval = options_.flush_ms * kMillisecond;
  for (std::uint64_t next = now_ns() + interval; wait_for_requests(next); next = now_ns() + interval) {
    if (const Request* stop = synchronize_in_turn()) return detach(stop);
    source_.flush();
    gather_device_facts();
    {
      const std::lock_guard lock(mutex_);
      flushed_.splice(flushed_.end(), flushing_);
      tick_ = true;
    }
    writer_wake.signal();
    if (std::exchange(dump_wanted_, false)) dump_on_signal();
  }
  detach(nullptr);
}

// Returns when there are requests, when the signal asks for a dump, or at the time `until`. False when the recording failed.
bool Recording::wait_for_requests(std::uint64_t until) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (state_.load() == State::failed) return false;
      flushing_.splice(flushing_.end(), asked_);
    }
    dump_wanted_ = options_.keeps_newest() && DumpSignal::asked();
    const std::uint64_t now = now_ns();
    if (!flushing_.empty() || dump_wanted_ || now >= until) return true;
    flusher_wake.wait(until - now);
  }
}

// Carries out the requests to wait for the GPU. Returns the one that ends the recording when it is among the others.
Recording::Request* Recording::synchronize_in_turn() {
  Request* stop = nullptr;
  for (auto it = flushing_.begin(); it != flushing_.end();) {
    Request& request = **it;
    if (request.kind == Request::Kind::stop) stop = &request;
    if (request.kind == Request::Kind::synchronize) {
      synchronize_contexts(request.context, source_.captures());
      answer(request, Outcome::done);
      it = flushing_.erase(it);
    } else {
      ++it;
    }
  }
  return stop;
}

void Recording::gather_device_facts() {
  if (!writer_.uses_cupti() || !notes_.devices().empty()) return;
  std::vector<DeviceFacts> devices = device_facts();
  if (devices.empty()) return;
  const std::uint32_t driver = driver_version(), runtime = runtime_version();
  const std::string release = driver_release();
  notes_.set_devices(std::move(devices));
  notes_.members([&](JsonObject& json) {
    if (driver != 0) json.number("driver_version", driver);
    if (!release.empty()) json.text("driver", release);
    if (runtime != 0) json.number("runtime_version", runtime);
  });
}

void Recording::dump_on_signal() {
  const auto request = std::make_shared<Request>(Request::Kind::dump);
  {
    std::unique_lock lock(mutex_);
    flushed_.push_back(request);
    writer_wake.signal();
    const auto answered = [&] { return request->stage == Request::Stage::answered; };
    if (!changed_.wait_for(lock, std::chrono::milliseconds(options_.patience_ms), answered)) {
      request->stage = Request::Stage::withdrawn;
      request->error = "the recording could not be dumped, because the disk did not answer in time; it goes on";
    }
  }
  std::string written;
  if (request->outcome == Outcome::done)
    write_numbered_dump(request->files, options_.dump, options_.file_mode, written, request->error);
  else if (request->outcome == Outcome::nothing)
    request->error = "there is nothing to dump yet";
  if (request->error.empty()) std::fprintf(stderr, "cutrace: %s holds what was recorded last\n", written.c_str());
  else std::fprintf(stderr, "cutrace: %s\n", request->error.c_str());
}

// Lets go of CUPTI, and hands the last requests to the writer. `stop` is null when the recording failed.
void Recording::detach(const Request* stop) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return attach_ != Attach::trying; });
  }
  if (writer_.uses_cupti()) {
    if (stop != nullptr) gather_device_facts();
    const bool synchronize = stop != nullptr && options_.synchronize;
    const bool waited = source_.detach(stop != nullptr && stop->at_exit, synchronize, stop != nullptr ? stop->context : nullptr,
                                       [this] { return writes(); });
    if (const std::string kept = source_.kept_back(); !kept.empty())
      notes_.add_quietly("CUPTI did not hand out its last records (" + kept + "), so they are missing");
    if (!waited)
      notes_.add_quietly(
          "the GPU was not waited for at the end, because the program was capturing a stream: work that still ran is missing");
  }
  const std::lock_guard lock(mutex_);
  for (const auto& request : flushing_)
    if (request->stage == Request::Stage::asked) request->stage = Request::Stage::flushed;
  flushed_.splice(flushed_.end(), flushing_);
  changed_.notify_all();
  writer_wake.signal();
}

// ---- writer ----

void Recording::write_loop() {
  writer_.ignore_thread(thread_id());
  const std::uint64_t interval = options_.flush_ms * kMillisecond;
  std::uint64_t next = now_ns() + interval;
  for (bool flusher_ignored = false;;) {
    bool due = false, failed = false;
    {
      // Before draining: what was flushed before a request must be in the blocks that are written for it.
      const std::lock_guard lock(mutex_);
      writing_.splice(writing_.end(), flushed_);
      due = std::exchange(tick_, false);
      failed = state_.load() == State::failed;
    }
    if (const std::uint32_t flusher = flusher_id_.load(); !flusher_ignored && flusher != 0) {
      writer_.ignore_thread(flusher);
      flusher_ignored = true;
    }
    writer_.drain();
    if (failed) return static_cast<void>(end_error_ = writer_.finish(false));
    const std::uint64_t now = now_ns();
    if (due || now >= next || !writing_.empty()) {
      note_forks();
      writer_.write_out();
      next = now + interval;
    }
    for (; !writing_.empty(); writing_.pop_front()) {
      if (writing_.front()->kind == Request::Kind::stop) return end();
      carry_out(*writing_.front());
    }
    writer_wake.wait(next > now ? next - now : 0);
  }
}

void Recording::end() {
  end_error_ = writer_.finish(state_.load() == State::stopping);
  const std::lock_guard lock(mutex_);
  enter(State::ended, Part::writer);
}

void Recording::carry_out(Request& request) {
  {
    const std::lock_guard lock(mutex_);
    if (request.stage == Request::Stage::withdrawn) return;
    request.stage = Request::Stage::begun;
  }
  Outcome outcome = Outcome::done;
  if (request.kind == Request::Kind::cut) outcome = writer_.cut(request.path, request.error);
  if (request.kind == Request::Kind::dump) outcome = writer_.open_kept(request.files, request.error);
  answer(request, outcome);
}

void Recording::answer(Request& request, Outcome outcome) {
  const std::lock_guard lock(mutex_);
  request.outcome = outcome;
  request.stage = Request::Stage::answered;
  changed_.notify_all();
}

void Recording::refuse_requests() {
  for (Requests* requests : {&asked_, &flushed_, &writing_})
    for (const auto& request : *requests) {
      request->outcome = Outcome::failed;
      request->stage = Request::Stage::answered;
    }
}

void Recording::note_forks() {
  const std::uint64_t forks = forks_.load();
  if (forks != std::exchange(forks_noted_, forks)) notes_.count(forks, kForkNote);
}

}  // namespace cutrace
