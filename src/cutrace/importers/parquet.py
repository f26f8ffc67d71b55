"""Importer for folders of Parquet files that cutrace wrote (docs/parquet.md).

The files have ids of launch configurations and functions, and a clock, for the whole trace. A capture has them by
process. Frames and stacks name their process, so their ids stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCapture
from ..runbin import TABLES, Writer
from ..runbin.layout import REFERRED, TYPES, Field
from ..runbin.writer import NewIds
from .base import Import, SourceFile, object_of
from .tables_arrow import need_pyarrow

_PROCESSES = "processes.parquet"
_UNKNOWN = "unknown_times"
#: Bytes in the footer of each file; the footer is not compressed.
_MARK = b"cutrace.table"
_FOOTER = 1 << 16
_ROWS = 1 << 16
_SCHEMA = "1"
_TIMES = ("start", "end", "time")
#: The tables that all processes share, by the type of references to them.
_SHARED = {kind: name for kind, name in REFERRED.items() if "process" not in TABLES[name].offsets}


class Parquet:
    """Reads what :mod:`cutrace.exporters.parquet` writes: every table, with the rows without known times."""

    name = "parquet"
    description = "a folder of Parquet files that cutrace wrote"

    def recognizes(self, source: SourceFile) -> bool:
        """Whether the source is a folder with cutrace's table of processes. Needs no pyarrow."""
        try:
            with (source.path / _PROCESSES).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _FOOTER))
                return _MARK in file.read()
        except OSError:
            return False

    def read(self, source: SourceFile, out: Import) -> None:
        """Write all tables. Raises :class:`CutraceError` when pyarrow is not installed."""
        need_pyarrow(source.path)
        _Folder(source.path, out).read()


PARQUET = Parquet()


@dataclass
class _RowBatch:
    """Some rows of a table. Their string fields are indices into ``texts`` of the field."""

    rows: np.ndarray
    texts: dict[str, list[str]]


@dataclass
class _Process:
    """The capture of one process. ``clock_offset`` (ns) is subtracted from its times. ``ids`` maps ids of the trace to
    ids of the process, for launch configurations and functions."""

    writer: Writer
    clock_offset: int
    ids: dict[str, NewIds] = field(default_factory=dict)

    def strings(self, texts: list[str], indices: np.ndarray) -> np.ndarray:
        """String ids of texts."""
        used, inverse = np.unique(indices, return_inverse=True)
        ids = [self.writer.string(texts[i].encode("utf-8", "replace")) for i in used.tolist()]
        return np.array(ids, np.uint32)[inverse.reshape(-1)]


