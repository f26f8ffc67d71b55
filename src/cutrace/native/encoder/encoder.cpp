#include "encoder.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "view.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

constexpr std::size_t kVarintMax = 10;
constexpr std::size_t kLengthMax = 5;
constexpr std::size_t kDepthMax = 16;

inline std::uint8_t* put_varint(std::uint8_t* at, std::uint64_t value) {
  while (value >= 0x80) {
    *at++ = static_cast<std::uint8_t>(value | 0x80);
    value >>= 7;
  }
  *at++ = static_cast<std::uint8_t>(value);
  return at;
}

// Tags are one or two bytes nearly always; a fixed-size copy of their room is faster than a loop.
inline std::uint8_t* put_tag(std::uint8_t* at, const Op& op) {
  std::memcpy(at, op.tag, 8);
  if (op.tag_size > 8) std::memcpy(at + 8, op.tag + 8, 2);
  return at + op.tag_size;
}

// Where put_tag and put_piece may write behind what they put.
constexpr std::size_t kSlack = 16;

inline std::uint8_t* put_piece(std::uint8_t* at, const std::uint8_t* piece, std::size_t size) {
  std::memcpy(at, piece, size);
  return at + size;
}

// Fills in the length of a nested message for which one byte was left open.
inline std::uint8_t* close_message(std::uint8_t* body, std::uint8_t* end) {
  const auto length = static_cast<std::uint64_t>(end - body);
  if (length < 0x80) [[likely]] {
    body[-1] = static_cast<std::uint8_t>(length);
    return end;
  }
  std::uint8_t coded[kVarintMax];
  const auto size = put_varint(coded, length) - coded;
  std::memmove(body - 1 + size, body, length);
  std::memcpy(body - 1, coded, static_cast<std::size_t>(size));
  return end + size - 1;
}

struct Column {
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;
  Type type = Type::kU64;
  std::size_t size = 0;
  const Blobs* blobs = nullptr;

  std::uint64_t at(std::size_t row) const {
    return View::load(data + static_cast<std::ptrdiff_t>(row) * stride, type);
  }
};

// A program with the columns of one call.
struct Bound {
  const Program* program = nullptr;
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
        const View& v = views.emplace_back(item);
        c = {v.data(), v.stride(), v.type(), v.size(), nullptr};
      }
      columns.push_back(c);
    }
    if (columns.empty()) columns.emplace_back();  // operations without a column name the first
    row_bound = program->row_bound() + kSlack;
    for (const Op& op : program->ops()) check(op, events);
  }

 private:
  void check(const Op& op, std::size_t events) {
    if (op.kind == OpKind::kRaw || op.kind == OpKind::kOpen || op.kind == OpKind::kClose) return;
    const Column& c = columns[op.column];
    if (c.blobs) throw std::invalid_argument("a table of pieces stands where a column belongs");
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

std::uint8_t* run(const Bound& bound, std::size_t event, std::size_t row, std::uint64_t& last, std::uint8_t* at) {
  std::uint8_t* open[kDepthMax];
  std::size_t depth = 0;
  const std::vector<Op>& ops = bound.program->ops();
  const Column* const columns = bound.columns.data();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const Column& c = columns[op.column];
    const std::size_t index = op.per_event ? event : row;
    switch (op.kind) {
      case OpKind::kRaw:
        at = put_piece(at, bound.program->raw() + op.raw_begin, op.raw_size);
        break;
      case OpKind::kVarint: {
        const std::uint64_t value = c.at(index);
        if (op.optional && value == op.sentinel) break;
        at = put_varint(put_tag(at, op), value);
        break;
      }
      case OpKind::kZigzag: {
        const std::uint64_t value = c.at(index);
        if (op.optional && value == op.sentinel) break;
        const std::uint64_t sign = value >> 63 ? ~std::uint64_t{0} : 0;
        at = put_varint(put_tag(at, op), value << 1 ^ sign);
        break;
      }
      case OpKind::kFixed32: {
        const std::uint64_t value = c.at(index);
        if (op.optional && value == op.sentinel) break;
        at = put_tag(at, op);
        const auto narrow = static_cast<std::uint32_t>(value);
        std::memcpy(at, &narrow, sizeof narrow);
        at += sizeof narrow;
        break;
      }
      case OpKind::kFixed64: {
        const std::uint64_t value = c.at(index);
        if (op.optional && value == op.sentinel) break;
        at = put_tag(at, op);
        std::memcpy(at, &value, sizeof value);
        at += sizeof value;
        break;
      }
      case OpKind::kDelta: {
        const std::uint64_t value = c.at(index);
        if (value < last) throw std::invalid_argument("times of one sequence must not go back");
        at = put_varint(put_tag(at, op), value - last);
        last = value;
        break;
      }
      case OpKind::kBlob: {
        const std::uint64_t id = c.at(index);
        if (op.optional && id == op.sentinel) break;
        const Blobs& blobs = *bound.columns[op.column2].blobs;
        if (id >= blobs.size()) throw std::out_of_range("no piece with id " + std::to_string(id));
        at = put_piece(at, blobs.begin(id), blobs.length(id));
        break;
      }
      case OpKind::kRepeated: {
        const Column& values = bound.columns[op.column2];
        const std::uint64_t end = c.at(index + 1);
        for (std::uint64_t j = c.at(index); j < end; ++j) at = put_varint(put_tag(at, op), values.at(j));
        break;
      }
      case OpKind::kOpen:
        at = put_tag(at, op) + 1;
        open[depth++] = at;
        break;
      case OpKind::kClose:
        at = close_message(open[--depth], at);
        break;
      case OpKind::kUnless:
        if (c.at(index) == op.sentinel) i += op.skip;
        break;
    }
  }
  return at;
}

