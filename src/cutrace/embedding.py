"""A capture inside a file of another format, so that the file opens again as that capture.

The capture is cut into pieces of some MiB. A piece starts with its offset in the capture and the size of the whole
capture (two u64, little-endian). The four bytes ``cols`` and a zstd frame with a checksum follow. The frame has the
rows of blocks as columns of bytes (:func:`cutrace._native.transposed`). Version 0.2.0 wrote plain rows, without
``cols``. A Perfetto trace has each piece in a separate packet (``TracePacket.cutrace_capture``), which viewers skip.
The first packet of the trace is a piece. Trace-event JSON has them in the first key, as base64; SQLite has them in a
table. A capture is used only if it is complete.
"""

from __future__ import annotations

import binascii
import re
import sqlite3
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from ._native import transposed
from .outputs import unwritable
from .trace import Trace

#: The exporters whose files can have an embedded capture, by name.
CARRIERS = ("perfetto", "chrome", "sqlite")

#: The key of trace-event JSON, and the table of SQLite with its column.
JSON_KEY = "cutraceCapture"
SQLITE_TABLE = "CUTRACE_CAPTURE"
SQLITE_COLUMN = "piece"

#: Bytes of a capture in one piece.
PIECE_SIZE = 4 << 20
_HEADER = struct.Struct("<QQ")
_COLUMNS = b"cols"
_LARGEST_PACKET = 2 * PIECE_SIZE
# The start of a packet with a piece: field 50164, the piece. Field 10, the sequence, may precede it.
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_FIELD = b"\xa2\xbf\x18"
_IN_PACKET = re.compile(rb"(?:\x50" + _VARINT + rb")?" + _FIELD + _VARINT, re.DOTALL)
_PIECE = re.compile(
    _FIELD
    + rb"(?P<size>"
    + _VARINT
    + rb")(?P<piece>.{16}(?:"
    + _COLUMNS
    + rb")?"
    + re.escape(zstandard.FRAME_HEADER)
    + rb")",
    re.DOTALL,
)
# The number of bytes in which the first piece starts. Before it are the tag and size of the packet and its sequence.
_FIRST_PACKET = 64
_LONGEST_BEGIN = (
    len(_FIELD) + 10 + _HEADER.size + len(_COLUMNS) + len(zstandard.FRAME_HEADER)
)


class Damaged(Exception):
    """The capture inside a file is not complete. The message has the reason."""


class Carrier(Protocol):
    """A file that may hold a capture: its path, its first bytes, and a reader of its uncompressed content."""

    @property
    def path(self) -> Path: ...

    @property
    def head(self) -> bytes: ...

    def open(self) -> BinaryIO: ...


def pieces(trace: Trace) -> Iterator[bytes]:
    """Yield the file behind a trace, in pieces. Memory does not grow with the file."""
    return (make() for make in piece_makers(trace))


def piece_makers(trace: Trace) -> Iterator[Callable[[], bytes]]:
    """Yield functions that make the pieces, in order. Any threads may call them, at the same time."""
    offset = 0
    for data in trace.contents(PIECE_SIZE):
        yield partial(_piece, data, offset, trace.size)
        offset += len(data)


def _piece(data: bytes, offset: int, size: int) -> bytes:
    compressor = zstandard.ZstdCompressor(1, write_checksum=True)
    frame = compressor.compress(transposed(data))
    return _HEADER.pack(offset, size) + _COLUMNS + frame


def compressed(data: bytes) -> bytes:
    """Return packets as a zstd frame."""
    # Packets often repeat a recent packet with few changes, so short matches at few recent positions suffice. Compared
    # with the settings of the level, this saves a third of the time and up to a tenth of the size.
    settings = zstandard.ZstdCompressionParameters.from_level(
        3, min_match=4, hash_log=15, chain_log=8, window_log=19
    )
    compressor = zstandard.ZstdCompressor(compression_params=settings)
    return compressor.compress(data)


def extract(file: Carrier, target: Path, damaged: tuple[type[Exception], ...]) -> bool:
    """Write the capture inside a file to ``target``. Returns whether the file has one. Raises :class:`Damaged` when the
    capture is not complete, :class:`CutraceError` when it cannot be written. ``damaged`` are the exceptions of reading
    a damaged file."""
    parts = _pieces_in(file)
    if parts is None:
        return False
    broken: tuple[type[Exception], ...] = (
        *damaged,
        zstandard.ZstdError,
        sqlite3.Error,
        binascii.Error,
    )
    try:
        return _join(parts, target)
    except broken as error:
        raise Damaged(str(error) or "its compression is damaged") from None
    except OSError as error:
        raise unwritable(target, error) from None


