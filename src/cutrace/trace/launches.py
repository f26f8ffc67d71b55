"""Which API call launched which GPU work. All code that joins calls and work uses this module.

Work has the correlation id of its call, among the calls of its process; id 0 stands for an unknown call. A runtime call
and the driver calls inside it share an id: the outermost call, which starts first, is the launch.

:class:`Launches` has the calls of a trace. :meth:`~Launches.outermost` finds the call of any work, with all calls in
memory. :meth:`~Launches.ids` returns the ids of the calls of some work, and :meth:`~Launches.divided` splits the ids of
calls by a condition. :meth:`~Launches.of` finds the calls of work in bounded memory: it reads the calls in step with
the work. :class:`LaunchTimes` says which intervals contain a launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._native import Calls
from ..runbin.blocks import BlockInfo
from .ranges import RANGE_TABLES, BlockRanges, Ranges, RangesBy
from .rows import ascends, by_value, chosen, distinct, first_places, time_order

if TYPE_CHECKING:
    from .trace import Trace

#: The number of calls of a process that are remembered, as a power of two.
REMEMBERED_BITS = 20
#: The error of the clocks of host and GPU (ns). Work may seem to start this long before its call.
CLOCK_ERROR = 10_000_000


@dataclass(frozen=True)
class LaunchCalls:
    """The launching API call of each row of GPU work: ``start`` and ``end`` (ns), ``thread`` and ``function``. All are
    0 where ``known`` is False. ``owner`` is the set of nests of ``ranges`` that the call is in, and ``how`` is the way
    in which it belongs to them (:class:`cutrace.trace.ranges.Ranges`). Without ranges, the call is in no nest."""

    ranges: Ranges
    known: np.ndarray
    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    function: np.ndarray
    owner: np.ndarray
    how: np.ndarray

    def at(self, rows: slice) -> LaunchCalls:
        """The calls of some rows."""
        columns = (self.known, self.start, self.end, self.thread, self.function)
        owners = (self.owner, self.how)
        return LaunchCalls(
            self.ranges, *(column[rows] for column in (*columns, *owners))
        )

    @cached_property
    def nests(self) -> tuple[np.ndarray | slice, np.ndarray]:
        """The nests that the calls are in: pairs of an index of a row, and a nest, as :meth:`Ranges.members`."""
        return self.ranges.members(self.owner)


class NewestCalls:
    """The newest ``2**bits`` calls of one process. ``ranges`` finds the ranges that the calls are in. Add a range to it
    before the calls in the range."""

    def __init__(self, bits: int, ranges: Ranges | None = None) -> None:
        #: The kept calls.
        self.kept = Calls(bits)
        self._ranges = ranges or Ranges()

    def add(self, calls: Any) -> None:
        """Add rows of ``api_calls``: an array, or columns by name."""
        thread = calls["thread"]
        owner, how = self._ranges.owners(thread, calls["start"])
        self.kept.add(
            calls["correlation"],
            calls["start"],
            thread,
            calls["end"],
            calls["function"],
            owner,
            how,
        )

    def find(self, correlations: np.ndarray) -> LaunchCalls:
        """The calls with these ids."""
        return LaunchCalls(self._ranges, *self.kept.find(correlations))


#: Returns the rows of a block with known times, and the rows without.
ReadBlock = Callable[[BlockInfo], tuple[np.ndarray, np.ndarray]]


class CallBlocks(NewestCalls):
    """The newest calls of one process, read in step with the work that they launched. ``infos`` are the blocks of
    ``api_calls``."""

    #: The number of calls to read in one step.
    STEP = 1 << 16

    def __init__(
        self,
        read: ReadBlock,
        infos: Iterable[BlockInfo],
        bits: int,
        ranges: BlockRanges | None = None,
    ) -> None:
        super().__init__(bits, ranges)
        self._read = read
        self._of_blocks = ranges
        self._unread = deque(sorted(infos, key=lambda info: info.first_time))

    def steps(self, until: int) -> Iterator[tuple[int, list[BlockInfo]]]:
        """The calls of work that starts before ``until``, in steps. A step is a time, and the blocks to :meth:`read`
        before looking up work that starts before that time. The last time is ``until``."""
        blocks: list[BlockInfo] = []
        while self._unread and self._unread[0].first_time < until + CLOCK_ERROR:
            if sum(info.rows for info in blocks) > self.STEP:
                yield self._unread[0].first_time - CLOCK_ERROR, blocks
                blocks = []
            blocks.append(self._unread.popleft())
        yield until, blocks

    def read_until(self, until: int) -> None:
        """Read the calls of work that starts before ``until``."""
        for _, blocks in self.steps(until):
            for info in blocks:
                self.read(info)

    def read(self, info: BlockInfo) -> None:
        """Add the calls of a block, after the ranges that they are in."""
        rows = self._read(info)[0]
        if not len(rows):
            return
        if self._of_blocks is not None:
            self._of_blocks.advance(int(rows["start"].max()) + 1)
        self.add(rows)


class ProcessIds:
    """A set of ids (32 bits) of processes, from pairs of processes and ids."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        parts = [np.atleast_1d(_keys(process, ids)) for process, ids in pairs]
        self.keys = _sorted(parts, np.uint64)

    def has(self, process: Any, ids: np.ndarray) -> np.ndarray:
        """A mask of the ids that are in the set. ``process`` is one process for all ids, or an array with one for each
        id."""
        wanted = _keys(process, ids)
        if not len(wanted):
            return np.zeros(0, bool)
        # Ids of a block are close to each other: search only that range.
        begin = np.searchsorted(self.keys, wanted.min(), "left")
        end = np.searchsorted(self.keys, wanted.max(), "right")
        return _among(self.keys[begin:end], wanted)


