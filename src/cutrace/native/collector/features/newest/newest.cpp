#include "newest.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "core/blocked_signals.h"
#include "core/recording.h"
#include "core/wake.h"
#include "dump.h"
#include "features/stream_captures/capture_watch.h"
#include "features/triggers/triggers.h"

namespace cutrace {
namespace {

// A file holds 1/kParts of the time or size to keep. So up to 1/kParts more time is kept, or up to 1/kParts of the size is
// unused.
constexpr std::uint64_t kParts = 8;
// The time that the end of a recording waits for dumps while the program continues. Dumps on a fast disk are then complete.
constexpr std::uint64_t kShortWaitMs = 250;
// The time that an exit waits for the dumps of ended recordings.
std::atomic<std::uint32_t> patience_ms{0};

std::string given_up(const std::string& path) {
  return "the dump '" + path + "' was given up at the end of the program, because its disk did not take it in time "
         "(patience_ms); choose a faster disk";
}

class Newest final : public FileKeeper {
 public:
  explicit Newest(const KeeperContext& context)
      : options_(context.options),
        recording_(context.recording),
        writer_(context.writer),
        source_(context.source),
        notes_(context.notes),
        triggers_(options_.dump_when, options_.dump_limit, options_.dump_pause_ms * 1'000'000, options_.last_ms * 1'000'000) {}

  Watcher& watcher() override { return triggers_; }
  void begin() override;
  void buffer_read() override {
    if (file_is_full()) keep_newest();
  }
  void before_write() override;
  void after_write() override { keep_newest(); }
  void round() override;
  void end(bool at_exit) override;
  Outcome dump(const std::string& path, std::string& error) override;
  const char* why_not_cut() const override {
    return "a recording of the newest rows cannot be cut; dump it, or record without last and rotate";
  }

 private:
  struct Segment {
    std::shared_ptr<KeptFile> file;
    std::uint64_t end = 0;  // time of its completion
    std::uint64_t bytes = 0;
    Capture::Contents contents;
  };
  // The dump that a signal or the triggers have requested. The thread that writes the dump ends the state `writing`.
  //
  //   none ─▶ wanted ─▶ writing ─▶ written, failed ─▶ none
  enum class DumpState : std::uint8_t { none, wanted, writing, written, failed };

  Capture& capture() { return writer_.capture(); }
  bool file_is_full() {
    return options_.max_size != 0 && capture().file().size() >= options_.max_size / kParts;
  }
  bool rotate(std::string& error);
  void keep_newest();
  void write_marks();
  Outcome take_files(KeptFiles& files, std::string& error);
  void start_dump();
  bool write_beside(Dump& dump, const std::vector<std::string>& reasons) noexcept;
  static void report(std::string sentence, const std::vector<std::string>& reasons);

