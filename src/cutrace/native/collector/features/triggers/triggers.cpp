#include "triggers.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <utility>

#include "core/clock.h"

namespace cutrace {
namespace {

constexpr std::size_t kMostNames = 4096;    // of ranges
constexpr std::size_t kMostGaps = 4096;     // unevaluated gaps of a device
constexpr std::size_t kMostChanges = 1 << 16;  // unevaluated changes of memory
constexpr std::size_t kMostLaunches = 1 << 17;  // launches without work yet; also the limit for work without a launch
// How long to wait for the work of a launch. A launch during a stream capture may have no work. Other launches need this limit only
// for work that CUPTI never reports.
constexpr std::uint64_t kLongestWork = 3600 * kSecondNs, kLongestBesideCapture = 60 * kSecondNs;
constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMostSeen = 8;        // names in a note

std::string number(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string duration(std::uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1000) return std::to_string(ns) + " ns";
  if (ns < 1'000'000) return number("%.1f us", value / 1e3);
  if (ns < kSecondNs) return number("%.2f ms", value / 1e6);
  return number("%.3f s", value / 1e9);
}

std::string size(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  constexpr double kKiB = 1024, kMiB = kKiB * kKiB, kGiB = kMiB * kKiB;
  if (value < 1000 * kKiB) return number("%.1f KiB", value / kKiB);
  if (value < 1000 * kMiB) return number("%.1f MiB", value / kMiB);
  return number("%.1f GiB", value / kGiB);
}

std::string times(std::uint64_t count) { return std::to_string(count) + (count == 1 ? " time" : " times"); }

}  // namespace

void RecentMedian::add(std::uint64_t value) {
  if (sorted_.size() == kMost) sorted_.erase(std::ranges::lower_bound(sorted_, recent_[next_]));
  sorted_.insert(std::ranges::lower_bound(sorted_, value), value);
  recent_[next_] = value;
  next_ = (next_ + 1) % kMost;
}

Triggers::Triggers(const std::vector<Condition>& conditions, std::uint64_t limit, std::uint64_t pause, std::uint64_t kept)
    : limit_(limit),
      pause_(pause),
      kept_(kept),
      delay_(kept != 0 ? std::min(kept / 4, 5 * kSecondNs) : kSecondNs),
      patience_(kept != 0 ? kept / 2 : 2 * kSecondNs) {
  for (const Condition& condition : conditions) {
    triggers_.emplace_back().condition = condition;
    switch (condition.kind) {
      case Condition::Kind::idle:
        shortest_gap_ = shortest_gap_ != 0 ? std::min(shortest_gap_, condition.limit) : condition.limit;
        break;
      case Condition::Kind::memory: watches_memory_ = true; break;
      default: watches_ranges_ = true;
    }
  }
}

// ---- ranges ----

// The triggers that name a range. `key` has the ids of its domain and name; the capture never uses these ids for other strings.
const std::vector<std::uint32_t>& Triggers::named_by(std::uint64_t key, std::string_view domain, std::string_view name) {
  if (const auto it = by_name_.find(key); it != by_name_.end()) return it->second;
  if (by_name_.size() >= kMostNames) by_name_.clear();
  const std::string whole = domain.empty() ? std::string(name) : std::string(domain) + ':' + std::string(name);
  std::vector<std::uint32_t> named;
  for (std::uint32_t i = 0; i < triggers_.size(); ++i) {
    Trigger& trigger = triggers_[i];
    if (trigger.condition.name.empty()) continue;
    if (!matches(trigger.condition.name, name) && !matches(trigger.condition.name, whole)) continue;
    trigger.matched = true;
    named.push_back(i);
  }
  if (std::ranges::find(seen_, whole) == seen_.end()) {
    seen_more_ = seen_more_ || seen_.size() == kMostSeen;
    if (seen_.size() < kMostSeen) seen_.push_back(whole);
  }
  return by_name_.emplace(key, std::move(named)).first->second;
}

void Triggers::look_at(const rows::NvtxRanges& row, bool open, std::string_view domain, std::string_view name,
                       std::vector<std::uint32_t>& fired) {
  const std::uint64_t took = row.end > row.start ? row.end - row.start : 0;
  for (const std::uint32_t i : named_by(std::uint64_t{row.domain} << 32 | row.name, domain, name)) {
    Trigger& trigger = triggers_[i];
    const Condition& condition = trigger.condition;
    if (!open && row.start >= trigger.moment) trigger.followed = true;
    RecentMedian& durations = trigger.durations;
    std::uint64_t limit = condition.limit;
    std::string about;
    if (condition.kind == Condition::Kind::median) {
      const bool known = durations.size() >= RecentMedian::kLeast;
      limit = known ? static_cast<std::uint64_t>(condition.factor * static_cast<double>(durations.median())) : kAll;
      if (took > limit) about = ", the median is " + duration(durations.median());
      if (!open) durations.add(took);
    }
    // Wait longer for an open range, because a dump after its end is better.
    const std::uint64_t patience = open ? patience_ : 0;
    if (took < patience || took - patience <= limit || std::ranges::find(fired, i) != fired.end()) continue;
    fire(trigger, row.end, row.thread, std::string(name) + (open ? " has not ended after " : " took ") + duration(took) + about);
    trigger.followed = trigger.followed || open;
    fired.push_back(i);
  }
}

// ---- GPU work ----

void Triggers::launched(std::uint32_t correlation, std::uint64_t time) {
  if (ended_[0].erase(correlation) + ended_[1].erase(correlation) != 0) return;
  launches_.emplace_hint(launches_.end(), correlation, time);
  if (launches_.size() > kMostLaunches) lose_work(time);
}

void Triggers::end_launch(std::uint32_t correlation) {
  if (launches_.erase(correlation) != 0) return;
  if (ended_[1].size() >= kMostLaunches / 2) {
    ended_[0].swap(ended_[1]);
    ended_[1].clear();
  }
  ended_[1].insert(correlation);
}

void Triggers::lose_work(std::uint64_t time) {
  gaps_from_ = std::max(gaps_from_, time);
  launches_.clear();  // the records of their work may be lost
}

void Triggers::add_work(std::uint32_t number, std::uint64_t start, std::uint64_t end) {
  Device& device = devices_[number];
  auto& busy = device.busy;
  if (end < device.evaluated) return;
  // Work is merged with other work when the gap between them does not matter.
  auto it = busy.upper_bound(start);
  if (it != busy.begin() && start <= std::prev(it)->second + shortest_gap_) {
    it = std::prev(it);
    it->second = std::max(it->second, end);
  } else {
    it = busy.emplace_hint(it, start, end);
  }
  for (auto next = std::next(it); next != busy.end() && next->first <= it->second + shortest_gap_; next = busy.erase(next))
    it->second = std::max(it->second, next->second);
  if (busy.size() <= kMostGaps) return;
  // Drops the first gap when there are too many.
  const auto second = std::next(busy.begin());
  busy.begin()->second = std::max(busy.begin()->second, second->second);
  busy.erase(second);
}

// Evaluates the first gap of a device.
void Triggers::end_gap(std::uint32_t number, Device& device, std::uint64_t now) {
  const std::uint64_t begin = device.busy.begin()->second;
  device.busy.erase(device.busy.begin());
  const std::uint64_t end = device.evaluated = device.busy.begin()->first;
  const bool dropped = kept_ != 0 && now > end + kept_;  // a dump would not contain this gap
  if (begin < gaps_from_ || dropped) return;
  for (Trigger& trigger : triggers_)
    if (trigger.condition.kind == Condition::Kind::idle && end - begin > trigger.condition.limit)
      fire(trigger, end, 0, "GPU " + std::to_string(number) + " was idle for " + duration(end - begin));
}

// ---- memory ----

void Triggers::memory_changed(std::uint32_t device, std::uint64_t time, std::int64_t bytes) {
  if (!watches_memory_) return;
  changes_.push_back({time, device, bytes});
  std::push_heap(changes_.begin(), changes_.end());
  if (changes_.size() <= kMostChanges) return;
  std::pop_heap(changes_.begin(), changes_.end());
  const Change earliest = changes_.back();
  changes_.pop_back();
  apply(earliest);
}

void Triggers::apply(const Change& change) {
  std::int64_t& memory = devices_[change.device].memory;
  const std::int64_t before = std::exchange(memory, memory + change.bytes);
  for (Trigger& trigger : triggers_) {
    const auto limit = static_cast<std::int64_t>(trigger.condition.limit);
    if (trigger.condition.kind == Condition::Kind::memory && before <= limit && memory > limit)
      fire(trigger, change.time, 0, "GPU " + std::to_string(change.device) + " had " + size(memory) + " in use");
  }
}

void Triggers::apply_changes(std::uint64_t until) {
  while (!changes_.empty() && changes_.front().time < until) {
    std::pop_heap(changes_.begin(), changes_.end());
    const Change change = changes_.back();
    changes_.pop_back();
    apply(change);
  }
}

// The time of the first launch with work that may be running at `now`. Forgets earlier launches.
std::uint64_t Triggers::running_since(std::uint64_t now, const Captures& captures) {
  for (; !launches_.empty(); launches_.erase(launches_.begin())) {
    const std::uint64_t time = launches_.begin()->second;
    const bool captured = std::ranges::any_of(
        captures, [&](const auto& capture) { return capture.first <= time && (time <= capture.second || capture.second == 0); });
    const std::uint64_t longest = !captured ? kLongestWork : ending_ ? 0 : kLongestBesideCapture;
    if (time + longest >= now) return time;
  }
  return kAll;
}

void Triggers::settle(std::uint64_t until, std::uint64_t now, const Captures& captures) {
  apply_changes(until);
  end_gaps(std::min({until, running_since(now, captures), now - delay_}), now);
}

void Triggers::end_gaps(std::uint64_t until, std::uint64_t now) {
  for (auto& [number, device] : devices_)
    while (device.busy.size() > 1 && std::next(device.busy.begin())->first < until) end_gap(number, device, now);
}

void Triggers::finish(std::uint64_t now, const Captures& captures) {
  ending_ = true;
  apply_changes(kAll);
  end_gaps(running_since(now, captures), now);
  gaps_left_ = std::ranges::any_of(devices_, [](const auto& device) { return device.second.busy.size() > 1; });
}

// ---- dumps ----

void Triggers::fire(Trigger& trigger, std::uint64_t time, std::uint32_t thread, const std::string& fact) {
  if (trigger.dumps >= limit_) return static_cast<void>(++trigger.beyond);
  if (trigger.state != State::ready || time < trigger.pause_until) {
    ++trigger.paused;
    ++trigger.since;
    return;
  }
  trigger.reason = fact + " (" + trigger.condition.text + ")";
  if (const std::uint64_t count = std::exchange(trigger.since, 0))
    trigger.reason += ", and " + times(count) + " since the dump before";
  marks_.push_back({time, thread, "dump: " + trigger.reason});
  moment_ = wanted_.empty() ? time : std::min(moment_, time);
  wanted_.push_back(&trigger);
  trigger.state = State::wanted;
  trigger.moment = time;
  trigger.pause_until = time + pause_;
  const auto kind = trigger.condition.kind;
  trigger.followed = kind == Condition::Kind::idle || kind == Condition::Kind::memory;
}

bool Triggers::due(std::uint64_t now) const {
  if (wanted_.empty() || writing_) return false;
  const bool followed = std::ranges::all_of(wanted_, [](const Trigger* trigger) { return trigger->followed; });
  return ending_ || now >= moment_ + (followed ? delay_ : std::max(delay_, patience_));
}

std::vector<std::string> Triggers::begin_dump() {
  std::vector<std::string> reasons;
  for (Trigger* trigger : wanted_) {
    reasons.push_back(trigger->reason);
    trigger->state = State::written;
  }
  wanted_.clear();
  writing_ = true;
  return reasons;
}

void Triggers::end_dump(bool written) {
  writing_ = false;
  for (Trigger& trigger : triggers_) {
    if (trigger.state != State::written) continue;
    trigger.state = State::ready;
    if (written) ++trigger.dumps;
  }
}

std::vector<std::string> Triggers::notes(bool of_names) const {
  std::string seen;
  for (const std::string& name : seen_) seen += (seen.empty() ? "" : ", ") + name;
  if (seen_more_) seen += ", ...";
  std::vector<std::string> notes;
  for (const Trigger& trigger : triggers_) {
    const Condition& condition = trigger.condition;
    const std::string quoted = "'" + condition.text + "'";
    if (!condition.name.empty() && !trigger.matched) {
      if (of_names)
        notes.push_back("no NVTX range was named '" + condition.name + "', so the dump condition " + quoted +
                        " could not become true; names of ranges: " + (seen.empty() ? "none" : seen));
    } else if (condition.kind == Condition::Kind::median && trigger.durations.size() < RecentMedian::kLeast) {
      notes.push_back("the dump condition " + quoted + " needs " + std::to_string(RecentMedian::kLeast) + " ranges for a median and saw " +
                      std::to_string(trigger.durations.size()));
    }
    if (condition.kind == Condition::Kind::idle && gaps_left_)
      notes.push_back("the dump condition " + quoted + " does not know the idle times after the first of " +
                      std::to_string(launches_.size()) + " launches whose work was not reported");
    if (trigger.paused != 0)
      notes.push_back("the dump condition " + quoted + " was true " + times(trigger.paused) + " in the pause after a dump (dump_pause)");
    if (trigger.beyond != 0)
      notes.push_back("the dump condition " + quoted + " was true " + times(trigger.beyond) + " after its last dump (dump_limit)");
  }
  return notes;
}

std::size_t Triggers::entries() const {
  std::size_t count = launches_.size() + ended_[0].size() + ended_[1].size() + by_name_.size() + seen_.size() + changes_.size() + wanted_.size() + marks_.size();
  for (const auto& [number, device] : devices_) count += 1 + device.busy.size();
  for (const Trigger& trigger : triggers_) count += trigger.durations.size();
  return count;
}

}  // namespace cutrace
