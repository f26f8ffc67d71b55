// Dense numbers for what repeats: Keys for tuples of columns, Submissions for the GPU work behind an API call.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "arrays.h"
#include "encoder.h"
#include "view.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// Numbers tuples of `width` values from 0 in the order of their first appearance.
class Keys {
 public:
  explicit Keys(std::size_t width) : width_(width), table_(64, kEmpty) {
    if (width == 0 || width > 16) throw std::invalid_argument("a key has 1 to 16 columns");
  }

  // The number of each row's tuple, and the rows at which new numbers began.
  nb::tuple ids(nb::sequence columns) {
    if (nb::len(columns) != width_) throw std::invalid_argument("a key of another width");
    std::vector<View> views;
    views.reserve(width_);
    for (nb::handle c : columns) views.emplace_back(c);
    const std::size_t rows = views[0].size();
    for (const View& v : views)
      if (v.size() != rows) throw std::invalid_argument("columns of a key have equal lengths");
    std::vector<std::uint32_t> out(rows);
    std::vector<std::uint32_t> first;
    {
      nb::gil_scoped_release release;
      std::vector<std::uint64_t> keys(kBatch * width_);
      for (std::size_t begin = 0; begin < rows; begin += kBatch) {
        const std::size_t count = std::min(kBatch, rows - begin);
        for (std::size_t i = 0; i < width_; ++i) gather(views[i], begin, count, keys.data() + i);
        for (std::size_t row = 0; row < count; ++row) {
          const std::size_t known = count_;
          out[begin + row] = number(keys.data() + row * width_);
          if (count_ > known) first.push_back(static_cast<std::uint32_t>(begin + row));
        }
      }
    }
    return nb::make_tuple(to_array(std::move(out)), to_array(std::move(first)));
  }

  std::size_t size() const { return count_; }

 private:
  static constexpr std::uint32_t kEmpty = UINT32_MAX;
  static constexpr std::size_t kBatch = 256;  // rows whose keys are put together at a time

  template <typename T>
  void gather_as(const View& view, std::size_t begin, std::size_t count, std::uint64_t* to) const {
    for (std::size_t row = 0; row < count; ++row) to[row * width_] = view.get<T>(begin + row);
  }

  void gather(const View& view, std::size_t begin, std::size_t count, std::uint64_t* to) const {
    switch (view.type()) {
      case Type::kU8: return gather_as<std::uint8_t>(view, begin, count, to);
      case Type::kU16: return gather_as<std::uint16_t>(view, begin, count, to);
      case Type::kU32: return gather_as<std::uint32_t>(view, begin, count, to);
      case Type::kU64: return gather_as<std::uint64_t>(view, begin, count, to);
      default:
        for (std::size_t row = 0; row < count; ++row) to[row * width_] = view[begin + row];
    }
  }

  std::uint64_t hash(const std::uint64_t* key) const {
    std::uint64_t h = 0x9E3779B97F4A7C15u;
    for (std::size_t i = 0; i < width_; ++i) {
      h ^= key[i];
      h *= 0xBF58476D1CE4E5B9u;
      h ^= h >> 29;
    }
    return h;
  }

  // A key is a few numbers: a loop over them beats a call of memcmp.
  bool equal(const std::uint64_t* a, const std::uint64_t* b) const {
    std::uint64_t difference = 0;
    for (std::size_t i = 0; i < width_; ++i) difference |= a[i] ^ b[i];
    return difference == 0;
  }

  std::uint32_t number(const std::uint64_t* key) {
    std::size_t slot = hash(key) & (table_.size() - 1);
    for (; table_[slot] != kEmpty; slot = (slot + 1) & (table_.size() - 1))
      if (equal(key, keys_.data() + table_[slot] * width_)) return table_[slot];
    const auto fresh = static_cast<std::uint32_t>(count_);
    keys_.insert(keys_.end(), key, key + width_);
    table_[slot] = fresh;
    if (++count_ * 2 > table_.size()) grow();
    return fresh;
  }

  void grow() {
    table_.assign(table_.size() * 2, kEmpty);
    for (std::size_t i = 0; i < count_; ++i) {
      std::size_t slot = hash(keys_.data() + i * width_) & (table_.size() - 1);
      while (table_[slot] != kEmpty) slot = (slot + 1) & (table_.size() - 1);
      table_[slot] = static_cast<std::uint32_t>(i);
    }
  }

  std::size_t width_;
  std::size_t count_ = 0;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> table_;
};

// Ids of the GPU work of one process, from correlation ids. The first piece of work of a correlation c gets
// base + c; further ones (nodes of a graph) get ids behind the largest of those. So an API call finds the ids of
// what it launched without a table of all work: two bits a correlation say none, one or many.
class Submissions {
 public:
  explicit Submissions(std::uint64_t base) : base_(base), pages_(std::size_t{1} << (32 - kPageBits)) {}
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  void count(nb::handle column) {
    View view(column);
    nb::gil_scoped_release release;
    for (std::size_t row = 0; row < view.size(); ++row) {
      const auto c = static_cast<std::uint32_t>(view[row]);
      largest_ = std::max(largest_, c);
      if (c == 0) {
        ++unnamed_;
        continue;
      }
      std::uint8_t& cell = page(c)[(c & kPageMask) >> 2];
      const unsigned shift = (c & 3) * 2;
      const unsigned state = cell >> shift & 3;
      if (state == kNone) {
        cell = static_cast<std::uint8_t>(cell | kOne << shift);
      } else {
        if (state == kOne) cell = static_cast<std::uint8_t>(cell ^ (kOne ^ kMany) << shift);
        ++many_[c].extra;
      }
    }
  }

