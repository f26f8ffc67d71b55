#include "import/events.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/text.h"

namespace cutrace {

using json::Read;

namespace {

constexpr std::size_t kPage = std::size_t{256} << 10;

// The keys of all events, in the order of BuiltIn. They are the first strings after the empty one.
constexpr std::string_view kBuiltIn[] = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"};
enum BuiltIn : std::uint32_t { kPh = 1, kCat, kName, kPid, kTid, kTs, kDur, kArgs };

}  // namespace

// Texts

std::uint32_t Texts::id(std::string_view text) {
  return numbers_.add(hash_of(text), is(text), [&] { store(text); });
}

void Texts::store(std::string_view text) {
  if (text.size() > page_size_ - page_used_) {
    page_size_ = std::max(std::clamp(2 * page_size_, std::size_t{1024}, kPage), text.size());
    page_used_ = 0;
    pages_.push_back(std::make_unique_for_overwrite<char[]>(page_size_));
  }
  char* const to = pages_.empty() ? nullptr : pages_.back().get() + page_used_;
  std::copy(text.begin(), text.end(), to);
  page_used_ += text.size();
  texts_.emplace_back(to, text.size());
}

// EventScanner

// The possible columns of each key, by its id.
static void add_columns(const std::vector<WantedKey>& wanted, Texts& keys, std::vector<std::vector<std::uint32_t>>& columns) {
  for (std::uint32_t i = 0; i < wanted.size(); ++i) {
    const std::uint32_t number = keys.id(wanted[i].key);
    columns.resize(keys.size());
    columns[number].push_back(i);
  }
  columns.resize(keys.size());
}

EventScanner::EventScanner(const std::vector<Rule>& rules, const std::vector<WantedKey>& keys, std::string wrap,
                           std::size_t largest)
    : wanted_keys_(keys), wrap_(std::move(wrap)), largest_(largest) {
  for (const std::string_view name : kBuiltIn) keys_.id(name);
  add_columns(keys, keys_, key_columns_);
  const auto text = [this](const auto& wanted) { return wanted ? std::optional(texts_.id(*wanted)) : std::nullopt; };
  for (const Rule& rule : rules) {
    rules_.push_back({rule.phases, text(rule.category), text(rule.name), rule.numbers, rule.arguments, {}, {}});
    add_columns(rule.arguments, rules_.back().keys, rules_.back().columns);
  }
  clear_groups();
}

void EventScanner::clear_groups() {
  groups_.assign(rules_.size() + 1, {});
  for (std::size_t i = 0; i < groups_.size(); ++i)
    groups_[i].columns.resize(wanted_keys_.size() + (i < rules_.size() ? rules_[i].arguments.size() : 0));
  pending_ = 0;
}

std::vector<Group> EventScanner::take() {
  std::vector<Group> taken = std::move(groups_);
  clear_groups();
  return taken;
}

void EventScanner::feed(const char* data, std::size_t size) {
  // Drop the bytes that are already read.
  if (begin_ > 0) {
    std::memmove(buffer_.get(), at(begin_), size_ - begin_);
    before_ += begin_;
    size_ -= begin_;
    begin_ = 0;
  }
  if (state_ == State::kEnd) {
    before_ += size;
    return;
  }
  hold(data, size);
  if (size_ >= next_try_) run(false);
}

// Appends bytes to the buffer.
void EventScanner::hold(const char* data, std::size_t size) {
  if (size_ + size + json::kPadding > capacity_) {
    capacity_ = size_ + size + json::kPadding + (size_ > size ? size_ : 0);
    auto larger = std::make_unique_for_overwrite<char[]>(capacity_);
    if (size_ > 0) std::memcpy(larger.get(), buffer_.get(), size_);
    buffer_ = std::move(larger);
  }
  if (size > 0) std::memcpy(buffer_.get() + size_, data, size);
  size_ += size;
  std::memset(buffer_.get() + size_, 0, json::kPadding);
}

void EventScanner::add(const EventFields& fields, std::string_view json) {
  if (fields.phase == 0) return problem(Problem::kNoPhase);
  if (json.size() > largest_) return problem(Problem::kLarge);
  begin_event(fields);
  event_.flags |= kHasName | kHasCategory;
  if (json.empty()) {
    group_ = group_of_event();
    return commit();
  }
  size_ = 0;
  hold(json.data(), json.size());
  const char* p = at(0);
  const Read read = event_keys(p);
  if (read == Read::kOk) commit();
  else problem(read == Read::kDeep ? Problem::kDeep : Problem::kSyntax);
}

void EventScanner::finish() {
  if (ended_ != Ended::kNot) return;
  if (buffer_ == nullptr) feed("", 0);
  run(true);
  if (ended_ == Ended::kNot)
    ended_ = state_ == State::kLost ? Ended::kInDamage : state_ == State::kArray ? Ended::kInArray : state_ == State::kStart ? Ended::kNothing : Ended::kInObject;
}

void EventScanner::run(bool final) {
  next_try_ = 0;
  for (bool on = true; on;) {
    switch (state_) {
      case State::kStart: on = start(final); break;
      case State::kObject: on = object(final); break;
      case State::kArray: on = array(final); break;
      case State::kLost: on = lost(final); break;
      case State::kPassing: passing(); on = begin_ < size_; break;
      case State::kEnd: begin_ = size_; on = false; break;
    }
  }
}

void EventScanner::end(Ended how) {
  ended_ = how;
  state_ = State::kEnd;
}

// Handles an incomplete value at begin_. True when the value is given up.
bool EventScanner::unfinished(bool final) {
  const std::size_t size = size_ - begin_;
  if (final || size > largest_) return true;
  // Wait for twice as many bytes. So all attempts together cost about as much as the last attempt.
  next_try_ = std::min(size * 2, largest_ + 1);
  return false;
}

// Handles an unreadable value at begin_. False when more bytes may help.
bool EventScanner::failed(Read read, bool final, Ended inside) {
  if (read == Read::kMore && !unfinished(final)) return false;
  if (read == Read::kMore && final) {
    if (inside == Ended::kInEvent) problem(Problem::kTruncated);
    end(inside);
    return true;
  }
  problem(read == Read::kMore ? Problem::kLarge : read == Read::kDeep ? Problem::kDeep : Problem::kSyntax);
  state_ = State::kLost;
  ++begin_;
  return true;
}

bool EventScanner::start(bool final) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  const std::string_view left(at(begin_), size_ - begin_);
  if (before_ + begin_ == 0 && !final && left.size() < kMark.size()) return false;
  if (before_ + begin_ == 0 && left.starts_with(kMark)) begin_ += kMark.size();
  const char* p = json::skip_space(at(begin_));
  begin_ = static_cast<std::size_t>(p - at(0));
  if (p >= end()) return false;
  if (*p != '[' && *p != '{') {
    end(ended_ == Ended::kNot ? Ended::kNothing : ended_);
    return true;
  }
  ended_ = Ended::kNot;
  in_object_ = *p == '{';
  has_array_ |= !in_object_;
  state_ = in_object_ ? State::kObject : State::kArray;
  ++begin_;
  return true;
}

