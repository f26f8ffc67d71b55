#include "session.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

namespace cutrace {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kClockInterval = 1000 * kMillisecond;
constexpr std::uint64_t kNameInterval = 2000 * kMillisecond;
constexpr std::uint32_t kSpareBuffers = 16;
constexpr const char* kGraphNote =
    " kernels of CUDA graphs came without times: CUPTI ran out of its buffers on the GPU, which version "
    "13.0 does not reuse after graphs; record with graph=graph, or raise device_buffers";

std::uint32_t thread_id() { return static_cast<std::uint32_t>(syscall(SYS_gettid)); }

std::string file_path(const Options& options, std::uint64_t instance) {
  if (!options.output.empty()) return options.output;
  char name[64];
  std::snprintf(name, sizeof name, "/%d-%016llx.bin", static_cast<int>(getpid()),
                static_cast<unsigned long long>(instance));
  return options.directory + name;
}

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

}  // namespace

Wake& Session::writer_wake() {
  static auto* wake = new Wake;
  return *wake;
}

Session::Session(const Options& options)
    : options_(options),
      started_(now_ns()),
      wake_(writer_wake()),
      capture_(options.max_memory / 8),
      activity_(source_.library(), capture_),
      nvtx_(capture_, started_),
      process_(process_identity(options, started_)),
      segments_(options),
      file_began_(started_) {}

std::unique_ptr<Session> Session::start(const Options& options, std::string& error) {
  std::unique_ptr<Session> session(new Session(options));
  const std::uint64_t instance = random_instance();
  BlockFile& file = session->capture_.file();
  const BlockedSignals blocked;  // a limit on the size of files (SIGXFSZ) must not end the program
  const auto pid = static_cast<std::uint32_t>(getpid());
  if (!file.create(file_path(options, instance), options.file_mode, pid, instance, error)) return nullptr;
  file.set_size_limit(options.max_size);
  if (!session->capture_.process(session->process_.str(), true)) {
    error = "cannot write the capture '" + file.path() + "' (" + std::strerror(file.last_errno()) +
            "); choose a place with room";
    return nullptr;
  }
  session->capture_.add(clock_snapshot());
  session->next_clock_ = now_ns() + kClockInterval;
  session->refused_seen_ = session->source_.pool().refused();
  nvtx::set_ring_memory(options.max_memory / 4);
  nvtx::wake = &session->wake_;
  nvtx::epoch.fetch_add(1);
  nvtx::recording.store(options.nvtx && (options.kinds & bit(Kind::nvtx)));
  if (!session->start_threads(error)) {
    nvtx::recording.store(false);
    return nullptr;
  }
  session->take_signal();
  return session;
}

template <void (Session::*Loop)()>
void* Session::thread_main(void* self) {
  auto* session = static_cast<Session*>(self);
  try {
    (session->*Loop)();
  } catch (const std::exception& e) {  // no memory: the capture ends here, the program does not
    std::fprintf(stderr, "cutrace: recording stopped: %s\n", e.what());
    nvtx::recording.store(false);
    session->source_.pool().set_open(false);
    const std::lock_guard lock(session->mutex_);
    session->flusher_done_ = session->writer_done_ = true;
    session->changed_.notify_all();
  }
  return nullptr;
}

bool Session::start_threads(std::string& error) {
  const BlockedSignals blocked;
  if (pthread_create(&writer_, nullptr, thread_main<&Session::write_loop>, this) != 0) {
    error = "cannot start the writer thread; raise the limit on threads (ulimit -u)";
    return false;
  }
  pthread_setname_np(writer_, "cutrace-writer");
  if (pthread_create(&flusher_, nullptr, thread_main<&Session::flush_loop>, this) != 0) {
    error = "cannot start the flusher thread; raise the limit on threads (ulimit -u)";
    finish_.store(true);
    wake_.signal();
    pthread_join(writer_, nullptr);
    return false;
  }
  pthread_setname_np(flusher_, "cutrace-flusher");
  threads_started_ = true;
  return true;
}

