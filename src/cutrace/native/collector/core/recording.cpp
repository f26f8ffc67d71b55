#include "recording.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "features/annotate/annotate.h"
#include "blocked_signals.h"
#include "clock.h"
#include "cuda/driver.h"
#include "own_thread.h"
#include "features/nvtx/nvtx.h"
#include "features/stacks/stacks.h"
#include "wake.h"

namespace cutrace {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::string_view kNoMemory = "the recording stopped early, because the collector got no memory; the capture lacks later records";
constexpr std::string_view kNoAnswer = "the recording ended, but CUPTI or the disk did not respond in time; the capture may lack its last records";
constexpr std::string_view kForkNote =
    " fork(s) after CUDA was initialised: CUDA does not work in such a child before it executes another program";

std::uint32_t thread_id() { return static_cast<std::uint32_t>(syscall(SYS_gettid)); }

std::unique_ptr<FileKeeper> make_keeper(const KeeperContext& context) {
  for (Feature* const feature : features())
    if (auto keeper = feature->keeper(context)) return keeper;
  return nullptr;
}

}  // namespace

Recording::Recording(const Options& options)
    : options_(options), keeper_(make_keeper({options_, *this, writer_, source_, notes_})), writer_(options_, source_, notes_, keeper_.get()) {}

bool Recording::start(std::string& error) {
  const BlockedSignals blocked;  // blocks SIGXFSZ too, because a limit on file sizes must not end the program
  if (!writer_.open(error)) return false;
  if (!start_threads(error)) return false;
  if (keeper_ != nullptr) keeper_->begin();
  rings_.store(rings::arm(options_.events_memory()));
  if (options_.records_nvtx()) nvtx::arm(rings_.load());
  annotate::begin(options_, notes_);
  return true;
}

bool Recording::start_threads(std::string& error) {
  const auto begin = [this](std::thread& thread, void (Recording::*run)(), const char* name) {
    thread = std::thread(run, shared_from_this());
    pthread_setname_np(thread.native_handle(), name);
    schedule_as_ordinary_thread(thread.native_handle());
  };
  try {
    begin(flusher_thread_, &Recording::run_flusher, "cutrace-flusher");
    begin(writer_thread_, &Recording::run_writer, "cutrace-writer");
    return true;
  } catch (const std::exception&) {  // no thread or no memory
  }
  {
    const std::lock_guard lock(mutex_);
    enter(State::failed);
  }
  flusher_wake.signal();
  if (flusher_thread_.joinable()) flusher_thread_.join();
  error = "cannot start the threads of the collector; raise the limit on threads (ulimit -u)";
  // The file stays, so that the capture of several processes says what it lacks.
  notes_.add_quietly(error);
  writer_.finish(false);
  return false;
}

bool Recording::enter(State to, std::string_view why) {
  const State from = state_.load();
  if (from == State::ended || to <= from || (from == State::recording && to == State::ended)) return false;
  if (to == State::failed) failure_ = why;
  state_.store(to);
  return true;
}

void Recording::fail() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!enter(State::failed, kNoMemory)) return;
    end_events();
    source_.pool().set_open(false);
  }
  notes_.add(kNoMemory);
}

void Recording::attach_cupti(bool before_cuda) {
  {
    const std::lock_guard lock(mutex_);
    if (!running() || attach_ != Attach::none || !options_.uses_cupti()) return;
    attach_ = Attach::trying;
  }
  try {
    const std::optional<KindSet> attached = source_.attach(options_, before_cuda, notes_);
    attached ? writer_.use_cupti() : writer_.lack_cupti();
    JsonObject json;
    json.texts("kinds", kind_names(attached.value_or(0) | (nvtx::armed.load() != 0 ? bit(Kind::nvtx) : 0)));
    // Marks captures in which launches can be counted from 0. Captures of windows and of the newest rows lack the first launches.
    if (attached && before_cuda && !options_.records_windows() && !options_.keeps_newest()) json.raw("from_start", "true");
    if (source_.library().version != 0) {
      json.number("cupti_version", source_.library().version);
      json.text("cupti_path", source_.library().path);
    }
    notes_.set(json);
    if (attached && keeper_ != nullptr) keeper_->attached(before_cuda);
  } catch (const std::exception&) {
    fail();
    flusher_wake.signal();
    writer_wake.signal();
  }
  const std::lock_guard lock(mutex_);
  attach_ = Attach::tried;
  changed_.notify_all();
}

void Recording::wait_for_attach() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return attach_ != Attach::trying; });
}

bool Recording::is_exiting() {
  const std::lock_guard lock(mutex_);
  return state_.load() != State::recording && at_exit_;
}

void Recording::end_events() {
  nvtx::disarm();
  rings::disarm(rings_.load());
}

void Recording::note_nvtx() {
  JsonObject json;
  json.raw("nvtx", "true");
  notes_.set(json);
}

// ---- requests ----

Outcome Recording::submit(const SharedRequest& request, const std::string& what, std::string& error) {
  const auto patience = std::chrono::milliseconds(options_.patience_ms);
  const auto answered = [&] { return request->stage == Stage::answered; };
  std::list<SharedRequest> added{request};
  error = "the recording ended before it could be " + what;
  std::unique_lock lock(mutex_);
  if (!running()) return Outcome::failed;
  requests_.splice(requests_.end(), added);
  flusher_wake.signal();
  bool done = changed_.wait_for(lock, patience, answered);
  // A request that the writer has started waits only for the disk.
  if (!done && request->stage == Stage::begun) done = changed_.wait_for(lock, patience, answered);
  if (done) {
    if (request->outcome != Outcome::failed || !request->error.empty()) error = request->error;
    return request->outcome;
  }
  if (!request->surely) requests_.remove(request);
  error = "the recording could not be " + what + ", because CUPTI or the disk did not respond in time (patience_ms); it goes on";
  return Outcome::failed;
}

bool Recording::advance(Stage from, Stage to) {
  bool any = false;
  for (const SharedRequest& request : requests_)
    if (request->stage == from) request->stage = to, any = true;
  return any;
}

Recording::SharedRequest Recording::next(Stage from, Stage to, bool of_writer) {
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find_if(requests_, [&](const SharedRequest& request) {
    const bool wanted = of_writer ? request->on_writer != nullptr : request->on_flusher != nullptr;
    return request->stage == from && wanted;
  });
  if (it == requests_.end()) return nullptr;
  (*it)->stage = to;
  return *it;
}

void Recording::answer(Request& request, Outcome outcome) {
  const std::lock_guard lock(mutex_);
  request.outcome = outcome;
  request.stage = Stage::answered;
  std::erase_if(requests_, [&](const SharedRequest& other) { return other.get() == &request; });
  changed_.notify_all();
}

Outcome Recording::carry_out(std::function<Outcome(std::string&)> on_writer, const std::string& what, std::string& error) {
  return submit(std::make_shared<Request>(std::move(on_writer)), what, error);
}

Outcome Recording::carry_out(std::function<void()> on_flusher, std::function<Outcome(std::string&)> on_writer,
                             const std::string& what, std::string& error, bool surely) {
  return submit(std::make_shared<Request>(std::move(on_writer), std::move(on_flusher), surely), what, error);
}

void Recording::post(std::function<void()> on_writer) {
  auto request = std::make_shared<Request>([on_writer = std::move(on_writer)](std::string&) {
    on_writer();
    return Outcome::done;
  });
  const std::lock_guard lock(mutex_);
  if (!running()) return;
  requests_.push_back(std::move(request));
  flusher_wake.signal();
}

Outcome Recording::flush(std::string& error) {
  return carry_out([](std::string&) { return Outcome::done; }, "flushed", error);
}

std::function<void()> Recording::wait_for_gpu() {
  if (!source_.active()) return nullptr;
  return [context = current_context()] { CuptiSource::synchronize(context); };
}

Outcome Recording::synchronize(std::string& error) {
  auto wait = wait_for_gpu();
  if (wait == nullptr) return Outcome::done;
  return carry_out(std::move(wait), nullptr, "synchronized with the GPU", error);
}

