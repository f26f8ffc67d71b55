// Events and samples that a program submits together. A batch may be larger than a ring, so the ring has only a pointer to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "payload_walk.h"

namespace cutrace::nvtx {

class EventBatch {
 public:
  // The program's threads: copies the two parts, which are events and their referenced data, or samples and their times. Null
  // when memory is short.
  static std::unique_ptr<EventBatch> copy(const void* first, std::size_t first_size, const void* second, std::size_t second_size);
  ~EventBatch();
  EventBatch(const EventBatch&) = delete;
  EventBatch& operator=(const EventBatch&) = delete;

  bool of_counters = false;
  std::uint64_t id = 0;  // of the counter, or of the schema of the events
  std::uint64_t flags = 0;
  std::uint64_t scope = 0;

  std::span<const std::uint8_t> first() const { return {data_.get(), first_}; }
  std::span<const std::uint8_t> second() const { return {data_.get() + first_, second_}; }
  std::span<const std::uint8_t> all() const { return {data_.get(), first_ + second_}; }
  // The program's addresses of the two parts.
  std::span<const CopiedMemory> memory() const { return memory_; }

  // Limits the bytes of all batches that wait for the writer.
  static void limit(std::size_t bytes);
  static std::size_t waiting();
  // The number of batches that were lost for lack of memory since the last call.
  static std::uint64_t take_refused();
  // In the child: forgets the parent's batches.
  static void after_fork_in_child();

 private:
  EventBatch(std::unique_ptr<std::uint8_t[]> data, std::size_t first, std::size_t second) : data_(std::move(data)), first_(first), second_(second) {}

  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t first_;
  std::size_t second_;
  std::array<CopiedMemory, 2> memory_{};
};

}  // namespace cutrace::nvtx
