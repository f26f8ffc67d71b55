#include "nvtx_decoder.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "common/text.h"
#include "core/clock.h"

namespace cutrace {

using nvtx::EventAttributes;
using nvtx::EventHeader;

template <typename Number>
std::uint32_t NvtxDecoder::string(std::vector<std::uint32_t>& ids, Number number, std::string_view (*text_of)(Number)) {
  if (number == 0) return 0;
  if (std::exchange(references_, capture_.references()) != capture_.references()) {
    registered_.assign(registered_.size(), 0);
    domains_.assign(domains_.size(), 0);
  }
  if (number >= ids.size()) {
    if (text_of(number).empty()) return 0;  // an unknown handle
    ids.resize(number + std::size_t{1});
  }
  if (ids[number] == 0) ids[number] = capture_.string(text_of(number));
  return ids[number];
}

NvtxDecoder::NvtxDecoder(Capture& capture, ThreadNames& names, Watcher& watcher, std::uint64_t started, std::size_t memory)
    : capture_(capture), names_(names), watcher_(watcher), started_(started), memory_limit_(memory) {
  nvtx::EventBatch::limit(memory / 4);
  for (Ring* ring = rings::all(); ring != nullptr; ring = ring->next)
    for (auto& dropped : ring->dropped) dropped.store(0);
}

void NvtxDecoder::begin_round() {
  age_pending_ends();
  converters_.clear();
}

void NvtxDecoder::ring_is_read(Ring& ring, bool ended) {
  const std::uint64_t dropped = ring.take_dropped(EventSource::nvtx);
  capture_.lose(rows::Loss::nvtx_dropped, dropped,
                "NVTX events: the thread's buffer was full, or in use by code that a signal interrupted");
  if (dropped != 0) each_open_range([&](OpenRange& range) { range.unwatched = true; });  // any thread may end a range
  const std::uint64_t nodes = ring.take_dropped(EventSource::graph_nodes);
  capture_.lose(rows::Loss::nvtx_dropped, nodes, "graph nodes: the thread's buffer was full");
  if (nodes != 0) capture_.graph_nodes().drop_kernels();
  if (!ended) return;
  if (auto thread = threads_.extract(&ring)) leave_open(thread.mapped().stacks);
}

std::uint64_t NvtxDecoder::events_without_ring() {
  return rings::events_without_ring(EventSource::nvtx) + rings::events_without_ring(EventSource::graph_nodes);
}

void NvtxDecoder::end_round() {
  const std::uint64_t ringless = events_without_ring();
  capture_.lose(rows::Loss::nvtx_dropped, ringless - std::exchange(ringless_seen_, ringless),
                "events: no memory for the thread's buffer");
  const std::uint64_t refused = nvtx::registrations_refused();
  capture_.lose(rows::Loss::table_limit, refused - std::exchange(refused_seen_, refused), "NVTX strings, domains, schemas and counters");
  capture_.lose(rows::Loss::memory_limit, nvtx::EventBatch::take_refused(), "batches of NVTX events or counter samples");
}

void NvtxDecoder::finish() {
  age_pending_ends();
  age_pending_ends();
  for (auto& [ring, thread] : threads_) leave_open(thread.stacks);
  threads_.clear();
  while (!started_ranges_.empty()) write(started_ranges_.extract(started_ranges_.begin()).mapped(), 0, 0);
  while (!deferred_.empty()) {
    auto open = deferred_.extract(deferred_.begin());
    for (OpenRange& range : open.mapped()) write(range, 0, 0);
  }
}

void NvtxDecoder::event(const Ring& ring, const std::uint8_t* bytes) {
  const std::uint8_t* const start = bytes;
  EventHeader header;
  std::memcpy(&header, bytes, sizeof header);
  bytes += sizeof header;
  std::unique_ptr<const nvtx::EventBatch> batch;
  if (header.type == EventType::batch) {
    std::uintptr_t pointer = 0;
    std::memcpy(&pointer, bytes, sizeof pointer);
    batch.reset(reinterpret_cast<const nvtx::EventBatch*>(pointer));
  }
  if (header.time < started_) return;
  names_.seen(ring.thread);

  EventAttributes attributes{};
  if (header.flags & nvtx::kAttributes) {
    std::memcpy(&attributes, bytes, sizeof attributes);
    bytes += sizeof attributes;
  }
  std::uint64_t id = 0;
  if (header.flags & nvtx::kId) {
    std::memcpy(&id, bytes, 8);
    bytes += 8;
  }
  if (header.type == EventType::graph_node) return graph_node(threads_[&ring], header, id, ring.thread);
  if (header.type == EventType::graph_node_copy) return capture_.graph_nodes().copied(id, attributes.payload, ring.thread);
  if (header.type == EventType::graph_exec)
    return capture_.graph_nodes().instantiated(static_cast<std::uint32_t>(id), !(header.flags & nvtx::kIncomplete));
  ++events_;
  if (batch != nullptr) return this->batch(header, ring.thread, *batch);
  if (header.type == EventType::counter) {
    const auto kind = static_cast<nvtx::Sample>(header.depth);
    return counters_.sample(header.domain, id, kind, {bytes, header.length}, header.time, ring.thread);
  }
  std::string_view own;
  if (header.flags & nvtx::kText) own = {reinterpret_cast<const char*>(bytes), header.length};
  std::uint32_t known = header.flags & nvtx::kRegistered ? header.length : 0;
  nvtx::EventValues values;
  if (header.flags & nvtx::kPayload) {
    const auto behind_text = static_cast<std::size_t>(bytes - start) + own.size();
    values = payloads_.read(header.domain, start + ((behind_text + 7) & ~std::size_t{7}), header.type == EventType::deferred);
  }
  if (header.type == EventType::deferred)
    return deferred(header.domain, std::move(values), NVTX_SCOPE_NONE, header.time, ring.thread);
  if (header.type == EventType::pop) return pop(threads_[&ring].stacks, header, std::move(values));
  if (header.type == EventType::end) return end(id, header.time, ring.thread, std::move(values));
  if (values.message) {
    own = *values.message;
    known = 0;
  }
  attributes.category = values.category.value_or(attributes.category);
  attributes.color = values.color.value_or(attributes.color);
  const auto text = [&] { return own.empty() ? nvtx::registered_string(known) : own; };

  switch (header.type) {
    case EventType::push:
    case EventType::start: {
      OpenRange range{{}, header.domain, header.depth, known, std::string(own), std::move(values.arguments)};
      rows::NvtxRanges& row = range.row;
      row.start = header.time;
      row.payload = attributes.payload;
      row.range_id = id;
      row.category = attributes.category;
      row.color = attributes.color;
      row.thread = ring.thread;
      row.payload_type = static_cast<std::uint8_t>(attributes.payload_type);
      if (header.type == EventType::push) return push(threads_[&ring].stacks, std::move(range));
      row.kind = 1;
      return this->start(std::move(range));
    }
    case EventType::mark: {
      rows::NvtxMarks row;
      row.time = header.time;
      if (!capture_.keeps(row)) return;
      row.payload = attributes.payload;
      row.name = known != 0 ? registered(known) : capture_.string(own);
      row.domain = domain(header.domain);
      row.category = attributes.category;
      row.color = attributes.color;
      row.thread = ring.thread;
      row.payload_type = static_cast<std::uint8_t>(attributes.payload_type);
      row.source = (header.flags & nvtx::kCutrace) ? 1 : 0;
      row.arguments = capture_.string(values.arguments.json());
      return capture_.add(row);
    }
    case EventType::category: {
      rows::NvtxCategories row;
      row.category = static_cast<std::uint32_t>(id);
      return capture_.object_info(row, text(), header.domain != 0 ? nvtx::domain_name(header.domain) : std::string_view());
    }
    case EventType::thread_name: {
      rows::Threads row;
      row.thread = static_cast<std::uint32_t>(id);
      row.source = 2;
      return capture_.object_info(row, text());
    }
    case EventType::resource_name: {
      rows::ResourceNames row;
      row.object = id;
      row.kind = static_cast<std::uint16_t>(attributes.kind);
      row.context = static_cast<std::uint16_t>(attributes.category);
      return capture_.object_info(row, text());
    }
    default: return;
  }
}

// A node has no origin if dropped events of its thread leave its ranges in doubt.
void NvtxDecoder::graph_node(Thread& thread, const EventHeader& header, std::uint64_t node, std::uint32_t id_of_thread) {
  if (header.flags & nvtx::kUnknownRanges) return capture_.graph_nodes().created(node, 0, id_of_thread, {});
  std::size_t open = 0;
  for (std::size_t domain = 0; domain < std::min(thread.stacks.size(), Ring::kDomains); ++domain) open += thread.stacks[domain].ranges.size();
  if (std::exchange(thread.lost_events, header.length) != header.length) {
    ++changes_;
    for (RangeStack& stack : thread.stacks)
      for (OpenRange& range : stack.ranges) range.doubtful = true;
    for (auto& [id, range] : started_ranges_)
      if (range.row.thread == id_of_thread) range.doubtful = true;
  }
  if (std::exchange(thread.ranges_of, changes_) != changes_) thread.ranges = open_ranges(thread.stacks, id_of_thread);
  const bool known = open == header.depth && thread.ranges;
  if (!known) capture_.lose(rows::Loss::nvtx_dropped, 1, "graph nodes: events of their ranges were dropped");
  capture_.graph_nodes().created(node, known ? header.time : 0, id_of_thread, known ? *thread.ranges : std::string());
}

// The names of a thread's open ranges, outermost first, as a JSON array; "" for none. Ranges of both styles and of all domains
// count, as for launches. nullopt when one of the ranges may have ended.
std::optional<std::string> NvtxDecoder::open_ranges(const Stacks& stacks, std::uint32_t thread) const {
  std::vector<const OpenRange*> open;
  for (const RangeStack& stack : stacks)
    for (const OpenRange& range : stack.ranges) open.push_back(&range);
  for (const auto& [id, range] : started_ranges_)
    if (range.row.thread == thread) open.push_back(&range);
  if (std::ranges::any_of(open, &OpenRange::doubtful)) return std::nullopt;
  std::ranges::stable_sort(open, {}, [](const OpenRange* range) { return std::uint64_t{range->row.start}; });
  std::string json;
  for (const OpenRange* range : open) {
    std::string name(range->domain != 0 ? nvtx::domain_name(range->domain) : std::string_view());
    if (!name.empty()) name += ':';
    name += range->registered != 0 ? nvtx::registered_string(range->registered) : std::string_view(range->own);
    std::string part = (json.empty() ? '[' : ',') + json_quoted(name);
    if (json.size() + part.size() >= StringTable::kLongest) break;  // a longer string would be cut
    json += part;
  }
  return json.empty() ? json : json + ']';
}

void NvtxDecoder::push(Stacks& stacks, OpenRange range) {
  ++changes_;
  if (stacks.size() <= range.domain) stacks.resize(range.domain + std::size_t{1});
  RangeStack& stack = stacks[range.domain];
  const bool by_level = range.level != nvtx::kNoDepth;
  // Open ranges at this level or deeper lost their pops, because the ring was full.
  while (by_level && !stack.ranges.empty() && stack.ranges.back().level >= range.level) close(stack);
  if (by_level) stack.forgotten = std::min(stack.forgotten, range.level);
  const std::size_t around = by_level ? range.level : stack.forgotten + stack.ranges.size();
  range.row.depth = static_cast<std::uint16_t>(around);
  open_bytes_ += size_of(range);
  stack.ranges.push_back(std::move(range));
  keep_to_memory();
}

void NvtxDecoder::pop(Stacks& stacks, const EventHeader& header, nvtx::EventValues values) {
  ++changes_;
  if (stacks.size() <= header.domain) stacks.resize(header.domain + std::size_t{1});
  RangeStack& stack = stacks[header.domain];
  const bool by_level = header.depth != nvtx::kNoDepth;
  while (by_level && !stack.ranges.empty() && stack.ranges.back().level > header.depth) close(stack);
  const bool found = !stack.ranges.empty() && (!by_level || stack.ranges.back().level == header.depth);
  if (found) {
    apply(stack.ranges.back(), std::move(values));
    return close(stack, header.time);
  }
  const bool was_forgotten = by_level ? header.depth < stack.forgotten : stack.forgotten != 0;
  if (!was_forgotten) return capture_.lose(rows::Loss::nvtx_unmatched_pop, 1, "NVTX pop");
  stack.forgotten = by_level ? header.depth : stack.forgotten - 1;
}

void NvtxDecoder::start(OpenRange range) {
  ++changes_;
  const std::uint64_t id = range.row.range_id;
  open_bytes_ += size_of(range);
  if (const auto ended = pending_ends_.extract(id)) {
    apply(range, std::move(ended.mapped().values));
    return write(range, ended.mapped().time, ended.mapped().thread);
  }
  started_ranges_.emplace(id, std::move(range));
  keep_to_memory();
}

void NvtxDecoder::apply(OpenRange& range, nvtx::EventValues values) {
  open_bytes_ -= size_of(range);
  if (values.message) {
    range.own = std::move(*values.message);
    range.registered = 0;
  }
  range.row.category = values.category.value_or(range.row.category);
  range.row.color = values.color.value_or(range.row.color);
  range.arguments.append(values.arguments, " (end)");
  open_bytes_ += size_of(range);
}

void NvtxDecoder::end(std::uint64_t id, std::uint64_t time, std::uint32_t thread, nvtx::EventValues values) {
  ++changes_;
  if (const auto started = started_ranges_.extract(id)) {
    apply(started.mapped(), std::move(values));
    return write(started.mapped(), time, thread);
  }
  if (id <= forgotten_starts_) return;
  pending_ends_.emplace(id, PendingEnd{time, thread, std::move(values), round_});
}

void NvtxDecoder::age_pending_ends() {
  ++round_;
  const auto lost = std::erase_if(pending_ends_, [this](const auto& end) { return end.second.round + 2 <= round_; });
  capture_.lose(rows::Loss::nvtx_unmatched_pop, lost, "NVTX range end");
}

rows::NvtxRanges NvtxDecoder::row_of(const OpenRange& range, std::uint64_t end) {
  rows::NvtxRanges row = range.row;
  row.end = end;
  row.name = range.registered != 0 ? registered(range.registered) : capture_.string(range.own);
  row.domain = domain(range.domain);
  row.arguments = capture_.string(range.arguments.json());
  return row;
}

void NvtxDecoder::look_at(OpenRange& range, const rows::NvtxRanges& row, bool open) {
  const std::string_view domain = range.domain != 0 ? nvtx::domain_name(range.domain) : std::string_view();
  const std::string_view name = range.registered != 0 ? nvtx::registered_string(range.registered) : std::string_view(range.own);
  watcher_.look_at(row, open, domain, name, range.fired);
}

template <typename Visit>
void NvtxDecoder::each_open_range(Visit&& visit) {
  for (auto& [ring, thread] : threads_)
    for (RangeStack& stack : thread.stacks)
      for (OpenRange& range : stack.ranges) visit(range);
  for (auto& [id, range] : started_ranges_) visit(range);
}

void NvtxDecoder::watch_open_ranges(std::uint64_t time) {
  if (!watcher_.watches_ranges()) return;
  each_open_range([&](OpenRange& range) {
    if (!range.unwatched) look_at(range, row_of(range, time), true);
  });
}

// ---- deferred events ----

void NvtxDecoder::batch(const EventHeader& header, std::uint32_t thread, const nvtx::EventBatch& batch) {
  if (batch.of_counters)
    return counters_.batch(header.domain, {batch.id, batch.flags, batch.first(), batch.second()}, header.time, thread);
  const nvtx::PayloadType* const type = nvtx::find_type(header.domain, batch.id);
  if (type == nullptr || type->is_enum())
    return capture_.lose(rows::Loss::nvtx_undecoded, 1, "batches of deferred NVTX events of a schema that was never registered");
  const auto all = batch.all();
  const nvtx::PayloadBytes bytes{.data = all.data(), .size = all.size(), .base = batch.first().size(), .relocated = false, .memory = batch.memory()};
  const std::size_t end = batch.first().size();
  for (std::size_t at = 0; at < end;) {
    const std::size_t before = at;
    nvtx::EventValues values = payloads_.read_deferred(*type, bytes, at);
    if (at == nvtx::kVaries || at <= before || at > end)
      return capture_.lose(rows::Loss::nvtx_undecoded, 1, "ends of batches of deferred NVTX events");
    deferred(header.domain, std::move(values), batch.scope, header.time, thread);
  }
}

std::optional<std::uint64_t> NvtxDecoder::time_of(std::uint16_t domain, const std::optional<nvtx::Timestamp>& timestamp, std::uint64_t submitted) {
  if (!timestamp) return std::nullopt;
  const std::uint64_t clock = timestamp->clock.value_or(NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED);
  auto known = converters_.find({domain, clock});
  if (known == converters_.end()) known = converters_.emplace(std::pair(domain, clock), nvtx::TimeConverter::of(domain, clock)).first;
  const auto time = known->second.convert(timestamp->time);
  // A submitted event is from the past, apart from errors of the clocks.
  return time && *time <= submitted + kSecondNs ? time : std::nullopt;
}

void NvtxDecoder::deferred(std::uint16_t domain_number, nvtx::EventValues values, std::uint64_t scope, std::uint64_t submitted, std::uint32_t thread) {
  const auto start = time_of(domain_number, values.start, submitted);
  const auto end = time_of(domain_number, values.end, submitted);
  const auto mark = time_of(domain_number, values.mark, submitted);
  const bool converted = start.has_value() == values.start.has_value() && end.has_value() == values.end.has_value() &&
                         mark.has_value() == values.mark.has_value();
  if (!converted)
    return capture_.lose(rows::Loss::nvtx_undecoded, 1, "deferred NVTX events with times of an unknown clock");
  if (scope == NVTX_SCOPE_NONE) scope = values.general_scope.value_or(NVTX_SCOPE_NONE);
  scope = values.scope.value_or(scope);
  const bool of_this_thread = scope == NVTX_SCOPE_CURRENT_SW_THREAD || scope == NVTX_SCOPE_CURRENT_SW_INNERMOST;
  const std::uint32_t owner = values.thread.value_or(of_this_thread ? thread : 0);
  if (const std::string_view path = nvtx::scope_path(domain_number, scope); !path.empty()) {
    nvtx::Arguments place;
    place.add("scope", json_quoted(path));
    values.arguments.append(place, " (event)");
  }
  OpenRange range{{}, domain_number, nvtx::kNoDepth, 0, values.message.value_or(std::string()), std::move(values.arguments)};
  range.row.category = values.category.value_or(0);
  range.row.color = values.color.value_or(0);
  range.row.thread = owner;
  const bool is_range = start.has_value() || end.has_value();
  const std::uint64_t kind = values.kind != 0 ? values.kind : is_range ? NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_STARTEND : NVTX_PAYLOAD_SCHEMA_FLAG_MARK;
  const std::optional<std::uint64_t> moment = mark ? mark : start ? start : end;
  if (!moment) return capture_.lose(rows::Loss::nvtx_undecoded, 1, "deferred NVTX events without a time");
  if (kind != NVTX_PAYLOAD_SCHEMA_FLAG_MARK) return deferred_range(std::move(range), values, start, end, moment);
  if (*moment < started_) return;
  rows::NvtxMarks row;
  row.time = *moment;
  row.name = capture_.string(range.own);
  row.domain = domain(domain_number);
  row.category = range.row.category;
  row.color = range.row.color;
  row.thread = owner;
  row.arguments = capture_.string(range.arguments.json());
  capture_.add(row);
}

void NvtxDecoder::deferred_range(OpenRange range, const nvtx::EventValues& values, std::optional<std::uint64_t> start,
                                 std::optional<std::uint64_t> end, std::optional<std::uint64_t> moment) {
  const auto undecoded = [&](std::string_view what) { capture_.lose(rows::Loss::nvtx_undecoded, 1, what); };
  // Only a thread's own ranges nest.
  const bool nests = values.kind == NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSHPOP || values.kind == NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSH ||
                     values.kind == NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_POP;
  range.row.kind = nests && range.row.thread != 0 ? 0 : 1;
  range.row.range_id = values.range_id;
  const std::uint32_t thread = range.row.thread;
  const std::tuple key(range.domain, nests, nests ? std::uint64_t{thread} : values.range_id);
  switch (values.kind) {
    case NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSH:
    case NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_START: {
      if (open_bytes_ + size_of(range) > memory_for_ranges() / 2)
        return capture_.lose(rows::Loss::memory_limit, 1, "deferred NVTX ranges: too many were open");
      range.row.start = *moment;
      open_bytes_ += size_of(range);
      deferred_[key].push_back(std::move(range));
      return;
    }
    case NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_POP:
    case NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_END: {
      const auto open = deferred_.find(key);
      if (open == deferred_.end()) return capture_.lose(rows::Loss::nvtx_unmatched_pop, 1, "deferred NVTX range end");
      OpenRange begun = std::move(open->second.back());
      open->second.pop_back();
      if (open->second.empty()) deferred_.erase(open);
      nvtx::EventValues ending;
      ending.arguments = std::move(range.arguments);
      apply(begun, std::move(ending));
      return write_deferred(begun, *moment, thread);
    }
    case NVTX_PAYLOAD_SCHEMA_FLAG_COUNTER_GROUP: return undecoded("counter groups as deferred NVTX events");
    default: break;
  }
  if (!start || !end) return undecoded("deferred NVTX ranges without a start or an end");
  range.row.start = *start;
  open_bytes_ += size_of(range);
  write_deferred(range, *end, thread);
}

void NvtxDecoder::write_deferred(OpenRange& range, std::uint64_t end, std::uint32_t thread) {
  if (end >= started_ && end >= range.row.start) return write(range, end, thread);
  open_bytes_ -= size_of(range);
  if (end < range.row.start) capture_.lose(rows::Loss::nvtx_undecoded, 1, "deferred NVTX ranges that end before they start");
}

// ---- ranges ----

// Call it after the range has left its container.
void NvtxDecoder::write(OpenRange& range, std::uint64_t end, std::uint32_t thread) {
  open_bytes_ -= size_of(range);
  write_row(range, end, thread);
}

void NvtxDecoder::write_open_ranges() {
  each_open_range([&](OpenRange& range) { write_row(range, 0, 0); });
  for (auto& [key, ranges] : deferred_)
    for (OpenRange& range : ranges) write_row(range, 0, 0);
}

void NvtxDecoder::write_row(OpenRange& range, std::uint64_t end, std::uint32_t thread) {
  std::uint64_t start = range.row.start;
  std::uint16_t flags = end == 0 ? 1 : 0;
  if (capture_.filter() != nullptr && !capture_.filter()->clip(start, end, flags)) return;
  rows::NvtxRanges row = row_of(range, end);
  row.start = start;
  row.end_thread = thread;
  row.flags = flags;
  capture_.add(row);
  if (end == 0) return capture_.lose(rows::Loss::nvtx_open, 1, "NVTX range");
  if (watcher_.watches_ranges()) look_at(range, row, false);
}

// Removes the range before code that may throw, so that no range is written twice.
void NvtxDecoder::close(RangeStack& stack, std::uint64_t end) {
  OpenRange range = std::move(stack.ranges.back());
  stack.ranges.pop_back();
  write(range, end, end != 0 ? range.row.thread : 0);
}

void NvtxDecoder::leave_open(Stacks& stacks) {
  for (RangeStack& stack : stacks)
    while (!stack.ranges.empty()) close(stack);
}

std::size_t NvtxDecoder::size_of(const OpenRange& range) {
  constexpr std::size_t kContainer = 64;  // bytes of a node of the map, or spare space of the vector
  return sizeof range + kContainer + range.own.capacity() + range.arguments.memory();
}

void NvtxDecoder::forget(OpenRange range) {
  open_bytes_ -= size_of(range);
  rows::NvtxRanges row = row_of(range, 0);
  row.flags = 1;
  capture_.add(row);
  capture_.lose(rows::Loss::memory_limit, 1, "ends of NVTX ranges: too many were open");
}

// The rings and batches use the same share, but an eighth of it stays for ranges.
std::size_t NvtxDecoder::memory_for_ranges() const {
  const std::size_t least = memory_limit_ / 8;
  const std::size_t used = rings::memory() + nvtx::EventBatch::waiting();
  return used + least < memory_limit_ ? memory_limit_ - used : least;
}

void NvtxDecoder::keep_to_memory() {
  const std::size_t limit = memory_for_ranges();
  while (open_bytes_ > limit) {
    RangeStack* most = nullptr;
    for (auto& [ring, thread] : threads_)
      for (RangeStack& stack : thread.stacks)
        if (most == nullptr || stack.ranges.size() > most->ranges.size()) most = &stack;
    const std::size_t nested = most != nullptr ? most->ranges.size() : 0;
    if (nested == 0 && started_ranges_.empty()) return;
    // Forgets half of a container at a time, which takes less time than single ranges.
    if (nested >= started_ranges_.size()) forget_outermost(*most);
    else forget_first_started();
  }
}

void NvtxDecoder::forget_outermost(RangeStack& stack) {
  const auto half = static_cast<std::ptrdiff_t>((stack.ranges.size() + 1) / 2);
  std::vector<OpenRange> outermost(std::make_move_iterator(stack.ranges.begin()), std::make_move_iterator(stack.ranges.begin() + half));
  stack.ranges.erase(stack.ranges.begin(), stack.ranges.begin() + half);
  // Dropped events leave gaps between the levels.
  const std::uint32_t last = outermost.back().level;
  stack.forgotten = last != nvtx::kNoDepth ? last + 1 : stack.forgotten + static_cast<std::uint32_t>(half);
  for (OpenRange& range : outermost) forget(std::move(range));
}

void NvtxDecoder::forget_first_started() {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, range] : started_ranges_) ids.push_back(id);
  const auto middle = ids.begin() + static_cast<std::ptrdiff_t>((ids.size() - 1) / 2);
  std::ranges::nth_element(ids, middle);
  forgotten_starts_ = std::max(forgotten_starts_, *middle);
  for (auto id = ids.begin(); id <= middle; ++id) forget(std::move(started_ranges_.extract(*id).mapped()));
}

}  // namespace cutrace
