#include "window_files.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/blocked_signals.h"
#include "core/clock.h"

namespace cutrace {
namespace {

constexpr std::string_view kSkipped =
    " capture range(s) were not recorded, because CUPTI or the disk did not respond in time (patience_ms)";

}  // namespace

// ---- the thread that opens or closes ----

bool WindowFiles::open(const std::function<std::uint32_t()>& call_number) {
  {
    std::unique_lock lock(mutex_);
    const auto patience = std::chrono::milliseconds(options_.patience_ms);
    const bool ready = closed_.wait_for(lock, patience, [&] { return !closing_ || !recording_.running(); });
    if (!recording_.running()) return false;
    if (!ready) {
      skip();
      return false;
    }
  }
  const auto given_up = std::make_shared<std::atomic<bool>>(false);
  const auto begin = [this, given_up, call_number]() -> std::optional<Moment> {
    if (given_up->load() || !recording_.running()) return std::nullopt;
    // Reads the time first, so that no call has a later number and an earlier time.
    Moment moment{now_ns()};
    moment.correlation = call_number();
    return moment;
  };
  const auto open = [this, begin] {
    resume();
    if (!window_.open(begin)) return suspend(nullptr);
    resume();  // CUPTI may have been attached meanwhile
  };
  std::string error;
  if (recording_.carry_out(open, nullptr, "started for a capture range", error) == Outcome::done) return true;
  given_up->store(true);
  if (window_.is_open()) return true;
  if (recording_.running()) skip();
  return false;
}

// Counts a window that is not recorded.
void WindowFiles::skip() {
  if (++skipped_ == 1) tell("1", kSkipped);
  notes_.count(skipped_, kSkipped);
}

void WindowFiles::close(Moment end, void* context, bool last) {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  window_.close(end);
  const auto complete = [this, last](std::string& error) { return this->complete(last, error); };
  std::string error;
  // After this time the program continues. The file is complete later, at the latest when the recording ends.
  recording_.carry_out([this, context] { suspend(context); }, complete, "cut after a capture range", error, true);
}

void WindowFiles::stopping() {
  window_.close({});
  closed_.notify_all();
}

// ---- the thread that attaches, for which the flusher waits ----

// A range can open a window before the program uses CUDA.
void WindowFiles::attached(bool before_cuda) {
  if (window_.is_open()) enable(before_cuda);
}

// ---- the flusher ----

void WindowFiles::resume() {
  recording_.wait_for_attach();
  enable(false);
}

void WindowFiles::enable(bool before_cuda) {
  if (!writer_.uses_cupti() || enabled_.exchange(true)) return;
  const KindSet kinds = source_.resume(before_cuda) | (options_.records_nvtx() ? bit(Kind::nvtx) : 0);
  JsonObject json;
  json.texts("kinds", kind_names(kinds));
  notes_.set(json);
}

void WindowFiles::suspend(void* context) {
  recording_.wait_for_attach();
  // At exit, CuptiSource::detach() ends the work of the window.
  if (!writer_.uses_cupti() || recording_.is_exiting() || !enabled_.exchange(false)) return;
  if (!source_.suspend(options_.synchronize, context)) unfinished_work_.store(true);
}

// ---- the writer ----

void WindowFiles::before_write() {
  if (described_ != window_.get().number) describe(0);
}

// Writes the covered time into the file. `read`: the time when all records of the window were read, 0 before that.
void WindowFiles::describe(std::uint64_t read) {
  const CaptureWindow& window = window_.get();
  if (std::exchange(described_, window.number) != window.number) writer_.write_clocks(now_ns());
  const std::uint64_t end = read != 0 ? window.end.time : 0;
  JsonObject json;
  json.text("capture_range", options_.capture_range);
  json.raw("windows", "[[" + std::to_string(window.begin.time) + ',' + std::to_string(end) + ',' + std::to_string(read) + "]]");
  writer_.describe_file(json);
}

Outcome WindowFiles::complete(bool last, std::string& error) {
  const std::string path = last_path(writer_.capture().file().path());
  const std::string incomplete = path + ".part";
  describe(now_ns());
  writer_.end_window();
  if (unfinished_work_.exchange(false)) {
    std::vector<std::string> notes = notes_.sentences();
    notes.emplace_back(
        "cutrace did not wait for the GPU at the end of this range, because the program was capturing a stream: unfinished work is missing");
    JsonObject json;
    json.texts("notes", notes);
    writer_.write_process();
    writer_.describe_file(json);
  }
  holds_windows_ = !writer_.split(incomplete, error).has_value();
  window_.complete();
  if (!holds_windows_ && std::rename(incomplete.c_str(), path.c_str()) != 0)
    error = "cannot rename '" + incomplete + "' to '" + path + "' (" + std::strerror(errno) + ")";
  const bool written = error.empty();
  if (!written && !std::exchange(failure_noted_, true)) notes_.add("the file of a capture range could not be completed: " + error);
  if (last) recording_.end_events();
  {
    const std::lock_guard lock(mutex_);
    closing_ = false;
  }
  closed_.notify_all();
  return written ? Outcome::done : Outcome::failed;
}

void WindowFiles::end(bool /*at_exit*/) {
  if (!window_.keeps_nothing()) describe(now_ns());
  if (window_.get().number != 0) return;
  if (const std::string note = never_opened_(); !note.empty()) notes_.add(note);
}

// run-w1.bin for run.bin. Between windows the file is empty, unless there could be no new file.
std::string WindowFiles::last_path(const std::string& path) {
  if (window_.keeps_nothing() && !holds_windows_) return {};
  const std::size_t stem = path.size() - (path.ends_with(".bin") ? 4 : 0);
  return path.substr(0, stem) + "-w" + std::to_string(window_.get().number) + path.substr(stem);
}

Outcome WindowFiles::dump(const std::string& /*path*/, std::string& error) {
  error = "a recording of capture ranges cannot be dumped; each range has a file of its own";
  return Outcome::failed;
}

}  // namespace cutrace
