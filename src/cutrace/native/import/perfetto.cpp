#include "import/perfetto.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "common/text.h"
#include "cutrace/perfetto_fields.h"
#include "import/protobuf.h"

namespace cutrace {

using protobuf::Damaged;
using protobuf::Fields;
using protobuf::Message;

namespace {

constexpr std::uint64_t kBoottime = 6, kRealtime = 1, kFirstOfSequence = 64;
enum EventType : std::uint64_t { kSliceBegin = 1, kSliceEnd, kInstantEvent, kCounterValue };

// The limits on nested tracks and arguments, and on events that wait for a descriptor. JSON has the same limit.
constexpr unsigned kDeepestTrack = 64, kDeepestArgument = json::kDeepest;
constexpr std::size_t kMostWaiting = 1024;

constexpr const char *kPackets = "packets", *kTrackEvents = "track events", *kGpuEvents = "GPU events",
                     *kNoClock = "its clock is not known";

// The tracks and the values of further counters: integers, doubles.
constexpr std::uint64_t kCounterTracks[] = {perfetto::TrackEvent::extra_counter_track_uuids,
                                            perfetto::TrackEvent::extra_double_counter_track_uuids};
constexpr std::uint64_t kCounterValues[] = {perfetto::TrackEvent::extra_counter_values,
                                            perfetto::TrackEvent::extra_double_counter_values};

// Arguments of kernels that have another name in Kineto's traces.
constexpr std::pair<std::string_view, std::string_view> kKineto[] = {
    {"registers_per_thread", "registers per thread"}, {"graph", "graph id"}, {"graph_node", "graph node id"},
    {"device id", "device"}, {"context id", "context"}, {"stream id", "stream"},
    {"stream_id", "stream"}};

// The numbers in the extra data of GPU work. The trace has them as strings.
constexpr std::string_view kNumbers[] = {"device", "context", "stream", "correlation", "priority", "graph id",
                                         "graph node id", "bytes", "value", "queued", "channel", "channel_type",
                                         "memory kind"};

// torch.profiler writes this process id for its own overhead.
constexpr std::uint64_t kOverheadProcess = 0x7FFFFFFF;

// Limit on events of GPU work that other events may wait for.
constexpr std::size_t kMostStages = std::size_t{1} << 20;

std::string_view kineto(std::string_view name) {
  for (const auto& [ours, theirs] : kKineto)
    if (name == ours) return theirs;
  return name;
}

bool whole(std::string_view text, std::int64_t& out) {
  return !text.empty() && text.find_first_not_of("-0123456789") == text.npos && json::integer(text, out);
}

// The unit of a GPU counter, "" for an unknown unit.
std::string_view unit_of(std::uint64_t numerator, bool is_rate) {
  if (is_rate) return "";
  switch (numerator) {
    case 7: return "bytes";
    case 13: return "Hz";
    case 15: return "MHz";
    case 19: return "ns";
    case 28: return "mW";
    case 29: return "W";
    case 34: return "C";
    case 37: return "%";
    default: return "";
  }
}

std::int64_t signed_of(std::uint64_t value) { return static_cast<std::int64_t>(value); }

Wide bounded(Wide value) {
  constexpr Wide kMost = Wide{1} << 100;
  return std::clamp(value, -kMost, kMost);
}

// Adds times of a unit to a time. The unit has 63 bits here, so that no product overflows.
Wide later(Wide time, Wide count, std::uint64_t unit) {
  return bounded(time + bounded(count * static_cast<Wide>(std::min<std::uint64_t>(unit, INT64_MAX))));
}

std::string double_text(std::uint64_t bits) {
  std::string out;
  append_double(std::bit_cast<double>(bits), out);
  return out;
}

bool as_64_bits(Wide value, std::int64_t& out) {
  if (value < INT64_MIN || value > INT64_MAX) return false;
  out = static_cast<std::int64_t>(value);
  return true;
}

void add_duration(EventFields& event, Wide duration) {
  event.flags |= as_64_bits(duration, event.duration) ? kHasDuration : kBadDuration;
}

// Starts the value of a key of an object, which the caller closes.
void add_key(std::string& json, std::string_view key) {
  json += json.empty() ? "{\"" : ",\"";
  json += key;
  json += "\":";
}

}  // namespace

PerfettoReader::PerfettoReader(EventScanner& events)
    : events_(events), derived_(events.text_id("cutrace.derived")), missing_(events.text_id("cutrace.missing")) {}

// Packets

std::size_t PerfettoReader::read(std::string_view data, std::size_t at, std::size_t most, std::vector<Packed>& packed) {
  constexpr std::size_t kVarint = 10;
  while (at < data.size() && packed.empty() && events_.pending() < most) {
    const char* p = data.data() + at;
    const char* const end = data.data() + data.size();
    std::uint64_t size = 0;
    if (*p++ != '\x0A') throw Damaged("the next bytes are not a packet");
    if (!protobuf::read_varint(p, end, size)) {
      if (data.size() - at > kVarint) throw Damaged("the next bytes are not a packet");
      return at;
    }
    if (size > kLargest) throw Damaged("a packet is too large");
    if (size > static_cast<std::size_t>(end - p)) return at;
    at = static_cast<std::size_t>(p - data.data()) + size;
    try {
      packet({p, size}, packed);
    } catch (const Damaged&) {
      made_.clear();
      packed.clear();
      lose(kPackets, "damaged");
    }
    hand_over();
  }
  return at;
}

void PerfettoReader::finish() {
  for (std::size_t i = 0; i < waiting_.entries().size(); ++i) release(i);
  draw_edges();
  // cutrace writes the version at the start of a trace, and the number of missing data at its end.
  if (begun_ > ended_) lose(kPackets, "the file ends before the last packets of cutrace: it was written or copied in part");
  for (const auto& [uuid, track] : tracks_.entries())
    if (track.named) name_process(track.process);
  for (std::size_t i = 0; i < tracks_.entries().size(); ++i) {
    if (!tracks_.at(i).ends.empty()) pair_slices(tracks_.at(i), true);
    close_inner(tracks_.at(i));
  }
  for (const auto& [uuid, track] : tracks_.entries())
    for (const Open& open : track.open) emit('B', open.fields, open.time, open.arguments);
  hand_over();
}

bool PerfettoReader::begins(std::string_view head) {
  using namespace perfetto::TracePacket;
  constexpr std::string_view kGroups[] = {"\x92\x03", "\xaa\x08"};  // the first bytes of compressed packets
  const char* p = head.data();
  const char* const end = p + head.size();
  try {
    while (p < end && *p == '\x0A') {
      std::uint64_t size = 0;
      if (!protobuf::read_varint(++p, end, size)) return false;
      const std::string_view packet(p, std::min<std::uint64_t>(size, static_cast<std::size_t>(end - p)));
      for (const std::string_view group : kGroups)
        if (packet.starts_with(group)) return true;
      // A text file can start with the same byte, a line break. So require a field that text does not imitate.
      bool sure = false;
      for (Fields field(packet); field.next();)
        sure |= field.number == trusted_packet_sequence_id || field.number == compressed_packets ||
                field.number == zstd_compressed_packets;
      if (sure) return true;
      p += packet.size();
    }
  } catch (const Damaged&) {
  }
  return false;
}

void PerfettoReader::packet(std::string_view data, std::vector<Packed>& packed) {
  using namespace perfetto::TracePacket;
  std::uint64_t sequence_id = 0, flags = 0, forgets = 0, dropped = 0, time = 0, clock = 0;
  std::optional<std::string_view> track_event_bytes, gpu_event_bytes, gpu_counter_bytes, frequency_bytes, memory_bytes;
  for (Fields field(data); field.next();) {
    switch (field.number) {
      case trusted_packet_sequence_id: sequence_id = field.value; break;
      case sequence_flags: flags = field.value; break;
      case incremental_state_cleared: forgets = field.value; break;
      case previous_packet_dropped: dropped = field.value; break;
      case timestamp: time = field.value; break;
      case timestamp_clock_id: clock = field.value; break;
      case track_event: track_event_bytes = field.bytes; break;
      case gpu_render_stage_event: gpu_event_bytes = field.bytes; break;
      case gpu_counter_event: gpu_counter_bytes = field.bytes; break;
      case generic_gpu_frequency_event: frequency_bytes = field.bytes; break;
      case gpu_mem_total_event: memory_bytes = field.bytes; break;
      default: break;
    }
  }
  Sequence& sequence = sequences_[sequence_id];
  if ((flags & 1) != 0 || forgets != 0) ++sequence.generation;
  // The first packet of a sequence always says so, because its writer does not know what the reader has.
  if (dropped != 0 && sequence.has_packets) lose("gaps", "packets were dropped during the recording");
  sequence.has_packets = true;
  std::uint64_t described = 0;
  for (Fields field(data); field.next();) {
    if (field.is_number) continue;
    switch (field.number) {
      case interned_data: intern(sequence_id, field.bytes); break;
      case trace_packet_defaults: defaults(sequence, field.bytes); break;
      case clock_snapshot: snapshot(sequence, field.bytes); break;
      case track_descriptor:
        described = describe(field.bytes);
        tracks_of_no_sequence_ |= sequence_id == 0;
        break;
      case gpu_info: gpu_info_names(field.bytes); break;
      case compressed_packets: packed.push_back({false, std::string(field.bytes)}); break;
      case zstd_compressed_packets: packed.push_back({true, std::string(field.bytes)}); break;
      case cutrace_table: of_cutrace_ = true; break;
      case trace_attributes: attributes(field.bytes); break;
      case track_event: case gpu_render_stage_event: case gpu_counter_event: case generic_gpu_frequency_event:
      case gpu_mem_total_event: break;
      // They have no further data.
      case trusted_uid: case synchronization_marker: case incremental_state_cleared: case previous_packet_dropped:
      case process_descriptor: case thread_descriptor: case timestamp_clock_id: case trusted_pid:
      case first_packet_on_sequence: case trace_uuid: case machine_id: break;
      default: leave(Left::kPacket, field.number);
    }
  }
  if (const std::uint32_t waiting = waiting_.find_index(described); waiting != Table::kNone) release(waiting);
  if (track_event_bytes) {
    if (const auto when = time_of(sequence, time, clock)) take_track_event(sequence_id, *when, *track_event_bytes);
    else lose(kTrackEvents, kNoClock);
  }
  if (gpu_event_bytes) {
    if (const auto when = time_of(sequence, time, clock)) take_gpu_event(sequence, *when, *gpu_event_bytes);
    else lose(kGpuEvents, kNoClock);
  }
  if (gpu_counter_bytes || frequency_bytes || memory_bytes) {
    const auto when = time_of(sequence, time, clock);
    if (!when) return lose(kGpuEvents, kNoClock);
    if (gpu_counter_bytes) take_gpu_counters(sequence, *when, *gpu_counter_bytes);
    if (frequency_bytes) take_gpu_frequency(*when, *frequency_bytes);
    if (memory_bytes) take_gpu_memory(*when, *memory_bytes);
  }
}

void PerfettoReader::attributes(std::string_view data) {
  namespace Attribute = perfetto::TraceAttributesAttribute;
  for (Fields field(data); field.next();) {
    if (field.is_number || field.number != perfetto::TraceAttributes::attribute) continue;
    std::string_view key, text;
    for (Fields part(field.bytes); part.next();) {
      if (part.number == Attribute::key) key = part.bytes;
      if (part.number == Attribute::string_value) text = part.bytes;
    }
    if (key == "cutrace.version") of_cutrace_ = true, ++begun_;
    if (key == "cutrace.missing") ++ended_;
    if (key == "cutrace.losses") carried_.emplace_back(text);
  }
}

// Interned data, tracks and clocks

void PerfettoReader::intern(std::uint64_t sequence_id, std::string_view data) {
  using namespace perfetto::InternedData;
  Sequence& sequence = sequences_[sequence_id];
  for (Fields entry = Message(data).fields(); entry.next();) {
    // All kinds of entries have an id, and a string or a number, in the same fields.
    const Message message(entry.bytes);
    const std::uint64_t iid = message.number(perfetto::EventName::iid);
    const auto given = message.find(perfetto::EventName::name);
    switch (entry.number) {
      case event_categories: intern_text(sequence, kCategory, iid, given); break;
      case event_names: intern_text(sequence, kName, iid, given); break;
      case debug_annotation_names: intern_text(sequence, kAnnotation, iid, given); break;
      case gpu_specifications: intern_text(sequence, kStage, iid, given); break;
      case debug_annotation_string_values: intern_text(sequence, kString, iid, given); break;
      case compute_arg_names: intern_text(sequence, kComputeArgument, iid, given); break;
      case graphics_contexts: sequence.interned[iid].process = given ? given->value : 0; break;
      case compute_kernels: {
        const auto kernel = std::make_shared<Kernel>();
        kernel->name = text_id(message.bytes(perfetto::InternedComputeKernel::name));
        if (kernel->name == 0) kernel->name = text_id(message.bytes(perfetto::InternedComputeKernel::demangled_name));
        add_compute_arguments(sequence, kernel->arguments, message.fields(), perfetto::InternedComputeKernel::args);
        join_sizes(kernel->arguments);
        valid(sequence, iid).kernel = kernel;
        break;
      }
      case gpu_counter_descriptors: {
        using namespace perfetto::InternedGpuCounterDescriptor;
        GpuCounters& of = sequence.gpu_counters[iid];
        of = {message.number(gpu_id), {}};
        describe_gpu_counters(of, message.bytes(counter_descriptor));
        break;
      }
      default: break;
    }
  }
}

void PerfettoReader::intern_text(Sequence& sequence, Kind kind, std::uint64_t iid, const std::optional<Fields>& given) {
  if (given && !given->is_number) valid(sequence, iid).texts[kind] = text_id(given->bytes);
}

// The data of an id in this generation of a sequence.
PerfettoReader::Interned& PerfettoReader::valid(Sequence& sequence, std::uint64_t iid) {
  Interned& known = sequence.interned[iid];
  if (known.generation != sequence.generation) known = {sequence.generation, known.process, {}, nullptr};
  return known;
}

void PerfettoReader::defaults(Sequence& sequence, std::string_view data) {
  const Message message(data);
  const Message of_events(message.bytes(perfetto::TracePacketDefaults::track_event_defaults));
  if (const std::uint64_t clock = message.number(perfetto::TracePacketDefaults::timestamp_clock_id)) sequence.clock = clock;
  if (const std::uint64_t track = of_events.number(perfetto::TrackEventDefaults::track_uuid)) sequence.track = track;
  for (std::size_t i = 0; i < sequence.counters.size(); ++i) sequence.counters[i] = of_events.numbers(kCounterTracks[i]);
}

std::uint64_t PerfettoReader::describe(std::string_view data) {
  using namespace perfetto::TrackDescriptor;
  const Message message(data);
  const std::uint64_t id = message.number(uuid);
  Track& track = tracks_[id];
  track.described = true;
  track.ready = false;
  track.parent = 0;
  const std::uint32_t old = track.name;
  for (const std::uint64_t given : {atrace_name, static_name, perfetto::TrackDescriptor::name})
    if (message.has(given)) track.name = text_id(message.bytes(given));
  if (message.has(thread)) {
    const Message of_thread(message.bytes(thread));
    track.process = of_thread.number(perfetto::ThreadDescriptor::pid);
    track.thread = number_id(of_thread.number(perfetto::ThreadDescriptor::tid));
    const std::uint32_t thread_name = text_id(of_thread.bytes(perfetto::ThreadDescriptor::thread_name));
    if (thread_name != 0) track.name = thread_name;
  } else if (message.has(process)) {
    const Message of_process(message.bytes(process));
    track.process = of_process.number(perfetto::ProcessDescriptor::pid);
    processes_[track.process] = text_id(of_process.bytes(perfetto::ProcessDescriptor::process_name));
  } else {
    track.thread = {Id::kText, text_id("track " + std::to_string(id))};
    track.parent = message.number(parent_uuid);
  }
  if (message.has(counter)) describe_counter(track, message.bytes(counter));
  track.named = track.named && track.name == old;
  return id;
}

void PerfettoReader::describe_counter(Track& track, std::string_view data) {
  using namespace perfetto::CounterDescriptor;
  constexpr std::string_view kUnits[] = {"", "ns", "", "bytes"};
  constexpr std::string_view kTypes[] = {"", "thread_time", "thread_instruction_count"};
  const Message message(data);
  const std::uint64_t unit_number = message.number(unit), type_number = message.number(type);
  track.unit = text_id(message.bytes(unit_name));
  if (track.unit == 0 && unit_number < std::size(kUnits)) track.unit = text_id(kUnits[unit_number]);
  if (track.name == 0 && type_number < std::size(kTypes)) track.name = text_id(kTypes[type_number]);
  track.multiplier = signed_of(message.number(unit_multiplier));
  if (track.multiplier == 0) track.multiplier = 1;
  track.incremental |= message.number(is_incremental) != 0;
  track.derived = false;
  for (Fields field = message.fields(); field.next();)
    if (field.number == categories) track.derived |= of_us(text_id(field.bytes));
}

void PerfettoReader::gpu_info_names(std::string_view data) {
  std::vector<std::string> names;
  for (Fields gpu(data); gpu.next();)
    if (gpu.number == perfetto::GpuInfo::gpus) names.emplace_back(Message(gpu.bytes).bytes(perfetto::GpuInfoGpu::name));
  devices_ = std::move(names);
}

// Goes from a track to its parents, and returns the first one without a descriptor. Returns 0 if all descriptors have arrived. The
// process of the track is then known.
std::uint64_t PerfettoReader::missing(std::uint64_t uuid, unsigned depth) {
  if (uuid == 0) return 0;
  const std::uint32_t index = tracks_.find_index(uuid);
  if (index == Table::kNone || (!tracks_.at(index).ready && !tracks_.at(index).described)) return uuid;
  Track& track = tracks_.at(index);
  if (track.ready) return 0;
  if (track.parent != 0 && depth < kDeepestTrack) {
    if (const std::uint64_t first = missing(track.parent, depth + 1)) return first;
    track.process = tracks_[track.parent].process;
  }
  track.ready = true;
  return 0;
}

// Adds the events that waited for a descriptor, after it was read or at the end of the trace.
void PerfettoReader::release(std::size_t waiting) {
  tracks_[waiting_.entries()[waiting].first].described = true;
  const std::vector<Waiting> events = std::exchange(waiting_.at(waiting), {});
  for (const Waiting& event : events) {
    const std::size_t before = made_.size();
    try {
      take_track_event(event.sequence, event.time, event.event);
    } catch (const Damaged&) {
      made_.resize(before);
      lose(kPackets, "damaged");
    }
  }
}

void PerfettoReader::snapshot(Sequence& sequence, std::string_view data) {
  using namespace perfetto::ClockSnapshotClock;
  struct Read {
    std::uint64_t id = 0, time = 0;
    bool incremental = false;
    std::uint64_t unit = 1;
  };
  std::vector<Read> clocks;
  for (Fields entry(data); entry.next();) {
    if (entry.number != perfetto::ClockSnapshot::clocks) continue;
    const Message clock(entry.bytes);
    clocks.push_back({clock.number(clock_id), clock.number(timestamp), clock.number(is_incremental) != 0,
                      std::max<std::uint64_t>(clock.number(unit_multiplier_ns), 1)});
  }
  // BOOTTIME, or else the first clock that does not belong to the sequence. The last time of a clock counts.
  const auto last = [&](std::uint64_t id) {
    return std::find_if(clocks.rbegin(), clocks.rend(), [&](const Read& clock) { return clock.id == id; });
  };
  auto reference = last(kBoottime);
  if (reference == clocks.rend()) {
    const auto first = std::find_if(clocks.begin(), clocks.end(), [](const Read& clock) { return clock.id < kFirstOfSequence; });
    if (first == clocks.end()) return;
    reference = last(first->id);
  }
  const Wide boot = bounded(static_cast<Wide>(reference->time) + (reference->id == kBoottime ? 0 : clocks_[reference->id]));
  for (const Read& clock : clocks) {
    if (clock.id < kFirstOfSequence) clocks_[clock.id] = bounded(boot - static_cast<Wide>(clock.time));
    else sequence.clocks[clock.id] = {boot, static_cast<Wide>(clock.time), clock.incremental, clock.unit};
    has_realtime_ |= clock.id == kRealtime;
    equal_clocks_ |= clock.id == kRealtime && clock.time == reference->time && reference->id == kBoottime;
  }
}

// The time of a packet on BOOTTIME (ns), nullopt for an unknown clock.
std::optional<Wide> PerfettoReader::time_of(Sequence& sequence, std::uint64_t time, std::uint64_t clock) {
  if (clock == 0) clock = sequence.clock;
  if (clock < kFirstOfSequence) return static_cast<Wide>(time) + clocks_[clock];
  const auto found = sequence.clocks.find(clock);
  if (found == sequence.clocks.end()) return std::nullopt;
  Clock& known = found->second;
  if (!known.incremental) return later(known.boot, static_cast<Wide>(time) - known.base, known.unit);
  known.boot = later(known.boot, static_cast<Wide>(time), known.unit);
  return known.boot;
}

std::optional<std::int64_t> PerfettoReader::realtime() const {
  std::int64_t value = INT64_MAX;
  if (!has_realtime_) return std::nullopt;
  as_64_bits(-clocks_[kRealtime], value);
  return value;
}

// Track events

void PerfettoReader::take_track_event(std::uint64_t sequence_id, Wide time, std::string_view data) {
  using namespace perfetto::TrackEvent;
  Sequence& sequence = sequences_[sequence_id];
  std::uint64_t kind = 0, track_id = 0, name_id = 0;
  std::string_view name_bytes, legacy_bytes;
  Number value;
  std::optional<double> real;
  bool old_times = false, has_flows = false, has_counters = false, has_annotations = false, launches = false;
  std::vector<std::uint64_t> unread;
  std::uint32_t one_category = 0;
  std::string all_categories;
  std::size_t category_count = 0;
  bool computed = false;
  const auto add_category = [&](std::uint32_t category) {
    computed |= of_us(category);
    if (category == 0) return;
    one_category = category;
    if (category_count++ > 0) all_categories += ',';
    all_categories += events_.texts()[category];
  };
  for (Fields field(data); field.next();) {
    switch (field.number) {
      case timestamp_delta_us: case timestamp_absolute_us: old_times = true; break;
      case category_iids: add_category(text_of(sequence, kCategory, field.value)); break;
      case categories: add_category(text_id(field.bytes)); break;
      case legacy_event: legacy_bytes = field.bytes; break;
      case type: kind = field.value; break;
      case name_iid: name_id = field.value; break;
      case name: name_bytes = field.bytes; break;
      case track_uuid: track_id = field.value; break;
      case counter_value: value.integer = signed_of(field.value); break;
      case double_counter_value: real = std::bit_cast<double>(field.value); break;
      case flow_ids: case flow_ids_old: case terminating_flow_ids: case terminating_flow_ids_old: has_flows = true; break;
      case extra_counter_values: case extra_double_counter_values: has_counters = true; break;
      case extra_counter_track_uuids: case extra_double_counter_track_uuids: break;
      case debug_annotations: has_annotations = true; break;
      case gpu_correlation: launches = true; break;
      default: unread.push_back(field.number);
    }
  }
  if (track_id == 0) track_id = sequence.track;
  if (const std::uint64_t first = missing(track_id)) {
    const std::size_t index = waiting_.index(first);
    waiting_.at(index).push_back({sequence_id, time, std::string(data)});
    if (waiting_.at(index).size() == kMostWaiting) release(index);
    return;
  }
  for (const std::uint64_t number : unread) leave(Left::kTrackEvent, number);
  if (old_times) return lose(kTrackEvents, "their times have a form of before 2020");
  if (has_counters) further_counters(sequence_id, time, data);
  Track& track = tracks_[track_id];
  // The ends of slices have no category, so the reader notes the track.
  track.derived |= computed;
  if (track.derived) {
    if (kind != kSliceEnd) leave(Left::kComputed);
    return;
  }
  name_track(track);
  const Message legacy(legacy_bytes);
  EventFields event;
  event.name = text_id(name_bytes);
  if (name_id == 0) name_id = legacy.number(perfetto::TrackEventLegacyEvent::name_iid);
  if (event.name == 0) event.name = text_of(sequence, kName, name_id);
  event.category = category_count == 1 ? one_category : text_id(all_categories);
  event.thread = {number_id(track.process), track.thread};
  const Arguments arguments = has_annotations ? annotations(sequence, data, debug_annotations) : nullptr;
  // Skip the correlation id, because the ids of the call's work have the same information.
  if (launches && !has_argument(arguments, "correlation")) leave(Left::kTrackEvent, gpu_correlation);
  if (event.category == 0 && has_argument(arguments, "cuda_sync_kind")) event.category = text_id("cuda_sync");
  if (event.category == 0 && track.process == kOverheadProcess) {
    event.category = text_id("overhead");
    event.thread.process = {Id::kInteger, -1};
  }
  const bool nests = track.thread.kind != Id::kAbsent && track.thread.kind != Id::kText;
  if (legacy.has(perfetto::TrackEventLegacyEvent::phase)) {
    emit_legacy(legacy_bytes, time, event, arguments);
  } else if (kind == kSliceBegin && nests) {
    if (!track.ends.empty()) pair_slices(track, false);
    track.open.push_back({time, event, arguments});
    ++track.begins;
  } else if (kind == kSliceEnd && nests && event.name != 0 && !track.open.empty()) {
    if (!track.ends.empty()) pair_slices(track, false);
    track.begins = 0;
    close_named(track, event.name, {time, arguments});
  } else if (kind == kSliceEnd && !track.open.empty()) {
    track.ends.push_back({time, arguments});
    if (track.ends.size() >= track.begins) pair_slices(track, false);
  } else if (kind == kSliceBegin || kind == kSliceEnd) {
    emit(kind == kSliceBegin ? 'B' : 'E', event, time, arguments);
  } else if (kind == kInstantEvent) {
    emit('i', event, time, arguments);
  } else if (kind == kCounterValue) {
    if (real) value = {false, 0, *real};
    take_counter(sequence_id, track, time, value, event);
  } else {
    lose(kTrackEvents, "of an unknown type");
  }
  if (has_flows) flows(track, time, data);
}

// Pairs the waiting ends of a track with its starts. Most writers end the latest slice first. In a group, ends have the order of
// the starts. If some ends of a group are missing, the others cannot be paired, unless the trace ends here. In traces of other
// writers, slices form a group if ends would otherwise precede their starts.
void PerfettoReader::pair_slices(Track& track, bool is_last) {
  const std::vector<End>& ends = track.ends;
  std::vector<Open>& open = track.open;
  const std::size_t begins = std::exchange(track.begins, 0);
  const std::size_t first = open.size() - begins, last = open.size() - 1;
  const auto fit = [&](const auto& begin_of) {
    for (std::size_t k = 0; k < ends.size(); ++k)
      if (ends[k].time < open[begin_of(k)].time) return false;
    return true;
  };
  const auto in_turn = [&](std::size_t k) { return first + k; };
  const auto latest = [&](std::size_t k) { return last - k; };
  const bool are_equal = ends.size() == begins;
  if (begins < 2 || !(in_groups() || (are_equal && !fit(latest) && fit(in_turn)))) {
    for (const End& end : ends) close_latest(track, end);
  } else if (are_equal || is_last) {
    for (std::size_t k = 0; k < ends.size(); ++k) close(open[in_turn(k)], ends[k]);
    const auto closed = open.begin() + static_cast<std::ptrdiff_t>(first);
    open.erase(closed, closed + static_cast<std::ptrdiff_t>(ends.size()));
  } else {
    for (std::size_t k = 0; k < ends.size(); ++k) lose("ends of slices", "their begins are not known");
  }
  track.ends.clear();
}

// Adds the slice with the latest start. If slices have equal times, the outer slice is added first, and the inner slices wait for
// it.
void PerfettoReader::close_latest(Track& track, const End& end) {
  Open open = std::move(track.open.back());
  track.open.pop_back();
  auto& inner = track.inner;
  if (!inner.empty() && (inner.back().first.time != open.time || inner.back().second.time != end.time)) close_inner(track);
  if (!track.open.empty() && track.open.back().time == open.time) {
    inner.emplace_back(std::move(open), end);
    return;
  }
  close(open, end);
  close_inner(track);
}

// Adds the latest open slice that has the name of the end or no name. Slices inside that slice end with it.
void PerfettoReader::close_named(Track& track, std::uint32_t name, const End& end) {
  std::vector<Open>& open = track.open;
  const auto matches = [&](const Open& begin) { return begin.fields.name == name || begin.fields.name == 0; };
  const auto found = std::find_if(open.rbegin(), open.rend(), matches);
  if (found == open.rend()) return leave(Left::kEnd);
  for (auto inside = found - open.rbegin(); inside > 0; --inside) close_latest(track, {end.time, nullptr});
  close_latest(track, end);
}

void PerfettoReader::close_inner(Track& track) {
  for (; !track.inner.empty(); track.inner.pop_back()) close(track.inner.back().first, track.inner.back().second);
}

// Adds the slice of a start and its end.
void PerfettoReader::close(Open& open, const End& end) {
  if (!open.arguments) open.arguments = end.arguments;
  else if (end.arguments) merge(*open.arguments, *end.arguments);
  add_duration(open.fields, end.time - open.time);
  emit('X', open.fields, open.time, open.arguments);
}

void PerfettoReader::further_counters(std::uint64_t sequence_id, Wide time, std::string_view data) {
  const Sequence& sequence = sequences_[sequence_id];
  const Message message(data);
  for (std::size_t i = 0; i < std::size(kCounterTracks); ++i) {
    const std::vector<std::uint64_t> values = message.numbers(kCounterValues[i]);
    std::vector<std::uint64_t> uuids = message.numbers(kCounterTracks[i]);
    if (uuids.empty()) uuids = sequence.counters[i];
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (k >= uuids.size()) {
        lose("counter values", "without a track");
        continue;
      }
      Track& track = tracks_[uuids[k]];
      if (!track.derived) name_track(track);
      EventFields event;
      event.thread = {number_id(track.process), track.thread};
      const Number integer{true, signed_of(values[k]), 0}, real{false, 0, std::bit_cast<double>(values[k])};
      take_counter(sequence_id, track, time, i == 0 ? integer : real, event);
    }
  }
}

