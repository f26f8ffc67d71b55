// Decides when a recording of the newest rows writes a dump without a request. Writer thread only.
//
// The decoders report ranges, GPU work and changes of memory. The writer asks whether a dump is due and starts it. All times come
// from events, so the class has no clock. Its memory does not depend on the number of events.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/conditions.h"
#include "cutrace/rows.h"
#include "core/interning.h"
#include "core/watcher.h"

namespace cutrace {

// The median of the last values.
class RecentMedian {
 public:
  static constexpr std::size_t kLeast = 10;  // the median of fewer values is unreliable

  void add(std::uint64_t value);
  // Undefined without values.
  std::uint64_t median() const { return sorted_[sorted_.size() / 2]; }
  std::size_t size() const { return sorted_.size(); }

 private:
  static constexpr std::size_t kMost = 101;  // odd, so that the median is one of the values
  std::array<std::uint64_t, kMost> recent_{};
  std::size_t next_ = 0;
  std::vector<std::uint64_t> sorted_;
};

class Triggers final : public Watcher {
 public:
  // Each condition gets at most `limit` dumps, at least `pause` nanoseconds apart. The recording keeps `kept` nanoseconds; 0 if
  // the kept time depends on the size of the rows.
  Triggers(const std::vector<Condition>& conditions, std::uint64_t limit, std::uint64_t pause, std::uint64_t kept);

  bool watches_ranges() const override { return watches_ranges_; }
  // `fired` has the conditions that the range has made true so far.
  void look_at(const rows::NvtxRanges& row, bool open, std::string_view domain, std::string_view name,
               std::vector<std::uint32_t>& fired) override;
  bool watches_work() const override { return shortest_gap_ != 0; }
  void launched(std::uint32_t correlation, std::uint64_t time) override;
  void worked(std::uint32_t device, std::uint32_t correlation, std::uint64_t start, std::uint64_t end) override {
    if (!watches_work()) return;
    end_launch(correlation);
    add_work(device, start, end);
  }
  void memory_changed(std::uint32_t device, std::uint64_t time, std::int64_t bytes) override;
  void lose_work(std::uint64_t time) override;
  // The times of stream captures (see StreamCaptures::times()), because launches may have no work then.
  using Captures = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  // All records of events that started and ended before `until` were reported. Evaluates memory before `until`. Also evaluates
  // idle times before `until` and at least a delay ago, if the work of all earlier launches was reported.
  void settle(std::uint64_t until, std::uint64_t now, const Captures& captures = {});
  // At the end of the recording: evaluates all events, and makes a wanted dump due.
  void finish(std::uint64_t now, const Captures& captures = {});

  // A moment that is the reason of a dump.
  struct Mark {
    std::uint64_t time;
    std::uint32_t thread;  // 0: none
    std::string text;
  };
  std::vector<Mark> take_marks() { return std::exchange(marks_, {}); }
  // The time of the first moment that needs a dump, else 0.
  std::uint64_t moment() const { return wanted_.empty() ? 0 : moment_; }
  // Whether a dump is wanted and the time after its moments is recorded. This time is a quarter of the kept time, five seconds at
  // most. A slow range also waits for the next range, for half of the kept time at most.
  bool due(std::uint64_t now) const;
  // Returns the reasons of the due dump. No other dump is due until end_dump().
  std::vector<std::string> begin_dump();
  // A failed dump does not count towards the limit, but its pause applies.
  void end_dump(bool written);

  // Sentences about conditions that could not become true, and about moments without a dump. `of_names`: also about names without
  // a range.
  std::vector<std::string> notes(bool of_names) const;
  // The number of kept values, for tests.
  std::size_t entries() const;

 private:
  enum class State : std::uint8_t { ready, wanted, written };
  struct Trigger {
    Condition condition;
    RecentMedian durations;
    State state = State::ready;
    bool matched = false;      // a range has had the name
    bool followed = false;     // the next range has ended, or the trigger does not wait for one
    std::uint64_t moment = 0;  // of the last firing
    std::uint64_t pause_until = 0;
    std::uint64_t dumps = 0;
    std::uint64_t since = 0;   // firings without a dump since the last dump
    std::uint64_t paused = 0, beyond = 0;  // all firings without a dump, in a pause and beyond the limit
    std::string reason;
  };
  struct Device {
    // the end of each busy interval by its start; only gaps that matter separate them
    std::map<std::uint64_t, std::uint64_t> busy;
    std::uint64_t evaluated = 0;                  // the end of the evaluated time
    std::int64_t memory = 0;
  };
  struct Change {
    std::uint64_t time;
    std::uint32_t device;
    std::int64_t bytes;
    bool operator<(const Change& other) const { return time > other.time; }  // the top of the heap is the earliest
  };

  const std::vector<std::uint32_t>& named_by(std::uint64_t key, std::string_view domain, std::string_view name);
  void end_launch(std::uint32_t correlation);
  std::uint64_t running_since(std::uint64_t now, const Captures& captures);
  void add_work(std::uint32_t device, std::uint64_t start, std::uint64_t end);
  void end_gaps(std::uint64_t until, std::uint64_t now);
  void end_gap(std::uint32_t number, Device& device, std::uint64_t now);
  void apply_changes(std::uint64_t until);
  void apply(const Change& change);
  void fire(Trigger& trigger, std::uint64_t time, std::uint32_t thread, const std::string& fact);

  std::vector<Trigger> triggers_;
  std::uint64_t limit_, pause_, kept_, delay_, patience_;
  bool watches_ranges_ = false;
  bool watches_memory_ = false;
  std::uint64_t shortest_gap_ = 0;  // the shortest gap that a condition asks for, 0 for none
  std::uint64_t gaps_from_ = 0;     // gaps that start earlier do not count
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>, SeededHash> by_name_;  // triggers by domain and name
  std::vector<std::string> seen_;   // the first names of ranges
  bool seen_more_ = false;
  std::map<std::uint32_t, Device> devices_;
  std::map<std::uint32_t, std::uint64_t> launches_;  // times of launches without work yet, by correlation id
  bool gaps_left_ = false;          // the end left gaps unevaluated, because of `launches_`
  // Ids of work that came before its launch, because buffers come in any order: the older and the newer half.
  std::array<std::unordered_set<std::uint32_t, SeededHash>, 2> ended_;
  std::vector<Change> changes_;     // a heap
  std::vector<Trigger*> wanted_;
  std::uint64_t moment_ = 0;        // of the first of `wanted_`
  bool writing_ = false;
  bool ending_ = false;
  std::vector<Mark> marks_;
};

}  // namespace cutrace
