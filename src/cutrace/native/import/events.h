// Trace events out of JSON, as columns.
//
// A trace is an array of events, or an object with one under "traceEvents". An EventScanner takes its bytes in pieces of any
// size. It knows the keys that all events have (ph, cat, name, pid, tid, ts, dur, args); which others are wanted, and of
// which type, its rules say. Texts become ids, the threads of events become indices, times become nanoseconds. What no
// rule wants of an event stays as the text of a JSON object, so nothing is lost.
//
// An event that cannot be read is counted by reason and the next one is looked for. Memory is that of the largest event
// (kLargest at most), of the texts, and of the events not yet taken. No Python here.
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

// Texts by id, from 1 on; id 0 is the empty one.
class Texts {
  auto is(std::string_view text) const {
    return [this, text](std::uint32_t id) { return texts_[id] == text; };
  }

 public:
  static constexpr std::uint32_t kNone = Table::kNone;

  Texts() { id({}); }
  std::uint32_t id(std::string_view text);
  // The id of a text that has one, else kNone.
  std::uint32_t find(std::string_view text) const { return numbers_.find(hash_of(text), is(text)); }
  std::string_view operator[](std::uint32_t id) const { return texts_[id]; }
  std::size_t size() const { return texts_.size(); }

 private:
  void store(std::string_view text);

  Table numbers_;
  std::vector<std::string_view> texts_;
  std::vector<std::unique_ptr<char[]>> pages_;  // texts never move
  std::size_t page_size_ = 0, page_used_ = 0;
};

// What a wanted value is. A value of another type is not taken: it stays where what is not wanted stays.
enum class Wanted : std::uint8_t {
  kInteger,  // a whole number of 64 bits
  kNumber,   // a number as double
  kText,     // a string, as the id of its text
  kJson,     // any value, as the id of its JSON text
  kNothing,  // any value, which is only counted
};

struct WantedKey {
  std::string key;
  Wanted type;
};

// Events with one of these phases (all of them if empty), this category and this name (any without) form a group, with
// columns for the arguments that are wanted. With `numbers`, all arguments that are numbers form a column.
struct Rule {
  std::string phases;
  std::optional<std::string> category, name;
  std::vector<WantedKey> arguments;
  bool numbers = false;
};

// Values of some rows: the rows, and bits of what was wanted.
struct Sparse {
  std::vector<std::uint32_t> rows;
  std::vector<std::uint64_t> values;
};

// What is known of the events of a group, beside its columns.
enum Flags : std::uint8_t {
  kHasTime = 1, kHasDuration = 2,   // there, and a number
  kBadTime = 4, kBadDuration = 8,   // there, and no number that 64 bits of nanoseconds hold
  kHasName = 16, kHasCategory = 32,
};

struct Group {
  std::vector<std::uint8_t> phases, flags;
  std::vector<std::int64_t> times, durations;       // nanoseconds
  std::vector<std::uint32_t> threads;               // indices of EventScanner::threads
  std::vector<std::uint32_t> names, categories;     // ids
  std::vector<std::uint32_t> arguments;             // id of the text of a JSON object, 0 for none
  std::vector<Sparse> columns;                      // the wanted keys of all events, then the wanted arguments
  std::vector<std::uint32_t> number_rows, number_keys;  // with `numbers`: rows, ids of the keys,
  std::vector<double> numbers;                          // and values
  std::size_t size() const { return phases.size(); }
};

// A process or thread id as it stands in the file.
struct Id {
  enum Kind : std::uint8_t { kAbsent, kInteger, kText, kOther } kind = kAbsent;
  std::int64_t value = 0;  // or the id of a text; of a JSON text for kOther
  bool operator==(const Id&) const = default;
};

struct ThreadId {
  Id process, thread;
  bool operator==(const ThreadId&) const = default;
};

class EventScanner {
 public:
  // The largest event or other value of the file that is read.
  static constexpr std::size_t kLargest = std::size_t{16} << 20;