void PerfettoReader::take_counter(std::uint64_t sequence_id, Track& track, Wide time, Number value, EventFields event) {
  if (track.derived) return leave(Left::kComputed);
  constexpr Wide kMost = Wide{1} << 125;
  value.integer *= track.multiplier;
  value.real *= static_cast<double>(track.multiplier);
  if (track.incremental) {
    const std::uint64_t generation = sequences_[sequence_id].generation;
    Total& known = track.totals[sequence_id];
    if (known.generation != generation) known = {generation, {}};
    Number& total = known.sum;
    const bool whole = total.whole && value.whole && total.integer < kMost && total.integer > -kMost;
    total = whole ? Number{true, total.integer + value.integer, 0} : Number{false, 0, total.value() + value.value()};
    value = total;
  }
  if (track.name != 0) event.name = track.name;
  std::string json = "{\"args\":{\"value\":";
  append_double(value.value(), json);
  json += "},\"cutrace\":{\"unit\":";
  append_quoted(events_.texts()[track.unit], json);
  json += ",\"single\":true}";
  add('C', event, time, std::move(json));
}

void PerfettoReader::emit_legacy(std::string_view data, Wide time, EventFields event, const Arguments& arguments) {
  using namespace perfetto::TrackEventLegacyEvent;
  for (Fields field(data); field.next();) {
    switch (field.number) {
      case name_iid: case phase: case duration_us: case unscoped_id: case local_id: case global_id: case bind_to_enclosing:
      case pid_override: case tid_override: break;
      default: leave(Left::kLegacyEvent, field.number);
    }
  }
  const Message legacy(data);
  if (const auto given = legacy.find(duration_us)) add_duration(event, static_cast<Wide>(signed_of(given->value)) * 1000);
  if (const auto given = legacy.find(pid_override)) event.thread.process = {Id::kInteger, signed_of(given->value)};
  if (const auto given = legacy.find(tid_override)) event.thread.thread = {Id::kInteger, signed_of(given->value)};
  std::string json = json_of(arguments);
  if (legacy.has(unscoped_id) || legacy.has(global_id)) {
    add_key(json, "id");
    json += std::to_string(legacy.number(legacy.has(unscoped_id) ? unscoped_id : global_id));
  } else if (legacy.has(local_id)) {
    char digits[16];
    add_key(json, "id2");
    json += "{\"local\":\"0x";
    json.append(digits, std::to_chars(digits, digits + sizeof digits, legacy.number(local_id), 16).ptr);
    json += "\"}";
  }
  if (legacy.number(bind_to_enclosing) != 0) {
    add_key(json, "bp");
    json += "\"e\"";
  }
  add(static_cast<std::uint8_t>(legacy.number(phase) & 0x7F), event, time, std::move(json));
}

