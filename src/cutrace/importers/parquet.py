"""Folders of Parquet files that cutrace wrote (docs/parquet.md), read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCapture, CutraceError
from ..runbin import TABLES
from ..runbin.layout import TYPES, Field
from .base import Import, Source
from .restoring import Described, Restoring, duration_of

_PROCESSES = "processes.parquet"
_UNKNOWN = "unknown_times"
#: What is in the footer of each file, whatever its compression.
_MARK = b"cutrace.table"
_FOOTER = 1 << 16
_ROWS = 1 << 16
_SCHEMA = "1"


class Parquet:
    """Reads what :mod:`cutrace.exporters.parquet` writes: every table, with the rows without known times."""

    name = "parquet"
    description = "a folder of Parquet files that cutrace wrote"

    def recognizes(self, source: Source) -> bool:
        """Whether it is a folder with a table of processes that is cutrace's; told without pyarrow."""
        try:
            with (source.path / _PROCESSES).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _FOOTER))
                return _MARK in file.read()
        except OSError:
            return False

    def read(self, source: Source, out: Import) -> None:
        """Raises :class:`CutraceError` when pyarrow is not installed."""
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise CutraceError("Parquet needs pyarrow: install it with `pip install 'cutrace[parquet]'`") from None
        _Folder(source.path, out).read()


PARQUET = Parquet()


class _Folder:
    def __init__(self, path: Path, out: Import) -> None:
        self._path, self._out = path, out
        self._ids: dict[str, int] = {"": 0}
        self._restoring = Restoring(out, self._processes(), [b""])

    def read(self) -> None:
        for name in ("launches", "functions"):
            for rows in self._rows(name, self._path / f"{name}.parquet", name):
                self._restoring.intern(name, rows)
                self._out.kept(name, len(rows))
        for name in TABLES:
            if name in ("launches", "functions"):
                continue
            for folder, what in ((self._path, name), (self._path / _UNKNOWN, f"{name} without known times")):
                known = folder is self._path
                for rows in self._rows(name, folder / f"{name}.parquet", what):
                    lost = self._restoring.rows(name, rows)
                    duration = duration_of(name, rows[~lost]) if known else 0
                    self._out.kept(what, int((~lost).sum()), duration)
                    self._out.seen(what, 0, duration)
                    self._out.lost(what, int(lost.sum()), why="of no process")
        self._restoring.finish()

    def _processes(self) -> list[Described]:
        from pyarrow import parquet

        path = self._path / _PROCESSES
        try:
            table = parquet.read_table(path, page_checksum_verification=True)
            version = (table.schema.metadata or {}).get(b"cutrace.schema", b"?").decode("utf-8", "replace")
            columns = table.select(["pid", "clock_offset", "description"]).to_pydict()
        except _damaged() as error:
            raise BadCapture(f"cannot read {path}: {error}. Convert the capture again.") from None
        if version != _SCHEMA:
            raise BadCapture(
                f"{self._path} has schema {version} and this cutrace reads schema {_SCHEMA}: "
                "install the version of cutrace that wrote it, or a newer one."
            )
        found = [
            Described.checked(_object(text), pid, offset)
            for text, pid, offset in zip(columns["description"], columns["pid"], columns["clock_offset"], strict=True)
        ]
        if not found:
            raise BadCapture(f"{path} has no process: convert the capture again.")
        return found

    def _rows(self, name: str, path: Path, what: str) -> Iterator[np.ndarray]:
        """The rows of a file in pieces, with ids of the trace. What cannot be read is told."""
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
                        rows = self._converted(name, batch)
                        self._out.seen(what, len(rows))
                        left -= len(rows)
                        yield rows
                except _damaged() as error:
                    self._unreadable(what, max(left, 1), f"unreadable: {_sentence(error)}")

    def _unreadable(self, what: str, count: int, why: str) -> None:
        self._out.seen(what, count)
        self._out.lost(what, count, why=why)

    def _converted(self, name: str, batch: Any) -> np.ndarray:
        """The rows of a batch. Raises ValueError for a column of another type, or values that do not fit."""
        batch.validate(full=True)
        rows = np.zeros(batch.num_rows, TABLES[name].dtype)
        for field in TABLES[name].fields:
            at = batch.schema.get_field_index(field.name)
            if at >= 0:
                rows[field.name] = self._column(field, batch.column(at))
        return rows

    def _column(self, field: Field, column: Any) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = column.type
        if field.type == "string":
            texts = column if pa.types.is_dictionary(kind) else column.cast(pa.string()).dictionary_encode()
            ids = np.array([self._id(text) for text in texts.dictionary.to_pylist()] or [0], np.uint32)
            indices = pc.fill_null(texts.indices, 0).to_numpy(zero_copy_only=False)
            return np.where(texts.is_null().to_numpy(zero_copy_only=False), 0, ids[indices])
        if field.type == "bytes16":
            if not pa.types.is_fixed_size_binary(kind) or kind.byte_width != 16:
                raise ValueError(f"column {field.name} is no 16 bytes")
            return np.array([value or bytes(16) for value in column.to_pylist()], "V16")
        number = pa.types.is_floating(kind) if field.type == "f64" else pa.types.is_integer(kind)
        if not number:
            raise ValueError(f"column {field.name} is no number")
        values: np.ndarray = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        target = np.dtype(TYPES[field.type][1])
        if field.type == "u64" and values.dtype == np.int64:
            return values.view(np.uint64)
        if target.kind in "iu" and len(values):
            limits = np.iinfo(target)
            if int(values.min()) < limits.min or int(values.max()) > limits.max:
                raise ValueError(f"column {field.name} has values that do not fit")
        return values.astype(target)

    def _id(self, text: object) -> int:
        key = text if isinstance(text, str) else ""
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = len(self._restoring.texts)
            self._restoring.texts.append(key.encode("utf-8", "replace"))
        return known


def _damaged() -> tuple[type[Exception], ...]:
    """What pyarrow raises for files that are damaged, and this module for columns that cannot be."""
    from pyarrow import ArrowException

    return ArrowException, OSError, ValueError, LookupError, OverflowError


def _object(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _sentence(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