def begins_with_capture(head: bytes) -> bool:
    """Whether the first packet of a Perfetto trace has a piece of a capture, given the first bytes of the file."""
    return _PIECE.search(head[:_FIRST_PACKET]) is not None


def _pieces_in(file: Carrier) -> Iterator[bytes] | None:
    """The pieces of the capture in a file; None for a file of another format."""
    for begin, find in _FORMATS.items():
        if begin.match(file.head):
            return find(file)
    return None


def _join(parts: Iterator[bytes], target: Path) -> bool:
    """Write the captures in the pieces, one after the other. The result is a capture too. Returns False when there are
    no pieces. Each capture has to be complete."""
    begin = 0
    size = 0
    with target.open("wb") as out:
        for piece in parts:
            if len(piece) < _HEADER.size:
                raise Damaged("a piece is cut off")
            offset, size = _HEADER.unpack_from(piece)
            frame = piece[_HEADER.size :]
            columns = frame.startswith(_COLUMNS)
            frame = frame.removeprefix(_COLUMNS)
            misplaced = offset != out.tell() - begin
            if misplaced or zstandard.frame_content_size(frame) > PIECE_SIZE:
                raise Damaged("a piece is missing or too large")
            data = zstandard.ZstdDecompressor().decompress(frame)
            if columns:
                data = transposed(data, back=True)
            out.write(data)
            if out.tell() - begin == size:
                begin = out.tell()
        if begin != out.tell():
            raise Damaged(f"{out.tell() - begin:,} of {size:,} bytes are there")
    return begin > 0


def _in_packets(file: Carrier) -> Iterator[bytes]:
    """Yield the pieces in the packets of a Perfetto trace. The pieces are between other packets. In concatenated
    traces, each trace has its own pieces. Packets are not parsed: a piece is found by its field and the start of its
    zstd frame."""
    with file.open() as data:
        rest = b""
        while more := data.read(PIECE_SIZE):
            rest += more
            at = 0
            while (at := rest.find(_FIELD, at)) >= 0:
                if len(rest) - at < _LONGEST_BEGIN:
                    rest += data.read(_LONGEST_BEGIN)
                begin = _PIECE.match(rest, at)
                if begin:
                    first = begin.start("piece")
                    size = min(_number(begin["size"]), _LARGEST_PACKET)
                    rest += data.read(max(first + size - len(rest), 0))
                    yield rest[first : first + size]
                    rest = rest[first + size :]
                    at = 0
                else:
                    at += 1
            rest = rest[1 - len(_FIELD) :]


def _number(varint: bytes) -> int:
    number = 0
    for place, byte in enumerate(varint):
        number += (byte & 0x7F) << 7 * place
    return number


def _in_json(file: Carrier) -> Iterator[bytes]:
    """Yield the pieces in the first key of an object: strings of an array, in base64."""
    with file.open() as data:
        rest = data.read(1 << 16)
        begin = _IN_JSON.match(rest)
        if begin is None:
            return
        rest = rest[begin.end() :]
        while True:
            before, _, behind = rest.partition(b'"')
            if b"]" in before:
                return
            text, end, behind = behind.partition(b'"')
            if end:
                yield b64decode(text, validate=True)
                rest = behind
                continue
            more = data.read(PIECE_SIZE)
            if not more:
                return
            rest += more


def _in_database(file: Carrier) -> Iterator[bytes]:
    uri = f"{file.path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        # The message of an error can raise UnicodeDecodeError.
        try:
            # Ignore a damaged definition of another table or index.
            database.execute("PRAGMA writable_schema = ON")
            table = database.execute(
                "SELECT 1 FROM sqlite_master WHERE name = ?", (SQLITE_TABLE,)
            ).fetchone()
        except (
            sqlite3.Error,
            UnicodeDecodeError,
        ):
            return  # The importer reports the damage.
        if not table:
            return
        query = f"SELECT {SQLITE_COLUMN} FROM {SQLITE_TABLE} ORDER BY rowid"
        for (piece,) in database.execute(query):
            yield piece if isinstance(piece, bytes) else b""


_IN_JSON = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*"' + JSON_KEY.encode() + rb'"\s*:\s*\['
)
#: The first bytes of a file of each format, and the function that finds its pieces.
_FORMATS: dict[re.Pattern[bytes], Callable[[Carrier], Iterator[bytes]]] = {
    re.compile(rb"\x0a" + _VARINT + _IN_PACKET.pattern, re.DOTALL): _in_packets,
    _IN_JSON: _in_json,
    re.compile(rb"SQLite format 3\x00"): _in_database,
}
