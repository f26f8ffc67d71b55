// NVTX events as rows: pairs pushes with pops and starts with ends. Writer thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capture.h"
#include "nvtx.h"
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
  std::uint64_t events() const { return events_; }

 private:
  // A range whose texts are not yet in its row: it may end in another file, where they get other numbers.
  struct Open {
    rows::NvtxRanges row;
    std::uint16_t domain;
    std::uint32_t level;
    std::uint32_t registered;  // number of the registered string, or
    std::string own;
  };
  using Stacks = std::vector<std::vector<Open>>;  // of a thread, by domain number
  struct End {
    std::uint64_t time;
    std::uint32_t thread;
    std::uint64_t round;  // when it came; it waits through the whole next one for its start
  };

  void event(const nvtx::Ring& ring, const std::uint8_t* bytes);
  void push(Stacks& stacks, Open range);
  void pop(Stacks& stacks, const nvtx::EventHeader& header);
  void start(Open range);
  void end(std::uint64_t id, std::uint64_t time, std::uint32_t thread);
  void write(const Open& range, std::uint64_t end, std::uint32_t thread);  // end 0: nobody has ended it
  // Closes the last range of a stack; without an `end` its own end is missing.
  void close(std::vector<Open>& stack, std::uint64_t end = 0);
  void leave_open(Stacks& stacks);
  void age_pending_ends();
  std::uint32_t registered(std::uint32_t number) { return string(registered_, number, nvtx::registered_string); }
  std::uint32_t domain(std::uint16_t number) { return string(domains_, number, nvtx::domain_name); }
  template <typename Number>
  std::uint32_t string(std::vector<std::uint32_t>& ids, Number number, std::string_view (*text_of)(Number));

  Capture& capture_;
  ThreadNames& names_;
  std::uint64_t started_;
  std::uint64_t events_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t ringless_seen_ = nvtx::events_without_ring();
  std::uint64_t refused_seen_ = nvtx::registrations_refused();
  std::unordered_map<const nvtx::Ring*, Stacks> threads_;
  std::unordered_map<std::uint64_t, Open, SeededHash> started_ranges_;
  // An end can be read before its start: they may come from different threads.
  std::unordered_map<std::uint64_t, End, SeededHash> pending_ends_;
  std::uint32_t references_ = 0;           // the capture's, for which these hold:
  std::vector<std::uint32_t> registered_;  // string ids by number of the registered string
  std::vector<std::uint32_t> domains_;     // string ids by number of the domain
};

}  // namespace cutrace