Outcome Recording::record_requested_stacks(std::string& error) {
  if (!options_.stacks_later) {
    error = "this recording takes no stacks on request: start it with stacks=later";
    return Outcome::failed;
  }
  wait_for_attach();
  if (!source_.active()) return Outcome::done;  // attach_cupti() records them
  return carry_out(cutrace::record_requested_stacks, nullptr, "asked for stacks", error);
}

Outcome Recording::cut(const std::string& path, std::string& error) {
  if (const char* const why = keeper_ != nullptr ? keeper_->why_not_cut() : nullptr) {
    error = why;
    return Outcome::failed;
  }
  return carry_out(wait_for_gpu(), [this, path](std::string& why) { return writer_.cut(path, why); }, "cut", error);
}

Outcome Recording::dump(const std::string& path, std::string& error) {
  if (keeper_ != nullptr) return keeper_->dump(path, error);
  error = "a recording that keeps all its rows cannot be dumped; record with last=30s to dump it";
  return Outcome::failed;
}

std::string_view Recording::stop(bool at_exit) {
  const auto patience = std::chrono::milliseconds(options_.patience_ms);
  void* const context = options_.synchronize && source_.active() ? current_context() : nullptr;
  annotate::end(options_, notes_, at_exit);
  std::unique_lock lock(mutex_);
  if (enter(State::stopping)) {
    at_exit_ = at_exit;
    context_ = context;
    if (keeper_ != nullptr) keeper_->stopping();
    nvtx::disarm();
    flusher_wake.signal();
    const auto flushed = [&] { return flusher_left_ || state_.load() == State::failed; };
    if (!changed_.wait_for(lock, patience, flushed) && enter(State::failed, kNoAnswer)) {
      notes_.add_quietly("CUPTI did not respond at the end of the recording, so its last records are missing");
      writer_wake.signal();
    }
    rings::disarm(rings_.load());
    source_.pool().set_open(false);
  }
  // At exit the keeper may wait for its files before the writer completes the last one.
  const auto for_files = at_exit && keeper_ != nullptr ? 2 * patience : patience;
  if (!changed_.wait_for(lock, for_files, [&] { return writer_left_.load(); })) enter(State::failed, kNoAnswer);
  if (failure_ != kNoAnswer) changed_.wait_for(lock, patience, [&] { return flusher_left_; });
  const bool written = writer_left_.load(), flushed = flusher_left_;
  const std::string_view error = state_.load() == State::ended && written ? std::string_view(end_error_) : failure_;
  lock.unlock();
  // A thread that has not ended may continue, because it holds a shared_ptr to this recording.
  written ? writer_thread_.join() : writer_thread_.detach();
  flushed ? flusher_thread_.join() : flusher_thread_.detach();
  return error;
}

const char* Recording::forget(std::shared_ptr<Recording> recording) {
  Recording& r = *recording;
  r.writer_.forget();
  r.self_ = std::move(recording);
  return !r.options_.directory.empty() && r.options_.records_nvtx() ? r.options_.text.c_str() : nullptr;
}

// ---- flusher ----

void Recording::run_flusher() {
  is_own_thread = true;
  flusher_id_.store(thread_id());
  flusher_id_.notify_one();
  try {
    flush_loop();
  } catch (const std::exception&) {
    fail();
    try {
      detach(false);
    } catch (const std::exception&) {
    }
  }
  // Runs after the kinds are disabled, so that all records have their events.
  rings::disarm(rings_.load());
  const std::lock_guard lock(mutex_);
  advance(Stage::flushing, Stage::flushed);
  flusher_left_ = true;
  changed_.notify_all();
  writer_wake.signal();
}

void Recording::flush_loop() {
  const std::uint64_t interval = options_.flush_ms * kMillisecond;
  std::uint64_t next_flush = now_ns() + interval;
  for (;;) {
    const State state = wait_for_requests(next_flush);
    if (state == State::failed) return detach(false);
    const bool for_writer = begin_requests();
    if (state == State::stopping) return detach(true);
    if (!for_writer && now_ns() < next_flush) continue;
    source_.flush();
    read_device_info();
    {
      const std::lock_guard lock(mutex_);
      advance(Stage::flushing, Stage::flushed);
      tick_ = true;
    }
    writer_wake.signal();
    next_flush = now_ns() + interval;
  }
}