void Session::attach_cupti(bool before_cuda) {
  {
    const std::lock_guard lock(mutex_);
    if (attach_tried_ || (options_.kinds & ~bit(Kind::nvtx)) == 0) return;
    attach_tried_ = true;
  }
  const CuptiSource::Report report = source_.attach(options_, wake_, before_cuda);
  const std::lock_guard lock(mutex_);
  attached_ = report.active;
  if (source_.library().version != 0) {
    news_.number("cupti_version", source_.library().version);
    news_.text("cupti_path", source_.library().path);
  }
  std::vector<std::string> kinds = report.kinds;
  if (nvtx::recording.load()) kinds.push_back(kind_name(Kind::nvtx));
  news_.texts("kinds", kinds);
  for (const std::string& note : report.notes) {
    notes_.push_back(note);
    std::fprintf(stderr, "cutrace: %s\n", note.c_str());
  }
  note_refusals(report.refused);
  if (!notes_.empty()) news_.texts("notes", notes_);
}

void Session::note_refusals(const std::vector<Refusal>& refused) {
  for (; refusals_noted_ < refused.size(); ++refusals_noted_) {
    const Refusal& refusal = refused[refusals_noted_];
    notes_.push_back("CUPTI refused to record " + refusal.what + " (" + refusal.error + ")");
    news_.texts("notes", notes_);
  }
}

void Session::note_nvtx() {
  const std::lock_guard lock(mutex_);
  news_.raw("nvtx", "true");
}

std::vector<std::string> Session::notes() {
  const std::lock_guard lock(mutex_);
  return notes_;
}

bool Session::flush(std::uint32_t milliseconds) {
  std::unique_lock lock(mutex_);
  const std::uint64_t wanted = ++flush_wanted_;
  changed_.notify_all();
  return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return written_ >= wanted || writer_done_; });
}

bool Session::synchronize() {
  if (!source_.active()) return true;
  void* const context = current_context();
  std::unique_lock lock(mutex_);
  const std::uint64_t wanted = ++synchronize_wanted_;
  context_ = context;
  changed_.notify_all();
  return changed_.wait_for(lock, std::chrono::milliseconds(options_.patience_ms),
                           [&] { return synchronized_ >= wanted || flusher_done_; });
}

bool Session::stop(bool at_exit) {
  nvtx::recording.store(false);
  void* const context = options_.synchronize && source_.active() ? current_context() : nullptr;
  const auto patience = std::chrono::milliseconds(options_.patience_ms);
  const bool dumped = end_dumps(at_exit);
  std::unique_lock lock(mutex_);
  stop_wanted_ = true;
  at_exit_ = at_exit;
  context_ = context;
  changed_.notify_all();
  const bool flushed = changed_.wait_for(lock, patience, [&] { return flusher_done_; });
  if (!flushed) {
    notes_.push_back("CUPTI did not answer at the end of the recording, so its last records are missing");
    news_.texts("notes", notes_);
  }
  source_.pool().set_open(false);
  finish_.store(true);
  wake_.signal();
  const bool written = changed_.wait_for(lock, patience, [&] { return writer_done_; });
  lock.unlock();
  if (flushed) pthread_join(flusher_, nullptr);
  if (written) pthread_join(writer_, nullptr);
  return flushed && written && dumped;
}

// ---- writer thread ----

void Session::write_loop() {
  activity_.ignore_thread(thread_id());
  std::uint64_t seen_ticks = 0, seen_flushes = 0, ignored_flusher = 0;
  std::uint64_t next_write = now_ns() + options_.flush_ms * kMillisecond;
  for (;;) {
    const bool last = finish_.load(std::memory_order_acquire);
    // Read before draining: what was flushed before these counts must be in the blocks written below.
    const std::uint64_t ticks = ticks_.load(std::memory_order_acquire);
    const std::uint64_t flushes = flushed_.load(std::memory_order_acquire);
    if (ignored_flusher == 0 && (ignored_flusher = flusher_id_.load()) != 0)
      activity_.ignore_thread(static_cast<std::uint32_t>(ignored_flusher));
    drain();
    if (last) return finish();
    const std::uint64_t now = now_ns();
    if (ticks != seen_ticks || flushes != seen_flushes || now >= next_write) {
      periodic(now);
      seen_ticks = ticks;
      next_write = now + options_.flush_ms * kMillisecond;
      if (flushes != seen_flushes) {
        seen_flushes = flushes;
        std::unique_lock lock(mutex_);
        written_ = flushes;
        changed_.notify_all();
        if (cut_.state == CutRequest::State::wanted && cut_.after <= flushes) {
          cut_.state = CutRequest::State::working;
          const std::string path = cut_.path;
          const bool dump = cut_.dump;
          lock.unlock();
          if (dump) open_segments();
          else cut_file(path);
        }
      }
    }
    wake_.wait(next_write > now ? next_write - now : 0);
  }
}

