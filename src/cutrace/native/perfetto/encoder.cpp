#include "perfetto/encoder.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "common/column.h"
#include "perfetto/steps.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// The lists of an operation: those of a row are the values from its offset to the next one. `unit` is the largest size of a value.
struct Lists {
  Column<std::uint32_t> offsets;
  std::size_t values, unit;
  bool per_event;
};

// A program with the columns of one call.
struct Bound {
  const Program* program;
  std::vector<AnyColumn> columns;
  std::vector<Step> steps;
  std::vector<std::size_t> given_steps;
  std::size_t rows = SIZE_MAX;  // of the shortest column; this value without a column
  std::size_t row_bound;
  std::vector<Lists> lists;

  Bound(const Program* with, std::vector<AnyColumn> given, std::size_t events)
      : program(with), columns(std::move(given)), row_bound(program->row_bound() + kSlack) {
    if (columns.size() < program->columns()) throw std::invalid_argument("the program needs more columns");
    if (columns.empty()) columns.emplace_back();  // operations without a column refer to the first one
    for (const Op& op : program->ops()) check(op, events);
    const std::vector<Op>& ops = program->ops();
    for (const Op& op : ops) {
      if (op.kind == OpKind::kGiven) given_steps.push_back(steps.size());
      steps.push_back(step(op));
    }
    for (std::size_t i = 0; i + 2 < ops.size(); ++i)
      if (ops[i].kind == OpKind::kOpen && ops[i + 1].kind == OpKind::kVarint && !ops[i + 1].optional && ops[i + 2].kind == OpKind::kClose)
        steps[i].code = steps::code_of(OpKind::kMessage, columns[ops[i + 1].column].type, ops[i + 1].per_event);
    steps.push_back({{}, steps::end});
  }

  // Selects the piece of all events of a segment.
  void give(std::size_t piece) {
    for (const std::size_t at : given_steps) {
      Step& given = steps[at];
      given.data = given.blobs->begin(piece);
      given.raw_size = static_cast<std::uint32_t>(given.blobs->length(piece));
    }
  }

  std::uint8_t* encode(std::uint8_t* at, std::size_t row, Progress& progress) const {
    progress.opened = progress.open;
    return steps.front().code(steps.data(), at, row, progress);
  }

 private:
  Step step(const Op& op) const {
    const AnyColumn& column = columns[op.column];
    const AnyColumn* const second = op.kind == OpKind::kBlob || op.kind == OpKind::kRepeated ? &columns[op.column2] : nullptr;
    Step s{op, steps::code_of(op.kind, column.type, op.per_event), column.data, column.stride, column.blobs, second};
    if (op.kind == OpKind::kRaw) s.data = program->raw() + op.raw_begin;
    if (op.kind == OpKind::kBlob) {
      s.blobs = second->blobs;
      s.raw_size = static_cast<std::uint32_t>(s.blobs->size());  // other threads may add pieces meanwhile
    }
    return s;
  }

  void check(const Op& op, std::size_t events) {
    if (op.kind == OpKind::kRaw || op.kind == OpKind::kOpen || op.kind == OpKind::kClose) return;
    const AnyColumn& c = columns[op.column];
    if (op.kind == OpKind::kGiven) {
      if (!c.blobs) throw std::invalid_argument("this operation needs a table of pieces");
      row_bound += c.blobs->longest();
      return;
    }
    if (c.blobs) throw std::invalid_argument("this operation needs a column, not a table of pieces");
    if (op.kind == OpKind::kDelta && c.type != Type::kU64)
      throw std::invalid_argument("differences need a uint64 column");
    if (op.kind == OpKind::kBlob && c.type != Type::kU32) throw std::invalid_argument("ids of pieces need a uint32 column");
    if (op.kind >= OpKind::kInteger && (c.type == Type::kF32 || (c.type == Type::kF64) != (op.kind == OpKind::kReal)))
      throw std::invalid_argument("text needs a column of integers or doubles");
    std::size_t entries = c.size;
    if (op.kind == OpKind::kRepeated) {
      if (columns[op.column2].blobs) throw std::invalid_argument("a list needs a column of values");
      if (entries == 0) throw std::invalid_argument("a column of offsets needs one entry more than rows");
      if (c.type != Type::kU32) throw std::invalid_argument("offsets of lists need a uint32 column");
      --entries;
      lists.push_back({c.as<std::uint32_t>(), columns[op.column2].size, op.tag_size + kVarintMax, op.per_event});
    }
    if (op.kind == OpKind::kBlob) {
      const Blobs* blobs = columns[op.column2].blobs;
      if (!blobs) throw std::invalid_argument("this operation needs a table of pieces");
      row_bound += blobs->longest();
    }
    if (op.per_event) {
      if (entries < events) throw std::invalid_argument("a column of events is too short");
    } else {
      rows = std::min(rows, entries);
    }
  }
};