bool Recording::begin_requests() {
  while (const SharedRequest request = next(Stage::flushing, Stage::flushing, false)) {
    request->on_flusher();
    request->on_flusher = nullptr;
    if (request->on_writer == nullptr) answer(*request, Outcome::done);
  }
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(requests_, [](const SharedRequest& request) { return request->stage == Stage::flushing; });
}

// Returns when there are requests, when the state changes, or at the time `until`.
State Recording::wait_for_requests(std::uint64_t until) {
  for (;;) {
    bool requested = false;
    State state{};
    {
      const std::lock_guard lock(mutex_);
      state = state_.load();
      requested = advance(Stage::submitted, Stage::flushing);
    }
    const std::uint64_t now = now_ns();
    if (state != State::recording || requested || now >= until) return state;
    flusher_wake.wait(until - now);
  }
}

void Recording::read_device_info() {
  if (!writer_.uses_cupti() || !notes_.devices().empty()) return;
  std::vector<DeviceInfo> devices = device_info();
  if (devices.empty()) return;
  JsonObject json;
  if (const std::uint32_t version = driver_version()) json.number("driver_version", version);
  if (const std::string release = driver_release(); !release.empty()) json.text("driver", release);
  if (const std::uint32_t version = runtime_version()) json.number("runtime_version", version);
  notes_.set_devices(std::move(devices));
  notes_.set(json);
}

// Detaches from CUPTI.
void Recording::detach(bool in_order) {
  wait_for_attach();
  if (!writer_.uses_cupti()) return;
  if (in_order) read_device_info();
  const bool waited = source_.detach(in_order && at_exit_, in_order && options_.synchronize, context_, [this] { return writes(); });
  if (!waited)
    notes_.add_quietly(
        "cutrace did not wait for the GPU at the end, because the program was capturing a stream: unfinished work is missing");
}

// ---- writer ----

void Recording::run_writer() {
  is_own_thread = true;
  try {
    write_loop();
  } catch (const std::exception&) {
    fail();
    try {
      end_error_ = writer_.finish(false);
    } catch (const std::exception&) {
    }
  }
  const std::lock_guard lock(mutex_);
  enter(State::ended);
  for (const SharedRequest& request : requests_) request->stage = Stage::answered;
  requests_.clear();
  writer_left_.store(true);
  changed_.notify_all();
  flusher_wake.signal();
}

void Recording::write_loop() {
  // The writer knows both threads before it reads a buffer, because their calls get no rows.
  flusher_id_.wait(0);
  writer_.ignore_thread(flusher_id_.load());
  writer_.ignore_thread(thread_id());
  const std::uint64_t interval = options_.flush_ms * kMillisecond;
  std::uint64_t next_write = now_ns() + interval;
  for (;;) {
    bool due = false, flushed = false, failed = false;
    {
      // Takes requests before it drains, so that the blocks of a request have all records that were flushed for it.
      const std::lock_guard lock(mutex_);
      due = advance(Stage::flushed, Stage::written) || tick_;
      tick_ = false;
      failed = state_.load() == State::failed;
      flushed = flusher_left_;
    }
    writer_.drain();
    if (failed) return static_cast<void>(end_error_ = writer_.finish(false));
    const std::uint64_t now = now_ns();
    if (due || flushed || now >= next_write) {
      const std::uint64_t forks = forks_.load();
      if (forks != std::exchange(forks_noted_, forks)) notes_.count(forks, kForkNote);
      writer_.write_out();
      next_write = now + interval;
    }
    while (const SharedRequest request = next(Stage::written, Stage::begun, true)) answer(*request, request->on_writer(request->error));
    if (keeper_ != nullptr && !flushed) keeper_->round();
    if (flushed) {
      const bool in_order = state_.load() == State::stopping;
      writer_.count_lost();
      if (in_order && keeper_ != nullptr) keeper_->end(at_exit_);
      return static_cast<void>(end_error_ = writer_.finish(in_order));
    }
    writer_wake.wait(next_write > now ? next_write - now : 0);
  }
}

}  // namespace cutrace
