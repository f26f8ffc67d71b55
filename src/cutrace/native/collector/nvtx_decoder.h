// NVTX events as rows: pairs pushes with pops and starts with ends. Writer thread only.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture.h"
#include "hash.h"
#include "nvtx_ring.h"
#include "process_info.h"

namespace cutrace {

class NvtxDecoder {
 public:
  // Events from before `started` belong to an earlier recording and are passed over, as are its drops.
  NvtxDecoder(Capture& capture, ThreadNames& names, std::uint64_t started);

  // Empties all rings.
  void drain();
  // Writes the ranges that nobody ended.
  void finish();
  // The file is a new one: numbers of texts no longer hold. Open ranges stay open.
  void begin_file();
  std::uint64_t events() const { return events_; }

 private:
  // A text of an event. Ranges may be open for long and end in another file: their texts get numbers only then.
  struct Text {
    std::uint32_t registered = 0;  // number of the registered string, or
    std::string own;
  };
  struct Open {
    rows::NvtxRanges row;  // without the texts
    std::uint16_t domain;
    std::uint32_t level;
    Text text;
  };
  struct Thread {
    std::vector<std::vector<Open>> stacks;  // by domain number
    std::uint64_t dropped = 0;
  };
  struct End {
    std::uint64_t time;
    std::uint32_t thread;
    bool old;  // has waited through a whole round for its start
  };

  void event(const nvtx::Ring& ring, const std::uint8_t* bytes);
  void push(Thread& thread, Open range);
  void pop(Thread& thread, const nvtx::EventHeader& header);
  void start(Open range);
  void end(std::uint64_t id, std::uint64_t time, std::uint32_t thread);
  void close(const Open& range, std::uint64_t end, std::uint32_t thread);
  void leave_open(const Open& range);
  void leave_open(Thread& thread);
  void write(const Open& range, rows::NvtxRanges row);
  void age_pending_ends();
  std::uint32_t registered(std::uint32_t number);
  std::uint32_t domain(std::uint16_t number);

  Capture& capture_;
  ThreadNames& names_;
  std::uint64_t started_;
  std::uint64_t events_ = 0;
  std::uint64_t ringless_seen_ = nvtx::events_without_ring();
  std::uint64_t refused_seen_ = nvtx::registrations_refused();
  std::unordered_map<const nvtx::Ring*, Thread> threads_;
  std::unordered_map<std::uint64_t, Open, SeededHash> started_ranges_;
  // An end can be read before its start: they may come from different threads.
  std::unordered_map<std::uint64_t, End, SeededHash> pending_ends_;
  std::vector<std::uint32_t> registered_;  // string ids by number of the registered string
  std::vector<std::uint32_t> domains_;     // string ids by number of the domain
};

}  // namespace cutrace
