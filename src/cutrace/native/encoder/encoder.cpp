#include "encoder.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "column.h"
#include "steps.h"
#include "view.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// A program with the columns of one call.
struct Bound {
  const Program* program = nullptr;
  std::vector<Step> steps;
  std::vector<Column> columns;
  std::vector<View> views;
  std::size_t rows = SIZE_MAX;
  std::size_t row_bound = 0;
  std::vector<const Op*> lists;

  Bound(nb::handle pair, std::size_t events) {
    auto parts = nb::cast<nb::tuple>(pair);
    if (parts.size() != 2) throw std::invalid_argument("a stream is (program, columns)");
    program = nb::cast<const Program*>(parts[0]);
    auto given = nb::cast<nb::sequence>(parts[1]);
    if (nb::len(given) < program->columns()) throw std::invalid_argument("a program has more columns than were given");
    views.reserve(nb::len(given));
    for (nb::handle item : given) {
      Column c;
      if (nb::isinstance<Blobs>(item)) {
        c.blobs = nb::cast<const Blobs*>(item);
      } else {
        c = Column(views.emplace_back(item));
      }
      columns.push_back(c);
    }
    if (columns.empty()) columns.emplace_back();  // operations without a column name the first
    row_bound = program->row_bound() + kSlack;
    for (const Op& op : program->ops()) check(op, events);
    for (const Op& op : program->ops()) steps.push_back(step(op));
    steps.emplace_back().code = steps::end;
  }

  std::uint8_t* encode(std::uint8_t* at, std::size_t row, Progress& progress) const {
    progress.opened = progress.open;
    return steps.front().code(steps.data(), at, row, progress);
  }

 private:
  Step step(const Op& op) const {
    const Column& column = columns[op.column];
    Step s;
    s.code = steps::code_of(op.kind, column.type, op.per_event);
    s.data = op.kind == OpKind::kRaw ? program->raw() + op.raw_begin : column.data;
    s.stride = column.stride;
    s.optional = op.optional;
    s.tag_size = op.tag_size;
    s.skip = op.skip;
    std::memcpy(s.tag, op.tag, sizeof s.tag);
    s.sentinel = op.sentinel;
    s.raw_size = op.raw_size;
    s.blobs = op.kind == OpKind::kBlob ? columns[op.column2].blobs : column.blobs;
    if (op.kind == OpKind::kRepeated) s.values = &columns[op.column2];
    return s;
  }

  void check(const Op& op, std::size_t events) {
    if (op.kind == OpKind::kRaw || op.kind == OpKind::kOpen || op.kind == OpKind::kClose) return;
    const Column& c = columns[op.column];
    if (op.kind == OpKind::kGiven) {
      if (!c.blobs) throw std::invalid_argument("pieces come out of a table of pieces");
      row_bound += c.blobs->longest();
      return;
    }
    if (c.blobs) throw std::invalid_argument("a table of pieces stands where a column belongs");
    if (op.kind == OpKind::kDelta && c.type != Type::kU64)
      throw std::invalid_argument("differences are taken of uint64 columns");
    if (op.kind == OpKind::kBlob && c.type != Type::kU32) throw std::invalid_argument("ids of pieces are uint32");
    std::size_t entries = c.size;
    if (op.kind == OpKind::kRepeated) {
      if (columns[op.column2].blobs) throw std::invalid_argument("a list needs a column of values");
      if (entries == 0) throw std::invalid_argument("a column of offsets has one entry more than rows");
      --entries;
      lists.push_back(&op);
    }
    if (op.kind == OpKind::kBlob) {
      const Blobs* blobs = columns[op.column2].blobs;
      if (!blobs) throw std::invalid_argument("pieces come out of a table of pieces");
      row_bound += blobs->longest();
    }
    if (op.per_event) {
      if (entries < events) throw std::invalid_argument("a column of events is too short");
    } else {
      rows = std::min(rows, entries);
    }
  }
};

// What the lists of a row take at most; offsets are checked here once, before they are used.
std::size_t list_bound(const Bound& bound, std::size_t event, std::size_t row) {
  std::size_t total = 0;
  for (const Op* op : bound.lists) {
    const Column& offsets = bound.columns[op->column];
    const std::size_t index = op->per_event ? event : row;
    const std::uint64_t begin = offsets[index], end = offsets[index + 1];
    if (begin > end || end > bound.columns[op->column2].size) throw std::out_of_range("offsets of a list are wrong");
    total += (end - begin) * (op->tag_size + kVarintMax);
  }
  return total;
}

