"""Slices of the host (NVTX ranges, operators) with the GPU work launched in them. :mod:`.nvtx` and :mod:`.host` group
the slices, :mod:`.paths` nests them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...runbin.layout import GPU_WORK
from ...trace.ordered import Columns
from ...trace.ranges import (
    NO_DOMAIN,
    RANGE_TABLES,
    domains_of,
    levels_of,
    nest_numbers,
)
from ...trace.rows import LATEST
from ..collection import GroupedCollector, Grouping, StatsCollector, Use, duration
from ..context import CollectorContext
from ..projection import Projected, Projection
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
    group, the spread of the times of its slices, and their GPU work as :class:`.projection.Projected`. ``projects``
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


class SliceCollector(GroupedCollector[Use]):
    """Collects the groups of a :class:`SliceGrouping`. Ranges adopt GPU work, other slices do not."""

    def __init__(self, context: CollectorContext, slices: SliceGrouping[Use]) -> None:
        super().__init__(context, slices)
        self.tables = (*slices.tables, *GPU_WORK, "api_calls", *RANGE_TABLES)
        self.slices = slices
        self.ranges = Projection(of_ranges=True)
        self._others = Projection()

    def add(self, batch: SweepBatch) -> None:
        super().add(batch)
        if len(batch.work):
            self.launch(batch.work)

    def count(self, group: np.ndarray, rows: Columns) -> None:
        ended = rows["end"] != FOREVER
        self.spreads.add(group[ended], duration(rows)[ended])
        self.project(self.slices.slices(rows, group))

    def project(self, slices: ProjectedSlices) -> None:
        """Add slices. Their numbers are their groups."""
        is_range = slices.domain != NO_DOMAIN
        if is_range.any():
            thread, start, end, group, domain, _ = slices.at(is_range)
            self.ranges.add(nest_numbers(thread, domain), start, end, group)
        if not is_range.all():
            thread, start, end, group, *_ = slices.at(~is_range)
            self._others.add(thread, start, end, group)

    def launch(self, work: Work) -> None:
        """Add GPU work, after its slices."""
        self.ranges.launch(work)
        self._others.launch(work)

    def end(self, process: int, streams: list[Stream]) -> Iterable[Use]:
        self.ranges.finish()
        self._others.finish()
        return ()

    def projected(self) -> Iterator[Projected]:
        """The GPU work of each group. A group has ranges or other slices, but not both."""
        of_ranges = self.ranges.projected()
        of_others = self._others.projected()
        for group in range(len(self.spreads)):
            if group < len(of_ranges) and of_ranges[group].operations:
                yield of_ranges[group]
            elif group < len(of_others):
                yield of_others[group]
            else:
                yield Projected()

    def result(self) -> Iterable[Use]:
        rows = zip(self.spreads.rows(), self.projected(), strict=True)
        for (key, (time,)), projected in rows:
            yield self.grouping.row(self.context, key, time, projected)
