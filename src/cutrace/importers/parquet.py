"""Folders of Parquet files that cutrace wrote (docs/parquet.md), read back.

The files have the ids of a whole trace: one range of launch configurations and functions for all processes, and one
clock. A capture has them by process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCapture
from ..runbin import TABLES, Writer
from ..runbin.layout import REFERRED, TYPES, Field
from .base import Import, Source, object_of
from .tables_arrow import need_pyarrow

_PROCESSES = "processes.parquet"
_UNKNOWN = "unknown_times"
#: What is in the footer of each file, whatever its compression.
_MARK = b"cutrace.table"
_FOOTER = 1 << 16
_ROWS = 1 << 16
_SCHEMA = "1"
_TIMES = ("start", "end", "time")


class Parquet:
    """Reads what :mod:`cutrace.exporters.parquet` writes: every table, with the rows without known times."""

    name = "parquet"
    description = "a folder of Parquet files that cutrace wrote"

    def recognizes(self, source: Source) -> bool:
        """Whether it is a folder with a table of processes that is cutrace's. Needs no pyarrow."""
        try:
            with (source.path / _PROCESSES).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _FOOTER))
                return _MARK in file.read()
        except OSError:
            return False

    def read(self, source: Source, out: Import) -> None:
        """Raises :class:`CutraceError` when pyarrow is not installed."""
        need_pyarrow(source.path)
        _Folder(source.path, out).read()


PARQUET = Parquet()


@dataclass
class _Piece:
    """Some rows of a table. Their string fields are indices into the texts of the field."""

    rows: np.ndarray
    texts: dict[str, list[str]]


@dataclass
class _Process:
    """The capture of one process. ``clock_offset`` (ns) was added to its times. ``ids`` are its ids of launch
    configurations and functions by those of the trace, 0 for what it does not use."""

    writer: Writer
    clock_offset: int
    ids: dict[str, np.ndarray] = field(default_factory=dict)

    def strings(self, texts: list[str], indices: np.ndarray) -> np.ndarray:
        """String ids of texts."""
        used, inverse = np.unique(indices, return_inverse=True)
        ids = [self.writer.string(texts[i].encode("utf-8", "replace")) for i in used.tolist()]
        return np.array(ids, np.uint32)[inverse.reshape(-1)]


class _Folder:
    def __init__(self, path: Path, out: Import) -> None:
        self._path, self._out = path, out
        self._processes = self._begun()
        #: The tables that others refer to, by id.
        self._referred: dict[str, _Piece] = {}

    def read(self) -> None:
        for name in REFERRED.values():
            pieces = [_Piece(np.zeros(1, TABLES[name].dtype), {"name": [""]})]
            for piece in self._pieces(name, self._path / f"{name}.parquet", name):
                self._out.kept(name, len(piece.rows))
                pieces.append(piece)
            self._referred[name] = _joined(pieces)
            for process in self._processes:
                process.ids[name] = np.zeros(len(self._referred[name].rows), np.uint32)
        for name in TABLES:
            if name in self._referred:
                continue
            for folder, what in ((self._path, name), (self._path / _UNKNOWN, f"{name} without known times")):
                for piece in self._pieces(name, folder / f"{name}.parquet", what):
                    rows = piece.rows
                    lost = rows["process"] >= len(self._processes)
                    for index in np.unique(rows["process"][~lost]).tolist():
                        self._write(name, piece, rows["process"] == index, self._processes[index])
                    duration = _duration(rows[~lost]) if folder is self._path else 0
                    self._out.kept(what, int((~lost).sum()), duration)
                    self._out.seen(what, 0, duration)
                    self._out.lost(what, int(lost.sum()), why="of no process")
        for name in REFERRED.values():
            # What nothing refers to belongs to the trace all the same.
            used = np.logical_or.reduce([process.ids[name] > 0 for process in self._processes])
            self._refer(name, np.flatnonzero(~used), self._processes[0])

    def _write(self, name: str, piece: _Piece, chosen: np.ndarray, process: _Process) -> None:
        """Write rows to the capture of a process."""
        rows = piece.rows[chosen]
        rows["process"] = 0
        for f in TABLES[name].fields:
            values = rows[f.name]
            if f.type == "string":
                rows[f.name] = process.strings(piece.texts[f.name], values)
            elif f.type in REFERRED:
                rows[f.name] = self._refer(REFERRED[f.type], values, process)
            elif f.name in _TIMES and process.clock_offset:
                own = (values.astype(np.int64) - process.clock_offset).astype(np.uint64)
                rows[f.name] = np.where(values > 0, own, 0)
        process.writer.rows(name, rows)

    def _refer(self, name: str, ids: np.ndarray, process: _Process) -> np.ndarray:
        """A process's ids of launch configurations or functions. New ones are written."""
        table, known = self._referred[name], process.ids[name]
        ids = np.where(ids < len(known), ids, 0)
        new = np.unique(ids[(known[ids] == 0) & (ids != 0)])
        if len(new):
            rows = table.rows[new]
            rows["id"] = int(known.max()) + 1 + np.arange(len(new))
            rows["name"] = process.strings(table.texts["name"], rows["name"])
            known[new] = rows["id"]
            process.writer.rows(name, rows)
        found: np.ndarray = known[ids]
        return found

    def _begun(self) -> list[_Process]:
        from pyarrow import parquet

        path = self._path / _PROCESSES
        try:
            table = parquet.read_table(path, page_checksum_verification=True)
            version = (table.schema.metadata or {}).get(b"cutrace.schema", b"?").decode("utf-8", "replace")
            columns = table.select(["description", "pid"]).to_pydict()
            # Files of earlier versions: what was added to the times of each process.
            shifted = "clock_offset" in table.column_names
            offsets = table.column("clock_offset").to_pylist() if shifted else [0] * len(table)
        except _damaged() as error:
            raise BadCapture(f"cannot read {path}: {error}. Convert the capture again.") from None
        if version != _SCHEMA:
            raise BadCapture(
                f"{self._path} has schema {version} and this cutrace reads schema {_SCHEMA}: "
                "install the version of cutrace that wrote it, or a newer one."
            )
        found = []
        for index, (description, pid, offset) in enumerate(zip(*columns.values(), offsets, strict=True)):
            number = pid if type(pid) is int and 0 <= pid < 1 << 32 else 0
            shift = offset if type(offset) is int and abs(offset) < 1 << 62 else 0
            found.append(_Process(self._out.restored(index, object_of(description), number), shift))
        if not found:
            raise BadCapture(f"{path} has no process: convert the capture again.")
        return found

    def _pieces(self, name: str, path: Path, what: str) -> Iterator[_Piece]:
        """The rows of a file in pieces. What cannot be read is counted as lost."""
        from pyarrow import parquet

        if not path.exists():
            return
        try:
            file = parquet.ParquetFile(path, page_checksum_verification=True)
        except _damaged() as error:
            self._unreadable(what, 1, f"the file cannot be read: {_sentence(error)}")
            return
        with file:
            for group in range(file.num_row_groups):
                left = 1
                try:
                    left = file.metadata.row_group(group).num_rows
                    for batch in file.iter_batches(_ROWS, row_groups=[group]):
                        piece = _converted(name, batch)
                        self._out.seen(what, len(piece.rows))
                        left -= len(piece.rows)
                        yield piece
                except _damaged() as error:
                    self._unreadable(what, max(left, 1), f"unreadable: {_sentence(error)}")

    def _unreadable(self, what: str, count: int, why: str) -> None:
        self._out.seen(what, count)
        self._out.lost(what, count, why=why)