void PerfettoReader::flows(const Track& track, Wide time, std::string_view data) {
  using namespace perfetto::TrackEvent;
  EventFields event;
  event.name = text_id("flow");
  event.thread = {number_id(track.process), track.thread};
  if (track.thread.kind == Id::kAbsent) event.thread.thread = number_id(0);
  for (Fields field(data); field.next();) {
    const bool last = field.number == terminating_flow_ids || field.number == terminating_flow_ids_old;
    if (!last && field.number != flow_ids && field.number != flow_ids_old) continue;
    bool& known = flows_[field.value];
    std::string json = "{\"id\":" + std::to_string(field.value) + ",\"bp\":\"e\"";
    add(last ? 'f' : known ? 't' : 's', event, time, std::move(json));
    known = true;
  }
}

// Adds the names of a track and its process, before the track's first event.
void PerfettoReader::name_track(Track& track) {
  if (!host_) host_ = track.process;
  if (track.named) return;
  track.named = true;
  if (track.name != 0 && track.thread.kind != Id::kAbsent)
    add_name("thread_name", track.name, {number_id(track.process), track.thread});
  name_process(track.process);
}

void PerfettoReader::name_process(std::uint64_t process) {
  const std::uint32_t index = processes_.find_index(process);
  const std::uint32_t name = index == Table::kNone ? 0 : std::exchange(processes_.at(index), 0);
  if (name != 0) add_name("process_name", name, {number_id(process), {}});
}

