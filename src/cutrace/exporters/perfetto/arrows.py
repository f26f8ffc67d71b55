"""Arrows whose ids a source gave more than once.

Viewers know one begin for each id: they leave out a second one, and let all ends be those of the first. Sources give
ids again when an arrow has ended, and files that were merged have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...runbin.layout import TABLES

#: So many arrows are told apart at most; where there are more, all have the ids of the source.
MOST = 1 << 19

#: Where the ids of arrows begin whose own ones are in use.
_AGAIN = np.uint64(1 << 62)
_BEGIN = ord("s")
#: What tells arrows apart.
_ARROW = ("category", "name", "id", "text")


class Arrows:
    """Ids for the steps of arrows, from blocks of ``flows``. A step is of the arrow with its id that began last: in its
    process, or in any if none did there."""

    def __init__(self, blocks: Iterable[np.ndarray]) -> None:
        begins = _begins(blocks)
        first = np.unique(_hashed(begins, _ARROW), return_index=True)[1]
        # By the number of a begin, counted from 1 on, whether there was one with its id before.
        self._again = np.ones(len(begins) + 1, bool)
        self._again[0] = self._again[first + 1] = False
        if self._again.any():
            self._times = begins["time"]
            self._anywhere, self._within = _Begins(begins, _ARROW), _Begins(begins, ("process", *_ARROW))

    def renamed(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The ids (uint64) of steps: the given ones, but where another arrow has them."""
        if not self._again.any():
            return ids
        before = np.searchsorted(self._times, rows["time"], "right")
        within = self._within.last(rows, before)
        arrow = np.where(within > 0, within, self._anywhere.last(rows, before))
        return np.where(self._again[arrow], arrow.astype(np.uint64) | _AGAIN, ids)


class _Begins:
    """Begins of arrows, in rising time and numbered from 1 on, by what ``fields`` hold."""

    def __init__(self, begins: np.ndarray, fields: Sequence[str]) -> None:
        self._fields = fields
        self._kinds, kind = np.unique(_hashed(begins, fields), return_inverse=True)
        self._sorted = np.sort(kind << 32 | np.arange(1, len(begins) + 1))

    def last(self, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The number of the last begin for each row, among so many first ones; 0 for none."""
        hashes = _hashed(rows, self._fields)
        kind = np.minimum(np.searchsorted(self._kinds, hashes), len(self._kinds) - 1)
        latest = kind << 32 | before
        found = self._sorted[np.searchsorted(self._sorted, latest, "right") - 1]
        known = (self._kinds[kind] == hashes) & (found >> 32 == kind) & (found <= latest)
        return np.where(known, found & 0xFFFFFFFF, 0)


def _begins(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The rows that begin arrows in rising time; none if they are too many."""
    found, count = [np.zeros(0, TABLES["flows"].dtype)], 0
    for rows in blocks:
        begins = rows[rows["phase"] == _BEGIN]
        count += len(begins)
        if count > MOST:
            return found[0]
        found.append(begins)
    begins = np.concatenate(found)
    return begins[np.argsort(begins["time"], kind="stable")]


def _hashed(rows: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """A number of 64 bits for what fields hold."""
    mixed = np.zeros(len(rows), np.uint64)
    for name in fields:
        mixed = (mixed ^ rows[name]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed
