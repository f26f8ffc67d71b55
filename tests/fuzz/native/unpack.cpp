// Protobuf of any origin: what is read of it is well formed, and reading it in pieces finds the same.
#include "import/unpack.h"

#include <algorithm>

#include "input.h"

namespace {

using cutrace::Act;

const cutrace::Unpacker& unpacker() {
  static const cutrace::Unpacker plan(
      {{{{1, Act::kNumber, true, 0}, {2, Act::kEnter, false, 1}, {3, Act::kEach, false, 2}, {4, Act::kReport, false, 0}}, -1},
       {{{1, Act::kNumber, false, 1}, {3, Act::kEach, true, 2}}, -1},
       {{{1, Act::kNumber, false, 0}, {2, Act::kEnter, false, 3}}, 0},
       {{{1, Act::kNumber, false, 1}}, 0}},
      2, {2});
  return plan;
}

void check(const cutrace::Unpacked& found, std::size_t size) {
  fuzz::require(found.consumed <= size, "no more is read than there is");
  const std::size_t rows = found.columns[0].size();
  fuzz::require(found.columns[1].size() == rows, "columns have one length");
  const cutrace::Entries& entries = found.groups[0];
  fuzz::require(entries.columns[0].size() == entries.rows.size() && entries.columns[1].size() == entries.rows.size(),
                "columns of entries have one length");
  fuzz::require(std::is_sorted(entries.rows.begin(), entries.rows.end()), "entries are in the order of their rows");
  fuzz::require(entries.rows.empty() || entries.rows.back() < rows, "entries belong to rows");
  for (std::size_t i = 0; i < found.begins.size(); ++i) {
    fuzz::require(found.begins[i] + found.sizes[i] <= found.consumed, "what is reported was read");
    fuzz::require(found.before[i] <= rows, "what is reported stands between rows");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const cutrace::Unpacked whole = unpacker().read(data, size);
  check(whole, size);
  const std::size_t half = size / 2;
  const cutrace::Unpacked first = unpacker().read(data, half);
  check(first, half);
  if (!first.broken) {
    const cutrace::Unpacked second = unpacker().read(data + first.consumed, size - first.consumed);
    check(second, size - first.consumed);
    fuzz::require(first.columns[0].size() + second.columns[0].size() == whole.columns[0].size(), "pieces have the same rows");
    fuzz::require(first.bad + second.bad == whole.bad, "pieces have the same faults");
  }
  cutrace::Nesting nesting;
  std::vector<std::uint64_t> tracks(size);
  std::vector<std::uint8_t> phases(size);
  std::vector<std::int64_t> begins(size);
  for (std::size_t i = 0; i < size; ++i) tracks[i] = data[i] >> 4, phases[i] = data[i] & 3;
  for (std::size_t i = 0; i < size; ++i) begins[i] = nesting.feed(tracks[i], phases[i]);
  for (std::size_t i = 0; i < size; ++i)
    if (begins[i] >= 0) {
      const auto begin = static_cast<std::size_t>(begins[i]);
      fuzz::require(begin < i && tracks[begin] == tracks[i] && phases[begin] == 1 && phases[i] == 2, "an end ends a begin before it");
    }
  return 0;
}
