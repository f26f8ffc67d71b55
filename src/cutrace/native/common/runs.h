// Sorting of nearly sorted rows. Rows of a capture come as a few long runs, or with swapped neighbours.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

namespace cutrace {

// Merges two adjacent sorted ranges. Often only their ends overlap.
template <typename Iterator, typename Less>
void merge_runs(Iterator begin, Iterator middle, Iterator end, Less less) {
  if (!less(*middle, *(middle - 1))) return;
  begin = std::upper_bound(begin, middle, *middle, less);
  end = std::lower_bound(middle, end, *(middle - 1), less);
  std::inplace_merge(begin, middle, end, less);
}

// A stable sort. Sorts swapped neighbours while that is cheap, then merges the remaining runs.
template <typename Iterator, typename Less>
void sort_runs(Iterator begin, Iterator end, Less less) {
  using Value = typename std::iterator_traits<Iterator>::value_type;
  constexpr std::ptrdiff_t kNear = 8;
  std::vector<Iterator> runs{begin};
  if (begin == end) return;
  for (Iterator at = begin + 1; at != end; ++at) {
    if (!less(*at, *(at - 1))) continue;
    const Iterator first = at - runs.back() > kNear ? at - kNear : runs.back();
    const bool near = first == runs.back() || !less(*at, *first);
    if (!near) {
      runs.push_back(at);
      continue;
    }
    Value value = std::move(*at);
    Iterator hole = at;
    do {
      *hole = std::move(*(hole - 1));
      --hole;
    } while (hole != first && less(value, *(hole - 1)));
    *hole = std::move(value);
  }
  runs.push_back(end);
  while (runs.size() > 2) {
    std::size_t kept = 1;
    for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {
      if (i + 2 < runs.size()) merge_runs(runs[i], runs[i + 1], runs[i + 2], less);
      runs[kept++] = runs[std::min(i + 2, runs.size() - 1)];
    }
    runs.resize(kept);
  }
}

}  // namespace cutrace