// The largest size of the lists of a row. Checks offsets before they are used.
std::size_t list_bound(const Bound& bound, std::size_t event, std::size_t row) {
  std::size_t total = 0;
  for (const Lists& lists : bound.lists) {
    const std::size_t index = lists.per_event ? event : row;
    const std::uint32_t begin = lists.offsets[index], end = lists.offsets[index + 1];
    if (begin > end || end > lists.values) throw std::out_of_range("the offsets of a list are out of range");
    total += (end - begin) * lists.unit;
  }
  return total;
}

// The largest size of a row, computed from the row's pieces. Other threads add pieces meanwhile, so a bound from the longest
// piece would make the division of the output depend on them.
std::size_t own_bound(const Bound& bound, std::size_t event, std::size_t row, std::size_t piece) {
  std::size_t total = bound.program->row_bound() + kSlack;
  for (const Op& op : bound.program->ops()) {
    const AnyColumn& column = bound.columns[op.column];
    if (op.kind == OpKind::kGiven) total += column.blobs->length(piece);
    if (op.kind != OpKind::kBlob) continue;
    const Blobs& blobs = *bound.columns[op.column2].blobs;
    const std::uint64_t id = column[op.per_event ? event : row];
    if (id < blobs.size()) total += blobs.length(id);
  }
  return total;
}

nb::tuple encode(Writable<std::uint8_t> out, std::size_t at,
                 std::vector<std::pair<const Program*, std::vector<AnyColumn>>> streams, Column<std::uint32_t> offsets,
                 Column<std::uint32_t> pieces, Writable<std::uint64_t> lasts, std::size_t first_event,
                 std::optional<Column<std::uint16_t>> which, std::optional<Column<std::uint32_t>> rows) {
  const std::size_t segments = pieces.size;
  if (offsets.size != segments + 1 || lasts.size != segments)
    throw std::invalid_argument("each segment needs a piece, a last value and an offset, plus one final offset");
  for (std::size_t i = 0; i < segments; ++i)
    if (offsets[i] > offsets[i + 1]) throw std::invalid_argument("offsets must not decrease");
  const std::size_t stop = offsets[segments];
  if ((which && which->size < stop) || (rows && rows->size < stop))
    throw std::invalid_argument("a column of events is too short");
  if ((out.stride != 1 && out.size > 1) || at > out.size) throw std::invalid_argument("the output offset is out of range");

  std::vector<Bound> bounds;
  bounds.reserve(streams.size());
  for (auto& [program, columns] : streams) bounds.emplace_back(program, std::move(columns), stop);
  if (bounds.empty()) throw std::invalid_argument("at least one program is needed");
  for (const Bound& bound : bounds)
    for (const Op& op : bound.program->ops())
      if (op.kind == OpKind::kGiven)
        for (std::size_t i = 0; i < segments; ++i)
          if (pieces[i] >= bound.columns[op.column].blobs->size()) throw std::out_of_range("no piece with this id");

  auto* const begin = const_cast<std::uint8_t*>(out.data);
  std::size_t event = first_event;
  const auto encode_events = [&](std::uint8_t* cursor) {
    Progress progress;
    for (std::size_t segment = 0; segment < segments; ++segment) {
      const std::size_t piece = pieces[segment], end = offsets[segment + 1];
      for (Bound& bound : bounds) bound.give(piece);
      progress.last = lasts[segment];
      for (; event < end; ++event) {
        const std::size_t stream = which ? (*which)[event] : 0;
        if (stream >= bounds.size()) throw std::out_of_range("no stream " + std::to_string(stream));
        const Bound& bound = bounds[stream];
        const std::size_t row = rows ? (*rows)[event] : event;
        if (row >= bound.rows) throw std::out_of_range("no row " + std::to_string(row));
        const std::size_t lists = bound.lists.empty() ? 0 : list_bound(bound, event, row);
        const auto room = static_cast<std::size_t>(begin + out.size - cursor);
        if (room < bound.row_bound + lists && room < own_bound(bound, event, row, piece) + lists) {
          lasts.set(segment, progress.last);
          return cursor;
        }
        progress.event = event;
        cursor = bound.encode(cursor, row, progress);
      }
      lasts.set(segment, progress.last);
    }
    return cursor;
  };
  std::uint8_t* cursor;
  {
    nb::gil_scoped_release release;
    cursor = encode_events(begin + at);
  }
  return nb::make_tuple(static_cast<std::size_t>(cursor - begin), event);
}

using Stream = std::pair<const Program*, std::vector<AnyColumn>>;

