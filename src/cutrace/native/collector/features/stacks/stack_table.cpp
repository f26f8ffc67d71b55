#include "stack_table.h"

namespace cutrace {
namespace {

// Bytes of an entry of a hash table besides its contents.
constexpr std::size_t kPerEntry = 32;

}  // namespace

const std::string* StackTable::name(std::string_view text) {
  auto it = names_.find(text);
  if (it == names_.end()) {
    it = names_.emplace(text).first;
    name_bytes_ += text.size();
  }
  return &*it;
}

std::uint32_t StackTable::frame(std::string_view file, std::string_view function, std::uint32_t line) {
  const FrameKey key{name(file), name(function), line};
  const auto known = frame_ids_.find(key);
  if (known != frame_ids_.end()) return known->second;
  frames_.push_back({key.file, key.function, line});
  frame_ids_.emplace(key, last_frame());
  return last_frame();
}

std::uint32_t StackTable::stack(std::uint32_t parent, std::uint32_t frame) {
  const std::uint64_t key = std::uint64_t{parent} << 32 | frame;
  const auto known = stack_ids_.find(key);
  if (known != stack_ids_.end()) return known->second;
  stacks_.push_back({parent, frame});
  stack_ids_.emplace(key, last_stack());
  return last_stack();
}

void StackTable::write(std::uint32_t stack, Capture& capture) {
  const std::uint32_t file = capture.references();
  unwritten_.clear();
  for (std::uint32_t id = stack; id != 0 && stack_of(id).written_in != file; id = stack_of(id).parent) unwritten_.push_back(id);
  while (!unwritten_.empty()) {
    const std::uint32_t id = unwritten_.back();
    unwritten_.pop_back();
    TableStack& unwritten = stack_of(id);
    write_frame(unwritten.frame, capture);
    rows::Stacks row;
    row.id = id;
    row.parent = unwritten.parent;
    row.frame = unwritten.frame;
    capture.add(row);
    unwritten.written_in = file;
  }
}

void StackTable::write_frame(std::uint32_t id, Capture& capture) {
  TableFrame& frame = frame_of(id);
  if (frame.written_in == capture.references()) return;
  rows::Frames row;
  row.id = id;
  row.file = capture.string(*frame.file);
  row.function = capture.string(*frame.function);
  row.line = frame.line;
  capture.add(row);
  frame.written_in = capture.references();
}

std::size_t StackTable::memory() const {
  const std::size_t names = name_bytes_ + names_.size() * (sizeof(std::string) + kPerEntry);
  const std::size_t frames = frames_.size() * (sizeof(TableFrame) + sizeof(FrameKey) + kPerEntry);
  const std::size_t stacks = stacks_.size() * (sizeof(TableStack) + sizeof(std::uint64_t) + kPerEntry);
  return names + frames + stacks;
}

}  // namespace cutrace
