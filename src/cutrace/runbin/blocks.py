"""Blocks of a run.bin file: their headers, and the scan that finds them in a torn or damaged file.

The scan reads headers only, so a capture of many GB opens at once. A header is valid when its checksum matches, its
payload lies inside the file, and another block or the end of the file follows. The scan skips everything else up to
the next magic and reports it as :class:`Damage`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np

from .._native import crc32c

#: A function that reads from a file. Its arguments are the largest number of bytes, and the offset.
ReadAt = Callable[[int, int], bytes]

MAGIC = b"\x89CUTR\r\n\x1a"
HEADER_SIZE = 64
#: The reason of a damage at a header whose payload is not complete.
IN_PART = "a block that was written or copied in part"
ALIGNMENT = 8

#: The fields of a block header.
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
        ("part", "<u4"),
        ("header_crc", "<u4"),
    ]
)
assert HEADER.itemsize == HEADER_SIZE
#: The fields ``row_size``, ``rows`` and ``payload_size`` of a header, and their offset.
_SIZES = Struct("<HII")
_SIZES_AT = 10


@dataclass(frozen=True)
class BlockInfo:
    """One block of a file: its position and the fields of its header.

    ``index`` counts the usable blocks. ``process`` is the index of the block's process in the order of first
    appearance. ``table`` is the name of its table, None for process and string blocks and for unknown tables.
    """

    index: int
    table: str | None
    rows: int
    offset: int
    payload_size: int
    first_time: int
    last_time: int
    process: int


@dataclass(frozen=True)
class Damage:
    """An unusable part of a file: ``size`` bytes from ``offset``, and the reason. ``rows`` is the number of rows lost
    with it, 0 when no header gives it."""

    offset: int
    size: int
    reason: str
    rows: int = 0


def padded(size: int) -> int:
    """The size of a payload, padding included."""
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
    part: int = 0,
    damaged: bool = False,
) -> bytes:
    """The 64 bytes in front of a payload. ``part`` is a result of :func:`.joining.packed`. With ``damaged``, readers
    find that the payload is damaged."""
    header = np.zeros(1, HEADER)
    crc = crc32c(payload) ^ damaged
    header[0] = (
        MAGIC,
        kind,
        row_size,
        rows,
        len(payload),
        crc,
        pid,
        sequence,
        first_time,
        last_time,
        instance,
        part,
        0,
    )
    header["header_crc"] = crc32c(header.tobytes()[:60])
    return header.tobytes()


def scan(read: ReadAt, size: int) -> tuple[np.ndarray, np.ndarray, list[Damage]]:
    """Find all blocks of a file of ``size`` bytes. Time and memory are linear in the size.

    Returns the headers of the usable blocks (dtype :data:`HEADER`), their offsets in the file, and the damage.
    """
    headers = bytearray()
    offsets: list[int] = []
    damage: list[Damage] = []
    at = 0
    while at < size:
        block = header_at(read, at, size)
        if isinstance(block, bytes):
            headers += block
            offsets.append(at)
            at += HEADER_SIZE + padded(int.from_bytes(block[16:20], "little"))
            continue
        resume = _next_magic(read, at + 1, size)
        if damage and damage[-1].offset + damage[-1].size == at:
            # Adjacent damage is one entry, with the reason of the first.
            last = damage.pop()
            block = Damage(last.offset, 0, last.reason, last.rows + block.rows)
        damage.append(replace(block, size=resume - block.offset))
        at = resume
    found = np.frombuffer(bytes(headers), HEADER)
    places = np.array(offsets, np.int64)
    return found, places, damage


def header_at(read: ReadAt, at: int, size: int) -> bytes | Damage:
    """The header of the block at an offset of a file of ``size`` bytes, or the damage if there is no whole block."""
    raw = read(HEADER_SIZE, at)
    if len(raw) < HEADER_SIZE:
        return Damage(at, 0, "torn block header")
    if raw[:8] != MAGIC:
        return Damage(at, 0, "not a block")
    if crc32c(raw[:60]) != int.from_bytes(raw[60:64], "little"):
        return Damage(at, 0, "damaged block header")
    row_size, rows, payload = _SIZES.unpack_from(raw, _SIZES_AT)
    if row_size and row_size * rows != payload:
        return Damage(at, 0, "block header with wrong sizes")
    # Only the padding after the last payload may be missing.
    begin = at + HEADER_SIZE
    if begin + payload > size:
        return Damage(at, 0, IN_PART, rows)
    end = begin + padded(payload)
    if end >= size:
        return raw
    if read(len(MAGIC), end) != MAGIC[: size - end]:
        # Either this block is torn and an appended capture follows inside its size, or the next block is damaged.
        inside = _next_magic(read, begin, end)
        if inside < end:
            return Damage(at, 0, IN_PART, rows)
    return raw


def _next_magic(read: ReadAt, start: int, size: int) -> int:
    """The offset of the next magic at or after ``start``, else ``size``."""
    # Start with a small chunk: in a file full of invalid headers, large chunks would be read again for each of them.
    chunk = 1 << 12
    at = start
    while at < size:
        wanted = min(chunk, size - at)
        data = read(wanted + len(MAGIC) - 1, at)
        offset = data.find(MAGIC)
        if offset >= 0:
            return min(at + offset, size)
        if len(data) < len(MAGIC):
            break
        at += chunk
        chunk = min(2 * chunk, 1 << 20)
    return size