  // After all work was counted: hands out the ids. Returns the first id that is free for the next process.
  std::uint64_t seal() {
    std::uint64_t next = base_ + largest_ + 1;
    std::vector<std::uint32_t> order;
    order.reserve(many_.size());
    for (const auto& [c, m] : many_) order.push_back(c);
    std::sort(order.begin(), order.end());
    for (const std::uint32_t c : order) {
      Many& m = many_[c];
      m.first = next;
      next += m.extra;
    }
    next_unnamed_ = next;
    return next + unnamed_;
  }

  // The id of each row's work; each row of a table is asked for once.
  nb::object assign(nb::handle column) {
    View view(column);
    std::vector<std::uint64_t> out(view.size());
    {
      nb::gil_scoped_release release;
      for (std::size_t row = 0; row < view.size(); ++row) {
        const auto c = static_cast<std::uint32_t>(view[row]);
        if (c == 0) {
          out[row] = next_unnamed_++;
          continue;
        }
        out[row] = base_ + c;
        if (state(c) != kMany) continue;
        Many& m = many_.find(c)->second;
        if (m.seen) out[row] = m.first + m.seen - 1;
        ++m.seen;
      }
    }
    return to_array(std::move(out));
  }

  // For each row's correlation the ids of its work, as (offsets of length rows + 1, ids).
  nb::tuple lists(nb::handle column) const {
    View view(column);
    std::vector<std::uint32_t> offsets(view.size() + 1);
    std::vector<std::uint64_t> ids;
    {
      nb::gil_scoped_release release;
      ids.reserve(view.size());
      for (std::size_t row = 0; row < view.size(); ++row) {
        const auto c = static_cast<std::uint32_t>(view[row]);
        const unsigned s = c ? state(c) : kNone;
        if (s != kNone) ids.push_back(base_ + c);
        if (s == kMany) {
          const Many& m = many_.find(c)->second;
          for (std::uint64_t i = 0; i < m.extra; ++i) ids.push_back(m.first + i);
        }
        if (ids.size() > UINT32_MAX) throw std::length_error("too many submissions in one block");
        offsets[row + 1] = static_cast<std::uint32_t>(ids.size());
      }
    }
    return nb::make_tuple(to_array(std::move(offsets)), to_array(std::move(ids)));
  }

 private:
  static constexpr unsigned kNone = 0, kOne = 1, kMany = 2;
  static constexpr unsigned kPageBits = 16;  // correlations a page
  static constexpr std::uint32_t kPageMask = (1u << kPageBits) - 1;
  struct Many {
    std::uint64_t extra = 0;
    std::uint64_t first = 0;
    std::uint64_t seen = 0;
  };

  std::uint8_t* page(std::uint32_t c) {
    auto& p = pages_[c >> kPageBits];
    if (!p) p = std::make_unique<std::uint8_t[]>(std::size_t{1} << (kPageBits - 2));
    return p.get();
  }

  unsigned state(std::uint32_t c) const {
    const auto& p = pages_[c >> kPageBits];
    return p ? p[(c & kPageMask) >> 2] >> ((c & 3) * 2) & 3u : kNone;
  }

  std::uint64_t base_;
  std::uint64_t unnamed_ = 0;
  std::uint64_t next_unnamed_ = 0;
  std::uint32_t largest_ = 0;
  std::vector<std::unique_ptr<std::uint8_t[]>> pages_;
  std::unordered_map<std::uint32_t, Many> many_;
};

// The order of rows by time, None when they are in order already. Equal times keep their order.
nb::object time_order(nb::handle column) {
  View view(column);
  const std::size_t rows = view.size();
  std::vector<std::uint32_t> order;
  {
    nb::gil_scoped_release release;
    std::vector<std::uint64_t> times(rows);
    bool sorted = true;
    for (std::size_t i = 0; i < rows; ++i) {
      times[i] = view[i];
      sorted = sorted && (i == 0 || times[i - 1] <= times[i]);
    }
    if (!sorted) {
      order.resize(rows);
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return times[a] < times[b]; });
    }
  }
  if (order.empty()) return nb::none();
  return to_array(std::move(order));
}

}  // namespace

void register_keys(nb::module_& m) {
  nb::class_<Keys>(m, "Keys", "Numbers tuples of column values from 0 in the order of their first appearance.")
      .def(nb::init<std::size_t>(), nb::arg("width"))
      .def("ids", &Keys::ids, nb::arg("columns"),
           "(number of each row's tuple as uint32, rows at which new numbers began in rising order)")
      .def("__len__", &Keys::size);
  nb::class_<Submissions>(m, "Submissions", "Ids for the GPU work of one process, found again by correlation id.")
      .def(nb::init<std::uint64_t>(), nb::arg("base"))
      .def("count", &Submissions::count, nb::arg("correlations"), "Announce work, before seal().")
      .def("seal", &Submissions::seal, "Hand out the ids; the first one that is free for the next process.")
      .def("assign", &Submissions::assign, nb::arg("correlations"), "The id of each piece of announced work.")
      .def("lists", &Submissions::lists, nb::arg("correlations"),
           "The ids of all work of each correlation: (offsets with rows + 1 entries, ids).");
  m.def("time_order", &time_order, nb::arg("times"),
        "Row numbers in the order of their times (stable), None when the rows are in order already.");
}

}  // namespace cutrace