// The value is closed. Another value may follow, because Proton writes an object with events for each stream.
bool EventScanner::closed() {
  ++begin_;
  ended_ = Ended::kWhole;
  state_ = State::kStart;
  return true;
}

bool EventScanner::object(bool final) {
  const char* p = at(begin_);
  while (json::is_space(*p) || *p == ',') ++p;
  begin_ = static_cast<std::size_t>(p - at(0));
  if (p >= end()) return false;
  if (*p == '}') return closed();
  std::string_view name;
  Read read = key(p, name);
  if (read == Read::kOk) {
    if (name == "traceEvents" && *p == '[') {
      begin_ = static_cast<std::size_t>(p + 1 - at(0));
      state_ = State::kArray;
      has_array_ = true;
      return true;
    }
    std::string kept(name), value;
    const char* const value_begin = p;
    read = json::copy_value(p, end(), value);
    if (read == Read::kOk) {
      if (others_size_ + value.size() > largest_) value.clear();
      others_size_ += value.size() + kept.size();
      if (others_size_ <= 2 * largest_) others_.emplace_back(std::move(kept), std::move(value));
      begin_ = static_cast<std::size_t>(p - at(0));
      return true;
    }
    if (read == Read::kDeep || (read == Read::kMore && !final && size_ - begin_ > largest_)) {
      others_.emplace_back(std::move(kept), "");
      begin_ = static_cast<std::size_t>(value_begin - at(0));
      state_ = State::kPassing;
      passing_depth_ = 0;
      passing_string_ = passing_escape_ = false;
      return true;
    }
  }
  return failed(read, final, Ended::kInObject);
}

