"""Helpers for arrays of rows: joining, copying, choosing, and separating rows with unknown times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .._native import any_outside
from ..runbin.layout import TableLayout

#: The latest known time (ns, 292 years): known times fit into signed 64-bit integers.
LATEST = np.uint64((1 << 63) - 1)

#: Fields that hold a time on the BOOTTIME clock.
TIMES = ("start", "end", "time", "created", "boottime")


def joined(dtype: np.dtype, parts: Iterable[np.ndarray]) -> np.ndarray:
    """The rows of many arrays as one array. A single array is not copied."""
    parts = [rows for rows in parts if len(rows)]
    if not parts:
        return np.empty(0, dtype)
    if len(parts) == 1:
        return parts[0]
    whole = np.concatenate(list(map(_plain, parts)))
    return whole.view(dtype)


def copied(rows: np.ndarray) -> np.ndarray:
    """A copy of rows."""
    return _plain(rows).copy().view(rows.dtype)


def changed(rows: np.ndarray, values: Mapping[str, Any]) -> np.ndarray:
    """Rows with new values of some fields: a copy, or the same array if there are no new values."""
    if values:
        rows = copied(rows)
        for name, column in values.items():
            rows[name] = column
    return rows


def chosen(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A copy of the rows that a mask, or an array of indices, selects."""
    plain = _plain(rows)
    kept: np.ndarray
    if mask.dtype == bool:
        kept = plain[mask]
    else:
        kept = plain.take(mask)  # Faster than indexing.
    return kept.view(rows.dtype)


def _plain(rows: np.ndarray) -> np.ndarray:
    """Rows as plain bytes: NumPy copies structured rows field by field."""
    return np.ascontiguousarray(rows).view(f"V{rows.dtype.itemsize}")


def unknown_times(table: TableLayout, rows: np.ndarray) -> np.ndarray | None:
    """A mask of the rows with unknown times; None when there are none."""
    if table.start_field is None or not len(rows):
        return None
    start = rows[table.start_field]
    end = rows["end"] if "end" in table.offsets else start
    if not any_outside(start, end, int(LATEST)):
        return None
    unknown: np.ndarray = (start == 0) | (end > LATEST)
    unknown |= start > end
    return unknown


#: Tables whose rows can have a start without an end.
OPEN_TABLES = ("nvtx_ranges", "host_slices")


def never_ended(name: str, rows: np.ndarray) -> np.ndarray:
    """A mask of the rows of a table that start and never end."""
    if name not in OPEN_TABLES:
        return np.zeros(len(rows), bool)
    start = rows["start"]
    begun: np.ndarray = (start > 0) & (start <= LATEST)
    begun &= rows["end"] == 0
    return begun


def with_open(name: str, known: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    """The rows of a table with known times, and then the rows that never end, with the latest time as their end.
    ``unknown`` are the rows without known times."""
    still_open = unknown[never_ended(name, unknown)]
    if not len(still_open):
        return known
    lasting = changed(still_open, {"end": LATEST})
    whole = np.concatenate([_plain(known), _plain(lasting)])
    return whole.view(known.dtype)


def apart(
    rows: np.ndarray, unknown: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows with known times, and the other rows."""
    if unknown is None:
        return (rows, rows[:0])
    return (chosen(rows, ~unknown), chosen(rows, unknown))


def time_order(times: np.ndarray) -> np.ndarray | None:
    """Indices that sort rows by time (stable); None when the rows are sorted."""
    times = np.ascontiguousarray(times)
    if ascends(times):
        return None
    return np.argsort(times, kind="stable")


def ascends(values: np.ndarray) -> bool:
    """Whether values are in ascending order; equal values are allowed."""
    return bool((values[1:] >= values[:-1]).all())


def changes(*columns: np.ndarray) -> np.ndarray:
    """A mask of the rows that differ from the row before in one of these columns; the first row differs."""
    mask = np.zeros(len(columns[0]), bool)
    mask[:1] = True
    for column in columns:
        mask[1:] |= column[1:] != column[:-1]
    return mask


#: Python sorts up to this number of values faster than NumPy.
_FEW_VALUES = 64


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values, ascending. numpy.unique() would import numpy.ma first, which takes 8 ms."""
    if len(values) <= _FEW_VALUES:
        few = sorted(set(values.tolist()))
        return np.array(few, values.dtype)
    ordered = np.sort(values)
    firsts = changes(ordered)
    return ordered[firsts]


def counted(values: np.ndarray) -> dict[int, int]:
    """The number of occurrences of each integer. The integers ascend."""
    if len(values) <= _FEW_VALUES:
        counts = Counter(values.tolist())
        return dict(sorted(counts.items()))
    numbers, amounts = np.unique(values, return_counts=True)
    pairs = zip(numbers.tolist(), amounts.tolist(), strict=True)
    return dict(pairs)


def numbered(values: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The distinct integers, ascending, and for each value its index among the distinct integers."""
    if len(values) > _FEW_VALUES:
        numbers, places = np.unique(values, return_inverse=True)
        return numbers.tolist(), places.reshape(-1)
    all_values = values.tolist()
    ascending = sorted(set(all_values))
    place_of = {number: place for place, number in enumerate(ascending)}
    of_all = [place_of[number] for number in all_values]
    return ascending, np.array(of_all, np.intp)


def first_places(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values, ascending, and the index of the first occurrence of each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    firsts = np.flatnonzero(changes(ordered))
    found = ordered[firsts]
    return found, order[firsts]


def spanned(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The indices of all spans, one span after another. A span has the indices from ``first`` up to, but not including,
    ``last``."""
    sizes = last - first
    places = np.cumsum(sizes) - sizes
    # The difference between the indices of a span and their places in the result.
    shifts = first - places
    indices = np.arange(int(sizes.sum()))
    indices += np.repeat(shifts, sizes)
    return indices


#: Up to this number of values, comparing with each is faster than sorting.
_FEW = 8


def by_value(values: np.ndarray, wanted: Sequence[int]) -> list[np.ndarray]:
    """For each of the ``wanted`` numbers (ascending), the indices of the values that equal it, ascending."""
    if len(wanted) <= _FEW:
        return [np.flatnonzero(values == number) for number in wanted]
    if values.dtype.kind == "u" and not (values >> 16).any():
        values = values.astype(np.uint16)  # NumPy sorts 16-bit integers much faster
    order = np.argsort(values, kind="stable")
    ordered = values.take(order)
    numbers = np.asarray(wanted)
    begins = np.searchsorted(ordered, numbers, "left").tolist()
    ends = np.searchsorted(ordered, numbers, "right").tolist()
    parts = []
    for begin, end in zip(begins, ends, strict=True):
        parts.append(order[begin:end])
    return parts
