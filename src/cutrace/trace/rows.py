"""Rows of blocks: many arrays as one, and known times apart from others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..runbin.layout import Table

#: No machine runs for 292 years: a later time (ns) is not known, and times fit into 64 bits with a sign.
LATEST = np.uint64((1 << 63) - 1)

#: Fields that hold a time on the BOOTTIME clock.
TIMES = ("start", "end", "time", "boottime")


def joined(table: Table, parts: list[np.ndarray]) -> np.ndarray:
    """The rows of many blocks as one array; a single block's as they are."""
    parts = [rows for rows in parts if len(rows)]
    if len(parts) < 2:
        return parts[0] if parts else np.empty(0, table.dtype)
    return np.concatenate([_plain(rows) for rows in parts]).view(table.dtype)


def copied(rows: np.ndarray) -> np.ndarray:
    """A copy of rows."""
    copy: np.ndarray = _plain(rows).copy().view(rows.dtype)
    return copy


def chosen(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A copy of the rows of a mask, or of those with some numbers."""
    kept: np.ndarray = _plain(rows)[mask].view(rows.dtype)
    return kept


def _plain(rows: np.ndarray) -> np.ndarray:
    """Rows as so many plain bytes each: structured ones would be copied field by field."""
    return np.ascontiguousarray(rows).view(f"V{rows.dtype.itemsize}")


def unknown_times(table: Table, rows: np.ndarray) -> np.ndarray | None:
    """Which rows have no known times, as a mask; None when all do."""
    if table.start_field is None or not len(rows):
        return None
    start = np.ascontiguousarray(rows[table.start_field])
    end = np.ascontiguousarray(rows["end"]) if "end" in table.offsets else start
    # Unsigned numbers: less one, a start of 0 is behind all ends.
    unknown: np.ndarray = (start - np.uint64(1) >= end) | (end > LATEST)
    return unknown if unknown.any() else None


#: Tables with rows that can have a begin and no end.
OPEN_TABLES = ("nvtx_ranges", "host_slices")


def never_ended(name: str, rows: np.ndarray) -> np.ndarray:
    """Which rows of a table begin and never end: all events after their begin touch them."""
    if name not in OPEN_TABLES:
        return np.zeros(len(rows), bool)
    begun: np.ndarray = (rows["end"] == 0) & (rows["start"] > 0) & (rows["start"] <= LATEST)
    return begun


def apart(rows: np.ndarray, unknown: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows with known times, and the others."""
    return (rows, rows[:0]) if unknown is None else (chosen(rows, ~unknown), chosen(rows, unknown))


def time_order(times: np.ndarray) -> np.ndarray | None:
    """Row numbers in the order of their times (stable); None when the rows are in that order."""
    times = np.ascontiguousarray(times)
    return None if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")


def by_value(values: np.ndarray, wanted: Sequence[int]) -> list[np.ndarray]:
    """Where each of the ``wanted`` numbers (rising) is among the values: their indices in rising order."""
    if values.dtype.kind == "u" and not (values >> 16).any():
        values = values.astype(np.uint16)  # which NumPy sorts in a fraction of the time
    order = np.argsort(values, kind="stable")
    found = values[order]
    begins, ends = (np.searchsorted(found, np.asarray(wanted), side) for side in ("left", "right"))
    return [order[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
