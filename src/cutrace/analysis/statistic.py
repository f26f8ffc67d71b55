"""A statistic: its collections, and the rows and the columns of its report.

docs/internals/statistics.md shows how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from ..trace import Trace
from .collection import Collected, StatsCollection
from .distribution import Spread
from .sweep import Stream
from .tables import Cell, Column, Table, Unit

#: The kind of GPUs in ``resource_names``.
_DEVICE = 3


class View:
    """The collected data of a trace, with the names of processes, GPUs and streams."""

    def __init__(self, trace: Trace, collected: Collected) -> None:
        self.trace = trace
        self.collected = collected
        self._devices = _device_names(trace)
        contexts: dict[int, set[int]] = {}
        for process, stream in collected.streams:
            contexts.setdefault(process, set()).add(stream.context)
        self._several_contexts = {p for p, own in contexts.items() if len(own) > 1}

    @property
    def span(self) -> int:
        """The length (ns) of the capture."""
        return self.trace.end - self.trace.start

    def process(self, index: int) -> str:
        """The name of a process: ``train.py (4711)``."""
        process = self.trace.processes[index]
        return f"{process.name} ({process.pid})"

    def gpu(self, process: int, device: int) -> str:
        """The number of a GPU in the process, and its name: ``0 NVIDIA H200``."""
        name = self._devices.get((process, device), "")
        return f"{device} {name}".strip()

    def stream(self, process: int, stream: Stream) -> str:
        """The number and the name of a stream, with its context if the process has several: ``13 copies``."""
        names = self.trace.stream_names
        name = names.get((process, stream.context, stream.stream), "")
        label = f"{stream.stream} {name}".strip()
        if process in self._several_contexts:
            return f"{stream.context}/{label}"
        return label


def _device_names(trace: Trace) -> dict[tuple[int, int], str]:
    """The names of GPUs by process and ordinal: the names that the program gave, else those of the models."""
    named = trace.resource_names[trace.resource_names["kind"] == _DEVICE]
    names = {}
    for rows, number in ((trace.devices, "device"), (named, "object")):
        for process, device, name in rows[["process", number, "name"]].tolist():
            if name:
                names[process, device] = trace.strings[name]
    return names


@dataclass(frozen=True)
class StatisticColumn:
    """A column, and a function that makes its cell from the object of a row."""

    column: Column
    cell: Callable[[View, Any], Cell]


@dataclass(frozen=True)
class Statistic:
    """A statistic, which ``cutrace stats`` shows as a report.

    ``rows`` is a collection, or a function that returns the objects of the rows from the collections that it ``needs``.
    Rows satisfy ``where`` and are sorted by ``order``. ``spread`` names an attribute that is a
    :class:`.distribution.Spread` in ``unit``. Its columns come first. Rows are then sorted by the attribute ``weight``,
    largest first (default: the total of the spread). The share of a row is its part of the sum of the weights.

    ``usual`` statistics are shown by default. A ``listing`` has a row for each event. ``options`` are the fields of
    :class:`.context.StatsOptions` that change the rows. ``doc`` is the question that the statistic answers, in
    sentences for the reference.
    """

    name: str
    title: str
    rows: StatsCollection[Any] | Callable[[View], Iterable[Any]]
    columns: tuple[StatisticColumn, ...]
    needs: tuple[StatsCollection[Any], ...] = ()
    where: Callable[[Any], object] | None = None
    order: Callable[[Any], Any] | None = None
    spread: str = ""
    weight: str = ""
    unit: Unit = "ns"
    usual: bool = True
    listing: bool = False
    options: tuple[str, ...] = ()
    doc: str = ""

    @property
    def collections(self) -> tuple[StatsCollection[Any], ...]:
        """The collections that :meth:`table` needs."""
        if isinstance(self.rows, StatsCollection):
            return (self.rows,)
        return self.needs

    @property
    def shown_columns(self) -> tuple[Column, ...]:
        """The columns of the table. The columns of the spread come first."""
        columns = tuple(one.column for one in self.columns)
        if self.spread:
            return (*spread_columns(self.unit), *columns)
        return columns

    def table(self, view: View) -> Table:
        """The table of the statistic. Its :attr:`collections` must have been collected."""
        columns = self.shown_columns
        rows: Iterable[tuple[Cell, ...]]
        if self.spread:
            rows = self._rows_with_spreads(view)
        else:
            rows = (self._cells(view, use) for use in self.uses(view))
        if not self.listing:
            rows = list(rows)
        return Table(self.name, self.title, columns, rows, self.listing)

    def uses(self, view: View) -> Iterable[Any]:
        """The objects of the rows. Rows with a spread are not sorted yet."""
        if isinstance(self.rows, StatsCollection):
            uses: Iterable[Any] = view.collected[self.rows]
        else:
            uses = self.rows(view)
        if self.where:
            uses = filter(self.where, uses)
        if self.order:
            uses = sorted(uses, key=self.order)
        return uses

    def _cells(self, view: View, use: Any) -> tuple[Cell, ...]:
        return tuple(column.cell(view, use) for column in self.columns)

    def _rows_with_spreads(self, view: View) -> list[tuple[Cell, ...]]:
        spread_of = attrgetter(self.spread)
        weight_of = attrgetter(self.weight or f"{self.spread}.total")
        weighed: list[tuple[int, Spread, tuple[Cell, ...]]] = []
        for use in self.uses(view):
            cells = self._cells(view, use)
            weighed.append((weight_of(use), spread_of(use), cells))
        weighed.sort(key=_weighed_key)
        whole = sum(weight for weight, _, _ in weighed)
        rows = []
        for weight, spread, cells in weighed:
            first = share(weight, whole)
            rows.append((first, *_spread_cells(spread), *cells))
        return rows


def _weighed_key(row: tuple[int, Spread, tuple[Cell, ...]]) -> tuple[object, ...]:
    """The sort key of rows with spreads: the largest first, then by their cells. Cells without a value come before
    others."""
    weight, spread, cells = row
    by_cell = [(cell is not None, cell) for cell in cells]
    return -weight, -spread.count, by_cell


def spread_columns(unit: Unit) -> tuple[Column, ...]:
    """The columns of a :class:`.distribution.Spread` and its share."""
    return (
        Column("share", "1", doc="fraction of the sum over all rows"),
        Column("total", unit, doc="sum"),
        Column("count", doc="number of values"),
        Column("mean", unit, doc="total / count"),
        Column("median", unit, spare=True, doc="median"),
        Column("min", unit, spare=True, doc="minimum"),
        Column("max", unit, spare=True, doc="maximum"),
        Column(
            "stddev",
            unit,
            spare=True,
            doc="standard deviation of a sample; 0 of one value",
        ),
    )


def _spread_cells(spread: Spread) -> tuple[Cell, ...]:
    return (
        spread.total,
        spread.count,
        spread.mean,
        spread.median,
        spread.min,
        spread.max,
        spread.std,
    )


def share(part: float, whole: float) -> float:
    """The part as a fraction of the whole; 0 if the whole is 0."""
    if whole:
        return part / whole
    return 0.0


# Columns


def column_of(
    name: str,
    cell: str | Callable[[View, Any], Cell] = "",
    spare: bool = False,
    *,
    unit: Unit = "text",
    doc: str = "",
) -> StatisticColumn:
    """A column whose cell is an attribute of the row's object (default: the attribute named like the column), or the
    result of a function of this object. A ``spare`` column may be omitted on a narrow terminal."""
    column = Column(name, unit, spare, doc)
    if not isinstance(cell, str):
        return StatisticColumn(column, cell)
    value = attrgetter(cell or name)
    return StatisticColumn(column, lambda view, use: value(use))


text_column = column_of
count_column = partial(column_of, unit="")
time_column = partial(column_of, unit="ns")
size_column = partial(column_of, unit="bytes")
number_column = partial(column_of, unit="number")
moment_column = partial(column_of, unit="moment")


def share_column(
    name: str,
    part: str,
    whole: str | Callable[[View, Any], float],
    spare: bool = False,
    *,
    doc: str = "",
) -> StatisticColumn:
    """The share of an attribute in another one, or in the result of a function."""
    part_of = attrgetter(part)
    whole_of = column_of("", whole).cell

    def cell(view: View, use: Any) -> float:
        return share(part_of(use), whole_of(view, use))  # type: ignore[arg-type]

    return column_of(name, cell, spare, unit="1", doc=doc)


def _process(view: View, use: Any) -> str:
    return view.process(use.process)


def _gpu(view: View, use: Any) -> str:
    return view.gpu(use.process, use.device)


def _gpu_of_stream(view: View, use: Any) -> str:
    return view.gpu(use.process, use.stream.device)


def _stream(view: View, use: Any) -> str:
    return view.stream(use.process, use.stream)


_PROCESS_DOC = "name and id of the process"
GPU_DOC = "number of the GPU in the process, and its name"
_STREAM_DOC = "id and name of the stream, behind its context if there are several"
#: Columns of rows that have a ``process``, and a ``device`` or a ``stream``.
PROCESS = text_column("process", _process, doc=_PROCESS_DOC)
SPARE_PROCESS = text_column("process", _process, spare=True, doc=_PROCESS_DOC)
GPU = text_column("GPU", _gpu, doc=GPU_DOC)
SPARE_GPU = text_column("GPU", _gpu, spare=True, doc=GPU_DOC)
SPARE_GPU_OF_STREAM = text_column("GPU", _gpu_of_stream, spare=True, doc=GPU_DOC)
STREAM = text_column("stream", _stream, doc=_STREAM_DOC)
SPARE_STREAM = text_column("stream", _stream, spare=True, doc=_STREAM_DOC)
