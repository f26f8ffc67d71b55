#include "counter_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/clock.h"
#include "nvtx.h"
#include "payload_reader.h"

namespace cutrace::nvtx {
namespace {

constexpr std::uint16_t kNoDevice = 0xFFFF;
constexpr std::size_t kMostSeries = 65536;
constexpr std::string_view kUnknownTime = "samples of NVTX counters with times of an unknown clock";
constexpr std::uint64_t kRoles = NVTX_PAYLOAD_ENTRY_FLAG_RANGE_BEGIN | NVTX_PAYLOAD_ENTRY_FLAG_RANGE_END | NVTX_PAYLOAD_ENTRY_FLAG_COUNTER;
constexpr std::uint64_t kEventRoles = NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE | NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP;

bool is_counter(const PayloadField& field) { return (field.flags & kRoles) == NVTX_PAYLOAD_ENTRY_FLAG_COUNTER; }
bool is_timestamp(const PayloadField& field) { return (field.flags & kEventRoles) == NVTX_PAYLOAD_ENTRY_FLAG_TIMESTAMP; }

// A number divided by the largest number of its type.
double normalized(std::uint64_t type, double value) {
  const std::size_t bits = size_of_predefined(type) * 8;
  const bool whole = type <= NVTX_PAYLOAD_ENTRY_TYPE_UINT64 || type == NVTX_PAYLOAD_ENTRY_TYPE_SIZE;
  if (!whole || bits == 0) return value;
  return value / (std::ldexp(1.0, static_cast<int>(is_signed(type) ? bits - 1 : bits)) - 1);
}

// The CUDA device of a scope such as node/GPU[CUDAID:1].
std::uint16_t device_of(std::string_view path) {
  constexpr std::string_view kPrefix = "GPU[CUDAID:";
  const std::size_t at = path.find(kPrefix);
  if (at == path.npos) return kNoDevice;
  path.remove_prefix(at + kPrefix.size());
  std::uint16_t device = kNoDevice;
  const auto [end, status] = std::from_chars(path.data(), path.data() + path.size(), device);
  return status == std::errc() && end != path.data() + path.size() && *end == ']' ? device : kNoDevice;
}

// Returns time + number * interval, without overflow for any arguments.
std::int64_t at_interval(std::int64_t time, std::uint64_t number, std::int64_t interval) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(time) + number * static_cast<std::uint64_t>(interval));
}

}  // namespace

void CounterReader::read_fields(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, const std::string& prefix,
                                Values& values) const {
  FieldWalk walk(type, bytes, at);
  for (FieldPlace place; walk.next(place);) {
    const PayloadField& field = *place.field;
    if (!walk.follow(place) || place.null || field.unit == kVaries) continue;
    // A field without a name, and the only field of a schema, take the name of the enclosing field.
    const bool named = !field.name.empty() && (type.fields.size() > 1 || prefix.empty());
    const std::string name = !named ? prefix : prefix.empty() ? field.name : prefix + '.' + field.name;
    for (std::size_t i = 0; i < place.count; ++i) {
      const std::string series = field.array() != 0 ? name + '[' + std::to_string(i) + ']' : name;
      const std::size_t element = place.at + i * field.unit;
      if (field.nested != nullptr && !field.nested->is_enum()) {
        read_fields(*field.nested, bytes, element, series, values);
      } else if (is_timestamp(field) && field.unit == 8) {
        values.timestamp = &field;
        bytes.read(element, values.time);
      } else if (const auto value = number(field.type, bytes.data + element)) {
        const bool normalize = (field.semantics.counter_flags & NVTX_COUNTER_FLAG_NORMALIZE) != 0;
        auto& list = is_counter(field) ? values.values : values.others;
        list.push_back({series, normalize ? normalized(field.type, *value) : *value, &field.semantics});
      }
    }
  }
}

