"""The tables that cutrace packs into Perfetto traces (``CutraceTable``), unpacked."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard

from ..runbin import TABLES
from ..runbin.layout import TYPES, Table
from .perfetto_wire import MOST_FIELDS, fields

#: Bytes that a table of one packet may take.
_LARGEST = 64 << 20
_BY_NUMBER = {table.number: table for table in TABLES.values()}


class Unusable(ValueError):
    """A table that cannot be used, and why."""


@dataclass(frozen=True)
class Packed:
    """One ``CutraceTable``: the number of the table, how many rows it has, the id of the first one where rows have ids,
    and the packed bytes."""

    number: int
    rows: int
    first: int
    data: bytes

    @classmethod
    def read(cls, message: memoryview) -> Packed:
        """Raises :class:`cutrace.importers.perfetto_wire.Malformed`."""
        found = dict(fields(message))
        number, rows, first = (value if isinstance(value := found.get(i, 0), int) else 0 for i in (1, 2, 4))
        data = found.get(3, b"")
        return cls(number, rows, first, b"" if isinstance(data, int) else bytes(data))

    @property
    def name(self) -> str:
        table = _BY_NUMBER.get(self.number)
        return table.name if table else f"table {self.number}"

    def unpacked(self) -> bytes:
        """The bytes. Raises :class:`Unusable` when they are damaged or more than a packet may have."""
        try:
            if zstandard.frame_content_size(self.data) > _LARGEST:
                raise Unusable("too large")
            return zstandard.ZstdDecompressor().decompress(self.data, max_output_size=_LARGEST)
        except zstandard.ZstdError:
            raise Unusable("damaged") from None

    def texts(self) -> list[bytes]:
        """The texts of a table of strings."""
        data = self.unpacked()
        if self.rows * 4 > len(data):
            raise Unusable("shorter than it says")
        ends = self.rows * 4 + np.cumsum(np.frombuffer(data, "<u4", self.rows), dtype=np.int64)
        if self.rows and int(ends[-1]) != len(data):
            raise Unusable("of another length than it says")
        return [data[begin:end] for begin, end in pairwise([self.rows * 4, *ends.tolist()])]


class Layouts:
    """How the writer of a file laid out its tables: which fields, in which order."""

    def __init__(self, told: object) -> None:
        self._fields: dict[str, list[tuple[str, str]]] = {}
        for name, found in told.items() if isinstance(told, dict) else ():
            if name in TABLES and isinstance(found, list):
                self._fields[name] = [(str(f[0]), str(f[1])) for f in found if isinstance(f, list) and len(f) == 2]

    def fields(self, table: Table) -> list[tuple[str, str]]:
        """Name and type of each field; this version's own where the file does not say."""
        return self._fields.get(table.name) or [(f.name, f.type) for f in table.fields]

    def rows(self, packed: Packed) -> tuple[Table, np.ndarray]:
        """A table of rows. Raises :class:`Unusable`."""
        table = _BY_NUMBER.get(packed.number)
        if table is None:
            raise Unusable("of a kind that this version does not know")
        columns = self.fields(table)
        data = packed.unpacked()
        sizes = [TYPES[kind][0] if kind in TYPES else 0 for _, kind in columns]
        if not all(sizes) or packed.rows * sum(sizes) != len(data):
            raise Unusable("of another size than it says")
        rows = np.zeros(packed.rows, table.dtype)
        at = 0
        for (name, kind), size in zip(columns, sizes, strict=True):
            part = np.frombuffer(data, np.uint8, packed.rows * size, at).reshape(size, packed.rows)
            at += packed.rows * size
            if name in table.offsets and np.dtype(TYPES[kind][1]).kind == table.dtype[name].kind:
                rows[name] = _column(np.ascontiguousarray(part.T).reshape(-1), kind)
        return table, rows

    def styles(self, number: int, values: list[np.ndarray], which: np.ndarray) -> tuple[Table | None, np.ndarray]:
        """Rows with the fields that styles of a table (its number) have; None for a table that has no events."""
        table = _BY_NUMBER.get(number)
        if table is None or table.start_field is None or "process" not in table.offsets:
            return None, np.zeros(0)
        rows = np.zeros(len(which), table.dtype)
        for column, (name, kind) in zip(values[:MOST_FIELDS], self.fields(table), strict=False):
            if name in table.offsets and kind in TYPES:
                bits = column[which]
                target = table.dtype[name]
                rows[name] = bits.view(np.float64) if target.kind == "f" else bits.astype(target)
        return table, rows


def _column(data: np.ndarray, kind: str) -> np.ndarray:
    """The inverse of how :mod:`cutrace.exporters.perfetto.archive` packs a column."""
    dtype = np.dtype(TYPES[kind][1])
    if dtype.itemsize > 8:
        return data.view(dtype)
    differences = data.view(f"<u{dtype.itemsize}")
    numbers: np.ndarray = np.cumsum(differences, dtype=differences.dtype).view(dtype)
    return numbers


@dataclass(frozen=True)
class About:
    """What the first table says: the processes, the layouts of the tables, and how many of the texts that follow are
    those of the trace; None where all are."""

    processes: list[dict[str, Any]]
    layouts: object
    texts: int | None

    @classmethod
    def read(cls, about: object) -> About:
        """From values of which nothing is certain."""
        told = about if isinstance(about, dict) else {}
        processes, texts = told.get("processes"), told.get("texts")
        return cls(
            [p for p in processes if isinstance(p, dict)] if isinstance(processes, list) else [],
            told.get("layouts"),
            texts if type(texts) is int and texts >= 0 else None,
        )
