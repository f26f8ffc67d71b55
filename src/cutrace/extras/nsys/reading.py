"""The common classes of the importers of tables (Nsight Systems, nvprof).

A :class:`Mapping` maps a table of the file to a table of a capture. Its columns are in the notation of :mod:`.schema`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from ..._native import Keys
from ...errors import BadCapture
from ...importers.base import DAMAGED_FILE, Import
from ...importers.row_builder import Rows, Strings, Texts, text_ids
from ...importers.tables import ColumnBatch, Kind, Tables
from ...runbin import Writer
from .schema import NOTHING, SqlColumn, SqlTable

#: A function that sets the undeclared fields, after the declared ones. Its arguments are the reading, the process and
#: the rows.
Fill = Callable[[Any, "Target", Rows], None]

#: The kind of each column by its name.
Kinds = dict[str, Kind]
#: A process, its rows of a table, and their indices in the table.
BatchOfTarget = tuple["Target", ColumnBatch, np.ndarray]

_KINDS: Kinds = {
    "text": "text",
    "uuid": "uuid",
    "real": "real",
    "bytes": "bytes",
}


def kinds(table: SqlTable) -> Kinds:
    """The columns of a table that are read, with their kinds."""
    return {
        c.name: _KINDS.get(c.conversion, "integer") for c in table.columns if c.used
    }


def value_or(
    batch: ColumnBatch,
    column: str,
    default: np.ndarray | np.int64 | int,
) -> np.ndarray:
    """The values of a column, with ``default`` in place of unknown values."""
    return np.where(batch.known(column), batch[column], default)


def peer_context(batch: ColumnBatch) -> np.ndarray:
    """The context at the other end of each copy."""
    source = batch["srcContextId"]
    return np.where(source == batch["contextId"], batch["dstContextId"], source)


def map_distinct(
    function: Callable[..., object],
    dtype: DTypeLike,
    *columns: np.ndarray,
) -> np.ndarray:
    """The values of ``function`` for the numbers of each row in the columns. It is called once for each distinct
    combination."""
    inverse, first = Keys(len(columns)).ids(columns)
    distinct = [column[first].tolist() for column in columns]
    values = np.array(list(map(function, *distinct)), dtype)
    return values[inverse]


@dataclass
class Target:
    """A process that is being written, the strings of the file in it, and these strings as function names."""

    key: int
    writer: Writer
    strings: Strings
    functions: Strings


class Reading(ABC):
    """The import of one file."""

    #: The table of strings and the column of their ids.
    string_table: ClassVar[tuple[str, str]] = ("StringIds", "id")
    #: Columns that repeat other columns, and columns without a meaning outside the file.
    redundant: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, tables: Tables, out: Import, path: Path) -> None:
        self.tables = tables
        self.out = out
        self.path = path
        self.targets: dict[int, Target] = {}
        self.rows_kept = 0

    @cached_property
    def offset(self) -> int:
        """The offset (ns) that is added to all times."""
        return 0

    @abstractmethod
    def batches(self, name: str, columns: Kinds) -> Iterator[BatchOfTarget]:
        """Yield the rows of a table by process, with their indices in the table. Damaged rows are counted as lost."""

    def thread_numbers(self, ids: np.ndarray) -> np.ndarray:
        """Convert thread ids of the file to thread ids of the system."""
        return ids

    def listed(self, name: str, columns: Kinds) -> Iterator[ColumnBatch]:
        """Yield the rows of a table for all processes together. Yields nothing if there is no such table."""
        if name in self.tables.names:
            yield from self.tables.batches(name, columns)

    @cached_property
    def texts(self) -> Texts:
        """The strings by their ids in the file."""
        name, number = self.string_table
        texts = Texts()
        for batch in self.listed(name, {number: "integer", "value": "text"}):
            good = batch.known(number) & batch.known("value")
            numbers = batch[number][good].tolist()
            values = batch["value"][good].tolist()
            texts.update(zip(numbers, values, strict=True))
            lost = batch.rows - len(numbers)
            self.out.kept(name, len(numbers))
            self.out.lost(name, lost, why="no number or no string")
        return texts

    def convert(self, name: str, mapping: Mapping) -> None:
        """Write the rows of a table."""
        for target, batch, _ in self.batches(name, mapping.columns):
            for part, chosen in mapping.parts(batch):
                self.write(name, target, part.rows(self, target, chosen))
        self.leave_columns(name, set(mapping.columns))

    def finish(self, nothing: str) -> None:
        """Note damage. Raises :class:`BadCapture` with the end of a sentence, ``nothing``, if no row could be used."""
        for name, damage in self.tables.damage.items():
            self.out.damaged(name, damage)
        name, _ = self.string_table
        unknown = len(self.texts.unknown)
        self.out.lost(name, unknown, why="rows refer to strings that are not there")
        if not self.rows_kept:
            raise BadCapture(f"{self.path} {nothing}")

    def write(self, what: str, target: Target, made: Rows) -> None:
        """Write rows, and account for them."""
        self.add(target, made.table, made.settle(self.out, what))

    def add(self, target: Target, table: str, rows: np.ndarray) -> None:
        """Write rows without accounting for them."""
        self.rows_kept += len(rows)
        if len(rows):
            target.writer.rows(table, rows)

    def missing(self, name: str, read: int) -> None:
        """Count the missing rows of a damaged table."""
        if name in self.tables.damage:
            count = self.tables.count(name) or 0
            # Count at least one row if the number of rows is unknown.
            self.out.lost(name, max(count - read, 1), why=DAMAGED_FILE)

    def leave_columns(self, name: str, used: set[str]) -> None:
        """Account for the columns of a table that have values but are not imported."""
        accounted = used | self.redundant
        unused = [c for c in self.tables.names[name] if c not in accounted]
        for column, count in self.tables.filled(name, unused).items():
            self.out.left(f"{column} of {name}", count)


@dataclass(frozen=True)
class Mapping:
    """The mapping of a table to a table of a capture: its declared columns, and ``fill`` for other fields. The rows
    that ``apart`` selects use the mapping ``other`` instead."""

    table: SqlTable
    fill: Fill | None = None
    priority: int = 1
    other: Mapping | None = None
    apart: Callable[[ColumnBatch], np.ndarray] | None = None

    @property
    def columns(self) -> Kinds:
        columns = kinds(self.table)
        if self.other:
            columns |= self.other.columns
        return columns

    def parts(self, batch: ColumnBatch) -> Iterator[tuple[Mapping, ColumnBatch]]:
        """Split the rows of a batch by mapping."""
        if self.other and self.apart:
            chosen = self.apart(batch)
            if chosen.any():
                yield self.other, batch.select(chosen)
                batch = batch.select(~chosen)
                if not batch.rows:
                    return
        yield self, batch

    def rows(self, reading: Reading, target: Target, batch: ColumnBatch) -> Rows:
        """Convert the rows of a batch to rows of a capture."""
        made = Rows(self.table.table, batch, reading.offset)
        convert(reading, target, made, self.table)
        if self.fill:
            self.fill(reading, target, made)
        for of, referred in made.referred.items():
            made.adopt(referred)
            made.rows[of] = target.writer.intern(referred.table, referred.rows)
        return made


def convert(reading: Reading, target: Target, made: Rows, table: SqlTable) -> None:
    """Set the fields of rows from the declared columns of a table."""
    times = {}
    open_ended = False
    for column in table.columns:
        if column.field and column.conversion in ("time", "open"):
            times[column.field] = column.name
        if column.conversion == "open":
            open_ended = True
    if "end" in times:
        made.span(times["start"], times["end"], open_ended=open_ended)
    else:
        for field, name in times.items():
            made.moment(name, field)
    made.need(*(c.name for c in table.columns if c.required))
    for column in table.columns:
        if column.field:
            _set(reading, target, made.of(column.of), column)


def _set(reading: Reading, target: Target, made: Rows, column: SqlColumn) -> None:
    batch = made.batch
    field = column.field
    values = batch[column.name]
    known = batch.known(column.name)
    match column.conversion:
        case "time" | "process":
            return
        case "open":
            made.rows["flags"] = batch.columns[column.name].null
            return
        case "text":
            made.rows[field] = text_ids(target.writer, values)
            return
        case "string":
            made.rows[field] = target.strings[values]
            return
        case "function":
            made.rows[field] = target.functions[values]
            return
        case "thread":
            made.rows[field] = reading.thread_numbers(values)
            return
    made.check(column.name)
    match column.conversion:
        case "bits" | "color":
            made.rows[field] = values.astype(np.uint32)
        case "memory":
            known &= values != 7
            made.set(field, np.where(known, values + 1, 0))
        case "less":
            made.set(field, np.where(known, values + 1, 0))
        case "id":
            nothing = (values == -1) | (values == NOTHING)
            made.set(field, np.where(nothing, 0, values))
        case "thousand":
            made.set(field, values // 1000)
        case "uuid":
            uuids = [np.void(_uuid(value)) for value in values.tolist()]
            made.rows[field] = np.array(uuids, "V16")
        case "override":
            made.set(field, np.where(known, values, made.rows[field]))
        case "real":
            source = batch.columns[column.name]
            if not source.missing:
                # SQLite writes NaN as NULL.
                values = np.where(source.null, np.nan, values)
            made.set(field, values)
        case _:
            made.set(field, values)


def _uuid(value: str | bytes) -> bytes:
    """The 16 bytes of a UUID, zeros for other values."""
    if isinstance(value, str):
        digits = value.removeprefix("GPU-").removeprefix("MIG-")
        digits = re.sub(r"[^0-9a-fA-F]", "", digits)
        if len(digits) != 32:
            return bytes(16)
        value = bytes.fromhex(digits)
    if len(value) == 16:
        return value
    return bytes(16)
