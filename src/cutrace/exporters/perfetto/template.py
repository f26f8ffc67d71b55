"""Messages with gaps: a description by field name, some of whose values come from columns, as a native program.

A description is a mapping like the one :func:`schema.encode` takes, in which a value may also be one of the classes
below. Constant fields become bytes that are copied; the rest becomes one operation a field::

    Template("Trace", {"packet": {"timestamp": Delta("time"), "sequence_flags": 2}})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import Blobs, Program, encode
from . import schema

RAW, VARINT, FIXED64, DELTA, BLOB, REPEATED, OPEN, CLOSE, UNLESS, GIVEN, MEMBER = range(11)
_PREFIXED = frozenset((VARINT, FIXED64, DELTA, BLOB, OPEN, GIVEN))
_TAG_SIZE = 8  # bytes that an operation can have for its tag
_KINDS = {schema.VARINT: VARINT, schema.FIXED64: FIXED64}


Columns = dict[str, "np.ndarray | Blobs"]


@dataclass(frozen=True)
class Column:
    """The value of a column. ``omit``: leave the field out where the column holds this. ``event``: the column has
    an entry for each event, not for each row."""

    name: str
    omit: int | None = None
    event: bool = False


@dataclass(frozen=True)
class Delta:
    """The difference to the last value of this kind, whichever template wrote it. ``event`` as for a column."""

    name: str
    event: bool = False


@dataclass(frozen=True)
class Each:
    """A repeated field: the list ``values[offsets[row]:offsets[row + 1]]``."""

    offsets: str
    values: str


@dataclass(frozen=True)
class Pieces:
    """Fields encoded before, by the id in column ``ids`` out of the :class:`Blobs` given as ``table``. Stands as a
    value under any key: the pieces carry their own field numbers."""

    ids: str
    table: str


@dataclass(frozen=True)
class Given:
    """Fields that are the same for all events of a segment: its piece out of the :class:`Blobs` bound under this name.
    Stands as a value under any key, like :class:`Pieces`."""

    table: str


@dataclass(frozen=True)
class When:
    """A value that is left out, whole, where a column is ``unless``."""

    column: str
    value: Any
    unless: int = 0


class Template:
    """A description, compiled. ``columns`` are the names that :meth:`bind` needs."""

    def __init__(self, message: str, description: Mapping[str, Any]) -> None:
        self._ops: list[tuple[int, bytes, int, int, bool, bool, int, int, bytes]] = []
        self.columns: list[str] = []
        self._compile(message, description)
        self.program = Program(self._ops)

    def bind(self, columns: Columns) -> tuple[Program, list[np.ndarray | Blobs]]:
        """The program with its columns, for :func:`cutrace._native.encode`."""
        return self.program, [columns[name] for name in self.columns]

    def encode(self, columns: Columns, rows: int) -> bytes:
        """All rows as bytes; for small things and tests."""
        offsets, pieces = np.array([0, rows], np.uint32), np.zeros(1, np.uint32)
        out = np.empty(1 << 16, np.uint8)
        while True:
            size, done = encode(out, 0, [self.bind(columns)], offsets, pieces, np.zeros(1, np.uint64))
            if done == rows:
                return out[:size].tobytes()
            out = np.empty(2 * len(out), np.uint8)

    def _column(self, name: str) -> int:
        if name not in self.columns:
            self.columns.append(name)
        return self.columns.index(name)

    def _op(
        self,
        kind: int,
        tag: bytes = b"",
        column: int = 0,
        column2: int = 0,
        omit: int | None = None,
        event: bool = False,
        skip: int = 0,
        raw: bytes = b"",
    ) -> None:
        if kind == RAW and self._ops and self._ops[-1][0] == RAW and not self._fixed():
            raw = self._ops.pop()[8] + raw
        if self._takes_prefix(kind, tag, omit):
            # Constant bytes in front of an operation ride on its tag.
            tag = self._ops.pop()[8] + tag
        sentinel = (omit or 0) & (1 << 64) - 1
        self._ops.append((kind, tag, column, column2, omit is not None, event, sentinel, skip, raw))

    def _takes_prefix(self, kind: int, tag: bytes, omit: int | None) -> bool:
        if not self._ops or self._ops[-1][0] != RAW or self._fixed() or omit is not None:
            return False
        return kind in _PREFIXED and len(self._ops[-1][8]) + len(tag) <= _TAG_SIZE

    def _fixed(self) -> bool:
        """Whether the last operation must stay as it is, because a condition counts it."""
        return getattr(self, "_barrier", -1) == len(self._ops)

    def _compile(self, message: str, description: Mapping[str, Any]) -> None:
        for name, value in description.items():
            for item in value if isinstance(value, list | tuple) else (value,):
                self._field(message, name, item)

    def _field(self, message: str, name: str, value: Any) -> None:
        if isinstance(value, Pieces):
            self._op(BLOB, column=self._column(value.ids), column2=self._column(value.table))
            return
        if isinstance(value, Given):
            self._op(GIVEN, column=self._column(value.table))
            return
        if isinstance(value, When):
            at = len(self._ops)
            self._op(UNLESS, column=self._column(value.column), omit=value.unless)
            self._field(message, name, value.value)
            self._close_condition(at)
            return
        kind = schema.field(message, name)
        if isinstance(value, Column):
            self._op(_KINDS[kind.coding], kind.tag, self._column(value.name), omit=value.omit, event=value.event)
        elif isinstance(value, Delta):
            self._op(DELTA, kind.tag, self._column(value.name), event=value.event)
        elif isinstance(value, Each):
            self._op(REPEATED, kind.tag, self._column(value.offsets), self._column(value.values))
        elif isinstance(value, Mapping) and _has_gaps(value.values()):
            at = len(self._ops)
            self._op(OPEN, kind.tag)
            self._compile(kind.message, value)
            self._op(CLOSE)
            self._join_member(at)
        elif value is not None:
            self._op(RAW, raw=schema.encode(message, {name: value}))

    def _join_member(self, at: int) -> None:
        """Make a nested message that ends with its only gap, a number, one operation: most arguments are such."""
        inside = self._ops[at:]
        if [op[0] for op in inside] != [OPEN, VARINT, CLOSE] or inside[1][4]:
            return
        (_, outer, *_), (_, inner, column, _, _, event, *_), _ = inside
        if len(outer) + 1 + len(inner) <= _TAG_SIZE:
            self._ops[at:] = [(MEMBER, outer + b"\0" + inner, column, 0, False, event, 0, len(outer), b"")]

    def _close_condition(self, at: int) -> None:
        """End what the condition at ``at`` is about; a single operation on its column takes the condition itself."""
        unless, inside = self._ops[at], self._ops[at + 1 :]
        if len(inside) == 1 and inside[0][0] == MEMBER and inside[0][2] == unless[2] and not inside[0][5]:
            self._ops[at:] = [(*inside[0][:4], True, False, unless[6], *inside[0][7:])]
            return
        self._ops[at] = (*unless[:7], len(inside), unless[8])
        self._barrier = len(self._ops)


def _has_gaps(values: Iterable[Any]) -> bool:
    return any(
        isinstance(v, Column | Delta | Each | Pieces | Given | When)
        or (isinstance(v, Mapping) and _has_gaps(v.values()))
        or (isinstance(v, list | tuple) and _has_gaps(v))
        for v in values
    )
