"""Tables of Arrow and Parquet files: a folder with a file for each table, or one Arrow file with all tables.

Needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import BadCapture, package
from .tables import BATCH, Kind, ReadColumn, Tables

#: Endings of the files that may be tables.
SUFFIXES = (".parquet", ".arrow", ".arrows", ".feather")

#: The metadata key with the name of a table, in an Arrow file with many tables.
_NAME = b"table_name"

#: The first bytes of an Arrow stream, and of an Arrow file.
STREAM = b"\xff\xff\xff\xff"
FILE = b"ARROW1"


class ArrowTables(Tables):
    """The tables of a folder or file (see :class:`.tables.Tables`). Raises :class:`CutraceError` without pyarrow."""

    # pyarrow raises exceptions of many types for a damaged file, such as OSError and ValueError.
    errors = (Exception,)

    def __init__(self, path: Path) -> None:
        package("pyarrow", f"reading {path}")
        super().__init__()
        if path.is_dir():
            self._files = {
                f.stem: _File(f) for f in sorted(path.iterdir()) if f.suffix in SUFFIXES
            }
        else:
            self._files, damage = _streams(path)
            if damage:
                self.damage["the end of the file"] = damage
        for name, file in self._files.items():
            with self.reading(name):
                self.names[name] = tuple(map(str, file.schema().names))
        if not self.names:
            raise BadCapture(f"{path} has no readable table. Export it again.")

    def count(self, table: str) -> int | None:
        with self.reading(table):
            return self._files[table].count()
        return None

    def least(self, table: str, column: str, floor: int) -> int | None:
        least: int | None = None
        for batch in self.batches(table, {column: "integer"}):
            values = batch[column]
            values = values[batch.known(column) & (values >= floor)]
            if len(values):
                if least is None:
                    least = int(values.min())
                else:
                    least = min(least, int(values.min()))
        return least

    def filled(self, table: str, columns: Sequence[str]) -> dict[str, int]:
        import pyarrow.compute as compute
        import pyarrow.types as types

        counts = dict.fromkeys(columns, 0)
        for batch in self._read(table, columns):
            for name in columns:
                column = _plain(batch.column(name))
                number = any(
                    is_one(column.type)
                    for is_one in (
                        types.is_integer,
                        types.is_floating,
                        types.is_decimal,
                    )
                )
                empty: str | int | None
                if _is_text(column.type):
                    empty = ""
                elif number:
                    empty = 0
                else:
                    empty = None
                some = compute.invert(compute.is_null(column, nan_is_null=True))
                if empty is not None:
                    some = compute.and_kleene(some, compute.not_equal(column, empty))
                counts[name] += int(compute.sum(some).as_py() or 0)
        return counts

    def _batches(
        self, table: str, columns: Mapping[str, Kind]
    ) -> Iterator[tuple[int, dict[str, ReadColumn]]]:
        for batch in self._read(table, list(columns)):
            yield (
                batch.num_rows,
                {
                    name: _column(batch.column(name), kind)
                    for name, kind in columns.items()
                },
            )

    def __exit__(self, *_: object) -> None:
        self._files.clear()

    def _read(self, table: str, columns: Sequence[str]) -> Iterator[Any]:
        with self.reading(table):
            for batch in self._files[table].batches(columns):
                for at in range(0, batch.num_rows, BATCH):
                    yield batch.slice(at, BATCH)


@dataclass(frozen=True)
class _File:
    """A table: a Parquet file, an Arrow file, or an Arrow stream that starts at an offset of a file."""

    path: Path
    at: int = 0

    def schema(self) -> Any:
        if self.path.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_schema(self.path)
        with self.path.open("rb") as file:
            return _opened(file, self.at).schema

    def count(self) -> int:
        if self.path.suffix == ".parquet":
            import pyarrow.parquet

            return int(pyarrow.parquet.read_metadata(self.path).num_rows)
        return sum(batch.num_rows for batch in self.batches([]))

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        if self.path.suffix == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(self.path) as file:
                yield from file.iter_batches(batch_size=BATCH, columns=list(columns))
            return
        with self.path.open("rb") as file:
            reader = _opened(file, self.at)
            if hasattr(reader, "num_record_batches"):
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                yield from reader


def _streams(path: Path) -> tuple[dict[str, _File], str]:
    """The tables of a file of consecutive streams, and the error at its end, "" for none."""
    import pyarrow.ipc

    tables: dict[str, _File] = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        while (at := file.tell()) < size:
            try:
                reader = pyarrow.ipc.open_stream(file)
                name = (
                    (reader.schema.metadata or {})
                    .get(_NAME, b"")
                    .decode("utf-8", "replace")
                )
                for _ in reader:
                    pass
            except Exception as error:
                return tables, str(error)
            if name:
                tables[name] = _File(path, at)
    return tables, ""


def _opened(file: BinaryIO, at: int) -> Any:
    import pyarrow.ipc

    file.seek(at)
    begin = file.read(len(FILE))
    file.seek(at)
    if begin == FILE:
        return pyarrow.ipc.open_file(file)
    return pyarrow.ipc.open_stream(file)


def _column(array: Any, kind: Kind) -> ReadColumn:
    import pyarrow as pa

    array = _plain(array)
    type_ = array.type
    is_integer = pa.types.is_integer(type_)
    if kind == "integer" and (is_integer or pa.types.is_boolean(type_)):
        return _numbers(
            array, pa.uint64() if type_ == pa.uint64() else pa.int64(), np.int64
        )
    if kind == "real" and (is_integer or pa.types.is_floating(type_)):
        return _numbers(array, pa.float64(), np.float64)
    if kind == "integer" and pa.types.is_floating(type_):
        return _whole(_numbers(array, pa.float64(), np.float64))
    if kind == "integer" and pa.types.is_decimal(type_):
        return ReadColumn.mixed(
            [
                int(v) if v is not None and v == int(v) and abs(v) < 2**63 else v
                for v in array.to_pylist()
            ],
            kind,
        )
    return ReadColumn.mixed(array.to_pylist(), kind)


def _numbers(array: Any, target: Any, dtype: type) -> ReadColumn:
    null = array.is_null().to_numpy(zero_copy_only=False)
    values = array.cast(target, safe=False)
    if array.null_count:
        values = values.fill_null(0)
    numbers = values.to_numpy(zero_copy_only=False)
    return ReadColumn(
        numbers.view(dtype) if numbers.dtype == np.uint64 else numbers,
        null,
        np.zeros(len(null), bool),
    )


def _whole(column: ReadColumn) -> ReadColumn:
    """Integers that pandas wrote as floats, with NaN for missing integers."""
    null = column.null | np.isnan(column.values)
    right = (
        ~null
        & (np.floor(column.values) == column.values)
        & (np.abs(column.values) < 2.0**63)
    )
    return ReadColumn(
        np.where(right, column.values, 0).astype(np.int64), null, ~(null | right)
    )


def _plain(array: Any) -> Any:
    """An array without a dictionary."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    return array


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