class OwnedCalls(NamedTuple):
    """Rows of ``api_calls`` of one ``process``. ``nests`` are the nests that the calls are in: pairs of an index of a
    row and a nest, as :meth:`Ranges.members` returns them. It is None if ranges do not matter."""

    process: int
    rows: np.ndarray
    nests: tuple[np.ndarray | slice, np.ndarray] | None


class Launches:
    """The API calls of a trace, and the GPU work that they launched."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def outermost(self) -> OutermostLaunches:
        """The launching calls of the whole trace, in memory."""
        return OutermostLaunches(_outermost(self._trace))

    def ids(self, rows_of: Iterable[tuple[Any, np.ndarray]]) -> ProcessIds:
        """The ids of calls that were recorded. ``rows`` are pairs of a process, and rows of GPU work or calls."""
        pairs = []
        for process, rows in rows_of:
            ids = rows["correlation"]
            pairs.append((process, distinct(ids[ids != 0])))
        return ProcessIds(pairs)

    def divided(
        self, inside: Callable[[OwnedCalls], np.ndarray], by: RangesBy | None
    ) -> tuple[ProcessIds, ProcessIds]:
        """The ids of the calls that are ``inside``, and of the other calls. ``inside`` returns a mask of calls. ``by``
        is None if ranges do not matter. An id with calls of both kinds is in the second set. It is also in the first
        set if its outermost call is inside."""
        here = []
        away = []
        for calls in self._owned(by):
            mask = inside(calls)
            here.append((calls.process, calls.rows[mask]))
            away.append((calls.process, calls.rows[~mask]))
        ids_here = self.ids(here)
        ids_away = self.ids(away)
        both = ids_here.keys[_among(ids_away.keys, ids_here.keys)]
        if len(both):
            started_away = _outermost_is_away(self._owned(by), inside, both)
            ids_here.keys = np.setdiff1d(ids_here.keys, started_away)
        return ids_here, ids_away

    def _owned(self, by: RangesBy | None) -> Iterator[OwnedCalls]:
        """All calls, by process. The blocks of a process are in the order of time."""
        trace = self._trace
        infos_of = trace.infos_by_process(("api_calls", *RANGE_TABLES))
        for process, infos in enumerate(infos_of):
            ranges = None
            if by:
                of_ranges: list[BlockInfo] = []
                for table in RANGE_TABLES:
                    of_ranges += infos.get(table, ())
                ranges = BlockRanges(trace.block, of_ranges, by)
            calls = infos.get("api_calls", ())
            for info in sorted(calls, key=lambda info: info.first_time):
                rows, _ = trace.block(info)
                nests = None
                if ranges:
                    owner, _ = ranges.owners_of(rows)
                    nests = ranges.members(owner)
                yield OwnedCalls(process, rows, nests)


def _outermost_is_away(
    owned: Iterable[OwnedCalls],
    inside: Callable[[OwnedCalls], np.ndarray],
    keys: np.ndarray,
) -> np.ndarray:
    """The ids with an outermost call that ``inside`` does not select."""
    first: dict[int, tuple[int, bool]] = {}
    for calls in owned:
        all_keys = _keys(calls.process, calls.rows["correlation"])
        wanted = np.isin(all_keys, keys)
        times = calls.rows["start"][wanted].tolist()
        places = inside(calls)[wanted].tolist()
        wanted_keys = all_keys[wanted].tolist()
        for key, time, here in zip(wanted_keys, times, places, strict=True):
            call = (time, here)
            first[key] = min(first.get(key, call), call)
    away = [key for key, (_, here) in first.items() if not here]
    return np.array(away, np.uint64)


class OutermostLaunches:
    """The outermost ``calls`` of a trace: rows of ``api_calls``, ascending by start (``starts``, ns, int64)."""

    def __init__(self, calls: np.ndarray) -> None:
        self.calls = calls
        self.starts = calls["start"].astype(np.int64)
        keys = _keys(calls["process"], calls["correlation"])
        self._ids, self._at = first_places(keys)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The index of the call of each row of work, -1 if it was not recorded."""
        if not len(self._ids) or not len(rows):
            return np.full(len(rows), -1, np.int64)
        keys = _keys(rows["process"], rows["correlation"])
        place = np.searchsorted(self._ids, keys)
        place = np.minimum(place, len(self._ids) - 1)
        known = self._ids[place] == keys
        known &= rows["correlation"] != 0
        return np.where(known, self._at[place], -1)


