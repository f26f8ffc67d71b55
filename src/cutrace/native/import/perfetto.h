// Packets of Perfetto traces, as the events of an EventScanner.
//
// A packet belongs to a sequence, which has interned data, defaults and clocks. An event belongs to a track. Its times become
// times of BOOTTIME. Slices of threads become complete events. All other data that viewers show become events of the same kinds
// as in a JSON file. The numbers of fields are those of perfetto_messages.py.
//
// A damaged packet is counted and adds no event. Memory depends on the interned data, the descriptors of tracks, open slices,
// events that wait for a descriptor, GPU work that other work may wait for, the waits, and the events not yet taken. This file
// uses no Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/table.h"
#include "import/events.h"
#include "import/protobuf.h"

namespace cutrace {

// Times and values of counters. 128 bits hold any sum or product of them.
using Wide = __int128;

class PerfettoReader {
 public:
  // The largest packet.
  static constexpr std::size_t kLargest = std::size_t{64} << 20;

  // A packet with compressed packets, which the caller unpacks.
  struct Packed {
    bool zstd = false;
    std::string bytes;
  };

  // Data that cannot become events: the number by kind and reason.
  using Losses = std::map<std::pair<std::string_view, std::string_view>, std::uint64_t>;

  // Data that are left out: packets and fields by their numbers, events that cutrace computed, and ends without an open slice of
  // their name.
  enum class Left : std::uint8_t { kPacket, kTrackEvent, kGpuEvent, kComputed, kEnd, kFirstValue, kLegacyEvent };

  explicit PerfettoReader(EventScanner& events);

  // Reads packets from position `at` on, and returns the position after the last one. Stops at the end, before an incomplete
  // packet, after a packet with compressed packets (`packed`), or when the scanner has `most` events. Throws protobuf::Damaged at
  // bytes that are not a packet.
  std::size_t read(std::string_view data, std::size_t at, std::size_t most, std::vector<Packed>& packed);
  // Ends the trace: adds the events that still wait for a descriptor, and the open slices.
  void finish();

  // Whether a file that starts with these bytes is a trace.
  static bool begins(std::string_view head);

  // The losses since the last call.
  Losses losses() { return std::exchange(losses_, {}); }
  // The kinds of data that were left out, with the numbers of fields, and how often.
  const std::map<std::pair<Left, std::uint64_t>, std::uint64_t>& left() const { return left_; }
  std::uint64_t added() const { return added_; }
  bool of_cutrace() const { return of_cutrace_; }
  // What cutrace wrote about the losses of the capture, as JSON: one for each trace in the file.
  const std::vector<std::string>& carried() const { return carried_; }
  bool of_torch() const { return of_torch_; }
  const std::vector<std::string>& devices() const { return devices_; }
  // The processes of GPU work, and the process of the first event.
  const std::vector<std::uint64_t>& gpu_processes() const { return gpu_processes_; }
  std::optional<std::uint64_t> host() const { return host_; }
  // The real time at time 0 of BOOTTIME.
  std::optional<std::int64_t> realtime() const;

 private:
  // The members of an object as JSON, by the id of their key. A member without JSON is left out.
  using Members = Map<std::string>;

  // Arguments of an event; none if null.
  using Arguments = std::shared_ptr<Members>;

  struct Event {
    EventFields fields;
    std::string json;  // arguments and other keys
  };

  // A sum of integers is exact.
  struct Number {
    bool whole = true;
    Wide integer = 0;
    double real = 0;
    double value() const { return whole ? static_cast<double>(integer) : real; }
  };

  // The sum of differences in one generation of a sequence.
  struct Total {
    std::uint64_t generation = 0;
    Number sum;
  };

  struct Open {
    Wide time = 0;
    EventFields fields;
    Arguments arguments;
  };

  struct End {
    Wide time = 0;
    Arguments arguments;
  };

