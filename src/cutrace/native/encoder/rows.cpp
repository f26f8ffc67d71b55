// Rows of a capture in the order of time: what that order is, and columns that are in it.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.h"
#include "encoder.h"
#include "runs.h"
#include "values.h"
#include "view.h"

namespace nb = nanobind;

namespace cutrace {
namespace {

// Sorts rows by time, and calls put(place, row) for each. Equal times keep their order.
template <typename Put>
void sort_by_time(const Values<std::uint64_t>& times, std::size_t rows, const Put& put) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> keys(rows);
  for (std::size_t i = 0; i < rows; ++i) keys[i] = {times[i], static_cast<std::uint32_t>(i)};
  sort_runs(keys.begin(), keys.end(), std::less<>());
  for (std::size_t i = 0; i < rows; ++i) put(static_cast<std::uint32_t>(i), keys[i].second);
}

// For each place the row that comes there in the order of time, or (with `places`) for each row its place; None when the
// rows are in order already.
nb::object time_order(nb::handle column, bool places) {
  View view(column);
  if (view.type() != Type::kU64 && view.type() != Type::kI64) throw std::invalid_argument("times have 64 bits");
  const Values<std::uint64_t> times(view);
  const std::size_t rows = view.size();
  std::size_t sorted = 1;
  while (sorted < rows && times[sorted - 1] <= times[sorted]) ++sorted;
  if (sorted >= rows) return nb::none();
  Array<std::uint32_t> out(rows);
  {
    nb::gil_scoped_release release;
    if (places)
      sort_by_time(times, rows, [&](std::uint32_t place, std::uint32_t row) { out[row] = place; });
    else
      sort_by_time(times, rows, [&](std::uint32_t place, std::uint32_t row) { out[place] = row; });
  }
  return to_array(std::move(out));
}

// Row numbers in one piece, each below a number.
class Indices {
 public:
  Indices(nb::handle object, std::size_t below) : view_(object) {
    if (view_.type() != Type::kU32 || view_.stride() != sizeof(std::uint32_t))
      throw std::invalid_argument("orders and places are uint32, in one piece");
    std::uint32_t greatest = 0;
    for (std::size_t i = 0; i < size(); ++i) greatest = std::max(greatest, data()[i]);
    if (size() > 0 && greatest >= below) throw std::out_of_range("an order or a place that no row has");
  }
  std::size_t size() const { return view_.size(); }
  const std::uint32_t* data() const { return reinterpret_cast<const std::uint32_t*>(view_.data()); }

 private:
  View view_;
};

// Puts the values of a column in an order (null: as they are) to places (null: one behind the other).
template <typename T>
void put_as(const View& column, const std::uint32_t* order, const std::uint32_t* places, std::size_t rows, T* out) {
  const Values<T> values(column);
  if (order && places)
    for (std::size_t i = 0; i < rows; ++i) out[places[i]] = values[order[i]];
  else if (order)
    for (std::size_t i = 0; i < rows; ++i) out[i] = values[order[i]];
  else if (places)
    for (std::size_t i = 0; i < rows; ++i) out[places[i]] = values[i];
  else
    for (std::size_t i = 0; i < rows; ++i) out[i] = values[i];
}

// Fills `out` with columns one behind the other, each in an order of its own (None: as it is). Value i of them all comes to
// places[i] (None: to i).
void put_columns(nb::handle out, nb::sequence columns, nb::sequence orders, nb::object places) {
  View to(out, true);
  if (to.stride() != to.item_size() || reinterpret_cast<std::uintptr_t>(to.data()) % to.item_size() != 0)
    throw std::invalid_argument("an array to fill lies in one piece");
  const std::size_t parts = nb::len(columns);
  if (nb::len(orders) != parts) throw std::invalid_argument("as many orders as columns");
  std::vector<View> values;
  std::vector<std::optional<Indices>> rows(parts);
  std::optional<Indices> place;
  values.reserve(parts);
  std::size_t size = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const View& column = values.emplace_back(columns[part]);
    if (column.item_size() != to.item_size()) throw std::invalid_argument("columns are of the type of what they fill");
    if (nb::object order = orders[part]; !order.is_none()) rows[part].emplace(order, column.size());
    size += rows[part] ? rows[part]->size() : column.size();
  }
  if (!places.is_none()) place.emplace(places, to.size());
  if (size != to.size() || (place && place->size() != size)) throw std::invalid_argument("as many places as values");
  nb::gil_scoped_release release;
  std::size_t first = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::uint32_t* const order = rows[part] ? rows[part]->data() : nullptr;
    const std::uint32_t* const at = place ? place->data() + first : nullptr;
    const std::size_t count = rows[part] ? rows[part]->size() : values[part].size();
    const auto put = [&](auto* begin) { put_as(values[part], order, at, count, begin + (at ? 0 : first)); };
    switch (to.item_size()) {
      case 1: put(to.mutable_data()); break;
      case 2: put(reinterpret_cast<std::uint16_t*>(to.mutable_data())); break;
      case 4: put(reinterpret_cast<std::uint32_t*>(to.mutable_data())); break;
      default: put(reinterpret_cast<std::uint64_t*>(to.mutable_data()));
    }
    first += count;
  }
}

// Whether all rows have times that can be: a start behind 0, an end (where there are ends) not before it, and none so
// large that signed numbers could not hold it.
bool times_known(nb::handle starts, nb::object ends) {
  View start(starts), end(ends.is_none() ? starts : nb::handle(ends));
  if (start.type() != Type::kU64 || end.type() != Type::kU64) throw std::invalid_argument("times are uint64");
  if (start.size() != end.size()) throw std::invalid_argument("as many ends as starts");
  constexpr auto kLatest = static_cast<std::uint64_t>(INT64_MAX);
  bool known = true;
  for (std::size_t row = 0; row < start.size(); ++row) {
    const auto first = start.get<std::uint64_t>(row), last = end.get<std::uint64_t>(row);
    known &= (first != 0) & (first <= last) & (last <= kLatest);
  }
  return known;
}

}  // namespace

void register_rows(nb::module_& m) {
  m.def("times_known", &times_known, nb::arg("starts"), nb::arg("ends").none(),
        "Whether all starts are above 0, and all ends (None: there are none) not before them; none beyond 2**63 - 1.");
  m.def("time_order", &time_order, nb::arg("times"), nb::arg("places") = false,
        "Row numbers in the order of their times (stable), None when the rows are in order already. With ``places``, for\n"
        "each row its place in that order.");
  m.def("put_columns", &put_columns, nb::arg("out"), nb::arg("columns"), nb::arg("orders"), nb::arg("places").none(),
        "Fill ``out`` with columns one behind the other, each with its rows in an order (None: as they are); value i of\n"
        "them all comes to ``places[i]`` (None: to i).");
}

}  // namespace cutrace
