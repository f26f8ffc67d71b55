// The reader of Perfetto traces: the same packets give the same events for any split into pieces, and columns have equal lengths.
// Memory has the exact size, so that a read beyond the end is detected.
#include "import/perfetto.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "input.h"

using cutrace::EventScanner;
using cutrace::Group;
using cutrace::PerfettoReader;
using cutrace::Wanted;
using fuzz::require;

namespace {

struct Trace {
  EventScanner events{{{"X", "kernel", {}, {{"grid", Wanted::kJson}, {"device", Wanted::kInteger}}, false}, {"C", {}, {}, {}, true}},
                      {{"id", Wanted::kInteger}, {"id", Wanted::kJson}, {"bp", Wanted::kText}, {"cutrace", Wanted::kJson}},
                      "beside"};
  PerfettoReader packets{events};
  std::string rest;

  // Reads more bytes. Returns false if they are not a packet.
  bool feed(std::string_view data) {
    rest += data;
    const std::vector<char> exact(rest.begin(), rest.end());
    std::size_t at = 0;
    try {
      for (std::size_t before = SIZE_MAX; before != at;) {
        before = at;
        std::vector<PerfettoReader::Packed> packed;
        at = packets.read({exact.data(), exact.size()}, at, SIZE_MAX, packed);
      }
    } catch (const std::invalid_argument&) {
      return false;
    }
    require(at <= exact.size(), "a position is inside");
    rest.erase(0, at);
    return true;
  }
};

// Checks a group: columns have equal lengths, ids are valid, and arguments are JSON.
void hold(const EventScanner& from, const Group& group) {
  const std::size_t rows = group.size();
  const std::size_t texts = from.texts().size();
  require(group.times.size() == rows && group.threads.size() == rows && group.arguments.size() == rows, "columns are of one length");
  for (std::size_t i = 0; i < rows; ++i) {
    require(group.phases[i] != 0 && group.threads[i] < from.threads().size(), "an event has a phase and a thread");
    require(group.names[i] < texts && group.categories[i] < texts && group.arguments[i] < texts, "a text is known");
    if (group.arguments[i] == 0) continue;
    std::string text(from.texts()[group.arguments[i]]);
    const std::size_t size = text.size();
    text.append(cutrace::json::kPadding, '\0');
    const char* p = text.data();
    std::string again;
    require(cutrace::json::copy_value(p, text.data() + size, again) == cutrace::json::Read::kOk, "arguments are JSON");
    require(again == text.substr(0, size), "arguments are as they would be written again");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t step = 1 + input.below(64);
  const std::string text = input.text(SIZE_MAX);
  PerfettoReader::begins(text);
  Trace whole, pieces;
  bool valid = whole.feed(text);
  bool same = true;
  for (std::size_t at = 0; same && at < text.size(); at += step) same = pieces.feed(std::string_view(text).substr(at, step));
  require(valid == same && (!valid || whole.rest == pieces.rest), "pieces do not matter");
  whole.packets.finish();
  pieces.packets.finish();
  require(whole.packets.added() == pieces.packets.added(), "pieces do not matter");
  require(whole.events.problems() == pieces.events.problems(), "pieces do not matter");
  require(whole.packets.left() == pieces.packets.left(), "pieces do not matter");
  const std::vector<Group> a = whole.events.take(), b = pieces.events.take();
  for (std::size_t i = 0; i < a.size(); ++i) {
    hold(whole.events, a[i]);
    require(a[i].times == b[i].times && a[i].durations == b[i].durations && a[i].arguments == b[i].arguments, "pieces do not matter");
  }
  const std::size_t syntax = static_cast<std::size_t>(EventScanner::Problem::kSyntax);
  require(whole.events.problems()[syntax] == 0, "written JSON is valid");
  return 0;
}
