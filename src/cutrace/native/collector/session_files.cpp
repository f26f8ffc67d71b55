// The files of a recording: cutting it, keeping only its newest rows, dumping those.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "session.h"

namespace cutrace {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

}  // namespace

// ---- threads that ask ----

Session::CutRequest Session::ask(bool dump, const std::string& path) {
  using State = CutRequest::State;
  const auto patience = std::chrono::milliseconds(options_.patience_ms);
  CutRequest failed;
  failed.result = Cut::failed;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, patience, [&] { return cut_.state == State::none || writer_done_; })) {
    failed.error = "another thread is cutting this recording and does not come to an end; the recording goes on";
    return failed;
  }
  cut_ = {};
  cut_.state = State::wanted;
  cut_.after = ++flush_wanted_;
  cut_.dump = dump;
  cut_.path = path;
  changed_.notify_all();
  const bool answered =
      changed_.wait_for(lock, patience, [&] { return cut_.state == State::answered || writer_done_; });
  // What the writer has begun it will end: only a disk can hold it up then.
  if (!answered && cut_.state == State::working)
    changed_.wait_for(lock, patience, [&] { return cut_.state == State::answered || writer_done_; });
  CutRequest request = std::exchange(cut_, {});
  changed_.notify_all();
  if (request.state == State::answered) return request;
  const std::string what = dump ? "dumped" : "cut";
  failed.error = writer_done_ ? "the recording ended before it could be " + what
                              : "the recording could not be " + what +
                                    ", because CUPTI or the disk did not answer in time; it goes on";
  return failed;
}

Session::Cut Session::cut(const std::string& path, std::string& error) {
  if (options_.keeps_newest()) {
    error = "a recording that keeps only its newest rows cannot be cut; dump it, or record without last and rotate";
    return Cut::failed;
  }
  CutRequest request = ask(false, path);
  error = std::move(request.error);
  return request.result;
}

Session::Cut Session::gather(std::vector<OpenFile>& files, std::string& error) {
  if (!options_.keeps_newest()) {
    error = "this recording keeps all its rows and ends in one file; record with last=30s to dump it while it goes on";
    return Cut::failed;
  }
  CutRequest request = ask(true, {});
  error = std::move(request.error);
  files = std::move(request.files);
  return request.result;
}

Session::Cut Session::dump(const std::string& path, std::string& error) {
  std::vector<OpenFile> files;
  const Cut result = gather(files, error);
  if (result != Cut::done) return result;
  return write_dump(files, path, options_.file_mode, error) ? Cut::done : Cut::failed;
}

// ---- the thread that waits for the signal ----

void Session::take_signal() {
  if (!options_.keeps_newest() || options_.dump.empty()) return;
  std::string note;
  if (!DumpSignal::take()) {
    note = "SIGUSR2 has a meaning in this program already, so it dumps nothing; cutrace.dump() does";
  } else {
    const auto run = [](void* self) -> void* { return static_cast<Session*>(self)->dump_loop(), nullptr; };
    dumps_on_signal_ = pthread_create(&dumper_, nullptr, run, this) == 0;
    if (dumps_on_signal_) return static_cast<void>(pthread_setname_np(dumper_, "cutrace-dump"));
    DumpSignal::release();
    note = "SIGUSR2 dumps nothing, because there can be no more threads; raise the limit on threads (ulimit -u)";
  }
  const std::lock_guard lock(mutex_);
  notes_.push_back(note);
  news_.texts("notes", notes_);
}

void Session::dump_loop() {
  for (;;) {
    DumpSignal::wait();
    {
      const std::lock_guard lock(mutex_);
      if (dumps_end_) {
        dumper_done_ = true;
        changed_.notify_all();
        return;
      }
    }
    std::string error, written;
    try {
      std::vector<OpenFile> files;
      const Cut result = gather(files, error);
      if (result == Cut::nothing) error = "there is nothing to dump yet";
      if (result == Cut::done) write_numbered_dump(files, options_.dump, options_.file_mode, written, error);
    } catch (const std::exception& e) {
      error = std::string("the recording could not be dumped (") + e.what() + "); it goes on";
    }
    if (error.empty()) std::fprintf(stderr, "cutrace: %s holds what was recorded last\n", written.c_str());
    else std::fprintf(stderr, "cutrace: %s\n", error.c_str());
  }
}

