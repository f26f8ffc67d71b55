"""Perfetto's messages: fields by name, constant messages, and templates that take values from columns.

:data:`cutrace.perfetto_messages.MESSAGES` has the numbers and codings of the fields.

:func:`encode` encodes a message from values. A :class:`Template` is a message with some values from columns. It is
compiled into a native program::

    Template("Trace", {"packet": {"timestamp": Delta("time"), "sequence_flags": 2}})
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..._native import Blobs, Program, encode_rows
from ...perfetto_messages import MESSAGES, PPROF
from ..programs import (
    BLOB,
    CLOSE,
    DELTA,
    FIXED64S,
    GIVEN,
    OPEN,
    RAW,
    REPEATED,
    UNLESS,
    VARINTS,
    Op,
)

_MESSAGES = MESSAGES | PPROF
#: The wire type of each coding. Nested messages are coded like bytes.
_WIRE_TYPES = {"varint": 0, "fixed64": 1, "double": 1, "bytes": 2}

_SHORT = [bytes((i,)) for i in range(0x80)]


def varint(value: int) -> bytes:
    """A number as varint. A negative number is written as its 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class FieldType(NamedTuple):
    """One field: its number, its tag, and its coding or the name of its nested message."""

    number: int
    tag: bytes
    coding: str


@cache
def field(message: str, name: str) -> FieldType:
    """One field of a message. Raises KeyError with both names for an unknown field."""
    for entry in _MESSAGES[message].split(","):
        number, field_name, coding = entry.split()
        if field_name == name:
            return FieldType(
                int(number),
                varint(int(number) << 3 | _WIRE_TYPES.get(coding, 2)),
                coding,
            )
    raise KeyError(f"{message} has no field {name}")


def encode(message: str, values: Mapping[str, Any]) -> bytes:
    """Encode a message from values by field name: numbers, strings, bytes, mappings or encoded bytes for nested
    messages, lists for repeated fields. Fields that are None are left out."""
    out = bytearray()
    for name, value in values.items():
        kind = field(message, name)
        for item in value if isinstance(value, list | tuple) else (value,):
            if item is not None:
                out += kind.tag
                out += _coded(kind, item)
    return bytes(out)


def _coded(kind: FieldType, value: Any) -> bytes:
    if kind.coding == "varint":
        return varint(int(value))
    if kind.coding == "double":
        return struct.pack("<d", value)
    if kind.coding == "fixed64":
        return struct.pack("<Q", value)
    if isinstance(value, str):
        body = utf8(value)
    elif isinstance(value, Mapping):
        body = encode(kind.coding, value)
    else:
        body = bytes(value)
    return varint(len(body)) + body


def utf8(value: str) -> bytes:
    """The bytes of a string."""
    return value.encode("utf-8", "replace")


Columns = dict[str, "np.ndarray | Blobs"]


class FromColumn(NamedTuple):
    """The value of a column. The field is omitted where the column holds ``omit``. With ``event`` the column has an
    entry for each event instead of each row."""

    name: str
    omit: int | None = None
    event: bool = False


class Delta(NamedTuple):
    """The difference from the previous ``Delta`` of the segment, in any template. ``event`` is as for
    :class:`FromColumn`."""

    name: str
    event: bool = False


class Each(NamedTuple):
    """A repeated field: the list ``values[offsets[row]:offsets[row + 1]]``. ``event`` as for :class:`FromColumn`."""

    offsets: str
    values: str
    event: bool = False


class Piece(NamedTuple):
    """Encoded fields from the :class:`Blobs` bound as ``table``, by the id in column ``ids``. The key in the
    description has no meaning, because the encoded fields have numbers."""

    ids: str
    table: str


class String(NamedTuple):
    """A string from the :class:`Blobs` bound as ``table``, by the id in column ``ids``."""

    ids: str
    table: str


class SegmentPiece(NamedTuple):
    """Encoded fields that all events of a segment share: the segment's entry of the :class:`Blobs` bound as ``table``.
    The key in the description is ignored."""

    table: str


class When(NamedTuple):
    """A value that is omitted where a column has the value ``unless``."""

    column: str
    value: Any
    unless: int = 0


_PREFIXED = frozenset((VARINTS, FIXED64S, DELTA, BLOB, OPEN, GIVEN))
_TAG_SIZE = 8  # The number of bytes for the tag of an operation.
_OF_CODING = {"varint": VARINTS, "fixed64": FIXED64S, "double": FIXED64S}


class Template:
    """A compiled description. A description is a mapping as for :func:`encode`; a value may also be one of the classes
    above. ``columns`` are the names that :meth:`bind` needs."""

    def __init__(self, message: str, description: Mapping[str, Any]) -> None:
        self.columns: list[str] = []
        self.program = Program(self._compile(message, description))

    def bind(self, columns: Columns) -> tuple[Program, list[np.ndarray | Blobs]]:
        """The program and its columns, for the native functions."""
        return self.program, [columns[name] for name in self.columns]

    def rows(self, columns: Columns, count: int) -> bytes:
        """The messages of the first ``count`` rows, one after the other."""
        return encode_rows(self.bind(columns), count)

    def _column(self, name: str) -> int:
        if name not in self.columns:
            self.columns.append(name)
        return self.columns.index(name)

    def _compile(self, message: str, description: Mapping[str, Any]) -> list[Op]:
        items = (
            (name, v if isinstance(v, list) else [v]) for name, v in description.items()
        )
        return self._joined(
            self._field(message, name, value)
            for name, values in items
            for value in values
        )

    def _joined(self, parts: Iterable[list[Op]]) -> list[Op]:
        """Concatenate operations. Adjacent constant bytes are merged, and go into the next tag if they fit."""
        out: list[Op] = []
        raw = b""
        for part in parts:
            if part and part[0].kind == RAW:
                raw += part[0].raw
                continue
            if raw and part:
                first = part[0]
                if (
                    first.kind in _PREFIXED
                    and not first.optional
                    and len(raw) + len(first.tag) <= _TAG_SIZE
                ):
                    tagged = first._replace(tag=raw + first.tag)
                    part = [tagged, *part[1:]]
                else:
                    out.append(Op(RAW, raw=raw))
                raw = b""
            out += part
        if raw:
            return [*out, Op(RAW, raw=raw)]
        return out

    def _field(self, message: str, name: str, value: Any) -> list[Op]:
        """The operations of a field. A constant is one operation, which comes first."""
        if isinstance(value, Piece):
            return [
                Op(
                    BLOB,
                    column=self._column(value.ids),
                    column2=self._column(value.table),
                )
            ]
        if isinstance(value, SegmentPiece):
            return [Op(GIVEN, column=self._column(value.table))]
        if isinstance(value, When):
            at = self._column(value.column)
            body = self._joined([self._field(message, name, value.value)])
            return [
                Op(
                    UNLESS,
                    column=at,
                    optional=True,
                    omit=value.unless & (1 << 64) - 1,
                    skip=len(body),
                ),
                *body,
            ]
        kind = field(message, name)
        if isinstance(value, FromColumn):
            omitted = value.omit or 0
            omit = omitted & (1 << 64) - 1
            code = _OF_CODING[kind.coding]
            column = self._column(value.name)
            return [
                Op(code, kind.tag, column, 0, value.omit is not None, value.event, omit)
            ]
        if isinstance(value, Delta):
            column = self._column(value.name)
            return [Op(DELTA, kind.tag, column, event=value.event)]
        if isinstance(value, String):
            piece = Op(
                BLOB, column=self._column(value.ids), column2=self._column(value.table)
            )
            return [Op(OPEN, kind.tag), piece, Op(CLOSE)]
        if isinstance(value, Each):
            return [
                Op(
                    REPEATED,
                    kind.tag,
                    self._column(value.offsets),
                    self._column(value.values),
                    event=value.event,
                )
            ]
        if isinstance(value, Mapping):
            body = self._compile(kind.coding, value)
            if any(op.kind != RAW for op in body):
                return [Op(OPEN, kind.tag), *body, Op(CLOSE)]
        if value is None:
            return []
        return [Op(RAW, raw=encode(message, {name: value}))]
