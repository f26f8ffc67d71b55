// Dense numbers for what repeats: Keys for tuples of columns, Submissions for the GPU work behind an API call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays.h"
#include "column.h"
#include "table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// Numbers tuples of `width` values from 0 in the order of their first appearance. A key is the bytes of its values, one
// behind the other, filled up to whole words.
class Keys {
 public:
  explicit Keys(std::size_t width) : width_(width) {
    if (width == 0 || width > 16) throw std::invalid_argument("a key has 1 to 16 columns");
  }

  nb::tuple ids(const std::vector<AnyColumn>& columns) {
    if (columns.size() != width_) throw std::invalid_argument("a key of another width");
    const std::size_t rows = columns[0].size;
    for (const AnyColumn& column : columns) need_rows(rows, column);
    settle(columns);
    Array<std::uint32_t> out(rows);
    std::vector<std::uint32_t> first;
    {
      nb::gil_scoped_release release;
      std::vector<std::uint64_t> keys(kBatch * words_);
      for (std::size_t begin = 0; begin < rows; begin += kBatch) {
        const std::size_t count = std::min(kBatch, rows - begin);
        auto* to = reinterpret_cast<std::uint8_t*>(keys.data());
        for (const AnyColumn& column : columns) {
          gather(column, begin, count, to);
          to += column.item_size();
        }
        for_width([&](auto words) {
          for (std::size_t row = 0; row < count; ++row) {
            const std::uint32_t known = numbers_.size();
            out[begin + row] = number(keys.data() + row * words, words);
            if (numbers_.size() > known) first.push_back(static_cast<std::uint32_t>(begin + row));
          }
        });
      }
    }
    return nb::make_tuple(to_array(std::move(out)), to_array(std::move(first)));
  }

  std::size_t size() const { return numbers_.size(); }

 private:
  static constexpr std::size_t kBatch = 256;  // rows whose keys are put together at a time

  // The first columns say how wide a key is; those of later calls have to be like them.
  void settle(const std::vector<AnyColumn>& columns) {
    std::vector<std::ptrdiff_t> sizes;
    for (const AnyColumn& column : columns) sizes.push_back(column.item_size());
    if (words_ == 0) {
      sizes_ = sizes;
      words_ = (static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::ptrdiff_t{0})) + 7) / 8;
    }
    if (sizes != sizes_) throw std::invalid_argument("columns of a key keep their types");
  }

  template <typename T>
  void gather_as(Column<T> column, std::size_t begin, std::size_t count, std::uint8_t* to) const {
    for (std::size_t row = 0; row < count; ++row) {
      const T value = column[begin + row];
      std::memcpy(to + row * words_ * 8, &value, sizeof value);
    }
  }

  void gather(const AnyColumn& column, std::size_t begin, std::size_t count, std::uint8_t* to) const {
    switch (column.item_size()) {
      case 1: return gather_as(column.as<std::uint8_t>(), begin, count, to);
      case 2: return gather_as(column.as<std::uint16_t>(), begin, count, to);
      case 4: return gather_as(column.as<std::uint32_t>(), begin, count, to);
      default: return gather_as(column.as<std::uint64_t>(), begin, count, to);
    }
  }

  // Calls a function with the number of words of a key: as a constant for the usual ones, so that loops over them are
  // none.
  template <typename Function>
  void for_width(const Function& function) {
    switch (words_) {
      case 1: return function(std::integral_constant<std::size_t, 1>());
      case 2: return function(std::integral_constant<std::size_t, 2>());
      case 3: return function(std::integral_constant<std::size_t, 3>());
      default: return function(words_);
    }
  }

  // A key is a few words: a loop over them beats a call of memcmp.
  template <typename Words>
  static bool equal(const std::uint64_t* a, const std::uint64_t* b, Words words) {
    std::uint64_t difference = 0;
    for (std::size_t i = 0; i < words; ++i) difference |= a[i] ^ b[i];
    return difference == 0;
  }

  template <typename Words>
  std::uint32_t number(const std::uint64_t* key, Words words) {
    return numbers_.add(
        hash_of(key, words), [&](std::uint32_t known) { return equal(key, keys_.data() + known * words, words); },
        [&] { keys_.insert(keys_.end(), key, key + words); });
  }

  std::size_t width_;
  std::size_t words_ = 0;
  std::vector<std::ptrdiff_t> sizes_;
  std::vector<std::uint64_t> keys_;
  Table numbers_;
};