void Session::drain() {
  BufferPool& pool = source_.pool();
  const auto decode = [this](std::uint8_t* buffer, std::size_t valid) {
    activity_.decode(buffer, valid);
    if (options_.keeps_newest() && segments_.full(capture_.file().size())) keep_newest(now_ns());
  };
  if (const std::size_t count = pool.drain(decode); count != 0) {
    count_dropped();
    pool.dealt_with(count);
  }
  nvtx_.drain();
  if (source_.active()) pool.prepare(kSpareBuffers);
}

void Session::count_dropped() {
  const std::uint64_t dropped = source_.take_dropped();
  const std::uint64_t refused = source_.pool().refused();
  const bool memory = refused != refused_seen_;  // CUPTI dropped because it was given no buffer
  refused_seen_ = refused;
  capture_.lose(memory ? rows::Loss::memory_limit : rows::Loss::cupti_dropped, dropped, "activity records");
  (memory ? stats_.discarded : stats_.dropped).fetch_add(dropped, std::memory_order_relaxed);
}

void Session::periodic(std::uint64_t now) {
  if (now >= next_clock_) {
    capture_.add(clock_snapshot());
    next_clock_ = now + kClockInterval;
  }
  if (now >= next_names_) {
    add_thread_names(capture_, thread_names_);
    next_names_ = now + kNameInterval;
  }
  // While it goes on too, and again each time that there are twice as many.
  if (activity_.graph_kernels_without_times() > 2 * graph_kernels_noted_) tell_of_graphs();
  update_process();
  write_devices(false);
  activity_.release();
  capture_.flush();
  tell_of_disk();
  if (options_.keeps_newest()) keep_newest(now);
  publish_stats();
}

// Once, when it happens: later there may be no file to say it in.
void Session::tell_of_disk() {
  const int error = capture_.file().last_errno();
  if (disk_told_ || error == 0) return;
  disk_told_ = true;
  const std::string note = "the capture '" + capture_.file().path() + "' could not be written (" + std::strerror(error) +
                           "); what does not fit is counted as lost, so make room or choose another place";
  std::fprintf(stderr, "cutrace: %s\n", note.c_str());
  const std::lock_guard lock(mutex_);
  notes_.push_back(note);
  news_.texts("notes", notes_);
}

// Device records come from CUPTI, some facts from the driver once the program has initialised it. `now`: with or without.
void Session::write_devices(bool now) {
  std::vector<DeviceFacts> facts;
  {
    const std::lock_guard lock(mutex_);
    if (facts_.empty() && !now) return;
    facts = facts_;
  }
  for (ActivityDecoder::Device& device : activity_.devices()) {
    if (device.written) continue;
    std::string pci;
    for (const DeviceFacts& f : facts) {
      if (f.device != device.row.device) continue;
      pci = f.pci;
      device.row.memory_clock = f.memory_clock;
      device.row.max_threads_per_multiprocessor = f.max_threads_per_multiprocessor;
      device.row.shared_per_block_optin = f.shared_per_block_optin;
      device.row.shared_reserved_per_block = f.shared_reserved_per_block;
    }
    capture_.fact(device.row, device.name, pci);
    device.written = !facts.empty();  // else once more when they are known
  }
}

void Session::update_process() {
  std::string json;
  {
    const std::lock_guard lock(mutex_);
    if (news_.empty() && !identity_missing_) return;
    process_.merge(news_);
    json = identity_missing_ ? process_.str() : news_.str();
    news_ = {};
  }
  identity_missing_ = !capture_.process(json, true);
}

void Session::end_process() {
  JsonObject json;
  json.number("ended", now_ns());
  capture_.process(json.str(), true);
}

void Session::tell_of_graphs() {
  const std::uint64_t count = activity_.graph_kernels_without_times();
  if (graph_kernels_noted_ == 0)
    std::fprintf(stderr, "cutrace: %llu%s\n", static_cast<unsigned long long>(count), kGraphNote);
  graph_kernels_noted_ = count;
  const std::lock_guard lock(mutex_);
  std::erase_if(notes_, [](const std::string& note) { return note.ends_with(kGraphNote); });
  notes_.push_back(std::to_string(count) + kGraphNote);
  news_.texts("notes", notes_);
}

