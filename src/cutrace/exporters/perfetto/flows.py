"""Flows between slices: give each flow its own id, and find the steps that need a slice.

Viewers accept one begin event for each id. They ignore a second begin event and connect all ends to the first. Sources
reuse the id of a flow that has ended, and merged files use the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...runbin.layout import TABLES
from .proto import Columns

#: In a trace with more flows than this, all flows keep the ids of the source.
MOST = 1 << 19

#: The first new id for flows whose id is in use, and for flows whose id is a string in the source.
_AGAIN = np.uint64(1 << 62)
_TEXT_IDS = np.uint64(1 << 63)
_BEGIN = ord("s")
_END = ord("f")
#: The fields that identify a flow.
_FLOW = ("category", "name", "id", "text")


class Flows:
    """Ids for the steps of flows, from blocks of ``flows``. A step belongs to the last earlier flow with its id in its
    process. If there is none, it belongs to the last earlier flow with its id in any process."""

    def __init__(self, blocks: Iterable[np.ndarray]) -> None:
        begins = _begins(blocks)
        _, first = np.unique(_hashed(begins, _FLOW), return_index=True)
        # For each begin event, by number from 1: whether an earlier begin event has the same id. Entry 0 stands for
        # none.
        self._again = np.ones(len(begins) + 1, bool)
        self._again[0] = False
        self._again[first + 1] = False
        if self._again.any():
            self._times = begins["time"]
            self._anywhere = _Begins(begins, _FLOW)
            self._within = _Begins(begins, ("process", *_FLOW))

    def columns(self, rows: np.ndarray) -> Columns:
        """Columns of steps: ``phase``, ``id`` (uint64), ``bind_to_enclosing``."""
        texts = rows["text"].astype(np.uint64) | _TEXT_IDS
        ids = np.where(rows["text"] > 0, texts, rows["id"])
        return {
            "phase": rows["phase"],
            "id": self._renamed(rows, ids),
            "bind_to_enclosing": rows["flags"] & 1,
        }

    def _renamed(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        if not self._again.any():
            return ids
        before = np.searchsorted(self._times, rows["time"], "right")
        within = self._within.last(rows, before)
        anywhere = self._anywhere.last(rows, before)
        flow = np.where(within > 0, within, anywhere)
        new_ids = flow.astype(np.uint64) | _AGAIN
        return np.where(self._again[flow], new_ids, ids)


def needs_slice(rows: np.ndarray) -> np.ndarray:
    """A mask of the steps that need a slice around them. The end of a flow may bind to the next slice instead."""
    encloses = (rows["flags"] & 1) == 1
    return (rows["phase"] != _END) | encloses


class _Begins:
    """The begin events of flows in the order of time, numbered from 1, indexed by the values of ``fields``."""

    def __init__(self, begins: np.ndarray, fields: Sequence[str]) -> None:
        self._fields = fields
        self._kinds, kind = np.unique(_hashed(begins, fields), return_inverse=True)
        numbers = np.arange(1, len(begins) + 1)
        self._sorted = np.sort(kind << 32 | numbers)

    def last(self, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
        """For each row, the number of the last begin event among the first ``before``; 0 for none."""
        hashes = _hashed(rows, self._fields)
        kind = np.searchsorted(self._kinds, hashes)
        kind = np.minimum(kind, len(self._kinds) - 1)
        latest = kind << 32 | before
        place = np.searchsorted(self._sorted, latest, "right") - 1
        entry = self._sorted[place]
        known = self._kinds[kind] == hashes
        known &= entry >> 32 == kind
        known &= entry <= latest
        return np.where(known, entry & 0xFFFFFFFF, 0)


def _begins(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The begin events of flows in the order of time; no rows if there are more than :data:`MOST`."""
    parts = [np.zeros(0, TABLES["flows"].dtype)]
    count = 0
    for rows in blocks:
        begins = rows[rows["phase"] == _BEGIN]
        count += len(begins)
        if count > MOST:
            return parts[0]
        parts.append(begins)
    begins = np.concatenate(parts)
    order = np.argsort(begins["time"], kind="stable")
    return begins[order]


def _hashed(rows: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """A 64-bit hash of the values of some fields, by row."""
    mixed = np.zeros(len(rows), np.uint64)
    for name in fields:
        mixed = (mixed ^ rows[name]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed
