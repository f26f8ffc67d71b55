// The scanner of trace events: the same bytes give the same events for any split into pieces. The output is valid, and every
// unreadable event is counted. Memory has the exact size, so that a read beyond the end is detected.
#include "import/events.h"

#include <string>
#include <vector>

#include "input.h"

using cutrace::EventScanner;
using cutrace::Group;
using cutrace::Rule;
using cutrace::Wanted;
using fuzz::require;

namespace {

// A small value, so that inputs reach the limits.
constexpr std::size_t kLargest = 600;

std::vector<Rule> rules() {
  Rule kernels{"X", "k", {}, {{"i", Wanted::kInteger}, {"t", Wanted::kText}, {"j", Wanted::kJson}, {"n", Wanted::kNothing}}, false};
  Rule counters{"C", {}, {}, {{"f", Wanted::kNumber}}, true};
  Rule named{"", {}, "n", {}, false};
  return {kernels, counters, named};
}

EventScanner scanner() {
  return EventScanner(rules(), {{"id", Wanted::kInteger}, {"id", Wanted::kJson}, {"s", Wanted::kText}}, "beside", kLargest);
}

// Checks a group: columns have equal lengths, rows are in order, and ids are valid.
void hold(const EventScanner& from, const Group& group) {
  const std::size_t rows = group.size();
  const std::size_t texts = from.texts().size();
  require(group.flags.size() == rows && group.times.size() == rows && group.durations.size() == rows, "columns are of one length");
  require(group.threads.size() == rows && group.names.size() == rows && group.arguments.size() == rows, "columns are of one length");
  for (std::size_t i = 0; i < rows; ++i) {
    require(group.phases[i] != 0, "an event has a phase");
    require(group.threads[i] < from.threads().size(), "a thread is known");
    require(group.names[i] < texts && group.categories[i] < texts && group.arguments[i] < texts, "a text is known");
    if (group.arguments[i] != 0) {
      // The arguments are always valid JSON.
      std::string text(from.texts()[group.arguments[i]]);
      require(text.front() == '{' && text.back() == '}', "arguments are an object");
      const std::size_t size = text.size();
      text.append(cutrace::json::kPadding, '\0');
      text[size] = ',';
      const char* p = text.data();
      std::string again;
      require(cutrace::json::copy_value(p, text.data() + size + 1, again) == cutrace::json::Read::kOk, "arguments are JSON");
      require(again == text.substr(0, size), "arguments are as they would be written again");
    }
  }
  for (const auto& column : group.columns) {
    require(column.rows.size() == column.values.size(), "a column has a value a row");
    for (std::size_t i = 0; i < column.rows.size(); ++i)
      require(column.rows[i] < rows && (i == 0 || column.rows[i] > column.rows[i - 1]), "rows are in order");
  }
  require(group.number_rows.size() == group.numbers.size() && group.number_keys.size() == group.numbers.size(), "numbers have keys");
}

void equal(const EventScanner& a, const Group& x, const EventScanner& b, const Group& y) {
  require(x.phases == y.phases && x.flags == y.flags && x.times == y.times && x.durations == y.durations, "pieces do not matter");
  for (std::size_t i = 0; i < x.size(); ++i)
    require(a.texts()[x.names[i]] == b.texts()[y.names[i]] && a.texts()[x.arguments[i]] == b.texts()[y.arguments[i]], "pieces do not matter");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t step = 1 + input.below(64);
  const std::string text = (input.flip() ? "[" : "") + input.text(SIZE_MAX);
  EventScanner whole = scanner(), pieces = scanner();
  const std::vector<char> exact(text.begin(), text.end());
  whole.feed(exact.data(), exact.size());
  whole.finish();
  for (std::size_t at = 0; at < text.size(); at += step) {
    const std::vector<char> piece(text.begin() + at, text.begin() + std::min(at + step, text.size()));
    pieces.feed(piece.data(), piece.size());
  }
  pieces.finish();
  const std::vector<Group> a = whole.take(), b = pieces.take();
  for (const Group& group : a) hold(whole, group);
  for (const Group& group : b) hold(pieces, group);
  require(whole.bytes() == text.size() && whole.understood() <= text.size(), "bytes are counted");
  // Only values beyond the limit depend on the split of the bytes.
  const auto large = static_cast<std::size_t>(EventScanner::Problem::kLarge);
  if (text.size() <= kLargest) {
    require(whole.problems() == pieces.problems() && whole.ended() == pieces.ended(), "pieces do not matter");
    for (std::size_t i = 0; i < a.size(); ++i) equal(whole, a[i], pieces, b[i]);
    require(whole.problems()[large] == 0, "nothing is too large");
  }
  return 0;
}