// All that the end of a file needs, but for the process block that says so.
void Session::complete_file() {
  if (activity_.graph_kernels_without_times() != graph_kernels_noted_) tell_of_graphs();
  {
    const std::lock_guard lock(mutex_);
    if (attached_) note_refusals(source_.refused_kinds());
  }
  // Each file that was cut says it; the files of one capture together say it once.
  if (!options_.keeps_newest() || !refusals_counted_)
    for (const Refusal& refusal : source_.refused_kinds()) {
      capture_.lose(rows::Loss::kind_refused, 1, refusal.what);
      refusals_counted_ = true;
    }
  add_thread_names(capture_, thread_names_);
  write_devices(true);
  activity_.release();
  capture_.add(clock_snapshot());
  update_process();
  capture_.flush(true);
}

void Session::finish() {
  nvtx_.finish();
  count_dropped();
  complete_file();
  tell_of_disk();
  end_process();
  publish_stats();
  const std::string name = "the capture '" + capture_.file().path() + "' ";
  if (capture_.file().removed())
    close_error_ = name + "was removed while it was written, and what it held is gone; record into a folder that nobody cleans";
  if (!capture_.file().close())
    close_error_ = name + "could not be closed (" + std::strerror(capture_.file().last_errno()) +
                   "), so its last rows may be missing; is there room on the disk?";
  const std::lock_guard lock(mutex_);
  writer_done_ = true;
  changed_.notify_all();
}

void Session::publish_stats() {
  stats_.rows.store(capture_.rows(), std::memory_order_relaxed);
  stats_.bytes.store(capture_.file().bytes(), std::memory_order_relaxed);
  stats_.blocks.store(capture_.file().blocks(), std::memory_order_relaxed);
  stats_.nvtx_events.store(nvtx_.events(), std::memory_order_relaxed);
  stats_.memory.store(capture_.memory() + source_.pool().memory() + nvtx::ring_memory(), std::memory_order_relaxed);
}

// ---- flusher thread ----

void Session::flush_loop() {
  flusher_id_.store(thread_id());
  using Clock = std::chrono::steady_clock;
  const auto interval = std::chrono::milliseconds(options_.flush_ms);
  std::unique_lock lock(mutex_);
  for (auto next = Clock::now() + interval; !stop_wanted_;) {
    const std::uint64_t done = flushed_.load();
    const auto due = [&] { return stop_wanted_ || flush_wanted_ != done || synchronize_wanted_ != synchronized_; };
    changed_.wait_until(lock, next, due);
    if (stop_wanted_) break;
    if (const std::uint64_t waits = synchronize_wanted_; waits != synchronized_) {
      void* const context = context_;
      lock.unlock();
      synchronize_contexts(context, source_.captures());
      lock.lock();
      synchronized_ = waits;
      changed_.notify_all();
      if (stop_wanted_ || (flush_wanted_ == done && Clock::now() < next)) continue;
    }
    const std::uint64_t wanted = flush_wanted_;
    lock.unlock();
    source_.flush();
    gather_device_facts();
    flushed_.store(wanted, std::memory_order_release);
    ticks_.fetch_add(1, std::memory_order_release);
    wake_.signal();
    lock.lock();
    next = Clock::now() + interval;
  }
  const bool attached = attached_, at_exit = at_exit_;
  bool waited = true;
  void* const context = context_;
  lock.unlock();
  if (attached) {
    gather_device_facts();
    waited = source_.detach(at_exit, options_.synchronize, context);
  }
  const std::string kept = attached ? source_.kept_back() : std::string();
  lock.lock();
  if (!kept.empty()) notes_.push_back("CUPTI did not hand out its last records (" + kept + "), so they are missing");
  if (!waited)
    notes_.push_back(
        "the GPU was not waited for at the end, because the program was capturing a stream: work that still ran is missing");
  if (!kept.empty() || !waited) news_.texts("notes", notes_);
  flusher_done_ = true;
  changed_.notify_all();
}

void Session::gather_device_facts() {
  {
    const std::lock_guard lock(mutex_);
    if (!attached_ || !facts_.empty()) return;
  }
  std::vector<DeviceFacts> facts = device_facts();
  if (facts.empty()) return;
  const std::uint32_t driver = driver_version(), runtime = runtime_version();
  const std::string release = driver_release();
  const std::lock_guard lock(mutex_);
  facts_ = std::move(facts);
  if (driver != 0) news_.number("driver_version", driver);
  if (!release.empty()) news_.text("driver", release);
  if (runtime != 0) news_.number("runtime_version", runtime);
}

}  // namespace cutrace