CounterReader::Values CounterReader::read(const Counter& counter, const PayloadBytes& bytes, std::size_t at) const {
  Values values;
  if (const PayloadType* const type = find_type(counter.domain, counter.schema)) {
    if (!type->is_enum()) read_fields(*type, bytes, at, {}, values);
  } else if (const std::size_t size = size_of_predefined(counter.schema); size != 0 && at + size <= bytes.size) {
    const auto value = number(counter.schema, bytes.data + at);
    const bool normalize = (counter.semantics.counter_flags & NVTX_COUNTER_FLAG_NORMALIZE) != 0;
    if (value) values.values.push_back({{}, normalize ? normalized(counter.schema, *value) : *value, nullptr});
  }
  if (values.values.empty()) values.values = std::move(values.others);
  // A group with one counter is written as that counter.
  if (values.values.size() == 1 && !counter.name.empty()) values.values[0].series.clear();
  return values;
}

const Semantics& CounterReader::semantics(const Counter& counter, const Value& value) {
  return value.semantics != nullptr ? *value.semantics : counter.semantics;
}

void CounterReader::write(const Counter& counter, const Value& value, std::uint64_t time, std::uint32_t thread) {
  const Semantics& group = counter.semantics;
  const Semantics& own = semantics(counter, value);
  const std::uint64_t flags = own.counter_flags != 0 ? own.counter_flags : group.counter_flags;
  double number = value.number * (own.scale != 1 ? own.scale : group.scale);
  const std::pair key(&counter, value.series);
  if (last_.size() >= kMostSeries && !last_.contains(key)) return lose(1, "samples of NVTX counters: too many series");
  double& last = last_[key];
  const bool is_delta = (flags & NVTX_COUNTER_FLAG_VALUETYPES) == NVTX_COUNTER_FLAG_VALUETYPE_DELTA;
  if (is_delta) number += last;
  if (!std::isnan(number)) last = number;
  add_row(counter, value, number, time, thread);
}

void CounterReader::add_row(const Counter& counter, const Value& value, double number, std::uint64_t time, std::uint32_t thread) {
  const Semantics& own = semantics(counter, value);
  const std::uint64_t scope = own.scope != NVTX_SCOPE_NONE ? own.scope : counter.semantics.scope;
  const std::string_view path = scope_path(counter.domain, scope);
  std::string name = counter.name;
  std::string series = value.series;
  if (name.empty()) name = std::exchange(series, {});
  if (!path.empty()) name += " (" + std::string(path) + ')';
  const std::string_view domain = counter.domain != 0 ? domain_name(counter.domain) : std::string_view();
  rows::Counters row;
  row.time = time;
  row.value = number;
  row.name = capture_.string(name);
  row.series = capture_.string(series);
  row.category = capture_.string(domain.empty() ? "nvtx" : "nvtx." + std::string(domain));
  row.unit = capture_.string(own.unit.empty() ? counter.semantics.unit : own.unit);
  row.thread = scope == NVTX_SCOPE_CURRENT_SW_THREAD ? thread : 0;
  row.device = device_of(path);
  capture_.add(row);
}

// A sample without a value stands for all values of the counter.
void CounterReader::write_none(const Counter& counter, std::uint64_t reason, std::uint64_t time, std::uint32_t thread) {
  const std::vector<std::uint8_t> zeros(kLargestPayload);
  for (Value& value : read(counter, {.data = zeros.data(), .size = zeros.size()}, 0).values) {
    if (reason == NVTX_COUNTER_SAMPLE_UNAVAILABLE) value.number = std::numeric_limits<double>::quiet_NaN();
    if (reason != NVTX_COUNTER_SAMPLE_UNCHANGED) {
      write(counter, value, time, thread);
      continue;
    }
    const auto last = last_.find({&counter, value.series});
    if (last != last_.end()) add_row(counter, value, last->second, time, thread);
    else lose(1, "samples of NVTX counters that are unchanged before the first value");
  }
}

void CounterReader::write_all(const Counter& counter, const Values& values, std::uint64_t time, std::uint32_t thread) {
  if (values.values.empty()) return lose(1, "samples of NVTX counters without a number");
  for (const Value& value : values.values) write(counter, value, time, thread);
}