class _Folder:
    def __init__(self, path: Path, out: Import) -> None:
        self._path, self._out = path, out
        self._processes = self._begun()
        #: The tables that others refer to, by id, and which of their rows are not written yet.
        self._referred: dict[str, _RowBatch] = {}
        self._unused: dict[str, np.ndarray] = {}

    def read(self) -> None:
        for name in _SHARED.values():
            batches = [_RowBatch(np.zeros(1, TABLES[name].dtype), {"name": [""]})]
            for batch in self._batches(name, self._path / f"{name}.parquet", name):
                self._out.kept(name, len(batch.rows))
                batches.append(batch)
            self._referred[name] = _joined(batches)
            self._unused[name] = np.ones(len(self._referred[name].rows), bool)
            for process in self._processes:
                process.ids[name] = NewIds(partial(self._intern, name, process))
        for name in TABLES:
            if name in self._referred:
                continue
            for folder, what in ((self._path, name), (self._path / _UNKNOWN, f"{name} without known times")):
                for batch in self._batches(name, folder / f"{name}.parquet", what):
                    rows = batch.rows
                    lost = rows["process"] >= len(self._processes)
                    for index in np.unique(rows["process"][~lost]).tolist():
                        self._write(name, batch, rows["process"] == index, self._processes[index])
                    duration = _duration(rows[~lost]) if folder is self._path else 0
                    self._out.kept(what, int((~lost).sum()), duration)
                    self._out.lost(what, int(lost.sum()), why="of no process")
        for name in _SHARED.values():
            # Unreferenced rows belong to the trace too.
            self._processes[0].ids[name][np.flatnonzero(self._unused[name])]

    def _write(self, name: str, batch: _RowBatch, chosen: np.ndarray, process: _Process) -> None:
        """Write rows to the capture of a process."""
        rows = batch.rows[chosen]
        rows["process"] = 0
        for f in TABLES[name].fields:
            values = rows[f.name]
            if f.type == "string":
                rows[f.name] = process.strings(batch.texts[f.name], values)
            elif f.type in _SHARED:
                table = _SHARED[f.type]
                rows[f.name] = process.ids[table][np.where(values < len(self._unused[table]), values, 0)]
            elif f.name in _TIMES and process.clock_offset:
                own = (values.astype(np.int64) - process.clock_offset).astype(np.uint64)
                rows[f.name] = np.where(values > 0, own, 0)
        process.writer.rows(name, rows)

    def _intern(self, name: str, process: _Process, ids: np.ndarray) -> np.ndarray:
        rows = self._referred[name].rows[ids]
        rows["id"], rows["name"] = 0, process.strings(self._referred[name].texts["name"], rows["name"])
        self._unused[name][ids] = False
        return process.writer.intern(name, rows)

    def _begun(self) -> list[_Process]:
        from pyarrow import parquet

        path = self._path / _PROCESSES
        try:
            table = parquet.read_table(path, page_checksum_verification=True)
            version = (table.schema.metadata or {}).get(b"cutrace.schema", b"?").decode("utf-8", "replace")
            columns = table.select(["description", "pid"]).to_pydict()
            # Files of earlier versions have an offset that was added to the times of each process.
            shifted = "clock_offset" in table.column_names
            offsets = table.column("clock_offset").to_pylist() if shifted else [0] * len(table)
        except _damaged() as error:
            raise BadCapture(f"cannot read {path}: {error}. Convert the capture again.") from None
        if version != _SCHEMA:
            raise BadCapture(
                f"{self._path} has schema {version} and this cutrace reads schema {_SCHEMA}: "
                "install the version of cutrace that wrote it, or a newer one."
            )
        processes = []
        for index, (description, pid, offset) in enumerate(zip(*columns.values(), offsets, strict=True)):
            number = pid if type(pid) is int and 0 <= pid < 1 << 32 else 0
            shift = offset if type(offset) is int and abs(offset) < 1 << 62 else 0
            processes.append(_Process(self._out.restored(index, object_of(description), number), shift))
        if not processes:
            raise BadCapture(f"{path} has no process: convert the capture again.")
        return processes

    def _batches(self, name: str, path: Path, what: str) -> Iterator[_RowBatch]:
        """The rows of a file in batches. Unreadable rows are counted as lost."""
        from pyarrow import parquet

        if not path.exists():
            return
        try:
            file = parquet.ParquetFile(path, page_checksum_verification=True)
        except _damaged() as error:
            self._out.lost(what, 1, why=f"the file cannot be read: {_sentence(error)}")
            return
        with file:
            for group in range(file.num_row_groups):
                left = 1
                try:
                    left = file.metadata.row_group(group).num_rows
                    for batch in file.iter_batches(_ROWS, row_groups=[group]):
                        converted = _converted(name, batch)
                        left -= len(converted.rows)
                        yield converted
                except _damaged() as error:
                    self._out.lost(what, max(left, 1), why=f"unreadable: {_sentence(error)}")


def _joined(batches: list[_RowBatch]) -> _RowBatch:
    """Batches of ``launches`` or ``functions`` as one."""
    texts: list[str] = []
    for batch in batches:
        batch.rows["name"] += len(texts)
        texts += batch.texts["name"]
    return _RowBatch(np.concatenate([batch.rows for batch in batches]), {"name": texts})


def _converted(name: str, batch: Any) -> _RowBatch:
    """The rows of a batch. Missing columns are 0. Raises ValueError for a column of another type, or values that do not
    fit."""
    batch.validate(full=True)
    converted = _RowBatch(np.zeros(batch.num_rows, TABLES[name].dtype), {})
    for f in TABLES[name].fields:
        at = batch.schema.get_field_index(f.name)
        if f.type == "string":
            converted.texts[f.name] = [""]
        if at >= 0:
            column = batch.column(at)
            texts = converted.texts
            converted.rows[f.name] = _indices(column, texts[f.name]) if f.type == "string" else _numbers(f, column)
    return converted


def _indices(column: Any, texts: list[str]) -> np.ndarray:
    """The values of a column as indices into ``texts``, which is extended."""
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
            raise ValueError(f"column {field.name} does not have 16 bytes")
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
    """Exceptions of pyarrow for damaged files, and of this module for columns of another type."""
    from pyarrow import ArrowException

    return ArrowException, OSError, ValueError, LookupError, OverflowError


def _sentence(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