// False when a dump that has begun does not come to its end in time.
bool Session::end_dumps(bool at_exit) {
  if (!dumps_on_signal_) return true;
  {
    const std::lock_guard lock(mutex_);
    dumps_end_ = true;
  }
  DumpSignal::wake();
  std::unique_lock lock(mutex_);
  const bool done =
      changed_.wait_for(lock, std::chrono::milliseconds(options_.patience_ms), [&] { return dumper_done_; });
  lock.unlock();
  if (done) pthread_join(dumper_, nullptr);
  // At exit the signal stays harmless: whoever sends it does not know that the program is about to end.
  if (!at_exit) DumpSignal::release();
  return done;
}

// ---- writer thread ----

void Session::answer(Cut result, std::string error, std::vector<OpenFile> files) {
  const std::lock_guard lock(mutex_);
  if (cut_.state != CutRequest::State::working) return;  // its caller has given up
  cut_.state = CutRequest::State::answered;
  cut_.result = result;
  cut_.error = std::move(error);
  cut_.files = std::move(files);
  changed_.notify_all();
}

// Completes the file under the name `path` and goes on in a new one. Returns what the file holds; nothing when it could not
// be left, and is the one that is being written as before.
std::optional<Capture::Contents> Session::split(const std::string& path, std::string& error) {
  BlockFile& file = capture_.file();
  if (!file.prepare_next(error)) return std::nullopt;
  complete_file();
  std::optional<Capture::Contents> contents;
  if (file.move_to(path, error)) {
    end_process();
    file.switch_to_next(error);
    nvtx_.begin_file();
    identity_missing_ = !capture_.process(process_.str(), true);
    contents = capture_.begin_file();
    capture_.add(clock_snapshot());
    file_began_ = now_ns();
    next_clock_ = file_began_ + kSecond;
  }
  publish_stats();
  return contents;
}

void Session::cut_file(const std::string& path) {
  std::string error;
  if (source_.active()) count_dropped();
  if (capture_.events() == 0) return answer(Cut::nothing, {});
  const bool done = split(path, error).has_value() && error.empty();
  answer(done ? Cut::done : Cut::failed, std::move(error));
}

bool Session::next_segment(std::string& error) {
  BlockFile& file = capture_.file();
  const std::uint64_t before = file.bytes() - file.size();
  Segment segment;
  segment.path = segments_.next_path(file.path());
  auto contents = split(segment.path, error);
  if (!contents) return false;
  segment.end = now_ns();
  segment.bytes = file.bytes() - file.size() - before;
  segment.contents = std::move(*contents);
  segments_.add(std::move(segment));
  return true;
}

void Session::keep_newest(std::uint64_t now) {
  const bool due = segments_.full(capture_.file().size()) ||
                   (capture_.events() != 0 && segments_.old(file_began_, now));
  if (due && now >= next_split_) {
    std::string error;
    if (!next_segment(error)) {
      if (next_split_ == 0) std::fprintf(stderr, "cutrace: older rows cannot be let go: %s\n", error.c_str());
      next_split_ = now + kSecond;
    }
  }
  const std::vector<Segment> gone = segments_.take_oldest(now);
  if (gone.empty()) return;
  for (const Segment& segment : gone) capture_.let_go(segment.contents);
  // What is lost is on the disk before it is lost.
  capture_.flush();
  for (const Segment& segment : gone) ::unlink(segment.path.c_str());
}

void Session::open_segments() {
  std::string error;
  if (source_.active()) count_dropped();
  const bool nothing = capture_.events() == 0 && segments_.kept().empty();
  if (nothing) return answer(Cut::nothing, {});
  const bool split = next_segment(error);
  keep_newest(now_ns());
  if (!split) return answer(Cut::failed, std::move(error));
  std::vector<OpenFile> files;
  for (const Segment& segment : segments_.kept()) files.emplace_back(segment.path);
  answer(Cut::done, {}, std::move(files));
}

}  // namespace cutrace
