// Turns the events of stacks into rows: numbers of a thread become ids of the recording. Writer thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/feature.h"
#include "stack_counts.h"
#include "stack_events.h"
#include "stack_table.h"

namespace cutrace {

class StackDecoder final : public Decoder {
 public:
  // `limit`: bytes of frames and stacks; above the limit they are forgotten. `renew`: makes all threads define their stacks
  // again.
  StackDecoder(const DecoderContext& context, StackCounts& counts, std::size_t limit, void (*renew)());

  void event(const Ring& ring, const std::uint8_t* bytes) override;
  void ring_is_read(Ring& ring, bool ended) override;
  void write_out(bool last) override;
  std::size_t memory() const override;

 private:
  // The ids of a thread's frames and nodes, by the thread's numbers; 0 for none.
  struct ThreadIds {
    std::shared_ptr<StackTable> table;
    std::vector<std::uint32_t> frames;
    std::vector<std::uint32_t> nodes;
  };

  void define_frame(ThreadIds& ids, const std::uint8_t* bytes);
  void define_node(ThreadIds& ids, const std::uint8_t* bytes);
  void add_call(ThreadIds& ids, std::uint32_t thread, const std::uint8_t* bytes);
  void renew_table();
  void take_counts();
  void note(NoStack reason, std::string_view sentence);
  void describe();

  Capture& capture_;
  ThreadNames& threads_;
  Notes& notes_;
  const bool redact_;
  const std::size_t limit_;
  void (*const renew_)();
  std::shared_ptr<StackTable> table_;
  std::unordered_map<const Ring*, ThreadIds> ids_;
  bool renewing_ = false;  // until the next write_out(), threads of the previous table define their stacks again
  // EventHead::number of the events of this recording, which the rings start after this constructor
  const std::uint16_t recording_;
  StackCounts& counts_;
  using Counts = std::array<std::uint64_t, static_cast<std::size_t>(NoStack::count)>;
  Counts without_{};  // calls of this recording, by reason
  Counts noted_{};    // the part of `without_` that is in a note
  std::uint64_t calls_ = 0;      // with a stack
  std::uint64_t truncated_ = 0;  // the part of `calls_` with too deep stacks
};

}  // namespace cutrace
