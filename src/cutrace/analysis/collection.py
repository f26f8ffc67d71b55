"""Collecting data for statistics from a trace, in one pass over the rows of each process in the order of time.

    with cutrace.load("run.bin") as trace:
        for kernel in kernels.KERNELS.of(trace):
            print(kernel.name, kernel.time.total)

Most collections are a :class:`Grouping`: rows of some tables by a key, with the spreads of their values. The others
have a :class:`StatsCollector` of their own. :func:`collect` fills several in one pass. Memory grows only with the
numbers of different names, streams and launch configurations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from collections.abc import (
    Collection as Numbers,
)
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ..runbin.labels import known_label
from ..runbin.layout import GPU_WORK
from ..trace import Trace
from ..trace.ordered import Columns
from .context import DEFAULTS, CollectorContext, StatsOptions
from .distribution import NOTHING, Distributions, Spread, Sums
from .sweep import Groups, Stream, Sweep, SweepBatch

Use = TypeVar("Use")
#: The columns of a table by field, from a sweep, or a block of the table.
Rows = Columns | np.ndarray


class StatsCollector(ABC, Generic[Use]):
    """Collects from the batches of one process after another."""

    #: The tables that batches must contain. With GPU work and calls among them, the call of each piece of work is
    #: looked up.
    tables: tuple[str, ...] = ()
    #: Whether each process gets a collector of its own.
    each_process: bool = False

    def __init__(self, context: CollectorContext) -> None:
        self.context = context

    @abstractmethod
    def add(self, batch: SweepBatch) -> None:
        """Add a batch."""

    def end(self, process: int, streams: list[Stream]) -> Iterable[Use]:
        """Called after the last batch of a process. Returns the complete rows."""
        return ()

    def result(self) -> Iterable[Use]:
        """Called after the last process. Returns the remaining rows."""
        return ()


class StatsCollection(ABC, Generic[Use]):
    """A collection of rows of the type ``Use``, in the order of first appearance."""

    @abstractmethod
    def collector(self, context: CollectorContext) -> StatsCollector[Use]:
        """A new collector."""

    def of(self, trace: Trace, options: StatsOptions = DEFAULTS) -> tuple[Use, ...]:
        """The rows of a trace."""
        return collect(trace, [self], options)[self]


@dataclass(frozen=True, eq=False)
class CollectedBy(StatsCollection[Use]):
    """A collection with a collector of its own."""

    make: Callable[[CollectorContext], StatsCollector[Use]]

    def collector(self, context: CollectorContext) -> StatsCollector[Use]:
        return self.make(context)


class Collected:
    """The rows of some collections. ``streams`` has the processes and streams whose work was collected."""

    def __init__(
        self,
        options: StatsOptions,
        rows: dict[StatsCollection[Any], list[Any]],
        streams: Sequence[tuple[int, Stream]],
    ) -> None:
        self.options = options
        self.streams = streams
        self._rows = {collection: tuple(uses) for collection, uses in rows.items()}

    def __getitem__(self, collection: StatsCollection[Use]) -> tuple[Use, ...]:
        return self._rows[collection]


def collect(
    trace: Trace,
    collections: Iterable[StatsCollection[Any]],
    options: StatsOptions = DEFAULTS,
    processes: Numbers[int] | None = None,
) -> Collected:
    """Fill these collections in one pass over a trace, or over some of its ``processes``. Only the tables that they
    need are read."""
    context = CollectorContext(trace, options)
    collectors = {one: one.collector(context) for one in collections}
    tables: dict[str, None] = {}
    joins = False
    for collector in collectors.values():
        own = collector.tables
        tables |= dict.fromkeys(own)
        looks_at_work = not set(GPU_WORK).isdisjoint(own)
        joins |= looks_at_work and "api_calls" in own
    rows: dict[StatsCollection[Any], list[Any]] = {one: [] for one in collectors}
    streams: list[tuple[int, Stream]] = []
    for process, infos in enumerate(trace.infos_by_process(tables)):
        if processes is not None and process not in processes:
            continue
        sweep = Sweep(trace, infos, joins=joins, ranges=options.ranges)
        for batch in sweep:
            for collector in collectors.values():
                collector.add(batch)
        for one, collector in collectors.items():
            rows[one] += collector.end(process, sweep.streams)
            if collector.each_process:
                collectors[one] = one.collector(context)
        streams += [(process, stream) for stream in sweep.streams]
    for one, collector in collectors.items():
        rows[one] += collector.result()
    return Collected(options, rows, streams)


# Groups of rows


def duration(rows: Rows) -> np.ndarray:
    """The time (ns) of each row."""
    return rows["end"] - rows["start"]


def fields(*names: str) -> Callable[[CollectorContext, Rows], Sequence[np.ndarray]]:
    """A key of these fields."""
    return lambda context, rows: [rows[name] for name in names]


@dataclass(frozen=True, eq=False)
class Grouping(StatsCollection[Use]):
    """Rows of some ``tables``, grouped. ``key`` returns the columns that are equal in a group, ``values`` the columns
    whose spread is computed. ``marked`` returns a mask of rows to count separately. ``row`` makes the result row from
    the context, the key of a group, its spreads and, with ``marked``, the number of marked rows."""

    tables: tuple[str, ...]
    key: Callable[[CollectorContext, Rows], Sequence[np.ndarray]]
    row: Callable[..., Use]
    values: Callable[[Rows], tuple[np.ndarray, ...]] = lambda rows: (duration(rows),)
    marked: Callable[[CollectorContext, Rows], np.ndarray] | None = None

    def collector(self, context: CollectorContext) -> StatsCollector[Use]:
        return GroupedCollector(context, self)


class GroupSpreads:
    """Groups of rows, numbered from 0 in the order of first appearance, and the spreads of some values of each."""

    def __init__(self) -> None:
        self.groups = Groups()
        self._spreads: tuple[Distributions, ...] = ()

    def __len__(self) -> int:
        return len(self.groups.values)

    def add(self, group: np.ndarray, *values: np.ndarray) -> None:
        """Add values of rows to the spreads of their groups."""
        if not self._spreads:
            self._spreads = tuple(Distributions() for _ in values)
        for spread, numbers in zip(self._spreads, values, strict=True):
            spread.add(group, numbers)

    def rows(self) -> Iterator[tuple[Any, list[Spread]]]:
        """The key and the spreads of each group."""
        by_value = []
        for distributions in self._spreads:
            spreads = distributions.spreads()
            # The last groups may have no values.
            missing = len(self) - len(spreads)
            by_value.append(spreads + [NOTHING] * missing)
        for group, key in enumerate(self.groups.values):
            yield key, [spreads[group] for spreads in by_value]


class GroupedCollector(StatsCollector[Use]):
    """Collects the groups of a :class:`Grouping`."""

    def __init__(self, context: CollectorContext, grouping: Grouping[Use]) -> None:
        super().__init__(context)
        self.tables = grouping.tables
        self.grouping = grouping
        self.spreads = GroupSpreads()
        self._marked = Sums()

    def add(self, batch: SweepBatch) -> None:
        for table in self.grouping.tables:
            rows = batch.tables.get(table)
            if rows:
                key = self.grouping.key(self.context, rows)
                self.count(self.spreads.groups.of(*key), rows)

    def count(self, group: np.ndarray, rows: Columns) -> None:
        """Add rows, each with its group."""
        self.spreads.add(group, *self.grouping.values(rows))
        if self.grouping.marked:
            marked = self.grouping.marked(self.context, rows)
            self._marked.add(group.take(np.flatnonzero(marked)))

    def result(self) -> Iterable[Use]:
        make = self.grouping.row
        marked = self._marked.of_groups(len(self.spreads))
        for (key, spreads), count in zip(self.spreads.rows(), marked, strict=True):
            if self.grouping.marked:
                yield make(self.context, key, *spreads, count)
            else:
                yield make(self.context, key, *spreads)


@dataclass(frozen=True)
class Timed:
    """Events of one name and their times (ns)."""

    name: str
    time: Spread


def by_label(table: str, field: str, labels: dict[int, str]) -> Grouping[Timed]:
    """Group rows by a numeric field whose values have ``labels``."""

    def timed(context: CollectorContext, key: tuple[int], time: Spread) -> Timed:
        return Timed(known_label(labels, key[0]), time)

    return Grouping((table,), fields(field), timed)
