// Columns from protobuf, the way back of encoder.h: messages of a stream become rows of numbers, as a plan says that
// was made in Python. Nothing here knows which messages these are. What is not as the wire format has it is counted and
// left out, and what one call returns is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/table.h"

namespace cutrace {

enum class Act : std::uint8_t {
  kNumber,  // the value of the field goes into column `target` of the node's scope; the last one holds
  kEnter,   // a nested message, read by node `target`
  kEach,    // a nested message, read by node `target`, each of which is one entry of that node's group
  kReport,  // the place of the whole message is reported, for a reader that knows it
};

struct FieldPlan {
  std::uint32_t number = 0;
  Act act{};
  bool row = false;  // a message with this field is a row
  std::uint32_t target = 0;
};

// What is done with the fields of a message. Other fields are skipped.
struct MessagePlan {
  std::vector<FieldPlan> rules;
  int group = -1;  // whose columns numbers go to; -1 for those of the row
};

// Entries of nested messages: to which row each belongs, and its numbers.
struct Entries {
  std::vector<std::uint32_t> rows;
  std::vector<std::vector<std::uint64_t>> columns;
};

struct Unpacked {
  std::size_t consumed = 0;  // bytes of whole messages
  bool broken = false;       // behind them there is none
  std::uint64_t bad = 0;     // messages that were left out
  std::vector<std::vector<std::uint64_t>> columns;
  std::vector<Entries> groups;
  // Reported messages: where the body begins, its size, and how many rows came before it.
  std::vector<std::uint64_t> begins;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint32_t> before;
};

class Unpacker {
 public:
  // A message may not be longer than this.
  static constexpr std::size_t kLongest = std::size_t{64} << 20;
  // Nor have more entries than this, and reading stops behind a message when there are more rows or entries than that.
  static constexpr std::size_t kMostEntries = std::size_t{1} << 20, kEnough = std::size_t{1} << 18;

  // Throws std::invalid_argument for a plan that names what is not there, or nests without end.
  Unpacker(std::vector<MessagePlan> nodes, std::size_t columns, std::vector<std::size_t> group_columns);

  // Reads messages of a stream, each of which stands behind the tag of field 1 and its length: as many as there are, or
  // enough.
  Unpacked read(const std::uint8_t* data, std::size_t size) const;

 private:
  struct Message;
  bool read_message(Message& message, std::size_t node, const std::uint8_t* at, const std::uint8_t* end) const;

  std::vector<MessagePlan> nodes_;
  std::size_t columns_;
  std::vector<std::size_t> group_columns_;
};

// Finds the begin that an end ends: the last one of the same track that has not ended.
class Nesting {
 public:
  static constexpr std::uint8_t kBegin = 1, kEnd = 2;

  // The number of the event that this one ends, counting from the first ever; -1 where it ends none.
  std::int64_t feed(std::uint64_t track, std::uint8_t phase);
  // Begins that have not ended; they are forgotten.
  std::vector<std::int64_t> take_open();
  std::size_t open() const { return open_; }

 private:
  Map<std::vector<std::int64_t>> tracks_;  // of each, the begins that have not ended
  std::uint64_t last_track_ = 0;
  std::size_t last_ = 0;  // its place, as long as there are tracks
  std::int64_t next_ = 0;
  std::size_t open_ = 0;
};

}  // namespace cutrace
