"""Packets, packet sequences and interned data.

A timestamp on a sequence is the difference to the previous packet (an incremental clock of the sequence). It takes two
or three bytes; a full timestamp takes eight. A clock snapshot gives the first time.

Perfetto scopes interned ids to a packet sequence. Here ids are unique in the whole trace, so that encoded fields of an
event are valid on each sequence that has received the interned entries.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..._native import Blobs, Program, encode
from ...embedding import compressed, piece_makers
from ...trace import Trace
from ..base import Compression
from . import proto
from .pipeline import PacketFile
from .proto import Columns, FromColumn, String, Template

BOOTTIME = 6
INCREMENTAL = 64  # the first clock id that is scoped to a sequence

CLEARED = 1
NEEDS_STATE = 2


def text_field(field: str) -> str:
    """The field with the string, in interned entries of this field of InternedData."""
    if field in ("debug_annotation_string_values", "function_names"):
        return "str"
    return "name"


class Interned(NamedTuple):
    """One entry of interned data: its field of InternedData, its ``iid``, and its other values."""

    field: str
    iid: int
    values: dict[str, Any]


class InternedNames:
    """Interned ids of names, by field of InternedData."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[str, int]] = {}
        self._used: Counter[str] = Counter()

    def entry(self, field: str, name: str) -> Interned:
        """The entry of a name, with a new id for a new name."""
        ids = self._ids.setdefault(field, {})
        if name not in ids:
            ids[name] = self.reserve(field, 1)
        return Interned(field, ids[name], {text_field(field): name})

    def reserve(self, field: str, count: int) -> int:
        """Reserve ``count`` new ids for entries that the caller keeps. Returns the first one."""
        first = self._used[field] + 1
        self._used[field] += count
        return first


