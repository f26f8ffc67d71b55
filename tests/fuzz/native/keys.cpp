// Keys and Submissions, compared with simple implementations.
#include <algorithm>
#include <map>
#include <string>

#include "python.h"

namespace nb = nanobind;
using fuzz::Columns;
using fuzz::Input;
using fuzz::numbers;
using fuzz::require;

namespace {

constexpr char kCodes[] = "BHIQbhiqfd";

void keys(Input& input) {
  const std::size_t width = input.below(18);
  nb::object keys;
  if (!fuzz::accepted([&] { keys = fuzz::native().attr("Keys")(width); })) return;
  std::map<std::string, std::uint32_t> seen;
  std::string codes;
  for (std::size_t i = 0; i < width; ++i) codes += kCodes[input.below(10)];
  for (int call = 0; call < 2; ++call) {
    Columns memory;
    nb::list columns;
    const std::size_t rows = input.below(300);
    for (char code : codes) columns.append(memory.column(input, code, rows, 1 + input.below(3)));
    if (input.below(16) == 1) columns.append(memory.column(input, 'I', input.below(4)));
    nb::tuple result;
    if (!fuzz::accepted([&] { result = nb::cast<nb::tuple>(keys.attr("ids")(columns)); })) continue;
    const auto ids = numbers<std::uint32_t>(result[0]), first = numbers<std::uint32_t>(result[1]);
    require(ids.size() == rows, "each row has a number");
    std::vector<std::string> bytes;
    for (nb::handle column : columns) {
      nb::object copy = column.attr("tobytes")();
      bytes.emplace_back(PyBytes_AsString(copy.ptr()), static_cast<std::size_t>(PyBytes_Size(copy.ptr())));
    }
    std::vector<std::uint32_t> fresh;
    for (std::size_t row = 0; row < rows; ++row) {
      std::string key;
      for (const std::string& column : bytes) key += column.substr(row * (column.size() / rows), column.size() / rows);
      const auto [at, added] = seen.try_emplace(key, static_cast<std::uint32_t>(seen.size()));
      if (added) fresh.push_back(static_cast<std::uint32_t>(row));
      require(ids[row] == at->second, "equal tuples have equal numbers, in the order of their first appearance");
    }
    require(first == fresh, "the rows at which numbers began");
  }
  require(nb::len(keys) == seen.size(), "as many numbers as tuples");
}

void submissions(Input& input) {
  const auto base = input.number<std::uint32_t>();
  nb::object made = fuzz::native().attr("Submissions")(base, input.flip() ? input.number<std::uint16_t>() : 0u);
  std::map<std::uint32_t, std::vector<std::uint64_t>> work;
  std::map<std::uint64_t, std::uint32_t> owner;
  const std::uint32_t mask = input.flip() ? 0x7 : UINT32_MAX;
  std::map<std::uint32_t, std::size_t> asked;
  for (int call = 0; call < 4; ++call) {
    Columns memory;
    std::vector<std::uint32_t> correlations(input.below(600));
    for (auto& c : correlations) c = input.number<std::uint32_t>() & mask;
    nb::object column = memory.column(correlations, 'I');
    if (input.flip()) {
      const auto ids = numbers<std::uint64_t>(made.attr("assign")(column));
      require(ids.size() == correlations.size(), "all work has an id");
      for (std::size_t row = 0; row < ids.size(); ++row) {
        require(owner.emplace(ids[row], correlations[row]).second, "ids do not repeat");
        require(ids[row] > base || correlations[row] >> 10 == 0, "ids are above the base");
        if (correlations[row]) work[correlations[row]].push_back(ids[row]);
      }
      require(owner.empty() || owner.rbegin()->first < nb::cast<std::uint64_t>(made.attr("end")), "all ids are before the end");
      continue;
    }
    nb::tuple lists = nb::cast<nb::tuple>(made.attr("lists")(column));
    const auto offsets = numbers<std::uint32_t>(lists[0]);
    const auto ids = numbers<std::uint64_t>(lists[1]);
    require(offsets.size() == correlations.size() + 1 && offsets.back() == ids.size(), "offsets end where the ids do");
    for (std::size_t row = 0; row < correlations.size(); ++row) {
      const auto& mine = work[correlations[row]];
      if (mine.size() > 255 && asked[correlations[row]]++ >= 16) {
        require(offsets[row] == offsets[row + 1], "what asks again and again for much work is told of none");
        continue;
      }
      require(std::equal(ids.begin() + offsets[row], ids.begin() + offsets[row + 1], mine.begin(), mine.end()),
              "a call finds all it launched");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::native();
  Input input(data, size);
  input.flip() ? keys(input) : submissions(input);
  return 0;
}