void PerfettoReader::add_name(std::string_view kind, std::uint32_t name, const ThreadId& thread) {
  EventFields event;
  event.name = text_id(kind);
  event.thread = thread;
  std::string json = "{\"args\":{\"name\":";
  append_quoted(events_.texts()[name], json);
  json += '}';
  add('M', event, std::nullopt, std::move(json));
}

// Work on the GPU

void PerfettoReader::take_gpu_event(Sequence& sequence, Wide time, std::string_view data) {
  using namespace perfetto::GpuRenderStageEvent;
  std::uint64_t duration_of = 0, queue_number = 0, context_of = 0, submission = 0, gpu = 0, queue_id = 0, stage_id = 0,
                kernel_id = 0, name_id = 0, id = 0;
  bool correlated = false;
  std::string_view name_bytes, launch_bytes;
  std::vector<std::uint64_t> unread, waits;
  for (Fields field(data); field.next();) {
    switch (field.number) {
      case duration: duration_of = field.value; break;
      case hw_queue_id: queue_number = field.value; break;
      case context: context_of = field.value; break;
      case submission_id: case cutrace_correlation: submission = field.value; correlated = true; break;
      case gpu_id: gpu = field.value; break;
      case hw_queue_iid: queue_id = field.value; break;
      case stage_iid: stage_id = field.value; break;
      case name: name_bytes = field.bytes; break;
      case kernel_iid: kernel_id = field.value; break;
      case name_iid: name_id = field.value; break;
      case launch: launch_bytes = field.bytes; break;
      case event_id: id = field.value; break;
      case event_wait_ids: field.append_varints(waits); break;
      case extra_data: break;
      default: unread.push_back(field.number);
    }
  }
  for (const std::uint64_t number : unread) leave(Left::kGpuEvent, number);
  const Interned* interned = sequence.interned.find(kernel_id);
  const bool known = interned && interned->generation == sequence.generation;
  const std::shared_ptr<Kernel> kernel = known ? interned->kernel : nullptr;
  const Arguments arguments = std::make_shared<Members>();
  set_number(*arguments, "device", gpu);
  set_number(*arguments, "context", context_of);
  add_launch(sequence, *arguments, kernel.get(), launch_bytes);
  for (Fields field(data); field.next();) {
    if (field.number != extra_data) continue;
    const Message pair(field.bytes);
    const std::string_view key = pair.bytes(perfetto::GpuRenderStageEventExtraData::name);
    const std::string_view value = pair.bytes(perfetto::GpuRenderStageEventExtraData::value);
    const std::string_view argument = kineto(key);
    std::int64_t number = 0;
    const bool is_number = std::ranges::find(kNumbers, argument) != std::end(kNumbers) && whole(value, number);
    (*arguments)[text_id(argument)] = is_number ? std::to_string(number) : quoted(value);
    of_torch_ |= key == "stream id";
  }
  if (correlated) set_number(*arguments, "correlation", submission);
  const Interned* owner = sequence.interned.find(context_of);
  const std::uint64_t process = owner ? owner->process : 0;
  if (std::ranges::find(gpu_processes_, process) == gpu_processes_.end()) gpu_processes_.push_back(process);
  if (!host_) host_ = process;
  EventFields event;
  event.name = kernel ? kernel->name : 0;
  const std::uint32_t stage = text_of(sequence, kStage, stage_id);
  std::string_view category = "gpu_slice";
  if (event.name != 0 || events_.texts()[stage] == "Kernel") category = "kernel";
  else if (events_.texts()[stage] == "Memcpy") category = "gpu_memcpy";
  else if (events_.texts()[stage] == "Memset") category = "gpu_memset";
  event.category = text_id(category);
  if (event.name == 0) event.name = text_of(sequence, kName, name_id);
  if (event.name == 0) event.name = text_id(name_bytes);
  if (event.name == 0) event.name = stage;
  if (of_cutrace_) name_kinds(event, category, *arguments);
  std::uint32_t queue = text_of(sequence, kStage, queue_id);
  if (queue == 0) queue = text_id("queue " + std::to_string(queue_number));
  event.thread = {number_id(process), {Id::kText, queue}};
  add_duration(event, static_cast<Wide>(duration_of));
  emit('X', event, time, arguments);
  if (of_cutrace_) {  // cutrace computes these
    if (!waits.empty()) leave(Left::kGpuEvent, event_wait_ids);
    return;
  }
  if (id != 0 && stages_.entries().size() < kMostStages) stages_[id] = {time + static_cast<Wide>(duration_of), event.thread};
  for (const std::uint64_t wait : waits) edges_.push_back({wait, time, event.thread});
}

