"""The classes of a report over many captures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...analysis.collection import (
    CollectedBy,
    Grouping,
    StatsCollection,
    StatsCollector,
    collect,
)
from ...analysis.context import DEFAULTS, CollectorContext
from ...analysis.statistic import spread_columns
from ...analysis.tables import Cell, Column, Table, Unit, docs_of
from ...errors import CutraceError, package
from ...trace import Trace
from ...trace.alignment import Alignment, lead
from ...units import printable

#: The end of the label of a rank or run with incomplete records.
INCOMPLETE = " (incomplete)"
#: The job, the rank and the source of a part.
PartIdentity = tuple[str, int, str]
#: A row of a table.
Row = tuple[Cell, ...]
#: Arrays of records (``np.recarray``). The type is Any, because NumPy declares no types for their fields.
Records = Any
#: A collection of data from the processes of a rank.
Collects: TypeAlias = "StatsCollection[Any] | type[RankCollector]"
#: The meanings of columns that tables of several reports have, by name.
COLUMN_DOCS = docs_of(spread_columns("ns")) | {
    "GPU": "name of the rank, and the number of the GPU in its process",
    "host": "name of the host; empty if it is unknown",
    "job": "name of the job",
    "kind": "kernel, or range of NVTX",
    "name": "stable name of the kernel, or name of the range with # for each number in it",
    "rank": "name of the rank, with its job and file where several have it; (incomplete) if records are missing",
}


@dataclass(frozen=True)
class BatchOptions:
    """The options of reports. ``name`` is a pattern of names (:func:`cutrace.patterns.matcher`). Parts of another
    pattern are not used again. ``baseline`` are the sources that the others are compared with. Only reducers read
    ``baseline``."""

    name: str = ""
    baseline: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankTrace:
    """The ``processes`` of one rank in a trace. ``collects`` lists all collections that reports get from
    :meth:`collected`."""

    trace: Trace
    processes: tuple[int, ...]
    collects: tuple[Collects, ...] = ()
    _collected: dict[Collects, tuple[Any, ...]] = field(default_factory=dict)

    def rows(self, table: str) -> Iterator[np.ndarray]:
        for info in self.trace.block_infos(table):
            if info.process in self.processes:
                yield self.trace.block(info)[0]

    def collected(self, what: Collects) -> tuple[Any, ...]:
        """The rows of the collection ``what`` from the processes. One pass over the trace fills all of ``collects``."""
        if what not in self._collected:
            collections: dict[Collects, StatsCollection[Any]] = {}
            for one in (what, *self.collects):
                if isinstance(one, StatsCollection):
                    collections[one] = one
                else:
                    collections[one] = CollectedBy(partial(one, rank=self))
            found = collect(self.trace, collections.values(), processes=self.processes)
            for one, collection in collections.items():
                self._collected[one] = found[collection]
        return self._collected[what]

    def grouped(
        self, grouping: Grouping[Any]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, block by block and in any order, two arrays: the group number and the value of each row of a
        statistic."""
        for table in grouping.tables:
            for rows in self.rows(table):
                (number,) = grouping.key(self.context, rows)
                (value,) = grouping.values(rows)
                yield number, value.astype(np.int64)

    @cached_property
    def context(self) -> CollectorContext:
        """The names that group the rows of statistics."""
        return CollectorContext(self.trace, DEFAULTS)

    @cached_property
    def clock(self) -> Alignment:
        """The conversion from the times of the trace to the wall clock (ns since 1970). If the trace has no clock
        snapshots of the rank, times are unchanged and the error is unknown."""
        rows = self.trace.clocks
        own = lead(rows[np.isin(rows["process"], self.processes)])
        return own or Alignment(error=None)

    def moved(self, times: np.ndarray) -> np.ndarray:
        """Convert times of the trace (ns) to the wall clock, as signed integers."""
        return self.clock.moved(times.astype(np.uint64)).astype(np.int64)


class RankCollector(StatsCollector[Any]):
    """Base class: collects rows from the batches of one process of a rank."""

    each_process = True

    def __init__(self, context: CollectorContext, rank: RankTrace) -> None:
        super().__init__(context)
        self.rank = rank


