// Converts NVTX events to rows, and matches pushes with pops and starts with ends. Writer thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batch.h"
#include "core/capture.h"
#include "counter_reader.h"
#include "nvtx.h"
#include "payload_reader.h"
#include "core/process_info.h"
#include "core/watcher.h"

namespace cutrace {

class NvtxDecoder {
 public:
  // Skips events before `started` and the drops counted so far, because they belong to an earlier recording. Open ranges and the
  // rings share `memory` bytes.
  NvtxDecoder(Capture& capture, ThreadNames& names, Watcher& watcher, std::uint64_t started, std::size_t memory);

  // The writer reads the rings. It calls these functions before the first ring, for each event, after each ring, and after the
  // last ring.
  void begin_round();
  void event(const Ring& ring, const std::uint8_t* bytes);
  void ring_is_read(Ring& ring, bool ended);
  void end_round();
  // Passes the ranges that are open at `time` to the watcher.
  void watch_open_ranges(std::uint64_t time);
  // Writes the part of each open range that is in the window. The window is closed.
  void write_open_ranges();
  // Writes the ranges without an end.
  void finish();
  std::uint64_t events() const { return events_; }
  std::size_t memory() const { return open_bytes_ + nvtx::EventBatch::waiting(); }

 private:
  // A range without string ids, because it may end in a later file, where its strings have other ids.
  struct OpenRange {
    rows::NvtxRanges row;
    std::uint16_t domain;
    std::uint32_t level;
    std::uint32_t registered;  // number of the registered string, or
    std::string own;
    nvtx::Arguments arguments{};
    bool doubtful = false;  // its end may have been dropped
    bool unwatched = false;  // the same, but noticed only after later events, such as events of nodes, were read
    std::vector<std::uint32_t> fired{};  // dump conditions that it has made true
  };
  // The open push/pop ranges of a thread and a domain, without the `forgotten` outermost ones.
  struct RangeStack {
    std::vector<OpenRange> ranges;
    std::uint32_t forgotten = 0;
  };
  using Stacks = std::vector<RangeStack>;  // of a thread, by domain number
  struct Thread {
    Stacks stacks;
    std::uint32_t lost_events = 0;  // at the last graph node
    // The result of open_ranges() until a range starts or ends.
    std::optional<std::string> ranges;
    std::uint64_t ranges_of = 0;  // the value of changes_ at that time
  };
  struct PendingEnd {
    std::uint64_t time;
    std::uint32_t thread;
    nvtx::EventValues values;
    std::uint64_t round;  // the drain that read the end; the next drain may still read its start
  };

  void graph_node(Thread& thread, const nvtx::EventHeader& header, std::uint64_t node, std::uint32_t id_of_thread);
  std::optional<std::string> open_ranges(const Stacks& stacks, std::uint32_t thread) const;
  void push(Stacks& stacks, OpenRange range);
  void pop(Stacks& stacks, const nvtx::EventHeader& header, nvtx::EventValues values);
  void start(OpenRange range);
  void end(std::uint64_t id, std::uint64_t time, std::uint32_t thread, nvtx::EventValues values);
  void batch(const nvtx::EventHeader& header, std::uint32_t thread, const nvtx::EventBatch& batch);
  // Writes an event that happened before `thread` submitted it at the time `submitted`. `scope` is the scope of its batch.
  void deferred(std::uint16_t domain, nvtx::EventValues values, std::uint64_t scope, std::uint64_t submitted, std::uint32_t thread);
  void deferred_range(OpenRange range, const nvtx::EventValues& values, std::optional<std::uint64_t> start, std::optional<std::uint64_t> end,
                      std::optional<std::uint64_t> moment);
  void write_deferred(OpenRange& range, std::uint64_t end, std::uint32_t thread);
  std::optional<std::uint64_t> time_of(std::uint16_t domain, const std::optional<nvtx::Timestamp>& timestamp, std::uint64_t submitted);
  // Payloads at the end of a range may change it and add arguments.
  void apply(OpenRange& range, nvtx::EventValues values);
  template <typename Visit>
  void each_open_range(Visit&& visit);
  rows::NvtxRanges row_of(const OpenRange& range, std::uint64_t end);
  void look_at(OpenRange& range, const rows::NvtxRanges& row, bool open);
  void write(OpenRange& range, std::uint64_t end, std::uint32_t thread);  // end 0: the range has no end
  void write_row(OpenRange& range, std::uint64_t end, std::uint32_t thread);
  // Writes the last range of a stack and removes it; end 0: the range has no end.
  void close(RangeStack& stack, std::uint64_t end = 0);
  void leave_open(Stacks& stacks);
  // Writes a range without its end, because memory for open ranges is short.
  void forget(OpenRange range);
  std::size_t memory_for_ranges() const;
  // Forgets the oldest ranges while the open ones take more than their share of the memory.
  void keep_to_memory();
  void forget_outermost(RangeStack& stack);
  void forget_first_started();
  static std::size_t size_of(const OpenRange& range);
  void age_pending_ends();
  static std::uint64_t events_without_ring();  // of NVTX and of graph nodes
  std::uint32_t registered(std::uint32_t number) { return string(registered_, number, nvtx::registered_string); }
  std::uint32_t domain(std::uint16_t number) { return string(domains_, number, nvtx::domain_name); }
  template <typename Number>
  std::uint32_t string(std::vector<std::uint32_t>& ids, Number number, std::string_view (*text_of)(Number));

  Capture& capture_;
  nvtx::PayloadReader payloads_{capture_};
  ThreadNames& names_;
  Watcher& watcher_;
  std::uint64_t started_;
  nvtx::CounterReader counters_{capture_, started_};
  std::uint64_t events_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t ringless_seen_ = events_without_ring();
  std::uint64_t refused_seen_ = nvtx::registrations_refused();
  std::unordered_map<const Ring*, Thread> threads_;
  std::uint64_t changes_ = 1;  // of the open ranges of any thread
  std::unordered_map<std::uint64_t, OpenRange, SeededHash> started_ranges_;
  // Deferred ranges with separate events for start and end, by domain, and by thread or range id.
  std::map<std::tuple<std::uint16_t, bool, std::uint64_t>, std::vector<OpenRange>> deferred_;
  std::map<std::pair<std::uint16_t, std::uint64_t>, nvtx::TimeConverter> converters_;  // of this round
  std::uint64_t forgotten_starts_ = 0;  // starts up to this id were forgotten
  const std::size_t memory_limit_;
  std::size_t open_bytes_ = 0;  // of open ranges
  // An end can be read before its start, because they may come from different threads.
  std::unordered_map<std::uint64_t, PendingEnd, SeededHash> pending_ends_;
  std::uint32_t references_ = 0;           // Capture::references() when the ids below were assigned
  std::vector<std::uint32_t> registered_;  // string ids by number of the registered string
  std::vector<std::uint32_t> domains_;     // string ids by number of the domain
};

}  // namespace cutrace
