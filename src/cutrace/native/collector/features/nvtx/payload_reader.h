// Reads extended payloads as the arguments of an event: the members of a JSON object. Writer thread only.
//
// Unreadable data are counted as losses, with the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/capture.h"
#include "payload_copy.h"
#include "payload_walk.h"

namespace cutrace::nvtx {

// A time of a deferred event, in its clock. The default clock is nvtxTimestampGet().
struct Timestamp {
  std::int64_t time;
  std::optional<std::uint64_t> clock;
};

// The arguments of an event: names, and values as JSON.
class Arguments {
 public:
  // A repeated name gets a number. False when the arguments would be too long.
  bool add(std::string name, std::string value);
  // Adds the arguments of a second object. A name that both objects have gets `suffix`.
  void append(const Arguments& more, std::string_view suffix);
  bool empty() const { return members_.empty(); }
  std::string json() const;  // an object, "" without arguments
  std::size_t memory() const { return bytes_ + members_.capacity() * sizeof members_[0]; }

 private:
  bool has(std::string_view name) const;
  void put(std::string name, std::string value);

  std::vector<std::pair<std::string, std::string>> members_;
  std::size_t bytes_ = 0;
};

// The properties of an event in its payloads. The last of several values counts.
struct EventValues {
  Arguments arguments;
  std::optional<std::string> message;
  std::optional<std::uint32_t> category;
  std::optional<std::uint32_t> color;

  // For deferred events: kind, time and place. Other events have such fields as arguments.
  bool deferred = false;
  std::uint64_t kind = 0;  // NVTX_PAYLOAD_SCHEMA_FLAG_MARK, ...
  std::optional<Timestamp> start, end, mark;
  std::optional<std::uint64_t> scope;          // of a field
  std::optional<std::uint64_t> general_scope;  // of the schema
  std::optional<std::uint32_t> thread;
  std::uint64_t range_id = 0;
};

class PayloadReader {
 public:
  explicit PayloadReader(Capture& capture) : capture_(capture) {}

  // The payloads that PayloadCopy wrote.
  EventValues read(std::uint16_t domain, const std::uint8_t* payloads, bool deferred = false);
  // Reads a deferred event of a batch. Sets `at` to the end of the event, or to kVaries for an unknown end.
  EventValues read_deferred(const PayloadType& type, const PayloadBytes& bytes, std::size_t& at);

 private:
  void read_part(const PartHead& head, const PayloadBytes& bytes, EventValues& values);
  void read_predefined(std::uint64_t type, const PayloadBytes& bytes, Arguments& arguments);
  void read_fields(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, std::uint64_t selected, EventValues* values,
                   Arguments* arguments);
  bool read_attribute(const PayloadField& field, const FieldPlace& place, const PayloadBytes& bytes, EventValues& values);
  static bool read_origin(const PayloadField& field, const FieldPlace& place, const PayloadBytes& bytes, EventValues& values);
  void write_value(const FieldWalk& walk, const FieldPlace& place, const PayloadBytes& bytes, std::string& out);
  void write_element(const FieldWalk& walk, const PayloadField& field, const PayloadBytes& bytes, std::size_t at, std::string& out);
  void write_struct(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, std::uint64_t selected, std::string& out);
  void add(Arguments& arguments, std::string name, std::string value);
  void lose(std::uint64_t count, std::string_view what) { capture_.lose(rows::Loss::nvtx_undecoded, count, what); }

  Capture& capture_;
};

// A value of a predefined type as JSON; empty for an unknown type. The bytes of the value are at `data`.
std::string json_value(std::uint64_t type, const std::uint8_t* data);
// A value of a predefined type as a number; nullopt for other types.
std::optional<double> number(std::uint64_t type, const std::uint8_t* data);

}  // namespace cutrace::nvtx
