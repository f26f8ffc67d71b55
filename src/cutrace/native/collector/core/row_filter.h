// Which rows a file keeps, in a recording that does not keep all of them.
#pragma once

#include <cstdint>

namespace cutrace {

class RowFilter {
 public:
  // The values of a row that decide whether it is kept; 0 for a value that the row does not have.
  struct Facts {
    std::uint64_t time = 0;  // start of the row
    std::uint32_t call = 0;  // CUPTI's correlation id of its call
    bool on_gpu = false;     // GPU work, which may start long after its call
  };
  template <typename Row>
  static Facts facts_of(const Row& row) {
    Facts facts;
    if constexpr (requires { row.start; }) facts.time = row.start;
    else if constexpr (requires { row.time; }) facts.time = row.time;
    if constexpr (requires { row.correlation; }) facts.call = row.correlation;
    facts.on_gpu = requires { row.start; row.device; row.correlation; };
    return facts;
  }

  // Writer thread only, like all functions below. Whether all rows are skipped at present.
  virtual bool keeps_nothing() = 0;
  virtual bool keeps(const Facts& row) = 0;
  // Clips a range of the program to the kept time, and sets its `flags` as the table defines them. An open range has an `end` of
  // 0. False when the whole range is skipped.
  virtual bool clip(std::uint64_t& start, std::uint64_t& end, std::uint16_t& flags) = 0;
  // Rows before this time are not kept.
  virtual std::uint64_t begin() = 0;

 protected:
  ~RowFilter() = default;
};

}  // namespace cutrace
