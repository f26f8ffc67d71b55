"""Perfetto traces that cutrace wrote, read back.

Events become rows again: what many share is told by the row of their style, the rest is in the packet. Tables of what
is no event come packed. docs/perfetto.md says what comes back. A file is read packet by packet, so memory is bounded by
the slices that are open at one time and by what is interned.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

from ..errors import BadCapture
from .base import DAMAGED, Import, Source
from .perfetto_events import Events
from .perfetto_patterns import Patterns
from .perfetto_tables import About, Layouts, Packed, Unusable
from .perfetto_wire import (
    ATTRIBUTES,
    CLOCK_SNAPSHOT,
    COMPRESSED,
    DEFAULTS,
    INTERNED_DATA,
    OWN,
    SEQUENCE_ID,
    TRACK,
    ZSTD_COMPRESSED,
    Malformed,
    Packets,
    fields,
    plan,
    unpack,
    varint,
)
from .restoring import Described, Restoring

_CHUNK = 4 << 20
_PACKET_TAG = 0x0A
#: The tables that others refer to, and the descriptions of processes.
_PROCESSES, _STRINGS = 1, 2
#: Fields that one of the first packets has.
_SURE = frozenset((SEQUENCE_ID, COMPRESSED, ZSTD_COMPRESSED))
#: Fields of TracePacket that say what made a trace, in words.
_MADE_BY = {
    1: "the kernel's ftrace",
    7: "the kernel's ftrace",
    2: "the kernel's process list",
    33: "the configuration of Perfetto's tracing service",
    43: "the system information of Perfetto's tracing service",
    51: "metadata of Chrome",
    5: "metadata of Chrome",
    66: "samples of a profiler",
    53: "GPU work",
    11: "track events",
    60: "descriptions of tracks",
}


class Perfetto:
    """Reads what :mod:`cutrace.exporters.perfetto` writes."""

    name = "perfetto"
    description = "a Perfetto trace that cutrace wrote"

    def recognizes(self, source: Source) -> bool:
        """Whether it begins with packets of a Perfetto trace, whoever made it."""
        return bool(_packets(source.head))

    def read(self, source: Source, out: Import) -> None:
        """Raises :class:`BadCapture` for a trace that something else made, or from which nothing can be read."""
        reader = _Reader(source, out)
        with source.open() as file:
            reader.read(iter(lambda: file.read(_CHUNK), b""))


PERFETTO = Perfetto()


class _Reader:
    """Takes the packets of a file apart and hands on what they hold."""

    def __init__(self, source: Source, out: Import) -> None:
        self._source, self._out = source, out
        self._plan = plan()
        self._events: Events | None = None
        self._restoring: Restoring | None = None
        self._layouts = Layouts(None)
        self._whole = False
        self._bad = 0

    def read(self, chunks: Iterator[bytes]) -> None:
        """Read the whole file."""
        what = self._stream(chunks, DAMAGED, self._packets)
        if self._events is None or self._restoring is None:
            raise BadCapture(self._foreign())
        if self._bad:
            self._out.seen("packets", self._bad)
            self._out.lost("packets", self._bad, why="damaged")
        if what or not self._whole:
            self._out.seen("the rest of the file", 1)
            self._out.lost("the rest of the file", 1, why=what or "it is cut off")
        self._events.finish(whole=self._whole and not what)
        self._restoring.finish()

    def _stream(self, chunks: Iterator[bytes], damaged: tuple[type[Exception], ...], use: Any) -> str:
        """Hand on all packets of a stream of bytes; returns why it ended early, nothing if it did not."""
        rest = b""
        while True:
            try:
                chunk = next(chunks, b"")
            except damaged as error:
                return f"its compression is damaged: {error}" if str(error) else "its compression is damaged"
            if not chunk:
                return "it is cut off" if rest else ""
            data = memoryview(rest + chunk if rest else chunk)
            while True:
                packets = unpack(self._plan, data)
                self._bad += packets.bad
                use(packets)
                if packets.broken:
                    return "what follows is no packet"
                if not packets.consumed:
                    break
                data = data[packets.consumed :]
            rest = bytes(data)

    def _packets(self, packets: Packets) -> None:
        self._inner_packets(packets)
        for _, packet in packets.reported:
            self._unpack_group(packet)

    def _inner_packets(self, packets: Packets) -> None:
        anchors = [(at, *anchor) for at, packet in packets.reported for anchor in self._about(packet)]
        if self._events is not None:
            self._events.add(packets, anchors)

    def _about(self, packet: memoryview) -> list[tuple[int, int]]:
        """Note what a packet that is no event says. Returns where it sets clocks: the sequence and its time."""
        try:
            return list(self._told(packet))
        except Malformed:
            self._bad += 1
            return []

    def _told(self, packet: memoryview) -> Iterator[tuple[int, int]]:
        found = list(fields(packet))
        sequence = next((v for n, v in found if n == SEQUENCE_ID and isinstance(v, int)), 0)
        for number, value in found:
            if isinstance(value, int):
                continue
            if number == OWN:
                self._table(Packed.read(value))
            elif number == ATTRIBUTES:
                self._whole = True
            elif self._events is None:
                continue
            elif number == INTERNED_DATA:
                self._events.names(value)
            elif number == TRACK:
                self._events.track(sequence, value)
            elif number == DEFAULTS:
                self._events.defaults(sequence, value)
            elif number == CLOCK_SNAPSHOT:
                time = self._events.anchor(value)
                if time is not None:
                    yield sequence, time

    def _unpack_group(self, packet: memoryview) -> None:
        """Read packets that are packed into one. They hold no such packets themselves."""
        for number, value in fields(packet):
            if isinstance(value, memoryview) and number in (COMPRESSED, ZSTD_COMPRESSED):
                chunks = _inflated(value) if number == COMPRESSED else _unzstd(value)
                what = self._stream(chunks, (zlib.error, zstandard.ZstdError), self._inner_packets)
                if what:
                    self._out.seen("the rest of a group of packets", 1)
                    self._out.lost("the rest of a group of packets", 1, why=what)

    def _table(self, packed: Packed) -> None:
        """Use a table: descriptions of processes and what rows refer to, or rows."""
        name = {_PROCESSES: "processes", _STRINGS: "strings"}.get(packed.number, packed.name)
        try:
            if packed.number == _PROCESSES:
                self._begin(json.loads(packed.unpacked()))
            elif self._restoring is not None and self._events is not None:
                if packed.number == _STRINGS:
                    self._restoring.extend_texts(packed.first, packed.texts())
                else:
                    table, rows = self._layouts.rows(packed)
                    if table.name in ("launches", "functions"):
                        self._restoring.intern(table.name, rows, packed.first)
                    else:
                        self._events.archived(table, rows)
        except (Unusable, ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, Unusable) else "damaged"
            self._out.seen(name, packed.rows)
            self._out.lost(name, packed.rows, why=why)

    def _begin(self, about: object) -> None:
        told = About.read(about)
        if self._restoring is not None or not told.processes:
            return
        self._layouts = Layouts(told.layouts)
        processes = [Described.checked(p.get("info"), p.get("pid"), p.get("clock_offset")) for p in told.processes]
        self._restoring = Restoring(self._out, processes, [b""], told.texts)
        patterns = Patterns(self._restoring, told.texts, self._source.path.stat().st_size)
        self._events = Events(self._out, self._restoring, self._layouts, patterns)

    def _foreign(self) -> str:
        """What to say of a trace without cutrace's tables."""
        kinds = [_MADE_BY[n] for packet in _packets(self._source.head) for n in packet if n in _MADE_BY]
        holds = f" (it begins with {', '.join(dict.fromkeys(kinds))})" if kinds else ""
        return (
            f"{self._source.path} is a Perfetto trace that this version of cutrace did not make{holds}: "
            "open it in ui.perfetto.dev, or convert the capture that it came from again."
        )


