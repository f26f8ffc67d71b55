"""NVTX ranges projected onto streams.

A range contains the work that :class:`cutrace.trace.ranges.Ranges` gives it. On each stream with such work, the range
becomes one slice, from the first start to the last end of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....runbin.layout import TABLES
from ....trace.ranges import nest_number, nest_numbers
from ....trace.rows import ascends, changes, chosen, joined
from ..gpu_styles import KeyIndex
from ..gpu_tables import QUEUE_FIELDS
from ..host_tables import PROJECTED, Spool
from .launches import LaunchIndex, RangesAhead

_RANGE = TABLES["nvtx_ranges"]
_KEPT = (PROJECTED.offsets.keys() & _RANGE.offsets.keys()) - {"start", "end"}

#: A search for the ranges of calls starts after this number of noted calls. A search for finished ranges starts after
#: this number of ranges.
MANY_CALLS = 1 << 16
MANY_RANGES = 1 << 13

_LATEST = np.uint64((1 << 64) - 1)
#: Each range and each call adds this many comparisons to the search budget. Nested ranges need fewer. Without a limit,
#: overlapping ranges with one stream for each call would take quadratic time.
_LOOKS = 256


#: The bits for the kinds of work of a range on a stream.
OWN_WORK = 1
ADOPTED_WORK = 2
#: The work of a range (by number) on a stream so far: the first start, the last end, and the kinds of its work.
_SEEN = np.dtype(
    [
        ("range", np.int64),
        ("queue", np.uint32),
        ("start", np.uint64),
        ("end", np.uint64),
        ("work", np.uint8),
    ]
)


class RangesOnStreams:
    """The NVTX ranges of one process, read in step with the work launched in them. The slices are put into a spool of
    :data:`PROJECTED`."""

    def __init__(
        self,
        ranges_ahead: RangesAhead,
        launches: LaunchIndex,
        queues: KeyIndex,
        spool: Spool,
    ) -> None:
        self._ahead = ranges_ahead
        self._launches = launches
        self._queues = queues
        self._spool = spool
        self._ranges = np.zeros(0, _RANGE.dtype)
        # By nest, for its ranges in the order of their start: rows, starts, ends, and the latest end so far.
        self._nests: dict[
            int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
        ] = {}
        self._seen: list[np.ndarray] = []  # A range is an index into _ranges.
        self._limit = MANY_RANGES
        self._may_look = 0
        #: The number of ranges not matched with work, because the search budget was used up.
        self.dropped = 0

    @property
    def active(self) -> bool:
        return self._ahead.left or bool(len(self._ranges))

    def advance(self, until: int) -> None:
        read = [self._ranges, *self._ahead.take(until)]
        if len(read) > 1:
            self._may_look += _LOOKS * sum(map(len, read[1:]))
            self._ranges = joined(_RANGE.dtype, read)
            self._nests = {}

    def settle(self, until: int) -> None:
        """Write the ranges that can get no more work. All work that starts before ``until`` must be noted."""
        if until == int(_LATEST):
            self._look()
            self._pass_on(np.ones(len(self._ranges), bool))
            return
        if self._launches.kept.noted > MANY_CALLS:
            self._look()
        seen = sum(map(len, self._seen))
        if len(self._ranges) + seen > self._limit:
            self._look()
            over = self._ranges["end"] < self._launches.horizon
            if 2 * int(over.sum()) < len(over):
                # Ended ranges without a kept call get no more work.
                ended = ~over & (self._ranges["end"] < until)
                over[ended] = ~self._launches.any_in(
                    self._nest_numbers()[ended],
                    self._ranges["start"][ended],
                    self._ranges["end"][ended],
                )
            self._pass_on(over)
            kept = len(self._ranges) + len(self._seen[0])
            self._limit = 2 * kept + MANY_RANGES

    def _nest_numbers(self) -> np.ndarray:
        return nest_numbers(self._ranges["thread"], self._ranges["domain"])

    def _index(self) -> None:
        """Sort the ranges of each nest by their start."""
        nests = self._nest_numbers()
        starts = np.ascontiguousarray(self._ranges["start"])
        ends = np.ascontiguousarray(self._ranges["end"])
        order = np.lexsort((starts, nests))
        distinct, begins = np.unique(nests[order], return_index=True)
        rows_of = np.split(order, begins[1:])
        for nest, rows in zip(distinct.tolist(), rows_of, strict=False):
            ends_of = ends[rows]
            reach = np.maximum.accumulate(ends_of)
            self._nests[nest] = (rows, starts[rows], ends_of, reach)

    def _look(self) -> None:
        """Find the ranges of the noted work."""
        if not self._nests:
            self._index()
        for owner, queue, launched, start, end in self._launches.kept.take():
            if not ascends(launched):
                order = np.argsort(launched, kind="stable")
                launched = launched[order]
                start = start[order]
                end = end[order]
            for nest in self._ahead.sets[owner]:
                kind = ADOPTED_WORK if nest.adopted else OWN_WORK
                number = nest_number(nest.thread, nest.domain)
                self._look_in(number, queue, kind, launched, start, end)

    def _look_in(
        self,
        nest: int,
        queue: int,
        kind: int,
        launched: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        """Find the ranges of a nest around work on a queue. The work is given by its launches, which ascend, and its
        starts and ends."""
        if nest not in self._nests:
            return
        rows, starts, ends, reach = self._nests[nest]
        # Only these ranges can contain the launches: earlier ranges end before the first launch.
        near_begin = int(np.searchsorted(reach, launched[0]))
        near_end = int(np.searchsorted(starts, launched[-1], "right"))
        near = slice(near_begin, near_end)
        self._may_look += _LOOKS * len(launched)
        self._may_look -= near_end - near_begin
        if self._may_look < 0:
            self.dropped += near_end - near_begin
            return
        begins = np.searchsorted(launched, starts[near])
        stops = np.searchsorted(launched, ends[near])
        some = stops > begins
        if some.any():
            begins = begins[some]
            stops = stops[some]
            seen = np.empty(len(begins), _SEEN)
            seen["range"] = rows[near][some]
            seen["queue"] = queue
            seen["start"] = _extremes(np.minimum, start, begins, stops)
            seen["end"] = _extremes(np.maximum, end, begins, stops)
            seen["work"] = kind
            self._seen.append(seen)

    def _pass_on(self, done: np.ndarray) -> None:
        """Put the slices of ranges into the spool and forget the ranges. ``done`` is a mask of the ranges."""
        seen = _merged(self._seen)
        ready = done[seen["range"]]
        over = chosen(seen, ready)
        kept = chosen(seen, ~ready)
        # Ranges with the same work nest as on the host: by start, then by length, longer ranges first. If ranges have
        # equal times, the inner range has the greater depth or was written first.
        starts = self._ranges["start"][over["range"]]
        ends = self._ranges["end"][over["range"]]
        order = np.lexsort(
            (
                -over["range"],
                self._ranges["depth"][over["range"]],
                _LATEST - ends,
                starts,
                _LATEST - over["end"],
                over["start"],
            )
        )
        over = chosen(over, order)
        rows = np.zeros(len(over), PROJECTED.dtype)
        rows["adopted"] = over["work"]
        ranges = chosen(self._ranges, over["range"])
        for name in _KEPT:
            rows[name] = ranges[name]
        rows["start"] = over["start"]
        rows["end"] = over["end"]
        streams = [*self._queues.keys, (0, 0, 0)]
        keys = np.array(streams, np.uint32)
        keys = keys.take(over["queue"], axis=0)
        for column, name in enumerate(QUEUE_FIELDS):
            rows[name] = keys[:, column]
        self._spool.add(PROJECTED, rows)
        new_numbers = np.cumsum(~done) - 1
        kept["range"] = new_numbers[kept["range"]]
        self._seen = [kept]
        self._ranges = chosen(self._ranges, ~done)
        self._nests = {}


def _extremes(
    choose: np.ufunc, values: np.ndarray, begins: np.ndarray, stops: np.ndarray
) -> np.ndarray:
    """The lowest or highest value of each interval of indices; no interval is empty."""
    lengths = stops - begins
    total = int(lengths.sum())
    if total < 16 * (len(values) + len(lengths)):
        # Append a value, because a stop may equal the number of values.
        edges = np.stack([begins, stops], axis=1).reshape(-1)
        extremes = choose.reduceat(np.append(values, values[-1]), edges)
        return extremes[::2]
    # Cover each long interval by two overlapping intervals. Their length is the largest power of two that fits.
    powers = np.frexp(lengths)[1] - 1
    out = np.empty(len(lengths), values.dtype)
    for power in range(int(powers.max()) + 1):
        mine = np.flatnonzero(powers == power)
        length = 1 << power
        front = values[begins[mine]]
        back = values[stops[mine] - length]
        out[mine] = choose(front, back)
        if len(values) > length:
            values = choose(values[:-length], values[length:])
    return out


def _merged(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Merge the rows of each range on each stream into one."""
    seen = joined(_SEEN, parts)
    if not len(seen):
        return seen
    key = seen["range"] << 32 | seen["queue"]
    order = np.argsort(key, kind="stable")
    key = key[order]
    seen = chosen(seen, order)
    at = np.flatnonzero(changes(key))
    merged = chosen(seen, at)
    merged["start"] = np.minimum.reduceat(seen["start"], at)
    merged["end"] = np.maximum.reduceat(seen["end"], at)
    merged["work"] = np.bitwise_or.reduceat(seen["work"], at)
    return merged
