"""Unions of intervals of time, and how long they last within windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .rows import time_order


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals, ascending: ``start`` and ``end`` (ns, int64)."""

    start: np.ndarray
    end: np.ndarray

    @classmethod
    def none(cls) -> Intervals:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty)

    @classmethod
    def union(cls, start: np.ndarray, end: np.ndarray) -> Intervals:
        """The union of any intervals. An interval that ends when it starts, or before, is empty."""
        lasting = start < end
        start = start[lasting]
        end = end[lasting]
        if not len(start):
            return cls.none()
        order = time_order(start)
        if order is not None:
            start = start[order]
            end = end[order]
        reached = np.maximum.accumulate(end)
        # A new interval starts where all earlier intervals have ended.
        is_apart = start[1:] > reached[:-1]
        starts = np.append(True, is_apart)
        ends = np.append(is_apart, True)
        return cls(start[starts], reached[ends])

    @property
    def length(self) -> int:
        """The sum (ns) of the lengths of all intervals."""
        lengths = self.end - self.start
        return int(lengths.sum())

    def __or__(self, other: Intervals) -> Intervals:
        if not len(other.start):
            return self
        start = np.append(self.start, other.start)
        end = np.append(self.end, other.end)
        return Intervals.union(start, end)

    def after(self, time: int) -> Intervals:
        """The intervals that end after a time (ns)."""
        later = self.end > time
        return Intervals(self.start[later], self.end[later])

    def within(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The length (ns) of the intervals within each window from ``start`` to ``end``. Windows may overlap."""
        return self._until(end) - self._until(start)

    def _until(self, times: np.ndarray) -> np.ndarray:
        """The length of the intervals up to each time."""
        lengths = self.end - self.start
        whole = np.append(0, np.cumsum(lengths))
        starts = np.append(0, self.start)
        ends = np.append(0, self.end)
        # The last interval that starts up to each time. Index 0 is an empty interval.
        last = np.searchsorted(starts, times, side="right") - 1
        after_time = np.maximum(ends[last] - times, 0)
        return whole[last] - after_time


class GrowingIntervals:
    """Intervals that are added in pieces, in any order. Memory grows with the disjoint intervals."""

    #: The smallest number of added intervals to unite.
    LOOSE = 1 << 18

    def __init__(self) -> None:
        self._united = Intervals.none()
        self._starts: list[np.ndarray] = []
        self._ends: list[np.ndarray] = []
        self._loose = 0

    def add(self, start: np.ndarray, end: np.ndarray) -> None:
        """Add intervals (ns). An interval that ends when it starts, or before, is empty."""
        self._starts.append(start)
        self._ends.append(end)
        self._loose += len(start)
        united = len(self._united.start)
        if self._loose > max(self.LOOSE, united):
            self.united()

    def united(self) -> Intervals:
        """The union of all intervals that were added."""
        if self._starts:
            united = self._united
            start = np.concatenate([united.start, *self._starts])
            end = np.concatenate([united.end, *self._ends])
            self._united = Intervals.union(start, end)
            self._starts = []
            self._ends = []
            self._loose = 0
        return self._united

    def forget(self, time: int) -> None:
        """Forget the intervals that end by a time (ns)."""
        united = self.united()
        self._united = united.after(time)
