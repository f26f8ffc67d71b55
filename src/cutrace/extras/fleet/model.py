"""What a report over many captures is made of."""

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
from ...analysis.tables import Cell, Table, Unit
from ...errors import CutraceError
from ...trace import Trace
from ...trace.alignment import Alignment, lead
from ...trace.arrow import package
from ...units import printable

#: Follows the name of a rank or run of which records are missing.
INCOMPLETE = " (incomplete)"
#: The job, the rank and the source of a part.
PartIdentity = tuple[str, int, str]
#: A row of a table.
Row = tuple[Cell, ...]
#: Arrays of records (``np.recarray``): NumPy declares no types for their fields.
Records = Any
#: What is collected of a rank.
Collects: TypeAlias = "StatsCollection[Any] | type[RankCollector]"


@dataclass(frozen=True)
class BatchOptions:
    """What the user asked for: ``name`` is a pattern of names (:func:`cutrace.patterns.matcher`), another one needs new
    parts. ``baseline`` are the sources that the others are compared with; only reducers read it."""

    name: str = ""
    baseline: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankTrace:
    """The ``processes`` of one rank in a trace. ``collects`` is all that reports will ask for by :meth:`collected`."""

    trace: Trace
    processes: tuple[int, ...]
    collects: tuple[Collects, ...] = ()
    _collected: dict[Collects, tuple[Any, ...]] = field(default_factory=dict)

    def rows(self, table: str) -> Iterator[np.ndarray]:
        for info in self.trace.block_infos(table):
            if info.process in self.processes:
                yield self.trace.block(info)[0]

    def collected(self, what: Collects) -> tuple[Any, ...]:
        """The rows that are collected of the processes. One pass over the trace fills all of ``collects``."""
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
        """The number of the group and the value of each row of a statistic, block by block, in any order."""
        for table in grouping.tables:
            for rows in self.rows(table):
                (number,) = grouping.key(self.context, rows)
                (value,) = grouping.values(rows)
                yield number, value.astype(np.int64)

    @cached_property
    def context(self) -> CollectorContext:
        """The names by which statistics group rows."""
        return CollectorContext(self.trace, DEFAULTS)

    @cached_property
    def clock(self) -> Alignment:
        """The conversion of times of the trace to the wall clock (ns since 1970); the identity, with an unknown error,
        if the trace has no clock snapshots of the rank."""
        rows = self.trace.clocks
        own = lead(rows[np.isin(rows["process"], self.processes)])
        if own:
            return Alignment(
                own.ns,
                own.drift,
                own.at,
                own.error,
                own.stepped,
            )
        return Alignment(error=None)

    def moved(self, times: np.ndarray) -> np.ndarray:
        """Return times of the trace (ns) on the wall clock, as signed integers."""
        return self.clock.moved(times.astype(np.uint64)).astype(np.int64)


class RankCollector(StatsCollector[Any]):
    """Collects from the batches of one process of a rank."""

    each_process = True

    def __init__(self, context: CollectorContext, rank: RankTrace) -> None:
        super().__init__(context)
        self.rank = rank


