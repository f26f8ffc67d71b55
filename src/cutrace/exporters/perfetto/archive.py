"""What a trace carries beside its events so that it can be read back whole (:mod:`cutrace.importers.perfetto`).

Events are read back from their own packets. What many of them share is told where it is interned: the *row* of a style
has the fields of the capture's row that all its events have in common, which of the arguments are fields, and which
field numbers the track. Descriptions of processes, texts, launch configurations and all rows that become no event are
*tables*: columns, packed, in packets of their own. Viewers skip both. docs/perfetto.md describes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import zstandard

from ...runbin.layout import FORMAT_VERSION, PROCESS_BLOCK, STRINGS_BLOCK, TABLES, Table
from ...trace import Trace
from . import schema
from .arguments import Arguments
from .output import Output
from .tracks import TEXT, never_ended

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


def track_row(table: str, values: Mapping[str, int]) -> dict[str, Any]:
    """What tells a reader of the fields that all events of a track share: a ``CutraceRow``."""
    return described(table, ()) | {place(table, name): value or None for name, value in values.items()}


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
    """Writes the tables of a trace. ``shown`` are those whose rows with known times are events, and ``arguments`` how
    these tell the texts of arguments."""

    def __init__(self, trace: Trace, output: Output, shown: Iterable[str], arguments: Arguments) -> None:
        self._trace, self._output, self._shown, self._arguments = trace, output, frozenset(shown), arguments

    def begin(self) -> None:
        """What rows refer to, and all that is about the capture and no event."""
        processes = [
            {"pid": p.pid, "clock_offset": p.clock_offset, "info": {k: v for k, v in p.info.items() if k not in _OWN}}
            for p in self._trace.processes
        ]
        layouts = {table.name: _layout(table) for table in TABLES.values() if self._trace.count(table.name)}
        texts = len(self._trace.strings)
        about = {"format": FORMAT_VERSION, "processes": processes, "layouts": layouts, "texts": texts}
        self._packet(PROCESS_BLOCK, len(processes), json.dumps(about).encode())
        self._strings()
        for table in TABLES.values():
            if table.number >= TABLES["launches"].number:
                rows = self._trace.table(table.name)
                if table.name in ("launches", "functions"):
                    self.rows(table, rows[1:], first=1)
                else:
                    self.rows(table, rows)

    def undrawn(self) -> None:
        """The rows that no events show, or none that can be read back."""
        for table in TABLES.values():
            if table.number >= TABLES["launches"].number or (table.name in self._shown and not self._partly(table)):
                continue
            for rows in self._trace.blocks(table.name):
                self.rows(table, self._unread(table, rows))
            unknown = self._trace.unknown(table.name)
            if table.name in self._shown:
                unknown = unknown[never_ended(table.name, unknown)]
            self.rows(table, self._unread(table, unknown))

    def rows(self, table: Table, rows: np.ndarray, first: int = 0) -> None:
        """Rows of a table as they are; ``first`` is the id of the first one where rows have ids."""
        for at in range(0, len(rows), _ROWS):
            part = rows[at : at + _ROWS]
            self._packet(table.number, len(part), _columns(part), first + at if first else 0)

    def _partly(self, table: Table) -> bool:
        """Whether some rows of a table that is shown cannot be read back from their events."""
        return TEXT in table.offsets and self._arguments.any_unshared

    def _unread(self, table: Table, rows: np.ndarray) -> np.ndarray:
        return rows[self._arguments.unshared(rows[TEXT])] if table.name in self._shown else rows

    def _strings(self) -> None:
        """The texts by id, from 1 on, and behind them the patterns: their lengths, and one after the other. Texts that
        events tell with the help of patterns are left empty, as far as nothing else refers to them."""
        strings, left = self._trace.strings, self._told_by_events()
        texts: list[bytes] = []
        first, size = 1, 0
        own = (b"" if left[n] else strings.bytes(n) for n in range(1, len(strings)))
        for text in chain(own, self._arguments.patterns):
            texts.append(text)
            size += len(text)
            if size >= _TEXT_BYTES:
                first += self._text_packet(first, texts)
                texts, size = [], 0
        self._text_packet(first, texts)

    def _text_packet(self, first: int, texts: list[bytes]) -> int:
        """Returns how many texts these are."""
        if texts:
            lengths = np.array([len(text) for text in texts], "<u4")
            self._packet(STRINGS_BLOCK, len(texts), lengths.tobytes() + b"".join(texts), first)
        return len(texts)

    def _told_by_events(self) -> np.ndarray:
        told = self._arguments.patterned
        if not told.any():
            return told
        for table in TABLES.values():
            names = [f.name for f in table.fields if f.type == "string"]
            if table.name in self._shown and TEXT in names:
                names.remove(TEXT)
                unknown = self._trace.unknown(table.name)
                told[unknown[TEXT][~never_ended(table.name, unknown)]] = False
            for rows in self._all(table) if names else ():
                for name in names:
                    told[rows[name]] = False
        return told

    def _all(self, table: Table) -> Iterator[np.ndarray]:
        if table.number >= TABLES["launches"].number:
            yield self._trace.table(table.name)
        else:
            yield from self._trace.blocks(table.name)
            yield self._trace.unknown(table.name)

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