def _joined(pieces: list[_Piece]) -> _Piece:
    """Pieces of ``launches`` or ``functions`` as one."""
    texts: list[str] = []
    for piece in pieces:
        piece.rows["name"] += len(texts)
        texts += piece.texts["name"]
    return _Piece(np.concatenate([piece.rows for piece in pieces]), {"name": texts})


def _converted(name: str, batch: Any) -> _Piece:
    """The rows of a batch. Columns that it lacks are 0. Raises ValueError for a column of another type, or values that
    do not fit."""
    batch.validate(full=True)
    piece = _Piece(np.zeros(batch.num_rows, TABLES[name].dtype), {})
    for f in TABLES[name].fields:
        at = batch.schema.get_field_index(f.name)
        if f.type == "string":
            piece.texts[f.name] = [""]
        if at >= 0:
            column = batch.column(at)
            piece.rows[f.name] = _indices(column, piece.texts[f.name]) if f.type == "string" else _numbers(f, column)
    return piece


def _indices(column: Any, texts: list[str]) -> np.ndarray:
    """The values of a column as indices into the texts, which are added."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column if pa.types.is_dictionary(column.type) else column.cast(pa.string()).dictionary_encode()
    texts += [text if isinstance(text, str) else "" for text in values.dictionary.to_pylist()]
    indices = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
    return np.where(values.is_null().to_numpy(zero_copy_only=False), 0, indices + 1)


def _numbers(field: Field, column: Any) -> np.ndarray:
    """The values of a column whose field is not a text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if field.type == "bytes16":
        if not pa.types.is_fixed_size_binary(kind) or kind.byte_width != 16:
            raise ValueError(f"column {field.name} is no 16 bytes")
        return np.array([value or bytes(16) for value in column.to_pylist()], "V16")
    if not (pa.types.is_floating(kind) if field.type == "f64" else pa.types.is_integer(kind)):
        raise ValueError(f"column {field.name} is not a number")
    values: np.ndarray = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    target = np.dtype(TYPES[field.type][1])
    if field.type == "u64" and values.dtype == np.int64:
        return values.view(np.uint64)
    if target.kind in "iu" and len(values):
        limits = np.iinfo(target)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise ValueError(f"column {field.name} has values that do not fit")
    return values.astype(target)


def _duration(rows: np.ndarray) -> int:
    """The durations (ns) of rows with known times, summed; 0 for a table without ends."""
    if "end" not in (rows.dtype.names or ()) or not len(rows):
        return 0
    return int((rows["end"].astype(np.int64) - rows["start"].astype(np.int64)).sum())


def _damaged() -> tuple[type[Exception], ...]:
    """What pyarrow raises for files that are damaged, and this module for columns of another type."""
    from pyarrow import ArrowException

    return ArrowException, OSError, ValueError, LookupError, OverflowError


def _sentence(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
