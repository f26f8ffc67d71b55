// Trace events of JSON files, as columns.
//
// A trace is an array of events, or an object with such an array under "traceEvents", or several of these in a row. An
// EventScanner reads its bytes in pieces of any size. It knows the keys of all events (ph, cat, name, pid, tid, ts, dur, args);
// rules name further keys and their types. Strings become ids, the threads of events become indices, times become nanoseconds.
// Other keys and arguments are kept as the JSON of an object, so nothing is lost.
//
// An unreadable event is counted by reason, and scanning continues at the next event. Memory depends on the largest event
// (kLargest at most), the strings, and the events not yet taken. This file uses no Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "import/json.h"
#include "common/table.h"

namespace cutrace {

// Strings by id, from 1; id 0 is the empty string.
class Texts {
  auto is(std::string_view text) const {
    return [this, text](std::uint32_t id) { return texts_[id] == text; };
  }

 public:
  static constexpr std::uint32_t kNone = Table::kNone;

  Texts() { id({}); }
  std::uint32_t id(std::string_view text);
  // The id of a known string, else kNone.
  std::uint32_t find(std::string_view text) const { return numbers_.find(hash_of(text), is(text)); }
  std::string_view operator[](std::uint32_t id) const { return texts_[id]; }
  std::size_t size() const { return texts_.size(); }

 private:
  void store(std::string_view text);

  Table numbers_;
  std::vector<std::string_view> texts_;
  std::vector<std::unique_ptr<char[]>> pages_;  // strings never move
  std::size_t page_size_ = 0, page_used_ = 0;
};

// The type of a wanted value. A value of another type is kept with the other keys or arguments.
enum class Wanted : std::uint8_t {
  kInteger,  // a 64-bit integer
  kNumber,   // a number as double
  kText,     // a string, as its id
  kJson,     // any value, as the id of its JSON
  kNothing,  // any value; it is only counted
};

struct WantedKey {
  std::string key;
  Wanted type;
};

// Events with one of these phases (any if empty), this category and this name (any if absent) form a group, with columns for
// the wanted arguments. With `numbers`, all arguments that are numbers are listed.
struct Rule {
  std::string phases;
  std::optional<std::string> category, name;
  std::vector<WantedKey> arguments;
  bool numbers = false;
};

// Wanted values of some rows: the rows, and the bits of the values.
struct Sparse {
  std::vector<std::uint32_t> rows;
  std::vector<std::uint64_t> values;
};

// Flags of an event.
enum Flags : std::uint8_t {
  kHasTime = 1, kHasDuration = 2,   // present and valid
  kBadTime = 4, kBadDuration = 8,   // present, but no number, or beyond 64 bits of nanoseconds
  kHasName = 16, kHasCategory = 32,
};

struct Group {
  std::vector<std::uint8_t> phases, flags;
  std::vector<std::int64_t> times, durations;       // nanoseconds
  std::vector<std::uint32_t> threads;               // indices of EventScanner::threads
  std::vector<std::uint32_t> names, categories;     // ids
  std::vector<std::uint32_t> arguments;             // id of a JSON object, 0 for none
  std::vector<Sparse> columns;                      // the wanted keys of all events, then the wanted arguments
  std::vector<std::uint32_t> number_rows, number_keys;  // with `numbers`: rows, ids of the keys,
  std::vector<double> numbers;                          // and values
  std::size_t size() const { return phases.size(); }
};

// A process or thread id of the file.
struct Id {
  enum Kind : std::uint8_t { kAbsent, kInteger, kText, kOther } kind = kAbsent;
  std::int64_t value = 0;  // or the id of a string; of JSON for kOther
  bool operator==(const Id&) const = default;
};

struct ThreadId {
  Id process, thread;
  bool operator==(const ThreadId&) const = default;
};

// The fields that each event has.
struct EventFields {
  std::uint8_t phase = 0, flags = 0;
  std::uint32_t name = 0, category = 0;   // ids of strings
  std::int64_t time = 0, duration = 0;    // nanoseconds
  ThreadId thread;
};

class EventScanner {
 public:
  // The largest event or other value that is read.
  static constexpr std::size_t kLargest = std::size_t{16} << 20;

  enum class Problem : std::uint8_t { kSyntax, kDeep, kLarge, kNotObject, kNoPhase, kTruncated, kCount };
  enum class Ended : std::uint8_t {
    kNot,        // finish() was not called
    kWhole,      // all brackets are closed
    kInArray,    // between two events
    kInEvent,    // inside an event
    kInObject,   // outside the array of events, before the object was closed
    kInDamage,   // after invalid JSON without a later event
    kNothing,    // not a JSON array or object
  };

  // `keys` are the wanted keys of all events. `wrap` is the argument that holds the other keys of an event.
  EventScanner(const std::vector<Rule>& rules, const std::vector<WantedKey>& keys, std::string wrap,
               std::size_t largest = kLargest);

  void feed(const char* data, std::size_t size);
  void finish();

