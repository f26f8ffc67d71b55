"""Blocks of a run.bin file: their header, and finding them in a file that may be torn or damaged.

The scan reads headers only, so a capture of many GB opens at once. It trusts nothing: a header counts when
its own checksum holds, its payload lies inside the file, and a block (or the end of the file) follows. What
does not count is skipped to the next magic and remembered as :class:`Damage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .._native import crc32c
from ..outputs import read_at

MAGIC = b"\x89CUTR\r\n\x1a"
HEADER_SIZE = 64
ALIGNMENT = 8

#: Rows of the table that the scan makes of a file: the header's fields, with the offset of the block.
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("kind", "<u2"),
        ("row_size", "<u2"),
        ("rows", "<u4"),
        ("payload_size", "<u4"),
        ("payload_crc", "<u4"),
        ("pid", "<u4"),
        ("sequence", "<u4"),
        ("first_time", "<u8"),
        ("last_time", "<u8"),
        ("instance", "<u8"),
        ("reserved", "<u4"),
        ("header_crc", "<u4"),
    ]
)
assert HEADER.itemsize == HEADER_SIZE

# Headers are looked at in windows of this many bytes when the blocks in them are small.
_WINDOW = 1 << 16


@dataclass(frozen=True)
class BlockInfo:
    """One block of a file: where it lies and what its header says.

    ``process`` is the index of the process in the order of first appearance, ``table`` the name of the table
    (None for process and string blocks and for tables that this version does not know).
    """

    kind: int
    table: str | None
    rows: int
    row_size: int
    offset: int
    payload_size: int
    pid: int
    sequence: int
    first_time: int
    last_time: int
    instance: int
    process: int


@dataclass(frozen=True)
class Damage:
    """A part of a file that could not be used: ``size`` bytes from ``offset``, and why. ``rows`` is how many
    rows are known to be lost with it, 0 where no header says so."""

    offset: int
    size: int
    reason: str
    rows: int = 0


def padded(size: int) -> int:
    """A payload's size with the zero bytes that follow it."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def pack_header(
    kind: int,
    *,
    row_size: int,
    rows: int,
    payload: bytes | memoryview,
    pid: int,
    sequence: int,
    instance: int,
    first_time: int = 0,
    last_time: int = 0,
) -> bytes:
    """The 64 bytes in front of a payload."""
    header = np.zeros(1, HEADER)
    crc = crc32c(payload)
    header[0] = (MAGIC, kind, row_size, rows, len(payload), crc, pid, sequence, first_time, last_time, instance, 0, 0)
    header["header_crc"] = crc32c(header.tobytes()[:60])
    return header.tobytes()


@dataclass(frozen=True)
class Scan:
    """What a file holds: the headers of its usable blocks (dtype :data:`HEADER`), their offsets in the file
    (bytes of the header's begin), and what could not be used."""

    headers: np.ndarray
    offsets: np.ndarray
    damage: tuple[Damage, ...]


def scan(fd: int, size: int) -> Scan:
    """Find all blocks of an open file of ``size`` bytes. Time and memory are linear in the size."""
    headers = bytearray()
    offsets: list[int] = []
    damage: list[Damage] = []
    window = _Window(fd)
    at = 0
    while at < size:
        block = _header_at(window, at, size)
        if isinstance(block, bytes):
            headers += block
            offsets.append(at)
            at += HEADER_SIZE + padded(int.from_bytes(block[16:20], "little"))
            continue
        resume = _next_magic(fd, at + 1, size)
        damage.append(Damage(at, resume - at, block.reason, block.rows))
        at = resume
    return Scan(np.frombuffer(bytes(headers), HEADER), np.array(offsets, np.int64), tuple(_joined(damage)))


class _Window:
    """Reads of a few bytes at rising offsets, served from one larger read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._start, self._data = 0, b""

    def read(self, at: int, count: int) -> bytes:
        begin = at - self._start
        if begin < 0 or begin + count > len(self._data):
            # Of large blocks there is one header in many windows.
            near = begin < len(self._data) + _WINDOW
            self._start, self._data, begin = at, read_at(self._fd, _WINDOW if near else HEADER_SIZE, at), 0
        return self._data[begin : begin + count]


def _header_at(window: _Window, at: int, size: int) -> bytes | Damage:
    raw = window.read(at, HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        return Damage(at, 0, "torn block header")
    if raw[:8] != MAGIC:
        return Damage(at, 0, "not a block")
    if crc32c(raw[:60]) != int.from_bytes(raw[60:64], "little"):
        return Damage(at, 0, "damaged block header")
    row_size, rows, payload = (int.from_bytes(raw[a:b], "little") for a, b in ((10, 12), (12, 16), (16, 20)))
    if row_size and row_size * rows != payload:
        return Damage(at, 0, "block header with wrong sizes")
    # The zero bytes behind the last payload may be missing, nothing else.
    if at + HEADER_SIZE + payload > size:
        return Damage(at, 0, "torn block", rows)
    end = at + HEADER_SIZE + padded(payload)
    if end < size and window.read(end, len(MAGIC)) != MAGIC[: size - end]:
        # A torn block in front of an appended capture claims bytes of its neighbour; or the next block is damaged.
        inside = _next_magic(window._fd, at + HEADER_SIZE, min(end, size))
        if inside < min(end, size):
            return Damage(at, 0, "torn block", rows)
    return raw


def _next_magic(fd: int, start: int, size: int) -> int:
    """The offset of the next magic at or behind ``start``, else ``size``."""
    # It is mostly near: a file full of headers that are none would be read again and again in large pieces.
    chunk, at = 1 << 12, start
    while at < size:
        data = read_at(fd, min(chunk, size - at) + len(MAGIC) - 1, at)
        found = data.find(MAGIC)
        if found >= 0:
            return min(at + found, size)
        if len(data) < len(MAGIC):
            break
        at += chunk
        chunk = min(2 * chunk, 1 << 20)
    return size


def _joined(damage: list[Damage]) -> Iterator[Damage]:
    """Neighbouring stretches of damage as one, named after the first."""
    last: Damage | None = None
    for d in damage:
        if last is not None and last.offset + last.size == d.offset:
            last = Damage(last.offset, last.size + d.size, last.reason, last.rows + d.rows)
            continue
        if last is not None:
            yield last
        last = d
    if last is not None:
        yield last
