// Ids for the GPU work of an API call.
#include <nanobind/nanobind.h>

#include <bitset>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/arrays.h"
#include "common/column.h"
#include "common/table.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// Ids of the GPU work of one process. An API call finds the ids of its work by correlation id, without a table of all work. The
// first work of each of the first `near` correlations gets base + correlation, because small ids take few bytes. Other correlations
// are divided into spans of 1024. Each span has ranges of 1024 ids. The first work of a correlation gets an id of the first range.
// The second work (another node of a graph) gets an id of the second range, and so on. Only the amount of work of a correlation is
// stored: a bit for one piece, a byte for a few, a map for more. Spans are created at their first use. So the ids of a damaged
// capture cost no more than others, although they are scattered over all 32 bits. A runtime call and its driver calls share a
// correlation, but thousands of calls do not. So if a correlation has much work, only its first kAsked calls get ids. Otherwise the
// trace size would be unbounded.
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
    // Neighbouring rows have similar correlations, so most use the span of the previous row.
    std::uint32_t number = UINT32_MAX;
    const Span* span = nullptr;
    const auto find = [&](std::uint32_t c) {
      if (c >> kSpanBits != number) span = spans_.find(number = c >> kSpanBits);
      return span;
    };
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < rows; ++row) {
        offsets[row] = static_cast<std::uint32_t>(total);
        const std::uint32_t c = correlations[row];
        total += find(c) ? count(*span, c) : 0;
        if (total > UINT32_MAX) throw std::length_error("too many submissions in one block");
      }
    }
    offsets[rows] = static_cast<std::uint32_t>(total);
    Array<std::uint64_t> ids(total);
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < rows; ++row) {
        if (offsets[row] == offsets[row + 1]) continue;
        const std::uint32_t c = correlations[row];
        find(c);
        for (std::uint32_t i = offsets[row]; i < offsets[row + 1]; ++i) ids[i] = id(*span, c, i - offsets[row]);
      }
    }
    return nb::make_tuple(to_array(std::move(offsets)), to_array(std::move(ids)));
  }

  std::uint64_t end() const { return next_; }

 private:
  static constexpr unsigned kSpanBits = 10;  // number of correlations of a span, and of ids of a range
  static constexpr std::uint32_t kSpan = 1u << kSpanBits;
  static constexpr std::uint8_t kMany = 255;
  // number of calls that get the ids of a correlation with kMany pieces of work or more
  static constexpr std::uint32_t kAsked = 16;

  struct Span {
    std::bitset<kSpan> seen;
    std::unique_ptr<std::uint8_t[]> more;  // additional work by correlation; kMany: see more_
    std::vector<std::uint64_t> ranges;
  };
  struct More {
    std::uint32_t work = 0;  // more than a byte can count
    std::uint32_t asked = 0;
  };

  std::uint64_t next(std::uint32_t c) {
    if (c == 0) return next_++;  // launched by an unknown call
    if (c >> kSpanBits != last_number_) {
      last_number_ = c >> kSpanBits;
      last_ = spans_.index(last_number_);
    }
    Span& span = spans_.at(last_);
    std::size_t before = 0;
    if (span.seen[c & (kSpan - 1)]) {
      if (!span.more) span.more = std::make_unique<std::uint8_t[]>(kSpan);
      std::uint8_t& more = span.more[c & (kSpan - 1)];
      before = more < kMany && ++more < kMany ? more : kMany + std::size_t{more_[c].work++};
    }
    span.seen.set(c & (kSpan - 1));
    if (span.ranges.empty() && c >> kSpanBits < near_spans_) span.ranges.push_back(base_ + (c & ~(kSpan - 1)));
    if (before >= span.ranges.size()) {
      span.ranges.push_back(next_);
      next_ += kSpan;
    }
    return id(span, c, before);
  }

  // The id of the work of a correlation after `before` earlier pieces.
  static std::uint64_t id(const Span& span, std::uint32_t c, std::size_t before) {
    return span.ranges[before] + (c & (kSpan - 1));
  }

  std::size_t count(const Span& span, std::uint32_t c) {
    if (!span.seen[c & (kSpan - 1)]) return 0;
    const std::size_t more = span.more ? span.more[c & (kSpan - 1)] : 0;
    if (more < kMany) return 1 + more;
    More& many = more_[c];
    return many.asked++ < kAsked ? kMany + std::size_t{many.work} : 0;
  }

  std::uint64_t base_;
  std::uint64_t next_;
  std::uint32_t near_spans_;
  Map<Span> spans_;
  std::size_t last_ = 0;
  std::uint32_t last_number_ = UINT32_MAX;
  Map<More> more_;
};

}  // namespace

void bind_submissions(nb::module_& m) {
  nb::class_<Submissions>(m, "Submissions", "Ids for the GPU work of one process, with a look-up by correlation id.")
      .def(nb::init<std::uint64_t, std::uint32_t>(), nb::arg("base"), nb::arg("near") = 0)
      .def("assign", &Submissions::assign, nb::arg("correlations"),
           "The id of each row's work, above ``base``. Pass each row once.")
      .def("lists", &Submissions::lists, nb::arg("correlations"),
           "The ids of all work of each correlation: (offsets with rows + 1 entries, ids).")
      .def_prop_ro("end", &Submissions::end, "The first unused id, the base of the next process.");
}

}  // namespace cutrace