// What the lists of a row take at most; offsets are checked here once, before they are used.
std::size_t list_bound(const Bound& bound, std::size_t event, std::size_t row) {
  std::size_t total = 0;
  for (const Op* op : bound.lists) {
    const Column& offsets = bound.columns[op->column];
    const std::size_t index = op->per_event ? event : row;
    const std::uint64_t begin = offsets.at(index), end = offsets.at(index + 1);
    if (begin > end || end > bound.columns[op->column2].size) throw std::out_of_range("offsets of a list are wrong");
    total += (end - begin) * (op->tag_size + kVarintMax);
  }
  return total;
}

nb::tuple encode(nb::handle out, std::size_t at, nb::sequence streams, std::size_t events, nb::object which,
                 nb::object rows, std::uint64_t last, std::size_t first_event) {
  std::vector<Bound> bounds;
  bounds.reserve(nb::len(streams));
  const std::size_t stop = first_event + events;
  for (nb::handle stream : streams) bounds.emplace_back(stream, stop);
  if (bounds.empty()) throw std::invalid_argument("nothing to encode with");
  View target(out, true);
  if (target.stride() != 1) throw std::invalid_argument("the output is a contiguous array of bytes");
  std::optional<View> selector, row_of;
  if (!which.is_none()) selector.emplace(which);
  if (!rows.is_none()) row_of.emplace(rows);
  if ((selector && selector->size() < stop) || (row_of && row_of->size() < stop))
    throw std::invalid_argument("fewer events than announced");
  if (at > target.size()) throw std::invalid_argument("the output begins behind its end");

  nb::gil_scoped_release release;
  std::uint8_t* const begin = target.mutable_data();
  std::uint8_t* const end = begin + target.size();
  std::uint8_t* cursor = begin + at;
  std::size_t event = first_event;
  for (; event < stop; ++event) {
    const std::size_t stream = selector ? (*selector)[event] : 0;
    if (stream >= bounds.size()) throw std::out_of_range("no stream " + std::to_string(stream));
    const Bound& bound = bounds[stream];
    const std::size_t row = row_of ? (*row_of)[event] : event;
    if (row >= bound.rows && bound.rows != SIZE_MAX) throw std::out_of_range("no row " + std::to_string(row));
    std::size_t need = bound.row_bound;
    if (!bound.lists.empty()) need += list_bound(bound, event, row);
    if (static_cast<std::size_t>(end - cursor) < need) break;
    cursor = run(bound, event, row, last, cursor);
  }
  const auto written = static_cast<std::size_t>(cursor - begin);
  const std::size_t done = event - first_event;
  nb::gil_scoped_acquire acquire;
  return nb::make_tuple(written, done, last);
}

template <typename T>
T entry(const nb::tuple& t, std::size_t i) {
  return nb::cast<T>(t[i]);
}

}  // namespace

std::uint32_t Blobs::add(nb::bytes piece) {
  const auto* p = static_cast<const std::uint8_t*>(piece.data());
  data_.insert(data_.end(), p, p + piece.size());
  ends_.push_back(data_.size());
  longest_ = std::max(longest_, piece.size());
  return static_cast<std::uint32_t>(ends_.size() - 1);
}

Program::Program(nb::list ops) {
  std::size_t depth = 0;
  for (nb::handle item : ops) {
    auto t = nb::cast<nb::tuple>(item);
    if (t.size() != 9) throw std::invalid_argument("an operation has nine parts");
    Op op;
    const auto kind = entry<unsigned>(t, 0);
    if (kind > static_cast<unsigned>(OpKind::kUnless)) throw std::invalid_argument("no such operation");
    op.kind = static_cast<OpKind>(kind);
    auto tag = entry<nb::bytes>(t, 1);
    if (tag.size() > sizeof op.tag) throw std::invalid_argument("a tag has at most ten bytes");
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
    if (op.kind == OpKind::kOpen && ++depth > kDepthMax) throw std::invalid_argument("messages are nested too deep");
    if (op.kind == OpKind::kClose && depth-- == 0) throw std::invalid_argument("a message is closed twice");
    ops_.push_back(op);
  }
  if (depth) throw std::invalid_argument("a message is not closed");
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
  m.def("encode", &encode, nb::arg("out"), nb::arg("at"), nb::arg("streams"), nb::arg("events"),
        nb::arg("which") = nb::none(), nb::arg("rows") = nb::none(), nb::arg("last") = 0, nb::arg("first_event") = 0,
        "Encode events into the byte array ``out`` from offset ``at``.\n\n"
        "``streams`` is a list of (Program, columns). Event i runs program ``which[i]`` on row ``rows[i]`` of its\n"
        "columns (the first program and row i where these are None). Stops early when the next event might not fit.\n"
        "Returns (offset behind the last byte, events encoded, last value of the delta operation).");
}

}  // namespace cutrace