  const Options& options_;
  Recording& recording_;
  Writer& writer_;
  CuptiSource& source_;
  Notes& notes_;
  Triggers triggers_;
  std::deque<Segment> kept_;
  std::uint64_t kept_bytes_ = 0;
  unsigned segments_ = 0;            // so far
  std::uint64_t next_rotation_ = 0;  // the earliest next attempt after a failed rotation
  std::atomic<bool> takes_signals_{false};
  std::atomic<DumpState> dump_{DumpState::none};
};

void Newest::begin() {
  patience_ms.store(options_.patience_ms);
  if (options_.dump.empty()) return;
  takes_signals_ = dump_signal::take();
  if (!takes_signals_)
    notes_.add_quietly("this program handles SIGUSR2 itself, so the signal writes no dump; call cutrace.dump() instead");
}

// ---- rotation ----

// Completes the file: 12-ab.bin becomes 12-ab-000001.bin, which sorts before it.
bool Newest::rotate(std::string& error) {
  BlockFile& file = capture().file();
  const std::uint64_t before = file.bytes() - file.size();
  std::string path = numbered_path(file.path(), ++segments_, 6);
  auto contents = writer_.split(path, error);
  if (!contents) return false;
  const std::uint64_t bytes = file.bytes() - file.size() - before;
  kept_.push_back({std::make_shared<KeptFile>(std::move(path)), now_ns(), bytes, std::move(*contents)});
  kept_bytes_ += bytes;
  return true;
}

// Completes the file when it is full or old enough. Deletes the files that are older than last_ms, and the oldest files that
// exceed max_size together with the current file.
void Newest::keep_newest() {
  const std::uint64_t now = now_ns(), window = options_.last_ms * 1'000'000, room = options_.max_size;
  // Rows before the moment of a dump are kept until the dump starts.
  const std::uint64_t newest = triggers_.moment() != 0 ? std::min(now, triggers_.moment()) : now;
  const bool old = window != 0 && now - writer_.file_began_at() >= window / kParts && capture().events() != 0;
  std::string error;
  if ((old || file_is_full()) && now >= next_rotation_ && !rotate(error)) {
    if (next_rotation_ == 0) notes_.add("older rows cannot be deleted: " + error);
    next_rotation_ = now + kSecondNs;
  }
  std::vector<Segment> expired;
  while (!kept_.empty() && ((window != 0 && kept_.front().end + window < newest) || (room != 0 && kept_bytes_ > room - room / kParts))) {
    kept_bytes_ -= kept_.front().bytes;
    expired.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
  if (expired.empty()) return;
  for (const Segment& segment : expired) capture().rotated_out(segment.contents);
  // Write the losses before deleting the rows.
  capture().flush();
  for (const Segment& segment : expired) {
    if (segment.file.use_count() > 1) segment.file->hold();  // for a dump
    segment.file->remove();
  }
}

// ---- conditions ----

// Adds the moments of a dump to the timeline.
void Newest::write_marks() {
  for (const Triggers::Mark& mark : triggers_.take_marks()) {
    rows::NvtxMarks row;
    row.time = mark.time;
    row.name = capture().string(mark.text);
    row.thread = mark.thread != 0 ? mark.thread : static_cast<std::uint32_t>(getpid());
    row.source = 1;
    capture().add(row);
  }
}

// All work from before a moment is recorded when all buffers that were requested before that moment are read. CUPTI holds back a
// buffer while work in it is running.
void Newest::before_write() {
  if (options_.dump_when.empty()) return;
  writer_.count_dropped();
  const std::uint64_t drained = writer_.drained_at();
  if (writer_.uses_cupti())
    triggers_.settle(source_.pool().unread(writer_.started_at(), drained).oldest - Watcher::kSettling, drained, capture_watch().times());
  write_marks();
}

// ---- dumps ----

Outcome Newest::take_files(KeptFiles& files, std::string& error) {
  if (!rotate(error)) return Outcome::failed;
  for (const Segment& segment : kept_) files.push_back(segment.file);
  return Outcome::done;
}

Outcome Newest::dump(const std::string& path, std::string& error) {
  const auto files = std::make_shared<KeptFiles>();
  const auto take = [this, files](std::string& why) {
    writer_.count_dropped();
    if (capture().events() == 0 && kept_.empty()) return Outcome::nothing;
    keep_newest();
    return take_files(*files, why);
  };
  const Outcome outcome = recording_.carry_out(take, "dumped", error);
  if (outcome != Outcome::done) return outcome;
  const BlockedSignals blocked(BlockedSignals::Which::of_writes);
  return Dump(std::move(*files), path, false, options_.file_mode).write(error).empty() ? Outcome::failed : Outcome::done;
}

void Newest::round() {
  const DumpState state = dump_.load();
  if (state == DumpState::written || state == DumpState::failed) {
    triggers_.end_dump(state == DumpState::written);
    dump_.store(DumpState::none);
  }
  if (dump_.load() != DumpState::none) return;
  const bool signalled = takes_signals_ && dump_signal::requested();
  if (!signalled && !triggers_.due(now_ns())) return;
  dump_.store(DumpState::wanted);
  recording_.post([this] {
    if (dump_.load() == DumpState::wanted) start_dump();
  });
}

void Newest::report(std::string sentence, const std::vector<std::string>& reasons) {
  for (std::size_t i = 0; i < reasons.size(); ++i) sentence += (i == 0 ? ": " : "; ") + reasons[i];
  tell(sentence);
}

// Gives the wanted dump its files, and starts a thread that writes it.
void Newest::start_dump() {
  dump_.store(DumpState::failed);  // replaced below on success
  writer_.count_dropped();
  const bool triggered = triggers_.due(now_ns());  // a range that hangs can request a dump before other rows exist
  if (capture().events() == 0 && kept_.empty() && !triggered) return report("there is nothing to dump yet", {});
  keep_newest();
  std::vector<std::string> reasons;
  if (triggered) {
    reasons = triggers_.begin_dump();
    JsonObject json;
    json.texts("dumped_because", reasons);
    capture().process(json.str(), true);
  }
  KeptFiles files;
  std::string error;
  if (take_files(files, error) != Outcome::done) return report(error, reasons);
  const auto dump = std::make_shared<Dump>(std::move(files), options_.dump, true, options_.file_mode);
  const auto write = [this, recording = recording_.shared_from_this(), dump, reasons] {
    ::pthread_setname_np(::pthread_self(), "cutrace-dump");
    dump_.store(write_beside(*dump, reasons) ? DumpState::written : DumpState::failed);
    writer_wake.signal();
  };
  dump_.store(DumpState::writing);
  try {
    std::thread(write).detach();
  } catch (const std::exception&) {
    dump_.store(DumpState::failed);
    report("cannot write the dump '" + options_.dump + "': no thread can be started; raise the limit on threads (ulimit -u)", reasons);
  }
}

bool Newest::write_beside(Dump& dump, const std::vector<std::string>& reasons) noexcept {
  try {
    std::string error;
    const std::string name = dump.write(error);
    if (!name.empty()) error = name + " holds the newest rows";
    if (!error.empty()) report(error, reasons);
    return !name.empty();
  } catch (const std::exception&) {
    tell("cannot write a dump, because the collector got no memory");
    return false;
  }
}

void Newest::end(bool at_exit) {
  const DumpState state = dump_.load();
  // A running dump covers its moments.
  if (state > DumpState::wanted) triggers_.end_dump(state != DumpState::failed);
  triggers_.finish(now_ns(), capture_watch().times());
  write_marks();
  const bool signalled = takes_signals_ && dump_signal::requested();
  if (state == DumpState::wanted || signalled || triggers_.due(now_ns())) start_dump();
  // Helper processes without GPU work seldom have the ranges of a condition.
  for (const std::string& note : triggers_.notes(capture().has_gpu_work())) notes_.add_quietly(note);
  if (!at_exit) {
    for (const Segment& segment : kept_)
      if (segment.file.use_count() > 1) segment.file->hold();
    Dump::wait_for_all(std::min<std::uint64_t>(kShortWaitMs, options_.patience_ms / 2));
    return;
  }
  if (Dump::wait_for_all(options_.patience_ms)) return;
  for (const std::string& path : Dump::give_up_all()) notes_.add(given_up(path));
}

class NewestFeature final : public Feature {
 public:
  std::unique_ptr<FileKeeper> keeper(const KeeperContext& context) override {
    return context.options.keeps_newest() ? std::make_unique<Newest>(context) : nullptr;
  }
  void at_exit() override {
    if (Dump::wait_for_all(patience_ms.load())) return;
    for (const std::string& path : Dump::give_up_all()) tell(given_up(path));
  }
  void before_fork() override { Dump::before_fork(); }
  void after_fork_in_parent() override { Dump::after_fork_in_parent(); }
  void after_fork_in_child() override {
    dump_signal::release();
    Dump::after_fork_in_child();
  }
};

}  // namespace

Feature& newest_feature() {
  static auto& feature = *new NewestFeature;
  return feature;
}

}  // namespace cutrace
