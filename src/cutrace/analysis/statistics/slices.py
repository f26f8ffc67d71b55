"""Slices of the host (NVTX ranges, operators) with the GPU work launched in them. :mod:`.nvtx` and :mod:`.host` group
the slices, :mod:`.paths` nests them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...runbin.layout import GPU_WORK
from ...trace.ordered import Columns
from ...trace.projection import Projection
from ...trace.ranges import RANGE_TABLES, domains_of, levels_of
from ...trace.rows import LATEST
from ..collection import GroupedCollector, Grouping, StatsCollector, Use, duration
from ..context import CollectorContext
from ..distribution import NOTHING, Distributions, Spread, Sums
from ..sweep import Stream, SweepBatch, Work

#: The end of rows that never end.
FOREVER = int(LATEST)


class ProjectedSlices(NamedTuple):
    """Slices whose GPU work is known, as parallel arrays: thread, start and end (ns), number, domain
    (:func:`cutrace.trace.ranges.domains_of`) and level (:func:`cutrace.trace.ranges.levels_of`)."""

    thread: np.ndarray
    start: np.ndarray
    end: np.ndarray
    number: np.ndarray
    domain: np.ndarray
    level: np.ndarray

    def at(self, mask: np.ndarray) -> ProjectedSlices:
        """The slices where the mask is true."""
        return ProjectedSlices(*(column[mask] for column in self))


@dataclass(frozen=True, eq=False)
class SliceGrouping(Grouping[Use]):
    """Slices of one table, the only entry of ``tables``. ``row`` makes the result row from the context, the key of a
    group, the spread of the times of its slices, and their GPU work as :class:`Projected`. ``projects``
    returns a mask of the slices whose GPU work is known (None: all)."""

    projects: Callable[[Columns], np.ndarray] | None = None

    def collector(self, context: CollectorContext) -> StatsCollector[Use]:
        return SliceCollector(context, self)

    def slices(self, rows: Columns, numbers: np.ndarray) -> ProjectedSlices:
        """The slices whose GPU work is known, each with its number."""
        (table,) = self.tables
        domain = domains_of(table, rows)
        level = levels_of(table, rows)
        columns = (rows["thread"], rows["start"], rows["end"], numbers, domain, level)
        slices = ProjectedSlices(*columns)
        if self.projects is None:
            return slices
        known = self.projects(rows)
        return slices if known.all() else slices.at(known)


@dataclass(frozen=True)
class Projected:
    """The GPU work of a group of slices: ``time`` is the spread of the projections (ns) of the slices with work,
    ``operations`` the number of pieces of work, ``gpu_ns`` the sum of their times. ``cpu_ns`` is the sum of the times
    of these slices on the host; slices that never ended have none."""

    time: Spread = NOTHING
    operations: int = 0
    gpu_ns: int = 0
    cpu_ns: int = 0


class SliceCollector(GroupedCollector[Use]):
    """Collects the groups of a :class:`SliceGrouping`. Ranges adopt GPU work, other slices do not."""

    def __init__(self, context: CollectorContext, slices: SliceGrouping[Use]) -> None:
        super().__init__(context, slices)
        self.tables = (*slices.tables, *GPU_WORK, "api_calls", *RANGE_TABLES)
        self.slices = slices
        self.projection = Projection()
        self._times = Distributions()
        self._operations = Sums()
        self._gpu_ns = Sums()
        self._cpu_ns = Sums()

    def add(self, batch: SweepBatch) -> None:
        super().add(batch)
        work = batch.work
        if len(work):
            self.launch(work)
        self._retire(batch.until)

    def count(self, group: np.ndarray, rows: Columns) -> None:
        ended = rows["end"] != FOREVER
        self.spreads.add(group[ended], duration(rows)[ended])
        self.project(self.slices.slices(rows, group))

    def project(self, slices: ProjectedSlices) -> None:
        """Add slices. Their numbers are their groups."""
        thread, start, end, group, domain, _ = slices
        self.projection.add(thread, domain, start, end, group)

    def launch(self, work: Work) -> None:
        """Add GPU work, after its slices."""
        all_queues = np.zeros(len(work), np.uint32)
        self.projection.launch(work.calls, all_queues, work.start, work.end)

    def _retire(self, until: int | None = None) -> None:
        _, work = self.projection.take(until)
        group = work.number
        self._times.add(group, work.last - work.first)
        self._operations.add(group, work.operations)
        self._gpu_ns.add(group, work.gpu_ns)
        cpu_ns = np.where(work.end < FOREVER, work.end - work.start, 0)
        self._cpu_ns.add(group, cpu_ns)

    def end(self, process: int, streams: list[Stream]) -> Iterable[Use]:
        self._retire()
        return ()

    def projected(self) -> Iterator[Projected]:
        """The GPU work of each group."""
        groups = len(self.spreads)
        times = self._times.spreads()
        times += [NOTHING] * (groups - len(times))
        operations = self._operations.of_groups(groups)
        gpu_ns = self._gpu_ns.of_groups(groups)
        cpu_ns = self._cpu_ns.of_groups(groups)
        return map(Projected, times, operations, gpu_ns, cpu_ns)

    def result(self) -> Iterable[Use]:
        rows = zip(self.spreads.rows(), self.projected(), strict=True)
        for (key, (time,)), projected in rows:
            yield self.grouping.row(self.context, key, time, projected)
