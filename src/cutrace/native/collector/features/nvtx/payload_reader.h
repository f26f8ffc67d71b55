// Reads extended payloads as the arguments of an event: the members of a JSON object. Writer thread only.
//
// Unreadable data are counted as losses, with the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// The properties of an event in its payloads. The last of several values counts.
struct EventValues {
  std::string arguments;  // members of a JSON object, without its braces
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

// A JSON object of arguments from its members; empty for none.
inline std::string json_object(std::string_view members) {
  return members.empty() ? std::string() : '{' + std::string(members) + '}';
}

class PayloadReader {
 public:
  explicit PayloadReader(Capture& capture) : capture_(capture) {}

  // The payloads that PayloadCopy wrote.
  EventValues read(std::uint16_t domain, const std::uint8_t* payloads, bool deferred = false);
  // Reads a deferred event of a batch. Sets `at` to the end of the event, or to kVaries for an unknown end.
  EventValues read_deferred(const PayloadType& type, const PayloadBytes& bytes, std::size_t& at);
  // Adds the members of a second object. A name that both objects have gets `suffix`.
  static void append(std::string& members, const std::string& more, std::string_view suffix);

 private:
  // Members of one JSON object. Repeated names get numbers.
  struct Object {
    std::string members;
    std::vector<std::string> names;
    bool add(std::string name, const std::string& value);  // false when the object would be too long
  };

  void read_part(const PartHead& head, const PayloadBytes& bytes, EventValues& values, Object& object);
  void read_predefined(std::uint64_t type, const PayloadBytes& bytes, Object& object);
  void read_fields(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, std::uint64_t selected, EventValues* values,
                   Object* object);
  bool read_attribute(const PayloadField& field, const FieldPlace& place, const PayloadBytes& bytes, EventValues& values);
  static bool read_origin(const PayloadField& field, const FieldPlace& place, const PayloadBytes& bytes, EventValues& values);
  void write_value(const FieldWalk& walk, const FieldPlace& place, const PayloadBytes& bytes, std::string& out);
  void write_element(const FieldWalk& walk, const PayloadField& field, const PayloadBytes& bytes, std::size_t at, std::string& out);
  void write_struct(const PayloadType& type, const PayloadBytes& bytes, std::size_t at, std::uint64_t selected, std::string& out);
  void add(Object& object, std::string name, const std::string& value);
  void lose(std::uint64_t count, std::string_view what) { capture_.lose(rows::Loss::nvtx_undecoded, count, what); }

  Capture& capture_;
};

// A value of a predefined type as JSON; empty for an unknown type. The bytes of the value are at `data`.
std::string json_value(std::uint64_t type, const std::uint8_t* data);
// A value of a predefined type as a number; nullopt for other types.
std::optional<double> number(std::uint64_t type, const std::uint8_t* data);

}  // namespace cutrace::nvtx