  struct Track {
    std::uint64_t process = 0, parent = 0;
    Id thread;
    std::uint32_t name = 0, unit = 0;
    std::int64_t multiplier = 1;
    bool incremental = false;  // each value is the difference to the previous value of the same sequence
    std::map<std::uint64_t, Total> totals;  // by sequence
    bool derived = false;         // computed by cutrace
    bool named = false;
    bool described = false;
    bool ready = false;  // whether its parents are described too
    std::vector<Open> open;
    // The number of consecutive starts on top of `open`, and the unpaired ends after them.
    std::size_t begins = 0;
    std::vector<End> ends;
    // Ended slices, innermost first, inside a slice that started at the same time and may end at the same time.
    std::vector<std::pair<Open, End>> inner;
  };

  // The kinds of strings of interned data that are read.
  enum Kind : std::uint8_t { kCategory, kName, kAnnotation, kStage, kString, kComputeArgument, kKinds };

  struct Kernel {
    std::uint32_t name = 0;
    Members arguments;
  };

  // The interned data of an id. Strings and kernels are valid in one generation.
  struct Interned {
    std::uint64_t generation = 0, process = 0;
    std::array<std::uint32_t, kKinds> texts{};
    std::shared_ptr<Kernel> kernel;
  };

  // A counter of GPUs, and the counters of a descriptor by their ids. With `forwards` a value applies from its time on, otherwise
  // to the time since the previous value.
  struct GpuCounter {
    std::uint32_t name = 0, unit = 0;
    bool forwards = false;
  };
  struct GpuCounters {
    std::uint64_t gpu = 0;
    Map<GpuCounter> names;
  };

  // Work on a GPU, and a wait for it.
  struct Stage {
    Wide end = 0;
    ThreadId thread;
  };
  struct Edge {
    std::uint64_t from = 0;
    Wide time = 0;
    ThreadId thread;
  };

  struct Clock {
    Wide boot = 0, base = 0;  // the same moment on BOOTTIME and on this clock
    bool incremental = false;
    std::uint64_t unit = 1;
  };

  struct Sequence {
    Map<Interned> interned;
    bool has_packets = false;
    std::uint64_t generation = 1;
    std::uint64_t clock = 6;  // BOOTTIME
    std::uint64_t track = 0;
    std::array<std::vector<std::uint64_t>, 2> counters;  // default tracks of further counters: integers, doubles
    std::map<std::uint64_t, Clock> clocks;
    Map<GpuCounters> gpu_counters;
  };

  // An event that waits for the descriptor of its track or of a parent.
  struct Waiting {
    std::uint64_t sequence = 0;
    Wide time = 0;
    std::string event;
  };

  void packet(std::string_view data, std::vector<Packed>& packed);
  void intern(std::uint64_t sequence_id, std::string_view data);
  void intern_text(Sequence& sequence, Kind kind, std::uint64_t iid, const std::optional<protobuf::Fields>& given);
  static Interned& valid(Sequence& sequence, std::uint64_t iid);
  void defaults(Sequence& sequence, std::string_view data);
  std::uint64_t describe(std::string_view data);
  void describe_counter(Track& track, std::string_view data);
  void gpu_info_names(std::string_view data);
  std::uint64_t missing(std::uint64_t uuid, unsigned depth = 0);
  void release(std::size_t waiting);
  // Reads the attributes of a trace, of which cutrace writes some.
  void attributes(std::string_view data);
  void snapshot(Sequence& sequence, std::string_view data);
  std::optional<Wide> time_of(Sequence& sequence, std::uint64_t time, std::uint64_t clock);

  void take_track_event(std::uint64_t sequence_id, Wide time, std::string_view data);
  void pair_slices(Track& track, bool is_last);
  void close(Open& open, const End& end);
  void close_latest(Track& track, const End& end);
  void close_inner(Track& track);
  void close_named(Track& track, std::uint32_t name, const End& end);
  void further_counters(std::uint64_t sequence_id, Wide time, std::string_view data);
  void take_counter(std::uint64_t sequence_id, Track& track, Wide time, Number value, EventFields event);
  void emit_legacy(std::string_view data, Wide time, EventFields event, const Arguments& arguments);
  void flows(const Track& track, Wide time, std::string_view data);
  void name_track(Track& track);
  void name_process(std::uint64_t process);
  void add_name(std::string_view kind, std::uint32_t name, const ThreadId& thread);

