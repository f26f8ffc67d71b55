"""What a trace carries beside its events so that it can be read back whole (:mod:`cutrace.importers.perfetto`).

Events are read back from their own packets. What many of them share is told where it is interned: the *row* of a style
has the fields of the capture's row that all its events have in common, which of the arguments are fields, and which
field numbers the track. Descriptions of processes, texts, launch configurations and all rows that become no event are
*tables*: columns, packed, in packets of their own. Viewers skip both. docs/perfetto.md describes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import zstandard

from ...runbin.layout import FORMAT_VERSION, PROCESS_BLOCK, STRINGS_BLOCK, TABLES, Table
from ...trace import Trace
from . import schema
from .output import Output

#: Fields that events show as what they are.
_OF_EVENTS = frozenset(("start", "end", "time", "process"))
#: Rows, and bytes of texts, of a packet.
_ROWS, _TEXT_BYTES = 1 << 15, 1 << 20
_SEQUENCE = 1
#: Keys of a description that are about the file it stood in.
_OWN = ("format", "tables")


def unshown(table: str, shown: Iterable[str | None]) -> tuple[str, ...]:
    """The fields of a table that an event with these fields does not show."""
    return tuple(f.name for f in TABLES[table].fields if f.name not in {*_OF_EVENTS, *shown})


def row(
    table: str, values: np.void, fields: Sequence[str], arguments: Sequence[str], track_field: str | None
) -> dict[str, Any]:
    """What tells a reader of the fields that events of a style share: a ``CutraceRow``. ``values`` has them."""
    places = _places(table)
    shared = {f"field_{places[f]}": _bits(values[f]) or None for f in fields if f != "process"}
    return described(table, arguments, track_field) | shared


def described(table: str, arguments: Sequence[str], track_field: str | None = None) -> dict[str, Any]:
    """A ``CutraceRow`` without values of fields."""
    places = _places(table)
    return {
        "table": TABLES[table].number,
        "track_field": places[track_field] + 1 if track_field else None,
        "arguments": sum(1 << places[name] for name in arguments if name in places) or None,
    }


def place(table: str, field: str) -> str:
    """The field of a ``CutraceRow`` for a field of a row."""
    return f"field_{_places(table)[field]}"


class Archive:
    """Writes the tables of a trace. ``shown`` are those whose rows with known times are events."""

    def __init__(self, trace: Trace, output: Output, shown: Iterable[str]) -> None:
        self._trace, self._output, self._shown = trace, output, frozenset(shown)

    def begin(self) -> None:
        """What rows refer to, and all that is about the capture and no event."""
        processes = [
            {"pid": p.pid, "clock_offset": p.clock_offset, "info": {k: v for k, v in p.info.items() if k not in _OWN}}
            for p in self._trace.processes
        ]
        layouts = {table.name: _layout(table) for table in TABLES.values() if self._trace.count(table.name)}
        about = {"format": FORMAT_VERSION, "processes": processes, "layouts": layouts}
        self._packet(PROCESS_BLOCK, len(processes), json.dumps(about).encode())
        self._strings()
        for table in TABLES.values():
            if table.number >= TABLES["launches"].number:
                rows = self._trace.table(table.name)
                if table.name in ("launches", "functions"):
                    self.rows(table, rows[1:], first=1)
                else:
                    self.rows(table, rows)

    def undrawn(self, start: int | None, end: int | None) -> None:
        """The rows of tables that have no events."""
        for table in TABLES.values():
            if table.name not in self._shown and table.number < TABLES["launches"].number:
                for rows in self._trace.blocks(table.name, start, end):
                    self.rows(table, _touching(table, rows, start, end))
                if start is None and end is None:
                    self.rows(table, self._trace.unknown(table.name))

    def rows(self, table: Table, rows: np.ndarray, first: int = 0) -> None:
        """Rows of a table as they are; ``first`` is the id of the first one where rows have ids."""
        for at in range(0, len(rows), _ROWS):
            part = rows[at : at + _ROWS]
            self._packet(table.number, len(part), _columns(part), first + at if first else 0)

    def _strings(self) -> None:
        """The texts by id, from 1 on: their lengths, and one after the other."""
        strings = self._trace.strings
        texts: list[bytes] = []
        size = 0
        for number in range(1, len(strings)):
            texts.append(strings.bytes(number))
            size += len(texts[-1])
            if size >= _TEXT_BYTES or number == len(strings) - 1:
                lengths = np.array([len(text) for text in texts], "<u4")
                first = number + 1 - len(texts)
                self._packet(STRINGS_BLOCK, len(texts), lengths.tobytes() + b"".join(texts), first)
                texts, size = [], 0

    def _packet(self, number: int, rows: int, data: bytes, first: int = 0) -> None:
        table = {"number": number, "rows": rows, "first": first or None, "data": _packed(data)}
        self._output.packet({"trusted_packet_sequence_id": _SEQUENCE, "cutrace_table": table})


def _layout(table: Table) -> list[list[str]]:
    return [[f.name, f.type] for f in table.fields]


@cache
def _places(table: str) -> dict[str, int]:
    fields = TABLES[table].fields
    assert len(fields) <= schema.MOST_FIELDS
    return {f.name: i for i, f in enumerate(fields)}


def _bits(value: Any) -> int:
    """A number as it stands in a varint."""
    return int(value.view(np.uint64)) if isinstance(value, np.floating) else int(value)


def _touching(table: Table, rows: np.ndarray, start: int | None, end: int | None) -> np.ndarray:
    if table.start_field is None or (start is None and end is None):
        return rows
    inside = rows[table.end_field] >= (start or 0)
    if end is not None:
        inside &= rows[table.start_field] < end
    return rows[inside]


def _columns(rows: np.ndarray) -> bytes:
    """Rows by column: of numbers the differences, and of these first all lowest bytes, then all of the next higher."""
    out = []
    for name in rows.dtype.names or ():
        column = np.ascontiguousarray(rows[name])
        size = column.dtype.itemsize
        if size <= 8:
            numbers = column.view(f"<u{size}")
            column = np.diff(numbers, prepend=numbers.dtype.type(0))
        out.append(column.view(np.uint8).reshape(len(rows), size).T.tobytes())
    return b"".join(out)


def _packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=6).compress(data)