void CounterReader::sample(std::uint16_t domain, std::uint64_t id, Sample kind, std::span<const std::uint8_t> bytes, std::uint64_t time,
                           std::uint32_t thread) {
  const Counter* const counter = find_counter(domain, id);
  if (counter == nullptr) return lose(1, "samples of NVTX counters that were never registered");
  const auto load = [&](auto value) {
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  };
  // The event has the type of the value. The counter has another type only in a broken program.
  if (kind == Sample::integer) return write(*counter, {{}, static_cast<double>(load(std::int64_t{})), nullptr}, time, thread);
  if (kind == Sample::real) return write(*counter, {{}, load(double{}), nullptr}, time, thread);
  if (kind == Sample::none) return write_none(*counter, load(std::uint64_t{}), time, thread);
  const Values values = read(*counter, {.data = bytes.data(), .size = bytes.size()}, 0);
  if (values.timestamp == nullptr) return write_all(*counter, values, time, thread);
  write_at(*counter, values, converter(*counter, values.timestamp).convert(values.time), time, thread);
}

void CounterReader::write_at(const Counter& counter, const Values& values, std::optional<std::uint64_t> time, std::uint64_t submitted,
                             std::uint32_t thread) {
  // A submitted sample is from the past, apart from errors of the clocks.
  if (!time || *time > submitted + kSecondNs) return lose(1, kUnknownTime);
  if (*time >= started_) write_all(counter, values, *time, thread);
}

TimeConverter CounterReader::converter(const Counter& counter, const PayloadField* timestamp) {
  std::optional<std::uint64_t> clock = counter.semantics.time_domain;
  if (timestamp != nullptr && timestamp->semantics.time_domain) clock = timestamp->semantics.time_domain;
  return TimeConverter::of(counter.domain, clock.value_or(NVTX_TIMESTAMP_TYPE_TOOL_PROVIDED));
}

void CounterReader::batch(std::uint16_t domain, const CounterBatch& batch, std::uint64_t submitted, std::uint32_t thread) {
  const Counter* const counter = find_counter(domain, batch.counter);
  if (counter == nullptr) return lose(1, "batches of NVTX counters that were never registered");
  const PayloadType* const type = find_type(domain, counter->schema);
  const std::size_t stride = type != nullptr ? type->size : size_of_predefined(counter->schema);
  if (stride == 0 || stride == kVaries) return lose(1, "batches of NVTX counters whose samples differ in size");
  const std::size_t count = batch.samples.size() / stride;
  const PayloadBytes bytes{.data = batch.samples.data(), .size = batch.samples.size()};
  const PayloadBytes times{.data = batch.timestamps.data(), .size = batch.timestamps.size()};
  constexpr std::uint64_t kIntervals = NVTX_COUNTER_BATCH_FLAG_BEGINTIME_INTERVAL_PAIR | NVTX_COUNTER_BATCH_FLAG_ENDTIME_INTERVAL_PAIR;
  const std::uint64_t interval = batch.flags & kIntervals;
  std::int64_t pair[2] = {};
  if (interval != 0 && !times.read(0, pair)) return lose(count, kUnknownTime);
  std::optional<TimeConverter> converter;
  for (std::size_t i = 0; i < count; ++i) {
    const PayloadBytes sample{.data = bytes.data + i * stride, .size = stride};
    const Values values = read(*counter, sample, 0);
    std::int64_t time = values.time;
    bool known = values.timestamp != nullptr;
    if (interval == NVTX_COUNTER_BATCH_FLAG_BEGINTIME_INTERVAL_PAIR) {
      time = at_interval(pair[0], i, pair[1]);
      known = true;
    } else if (interval == NVTX_COUNTER_BATCH_FLAG_ENDTIME_INTERVAL_PAIR) {
      time = at_interval(pair[0], i - (count - 1), pair[1]);
      known = true;
    } else if (times.size != 0) {
      known = times.read(i * sizeof time, time);
    }
    if (!converter) converter = this->converter(*counter, times.size != 0 ? nullptr : values.timestamp);
    write_at(*counter, values, known ? converter->convert(time) : std::nullopt, submitted, thread);
  }
}

}  // namespace cutrace::nvtx
