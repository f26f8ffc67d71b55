"""Perfetto's packets as cutrace writes them: the numbers of their fields, and reading them.

:data:`PLAN` is for what there is much of, events and rows of styles, which become columns natively. Other packets are
few; :func:`fields` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .._native import Unpacker

#: Fields of TracePacket.
CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE_ID, TRACK_EVENT, INTERNED_DATA = 6, 8, 10, 11, 12
COMPRESSED, GPU_EVENT, CLOCK_ID, DEFAULTS, TRACK, ATTRIBUTES, ZSTD_COMPRESSED = 50, 53, 58, 59, 60, 126, 133
#: cutrace's own field of several messages.
OWN = 50161
#: Fields of InternedData.
DEBUG_NAMES, KERNELS, ARGUMENT_NAMES = 3, 1000, 1001

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4
INCREMENTAL_CLOCK = 64
#: Fields of a row that a style may have, from this number on.
FIRST_FIELD, MOST_FIELDS = 5, 32

_NUMBER, _ENTER, _EACH, _REPORT = range(4)
_COLUMNS = ("time", "sequence", "clock", "type", "name", "track", "duration", "correlation", "kernel", "count", "value")
(_TIME, _SEQUENCE, _CLOCK, _TYPE, _NAME, _TRACK, _DURATION, _CORRELATION, _KERNEL, _COUNT, _VALUE) = range(
    len(_COLUMNS)
)
# Nodes and groups of the plan.
(_PACKET, _EVENT, _GPU, _ANNOTATION, _LAUNCH, _ARGUMENT, _INTERNED, _OF_KERNEL, _KERNEL_ROW, _ROW) = range(10)
(_ANNOTATIONS, _ARGUMENTS, _KERNEL_ROWS, _ROWS) = range(4)

_VALUES = [(number, _NUMBER, 1, False) for number in (2, 3, 4, 5, 7)]
_STYLE = [(2, _NUMBER, 1, False), (3, _NUMBER, 2, False), (4, _NUMBER, 3, False)]
_STYLE += [(FIRST_FIELD + i, _NUMBER, 4 + i, False) for i in range(MOST_FIELDS)]
_REPORTED = (CLOCK_SNAPSHOT, DEFAULTS, TRACK, OWN, COMPRESSED, ZSTD_COMPRESSED, ATTRIBUTES)


def plan() -> Unpacker:
    """Reads packets into the columns of :class:`Packets`."""
    nodes = [
        (
            -1,
            [
                (TIMESTAMP, _NUMBER, _TIME, False),
                (SEQUENCE_ID, _NUMBER, _SEQUENCE, False),
                (TRACK_EVENT, _ENTER, _EVENT, True),
                (GPU_EVENT, _ENTER, _GPU, True),
                (INTERNED_DATA, _ENTER, _INTERNED, False),
                (CLOCK_ID, _NUMBER, _CLOCK, False),
                *((number, _REPORT, 0, False) for number in _REPORTED),
            ],
        ),
        (
            -1,
            [
                (9, _NUMBER, _TYPE, False),
                (10, _NUMBER, _NAME, False),
                (4, _EACH, _ANNOTATION, False),
                (11, _NUMBER, _TRACK, False),
                (30, _NUMBER, _COUNT, False),
                (44, _NUMBER, _VALUE, False),
            ],
        ),
        (
            -1,
            [
                (2, _NUMBER, _DURATION, False),
                (10, _NUMBER, _CORRELATION, False),
                (19, _NUMBER, _KERNEL, False),
                (21, _ENTER, _LAUNCH, False),
            ],
        ),
        (_ANNOTATIONS, [(1, _NUMBER, 0, False), *_VALUES]),
        (-1, [(3, _EACH, _ARGUMENT, False)]),
        (_ARGUMENTS, [(1, _NUMBER, 0, False), *_VALUES]),
        (
            -1,
            [
                (KERNELS, _EACH, _OF_KERNEL, True),
                (OWN, _EACH, _ROW, True),
                (DEBUG_NAMES, _REPORT, 0, False),
                (ARGUMENT_NAMES, _REPORT, 0, False),
            ],
        ),
        (_KERNEL_ROWS, [(1, _NUMBER, 0, False), (OWN, _ENTER, _KERNEL_ROW, False)]),
        (_KERNEL_ROWS, _STYLE),
        (_ROWS, [(1, _NUMBER, 0, False), *_STYLE]),
    ]
    return Unpacker(nodes, len(_COLUMNS), [2, 2, 4 + MOST_FIELDS, 4 + MOST_FIELDS])


@dataclass(frozen=True)
class Arguments:
    """Named numbers of events: the event (its place in the columns), the id of the name, and the bits."""

    events: np.ndarray
    names: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class StyleRows:
    """Rows of styles as they were told: the packet's sequence, the style's id there, the number of the table, the place
    of the field that numbers the track and 1 (0: none), a bit for each field that is an argument; and the fields."""

    sequences: np.ndarray
    ids: np.ndarray
    tables: np.ndarray
    track_fields: np.ndarray
    arguments: np.ndarray
    fields: list[np.ndarray]

    @classmethod
    def of_tracks(cls, told: Sequence[tuple[int, dict[int, int]]]) -> StyleRows:
        """Of sequences, the one row that all events have there that tell none, by the numbers of its fields."""
        numbered = [np.array([row.get(i, 0) for _, row in told], np.uint64) for i in range(FIRST_FIELD + MOST_FIELDS)]
        return cls(
            sequences=np.array([sequence for sequence, _ in told], np.uint64), ids=np.zeros(len(told), np.uint64),
            tables=numbered[2], track_fields=numbered[3], arguments=numbered[4], fields=numbered[FIRST_FIELD:],
        )  # fmt: skip


@dataclass(frozen=True)
class Packets:
    """Some packets. The columns have an entry for each event and each packet with rows of styles, 0 for what a packet
    does not have. ``reported`` are other packets, each with the number of entries before it. ``consumed`` bytes were
    read; ``broken``: no packet stands behind them; ``bad`` packets were left out. ``count`` are the bits of values of
    counters that are whole, ``value`` of others."""

    consumed: int
    broken: bool
    bad: int
    time: np.ndarray
    sequence: np.ndarray
    clock: np.ndarray
    type: np.ndarray
    name: np.ndarray
    track: np.ndarray
    duration: np.ndarray
    correlation: np.ndarray
    kernel: np.ndarray
    count: np.ndarray
    value: np.ndarray
    annotations: Arguments
    arguments: Arguments
    kernel_styles: StyleRows
    styles: StyleRows
    reported: list[tuple[int, memoryview]]


def unpack(unpacker: Unpacker, data: memoryview) -> Packets:
    """Whole packets at the begin of ``data``: not all when there are very many, and none when no whole one is left."""
    consumed, broken, bad, columns, groups, begins, sizes, before = unpacker.read(data)
    places = zip(begins.tolist(), sizes.tolist(), before.tolist(), strict=True)
    annotations, arguments, kernels, rows = groups
    sequences = columns[_SEQUENCE]
    return Packets(
        consumed=consumed,
        broken=broken,
        bad=bad,
        annotations=Arguments(annotations[0], *annotations[1]),
        arguments=Arguments(arguments[0], *arguments[1]),
        kernel_styles=_styles(kernels, sequences),
        styles=_styles(rows, sequences),
        reported=[(at, data[begin : begin + size]) for begin, size, at in places],
        **dict(zip(_COLUMNS, columns, strict=True)),
    )


def _styles(group: tuple[np.ndarray, list[np.ndarray]], sequences: np.ndarray) -> StyleRows:
    rows, columns = group
    ids, tables, track_fields, arguments, *of_rows = columns
    return StyleRows(sequences[rows], ids, tables, track_fields, arguments, of_rows)


class Malformed(ValueError):
    """Bytes that are no message."""


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: number, and a number or bytes. Raises :class:`Malformed`."""
    at, size = 0, len(data)
    while at < size:
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise Malformed
        if wire == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if wire == 2:
            length, at = varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise Malformed
        if length > size - at:
            raise Malformed
        body = data[at : at + length]
        yield number, body if wire == 2 else int.from_bytes(body, "little")
        at += length


def numbers(data: memoryview) -> dict[int, int]:
    """The fields of a message that are numbers, the last of each."""
    return {number: value for number, value in fields(data) if isinstance(value, int)}


def messages(data: memoryview, number: int) -> Iterator[memoryview]:
    """The nested messages, or bytes, of one field."""
    for found, value in fields(data):
        if found == number and isinstance(value, memoryview):
            yield value


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number that stands at a place, and the place behind it. Raises :class:`Malformed`."""
    value = shift = 0
    while True:
        if at >= len(data) or shift >= 70:
            raise Malformed
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & (1 << 64) - 1, at
