// Programs bound to columns. Each operation becomes a step for the type of its column, and calls the next step. An optimizing
// compiler turns these tail calls into jumps. Otherwise the calls nest as deep as a program is long.
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/column.h"
#include "perfetto/encoder.h"
#include "perfetto/wire.h"

namespace cutrace {

inline constexpr std::size_t kDepthMax = 16;
inline constexpr std::size_t kTextMax = 32;  // the longest output of a number

// The state of encoding one event.
struct Progress {
  std::size_t event;
  std::uint64_t last;  // the previous value for differences
  std::uint8_t** opened;
  std::uint8_t* open[kDepthMax];
};

// An operation with its columns. For kBlob, raw_size is the number of pieces. For kGiven, data and raw_size are the piece of the
// segment.
struct Step : Op {
  using Code = std::uint8_t* (*)(const Step* step, std::uint8_t* at, std::size_t row, Progress& progress);

  Code code = nullptr;
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;
  const Blobs* blobs = nullptr;
  const AnyColumn* values = nullptr;

  template <typename T>
  std::uint64_t get(std::size_t index) const {
    T value;
    std::memcpy(&value, data + static_cast<std::ptrdiff_t>(index) * stride, sizeof value);
    if constexpr (std::is_signed_v<T>) return static_cast<std::uint64_t>(std::int64_t{value});
    return static_cast<std::uint64_t>(value);
  }
};

namespace steps {

// Errors are thrown out of line, because a step that makes calls first saves registers, also without an error.
[[noreturn, gnu::noinline]] inline void refuse_decrease() {
  throw std::invalid_argument("the times of a sequence must not decrease");
}

[[noreturn, gnu::noinline]] inline void refuse_piece(std::uint64_t id) {
  throw std::out_of_range("no piece with id " + std::to_string(id));
}

// The action of a step before the call of the next step. Some steps make that call themselves.
using Body = Step::Code;

inline std::uint8_t* go_on(const Step* step, std::uint8_t* at, std::size_t row, Progress& progress) {
  return step->code(step, at, row, progress);
}

inline std::uint8_t* end(const Step*, std::uint8_t* at, std::size_t, Progress&) { return at; }

template <Body body>
std::uint8_t* run(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
  at = body(s, at, row, p);
  return go_on(s + 1, at, row, p);
}

inline std::uint8_t* raw(const Step* s, std::uint8_t* at, std::size_t, Progress&) {
  return put_piece(at, s->data, s->raw_size);
}

inline std::uint8_t* given(const Step* s, std::uint8_t* at, std::size_t, Progress&) {
  return put_piece(put_tag(at, *s), s->data, s->raw_size);
}

inline std::uint8_t* open(const Step* s, std::uint8_t* at, std::size_t, Progress& p) {
  at = put_tag(at, *s) + 1;
  *p.opened++ = at;
  return at;
}

[[gnu::noinline]] inline std::uint8_t* close_long(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
  return go_on(s + 1, close_long_message(*p.opened, at), row, p);
}

// Continues with the next step, or with a tail call of close_long(), because a function that calls memmove first saves registers.
inline std::uint8_t* close(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
  std::uint8_t* const body = *--p.opened;
  if (!is_short_message(body, at)) [[unlikely]] return close_long(s, at, row, p);
  close_short_message(body, at);
  return go_on(s + 1, at, row, p);
}

template <typename Number>
std::uint8_t* put_text(std::uint8_t* at, Number value) {
  char* const text = reinterpret_cast<char*>(at);
  return at + (std::to_chars(text, text + kTextMax, value).ptr - text);
}

// The actions for a type of column, with one entry for each event or for each row.
template <typename T, bool by_event>
struct Of {
  static std::uint64_t value(const Step* s, std::size_t row, const Progress& p) {
    return s->template get<T>(by_event ? p.event : row);
  }

  static std::uint8_t* varint(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    const std::uint64_t v = value(s, row, p);
    if (!s->optional || v != s->sentinel) at = put_varint(put_tag(at, *s), v);
    return at;
  }

  static std::uint8_t* fixed(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    const std::uint64_t v = value(s, row, p);
    if (s->optional && v == s->sentinel) return at;
    at = put_tag(at, *s);
    std::memcpy(at, &v, sizeof v);
    return at + sizeof v;
  }

