"""Which range a launch belongs to. All that finds the GPU work of a range asks here, so all give the same work.

A launch at time t by thread T belongs to the innermost range of T with start <= t < end. A range without an end lasts
to the end of its process. If T has no range open at t, the launch is adopted by the innermost range of the one thread
of its process that has one open; if several threads have, it belongs to none. docs/ranges.md describes the rule.

The ranges around the innermost one contain the launch, too. So the answer is a thread: the launch is in all ranges of
this thread that are open at t.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from .._native import RangeThreads
from ..runbin.blocks import BlockInfo
from ..runbin.layout import HOST_SLICE_KINDS
from .rows import with_open

#: How a launch belongs to ranges: to those of its own thread, to those of the only thread that has one open, or to
#: none, because several threads have one open, or because no thread has.
OWN = RangeThreads.OWN
ADOPTED = RangeThreads.ADOPTED
SEVERAL = RangeThreads.SEVERAL
NONE = RangeThreads.NONE

#: Whether ranges adopt launches of other threads, or contain those of their own thread only.
RangesBy = Literal["adopted", "own"]

#: The tables with ranges.
RANGE_TABLES = ("nvtx_ranges", "host_slices")

_ANNOTATION = next(
    number for number, name in HOST_SLICE_KINDS.items() if name == "annotation"
)


def are_ranges(table: str, rows: Any) -> np.ndarray:
    """A mask of the rows of a table of :data:`RANGE_TABLES` (an array, or columns by name) that are ranges: all NVTX
    ranges, and the annotations on threads that stand for them in traces of other tools. The thread of a start/end range
    is the one that started it."""
    if table == "nvtx_ranges":
        return np.ones(len(rows), bool)
    mask: np.ndarray = rows["kind"] == _ANNOTATION
    mask &= rows["track"] == 0
    return mask


class Ranges:
    """The ranges of one process, which are added in step with its launches. With ``by="own"`` no launch is adopted."""

    def __init__(self, by: RangesBy = "adopted") -> None:
        self._threads = RangeThreads(by != "own")

    def add(self, table: str, rows: Any) -> None:
        """Add the ranges among rows of a table: an array, or columns by name, with the ends of
        :func:`.rows.with_open`."""
        columns = rows["thread"], rows["start"], rows["end"]
        mask = are_ranges(table, rows)
        if not mask.all():
            columns = tuple(column[mask] for column in columns)
        self._threads.add(*columns)

    def owners(
        self, threads: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The thread whose ranges each launch is in, and how: :data:`OWN`, :data:`ADOPTED`, :data:`SEVERAL` or
        :data:`NONE`; with the last two the thread means nothing.

        All ranges that start up to the last of these times (ns) must have been added. Times of later calls may be
        earlier, but a launch that is more than a million changes of ranges behind is in no range.
        """
        owner, how = self._threads.find(threads, times)
        return owner, how


class BlockRanges(Ranges):
    """The ranges of one process, whose blocks ``infos`` are read in step with its calls. ``read`` returns the rows of a
    block with known times, and the others."""

    def __init__(
        self,
        read: Callable[[BlockInfo], tuple[np.ndarray, np.ndarray]],
        infos: Sequence[BlockInfo],
        by: RangesBy,
    ) -> None:
        super().__init__(by)
        self._read = read
        self.unread = deque(sorted(infos, key=lambda info: info.first_time))

    def advance(self, until: int) -> None:
        """Add the ranges that start before a time (ns)."""
        while self.unread and self.unread[0].first_time < until:
            info = self.unread.popleft()
            table = info.table or ""
            self.add(table, with_open(table, *self._read(info)))

    def owners_of(self, calls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The owners of rows of ``api_calls``, as :meth:`owners`. Blocks of calls have to come in rising time."""
        if len(calls):
            self.advance(int(calls["start"].max()) + 1)
        return self.owners(calls["thread"], calls["start"])
