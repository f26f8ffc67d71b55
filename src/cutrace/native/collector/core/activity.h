// Converts CUPTI's activity records to rows. Writer thread only.
//
// CUPTI releases only append fields to records. So each record is read through the oldest struct that has the required
// fields, and newer fields are read only if the library has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture.h"
#include "clock.h"
#include "cuda/cupti_library.h"
#include "feature.h"
#include "process_info.h"
#include "watcher.h"

namespace cutrace {

class ActivityDecoder {
 public:
  // Skips records that ended between `first`, the start of the first recording of this process, and `started`: CUPTI kept them
  // from an earlier recording.
  ActivityDecoder(const CuptiLibrary& cupti, Capture& capture, ThreadNames& names, Watcher& watcher, std::uint64_t first,
                  std::uint64_t started)
      : cupti_(cupti), capture_(capture), names_(names), watcher_(watcher), first_(first), started_(started) {}

  // Decodes one completed buffer.
  void decode(std::uint8_t* buffer, std::size_t valid);

  // Adds the rows that were held back for merging with later records.
  void release();

  // Asks this decoder for the names of kernels.
  void set_naming(Decoder& decoder) { naming_ = &decoder; }
  // Asks this decoder to complete launch configurations.
  void set_completing(Decoder& decoder) { completing_ = &decoder; }
  // Skips API calls of the collector's own threads.
  void ignore_thread(std::uint32_t thread) { ignored_.push_back(thread); }

  // Whether a record of CUDA graph work was read.
  bool graph_work() const { return graph_work_; }
  // The number of graph kernels without times.
  std::uint64_t graph_kernels_without_times() const { return graph_kernels_without_times_; }

  // Device records of CUPTI. The driver provides further fields later.
  struct Device {
    rows::Devices row;
    std::string name;
    bool written = false;
  };
  std::vector<Device>& devices() { return devices_; }

 private:
  void record(const CUpti_Activity* record);
  template <typename Record>
  void add(const Record& record);  // for each struct that activity.cpp reads
  void add_full_queue(const rows::Overheads& row);
  bool launches_work(std::uint16_t function, bool runtime, CUpti_CallbackId id);

  // Converts a CUPTI time to the capture's clock; 0 is an unknown time.
  std::uint64_t on_our_clock(std::uint64_t time) const { return time == 0 ? 0 : time - ahead_; }
  template <typename Row>
  Row timed(Row row) const {
    row.start = on_our_clock(row.start);
    row.end = on_our_clock(row.end);
    return row;
  }
  bool is_earlier(std::uint64_t time) const { return time >= first_ && time < started_; }
  template <typename Row>
  void add_at(Row row) {
    row.time = on_our_clock(row.time);
    if (is_earlier(row.time)) return;
    capture_.add(row);
  }
  // Also writes rows with an unknown time. Readers keep them apart from the others.
  template <typename Row>
  void add_timed(const Row& row) {
    const Row on_time = timed(row);
    // set before rows are skipped, so it includes records of earlier recordings
    if constexpr (requires { row.graph; }) graph_work_ |= row.graph != 0;
    if (is_earlier(on_time.end) || !capture_.keeps(on_time)) return;
    const bool known = row.start != 0 && row.end != 0;
    if (!known) capture_.lose(rows::Loss::unknown_time, 1, Row::kName);
    if constexpr (requires { row.device; }) known ? watcher_.worked(row.device, row.correlation, on_time.start, on_time.end) : watcher_.lose_work(now_ns());
    capture_.add(on_time);
  }

  const CuptiLibrary& cupti_;
  Capture& capture_;
  ThreadNames& names_;
  Watcher& watcher_;
  Decoder* naming_ = nullptr;
  Decoder* completing_ = nullptr;
  std::vector<std::optional<bool>> launches_work_;  // by function
  std::uint64_t first_, started_;
  std::vector<std::uint32_t> ignored_;
  std::vector<Device> devices_;
  std::unordered_map<std::uint32_t, rows::Overheads> full_queues_;  // by thread
  bool graph_work_ = false;
  std::uint64_t graph_kernels_without_times_ = 0;
  std::uint64_t ahead_ = 0;  // CUPTI's clock minus BOOTTIME; 0 if CUPTI uses our timestamp callback
};

}  // namespace cutrace