@dataclass(frozen=True)
class Part:
    """The partial result of a rank in a file. ``label`` names the rank, uniquely among the parts of a report. ``clock``
    is the alignment of its times with the wall clock. ``incomplete`` is True if records of the rank are missing,
    ``told`` if the file or its name states its rank, ``worked`` if it has GPU work, and ``job_told`` if the file or the
    user names the job. ``world`` is the number of ranks of the job, 0 if unknown. ``host`` is the name of its host, ""
    if unknown. ``boot`` is the id of the boot at time 0 of its clock. ``local_rank`` is its number on the host.
    ``times`` are the first and the last time of GPU work (ns since 1970), None without work or without a known clock.
    ``ahead`` is the time (ns) that its wall clock is ahead of the others, according to another report of the batch."""

    path: Path
    label: str
    job: str
    rank: int
    source: str
    clock: Alignment
    incomplete: bool = False
    told: bool = False
    worked: bool = True
    world: int = 0
    host: str = ""
    boot: str = ""
    local_rank: int | None = None
    job_told: bool = False
    times: Sequence[int] | None = None
    ahead: int = 0

    @property
    def identity(self) -> PartIdentity:
        """The key of the parts of one rank and source, equal in all reports of a batch."""
        return self.job, self.rank, self.source

    def gpu(self, device: int) -> str:
        """The name of a GPU of the part."""
        return f"{self.label} GPU {device}"

    def table(self) -> Any:
        """Read the table that the mapper returned. Raises :class:`CutraceError` if its file is gone."""
        parquet = package("pyarrow.parquet", "batch")
        try:
            # Arrow cannot open names that are not UTF-8.
            with self.path.open("rb") as file:
                # Without pre_buffer=False a thread of Arrow holds the Python file. If the thread releases the file
                # while Python exits, the process aborts.
                reader = parquet.ParquetFile(file, pre_buffer=False)
                return reader.read(use_threads=False)
        except FileNotFoundError:
            raise removed(self.path) from None

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of :meth:`table` as NumPy arrays of numbers or strings."""
        table = self.table()
        return {name: table[name].to_numpy() for name in table.column_names}


def share_of(amount: float, whole: float) -> float | None:
    """The share of ``amount`` in ``whole``; None if ``whole`` is 0."""
    if whole:
        return amount / whole
    return None


def descending(rows: Iterable[Row]) -> list[Row]:
    """The rows, sorted by their first cell, a number, the largest first."""
    return sorted(rows, key=lambda row: -float(row[0] or 0))


def removed(path: Path) -> CutraceError:
    """The error for a part without its file."""
    return CutraceError(
        f"{path} is gone: another batch removed it. Give each batch its own folder, and run this again"
    )


def short(paths: Sequence[str]) -> list[str]:
    """Shorten paths to unique labels: their file names, or if file names repeat, names with folders."""
    for count in (1, 2):
        ends = ["/".join(Path(path).parts[-count:]) for path in paths]
        if len(set(ends)) == len(ends):
            break
    else:
        ends = list(paths)
    return list(map(printable, ends))


@dataclass(frozen=True)
class Histogram:
    """A histogram of times. ``begins`` and ``ends`` (ns) are the edges of the bins that contain times."""

    title: str
    begins: Sequence[int]
    ends: Sequence[int]
    counts: Sequence[int]


@dataclass(frozen=True)
class Bars:
    """A bar chart: one bar for each label. Several ``series``, by name, are stacked. ``unit`` is a unit of columns."""

    title: str
    unit: Unit
    labels: Sequence[str]
    series: dict[str, Sequence[float]]


@dataclass(frozen=True)
class Lines:
    """A line chart: one line for each label over wall time. ``values`` has a row for each label; NaN is a missing
    value. ``start`` is the time of its first column (ns since 1970), and ``step`` the width of each column (ns)."""

    title: str
    unit: Unit
    labels: Sequence[str]
    start: int
    step: int
    values: np.ndarray


@dataclass(frozen=True)
class HeatMap(Lines):
    """The values of :class:`Lines` as a row of colours for each label. ``hosts`` has the host of each label, or is
    empty."""

    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class Matrix:
    """A heat map with a row for each label, and ``columns``. ``values`` are differences from the usual value; NaN is a
    missing value."""

    title: str
    unit: Unit
    labels: Sequence[str]
    columns: Sequence[str]
    values: np.ndarray


Picture = Histogram | Bars | HeatMap | Lines | Matrix


@dataclass(frozen=True)
class Result:
    """The result of a reducer. The first of the ``tables`` is the report. ``sentences`` describe outliers and other
    findings. ``ahead`` is the time (ns) that the wall clock of each part is ahead of the others."""

    tables: list[Table]
    sentences: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    ahead: dict[PartIdentity, int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether no file has rows for the report."""
        return not any(table.rows for table in self.tables)


@dataclass(frozen=True)
class BatchTable:
    """The declaration of a table of a report. ``doc`` has the sentences of the reference: the meaning and the order of
    rows."""

    name: str
    title: str
    columns: tuple[Column, ...]
    doc: str

    def of(self, rows: Iterable[Row]) -> Table:
        return Table(self.name, self.title, self.columns, rows)


@dataclass(frozen=True)
class BatchReport:
    """A report. ``map`` returns a small Arrow table for a rank. The size of the table depends on names, bins and
    collective calls, not on the number of rows. ``collects`` lists the collections for ``map``; one pass over the trace
    serves all reports. ``reduce`` gets the parts in the order of job and rank, and may read them repeatedly. ``needs``
    are the fields of :class:`BatchOptions` that the report requires; it accepts no others. ``tables`` declares all
    tables that ``reduce`` returns."""

    name: str
    title: str
    map: Callable[[RankTrace, BatchOptions], Any]
    reduce: Callable[[Sequence[Part], BatchOptions], Result]
    needs: tuple[str, ...] = ()
    collects: tuple[Collects, ...] = ()
    tables: tuple[BatchTable, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the tables. A worker does not need them, and they would be most of the data sent to it."""
        return vars(self) | {"tables": ()}
