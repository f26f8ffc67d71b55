"""What a report over many captures is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...analysis.collection import Collected, Grouping, StatsCollection, collect
from ...analysis.context import DEFAULTS, CollectorContext
from ...analysis.sweep import Sweep
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


@dataclass(frozen=True)
class BatchOptions:
    """What the user asked for: ``name`` is a pattern of names (:func:`cutrace.patterns.matcher`), another one needs new
    parts. ``baseline`` are the sources that the others are compared with; only reducers read it."""

    name: str = ""
    baseline: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankTrace:
    """The ``processes`` of one rank in a trace."""

    trace: Trace
    processes: tuple[int, ...]

    def rows(self, table: str) -> Iterator[np.ndarray]:
        for info in self.trace.block_infos(table):
            if info.process in self.processes:
                yield self.trace.block(info)[0]

    def sweeps(self, *tables: str) -> Iterator[Sweep]:
        """Yield the sweep of each process over these tables."""
        infos = self.trace.infos_by_process(tables)
        for process in self.processes:
            yield Sweep(self.trace, infos[process])

    def collected(self, *collections: StatsCollection[Any]) -> Collected:
        """What is collected of the processes, as ``cutrace stats`` does."""
        return collect(self.trace, collections, processes=self.processes)

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
            return Alignment(own.ns, own.drift, own.at, own.error, own.stepped)
        return Alignment(error=None)

    def moved(self, times: np.ndarray) -> np.ndarray:
        """Return times of the trace (ns) on the wall clock, as signed integers."""
        return self.clock.moved(times.astype(np.uint64)).astype(np.int64)


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
    times: tuple[int, int] | None = None
    ahead: int = 0

    @property
    def identity(self) -> PartIdentity:
        """What the parts of one rank in all reports of a batch share."""
        return self.job, self.rank, self.source

    def table(self) -> Any:
        """Read the table that the mapper returned. Raises :class:`CutraceError` if it is no longer there."""
        parquet = package("pyarrow.parquet", "parquet", "batch")
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
class HeatMap:
    """A picture: a row for each label, a column for each step of time. ``start`` (ns since 1970) is that of the first
    column, ``step`` (ns) the width of one. ``values`` has a row for each label; NaN where there is none. ``hosts`` has
    the host of each label, or none at all."""

    title: str
    unit: Unit
    labels: Sequence[str]
    start: int
    step: int
    values: np.ndarray
    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class Lines:
    """A picture: a line for each label over wall time. ``start``, ``step`` and ``values`` are as in
    :class:`HeatMap`."""

    title: str
    unit: Unit
    labels: Sequence[str]
    start: int
    step: int
    values: np.ndarray


@dataclass(frozen=True)
class Matrix:
    """A picture: a row for each label, a column for each of ``columns``. ``values`` are differences from what is usual;
    NaN where there is none."""

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
    not on the number of rows. ``reduce`` gets the parts in the order of job and rank, and may read them repeatedly.
    ``needs`` are the fields of :class:`BatchOptions` that must be given; others must not."""

    name: str
    title: str
    map: Callable[[RankTrace, BatchOptions], Any]
    reduce: Callable[[Sequence[Part], BatchOptions], Result]
    needs: tuple[str, ...] = ()
