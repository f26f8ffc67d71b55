"""Counts, totals, minima and maxima of times by group, as Arrow tables that add up.

All numbers are integers, so the order of additions does not change the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...trace.arrow import pyarrow
from .model import Histogram

#: The columns after the keys, and how Arrow combines them.
VALUES = {"count": "sum", "total_ns": "sum", "min_ns": "min", "max_ns": "max"}

# The number of rows that are collected before their sums.
_WAITING = 1 << 18
# log2 of the number of bins from a power of two to the next one.
_PARTS = 5


class TimeSums:
    """A table with integer ``keys`` and the columns :data:`VALUES`, which sum up the times (ns) with equal keys."""

    def __init__(self, *keys: str) -> None:
        self._keys = keys
        self._waiting: list[Any] = []
        self._rows = 0

    def add(self, times: np.ndarray, *keys: np.ndarray | int) -> None:
        """Add a time (ns) for each row, with its keys."""
        times = times.astype(np.int64, copy=False)
        columns = {
            "count": np.ones(len(times), np.int64),
            "total_ns": times,
            "min_ns": times,
            "max_ns": times,
        }
        for name, key in zip(self._keys, keys, strict=True):
            columns[name] = np.broadcast_to(key, len(times)).astype(np.int64)
        self.add_table(pyarrow("batch").table(columns))

    def add_table(self, table: Any) -> None:
        """Add the rows of another table of sums, without its additional columns."""
        self._waiting.append(table.select([*self._keys, *VALUES]))
        self._rows += len(table)
        if self._rows > _WAITING:
            self._waiting = [self._added()]
            self._rows = len(self._waiting[0])

    def table(self, **texts: Sequence[str]) -> Any:
        """Return the table, sorted by its keys. Keys named in ``texts`` are indices, which are replaced by the
        strings."""
        pa = pyarrow("batch")
        if not self._waiting:
            self.add(np.zeros(0, np.int64), *([0] * len(self._keys)))
        table = self._added()
        for key, names in texts.items():
            column = pa.array(names, pa.string()).take(table[key].combine_chunks())
            table = table.set_column(table.schema.get_field_index(key), key, column)
        return ascending(table, *self._keys)

    def _added(self) -> Any:
        pa = pyarrow("batch")
        rows = pa.concat_tables(self._waiting)
        groups = rows.group_by(list(self._keys), use_threads=False)
        added = groups.aggregate(list(VALUES.items()))
        names = {f"{name}_{how}": name for name, how in VALUES.items()}
        return added.rename_columns(names).select([*self._keys, *VALUES])


def ascending(table: Any, *columns: str) -> Any:
    """Sort the rows of an Arrow table by columns."""
    return table.sort_by([(name, "ascending") for name in columns])


def binned(times: np.ndarray) -> np.ndarray:
    """Return the start (ns) of the bin of each time. Bins are the same in all captures. Each power of two has 32 bins,
    2 to 3 % wide; below 64, each number is a bin."""
    exact = np.minimum(times, (1 << 53) - 1).astype(np.float64)
    _, bits = np.frexp(exact)
    shift = np.maximum(bits.astype(np.int64) - 1 - _PARTS, 0)
    return times >> shift << shift


def histogram(title: str, starts: np.ndarray, counts: np.ndarray) -> Histogram:
    """Return the histogram of bins with these starts (ns) and counts."""
    _, bits = np.frexp(starts)
    widths = 1 << np.maximum(bits.astype(np.int64) - 1 - _PARTS, 0)
    ends = starts + widths
    return Histogram(
        title,
        starts.tolist(),
        ends.tolist(),
        counts.tolist(),
    )
