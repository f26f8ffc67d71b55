"""Sets of moments: disjoint intervals of time, and how long they last within windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals, ascending: ``start`` and ``end`` (ns, int64)."""

    start: np.ndarray
    end: np.ndarray

    @classmethod
    def none(cls) -> Intervals:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def union(cls, start: np.ndarray, end: np.ndarray) -> Intervals:
        """The moments of any intervals. Those that end when they start, or before, have none."""
        lasting = start < end
        start = start[lasting]
        order = np.argsort(start, kind="stable")
        start = start[order]
        reached = np.maximum.accumulate(end[lasting][order])
        # An interval begins where all earlier ones have ended.
        apart = start[1:] > reached[:-1]
        firsts = np.flatnonzero(np.append(True, apart)[: len(start)])
        lasts = np.append(firsts[1:], len(start))[: len(firsts)] - 1
        return cls(start[firsts], reached[lasts])

    def __or__(self, other: Intervals) -> Intervals:
        start = np.append(self.start, other.start)
        end = np.append(self.end, other.end)
        return Intervals.union(start, end)

    def after(self, time: int) -> Intervals:
        """The intervals that end after a time (ns)."""
        first = np.searchsorted(self.end, time, side="right")
        return Intervals(self.start[first:], self.end[first:])

    def within(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """How long (ns) the intervals last within each window from ``start`` to ``end``. Windows may overlap."""
        if not len(self.start):
            return np.zeros(len(start), np.int64)
        lengths = self.end - self.start
        before = np.cumsum(lengths) - lengths
        length: np.ndarray = self._until(before, end) - self._until(before, start)
        return length

    def _until(self, before: np.ndarray, times: np.ndarray) -> np.ndarray:
        """How long the intervals last up to each time. ``before`` is the length of all intervals before each one."""
        place = np.searchsorted(self.start, times, side="right") - 1
        inside = np.minimum(times, self.end[place]) - self.start[place]
        return np.where(place < 0, 0, before[place] + inside)


class GrowingIntervals:
    """Intervals that are added in pieces, in any order. Memory grows with the disjoint intervals."""

    #: Pieces are united when there are this many more of them.
    LOOSE = 1 << 18

    def __init__(self) -> None:
        self._united = Intervals.none()
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = []
        self._loose = 0

    def add(self, start: np.ndarray, end: np.ndarray) -> None:
        """Add intervals (ns); those that end when they start, or before, have no moments."""
        self._pieces.append((start, end))
        self._loose += len(start)
        if self._loose > max(self.LOOSE, len(self._united.start)):
            self.united()

    def united(self) -> Intervals:
        """The moments of all intervals that were added."""
        if self._pieces:
            starts = [start for start, _ in self._pieces]
            ends = [end for _, end in self._pieces]
            start = np.concatenate([self._united.start, *starts])
            end = np.concatenate([self._united.end, *ends])
            self._united = Intervals.union(start, end)
            self._pieces = []
            self._loose = 0
        return self._united

    def forget(self, time: int) -> None:
        """Forget the intervals that end by a time (ns)."""
        self._united = self.united().after(time)