void EventScanner::passing() {
  for (; begin_ < size_; ++begin_) {
    const char c = *at(begin_);
    if (passing_string_) {
      if (passing_escape_) passing_escape_ = false;
      else if (c == '\\') passing_escape_ = true;
      else if (c == '"') passing_string_ = false;
    } else if (c == '"') {
      passing_string_ = true;
    } else if (c == '{' || c == '[') {
      ++passing_depth_;
    } else if (passing_depth_ == 0 && (c == ',' || c == '}' || c == ']')) {
      state_ = State::kObject;
      return;
    } else if (c == '}' || c == ']') {
      --passing_depth_;
    }
  }
}

bool EventScanner::array(bool final) {
  const char* p = at(begin_);
  while (json::is_space(*p) || *p == ',') ++p;
  begin_ = static_cast<std::size_t>(p - at(0));
  if (p >= end()) return false;
  if (*p == ']') {
    if (!in_object_) return closed();
    ++begin_;
    state_ = State::kObject;
    return true;
  }
  const bool is_object = *p == '{';
  const bool is_empty = is_object && *json::skip_space(p + 1) == '}';
  const Read read = is_object ? event(p) : json::skip_value(p, end());
  if (read == Read::kOk) {
    begin_ = static_cast<std::size_t>(p - at(0));
    understood_ = before_ + begin_;
    if (!is_object) problem(Problem::kNotObject);
    else if (is_empty) return true;  // XLA's profiler writes {} as the last element, to avoid a trailing comma
    else if (event_.phase == 0) problem(Problem::kNoPhase);
    else commit();
    return true;
  }
  return failed(read, final, Ended::kInEvent);
}

// Searches for the next object that is an event.
bool EventScanner::lost(bool final) {
  const void* const found = std::memchr(at(begin_), '{', size_ - begin_);
  if (found == nullptr) {
    begin_ = size_;
    return false;
  }
  const char* p = static_cast<const char*>(found);
  begin_ = static_cast<std::size_t>(p - at(0));
  const Read read = event(p);
  if (read == Read::kOk && event_.phase != 0) {
    begin_ = static_cast<std::size_t>(p - at(0));
    understood_ = before_ + begin_;
    state_ = State::kArray;
    has_array_ = true;
    commit();
    return true;
  }
  if (read == Read::kMore && !unfinished(final)) return false;
  ++begin_;
  return true;
}

// Reads a key and its colon, from its opening quote at p. p moves to the value.
Read EventScanner::key(const char*& p, std::string_view& name) {
  if (*p != '"') return Read::kBad;
  const char* behind = p + 1;
  const Read read = json::read_string(behind, end(), key_scratch_, name);
  if (read != Read::kOk) return read;
  behind = json::skip_space(behind);
  if (behind >= end()) return Read::kMore;
  if (*behind != ':') return Read::kBad;
  behind = json::skip_space(behind + 1);
  if (behind >= end()) return Read::kMore;
  p = behind;
  return Read::kOk;
}

// Calls value(p, key) for each key of the object at p. Accepts a trailing comma.
template <typename Value>
static Read members(const char*& p, const char* end, Value&& value) {
  const char* at = p + 1;
  for (bool after = false;;) {
    at = json::skip_space(at);
    if (at >= end) return Read::kMore;
    if (*at == '}') break;
    if (after) {
      if (*at != ',') return Read::kBad;
      ++at;
      after = false;
      continue;
    }
    if (const Read read = value(at); read != Read::kOk) return read;
    after = true;
  }
  p = at + 1;
  return Read::kOk;
}

void EventScanner::begin_event(const EventFields& fields) {
  event_ = {fields};
  values_.clear();
  number_values_.clear();
  rest_.clear();
  extra_.clear();
}

Read EventScanner::event(const char*& p) {
  begin_event({});
  return event_keys(p);
}

// Reads the keys of an event.
Read EventScanner::event_keys(const char*& p) {
  const char* at = p;
  Read read = members(at, end(), [&](const char*& value) {
    std::string_view name;
    const Read key_read = key(value, name);
    return key_read == Read::kOk ? event_value(value, name) : key_read;
  });
  if (read != Read::kOk) return read;
  if (event_.arguments != nullptr || !event_.has_arguments) group_ = group_of_event();
  if (event_.arguments != nullptr) {
    const char* late = event_.arguments;
    read = arguments(late);
    if (read != Read::kOk) return read;
  }
  p = at;
  return Read::kOk;
}

Read EventScanner::event_value(const char*& p, std::string_view name) {
  const std::uint32_t number = keys_.find(name);
  switch (number) {
    case kPh: {
      event_.phase = 0;
      if (*p != '"') return json::skip_value(p, end());
      ++p;
      std::string_view phase;
      const Read read = json::read_string(p, end(), scratch_, phase);
      if (read == Read::kOk && phase.size() == 1) event_.phase = static_cast<std::uint8_t>(phase[0]);
      return read;
    }
    case kCat: event_.flags |= kHasCategory; return text_of(p, event_.category);
    case kName: event_.flags |= kHasName; return text_of(p, event_.name);
    case kPid: return id_of(p, event_.thread.process);
    case kTid: return id_of(p, event_.thread.thread);
    case kTs: return time_of(p, event_.time, kHasTime, kBadTime);
    case kDur: return time_of(p, event_.duration, kHasDuration, kBadDuration);
    case kArgs:
      if (*p != '{') break;
      event_.has_arguments = true;
      event_.arguments = nullptr;
      if (group_known()) {
        group_ = group_of_event();
        return arguments(p);
      }
      event_.arguments = p;
      return json::skip_value(p, end());
    case Texts::kNone: break;
    default: {
      bool taken = false;
      const Read read = wanted(p, key_columns_[number], wanted_keys_, 0, taken);
      if (read != Read::kOk || taken) return read;
    }
  }
  return other(p, name, extra_);
}

bool EventScanner::group_known() const {
  return event_.phase != 0 && (event_.flags & kHasName) != 0 && (event_.flags & kHasCategory) != 0;
}

Read EventScanner::arguments(const char*& p) {
  const GroupRule* const rule = group_ < rules_.size() ? &rules_[group_] : nullptr;
  rest_.clear();
  return members(p, end(), [&](const char*& value) {
    std::string_view name;
    Read read = key(value, name);
    if (read != Read::kOk) return read;
    if (rule != nullptr) {
      bool taken = false;
      const std::uint32_t number = rule->keys.find(name);
      if (number != Texts::kNone) read = wanted(value, rule->columns[number], rule->arguments, wanted_keys_.size(), taken);
      if (read == Read::kOk && !taken && rule->numbers) {
        std::uint64_t bits = 0;
        read = take_value(value, Wanted::kNumber, bits, taken);
        if (taken) number_values_.emplace_back(texts_.id(name), std::bit_cast<double>(bits));
      }
      event_.took_arguments |= taken;
      if (read != Read::kOk || taken) return read;
    }
    return other(value, name, rest_);
  });
}

// Tries the columns of a key in order.
Read EventScanner::wanted(const char*& p, const std::vector<std::uint32_t>& columns, const std::vector<WantedKey>& keys,
                          std::size_t first, bool& taken) {
  for (const std::uint32_t column : columns) {
    std::uint64_t bits = 0;
    const Read read = take_value(p, keys[column].type, bits, taken);
    if (taken) values_.emplace_back(static_cast<std::uint32_t>(first + column), bits);
    if (read != Read::kOk || taken) return read;
  }
  return Read::kOk;
}

Read EventScanner::take_value(const char*& p, Wanted type, std::uint64_t& bits, bool& taken) {
  taken = false;
  switch (type) {
    case Wanted::kInteger:
    case Wanted::kNumber: {
      const std::string_view text = json::word(p);
      if (text.data() + text.size() >= end()) return Read::kMore;
      if (text.empty()) return Read::kOk;
      if (type == Wanted::kInteger) {
        std::int64_t value = 0;
        taken = json::integer(text, value);
        bits = static_cast<std::uint64_t>(value);
      } else if (json::is_number(text)) {
        double value = 0;
        taken = read_double(text, value);
        bits = std::bit_cast<std::uint64_t>(value);
      }
      if (taken) p += text.size();
      return Read::kOk;
    }
    case Wanted::kText: {
      if (*p != '"') return Read::kOk;
      std::uint32_t id = 0;
      const Read read = text_of(p, id);
      bits = id;
      taken = read == Read::kOk;
      return read;
    }
    case Wanted::kJson: {
      scratch_.clear();
      const Read read = json::copy_value(p, end(), scratch_);
      taken = read == Read::kOk;
      if (taken) bits = texts_.id(scratch_);
      return read;
    }
    case Wanted::kNothing: break;
  }
  const Read read = json::skip_value(p, end());
  taken = read == Read::kOk;
  return read;
}

Read EventScanner::other(const char*& p, std::string_view name, std::string& out) {
  if (!out.empty()) out += ',';
  append_quoted(name, out);
  out += ':';
  return json::copy_value(p, end(), out);
}

Read EventScanner::text_of(const char*& p, std::uint32_t& id) {
  std::string_view text;
  Read read;
  if (*p == '"') {
    const char* behind = p + 1;
    read = json::read_string(behind, end(), scratch_, text);
    if (read == Read::kOk) p = behind;
  } else {
    scratch_.clear();
    read = json::copy_value(p, end(), scratch_);
    text = scratch_;
  }
  if (read == Read::kOk) id = texts_.id(text);
  return read;
}

Read EventScanner::id_of(const char*& p, Id& id) {
  const std::string_view text = json::word(p);
  if (!text.empty() && text.data() + text.size() < end()) {
    const bool number = json::is_number(text) && json::integer(text, id.value);
    if (number || text == "null") {
      id.kind = number ? Id::kInteger : Id::kAbsent;
      p += text.size();
      return Read::kOk;
    }
  }
  id.kind = *p == '"' ? Id::kText : Id::kOther;
  std::uint32_t number = 0;
  const Read read = text_of(p, number);
  id.value = number;
  return read;
}

Read EventScanner::time_of(const char*& p, std::int64_t& value, std::uint8_t good, std::uint8_t bad) {
  std::string_view text;
  if (*p == '"') {  // some programs write numbers as strings
    const char* behind = p + 1;
    const Read read = json::read_string(behind, end(), scratch_, text);
    if (read != Read::kOk) return read;
    p = behind;
  } else {
    text = json::word(p);
    if (text.data() + text.size() >= end()) return Read::kMore;
    if (text.empty()) {
      event_.flags |= bad;
      return json::skip_value(p, end());
    }
    p += text.size();
  }
  event_.flags &= static_cast<std::uint8_t>(~(good | bad));
  event_.flags |= json::nanoseconds(text, value) ? good : bad;
  return Read::kOk;
}

std::size_t EventScanner::group_of_event() {
  const std::uint64_t which = std::uint64_t{event_.phase} << 32 | event_.category;
  auto& [known, rules] = matching_[which];
  if (!known) {
    known = true;
    for (std::uint32_t i = 0; i < rules_.size(); ++i) {
      const GroupRule& rule = rules_[i];
      const bool phase = rule.phases.empty() || rule.phases.find(static_cast<char>(event_.phase)) != std::string::npos;
      if (phase && (!rule.category || rule.category == event_.category)) rules.push_back(i);
    }
  }
  for (const std::uint32_t i : rules)
    if (!rules_[i].name || rules_[i].name == event_.name) return i;
  return rules_.size();
}

std::uint32_t EventScanner::thread_of_event() {
  if (last_thread_ < threads_.size() && threads_[last_thread_] == event_.thread) return last_thread_;
  const auto& [process, thread] = event_.thread;
  const std::uint64_t key[] = {static_cast<std::uint64_t>(process.value), static_cast<std::uint64_t>(thread.value),
                               std::uint64_t{process.kind} << 8 | thread.kind};
  return last_thread_ = thread_numbers_.add(
             hash_of(key, std::size(key)), [&](std::uint32_t known) { return threads_[known] == event_.thread; },
             [&] { threads_.push_back(event_.thread); });
}

// The id of a JSON object with the other arguments and keys, 0 if there are none.
std::uint32_t EventScanner::arguments_of_event() {
  if (rest_.empty() && extra_.empty() && (event_.took_arguments || !event_.has_arguments)) return 0;
  scratch_.assign(1, '{');
  scratch_ += rest_;
  if (!extra_.empty()) {
    if (!rest_.empty()) scratch_ += ',';
    append_quoted(wrap_, scratch_);
    scratch_ += ":{";
    scratch_ += extra_;
    scratch_ += '}';
  }
  scratch_ += '}';
  return texts_.id(scratch_);
}

void EventScanner::commit() {
  Group& group = groups_[group_];
  const auto row = static_cast<std::uint32_t>(group.size());
  group.phases.push_back(event_.phase);
  group.flags.push_back(event_.flags);
  group.times.push_back(event_.time);
  group.durations.push_back(event_.duration);
  group.threads.push_back(thread_of_event());
  group.names.push_back(event_.name);
  group.categories.push_back(event_.category);
  group.arguments.push_back(arguments_of_event());
  for (const auto& [column, bits] : values_) {
    Sparse& sparse = group.columns[column];
    if (sparse.rows.empty() || sparse.rows.back() != row) {
      sparse.rows.push_back(row);
      sparse.values.push_back(bits);
    } else {
      sparse.values.back() = bits;  // the last value of a repeated key counts
    }
  }
  for (const auto& [name, value] : number_values_) {
    group.number_rows.push_back(row);
    group.number_keys.push_back(name);
    group.numbers.push_back(value);
  }
  ++pending_;
}

}  // namespace cutrace
