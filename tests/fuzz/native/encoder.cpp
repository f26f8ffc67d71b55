// The encoder: programs of any operations on columns of any types and sizes. It either refuses a program, or writes
// correct output inside its memory.
#include "python.h"

namespace nb = nanobind;
using fuzz::Columns;
using fuzz::Input;
using fuzz::numbers;
using fuzz::require;

namespace {

enum Kind : unsigned { kRaw, kVarint, kFixed64, kDelta, kBlob, kRepeated, kOpen, kClose, kUnless, kGiven, kInteger, kMicroseconds, kReal };
constexpr char kCodes[] = "BHIQbhiqfd";

nb::object bytes(Input& input, std::size_t most) {
  const std::string text = input.text(most);
  return nb::bytes(text.data(), text.size());
}

nb::tuple operation(unsigned kind, nb::object tag, std::size_t column, std::size_t column2, bool optional, bool per_event,
                    std::uint64_t sentinel, std::size_t skip, nb::object raw) {
  return nb::make_tuple(kind, tag, column, column2, optional, per_event, sentinel, skip, raw);
}

// Usually makes a consistent program: open messages are closed, and columns exist.
nb::list program(Input& input, std::size_t columns, std::size_t blobs) {
  nb::list ops;
  std::size_t depth = 0;
  const std::size_t count = input.below(16);
  const auto any_column = [&] { return input.below(columns + (input.below(64) == 0)); };
  for (std::size_t i = 0; i < count; ++i) {
    unsigned kind = input.below(13);
    if (kind == kClose && depth == 0 && input.below(64)) kind = kOpen;
    depth += kind == kOpen;
    depth -= kind == kClose && depth > 0;
    const std::size_t column = kind == kGiven ? blobs : any_column(), column2 = kind == kBlob ? blobs : any_column();
    nb::object tag = bytes(input, 1 + input.below(9));
    const bool optional = input.flip(), per_event = input.flip();
    const std::uint64_t sentinel = input.flip() ? input.number<std::uint64_t>() : input.below(4);
    nb::object raw = kind == kRaw ? bytes(input, input.below(80)) : nb::object(nb::bytes("", 0));
    ops.append(operation(kind, tag, column, column2, optional, per_event, sentinel, input.below(4), raw));
  }
  for (; depth; --depth) ops.append(operation(kClose, nb::bytes("", 0), 0, 0, false, false, 0, 0, nb::bytes("", 0)));
  return ops;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nb::object& native = fuzz::native();
  Input input(data, size);
  Columns memory;
  const std::size_t rows = input.below(40);
  nb::object blobs = native.attr("Blobs")();
  for (std::size_t i = input.below(5); i > 0; --i) blobs.attr("add")(bytes(input, input.below(100)));

  nb::list streams;
  const std::size_t stream_count = 1 + input.below(2);
  for (std::size_t s = 0; s < stream_count; ++s) {
    nb::list columns;
    const std::size_t count = 1 + input.below(4);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t length = input.below(8) ? rows + 1 : input.below(50);
      if (input.flip()) {  // ascending numbers, like ids, offsets and times
        std::vector<std::uint64_t> wide(length);
        std::vector<std::uint32_t> narrow(length);
        std::uint64_t at = 0;
        for (std::size_t row = 0; row < length; ++row) {
          wide[row] = at;
          narrow[row] = static_cast<std::uint32_t>(at);
          at += input.below(3);
        }
        columns.append(input.flip() ? memory.column(wide, 'Q') : memory.column(narrow, 'I'));
      } else {
        columns.append(memory.column(input, kCodes[input.below(10)], length, 1 + input.below(3)));
      }
    }
    columns.append(blobs);
    nb::list ops = program(input, count, count);
    nb::object made;
    if (!fuzz::accepted([&] { made = native.attr("Program")(ops); })) return 0;
    streams.append(nb::make_tuple(made, columns));
  }

  std::vector<std::uint32_t> offsets{0}, pieces;
  for (std::size_t i = input.below(4); i > 0; --i) {
    offsets.push_back(static_cast<std::uint32_t>(offsets.back() + input.below(rows + 2)));
    pieces.push_back(static_cast<std::uint32_t>(input.below(nb::len(blobs) + (input.below(16) == 0))));
  }
  const std::size_t events = offsets.back();
  nb::object which = input.flip() ? memory.column(input, 'H', events) : nb::object(nb::none());
  nb::object row_of = nb::none();
  if (input.flip()) {
    std::vector<std::uint32_t> chosen(events);
    for (auto& row : chosen) row = static_cast<std::uint32_t>(input.below(rows + 2));
    row_of = memory.column(chosen, 'I');
  }
  std::vector<std::uint64_t> lasts(pieces.size());
  for (auto& last : lasts) last = input.below(3);
  const std::size_t room = input.flip() ? input.below(4000) : 65536, at = input.below(64), first = input.below(4);
  Input nothing(nullptr, 0);
  nb::object out = memory.column(nothing, 'B', room, 1, true);
  nb::object offset_column = memory.column(offsets, 'I'), piece_column = memory.column(pieces, 'I');
  nb::object last_column = memory.column(lasts, 'Q', true);
  fuzz::accepted([&] {
    nb::tuple done = nb::cast<nb::tuple>(
        native.attr("encode")(out, at, streams, offset_column, piece_column, last_column, first, which, row_of));
    const auto end = nb::cast<std::size_t>(done[0]), event = nb::cast<std::size_t>(done[1]);
    require(at <= end && end <= room, "what was written lies in the memory given");
    require(first <= event && (event <= events || event == first), "events are done one after the other");
  });
  return 0;
}