def _packets(head: bytes) -> list[list[int]]:
    """The numbers of the fields of the packets at the begin of a file; nothing when it does not begin with packets."""
    data = memoryview(head)
    found: list[list[int]] = []
    at = 0
    while at < len(data) and data[at] == _PACKET_TAG and len(found) < 256:
        try:
            size, begin = varint(data, at + 1)
        except Malformed:
            break
        found.append(_numbers(data[begin : begin + size]))
        at = begin + size
    # Fields of these numbers are not what a text has that begins with an empty line.
    return found if any(_SURE.intersection(numbers) for numbers in found) else []


def _numbers(packet: memoryview) -> list[int]:
    """The numbers of the fields of a packet, which may not be whole; nothing when it is none."""
    numbers = []
    try:
        for number, _ in fields(packet):
            numbers.append(number)
    except Malformed:
        # What is cut off is often one long field: a group of packets, compressed.
        try:
            tag, _ = varint(packet, 0)
        except Malformed:
            return []
        return [tag >> 3] if tag in (COMPRESSED << 3 | 2, ZSTD_COMPRESSED << 3 | 2) else []
    return numbers


def _inflated(data: memoryview) -> Iterator[bytes]:
    unpacker = zlib.decompressobj()
    rest: bytes | memoryview = data
    while not unpacker.eof:
        chunk = unpacker.decompress(rest, _CHUNK)
        rest = unpacker.unconsumed_tail
        if not chunk and not rest:
            break
        yield chunk
    if not unpacker.eof:
        raise zlib.error("it is cut off")


def _unzstd(data: memoryview) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor().stream_reader(bytes(data)) as reader:
        while chunk := reader.read(_CHUNK):
            yield chunk