// The events of one call.
struct Batch {
  const std::vector<Bound>& bounds;
  const std::uint32_t* offset;
  const std::uint32_t* piece;
  std::uint64_t* last;
  std::size_t segments;
  const std::uint8_t* selector;
  const std::uint32_t* row_of;
};

// Encodes from `event` on until all are done, or the next might not fit; moves `event`, returns the end of the bytes.
std::uint8_t* encode_events(const Batch& batch, std::size_t& event, std::uint8_t* cursor, const std::uint8_t* end) {
  Progress progress;
  for (std::size_t segment = 0; segment < batch.segments; ++segment) {
    progress.piece = batch.piece[segment];
    progress.last = batch.last[segment];
    for (; event < batch.offset[segment + 1]; ++event) {
      const std::size_t stream = batch.selector ? batch.selector[event] : 0;
      if (stream >= batch.bounds.size()) throw std::out_of_range("no stream " + std::to_string(stream));
      const Bound& bound = batch.bounds[stream];
      const std::size_t row = batch.row_of ? batch.row_of[event] : event;
      if (row >= bound.rows && bound.rows != SIZE_MAX) throw std::out_of_range("no row " + std::to_string(row));
      std::size_t need = bound.row_bound;
      if (!bound.lists.empty()) need += list_bound(bound, event, row);
      if (static_cast<std::size_t>(end - cursor) < need) {
        batch.last[segment] = progress.last;
        return cursor;
      }
      progress.event = event;
      cursor = bound.encode(cursor, row, progress);
    }
    batch.last[segment] = progress.last;
  }
  return cursor;
}

template <typename T>
const T* contiguous(const View& view, std::size_t least, const char* what) {
  if (view.item_size() != sizeof(T) || (view.stride() != sizeof(T) && view.size() > 1))
    throw std::invalid_argument(std::string(what) + ": a contiguous array of another type is needed");
  if (view.size() < least) throw std::invalid_argument(std::string(what) + ": too short");
  return reinterpret_cast<const T*>(view.data());
}

nb::tuple encode(nb::handle out, std::size_t at, nb::sequence streams, nb::handle offsets, nb::handle pieces,
                 nb::handle lasts, std::size_t first_event, nb::object which, nb::object rows) {
  View target(out, true), offset_view(offsets), piece_view(pieces), last_view(lasts, true);
  const std::size_t segments = piece_view.size();
  const auto* offset = contiguous<std::uint32_t>(offset_view, segments + 1, "offsets");
  const auto* piece = contiguous<std::uint32_t>(piece_view, segments, "pieces");
  contiguous<std::uint64_t>(last_view, segments, "lasts");
  auto* last = reinterpret_cast<std::uint64_t*>(last_view.mutable_data());
  for (std::size_t i = 0; i < segments; ++i)
    if (offset[i] > offset[i + 1]) throw std::invalid_argument("offsets rise");
  const std::size_t stop = segments ? offset[segments] : 0;

  std::vector<Bound> bounds;
  bounds.reserve(nb::len(streams));
  for (nb::handle stream : streams) bounds.emplace_back(stream, stop);
  if (bounds.empty()) throw std::invalid_argument("nothing to encode with");
  for (const Bound& bound : bounds)
    for (const Op& op : bound.program->ops())
      if (op.kind == OpKind::kGiven)
        for (std::size_t i = 0; i < segments; ++i)
          if (piece[i] >= bound.columns[op.column].blobs->size()) throw std::out_of_range("no such piece");
  contiguous<std::uint8_t>(target, at, "out");
  std::optional<View> selector_view, row_view;
  const std::uint8_t* selector = nullptr;
  const std::uint32_t* row_of = nullptr;
  if (!which.is_none()) selector = contiguous<std::uint8_t>(selector_view.emplace(which), stop, "which");
  if (!rows.is_none()) row_of = contiguous<std::uint32_t>(row_view.emplace(rows), stop, "rows");

  Batch batch{bounds, offset, piece, last, segments, selector, row_of};
  std::uint8_t* const begin = target.mutable_data();
  std::size_t event = first_event;
  std::uint8_t* cursor;
  {
    nb::gil_scoped_release release;
    cursor = encode_events(batch, event, begin + at, begin + target.size());
  }
  return nb::make_tuple(static_cast<std::size_t>(cursor - begin), event);
}

template <typename T>
T entry(const nb::tuple& t, std::size_t i) {
  return nb::cast<T>(t[i]);
}

}  // namespace

std::uint32_t Blobs::add(nb::bytes piece) {
  const auto* p = static_cast<const std::uint8_t*>(piece.data());
  data_.resize(data_.size() - kSlack);
  data_.insert(data_.end(), p, p + piece.size());
  begins_.push_back(data_.size());
  data_.resize(data_.size() + kSlack);
  longest_ = std::max(longest_, piece.size());
  return static_cast<std::uint32_t>(size() - 1);
}