// Ids of the GPU work of one process, so that an API call finds the ids of what it launched by correlation id, without
// a table of all work. The first work of each of the first `near` correlations gets base + correlation, since small ids
// take few bytes. Beyond that, correlations are taken in spans of 1024: the first work of each gets an id out of the
// span's first range of as many ids, the second (another node of a graph) out of its second range, and so on. What has to
// be remembered is how much work a correlation had: a bit for one piece, a byte where some had more, a map beyond that.
// Spans are made when they are used: ids that a damaged capture scatters over all 32 bits cost no more than others. And
// a runtime call and the driver calls in it share a correlation, but not thousands of calls: those that ask again and
// again for much work, which would make a trace of a size without bounds, are told of none.
class Submissions {
 public:
  Submissions(std::uint64_t base, std::uint32_t near) : base_(base), near_spans_(near >> kSpanBits) {
    next_ = base + (std::uint64_t{near_spans_} << kSpanBits) + 1;
  }
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  nb::object assign(Column<std::uint32_t> correlations) {
    Array<std::uint64_t> out(correlations.size);
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < correlations.size; ++row) out[row] = next(correlations[row]);
    }
    return to_array(std::move(out));
  }

  nb::tuple lists(Column<std::uint32_t> correlations) {
    const std::size_t rows = correlations.size;
    Array<std::uint32_t> offsets(rows + 1);
    std::uint64_t total = 0;
    Finder finder(spans_);
    for (std::size_t row = 0; row < rows; ++row) {
      offsets[row] = static_cast<std::uint32_t>(total);
      const std::uint32_t c = correlations[row];
      const Span* span = finder.find(c >> kSpanBits);
      total += span ? count(*span, c) : 0;
      if (total > UINT32_MAX) throw std::length_error("too many submissions in one block");
    }
    offsets[rows] = static_cast<std::uint32_t>(total);
    Array<std::uint64_t> ids(total);
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < rows; ++row) {
        if (offsets[row] == offsets[row + 1]) continue;
        const std::uint32_t c = correlations[row];
        const Span& span = *finder.find(c >> kSpanBits);
        for (std::uint32_t i = offsets[row]; i < offsets[row + 1]; ++i) ids[i] = id(span, c, i - offsets[row]);
      }
    }
    return nb::make_tuple(to_array(std::move(offsets)), to_array(std::move(ids)));
  }

  std::uint64_t end() const { return next_; }

 private:
  static constexpr unsigned kSpanBits = 10;  // correlations a span, and ids a range
  static constexpr std::uint32_t kSpan = 1u << kSpanBits;
  static constexpr std::uint8_t kFull = 255;
  static constexpr std::uint32_t kAsked = 16;  // how often a correlation with more work than that is told of

  struct Span {
    std::bitset<kSpan> seen;
    std::unique_ptr<std::uint8_t[]> more;  // work beyond the first by correlation; kFull: see more_
    std::vector<std::uint64_t> ranges;
  };
  using Spans = Map<Span>;
  struct Many {
    std::uint32_t work = 0;  // beyond what a byte counts
    std::uint32_t asked = 0;
  };

  // Rows near each other have correlations near each other, so most look into the span of the row before.
  class Finder {
   public:
    explicit Finder(const Spans& spans) : spans_(spans) {}
    const Span* find(std::uint32_t number) {
      if (number != number_) {
        span_ = spans_.find(number);
        number_ = number;
      }
      return span_;
    }

   private:
    const Spans& spans_;
    const Span* span_ = nullptr;
    std::uint32_t number_ = UINT32_MAX;
  };

  std::uint64_t next(std::uint32_t c) {
    if (c == 0) return next_++;  // no call launched it that we know of
    if (c >> kSpanBits != last_number_) {
      last_number_ = c >> kSpanBits;
      last_ = spans_.place(last_number_);
    }
    Span& span = spans_.at(last_);
    std::size_t before = 0;
    if (span.seen[c & (kSpan - 1)])
      before = add_more(span, c);
    else
      span.seen.set(c & (kSpan - 1));
    if (span.ranges.empty() && c >> kSpanBits < near_spans_) span.ranges.push_back(base_ + (c & ~(kSpan - 1)));
    if (before >= span.ranges.size()) {
      span.ranges.push_back(next_);
      next_ += kSpan;
    }
    return id(span, c, before);
  }

  // The id of the work of a correlation that came behind `before` others.
  static std::uint64_t id(const Span& span, std::uint32_t c, std::size_t before) {
    return span.ranges[before] + (c & (kSpan - 1));
  }

  // Notes another piece of work; how many there were before.
  std::size_t add_more(Span& span, std::uint32_t c) {
    if (!span.more) span.more = std::make_unique<std::uint8_t[]>(kSpan);
    std::uint8_t& count = span.more[c & (kSpan - 1)];
    if (count < kFull && ++count < kFull) return count;
    return kFull + more_[c].work++;
  }

  std::size_t count(const Span& span, std::uint32_t c) {
    if (!span.seen[c & (kSpan - 1)]) return 0;
    const std::size_t more = span.more ? span.more[c & (kSpan - 1)] : 0;
    if (more < kFull) return 1 + more;
    Many& many = more_[c];
    return many.asked++ < kAsked ? kFull + std::size_t{many.work} : 0;
  }

  std::uint64_t base_;
  std::uint64_t next_;
  std::uint32_t near_spans_;
  Spans spans_;
  std::size_t last_ = 0;
  std::uint32_t last_number_ = UINT32_MAX;
  Map<Many> more_;
};

}  // namespace

void register_keys(nb::module_& m) {
  nb::class_<Keys>(m, "Keys", "Numbers tuples of column values from 0 in the order of their first appearance.")
      .def(nb::init<std::size_t>(), nb::arg("width"))
      .def("ids", &Keys::ids, nb::arg("columns"),
           "(number of each row's tuple as uint32, rows at which new numbers began in rising order)")
      .def("__len__", &Keys::size);
  nb::class_<Submissions>(m, "Submissions", "Ids for the GPU work of one process, found again by correlation id.")
      .def(nb::init<std::uint64_t, std::uint32_t>(), nb::arg("base"), nb::arg("near") = 0)
      .def("assign", &Submissions::assign, nb::arg("correlations"),
           "The id of each row's work, above ``base``; each row is asked for once.")
      .def("lists", &Submissions::lists, nb::arg("correlations"),
           "The ids of all work of each correlation: (offsets with rows + 1 entries, ids).")
      .def_prop_ro("end", &Submissions::end, "The first id behind those given, the base for the next process.");
}

}  // namespace cutrace