class InternedTexts:
    """Many strings of one ``field`` of interned data, in ``texts``. Their entries are encoded from columns, and equal
    strings may have several ids."""

    def __init__(self, names: InternedNames, field: str) -> None:
        self._names = names
        self._field = field
        self.texts = Blobs()
        self._numbers = np.zeros(0, np.uint32)  # By id, the number of its string.
        values = {
            "iid": FromColumn("iid"),
            text_field(field): String("number", "texts"),
        }
        self._entry = Template("InternedData", {field: values})

    def add(self, texts: Ordered[str]) -> np.ndarray:
        """Add strings. Returns their ids."""
        first = self._names.reserve(self._field, len(texts))
        end = first + len(texts)
        ids = np.arange(first, end, dtype=np.uint32)
        self._numbers.resize(end, refcheck=False)
        encoded = map(proto.utf8, texts)
        self._numbers[ids] = list(map(self.texts.add, encoded))
        return ids

    def numbers(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of strings, given their ids."""
        return self._numbers.take(ids)

    def entries(self, ids: np.ndarray) -> bytes:
        """The interned entries of some ids, encoded."""
        columns: Columns = {
            "iid": ids,
            "number": self.numbers(ids),
            "texts": self.texts,
        }
        return self._entry.rows(columns, len(ids))


class SentNumbers:
    """The numbers whose interned entries a sequence has received."""

    def __init__(self) -> None:
        self._sent = np.zeros(0, bool)

    def add(self, numbers: np.ndarray) -> np.ndarray:
        """Add numbers. Returns the new numbers, ascending."""
        # Growing is rare. Searching for the largest number each time would be slow.
        try:
            used = self._used(numbers)
        except IndexError:
            largest = int(numbers.max())
            more = np.zeros(2 * largest + 1 - len(self._sent), bool)
            self._sent = np.append(self._sent, more)
            used = self._used(numbers)
        new = np.flatnonzero(used & ~self._sent)
        new = new.astype(np.uint32)
        self._sent[new] = True
        return new

    def _used(self, numbers: np.ndarray) -> np.ndarray:
        used = np.zeros(len(self._sent), bool)
        used[numbers] = True
        return used


class InternedRefs(list[Interned]):
    """The interned entries that an event refers to. They are collected while its constant fields are built."""

    def __init__(self, names: InternedNames) -> None:
        super().__init__()
        self._names = names

    def name(self, field: str, name: str) -> int:
        return self.add(self._names.entry(field, name))

    def add(self, entry: Interned) -> int:
        """Add an entry. Returns its id."""
        self.append(entry)
        return entry.iid

    def annotations(
        self, values: Mapping[str, int | str | None]
    ) -> list[dict[str, Any]]:
        """Debug annotations. Values of None and 0 are left out."""
        annotations = []
        for name, value in values.items():
            if value is not None and value != 0:
                argument = self._argument("debug_annotation_names", name, value)
                annotations.append(argument)
        return annotations

    def compute_args(
        self, values: Mapping[str, int | str | None]
    ) -> list[dict[str, Any]]:
        """Arguments of a kernel or a launch. Values of None are left out."""
        arguments = []
        for name, value in values.items():
            if value is not None:
                argument = self._argument("compute_arg_names", name, value)
                arguments.append(argument)
        return arguments

    def _argument(self, field: str, name: str, value: int | str) -> dict[str, Any]:
        iid = self.name(field, name)
        if isinstance(value, str):
            value_iid = self.name("debug_annotation_string_values", value)
            return {"name_iid": iid, "string_value_iid": value_iid}
        if value < 0:
            return {"name_iid": iid, "int_value": value}
        return {"name_iid": iid, "uint_value": value}


class Output:
    """Writes packets to ``file``. Allocates the ids that must be unique in a trace: of sequences, tracks and interned
    ``names``."""

    def __init__(self, file: PacketFile) -> None:
        self.file = file
        # The first sequence is for packets about the trace as a whole.
        self._sequences = 1
        self._uuids = 0
        self.names = InternedNames()
        self._pieces: Iterator[Callable[[], bytes]] = iter(())
        # The fields that all packets of a sequence share. NEEDS_STATE makes a reader skip packets after a lost packet.
        # A file loses no packets, so host events use the prefixes without the flag. The flag would be a tenth of the
        # size of a host event.
        self.prefixes = Blobs()
        self.bare_prefixes = Blobs()

    def uuid(self) -> int:
        self._uuids += 1
        return self._uuids

    def sequence(self) -> Sequence:
        """A new sequence."""
        self._sequences += 1
        fields = {"trusted_packet_sequence_id": self._sequences}
        self.bare_prefixes.add(proto.encode("TracePacket", fields))
        fields["sequence_flags"] = NEEDS_STATE
        piece = self.prefixes.add(proto.encode("TracePacket", fields))
        return Sequence(self, self._sequences, piece)

    def packet(self, values: Mapping[str, Any]) -> None:
        """Write one packet from values by field name (see :func:`proto.encode`)."""
        self.file.put(proto.encode("Trace", {"packet": values}))

    def carry(self, trace: Trace) -> None:
        """Embed the capture in the trace, in packets that viewers skip. The first piece is written now, so that readers
        find it quickly. The other pieces are written between windows of events, when threads have time to compress
        them."""
        self._pieces = piece_makers(trace)
        self.next_piece()

    def next_piece(self) -> bool:
        """Write the next piece of the embedded capture. Returns whether there was one."""
        make = next(self._pieces, None)
        if make is not None:
            self.file.put_made(partial(_capture_packet, make))
        return make is not None

    def series(
        self,
        stream: tuple[Program, Ordered[np.ndarray | Blobs]],
        sequence: Sequence,
        count: int,
        times: np.ndarray | None = None,
    ) -> None:
        """:meth:`events` for the first ``count`` rows of one stream on one sequence."""
        offsets = np.array([0, count], np.uint32)
        self.events([stream], [sequence], offsets, times)

    def events(
        self,
        streams: Ordered[tuple[Program, Ordered[np.ndarray | Blobs]]],
        sequences: Ordered[Sequence],
        offsets: np.ndarray,
        times: np.ndarray | None = None,
        *,
        which: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ) -> None:
        """Encode events in segments, and advance the clock of each segment's sequence to its last event.

        Segment s has the events ``offsets[s]`` to ``offsets[s + 1]`` on ``sequences[s]``; no segment is empty.
        ``times`` has the time of each event, None for packets without one; ``which`` has its stream and ``rows`` its
        row (see ``cutrace._native.encode``). The caller must not change the arrays afterwards.
        """
        prefixes = np.array([s.piece for s in sequences], np.uint32)
        clocks = np.array([s.time for s in sequences], np.uint64)
        if times is not None:
            last_times = times[offsets[1:] - 1].tolist()
            for sequence, last in zip(sequences, last_times, strict=True):
                sequence.time = last

        def encode_into(buffer: np.ndarray, at: int, event: int) -> tuple[int, int]:
            return encode(
                buffer, at, streams, offsets, prefixes, clocks, event, which, rows
            )

        first = int(offsets[0])
        self.file.events(encode_into, first, int(offsets[-1]))


class Sequence:
    """One packet sequence, made by :meth:`Output.sequence`.

    ``time`` is the value of its clock (ns of BOOTTIME, -1 before the first :meth:`anchor`). ``anchored`` is the time of
    the latest snapshot. Snapshots must not go back in time, but events written before a snapshot may have later times.
    ``piece`` is the index of its shared fields in the prefixes of the output.
    """

    def __init__(self, output: Output, number: int, piece: int) -> None:
        self._output = output
        self._number = number
        self.piece = piece
        self.time = -1
        self.anchored = -1
        self._sent: set[tuple[str, int]] = set()

    def packet(self, values: Mapping[str, Any]) -> None:
        """Write a packet without a timestamp."""
        self._output.packet({"trusted_packet_sequence_id": self._number, **values})

    def defaults(
        self, values: Mapping[str, Any], others: Mapping[str, Any] = {}
    ) -> None:
        """Set the ``trace_packet_defaults`` of the packets that follow; the default clock is added."""
        defaults = {"timestamp_clock_id": INCREMENTAL, **values}
        self.packet({**others, "trace_packet_defaults": defaults})

    def anchor(self, time: int) -> None:
        """Set the clock to a time that is not before :attr:`anchored`. The first call opens the sequence."""
        assert time >= self.anchored, "snapshots of one clock do not go back"
        if self.time < 0:
            self.defaults({}, {"sequence_flags": CLEARED})
        self.time = time
        self.anchored = time
        clocks = [
            {"clock_id": BOOTTIME, "timestamp": time},
            {"clock_id": INCREMENTAL, "timestamp": time, "is_incremental": True},
        ]
        self.packet({"clock_snapshot": {"clocks": clocks}})

    def intern(self, entries: Iterable[Interned], encoded: bytes = b"") -> None:
        """Write the entries that this sequence has not received yet, and the ``encoded`` entries."""
        data: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            key = (entry.field, entry.iid)
            if key not in self._sent:
                self._sent.add(key)
                of_field = data.setdefault(entry.field, [])
                of_field.append({"iid": entry.iid, **entry.values})
        encoded = proto.encode("InternedData", data) + encoded
        if encoded:
            self.packet({"sequence_flags": NEEDS_STATE, "interned_data": encoded})


def _capture_packet(make: Callable[[], bytes]) -> bytes:
    packet = {"trusted_packet_sequence_id": 1, "cutrace_capture": make()}
    return proto.encode("Trace", {"packet": packet})


def wrapper(compress: Compression) -> Callable[[bytes], bytes] | None:
    """A function that compresses a group of packets into one packet; thread-safe. None without compression."""
    if compress == "zstd":
        return lambda group: proto.encode(
            "Trace", {"packet": {"zstd_compressed_packets": compressed(group)}}
        )
    if compress == "deflate":
        return lambda group: proto.encode(
            "Trace", {"packet": {"compressed_packets": zlib.compress(group, 6)}}
        )
    return None