// Adds an arrow for each wait of GPU work for other work. The other work may come later in the file.
void PerfettoReader::draw_edges() {
  EventFields step;
  step.name = text_id("wait");
  step.category = text_id("gpu_wait");
  std::uint64_t number = 0;
  for (const Edge& edge : edges_) {
    const Stage* const from = stages_.find(edge.from);
    if (from == nullptr) {
      leave(Left::kGpuEvent, perfetto::GpuRenderStageEvent::event_wait_ids);
      continue;
    }
    const std::string json = "{\"id\":" + std::to_string(++number) + ",\"bp\":\"e\"";
    step.thread = from->thread;
    add('s', step, from->end, json);
    step.thread = edge.thread;
    add('f', step, edge.time, json);
    hand_over();
  }
  edges_.clear();
}

void PerfettoReader::describe_gpu_counters(GpuCounters& to, std::string_view descriptor) {
  constexpr std::uint64_t kForwards = 2;
  using namespace perfetto::GpuCounterDescriptor;
  using namespace perfetto::GpuCounterDescriptorGpuCounterSpec;
  for (Fields field(descriptor); field.next();) {
    if (field.number != specs) continue;
    const Message spec(field.bytes);
    const std::string_view unit = unit_of(spec.number(numerator_units), spec.has(denominator_units));
    const bool forwards = spec.number(value_direction) == kForwards;
    to.names[spec.number(counter_id)] = {text_id(spec.bytes(name)), text_id(unit), forwards};
  }
}

