"""NVTX ranges projected onto streams: from the first begin to the last end of the work that was launched inside.

A range holds what its thread launched from its begin to its end; for a start/end range that is the thread that began
it. On each stream that such work ran on, the range becomes one slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ....runbin import BlockInfo
from ....runbin.layout import TABLES
from ....trace.rows import joined, never_ended
from ..gpu_events import QUEUE_FIELDS, KeyIndex
from ..host_tables import PROJECTED, Spool
from .launches import LaunchIndex, ReadBlock

_RANGE = TABLES["nvtx_ranges"]
_KEPT = tuple(name for name in PROJECTED.offsets if name in _RANGE.offsets and name not in ("start", "end"))

#: How many calls are noted before it is looked in which ranges they are, and how many ranges there are before it is
#: looked which of them can be forgotten.
MANY_CALLS, MANY_RANGES = 1 << 16, 1 << 13

_LATEST = np.uint64((1 << 64) - 1)
#: For each range and each call, so many ranges may be looked at: that is enough for ranges that nest as programs let
#: them, and streams as programs use them; ranges that all overlap, on a stream for each call, would take for ever.
_LOOKS = 256
#: Rows of structured arrays are moved faster as plain bytes.
_BYTES = f"V{_RANGE.row_size}"


#: What was seen of a range (its number) on a stream: the first begin and the last end of work.
_SEEN = np.dtype([("range", np.int64), ("queue", np.uint32), ("start", np.uint64), ("end", np.uint64)])


class Projection:
    """The ranges of one process, read along with the work that was launched in them. What becomes of them is put into a
    spool of :data:`PROJECTED`."""

    def __init__(
        self, read: ReadBlock, infos: list[BlockInfo], launches: LaunchIndex, queues: KeyIndex, spool: Spool
    ) -> None:
        self._read, self._launches, self._queues, self._spool = read, launches, queues, spool
        self._unread = deque(infos)
        self._ranges = np.zeros(0, _RANGE.dtype)
        # By thread, its ranges in the order of their begin: their rows, begins, ends, and the latest end so far.
        self._threads: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = {}
        self._seen: list[np.ndarray] = []  # their ranges are numbers of rows in _ranges
        self._limit = MANY_RANGES
        self._may_look = 0
        #: How often it was not looked whether work is in a range.
        self.dropped = 0

    @property
    def active(self) -> bool:
        return bool(self._unread) or bool(len(self._ranges))

    def advance(self, until: int) -> None:
        read = [self._ranges]
        while self._unread and self._unread[0].first_time < until:
            known, unknown = self._read(self._unread.popleft())
            still_open = unknown[never_ended(_RANGE.name, unknown)]
            if len(still_open):
                still_open["end"] = _LATEST
            read += [known, still_open]
        if len(read) > 1:
            self._may_look += _LOOKS * sum(map(len, read[1:]))
            self._ranges, self._threads = joined(_RANGE, read), {}

    def settle(self, until: int) -> None:
        """Pass on the ranges that no work can belong to any more, now that all work that begins before a moment is
        noted."""
        if until == int(_LATEST):
            self._look()
            self._pass_on(np.ones(len(self._ranges), bool))
            return
        if self._launches.calls.noted > MANY_CALLS:
            self._look()
        if len(self._ranges) + sum(map(len, self._seen)) > self._limit:
            self._look()
            over = self._ranges["end"] < self._launches.horizon
            if 2 * int(over.sum()) < len(over):
                # Ranges without any call in them need not wait for the work of the calls that are remembered.
                ended = ~over & (self._ranges["end"] < until)
                over[ended] = ~self._launches.any_in(*(self._ranges[f][ended] for f in ("thread", "start", "end")))
            self._pass_on(over)
            self._limit = 2 * (len(self._ranges) + len(self._seen[0])) + MANY_RANGES

    def _index(self) -> None:
        """Bring the ranges of each thread into the order of their begin."""
        threads, starts, ends = (np.ascontiguousarray(self._ranges[f]) for f in ("thread", "start", "end"))
        order = np.lexsort((starts, threads))
        found, begins = np.unique(threads[order], return_index=True)
        for thread, rows in zip(found.tolist(), np.split(order, begins[1:]), strict=False):
            self._threads[thread] = rows, starts[rows], ends[rows], np.maximum.accumulate(ends[rows])

    def _look(self) -> None:
        """Look in which ranges the work is that was noted."""
        if not self._threads:
            self._index()
        for thread, queue, launched, start, end in self._launches.calls.take():
            if thread not in self._threads:
                continue
            if (launched[1:] < launched[:-1]).any():
                order = np.argsort(launched, kind="stable")
                launched, start, end = launched[order], start[order], end[order]
            rows, starts, ends, reach = self._threads[thread]
            # Ranges in the order of their begin; none before the first one here reaches this far.
            near = slice(np.searchsorted(reach, launched[0]), np.searchsorted(starts, launched[-1], "right"))
            self._may_look += _LOOKS * len(launched)
            self._may_look -= int(near.stop - near.start)
            if self._may_look < 0:
                self.dropped += int(near.stop - near.start)
                continue
            edges = np.searchsorted(launched, starts[near]), np.searchsorted(launched, ends[near], "right")
            some = edges[1] > edges[0]
            if some.any():
                ranges, begins, stops = rows[near][some], edges[0][some], edges[1][some]
                first = _extremes(np.minimum, start, begins, stops)
                last = _extremes(np.maximum, end, begins, stops)
                seen = np.empty(len(ranges), _SEEN)
                seen["range"], seen["queue"], seen["start"], seen["end"] = ranges, queue, first, last
                self._seen.append(seen)

    def _pass_on(self, done: np.ndarray) -> None:
        """Put the slices of ranges into the spool, and forget the ranges."""
        seen = _merged(self._seen)
        ready = done[seen["range"]]
        chosen, kept = seen[ready], seen[~ready]
        chosen = chosen[np.argsort(chosen["start"], kind="stable")]
        rows = np.zeros(len(chosen), PROJECTED.dtype)
        ranges = self._ranges.view(_BYTES).take(chosen["range"]).view(_RANGE.dtype)
        for name in _KEPT:
            rows[name] = ranges[name]
        rows["start"], rows["end"] = chosen["start"], chosen["end"]
        keys = np.array([*self._queues.keys, (0, 0, 0)], np.uint32).take(chosen["queue"], axis=0)
        for i, name in enumerate(QUEUE_FIELDS):
            rows[name] = keys[:, i]
        self._spool.add(PROJECTED, rows)
        kept["range"] = (np.cumsum(~done) - 1)[kept["range"]]
        self._seen = [kept]
        self._ranges = self._ranges.view(_BYTES).compress(~done).view(_RANGE.dtype)
        self._threads = {}


def _extremes(choose: np.ufunc, values: np.ndarray, begins: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The lowest or highest value of each stretch; none is empty."""
    lengths = stops - begins
    if int(lengths.sum()) < 16 * (len(values) + len(lengths)):
        # One value more, so that an edge may lie behind the last.
        edges = np.stack([begins, stops], axis=1).reshape(-1)
        found: np.ndarray = choose.reduceat(np.append(values, values[-1]), edges)[::2]
        return found
    # Long stretches: two that overlap, of the longest length that is a power of two.
    powers = np.frexp(lengths)[1] - 1
    out = np.empty(len(lengths), values.dtype)
    for power in range(int(powers.max()) + 1):
        mine = np.flatnonzero(powers == power)
        out[mine] = choose(values[begins[mine]], values[stops[mine] - (1 << power)])
        if len(values) > 1 << power:
            values = choose(values[: -1 << power], values[1 << power :])
    return out


def _merged(parts: Sequence[np.ndarray]) -> np.ndarray:
    """What was seen of each range on each stream, as one row."""
    seen = np.concatenate([np.zeros(0, _SEEN), *parts])
    if not len(seen):
        return seen
    key = seen["range"] << 32 | seen["queue"]
    order = np.argsort(key, kind="stable")
    key, seen = key[order], seen[order]
    at = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    merged = seen[at]
    merged["start"], merged["end"] = np.minimum.reduceat(seen["start"], at), np.maximum.reduceat(seen["end"], at)
    return merged
