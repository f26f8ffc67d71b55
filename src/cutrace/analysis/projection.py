"""Slices of the host (NVTX ranges, operators) and the GPU work launched in them.

Work belongs to every slice of the launching thread that is open at the start of the launching call. It also belongs to
every open range in the nests that :class:`cutrace.trace.ranges.Ranges` names. The projection of a slice onto the GPU is
the time from the first start to the last end of its work, as in Nsight Systems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .._native import Keys
from ..trace.rows import spanned, time_order
from .distribution import NOTHING, Distributions, Spread, Sums
from .sweep import Groups, Work

# The number of latest slices of a thread that are kept after their end. Work is not matched if more slices than this
# start between its launch and its start.
_KEPT = 1 << 16
_LATE = np.iinfo(np.int64).max
_EARLY = -1


@dataclass(frozen=True)
class Projected:
    """The GPU work of a group of slices: ``time`` is the spread of the projections (ns) of the slices with work,
    ``operations`` the number of pieces of work, ``gpu_ns`` the sum of their times. ``cpu_ns`` is the sum of the times
    of these slices on the host; slices that never ended have none."""

    time: Spread = NOTHING
    operations: int = 0
    gpu_ns: int = 0
    cpu_ns: int = 0


class Projection:
    """The projections of the slices of one process. Slices are added in order. A slice has a ``group``, a small number.
    With ``of_ranges``, the slices are ranges, added by nest, and work belongs to the nests of its call."""

    def __init__(self, of_ranges: bool = False) -> None:
        self._of_ranges = of_ranges
        # By thread or nest.
        self._homes: dict[int, _Slices] = {}
        self._slice_homes = Keys(1)
        self._work_homes = Keys(1)
        self._times = Distributions()
        self._operations = Sums()
        self._gpu_ns = Sums()
        self._cpu_ns = Sums()
        self._pairs = Groups()
        self._kernels = Distributions()

    def add(
        self, home: np.ndarray, start: np.ndarray, end: np.ndarray, group: np.ndarray
    ) -> None:
        """Add slices of threads, or ranges of nests: parallel arrays."""
        for number, at in _by(self._slice_homes, home):
            slices = self._homes.setdefault(number, _Slices())
            slices.add(start[at], end[at], group[at])

    def launch(self, work: Work, name: np.ndarray | None = None) -> None:
        """Add GPU work, after its slices. ``name`` is the number of each kernel's name, negative for other work; with
        it, :meth:`kernels` has the kernels by group of slices."""
        calls = work.calls
        placed: np.ndarray | slice = slice(None)
        if self._of_ranges:
            placed, home = calls.nests
        else:
            home = calls.thread
            if not calls.known.all():
                placed = np.flatnonzero(calls.known)
                home = home[placed]
        # The columns that are cut and sorted together.
        columns = [calls.start, work.start, work.end]
        if name is not None:
            columns.append(name)
        if not isinstance(placed, slice):
            columns = [column[placed] for column in columns]
        for number, at in _by(self._work_homes, home):
            slices = self._homes.get(number)
            if slices is None:
                continue
            own = [column[at] for column in columns]
            order = time_order(own[0])
            if order is not None:
                own = [column.take(order) for column in own]
            called, start, end, *names = own
            pairs = slices.project(called, start, end, pairs=bool(names))
            if pairs is not None:
                group, place = pairs
                self._pair(group, names[0][place], (end - start)[place])
            if len(slices) > 2 * _KEPT:
                self._retire(slices, int(called[-1]))

    def _pair(self, group: np.ndarray, name: np.ndarray, duration: np.ndarray) -> None:
        is_kernel = name >= 0
        groups = group[is_kernel].astype(np.uint32)
        names = name[is_kernel].astype(np.uint32)
        self._kernels.add(self._pairs.of(groups, names), duration[is_kernel])

    def _retire(self, slices: _Slices, time: int = _LATE) -> None:
        start, end, group, first, last, operations, gpu_ns = slices.remove_ended(time)
        with_work = operations > 0
        group = group[with_work]
        self._times.add(group, (last - first)[with_work])
        self._operations.add(group, operations[with_work])
        self._gpu_ns.add(group, gpu_ns[with_work])
        cpu_ns = np.where(end < _LATE, end - start, 0)
        self._cpu_ns.add(group, cpu_ns[with_work])

    def finish(self) -> None:
        """Drop all slices. Slices and work of another process may follow."""
        for slices in self._homes.values():
            self._retire(slices)
        self._homes.clear()

    def projected(self) -> list[Projected]:
        """The projections by group, up to the last group with work."""
        times = self._times.spreads()
        operations = self._operations.of_groups(len(times))
        gpu_ns = self._gpu_ns.of_groups(len(times))
        cpu_ns = self._cpu_ns.of_groups(len(times))
        return list(map(Projected, times, operations, gpu_ns, cpu_ns))

    def kernels(self) -> list[tuple[int, int, Spread]]:
        """For each group and kernel name in it, the spread of the kernel times (ns)."""
        spreads = zip(self._pairs.values, self._kernels.spreads(), strict=True)
        return [(group, name, spread) for (group, name), spread in spreads]


class _Slices:
    """The slices of a thread, and the work in them so far."""

    def __init__(self) -> None:
        # Start, end and group; first start, last end, number and summed times of the work. The arrays are separate,
        # because each change of one large array would take new memory from the system.
        self._columns = [np.zeros(0, np.int64)] * 7

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, start: np.ndarray, end: np.ndarray, group: np.ndarray) -> None:
        more = [start, end, group]
        more += [np.full(len(start), value) for value in (_LATE, _EARLY, 0, 0)]
        for number, new in enumerate(more):
            column = self._columns[number]
            self._columns[number] = np.append(column, new.astype(np.int64))

    def project(
        self, called: np.ndarray, start: np.ndarray, end: np.ndarray, *, pairs: bool
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Add work to the slices around it; ``called`` ascends. With ``pairs``, return for each slice and piece of its
        work the group of the slice and the index of the work."""
        begins, ends, group, first, last, operations, gpu_ns = self._columns
        near = np.flatnonzero((begins <= called[-1]) & (ends > called[0]))
        low = np.searchsorted(called, begins[near])
        high = np.searchsorted(called, ends[near])
        with_work = low < high
        near = near[with_work]
        low = low[with_work]
        high = high[with_work]
        if not len(near):
            return None
        # Every second span belongs to a slice. The spans between them do not count.
        edges = np.stack([low, high], axis=1).reshape(-1)
        earliest = np.minimum.reduceat(np.append(start, _LATE), edges)[::2]
        latest = np.maximum.reduceat(np.append(end, _EARLY), edges)[::2]
        first[near] = np.minimum(first[near], earliest)
        last[near] = np.maximum(last[near], latest)
        sizes = high - low
        operations[near] += sizes
        spent = np.append(0, np.cumsum(end - start))
        gpu_ns[near] += spent[high] - spent[low]
        if not pairs:
            return None
        return np.repeat(group[near], sizes), spanned(low, high)

    def remove_ended(self, time: int) -> list[np.ndarray]:
        """Remove the slices that ended before ``time``, but keep the latest slices. Returns their start, end and group,
        the first start and the last end of their work, operations and GPU time."""
        ended = (self._columns[1] < time) | (time == _LATE)
        if time < _LATE:
            ended[-_KEPT:] = False
        removed = [column[ended] for column in self._columns]
        self._columns = [column[~ended] for column in self._columns]
        return removed


def _by(keys: Keys, values: np.ndarray) -> Iterator[tuple[int, np.ndarray | slice]]:
    """Each distinct value with its ascending indices; ``keys`` numbers the values."""
    if not len(values):
        return
    if (values == values[0]).all():
        yield int(values[0]), slice(None)
        return
    numbers, _ = keys.ids([values])
    sizes = np.bincount(numbers)
    if len(keys) <= 1 << 16:
        numbers = numbers.astype(np.uint16)  # Shorter integers sort faster.
    order = np.argsort(numbers, kind="stable")
    edges = np.append(0, np.cumsum(sizes)).tolist()
    for begin, end in pairwise(edges):
        if end > begin:
            yield int(values[order[begin]]), order[begin:end]