Program::Program(nb::list ops) {
  std::size_t depth = 0;
  for (nb::handle item : ops) {
    auto t = nb::cast<nb::tuple>(item);
    if (t.size() != 9) throw std::invalid_argument("an operation has nine parts");
    Op op;
    const auto kind = entry<unsigned>(t, 0);
    if (kind > static_cast<unsigned>(OpKind::kMember)) throw std::invalid_argument("no such operation");
    op.kind = static_cast<OpKind>(kind);
    auto tag = entry<nb::bytes>(t, 1);
    if (tag.size() > sizeof op.tag) throw std::invalid_argument("a tag has at most eight bytes");
    op.tag_size = static_cast<std::uint8_t>(tag.size());
    std::memcpy(op.tag, tag.data(), tag.size());
    op.column = entry<std::uint32_t>(t, 2);
    op.column2 = entry<std::uint32_t>(t, 3);
    op.optional = entry<bool>(t, 4);
    op.per_event = entry<bool>(t, 5);
    op.sentinel = entry<std::uint64_t>(t, 6);
    op.skip = entry<std::uint32_t>(t, 7);
    auto raw = entry<nb::bytes>(t, 8);
    op.raw_begin = static_cast<std::uint32_t>(raw_.size());
    op.raw_size = static_cast<std::uint32_t>(raw.size());
    const auto* p = static_cast<const std::uint8_t*>(raw.data());
    raw_.insert(raw_.end(), p, p + raw.size());
    row_bound_ += raw.size() + tag.size() + kVarintMax + kLengthMax;
    if (op.kind != OpKind::kRaw && op.kind != OpKind::kOpen && op.kind != OpKind::kClose)
      columns_ = std::max(columns_, std::size_t{op.column} + 1);
    if (op.kind == OpKind::kBlob || op.kind == OpKind::kRepeated)
      columns_ = std::max(columns_, std::size_t{op.column2} + 1);
    if (op.kind == OpKind::kMember && op.skip >= op.tag_size) throw std::invalid_argument("a length lies in the tag");
    if (op.kind == OpKind::kOpen && ++depth > kDepthMax) throw std::invalid_argument("messages are nested too deep");
    if (op.kind == OpKind::kClose && depth-- == 0) throw std::invalid_argument("a message is closed twice");
    ops_.push_back(op);
  }
  if (depth) throw std::invalid_argument("a message is not closed");
  raw_.resize(raw_.size() + kSlack);
  // What a condition skips must leave messages whole.
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].kind != OpKind::kUnless) continue;
    if (ops_[i].skip > ops_.size() - i - 1) throw std::invalid_argument("a condition reaches behind the program");
    std::ptrdiff_t level = 0;
    for (std::size_t j = i + 1; j <= i + ops_[i].skip; ++j) {
      if (ops_[j].kind == OpKind::kOpen) ++level;
      if (ops_[j].kind == OpKind::kClose && --level < 0) throw std::invalid_argument("a condition cuts a message");
    }
    if (level) throw std::invalid_argument("a condition cuts a message");
  }
}

void register_encoder(nb::module_& m) {
  nb::class_<Blobs>(m, "Blobs", "Encoded pieces by id, for the operation that copies a piece into a row.")
      .def(nb::init<>())
      .def("add", &Blobs::add, nb::arg("piece"), "Append a piece; its id.")
      .def("__len__", &Blobs::size);
  nb::class_<Program>(m, "Program", "A protobuf message as a list of operations on columns.")
      .def(nb::init<nb::list>(), nb::arg("ops"));
  m.def("encode", &encode, nb::arg("out"), nb::arg("at"), nb::arg("streams"), nb::arg("offsets"), nb::arg("pieces"),
        nb::arg("lasts"), nb::arg("first_event") = 0, nb::arg("which") = nb::none(), nb::arg("rows") = nb::none(),
        "Encode events into the byte array ``out`` from offset ``at``.\n\n"
        "``streams`` is a list of (Program, columns). Event i runs program ``which[i]`` on row ``rows[i]`` of its\n"
        "columns (the first program and row i where these are None). Events come in segments: segment s has those\n"
        "from ``offsets[s]`` to ``offsets[s + 1]`` (uint32), piece number ``pieces[s]`` for the operation that copies\n"
        "what a segment has in common, and ``lasts[s]`` (uint64, updated) as the value that differences start from.\n"
        "Begins at ``first_event`` and stops early when the next event might not fit into ``out``.\n"
        "Returns (offset behind the last byte, event to go on from).");
}

}  // namespace cutrace
