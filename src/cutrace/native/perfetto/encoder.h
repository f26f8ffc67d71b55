// Protobuf, and lines of JSON, from columns. A Program is a message or a line as a list of operations; encode() runs programs
// row by row into a buffer. Python resolves names and field numbers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace cutrace {

enum class OpKind : std::uint8_t {
  kRaw,       // constant bytes
  kVarint,    // tag, then the value of a column
  kFixed64,   // tag, then eight bytes
  kDelta,     // tag, then the difference to the previous value of this operation
  kBlob,      // bytes of a Blobs table by the id in a column (encoded fields)
  kRepeated,  // tag and varint for each value of a list: a column of offsets into a column of values
  kOpen,      // tag and length of a nested message that ends at the matching kClose
  kClose,
  kUnless,    // skips the next `skip` operations where the column holds the sentinel
  kGiven,     // bytes of a Blobs table that all events of a segment share
  kInteger,       // the number in a column, in decimal
  kMicroseconds,  // nanoseconds in a column, as microseconds with three decimals
  kReal,          // a double in its shortest decimal form; null for NaN and infinities
  kMessage,       // replaces kOpen, kVarint, kClose; not in programs
};

struct Op {
  OpKind kind{};
  bool optional = false;   // leave the field out where the column holds the sentinel
  bool per_event = false;  // the column has one entry for each event, not for each row
  std::uint8_t tag_size = 0;  // of the tag and of constant bytes before it
  std::uint8_t tag[8]{};
  std::uint32_t column = 0;
  std::uint32_t column2 = 0;  // kBlob: the Blobs; kRepeated: the values
  std::uint32_t skip = 0;
  std::uint64_t sentinel = 0;
  std::uint32_t raw_begin = 0;
  std::uint32_t raw_size = 0;
};

class Program {
 public:
  // The Python form of an operation: kind, tag, column, column2, optional, per_event, sentinel, skip, raw bytes.
  using Operation = std::tuple<unsigned, nanobind::bytes, std::uint32_t, std::uint32_t, bool, bool, std::uint64_t,
                               std::uint32_t, nanobind::bytes>;
  explicit Program(const std::vector<Operation>& ops);

  const std::vector<Op>& ops() const { return ops_; }
  const std::uint8_t* raw() const { return raw_.data(); }
  std::size_t columns() const { return columns_; }
  // The largest size of a row without its blobs and lists.
  std::size_t row_bound() const { return row_bound_; }

 private:
  std::vector<Op> ops_;
  std::vector<std::uint8_t> raw_;
  std::size_t columns_ = 0;
  std::size_t row_bound_ = 0;
};

}  // namespace cutrace