  enum class Problem : std::uint8_t { kSyntax, kDeep, kLarge, kNotObject, kNoPhase, kTruncated, kCount };
  enum class Ended : std::uint8_t {
    kNot,        // finish() was not called
    kWhole,      // all brackets are closed
    kInArray,    // between two events
    kInEvent,    // inside an event
    kInObject,   // outside the array of events, before the object was closed
    kInDamage,   // behind something that is no JSON, with no event after it
    kNothing,    // this is no JSON array or object
  };

  // `keys` are wanted of all events. `wrap` is the argument under which other keys of an event go.
  EventScanner(const std::vector<Rule>& rules, const std::vector<WantedKey>& keys, std::string wrap,
               std::size_t largest = kLargest);

  void feed(const char* data, std::size_t size);
  void finish();

  // The events of each group since the last call: one group a rule, then that of all other events.
  std::vector<Group> take();
  std::size_t pending() const { return pending_; }

  const Texts& texts() const { return texts_; }
  std::uint32_t text_id(std::string_view text) { return texts_.id(text); }
  const std::vector<ThreadId>& threads() const { return threads_; }
  // Other keys of the outer object with the JSON text of their values; a value that was too large has none.
  const std::vector<std::pair<std::string, std::string>>& others() const { return others_; }
  bool has_array() const { return has_array_; }
  const std::array<std::uint64_t, static_cast<std::size_t>(Problem::kCount)>& problems() const { return problems_; }
  Ended ended() const { return ended_; }
  // Bytes of the file up to the last event that was read whole, and all of them.
  std::uint64_t understood() const { return understood_; }
  std::uint64_t bytes() const { return before_ + size_; }

 private:
  enum class State : std::uint8_t {
    kStart, kObject, kArray,
    kLost,      // behind something that is no JSON, on the way to the next event
    kPassing,   // inside a value of the outer object that is too large
    kEnd,
  };

  struct GroupRule {
    std::string phases;
    std::optional<std::uint32_t> category, name;  // texts
    bool numbers;
    std::vector<WantedKey> arguments;
    Texts keys;                                       // of the arguments
    std::vector<std::vector<std::uint32_t>> columns;  // for each, its places in `arguments`, in the order to try them
  };

  // The event that is being read.
  struct Event {
    std::uint8_t phase = 0, flags = 0;
    std::uint32_t name = 0, category = 0;
    std::int64_t time = 0, duration = 0;
    ThreadId thread;
    bool has_arguments = false;
    const char* arguments = nullptr;  // where they stand, until they can be read: which are wanted depends on the group
    bool took_arguments = false;      // of them, some are wanted
  };

  void run(bool final);
  bool start(bool final);
  bool object(bool final);
  bool array(bool final);
  bool lost(bool final);
  void passing();
  bool unfinished(bool final);
  void end(Ended how);

  json::Read event(const char*& p);
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
  Map<std::pair<bool, std::vector<std::uint32_t>>> fitting_;  // whether known, and rules by phase and category
  std::string wrap_;
  std::size_t largest_;

  std::vector<Group> groups_;
  std::size_t pending_ = 0;
  std::vector<ThreadId> threads_;
  Table thread_numbers_;
  std::uint32_t last_thread_ = 0;

  Event event_;
  std::size_t group_ = 0;  // of the event, once its arguments are read
  std::vector<std::pair<std::uint32_t, std::uint64_t>> values_;   // wanted values: columns and bits
  std::vector<std::pair<std::uint32_t, double>> number_values_;   // arguments that are numbers: ids of keys and values
  std::string rest_, extra_;                                      // what nobody wants of the arguments, and of the event
  std::string key_scratch_, scratch_;

  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0, begin_ = 0, size_ = 0;
  std::size_t next_try_ = 0;  // bytes that have to be there before an unfinished value is tried again
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
