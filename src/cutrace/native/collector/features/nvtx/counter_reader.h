// Writes samples of NVTX counters as rows. Writer thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/capture.h"
#include "counters.h"
#include "payload_walk.h"
#include "time_domains.h"

namespace cutrace::nvtx {

// Samples that a program submits together. The samples contain their timestamps, or the batch has one timestamp for each sample,
// or it has the time of the first or last sample and an interval.
struct CounterBatch {
  std::uint64_t counter;
  std::uint64_t flags;
  std::span<const std::uint8_t> samples;
  std::span<const std::uint8_t> timestamps;
};

class CounterReader {
 public:
  // Samples from before `started` get no row.
  CounterReader(Capture& capture, std::uint64_t started) : capture_(capture), started_(started) {}

  // A sample taken by `thread` at `time`, from the bytes after the id of its event.
  void sample(std::uint16_t domain, std::uint64_t counter, Sample kind, std::span<const std::uint8_t> bytes, std::uint64_t time,
              std::uint32_t thread);
  void batch(std::uint16_t domain, const CounterBatch& batch, std::uint64_t submitted, std::uint32_t thread);

 private:
  // One value of a sample. `series` names it in a group.
  struct Value {
    std::string series;
    double number;
    const Semantics* semantics;
  };
  struct Values {
    std::vector<Value> values;
    std::vector<Value> others;  // numbers of the schema without a counter flag
    const PayloadField* timestamp = nullptr;
    std::int64_t time = 0;
  };

  Values read(const Counter& counter, const PayloadBytes& bytes, std::size_t at) const;
  void read_fields(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, const std::string& prefix, Values& values) const;
  static const Semantics& semantics(const Counter& counter, const Value& value);
  static TimeConverter converter(const Counter& counter, const PayloadField* timestamp);
  // Scales a value, adds it to the previous value if it is a difference, and writes it.
  void write(const Counter& counter, const Value& value, std::uint64_t time, std::uint32_t thread);
  void write_all(const Counter& counter, const Values& values, std::uint64_t time, std::uint32_t thread);
  // Writes a sample at a time that the program has submitted.
  void write_at(const Counter& counter, const Values& values, std::optional<std::uint64_t> time, std::uint64_t submitted, std::uint32_t thread);
  void add_row(const Counter& counter, const Value& value, double number, std::uint64_t time, std::uint32_t thread);
  void write_none(const Counter& counter, std::uint64_t reason, std::uint64_t time, std::uint32_t thread);
  void lose(std::uint64_t count, std::string_view what) { capture_.lose(rows::Loss::nvtx_undecoded, count, what); }

  Capture& capture_;
  std::uint64_t started_;
  // By counter and series: the value after the last sample.
  std::map<std::pair<const Counter*, std::string>, double> last_;
};

}  // namespace cutrace::nvtx
