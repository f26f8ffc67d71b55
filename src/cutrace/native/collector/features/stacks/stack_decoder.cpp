#include "stack_decoder.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "thread_stacks.h"

namespace cutrace {
namespace {

constexpr std::string_view kNoPython = " calls have no Python stack, because their threads run no Python code";
constexpr std::string_view kUnchecked = " calls have no Python stack, because the main thread of Python had run no code since the start";
constexpr std::string_view kFullRing = "the thread's buffer was full";
constexpr std::string_view kNoMemory = "the memory limit left a thread without tables";
constexpr std::string_view kUnreadable = "the frames of the thread are not as expected";
constexpr std::string_view kUndefined = "the stack was not defined";

constexpr std::array<std::string_view, static_cast<std::size_t>(NoStack::count)> kReasons = {
    "no_python", "unchecked", "closing", "nested", "unreadable", "no_memory"};

template <typename Event>
Event read_event(const std::uint8_t* bytes) {
  Event event;
  std::memcpy(&event, bytes, sizeof event);
  return event;
}

// Sets the id of a thread's number. Numbers count up to the size of the thread's tables.
void set_id(std::vector<std::uint32_t>& ids, std::uint32_t number, std::uint32_t id) {
  if (ids.size() <= number) ids.resize(number + std::size_t{1});
  ids[number] = id;
}

std::uint32_t id_at(const std::vector<std::uint32_t>& ids, std::uint32_t number) { return number < ids.size() ? ids[number] : 0; }

// Hides paths as `cutrace convert --redact` does.
std::string_view shown(std::string_view file, bool redact) {
  const bool path = file.find('/') != file.npos;
  return redact && path ? std::string_view("(path)") : file;
}

}  // namespace

StackDecoder::StackDecoder(const DecoderContext& context, StackCounts& counts, std::size_t limit, void (*renew)())
    : capture_(context.capture),
      threads_(context.threads),
      notes_(context.notes),
      redact_(context.options.redact),
      limit_(limit),
      renew_(renew),
      table_(std::make_shared<StackTable>(0, 0)),
      recording_(static_cast<std::uint16_t>(rings::latest() + 1)),
      counts_(counts) {
  // Drop the counts of an earlier recording.
  for (auto& count : counts_.without) count.store(0);
  counts_.truncated.store(0);
  for (Ring* ring = rings::all(); ring != nullptr; ring = ring->next) ring->take_dropped(EventSource::stacks);
}

void StackDecoder::event(const Ring& ring, const std::uint8_t* bytes) {
  const auto head = read_event<EventHead>(bytes);
  if (head.number != recording_) return;
  ThreadIds& ids = ids_[&ring];
  switch (head.type) {
    case EventType::stack_forget:
      ids = {};
      ids.table = table_;
      return;
    case EventType::stack_frame: return define_frame(ids, bytes);
    case EventType::stack_node: return define_node(ids, bytes);
    case EventType::call_stack: return add_call(ids, ring.thread, bytes);
    default: return;
  }
}

void StackDecoder::define_frame(ThreadIds& ids, const std::uint8_t* bytes) {
  if (ids.table == nullptr) return;
  const auto event = read_event<StackFrameEvent>(bytes);
  const auto* const names = reinterpret_cast<const char*>(bytes) + sizeof event;
  const std::string_view file(names, event.file_bytes);
  const std::string_view function(names + event.file_bytes, event.function_bytes);
  set_id(ids.frames, event.number, ids.table->frame(shown(file, redact_), function, event.line));
}

void StackDecoder::define_node(ThreadIds& ids, const std::uint8_t* bytes) {
  const auto event = read_event<StackNodeEvent>(bytes);
  const std::uint32_t frame = id_at(ids.frames, event.frame);
  const std::uint32_t parent = id_at(ids.nodes, event.parent);
  if (ids.table == nullptr || frame == 0 || (event.parent != 0 && parent == 0)) return;
  set_id(ids.nodes, event.number, ids.table->stack(parent, frame));
}

void StackDecoder::add_call(ThreadIds& ids, std::uint32_t thread, const std::uint8_t* bytes) {
  const auto event = read_event<CallStackEvent>(bytes);
  const std::uint32_t stack = id_at(ids.nodes, event.node);
  if (stack == 0) return capture_.lose(rows::Loss::stacks_dropped, 1, kUndefined);
  ids.table->write(stack, capture_);
  rows::CallStacks row;
  row.correlation = event.correlation;
  row.stack = stack;
  row.thread = thread;
  threads_.seen(thread);
  capture_.add(row);
  ++calls_;
}

void StackDecoder::ring_is_read(Ring& ring, bool ended) {
  capture_.lose(rows::Loss::stacks_dropped, ring.take_dropped(EventSource::stacks), kFullRing);
  if (ended) ids_.erase(&ring);
}

void StackDecoder::write_out(bool last) {
  take_counts();
  renew_table();
  if (last) describe();
}

// Threads define their stacks again, in a new table. The old table stays until the next write_out(), for events in the rings.
void StackDecoder::renew_table() {
  if (renewing_) std::erase_if(ids_, [this](const auto& entry) { return entry.second.table != table_; });
  renewing_ = table_->memory() > limit_;
  if (!renewing_) return;
  table_ = std::make_shared<StackTable>(table_->last_frame(), table_->last_stack());
  renew_();
}

void StackDecoder::take_counts() {
  const auto take = [&](NoStack reason) {
    const auto at = static_cast<std::size_t>(reason);
    const std::uint64_t count = counts_.without[at].exchange(0);
    without_[at] += count;
    return count;
  };
  truncated_ += counts_.truncated.exchange(0);
  take(NoStack::closing);
  take(NoStack::nested);
  take(NoStack::unchecked);
  take(NoStack::no_python);
  capture_.lose(rows::Loss::stacks_dropped, take(NoStack::unreadable), kUnreadable);
  capture_.lose(rows::Loss::stacks_dropped, take(NoStack::no_memory), kNoMemory);
  note(NoStack::no_python, kNoPython);
  // If no call has a stack, another note says why.
  if (calls_ != 0) note(NoStack::unchecked, kUnchecked);
}

void StackDecoder::note(NoStack reason, std::string_view sentence) {
  const auto at = static_cast<std::size_t>(reason);
  if (without_[at] != std::exchange(noted_[at], without_[at])) notes_.count(without_[at], sentence);
}

// The counts of the recording so far, for the process block.
void StackDecoder::describe() {
  JsonObject json;
  json.number("calls", calls_);
  if (truncated_ != 0) json.number("truncated", truncated_);
  for (std::size_t i = 0; i < without_.size(); ++i)
    if (without_[i] != 0) json.number(kReasons[i], without_[i]);
  JsonObject outer;
  outer.raw("python_stacks", json.str());
  notes_.set(outer);
}

std::size_t StackDecoder::memory() const {
  std::size_t bytes = table_->memory() + python::stack_tables_memory();
  for (const auto& [ring, ids] : ids_) bytes += (ids.frames.capacity() + ids.nodes.capacity()) * sizeof(std::uint32_t);
  return bytes;
}

}  // namespace cutrace
