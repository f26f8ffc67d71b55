#include "writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "blocked_signals.h"
#include "clock.h"
#include "features/nvtx/nvtx.h"

namespace cutrace {
namespace {

constexpr std::uint64_t kNameInterval = 2 * kSecondNs;
constexpr std::uint32_t kSpareBuffers = 16;
constexpr std::string_view kGraphNote =
    " kernels of CUDA graphs came without times: CUPTI ran out of buffers on the GPU, because version 13.0 "
    "does not reuse them after graphs; record with graph=graph, or raise device_buffers";

// When the first recording of this process started.
std::uint64_t first_recording(std::uint64_t now) {
  static constinit std::atomic<std::uint64_t> first{0};
  std::uint64_t none = 0;
  return first.compare_exchange_strong(none, now) ? now : none;
}

std::string file_path(const Options& options, std::uint64_t instance) {
  if (!options.output.empty()) return options.output;
  char name[64];
  std::snprintf(name, sizeof name, "/%d-%016llx.bin", static_cast<int>(getpid()),
                static_cast<unsigned long long>(instance));
  return options.directory + name;
}

}  // namespace

Writer::Writer(const Options& options, CuptiSource& source, Notes& notes, FileKeeper* keeper)
    : options_(options),
      source_(source),
      notes_(notes),
      started_(now_ns()),
      capture_(options.max_memory / 8),
      keeper_(keeper),
      watcher_(keeper != nullptr ? keeper->watcher() : no_watcher_),
      activity_(source.library(), capture_, thread_names_, watcher_, first_recording(started_), started_),
      nvtx_(capture_, thread_names_, watcher_, started_, options.events_memory()),
      process_(process_identity(options, started_)),
      file_began_(started_),
      refused_buffers_(source.pool().refused()) {
  if (keeper != nullptr) capture_.set_filter(keeper->filter());
  source.pool().set_time(started_);
  for (Feature* const feature : features()) {
    auto decoder = feature->decoder({options, source.library(), capture_, thread_names_, watcher_, notes});
    if (decoder == nullptr) continue;
    for (const EventType type : feature->events()) by_event_[static_cast<std::size_t>(type)] = decoder.get();
    if (decoder->names_kernels()) activity_.set_naming(*decoder);
    if (decoder->completes_launches()) activity_.set_completing(*decoder);
    decoders_.push_back(std::move(decoder));
  }
}

bool Writer::open(std::string& error) {
  BlockFile& file = capture_.file();
  const std::uint64_t instance = random_instance();
  const auto pid = static_cast<std::uint32_t>(getpid());
  if (!file.create(file_path(options_, instance), options_.file_mode.value_or(kNewFile), pid, instance, error)) {
    if (!options_.directory.empty() && ::access(options_.directory.c_str(), F_OK) != 0 && errno == ENOENT)
      error = "the recording that this process belongs to has ended: its folder '" + options_.directory +
              "' is gone; let the recorded program wait for its processes, or record this process by itself";
    return false;
  }
  file.set_size_limit(options_.max_size);
  if (!capture_.process(process_.str(), true)) {
    error = "cannot write the capture '" + file.path() + "' (" + std::strerror(file.last_errno()) +
            "); choose a folder with enough space";
    file.remove();
    return false;
  }
  write_clocks(started_);
  return true;
}

void Writer::write_clocks(std::uint64_t now) {
  capture_.add(clock_snapshot());
  next_clock_ = now + kSecondNs;
}

void Writer::drain() {
  BufferPool& pool = source_.pool();
  drained_ = now_ns();
  pool.set_time(drained_);
  read_rings();
  if (!uses_cupti()) return;
  const auto decode = [this](std::uint8_t* buffer, std::size_t valid) {
    // The event of a graph node is older than the buffer with its work, so read the events first.
    read_rings();
    activity_.decode(buffer, valid);
    if (activity_.graph_work()) source_.note_graph_work();
    if (keeper_ != nullptr) keeper_->buffer_read();
  };
  if (pool.drain(decode) != 0) count_dropped();
  if (source_.active()) pool.prepare(kSpareBuffers);
}

// Hands each event to the decoder of its type, in the order in which a thread made them.
void Writer::read_rings() {
  const bool nvtx = options_.records_nvtx();
  if (nvtx) nvtx_.begin_round();
  for (Ring* ring = rings::all(); ring != nullptr; ring = ring->next) {
    const std::uint32_t state = ring->state.load(std::memory_order_acquire);
    if (state == Ring::kFree) continue;
    ring->drain([&](const std::uint8_t* bytes) {
      Decoder* const decoder = by_event_[bytes[offsetof(EventHead, type)] % by_event_.size()];
      if (decoder != nullptr) decoder->event(*ring, bytes);
      else nvtx_.event(*ring, bytes);
    });
    const bool ended = state == Ring::kRetired;  // its thread has ended and all its events are read
    if (nvtx) nvtx_.ring_is_read(*ring, ended);
    for (const auto& decoder : decoders_) decoder->ring_is_read(*ring, ended);
    if (!ended) continue;
    thread_names_.take_notes();
    ring->state.store(Ring::kFree, std::memory_order_release);
  }
  if (nvtx) nvtx_.end_round();
}

void Writer::count_dropped() {
  if (!uses_cupti()) return;
  const std::uint64_t dropped = source_.take_dropped();
  const std::uint64_t refused = source_.pool().refused();
  const bool memory = refused != std::exchange(refused_buffers_, refused);  // the pool refused CUPTI a buffer
  capture_.lose(memory ? rows::Loss::memory_limit : rows::Loss::cupti_dropped, dropped, "activity records");
  (memory ? discarded_ : dropped_) += dropped;
  if (dropped != 0) watcher_.lose_work(now_ns());
}

// Each buffer that CUPTI got for this recording was read, or is counted here.
void Writer::count_lost() {
  if (!uses_cupti() || std::exchange(lost_counted_, true)) return;
  count_dropped();
  const BufferPool& pool = source_.pool();
  const std::uint64_t discarded = pool.discarded();
  capture_.lose(rows::Loss::memory_limit, discarded - std::exchange(discarded_counted_, discarded), "buffers that were not read");
  const std::uint64_t now = now_ns();
  const BufferPool::Unread unread = pool.unread(0, now);
  if (unread.count == 0) return;
  const std::uint64_t began = capture_.filter() != nullptr ? capture_.filter()->begin() : started_;
  const std::uint64_t since = std::max(unread.oldest, began);
  capture_.lose(rows::Loss::kept_back, unread.count, "records of the last " + std::to_string((now - since) / 1'000'000 + 1) + " ms");
  if (const std::string error = source_.flush_error(); !error.empty())
    notes_.add_quietly("CUPTI did not return its last records (" + error + "), so they are missing");
}

void Writer::end_window() {
  if (options_.records_nvtx()) nvtx_.write_open_ranges();
  count_lost();
  lost_counted_ = false;
}

void Writer::write_out() {
  rings::retire_unreported();
  if (capture_.keeps_nothing()) {
    for (const auto& decoder : decoders_) decoder->write_out(false);
    return publish_statistics();
  }
  const std::uint64_t now = now_ns();
  if (now >= next_clock_) write_clocks(now);
  if (now >= next_names_) {
    thread_names_.refresh();
    next_names_ = now + kNameInterval;
  }
  // Note the count during the recording too, and again each time it has doubled.
  if (activity_.graph_kernels_without_times() > 2 * graph_kernels_noted_) note_graph_kernels();
  note_refusals();
  for (const auto& decoder : decoders_) decoder->write_out(false);
  if (options_.records_nvtx()) nvtx_.watch_open_ranges(drained_ - Watcher::kSettling);
  if (keeper_ != nullptr) keeper_->before_write();
  write_process();
  write_devices(false);
  activity_.release();
  capture_.flush();
  note_disk_error();
  if (keeper_ != nullptr) keeper_->after_write();
  publish_statistics();
}

// Notes the first error when it happens: later there may be no file for the note.
void Writer::note_disk_error() {
  const int error = capture_.file().last_errno();
  if (error == 0 || std::exchange(disk_error_noted_, true)) return;
  notes_.add("the capture '" + capture_.file().path() + "' could not be written (" + std::strerror(error) +
             "); rows that do not fit are counted as lost. Free some space or choose another folder");
}

void Writer::note_graph_kernels() {
  const std::uint64_t count = activity_.graph_kernels_without_times();
  if (graph_kernels_noted_ == 0) tell(std::to_string(count), kGraphNote);
  graph_kernels_noted_ = count;
  notes_.count(count, kGraphNote);
}

std::vector<Refusal> Writer::note_refusals() {
  if (lacks_cupti_.load()) return {{"GPU activity", ""}};
  if (!uses_cupti()) return {};
  std::vector<Refusal> refused = source_.refused_kinds();
  for (; refusals_noted_ < refused.size(); ++refusals_noted_) {
    const Refusal& refusal = refused[refusals_noted_];
    notes_.add_quietly("CUPTI refused to record " + refusal.what + " (" + refusal.error + ")");
  }
  return refused;
}

// Device records come from CUPTI, some of their fields from the driver once the program has initialised it.
void Writer::write_devices(bool without_info) {
  const std::vector<DeviceInfo> devices = notes_.devices();
  if (devices.empty() && !without_info) return;
  for (ActivityDecoder::Device& device : activity_.devices()) {
    if (device.written) continue;
    std::string pci;
    for (const DeviceInfo& info : devices) {
      if (info.device != device.row.device) continue;
      pci = info.pci;
      device.row.memory_clock = info.memory_clock;
      device.row.max_threads_per_multiprocessor = info.max_threads_per_multiprocessor;
      device.row.shared_per_block_optin = info.shared_per_block_optin;
      device.row.shared_reserved_per_block = info.shared_reserved_per_block;
    }
    capture_.object_info(device.row, device.name, pci);
    device.written = !devices.empty();  // without a driver, the row is written again when the fields are known
  }
}

void Writer::write_process() {
  const JsonObject pending = notes_.take();
  if (pending.empty() && !process_missing_) return;
  process_.merge(pending);
  process_missing_ = !capture_.process((process_missing_ ? process_ : pending).str(), true);
}

void Writer::write_end() {
  JsonObject end;
  end.number("ended", now_ns());
  capture_.process(end.str(), true);
}

// Writes the end of a file, except the "ended" mark.
void Writer::complete_file() {
  if (activity_.graph_kernels_without_times() != graph_kernels_noted_) note_graph_kernels();
  // Each cut file counts all refusals. The files of a recording of the newest rows are one capture, so they count each refusal
  // once.
  const std::vector<Refusal> refused = note_refusals();
  for (std::size_t i = options_.keeps_newest() ? refusals_counted_ : 0; i < refused.size(); ++i)
    capture_.lose(rows::Loss::kind_refused, 1, refused[i].what);
  refusals_counted_ = refused.size();
  thread_names_.refresh();
  for (const auto& decoder : decoders_) decoder->write_out(true);
  write_devices(true);
  activity_.release();
  capture_.add(clock_snapshot());
  write_process();
  capture_.flush(true);
}

std::string Writer::finish(bool in_order) {
  read_rings();
  BlockFile& file = capture_.file();
  const std::string last_path = keeper_ != nullptr ? keeper_->last_path(file.path()) : file.path();
  if (last_path.empty()) {
    publish_statistics();
    file.remove();
    return {};
  }
  if (options_.records_nvtx()) nvtx_.finish();
  count_lost();
  complete_file();
  note_disk_error();
  if (in_order && capture_.losses_are_written()) write_end();
  publish_statistics();
  const std::string name = "the capture '" + file.path() + "' ";
  const bool removed = file.removed();
  if (!file.close())
    return name + "could not be closed (" + std::strerror(file.last_errno()) +
           "), so its last rows may be missing; check the space on the disk";
  if (removed)
    return name +
           "was removed during the recording and is lost; record into a folder that no other program cleans, and let "
           "`cutrace record` end after this process";
  if (last_path != file.path() && ::rename(file.path().c_str(), last_path.c_str()) != 0)
    return name + "could not be renamed to '" + last_path + "' (" + std::strerror(errno) + ")";
  return {};
}

// ---- files ----

std::optional<Capture::Contents> Writer::split(const std::string& path, std::string& error) {
  BlockFile& file = capture_.file();
  if (!file.prepare_next(error)) return std::nullopt;
  complete_file();
  std::optional<Capture::Contents> contents;
  if (file.move_to(path, error)) {
    write_end();
    // In this order, because each step may throw: no row in the new file may refer to strings in the old one.
    contents = capture_.begin_file();
    file.switch_to_next(error);
    process_missing_ = !capture_.process(process_.str(), true);
    write_clocks(file_began_ = now_ns());
  }
  publish_statistics();
  return contents;
}

Outcome Writer::cut(const std::string& path, std::string& error) {
  count_dropped();
  if (capture_.events() == 0) return Outcome::nothing;
  return split(path, error).has_value() && error.empty() ? Outcome::done : Outcome::failed;
}

void Writer::publish_statistics() {
  const std::lock_guard lock(statistics_mutex_);
  statistics_.rows_written = capture_.rows();
  statistics_.bytes_written = capture_.file().bytes();
  statistics_.records_dropped = dropped_;
  statistics_.records_discarded = discarded_;
  statistics_.nvtx_events = nvtx_.events();
  statistics_.memory_bytes = capture_.memory() + source_.pool().memory() + rings::memory() + nvtx_.memory();
  for (const auto& decoder : decoders_) statistics_.memory_bytes += decoder->memory();
  statistics_.blocks_written = capture_.file().blocks();
}

}  // namespace cutrace
