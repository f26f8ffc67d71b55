#include "nvtx_decoder.h"

#include <cstring>
#include <string_view>
#include <utility>

namespace cutrace {

using nvtx::EventAttributes;
using nvtx::EventHeader;
using nvtx::EventType;
using nvtx::Ring;

NvtxDecoder::NvtxDecoder(Capture& capture, ThreadNames& names, std::uint64_t started)
    : capture_(capture), names_(names), started_(started) {
  for (Ring* ring = nvtx::all_rings(); ring != nullptr; ring = ring->next) ring->dropped.store(0);
}

void NvtxDecoder::drain() {
  age_pending_ends();
  for (Ring* ring = nvtx::all_rings(); ring != nullptr; ring = ring->next) {
    const std::uint32_t state = ring->state.load(std::memory_order_acquire);
    if (state == Ring::kFree) continue;
    ring->drain([&](const std::uint8_t* bytes) { event(*ring, bytes); });
    const auto it = threads_.find(ring);
    const std::uint64_t dropped = ring->dropped.exchange(0, std::memory_order_relaxed);
    capture_.lose(rows::Loss::nvtx_dropped, dropped, "NVTX events: the thread's buffer was full");
    if (state == Ring::kRetired) {  // the thread is gone and all it wrote has been read
      if (it != threads_.end()) {
        leave_open(it->second);
        threads_.erase(it);
      }
      ring->state.store(Ring::kFree, std::memory_order_release);
    }
  }
  const std::uint64_t ringless = nvtx::events_without_ring();
  capture_.lose(rows::Loss::nvtx_dropped, ringless - std::exchange(ringless_seen_, ringless),
                "NVTX events: no memory for the thread's buffer");
  const std::uint64_t refused = nvtx::registrations_refused();
  capture_.lose(rows::Loss::table_limit, refused - std::exchange(refused_seen_, refused), "NVTX strings and domains");
}

void NvtxDecoder::finish() {
  drain();
  age_pending_ends();
  age_pending_ends();
  for (auto& [ring, thread] : threads_) leave_open(thread);
  threads_.clear();
  for (const auto& [id, range] : started_ranges_) leave_open(range);
  started_ranges_.clear();
}

void NvtxDecoder::begin_file() {
  registered_.assign(registered_.size(), 0);
  domains_.assign(domains_.size(), 0);
}

void NvtxDecoder::event(const Ring& ring, const std::uint8_t* bytes) {
  EventHeader header;
  std::memcpy(&header, bytes, sizeof header);
  bytes += sizeof header;
  if (header.time < started_) return;
  ++events_;
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
  if (header.type == EventType::pop) return pop(threads_[&ring], header);
  if (header.type == EventType::end) return end(id, header.time, ring.thread);

  std::string_view own;
  if (header.flags & nvtx::kText) own = {reinterpret_cast<const char*>(bytes), header.length};
  const std::uint32_t known = header.flags & nvtx::kRegistered ? header.length : 0;
  const auto text = [&] { return own.empty() ? nvtx::registered_string(known) : own; };

  switch (header.type) {
    case EventType::push:
    case EventType::start: {
      Open range{{}, header.domain, header.depth, {known, std::string(own)}};
      rows::NvtxRanges& row = range.row;
      row.start = header.time;
      row.payload = attributes.payload;
      row.range_id = id;
      row.category = attributes.category;
      row.color = attributes.color;
      row.thread = ring.thread;
      row.payload_type = static_cast<std::uint8_t>(attributes.payload_type);
      if (header.type == EventType::push) return push(threads_[&ring], std::move(range));
      row.kind = 1;
      return start(std::move(range));
    }
    case EventType::mark: {
      rows::NvtxMarks row;
      row.time = header.time;
      row.payload = attributes.payload;
      row.name = known != 0 ? registered(known) : capture_.string(own);
      row.domain = domain(header.domain);
      row.category = attributes.category;
      row.color = attributes.color;
      row.thread = ring.thread;
      row.payload_type = static_cast<std::uint8_t>(attributes.payload_type);
      row.source = (header.flags & nvtx::kCutrace) ? 1 : 0;
      return capture_.add(row);
    }
    case EventType::category: {
      rows::NvtxCategories row;
      row.category = static_cast<std::uint32_t>(id);
      return capture_.fact(row, text(), header.domain != 0 ? nvtx::domain_name(header.domain) : std::string_view());
    }
    case EventType::thread_name: {
      rows::Threads row;
      row.thread = static_cast<std::uint32_t>(id);
      row.source = 2;
      return capture_.fact(row, text());
    }
    case EventType::resource_name: {
      rows::ResourceNames row;
      row.object = id;
      row.kind = static_cast<std::uint16_t>(attributes.kind);
      row.context = static_cast<std::uint16_t>(attributes.category);
      return capture_.fact(row, text());
    }
    default: return;
  }
}

void NvtxDecoder::push(Thread& thread, Open range) {
  if (thread.stacks.size() <= range.domain) thread.stacks.resize(range.domain + std::size_t{1});
  auto& stack = thread.stacks[range.domain];
  const bool by_level = range.level != nvtx::kNoDepth;
  // Whatever is open at this level or deeper lost its pop to a full buffer.
  while (by_level && !stack.empty() && stack.back().level >= range.level) {
    leave_open(stack.back());
    stack.pop_back();
  }
  range.row.depth = static_cast<std::uint16_t>(by_level ? range.level : stack.size());
  stack.push_back(std::move(range));
}

void NvtxDecoder::pop(Thread& thread, const EventHeader& header) {
  auto* stack = header.domain < thread.stacks.size() ? &thread.stacks[header.domain] : nullptr;
  const bool by_level = header.depth != nvtx::kNoDepth;
  while (by_level && stack && !stack->empty() && stack->back().level > header.depth) {
    leave_open(stack->back());
    stack->pop_back();
  }
  if (!stack || stack->empty() || (by_level && stack->back().level != header.depth)) {
    capture_.lose(rows::Loss::nvtx_unmatched_pop, 1, "NVTX pop");
    return;
  }
  close(stack->back(), header.time, stack->back().row.thread);
  stack->pop_back();
}

void NvtxDecoder::start(Open range) {
  const auto ended = pending_ends_.find(range.row.range_id);
  if (ended == pending_ends_.end()) {
    const std::uint64_t id = range.row.range_id;
    started_ranges_.emplace(id, std::move(range));
    return;
  }
  close(range, ended->second.time, ended->second.thread);
  pending_ends_.erase(ended);
}

void NvtxDecoder::end(std::uint64_t id, std::uint64_t time, std::uint32_t thread) {
  const auto it = started_ranges_.find(id);
  if (it == started_ranges_.end()) {
    pending_ends_.emplace(id, End{time, thread, false});
    return;
  }
  close(it->second, time, thread);
  started_ranges_.erase(it);
}

void NvtxDecoder::age_pending_ends() {
  std::uint64_t lost = 0;
  for (auto it = pending_ends_.begin(); it != pending_ends_.end();) {
    if (std::exchange(it->second.old, true)) {
      ++lost;
      it = pending_ends_.erase(it);
    } else {
      ++it;
    }
  }
  capture_.lose(rows::Loss::nvtx_unmatched_pop, lost, "NVTX range end");
}

void NvtxDecoder::close(const Open& range, std::uint64_t end, std::uint32_t thread) {
  rows::NvtxRanges row = range.row;
  row.end = end;
  row.end_thread = thread;
  write(range, row);
}

void NvtxDecoder::write(const Open& range, rows::NvtxRanges row) {
  row.name = range.text.registered != 0 ? registered(range.text.registered) : capture_.string(range.text.own);
  row.domain = domain(range.domain);
  capture_.add(row);
}

void NvtxDecoder::leave_open(const Open& range) {
  rows::NvtxRanges row = range.row;
  row.flags = 1;
  write(range, row);
  capture_.lose(rows::Loss::nvtx_open, 1, "NVTX range");
}

void NvtxDecoder::leave_open(Thread& thread) {
  for (auto& stack : thread.stacks)
    for (const Open& open : stack) leave_open(open);
  thread.stacks.clear();
}

std::uint32_t NvtxDecoder::registered(std::uint32_t number) {
  if (number >= registered_.size()) {
    if (nvtx::registered_string(number).empty()) return 0;  // not one of ours
    registered_.resize(number + std::size_t{1});
  }
  if (registered_[number] == 0) registered_[number] = capture_.string(nvtx::registered_string(number));
  return registered_[number];
}

std::uint32_t NvtxDecoder::domain(std::uint16_t number) {
  if (number == 0) return 0;
  if (number >= domains_.size()) domains_.resize(number + std::size_t{1});
  if (domains_[number] == 0) domains_[number] = capture_.string(nvtx::domain_name(number));
  return domains_[number];
}

}  // namespace cutrace