// Calls put() with the bytes of each row.
template <typename Put>
void each_row(Stream stream, std::size_t rows, Put put) {
  for (const Op& op : stream.first->ops())
    if (op.kind == OpKind::kGiven) throw std::invalid_argument("a given piece needs a segment");
  const Bound bound(stream.first, std::move(stream.second), rows);
  if (rows > bound.rows) throw std::out_of_range("no row " + std::to_string(bound.rows));
  std::vector<std::uint8_t> buffer;
  Progress progress{};
  for (std::size_t row = 0; row < rows; ++row) {
    buffer.resize(std::max(buffer.size(), bound.row_bound + list_bound(bound, row, row)));
    progress.event = row;
    const std::uint8_t* const end = bound.encode(buffer.data(), row, progress);
    put(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  }
}

nb::bytes encode_rows(Stream stream, std::size_t rows) {
  std::string out;
  each_row(std::move(stream), rows, [&](const std::uint8_t* row, std::size_t size) {
    out.append(reinterpret_cast<const char*>(row), size);
  });
  return nb::bytes(out.data(), out.size());
}

void encode_pieces(Blobs& blobs, Stream stream, std::size_t rows) {
  for (const AnyColumn& column : stream.second)
    if (column.blobs == &blobs) throw std::invalid_argument("pieces cannot use pieces of their own table");
  each_row(std::move(stream), rows, [&](const std::uint8_t* row, std::size_t size) { blobs.add(row, size); });
}

}  // namespace

Program::Program(const std::vector<Operation>& ops) {
  std::size_t depth = 0;
  for (const auto& [kind, tag, column, column2, optional, per_event, sentinel, skip, raw] : ops) {
    if (kind > static_cast<unsigned>(OpKind::kReal)) throw std::invalid_argument("unknown operation");
    Op op{static_cast<OpKind>(kind), optional, per_event, static_cast<std::uint8_t>(tag.size()), {}, column, column2, skip,
          sentinel, 0, 0};
    if (tag.size() > sizeof op.tag) throw std::invalid_argument("a tag has at most eight bytes");
    std::memcpy(op.tag, tag.data(), tag.size());
    op.raw_begin = static_cast<std::uint32_t>(raw_.size());
    op.raw_size = static_cast<std::uint32_t>(raw.size());
    const auto* p = static_cast<const std::uint8_t*>(raw.data());
    raw_.insert(raw_.end(), p, p + raw.size());
    row_bound_ += raw.size() + tag.size() + std::max(kVarintMax + kLengthMax, kTextMax);
    if (op.kind != OpKind::kRaw && op.kind != OpKind::kOpen && op.kind != OpKind::kClose)
      columns_ = std::max(columns_, std::size_t{op.column} + 1);
    if (op.kind == OpKind::kBlob || op.kind == OpKind::kRepeated)
      columns_ = std::max(columns_, std::size_t{op.column2} + 1);
    if (op.kind == OpKind::kOpen && ++depth > kDepthMax) throw std::invalid_argument("messages are nested too deep");
    if (op.kind == OpKind::kClose && depth-- == 0) throw std::invalid_argument("a message is closed twice");
    ops_.push_back(op);
  }
  if (depth) throw std::invalid_argument("a message is not closed");
  raw_.resize(raw_.size() + kSlack);
  // A condition must skip whole messages.
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].kind != OpKind::kUnless) continue;
    if (ops_[i].skip > ops_.size() - i - 1) throw std::invalid_argument("a condition reaches beyond the program");
    std::ptrdiff_t level = 0;
    for (std::size_t j = i + 1; j <= i + ops_[i].skip; ++j) {
      if (ops_[j].kind == OpKind::kOpen) ++level;
      if (ops_[j].kind == OpKind::kClose && --level < 0) throw std::invalid_argument("a condition splits a message");
    }
    if (level) throw std::invalid_argument("a condition splits a message");
  }
}

void bind_encoder(nb::module_& m) {
  nb::class_<Program>(m, "Program", "A protobuf message, or a line of text, as a list of operations on columns.")
      .def(nb::init<const std::vector<Program::Operation>&>(), nb::arg("ops"));
  m.def("encode", &encode, nb::arg("out"), nb::arg("at"), nb::arg("streams"), nb::arg("offsets"), nb::arg("pieces"),
        nb::arg("lasts"), nb::arg("first_event") = 0, nb::arg("which") = nb::none(), nb::arg("rows") = nb::none(),
        "Encode events into the byte array ``out`` from offset ``at``.\n\n"
        "``streams`` is a list of (Program, columns). Event i runs program ``which[i]`` on row ``rows[i]`` of its columns.\n"
        "Without ``which`` and ``rows``, event i runs the first program on row i. Events are divided into segments. Segment s has the\n"
        "events from ``offsets[s]`` to ``offsets[s + 1]`` (uint32). Its common bytes are piece number ``pieces[s]``. Differences start\n"
        "from ``lasts[s]`` (uint64, updated). Starts at ``first_event`` and stops before an event that might not fit into ``out``.\n"
        "Returns (offset after the last byte, next event).");
  m.def("encode_rows", &encode_rows, nb::arg("stream"), nb::arg("rows"),
        "The bytes of rows 0 to ``rows``, encoded by (Program, columns).");
  m.def("encode_pieces", &encode_pieces, nb::arg("blobs"), nb::arg("stream"), nb::arg("rows"),
        "Append a piece to ``blobs`` for each of the rows 0 to ``rows``, encoded by (Program, columns).");
}

}  // namespace cutrace
