"""NVTX ranges projected onto streams: from the first begin to the last end of the work that was launched inside.

A range holds what its thread launched from its begin to its end; for a start/end range that is the thread that began
it. On each stream that such work ran on, the range becomes one slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ...runbin import BlockInfo
from ...runbin.layout import TABLES
from ...trace import Trace
from .launched import Launches
from .numbered import Numbered
from .spool import Spool
from .styles import QUEUE_FIELDS
from .tracks import PROJECTED, never_ended

_RANGE = TABLES["nvtx_ranges"]
_KEPT = tuple(name for name in PROJECTED.offsets if name in _RANGE.offsets and name not in ("start", "end"))

#: How many calls are noted before it is looked in which ranges they are, and how many ranges there are before it is
#: looked which of them can be forgotten.
MANY_CALLS, MANY_RANGES = 1 << 16, 1 << 14

_SEEN = np.dtype([("range", "<i8"), ("queue", "<u4"), ("start", "<u8"), ("end", "<u8")])
_LATEST = np.uint64((1 << 64) - 1)


class Projection:
    """The ranges of one process, read along with the work that was launched in them. What becomes of them is put into a
    spool of :data:`PROJECTED`."""

    def __init__(
        self, trace: Trace, process: int, infos: list[BlockInfo], launches: Launches, queues: Numbered, spool: Spool
    ) -> None:
        self._trace, self._launches, self._queues, self._spool = trace, launches, queues, spool
        self._shift = trace.processes[process].clock_offset
        self._unread = deque(sorted(infos, key=lambda info: info.first_time))
        self._ranges = np.zeros(0, _RANGE.dtype)
        self._index()
        self._seen: list[np.ndarray] = []  # their ranges are numbers of rows in _ranges
        self._limit = MANY_RANGES

    @property
    def active(self) -> bool:
        """Whether there are ranges."""
        return bool(self._unread) or bool(len(self._ranges))

    def advance(self, until: int) -> None:
        """Read the ranges that begin before a moment."""
        read = [self._ranges]
        while self._unread and self._unread[0].first_time + self._shift < until:
            known, unknown = self._trace.block(self._unread.popleft())
            still_open = unknown[never_ended(_RANGE.name, unknown)]
            if len(still_open):
                still_open["end"] = _LATEST
            read += [known, still_open]
        if len(read) > 1:
            self._ranges = np.concatenate(read)
            self._index()

    def settle(self, until: int) -> None:
        """Pass on the ranges that no work can belong to any more, now that all work that begins before a moment is
        noted."""
        if until == int(_LATEST):
            self._look()
            self._pass_on(np.ones(len(self._ranges), bool))
            return
        if self._launches.noted > MANY_CALLS:
            self._look()
        if len(self._ranges) + sum(map(len, self._seen)) > self._limit:
            self._look()
            over = self._ranges["end"] < self._launches.horizon
            ended = ~over & (self._ranges["end"] < until)
            ended[ended] = ~self._launches.any_in(*(self._ranges[f][ended] for f in ("thread", "start", "end")))
            self._pass_on(over | ended)
            self._limit = 2 * (len(self._ranges) + len(self._seen[0])) + MANY_RANGES

    def _index(self) -> None:
        """Bring the ranges of each thread into the order of their begin."""
        self._threads: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = {}
        threads = self._ranges["thread"]
        for thread in np.unique(threads).tolist():
            rows = np.flatnonzero(threads == thread)
            rows = rows[np.argsort(self._ranges["start"][rows], kind="stable")]
            ends = self._ranges["end"][rows]
            self._threads[thread] = rows, self._ranges["start"][rows], ends, np.maximum.accumulate(ends)

    def _look(self) -> None:
        """Look in which ranges the work is that was noted."""
        for thread, queue, launched, start, end in self._launches.take():
            if thread not in self._threads:
                continue
            if (launched[1:] < launched[:-1]).any():
                order = np.argsort(launched, kind="stable")
                launched, start, end = launched[order], start[order], end[order]
            rows, starts, ends, reach = self._threads[thread]
            # Ranges in the order of their begin; none before the first one here reaches this far.
            near = slice(np.searchsorted(reach, launched[0]), np.searchsorted(starts, launched[-1], "right"))
            edges = np.searchsorted(launched, starts[near]), np.searchsorted(launched, ends[near], "right")
            some = edges[1] > edges[0]
            if not some.any():
                continue
            # One entry more, so that an edge may lie behind the last.
            between = np.stack(edges, axis=1)[some].reshape(-1)
            seen = np.empty(int(some.sum()), _SEEN)
            seen["range"], seen["queue"] = rows[near][some], queue
            seen["start"] = np.minimum.reduceat(np.append(start, _LATEST), between)[::2]
            seen["end"] = np.maximum.reduceat(np.append(end, np.uint64(0)), between)[::2]
            self._seen.append(seen)

    def _pass_on(self, done: np.ndarray) -> None:
        """Put the slices of ranges into the spool, and forget the ranges."""
        seen = _merged(self._seen)
        ready = done[seen["range"]]
        chosen = seen[ready]
        chosen = chosen[np.argsort(chosen["start"], kind="stable")]
        rows = np.zeros(len(chosen), PROJECTED.dtype)
        ranges = self._ranges[chosen["range"]]
        for name in _KEPT:
            rows[name] = ranges[name]
        rows["start"], rows["end"] = chosen["start"], chosen["end"]
        keys = np.array([*self._queues.keys, (0, 0, 0)], np.uint32)[chosen["queue"]]
        for i, name in enumerate(QUEUE_FIELDS):
            rows[name] = keys[:, i]
        self._spool.add(rows)
        kept = seen[~ready]
        kept["range"] = (np.cumsum(~done) - 1)[kept["range"]]
        self._seen, self._ranges = [kept], self._ranges[~done]
        self._index()


def _merged(parts: Sequence[np.ndarray]) -> np.ndarray:
    """What was seen of each range on each stream, as one row."""
    seen = np.concatenate([np.zeros(0, _SEEN), *parts])
    if not len(seen):
        return seen
    seen = seen[np.lexsort((seen["queue"], seen["range"]))]
    new = np.append(True, (seen["range"][1:] != seen["range"][:-1]) | (seen["queue"][1:] != seen["queue"][:-1]))
    at = np.flatnonzero(new)
    out = seen[at]
    out["start"], out["end"] = np.minimum.reduceat(seen["start"], at), np.maximum.reduceat(seen["end"], at)
    return out