// The process of GPU work, or else of the first event, because counters of GPUs name no process.
std::uint64_t PerfettoReader::gpu_process() const {
  return gpu_processes_.empty() ? host_.value_or(0) : gpu_processes_.front();
}

void PerfettoReader::take_gpu_counters(Sequence& sequence, Wide time, std::string_view data) {
  using namespace perfetto::GpuCounterEvent;
  const Message message(data);
  if (message.has(counter_descriptor)) describe_gpu_counters(inline_counters_, message.bytes(counter_descriptor));
  const GpuCounters* described = sequence.gpu_counters.find(message.number(counter_descriptor_iid));
  if (described == nullptr) described = &inline_counters_;
  const std::uint64_t gpu = message.has(gpu_id) ? message.number(gpu_id) : described->gpu;
  for (Fields field(data); field.next();) {
    if (field.number != counters) continue;
    using namespace perfetto::GpuCounterEventGpuCounter;
    const Message value(field.bytes);
    const std::uint64_t id = value.number(counter_id);
    const GpuCounter* const known = described->names.find(id);
    GpuCounter counter = known ? *known : GpuCounter{};
    if (counter.name == 0) counter.name = text_id("counter " + std::to_string(id));
    Wide start = time;
    // torch.profiler writes readings without a direction.
    if (!counter.forwards && !in_groups()) {
      const auto [last, is_first] = value_times_.try_emplace({gpu, counter.name}, time);
      start = std::exchange(last->second, time);
      if (is_first) {
        leave(Left::kFirstValue);
        continue;
      }
    }
    const bool is_real = value.has(double_value);
    const double number = is_real ? std::bit_cast<double>(value.number(double_value))
                                  : static_cast<double>(signed_of(value.number(int_value)));
    add_gpu_counter(gpu_process(), gpu, counter, start, number);
  }
}

