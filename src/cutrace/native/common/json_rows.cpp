// Lines of JSON from columns: a template is run once a row. Nothing here knows what the lines say.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "common/column.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

enum class Piece : std::uint8_t {
  kText,          // the same bytes in each row
  kInteger,       // the number in a column
  kMicroseconds,  // nanoseconds in a column, as microseconds with three decimals
  kReal,          // a double, as short as it can be; null for what JSON has no number for
  kBlob,          // bytes out of a Blobs table by the id in a column
  kUnless,        // leaves out the next `skip` pieces where the column is 0
};
constexpr unsigned kPieces = 6;

struct Part {
  Piece kind{};
  std::size_t column = 0;
  std::size_t skip = 0;
  std::string text;
};

bool is_signed(Type type) {
  return type == Type::kI8 || type == Type::kI16 || type == Type::kI32 || type == Type::kI64;
}

template <typename Number>
char* put(char* p, Number value) {
  return std::to_chars(p, p + 32, value).ptr;
}

char* put_microseconds(char* p, std::uint64_t bits, bool with_sign) {
  if (with_sign && static_cast<std::int64_t>(bits) < 0) {
    *p++ = '-';
    bits = ~bits + 1;
  }
  p = put(p, bits / 1000);
  const auto rest = static_cast<unsigned>(bits % 1000);
  *p++ = '.';
  for (const unsigned part : {100u, 10u, 1u}) *p++ = static_cast<char>('0' + rest / part % 10);
  return p;
}

char* put_real(char* p, double value) { return std::isfinite(value) ? put(p, value) : std::copy_n("null", 4, p); }

class JsonRows {
 public:
  explicit JsonRows(nb::list parts) {
    for (nb::handle item : parts) {
      const auto [kind, text, column, skip] = nb::cast<std::tuple<unsigned, nb::bytes, std::size_t, std::size_t>>(item);
      if (kind >= kPieces) throw std::invalid_argument("there is no such kind of piece");
      parts_.push_back({static_cast<Piece>(kind), column, skip, std::string(text.c_str(), text.size())});
      const Part& part = parts_.back();
      if (part.kind != Piece::kText) columns_ = std::max(columns_, column + 1);
      if (part.kind == Piece::kBlob) columns_ = std::max(columns_, skip + 1);
    }
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (parts_[i].kind == Piece::kUnless && parts_[i].skip > parts_.size() - i - 1)
        throw std::invalid_argument("a template ends before what may be left out");
  }

  nb::bytes write(const std::vector<AnyColumn>& columns, std::size_t rows) const {
    if (columns.size() < columns_) throw std::invalid_argument("fewer columns than the template has");
    for (const AnyColumn& column : columns)
      if (column.blobs == nullptr) need_rows(rows, column);
    for (const Part& part : parts_) {
      if (part.kind == Piece::kText) continue;
      if (columns[part.column].blobs != nullptr) throw std::invalid_argument("a column of numbers is wanted");
      if (part.kind == Piece::kBlob && columns[part.skip].blobs == nullptr) throw std::invalid_argument("Blobs are wanted");
      const Type type = columns[part.column].type;
      if (part.kind != Piece::kUnless && (type == Type::kF32 || (type == Type::kF64) != (part.kind == Piece::kReal)))
        throw std::invalid_argument("a column of other numbers is wanted");
    }
    std::string out;
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < rows; ++row) line(columns, row, out);
    }
    return nb::bytes(out.data(), out.size());
  }

 private:
  void line(const std::vector<AnyColumn>& columns, std::size_t row, std::string& out) const {
    char number[48];
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      out += part.text;
      if (part.kind == Piece::kText) continue;
      const AnyColumn& source = columns[part.column];
      const std::uint64_t bits = source[row];
      switch (part.kind) {
        case Piece::kInteger:
          out.append(number, is_signed(source.type) ? put(number, static_cast<std::int64_t>(bits)) : put(number, bits));
          break;
        case Piece::kMicroseconds: out.append(number, put_microseconds(number, bits, is_signed(source.type))); break;
        case Piece::kReal: out.append(number, put_real(number, std::bit_cast<double>(bits))); break;
        case Piece::kBlob: {
          const Blobs& blobs = *columns[part.skip].blobs;
          if (bits >= blobs.size()) throw std::out_of_range("there is no blob with this id");
          out.append(reinterpret_cast<const char*>(blobs.begin(bits)), blobs.length(bits));
          break;
        }
        case Piece::kUnless:
          if (bits == 0) i += part.skip;
          break;
        case Piece::kText: break;
      }
    }
  }

  std::vector<Part> parts_;
  std::size_t columns_ = 0;
};

}  // namespace

void bind_json_rows(nb::module_& m) {
  nb::class_<JsonRows>(m, "JsonRows", "A template of a line of JSON, run once a row of columns.")
      .def(nb::init<nb::list>(), nb::arg("parts"))
      .def("write", &JsonRows::write, nb::arg("columns"), nb::arg("rows"), "The lines of all rows, as bytes. Columns are arrays of one length, or Blobs that a piece names.");
}

}  // namespace cutrace