  void take_gpu_event(Sequence& sequence, Wide time, std::string_view data);
  void draw_edges();
  void describe_gpu_counters(GpuCounters& to, std::string_view descriptor);
  std::uint64_t gpu_process() const;
  void take_gpu_counters(Sequence& sequence, Wide time, std::string_view data);
  void take_gpu_frequency(Wide time, std::string_view data);
  void take_gpu_memory(Wide time, std::string_view data);
  void add_gpu_counter(std::uint64_t process, std::uint64_t gpu, GpuCounter counter, Wide time, double value);
  void join_sizes(Members& arguments);
  void add_launch(Sequence& sequence, Members& arguments, const Kernel* kernel, std::string_view launch);

  Arguments annotations(Sequence& sequence, std::string_view data, std::uint64_t number, unsigned depth = 0);
  std::pair<std::uint32_t, std::string> annotation(Sequence& sequence, std::string_view data, unsigned depth);
  std::pair<std::uint32_t, std::string> compute_argument(Sequence& sequence, std::string_view data);
  void add_compute_arguments(Sequence& sequence, Members& to, protobuf::Fields fields, std::uint64_t number);
  // Whether slices of tracks come in groups, as torch.profiler writes them: the starts, then the ends in the order of the starts.
  // Traces of torch.profiler have times of the wall clock in place of BOOTTIME, and their tracks belong to no sequence.
  bool in_groups() const { return equal_clocks_ && tracks_of_no_sequence_; }
  bool has_argument(const Arguments& arguments, std::string_view name);
  void name_kinds(EventFields& event, std::string_view category, Members& arguments);
  void set_number(Members& arguments, std::string_view name, std::uint64_t value);
  std::string take(Members& arguments, std::string_view name);
  static void merge(Members& to, const Members& from);
  std::string object_of(const Members& members) const;
  std::string json_of(const Arguments& arguments) const;

  std::uint32_t text_of(const Sequence& sequence, Kind kind, std::uint64_t iid) const;
  std::uint32_t text_id(std::string_view bytes);
  std::string quoted(std::string_view bytes);
  Id number_id(std::uint64_t number);
  bool of_us(std::uint32_t category) const { return category == derived_ || category == missing_; }

  void emit(std::uint8_t phase, const EventFields& fields, Wide time, const Arguments& arguments);
  void add(std::uint8_t phase, const EventFields& fields, std::optional<Wide> time, std::string json);
  void hand_over();
  void lose(std::string_view what, std::string_view why) { ++losses_[{what, why}]; }
  void leave(Left what, std::uint64_t number = 0) { ++left_[{what, number}]; }

  EventScanner& events_;
  const std::uint32_t derived_, missing_;  // the categories of events that cutrace computed
  std::vector<Event> made_;                // the events of a packet
  Map<Sequence> sequences_;
  Map<Track> tracks_;
  Map<std::uint32_t> processes_;           // names without an event so far
  Map<std::vector<Waiting>> waiting_;      // by the id in the descriptor
  std::array<Wide, 64> clocks_{};          // differences to BOOTTIME
  bool has_realtime_ = false;
  Map<bool> flows_;                        // flows that have started
  std::vector<std::string> devices_;
  std::vector<std::uint64_t> gpu_processes_;
  GpuCounters inline_counters_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Wide> value_times_;  // the last of each counter, by GPU and name
  Map<Stage> stages_;  // by their event ids
  std::vector<Edge> edges_;
  std::optional<std::uint64_t> host_;
  Losses losses_;
  std::map<std::pair<Left, std::uint64_t>, std::uint64_t> left_;
  std::uint64_t added_ = 0;
  bool equal_clocks_ = false, tracks_of_no_sequence_ = false;
  bool of_cutrace_ = false, of_torch_ = false;
  std::uint32_t begun_ = 0, ended_ = 0;  // the first and the last packets of traces of cutrace
  std::vector<std::string> carried_;
  std::string scratch_;
};

}  // namespace cutrace