void PerfettoReader::take_gpu_frequency(Wide time, std::string_view data) {
  using namespace perfetto::GenericGpuFrequencyEvent;
  const Message message(data);
  const double hertz = static_cast<double>(message.number(frequency_khz)) * 1000;
  const GpuCounter counter{text_id("GPU frequency"), text_id("Hz")};
  add_gpu_counter(gpu_process(), message.number(gpu_id), counter, time, hertz);
}

// A total without a process counts the memory of the whole GPU.
void PerfettoReader::take_gpu_memory(Wide time, std::string_view data) {
  using namespace perfetto::GpuMemTotalEvent;
  const Message message(data);
  const std::uint64_t owner = message.number(pid);
  const GpuCounter counter{text_id(owner != 0 ? "GPU memory" : "GPU memory of all processes"), text_id("bytes")};
  const auto bytes = static_cast<double>(message.number(size));
  add_gpu_counter(owner != 0 ? owner : gpu_process(), message.number(gpu_id), counter, time, bytes);
}

void PerfettoReader::add_gpu_counter(std::uint64_t process, std::uint64_t gpu, GpuCounter counter, Wide time,
                                     double value) {
  EventFields event;
  event.name = counter.name;
  event.thread.process = number_id(process);
  std::string json = "{\"args\":{\"value\":";
  append_double(value, json);
  json += "},\"cutrace\":{\"unit\":";
  append_quoted(events_.texts()[counter.unit], json);
  json += ",\"device\":" + std::to_string(gpu) + ",\"single\":true}";
  add('C', event, time, std::move(json));
}

// Joins the dimensions of launches that are arguments of a kernel, as Kineto does.
void PerfettoReader::join_sizes(Members& arguments) {
  for (const auto& [name, sizes] : {std::pair{"grid", "launch.grid_size."}, std::pair{"block", "launch.workgroup_size."}}) {
    std::string text;
    for (const char axis : {'x', 'y', 'z'}) {
      const std::string size = take(arguments, std::string(sizes) + axis);
      if (!size.empty()) text += (text.empty() ? "[" : ",") + size;
    }
    if (!text.empty()) arguments[text_id(name)] = text + ']';
  }
}

// Adds the arguments of a kernel and of its launch.
void PerfettoReader::add_launch(Sequence& sequence, Members& arguments, const Kernel* kernel, std::string_view launch) {
  using namespace perfetto::GpuRenderStageEventComputeKernelLaunch;
  if (kernel) merge(arguments, kernel->arguments);
  const Message message(launch);
  add_compute_arguments(sequence, arguments, message.fields(), args);
  for (const auto& [name, number] : {std::pair{"grid", grid_size}, std::pair{"block", workgroup_size}}) {
    if (!message.has(number)) continue;
    const Message sizes(message.bytes(number));
    std::string text;
    using namespace perfetto::GpuRenderStageEventDim3;
    for (const std::uint64_t axis : {x, y, z})
      text += (text.empty() ? "[" : ",") + std::to_string(std::max<std::uint64_t>(sizes.number(axis), 1));
    arguments[text_id(name)] = text + ']';
  }
  // Kineto has one number for both kinds of shared memory.
  std::optional<Wide> shared;
  for (const std::string_view name : {"shared_mem_static", "shared_mem_dynamic"}) {
    std::int64_t size = 0;
    if (whole(take(arguments, name), size) && size != 0) shared = shared.value_or(0) + size;
  }
  std::int64_t sum = 0;
  if (shared && as_64_bits(*shared, sum)) arguments[text_id("shared memory")] = std::to_string(sum);
}

// Arguments

// The annotations of an event or of an object, which are the fields with this number.
PerfettoReader::Arguments PerfettoReader::annotations(Sequence& sequence, std::string_view data, std::uint64_t number,
                                                      unsigned depth) {
  const Arguments out = std::make_shared<Members>();
  for (Fields field(data); field.next();) {
    if (field.number != number) continue;
    auto [name, value] = annotation(sequence, field.bytes, depth);
    (*out)[name] = std::move(value);
  }
  return out;
}

// The name of an annotation, and its value as JSON.
std::pair<std::uint32_t, std::string> PerfettoReader::annotation(Sequence& sequence, std::string_view data, unsigned depth) {
  using namespace perfetto::DebugAnnotation;
  if (depth > kDeepestArgument) throw Damaged("nested too deeply");
  std::uint64_t iid = 0;
  std::string_view name_bytes;
  std::string out = "null", items;
  bool is_object = false;
  for (Fields field(data); field.next();) {
    switch (field.number) {
      case name_iid: iid = field.value; break;
      case name: name_bytes = field.bytes; break;
      case bool_value: out = field.value != 0 || !field.bytes.empty() ? "true" : "false"; break;
      case uint_value: case pointer_value: out = std::to_string(field.value); break;
      case int_value: out = std::to_string(signed_of(field.value)); break;
      case double_value: out = double_text(field.value); break;
      case string_value: case legacy_json_value: out = quoted(field.bytes); break;
      case string_value_iid: out = quoted(events_.texts()[text_of(sequence, kString, field.value)]); break;
      case dict_entries: is_object = true; break;
      case array_values: items += (items.empty() ? '[' : ',') + annotation(sequence, field.bytes, depth + 1).second; break;
      default: break;
    }
  }
  if (is_object) out = object_of(*annotations(sequence, data, dict_entries, depth + 1));
  else if (!items.empty()) out = items + ']';
  const std::uint32_t key = text_id(name_bytes);
  return {key != 0 ? key : text_of(sequence, kAnnotation, iid), std::move(out)};
}

// An argument of a kernel, with the name that Kineto gives it.
std::pair<std::uint32_t, std::string> PerfettoReader::compute_argument(Sequence& sequence, std::string_view data) {
  using namespace perfetto::GpuRenderStageEventExtraComputeArg;
  std::uint64_t iid = 0;
  std::string_view name_bytes;
  std::string out = "null";
  for (Fields field(data); field.next();) {
    switch (field.number) {
      case name_iid: iid = field.value; break;
      case name: name_bytes = field.bytes; break;
      case int_value: out = std::to_string(signed_of(field.value)); break;
      case uint_value: out = std::to_string(field.value); break;
      case double_value: out = double_text(field.value); break;
      case string_value: out = quoted(field.bytes); break;
      case string_value_iid: out = quoted(events_.texts()[text_of(sequence, kString, field.value)]); break;
      default: break;
    }
  }
  std::uint32_t key = text_id(name_bytes);
  if (key == 0) key = text_of(sequence, kComputeArgument, iid);
  return {text_id(kineto(events_.texts()[key])), std::move(out)};
}

// Adds the arguments of a kernel, which are the fields with this number.
void PerfettoReader::add_compute_arguments(Sequence& sequence, Members& to, Fields fields, std::uint64_t number) {
  while (fields.next()) {
    if (fields.number != number) continue;
    auto [key, value] = compute_argument(sequence, fields.bytes);
    to[key] = std::move(value);
  }
}

void PerfettoReader::merge(Members& to, const Members& from) {
  for (const auto& [key, value] : from.entries()) to[key] = value;
}

std::string PerfettoReader::object_of(const Members& members) const {
  std::string json = "{";
  for (const auto& [key, value] : members.entries()) {
    if (value.empty()) continue;
    if (json.size() > 1) json += ',';
    append_quoted(events_.texts()[static_cast<std::uint32_t>(key)], json);
    json += ':';
    json += value;
  }
  return json + '}';
}

// The start of an event in JSON, with its arguments.
std::string PerfettoReader::json_of(const Arguments& arguments) const {
  std::string json;
  if (arguments && !arguments->entries().empty()) {
    add_key(json, "args");
    json += object_of(*arguments);
  }
  return json;
}

bool PerfettoReader::has_argument(const Arguments& arguments, std::string_view name) {
  return arguments && arguments->find_index(text_id(name)) != Table::kNone;
}

// Gives cutrace's copies and fills the names of torch.profiler, which have the kinds of copy and memory.
void PerfettoReader::name_kinds(EventFields& event, std::string_view category, Members& arguments) {
  const auto label_of = [&](std::string_view name) {
    const std::string quoted = take(arguments, name);
    if (quoted.size() < 2) return std::string("Unknown");
    std::string label = quoted.substr(1, quoted.size() - 2);
    for (std::size_t i = 0; i < label.size(); ++i)
      if ((i == 0 || label[i - 1] == ' ') && label[i] >= 'a' && label[i] <= 'z') label[i] -= 'a' - 'A';
    return label;
  };
  if (category == "gpu_memcpy") {
    const std::string kind = label_of("kind"), source = label_of("source_memory"), destination = label_of("destination_memory");
    event.name = text_id("Memcpy " + kind + " (" + source + " -> " + destination + ")");
  } else if (category == "gpu_memset") {
    event.name = text_id("Memset (" + label_of("memory") + ")");
  }
}

void PerfettoReader::set_number(Members& arguments, std::string_view name, std::uint64_t value) {
  arguments[text_id(name)] = std::to_string(value);
}

// Removes an argument. Returns its JSON, "" for none.
std::string PerfettoReader::take(Members& arguments, std::string_view name) {
  const std::uint32_t index = arguments.find_index(text_id(name));
  return index == Table::kNone ? std::string() : std::exchange(arguments.at(index), {});
}

std::uint32_t PerfettoReader::text_of(const Sequence& sequence, Kind kind, std::uint64_t iid) const {
  const Interned* interned = sequence.interned.find(iid);
  return interned && interned->generation == sequence.generation ? interned->texts[kind] : 0;
}

std::uint32_t PerfettoReader::text_id(std::string_view bytes) { return events_.text_id(valid_utf8(bytes, scratch_)); }

std::string PerfettoReader::quoted(std::string_view bytes) {
  std::string out;
  append_quoted(valid_utf8(bytes, scratch_), out);
  return out;
}

// The id of a process or thread. A number beyond 64 bits with a sign becomes a string.
Id PerfettoReader::number_id(std::uint64_t number) {
  if (number <= INT64_MAX) return {Id::kInteger, signed_of(number)};
  return {Id::kOther, text_id(std::to_string(number))};
}

void PerfettoReader::emit(std::uint8_t phase, const EventFields& fields, Wide time, const Arguments& arguments) {
  add(phase, fields, time, json_of(arguments));
}

// Adds an event. `json` is the object of its other keys without the closing brace, or empty.
void PerfettoReader::add(std::uint8_t phase, const EventFields& fields, std::optional<Wide> time, std::string json) {
  if (!json.empty()) json += '}';
  EventFields& event = made_.emplace_back(Event{fields, std::move(json)}).fields;
  event.phase = phase;
  if (time) event.flags |= as_64_bits(*time, event.time) ? kHasTime : kBadTime;
}

// Gives the events of a packet to the scanner.
void PerfettoReader::hand_over() {
  for (const Event& event : made_) events_.add(event.fields, event.json);
  added_ += made_.size();
  made_.clear();
}

}  // namespace cutrace