@dataclass(frozen=True)
class Part:
    """The partial result of a rank in a file. ``label`` names the rank, uniquely among the parts of a report. ``clock``
    is the alignment of its times with the wall clock. ``incomplete`` if records of the rank are missing, ``told``
    if the file says which rank it is, ``worked`` if it has GPU work. ``world`` is the number of ranks of the job, 0 if
    the file does not say. ``host`` is the name of its host, "" if the file does not say, ``boot`` the id of the boot
    that its clock counts from, ``local_rank`` its number there. ``job_told`` if the file or the user names the job.
    ``times`` are the first and the last time of GPU work (ns since 1970), None without work or where the clock is not
    known. ``ahead`` is how far (ns) its wall clock is ahead of the others', as far as another report of the batch knows
    it."""

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
        """What the parts of one rank in all reports of a batch share."""
        return self.job, self.rank, self.source

    def gpu(self, device: int) -> str:
        """The name of one of its GPUs."""
        return f"{self.label} GPU {device}"

    def table(self) -> Any:
        """Read the table that the mapper returned. Raises :class:`CutraceError` if it is no longer there."""
        parquet = package("pyarrow.parquet", "batch")
        try:
            # Arrow opens no names that are not UTF-8.
            with self.path.open("rb") as file:
                # A thread of Arrow that lets go of a Python file while Python exits aborts the process.
                reader = parquet.ParquetFile(file, pre_buffer=False)
                return reader.read(use_threads=False)
        except FileNotFoundError:
            raise removed(self.path) from None

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of :meth:`table`, as arrays of numbers or of str."""
        table = self.table()
        return {name: table[name].to_numpy() for name in table.column_names}


def share_of(amount: float, whole: float) -> float | None:
    """The share of an amount in the whole; None if the whole is 0."""
    if whole:
        return amount / whole
    return None


def descending(rows: Iterable[Row], column: int = 0) -> list[Row]:
    """The rows in the order of a column of numbers, the largest first."""
    return sorted(rows, key=lambda row: -float(row[column] or 0))


def removed(path: Path) -> CutraceError:
    """The error for a part that is no longer there."""
    return CutraceError(
        f"{path} is gone: another batch removed it. Give each batch its own folder, and run this again"
    )


def short(paths: Sequence[str]) -> list[str]:
    """Return the ends of paths that differ: their names, or with their folders."""
    for count in (1, 2):
        ends = ["/".join(Path(path).parts[-count:]) for path in paths]
        if len(set(ends)) == len(ends):
            break
    else:
        ends = list(paths)
    return list(map(printable, ends))


@dataclass(frozen=True)
class Histogram:
    """A picture: how often times of each bin occur. ``begins`` and ``ends`` (ns) are those of bins with times."""

    title: str
    begins: Sequence[int]
    ends: Sequence[int]
    counts: Sequence[int]


@dataclass(frozen=True)
class Bars:
    """A picture: a bar for each label; several ``series``, by name, are stacked. ``unit`` is that of a column."""

    title: str
    unit: Unit
    labels: Sequence[str]
    series: dict[str, Sequence[float]]


@dataclass(frozen=True)
class Lines:
    """A picture: a line for each label over wall time. ``start`` (ns since 1970) is that of the first column, ``step``
    (ns) the width of one. ``values`` has a row for each label; NaN stands for a missing value."""

    title: str
    unit: Unit
    labels: Sequence[str]
    start: int
    step: int
    values: np.ndarray


@dataclass(frozen=True)
class HeatMap(Lines):
    """A picture: the same as a row of colors for each label. ``hosts`` has the host of each label, or none at all."""

    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class Matrix:
    """A picture: a row for each label, a column for each of ``columns``. ``values`` are differences from what is usual;
    NaN stands for a missing value."""

    title: str
    unit: Unit
    labels: Sequence[str]
    columns: Sequence[str]
    values: np.ndarray


Picture = Histogram | Bars | HeatMap | Lines | Matrix


@dataclass(frozen=True)
class Result:
    """The result of a reducer: tables, the first one the report; sentences about what stands out; pictures;
    sentences about ranks that are missing. ``ahead`` is how far (ns) wall clocks are ahead of the others' by part."""

    tables: list[Table]
    sentences: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    ahead: dict[PartIdentity, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchReport:
    """A report. ``map`` returns a small Arrow table for a rank; its size depends on names, bins and collective calls,
    not on the number of rows. ``collects`` is what it asks the rank for: one pass collects that of all reports.
    ``reduce`` gets the parts in the order of job and rank, and may read them repeatedly. ``needs`` are the fields of
    :class:`BatchOptions` that must be given; others must not."""

    name: str
    title: str
    map: Callable[[RankTrace, BatchOptions], Any]
    reduce: Callable[[Sequence[Part], BatchOptions], Result]
    needs: tuple[str, ...] = ()
    collects: tuple[Collects, ...] = ()
