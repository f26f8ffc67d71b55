// CUPTI's activity records as rows. Writer thread only.
//
// Records only ever grow at their end from one CUPTI release to the next, so each is read through the oldest
// struct that has the wanted fields; what later releases appended is read when the library is new enough.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture.h"
#include "cupti_library.h"
#include "process_info.h"

namespace cutrace {

class ActivityDecoder {
 public:
  // What ended after `first`, when the process was first recorded, and before `started` is of an earlier recording: CUPTI had
  // kept it, and it is passed over.
  ActivityDecoder(const CuptiLibrary& cupti, Capture& capture, ThreadNames& names, std::uint64_t first, std::uint64_t started)
      : cupti_(cupti), capture_(capture), names_(names), first_(first), started_(started) {}

  // One completed buffer.
  void decode(std::uint8_t* buffer, std::size_t valid);

  // Hands over rows that were held back because records to come may be part of them.
  void release();

  // Calls made by the collector's own threads are not the program's.
  void ignore_thread(std::uint32_t thread) { ignored_.push_back(thread); }

  // Kernels of CUDA graphs that came without times.
  std::uint64_t graph_kernels_without_times() const { return graph_kernels_without_times_; }

  // Device records as they came, without what only the driver knows.
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

  // A time of CUPTI on the capture's clock; 0 is no time.
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
    if (!is_earlier(row.time)) capture_.add(row);
  }
  // Rows with a time of 0 are written all the same; a reader sets them apart.
  template <typename Row>
  void add_timed(const Row& row) {
    const Row on_time = timed(row);
    if (is_earlier(on_time.end)) return;
    if (row.start == 0 || row.end == 0) capture_.lose(rows::Loss::unknown_time, 1, Row::kName);
    capture_.add(on_time);
  }

  const CuptiLibrary& cupti_;
  Capture& capture_;
  ThreadNames& names_;
  std::uint64_t first_, started_;
  std::vector<std::uint32_t> ignored_;
  std::vector<Device> devices_;
  std::unordered_map<std::uint32_t, rows::Overheads> full_queues_;  // by thread
  std::uint64_t graph_kernels_without_times_ = 0;
  std::uint64_t ahead_ = 0;  // of BOOTTIME: CUPTI's clock, where it has taken none of ours
};

}  // namespace cutrace