def _outermost(trace: Trace) -> np.ndarray:
    """The outermost API calls, ascending by start. Calls without an id are in no other call."""
    calls: np.ndarray = trace.api_calls
    start = calls["start"].astype(np.int64)
    end = calls["end"].astype(np.int64)
    key = _keys(calls["process"], calls["correlation"])
    correlated = calls["correlation"] != 0
    distinct_keys = distinct(key[correlated])
    if len(distinct_keys) == np.count_nonzero(correlated):
        by_start = time_order(start)
        if by_start is None:
            return calls
        return chosen(calls, by_start)
    domain = trace.functions[calls["function"]]["domain"].astype(np.int64)
    order = np.lexsort((-domain, -end, start))
    key = key[order]
    correlated = correlated[order]
    _, first = first_places(key)
    outer = ~correlated
    outer[first] = True
    return chosen(calls, order[outer])


class LaunchTimes:
    """The times of the launches of threads. ``parts`` are starts of launches (ns) and their threads; the threads are
    None if they are not known."""

    def __init__(self, parts: Iterable[tuple[np.ndarray, np.ndarray | None]]) -> None:
        of_any: list[np.ndarray] = []
        of_threads: dict[int, list[np.ndarray]] = {}
        for starts, threads in parts:
            starts = starts.astype(np.int64)
            if threads is None:
                of_any.append(starts)
                continue
            numbers = distinct(threads).tolist()
            for number, at in zip(numbers, by_value(threads, numbers), strict=True):
                of_threads.setdefault(number, []).append(starts[at])
        #: By thread, the times of its launches, ascending. Launches of unknown threads are under None.
        self._of: dict[int | None, np.ndarray] = {}
        for thread, times in of_threads.items():
            self._of[thread] = _sorted(times, np.int64)
        if of_any:
            self._of[None] = _sorted(of_any, np.int64)

    def inside(
        self, starts: np.ndarray, ends: np.ndarray, threads: np.ndarray | None
    ) -> np.ndarray:
        """A mask of the intervals (ns, start <= t < end) with a launch of their thread inside. For thread 0, or without
        ``threads``, a launch of any thread counts."""
        mask = np.zeros(len(starts), bool)
        starts = starts.astype(np.int64)
        ends = ends.astype(np.int64)
        for thread, times in self._of.items():
            if thread is None or threads is None:
                mine = np.ones(len(starts), bool)
            else:
                mine = (threads == thread) | (threads == 0)
            first = np.searchsorted(times, starts[mine], "left")
            behind = np.searchsorted(times, ends[mine], "left")
            mask[mine] |= first < behind
        return mask


def _keys(process: Any, ids: Any) -> np.ndarray:
    high = np.asarray(process, np.uint64) << np.uint64(32)
    keys: np.ndarray = high | np.asarray(ids, np.uint64)
    return keys


def _among(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """A mask of the wanted keys that are among ``keys`` (ascending)."""
    if not len(keys):
        return np.zeros(len(wanted), bool)
    if len(keys) > 1:
        at = np.searchsorted(keys, wanted)
    else:
        at = np.zeros(1, np.int64)  # The common case: one device or stream.
    mask: np.ndarray = keys.take(at, mode="clip") == wanted
    return mask


def _sorted(parts: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    if not parts:
        return np.zeros(0, dtype)
    whole = np.concatenate(parts)
    if not ascends(whole):
        whole.sort(kind="stable")
    return whole