  // Adds an event of another reader. Its arguments and other keys are a JSON object without spaces, empty for none. A scanner
  // gets its events either from this function or from feed().
  void add(const EventFields& fields, std::string_view json);

  // The events since the last call: one group for each rule, then one for all other events.
  std::vector<Group> take();
  std::size_t pending() const { return pending_; }

  const Texts& texts() const { return texts_; }
  std::uint32_t text_id(std::string_view text) { return texts_.id(text); }
  const std::vector<ThreadId>& threads() const { return threads_; }
  // Other keys of the outer object with the JSON of their values. The JSON is empty for a value that is too large.
  const std::vector<std::pair<std::string, std::string>>& others() const { return others_; }
  bool has_array() const { return has_array_; }
  const std::array<std::uint64_t, static_cast<std::size_t>(Problem::kCount)>& problems() const { return problems_; }
  Ended ended() const { return ended_; }
  // The bytes of the file up to the end of the last complete event, and all bytes.
  std::uint64_t understood() const { return understood_; }
  std::uint64_t bytes() const { return before_ + size_; }

 private:
  enum class State : std::uint8_t {
    kStart, kObject, kArray,
    kLost,      // after invalid JSON, searching for the next event
    kPassing,   // inside a too large value of the outer object
    kEnd,
  };

  struct GroupRule {
    std::string phases;
    std::optional<std::uint32_t> category, name;  // ids of strings
    bool numbers;
    std::vector<WantedKey> arguments;
    Texts keys;                                       // of the arguments
    std::vector<std::vector<std::uint32_t>> columns;  // for each key, the order in which its indices in `arguments` are tried
  };

  // The event that is being read.
  struct OpenEvent : EventFields {
    bool has_arguments = false;
    // position of the arguments until the group is known, because the group determines the wanted arguments
    const char* arguments = nullptr;
    bool took_arguments = false;      // whether some arguments are wanted
  };

  void run(bool final);
  bool start(bool final);
  bool object(bool final);
  bool array(bool final);
  bool lost(bool final);
  void passing();
  bool unfinished(bool final);
  bool failed(json::Read read, bool final, Ended inside);
  void end(Ended how);
  bool closed();

  void hold(const char* data, std::size_t size);
  void begin_event(const EventFields& fields);
  json::Read event(const char*& p);
  json::Read event_keys(const char*& p);
  json::Read event_value(const char*& p, std::string_view key);
  json::Read arguments(const char*& p);
  json::Read key(const char*& p, std::string_view& key);
  json::Read wanted(const char*& p, const std::vector<std::uint32_t>& columns, const std::vector<WantedKey>& keys,
                    std::size_t first, bool& taken);
  json::Read take_value(const char*& p, Wanted type, std::uint64_t& bits, bool& taken);
  json::Read other(const char*& p, std::string_view key, std::string& out);
  json::Read text_of(const char*& p, std::uint32_t& id);
  json::Read id_of(const char*& p, Id& id);
  json::Read time_of(const char*& p, std::int64_t& value, std::uint8_t good, std::uint8_t bad);
  bool group_known() const;
  std::size_t group_of_event();
  std::uint32_t thread_of_event();
  std::uint32_t arguments_of_event();
  void commit();
  void clear_groups();
  void problem(Problem which) { ++problems_[static_cast<std::size_t>(which)]; }
  const char* at(std::size_t index) const { return buffer_.get() + index; }
  const char* end() const { return at(size_); }

  Texts texts_;
  Texts keys_;  // of events: the built-in ones, then the wanted ones
  std::vector<WantedKey> wanted_keys_;
  std::vector<std::vector<std::uint32_t>> key_columns_;
  std::vector<GroupRule> rules_;
  Map<std::pair<bool, std::vector<std::uint32_t>>> matching_;  // whether it is computed, and the rules by phase and category
  std::string wrap_;
  std::size_t largest_;

  std::vector<Group> groups_;
  std::size_t pending_ = 0;
  std::vector<ThreadId> threads_;
  Table thread_numbers_;
  std::uint32_t last_thread_ = 0;

  OpenEvent event_;
  std::size_t group_ = 0;  // group of the event, known once its arguments are read
  std::vector<std::pair<std::uint32_t, std::uint64_t>> values_;   // wanted values: columns and bits
  std::vector<std::pair<std::uint32_t, double>> number_values_;   // arguments that are numbers: ids of keys and values
  std::string rest_, extra_;                                      // JSON of the other arguments and of the other keys
  std::string key_scratch_, scratch_;

  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0, begin_ = 0, size_ = 0;
  std::size_t next_try_ = 0;  // the bytes needed before an incomplete value is read again
  std::uint64_t before_ = 0;  // bytes of the file before the buffer
  std::uint64_t understood_ = 0;
  State state_ = State::kStart;
  bool in_object_ = false, has_array_ = false;
  std::size_t passing_depth_ = 0;
  bool passing_string_ = false, passing_escape_ = false;
  std::vector<std::pair<std::string, std::string>> others_;
  std::size_t others_size_ = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(Problem::kCount)> problems_{};
  Ended ended_ = Ended::kNot;
};

}  // namespace cutrace