  static std::uint8_t* delta(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    const std::uint64_t v = value(s, row, p);
    if (v < p.last) [[unlikely]] refuse_decrease();
    const std::uint64_t ahead = v - p.last;
    p.last = v;
    at = put_tag(at, *s);
    at = ahead >> 56 ? put_long_varint(at, ahead) : put_short_varint(at, ahead);
    return at;
  }

  static std::uint8_t* blob(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    const std::uint64_t id = value(s, row, p);
    if (id >= s->raw_size) [[unlikely]] refuse_piece(id);
    at = put_piece(put_tag(at, *s), s->blobs->begin(id), s->blobs->length(id));
    return at;
  }

  static std::uint8_t* repeated(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    const std::size_t index = by_event ? p.event : row;
    const std::uint64_t stop = s->template get<T>(index + 1);
    for (std::uint64_t i = s->template get<T>(index); i < stop; ++i) at = put_varint(put_tag(at, *s), (*s->values)[i]);
    return at;
  }

  static std::uint8_t* integer(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    return put_text(put_tag(at, *s), static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(value(s, row, p)));
  }

  static std::uint8_t* microseconds(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    std::uint64_t v = value(s, row, p);
    at = put_tag(at, *s);
    if (std::is_signed_v<T> && v >> 63) {
      *at++ = '-';
      v = ~v + 1;
    }
    at = put_text(at, v / 1000);
    *at++ = '.';
    for (const unsigned part : {100u, 10u, 1u}) *at++ = static_cast<std::uint8_t>('0' + v % 1000 / part % 10);
    return at;
  }

  static std::uint8_t* real(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    const auto number = std::bit_cast<double>(value(s, row, p));
    at = put_tag(at, *s);
    return std::isfinite(number) ? put_text(at, number) : std::copy_n("null", 4, at);
  }

  // A message with one field, which three steps describe: kOpen, kVarint, kClose. Most arguments are messages of this form.
  static std::uint8_t* message(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    static_assert(sizeof(Op::tag) + kVarintMax < 128);  // small enough for a length of one byte
    std::uint8_t* const body = put_tag(at, *s) + 1;
    at = put_varint(put_tag(body, s[1]), value(s + 1, row, p));
    body[-1] = static_cast<std::uint8_t>(at - body);
    return go_on(s + 3, at, row, p);
  }

  static std::uint8_t* unless(const Step* s, std::uint8_t* at, std::size_t row, Progress& p) {
    return go_on(s + 1 + (value(s, row, p) == s->sentinel ? s->skip : 0), at, row, p);
  }
};

template <typename T, bool by_event>
Step::Code code_of(OpKind kind) {
  using S = Of<T, by_event>;
  switch (kind) {
    case OpKind::kRaw: return run<raw>;
    case OpKind::kVarint: return run<S::varint>;
    case OpKind::kFixed64: return run<S::fixed>;
    case OpKind::kDelta: return run<S::delta>;
    case OpKind::kBlob: return run<S::blob>;
    case OpKind::kRepeated: return run<S::repeated>;
    case OpKind::kOpen: return run<open>;
    case OpKind::kClose: return close;
    case OpKind::kUnless: return S::unless;
    case OpKind::kGiven: return run<given>;
    case OpKind::kInteger: return run<S::integer>;
    case OpKind::kMicroseconds: return run<S::microseconds>;
    case OpKind::kReal: return run<S::real>;
    case OpKind::kMessage: return S::message;
  }
  return end;
}

template <typename T>
Step::Code code_of(OpKind kind, bool by_event) {
  return by_event ? code_of<T, true>(kind) : code_of<T, false>(kind);
}

inline Step::Code code_of(OpKind kind, Type type, bool by_event) {
  switch (type) {
    case Type::kU8: return code_of<std::uint8_t>(kind, by_event);
    case Type::kU16: return code_of<std::uint16_t>(kind, by_event);
    case Type::kU32: case Type::kF32: return code_of<std::uint32_t>(kind, by_event);
    case Type::kU64: case Type::kF64: return code_of<std::uint64_t>(kind, by_event);
    case Type::kI64: return code_of<std::int64_t>(kind, by_event);
    case Type::kI8: return code_of<std::int8_t>(kind, by_event);
    case Type::kI16: return code_of<std::int16_t>(kind, by_event);
    case Type::kI32: return code_of<std::int32_t>(kind, by_event);
    case Type::kNone: break;
  }
  return end;
}

}  // namespace steps
}  // namespace cutrace
