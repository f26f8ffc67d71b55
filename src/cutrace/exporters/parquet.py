"""Parquet: a folder with one file for each table with rows. docs/internals/exporters.md describes the schema.

A column is a field of the table. String ids are replaced by their strings, quantities become signed integers, other
fields keep their type. Columns computed from others are marked ``derived``. The folder is for other programs: cutrace
does not read it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .._native import demangle
from ..errors import CutraceError
from ..runbin.layout import TABLES, TableLayout
from ..trace import Trace
from ..trace.arrow import array, column, dictionary, processes, pyarrow
from ..trace.quality import losses_of_the_file
from .base import Request
from .rows import pieces

#: Version of the schema, in the metadata of each file.
SCHEMA_VERSION = 1
#: The folder for rows without known times, inside the folder of the trace.
UNKNOWN = "unknown_times"

# The names of all files and folders that the folder of a trace can hold.
_NAMES = {UNKNOWN, "processes.parquet", *(f"{name}.parquet" for name in TABLES)}
#: The number of rows of a row group.
_GROUP_ROWS = 1 << 18
#: Columns with nearly ascending values: delta encoding makes them small.
_RISING = frozenset(("start", "end", "time", "correlation"))


def check(path: Path, table: str | None) -> None:
    """Raise :class:`CutraceError` if pyarrow is not installed, or if the folder has files of others, because a new
    folder replaces it."""
    _arrow()
    for entry in path.rglob("*"):
        if entry.name not in _NAMES:
            raise CutraceError(
                f"cannot write {path}: it has {entry.name}, which would be lost. Choose another name."
            )


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a folder of Parquet files. Memory does not grow with the trace. Raises :class:`CutraceError` if
    pyarrow is not installed."""
    _arrow()
    path.mkdir(mode=0o700)
    _write_processes(trace, path)
    # Losses come last, because reading the other tables finds damaged blocks.
    names = [name for name in TABLES if name != "losses"]
    total = sum(trace.count(name) for name in names)
    done = 0
    for name in [*names, "losses"]:
        file = _ParquetFile(trace, TABLES[name], path / f"{name}.parquet")
        unknown_path = path / UNKNOWN / f"{name}.parquet"
        apart = _ParquetFile(trace, TABLES[name], unknown_path)
        with closing(file), closing(apart):
            for rows, unknown in pieces(trace, name):
                file.add(rows)
                apart.add(unknown)
                done += len(rows) + len(unknown)
                if request.progress:
                    request.progress(min(done, total), total)
            if name == "losses":
                file.add_rows(losses_of_the_file(trace))


@dataclass(frozen=True)
class Derived:
    """A column that is computed from a field: its name, the field, a description, the table that the field refers to
    ("" for a string), and the function that makes a name readable."""

    name: str
    field: str
    doc: str
    of: str = ""
    readable: Callable[[str], str] = demangle

    def texts(self, trace: Trace, values: np.ndarray) -> list[str]:
        names = values
        if self.of:
            names = trace.table(self.of)["name"][values]
        return [self.readable(trace.strings[name]) for name in names.tolist()]


#: The derived columns by table. Where the field is 0, the derived column is null.
DERIVED = {
    "kernels": Derived("name", "launch", "demangled name of the kernel", "launches"),
    "launches": Derived("demangled", "name", "demangled name of the kernel"),
    "api_calls": Derived("name", "function", "name of the function", "functions", str),
}


def schema(table: TableLayout) -> Any:
    pa = _arrow()
    columns = [column(field) for field in table.fields]
    derived = DERIVED.get(table.name)
    if derived:
        text = pa.dictionary(pa.int32(), pa.string())
        metadata = {"doc": derived.doc, "derived": "true"}
        columns.append(pa.field(derived.name, text, metadata=metadata))
    return pa.schema(columns, metadata=_metadata(table.name, table.doc))


class _ParquetFile:
    """One Parquet file, made when the first rows are written."""

    def __init__(self, trace: Trace, table: TableLayout, path: Path) -> None:
        self._trace = trace
        self._table = table
        self._path = path
        self._schema = schema(table)
        self._writer: Any = None
        self._raw: Any = None
        self._waiting: list[np.ndarray] = []
        self._count = 0

    def add(self, rows: np.ndarray) -> None:
        """Add rows, which are written in groups."""
        if len(rows):
            self._waiting.append(rows)
            self._count += len(rows)
            if self._count >= _GROUP_ROWS:
                self._flush()

    def add_rows(self, rows: list[dict[str, Any]]) -> None:
        """Write rows that have strings in place of ids."""
        if rows:
            self._flush()
            table = _arrow().Table.from_pylist(rows, self._schema)
            self._open().write_table(table)

    def close(self) -> None:
        try:
            self._flush()
            if self._writer:
                self._writer.close()
        finally:
            if self._raw:
                self._raw.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if len(self._waiting) == 1:
            rows = self._waiting[0]
        else:
            rows = np.concatenate(self._waiting)
        self._waiting = []
        self._count = 0
        arrays = []
        for field in self._table.fields:
            described = self._schema.field(field.name)
            arrays.append(array(self._trace.strings, field, described, rows))
        derived = DERIVED.get(self._table.name)
        if derived:
            values, inverse = np.unique(rows[derived.field], return_inverse=True)
            texts = derived.texts(self._trace, values)
            arrays.append(dictionary(texts, inverse, values == 0))
        table = _arrow().table(arrays, self._schema)
        self._open().write_table(table, row_group_size=_GROUP_ROWS)

    def _open(self) -> Any:
        if self._writer is None:
            from pyarrow import parquet

            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._raw = self._path.open("wb")
            names = self._schema.names
            rising = [name for name in names if name in _RISING]
            self._writer = parquet.ParquetWriter(
                self._raw,
                self._schema,
                compression="zstd",
                write_page_checksum=True,
                use_dictionary=[name for name in names if name not in _RISING],
                column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED") or None,
            )
        return self._writer


def _write_processes(trace: Trace, folder: Path) -> None:
    from pyarrow import parquet

    doc = "Recorded processes; process is their number in the other tables."
    table = processes(trace).replace_schema_metadata(_metadata("processes", doc))
    with (folder / "processes.parquet").open("wb") as file:
        parquet.write_table(table, file, compression="zstd", write_page_checksum=True)


def _metadata(name: str, doc: str) -> dict[str, str]:
    return {"cutrace.table": name, "cutrace.schema": str(SCHEMA_VERSION), "doc": doc}


def _arrow() -> ModuleType:
    return pyarrow("Parquet")
