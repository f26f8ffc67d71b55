"""Perfetto traces: track events and GPU work become trace events, which :mod:`.chrome` and :mod:`.kineto` read.

A trace with an embedded capture is opened as that capture instead (:mod:`cutrace.embedding`).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, cast

import zstandard

from ..errors import BadCapture
from ..trace_events import OWN
from . import chrome, kineto
from .base import DAMAGED, WITHOUT_CAPTURE, Import, SourceFile
from .events import Events
from .timeline import ImportTimeline

#: Fields of TracePacket.
CLOCKS, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, THREAD, DEFLATED, GPU_EVENT, CLOCK, DEFAULTS, TRACK = (
    6, 8, 10, 11, 12, 13, 44, 50, 53, 58, 59, 60,
)  # fmt: skip
CLEARED = 41
ATTRIBUTES = 126
GPU_INFO = 128
ZSTD = 133
CUTRACE_TABLE = 50161
#: One of the first packets of any trace has one of these fields.
_SURE = frozenset((SEQUENCE, DEFLATED, ZSTD))
#: The first bytes of a packet with a group of packets.
_GROUPS = (b"\x92\x03", b"\xaa\x08")
#: Fields of TracePacket without data of their own.
_ABOUT = frozenset(
    (
        3,
        36,
        CLEARED,
        42,
        43,
        44,
        58,
        79,
        87,
        89,
        98,
        CLOCKS,
        DEFAULTS,
        TRACK,
        ATTRIBUTES,
        GPU_INFO,
    )
)
#: The contents of other fields of TracePacket.
_HOLDS = {
    1: "ftrace events", 2: "process trees", 5: "events of old Chrome", 7: "system statistics", 9: "process statistics",
    33: "configurations of the tracing service", 34: "ftrace statistics", 35: "statistics of the tracing service",
    37: "heap profiles", 39: "log messages", 45: "system information", 51: "Chrome metadata",
    52: "GPU counters", 66: "samples of stacks", 69: "events of the tracing service",
}  # fmt: skip
#: Fields of InternedData that are an id and a text.
_CATEGORY = 1
_NAME = 2
_ARGUMENT = 3
_CONTEXT = 23
_STAGE = 24
_STRING = 29
_KERNEL = 1000
_KERNEL_ARGUMENT = 1001

BOOTTIME = 6
REALTIME = 1
FIRST_OF_SEQUENCE = 64
_BEGIN = 1
_END = 2
_INSTANT = 3
_COUNTER = 4
_UNITS = {1: "ns", 2: "", 3: "bytes"}
#: Names of counters whose type gives their name.
_COUNTERS = {1: "thread_time", 2: "thread_instruction_count"}
#: Fields of TrackEvent and of GpuRenderStageEvent that are read.
_READ = {
    TRACK_EVENT: frozenset(
        (1, 3, 4, 6, 9, 10, 11, 12, 16, 22, 23, 30, 31, 36, 42, 44, 45, 46, 47, 48)
    ),
    GPU_EVENT: frozenset((1, 2, 3, 5, 6, 10, 11, 13, 14, 17, 19, 20, 21)),
}
#: Fields of TrackEvent with a time in microseconds.
_OLD_TIMES = frozenset((1, 16))
#: Fields of TrackEvent with further counters: their tracks and their values.
_EXTRA = ((31, 12), (45, 46))
_PHASES = {
    "B": "slices", "E": "slices", "X": "slices", "i": "instants", "C": "counter values", "s": "flows", "t": "flows",
    "f": "flows", "M": "names of tracks",
}  # fmt: skip
_RULES = tuple(
    rule
    for rule in kineto.RULES
    if rule.group in ("kernels", "annotations", "runtime", "driver")
)
#: Arguments of kernels that have another name in Kineto's traces.
_KINETO = {
    "registers_per_thread": "registers per thread",
    "graph": "graph id",
    "graph_node": "graph node id",
}
_DERIVED = ("cutrace.derived", "cutrace.missing")

#: The most nested tracks, and the most events that wait for a descriptor.
_DEEPEST = 64
_MOST_WAITING = 1024
_CHUNK = 4 << 20
_LARGEST = 64 << 20
_BATCH = 4096

Value = int | bytes


class _Malformed(ValueError):
    """Bytes that are not a valid message."""


_DAMAGED: tuple[type[Exception], ...] = (*DAMAGED, _Malformed)


class PerfettoImporter:
    """See :class:`cutrace.importers.base.Importer`."""

    name = "perfetto"
    description = "a Perfetto trace"

    def recognizes(self, source: SourceFile) -> bool:
        """Whether the source begins with packets of a trace. Their first byte is also a line break, so one byte is not
        enough."""
        return _begins(source.head)

    def read(self, source: SourceFile, out: Import) -> None:
        translation = _Translation(source, out)
        chrome.read(
            _AsJson(source.path, source.head, translation=translation), out, _RULES, _label,
            lambda timeline: _Typed(translation, timeline),
        )  # fmt: skip
        if not translation.used:
            holds = ", ".join(translation.unsupported) or "nothing else"
            raise BadCapture(
                f"{source.path} is a Perfetto trace without track events and GPU work (it holds {holds}): "
                "open it in ui.perfetto.dev."
            )


def _label(phase: str, category: str) -> str:
    known = {
        "kernel": "kernels",
        "gpu_slice": "GPU slices",
        "cuda_runtime": "API calls",
        "cuda_driver": "API calls",
    }
    return (known.get(category) if phase == "X" else None) or _PHASES.get(
        phase, f"{phase} events"
    )


@dataclass(frozen=True)
class _AsJson(SourceFile):
    """A Perfetto trace as trace-event JSON."""

    translation: _Translation = field(kw_only=True)

    def open(self) -> BinaryIO:
        return cast(BinaryIO, self.translation)


class _Typed(kineto.Kineto):
    """Kineto's events, where each event names the process of its GPU work."""

    def __init__(self, translation: _Translation, timeline: ImportTimeline) -> None:
        super().__init__(timeline)
        self._translation = translation

    def begin(self, batch: list[Events]) -> None:
        self._gpus = self._translation.gpus
        self._host = self._translation.host


@dataclass
class _Track:
    """A track: the ids of its events, its name, and the properties of a counter. A counter with a ``total`` has
    differences as values."""

    pid: int = 0
    tid: int | str | None = None
    name: str = ""
    unit: str = ""
    multiplier: int = 1
    total: float | None = None
    parent: int = 0
    derived: bool = False
    named: bool = False
    # Whether the descriptors of the track and of its parents are read.
    described: bool = False
    ready: bool = False
    # Begins of slices without an end so far.
    open: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


@dataclass
class _Sequence:
    """The state of a sequence: interned data, defaults and clocks."""

    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    kernels: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    contexts: dict[int, int] = field(default_factory=dict)
    clock: int = BOOTTIME
    track: int = 0
    # The default tracks of further counters, by field of TrackEvent.
    extra: dict[int, list[int]] = field(default_factory=dict)
    # Tracks of counters with differences.
    differences: set[int] = field(default_factory=set)
    # By clock: a time of BOOTTIME, the same time of the clock, whether the clock is incremental, and its unit in ns.
    clocks: dict[int, tuple[int, int, bool, int]] = field(default_factory=dict)


class _Translation:
    """The JSON of a trace, generated while it is read."""

    def __init__(self, source: SourceFile, out: Import) -> None:
        self._source = source
        self._out = out
        self._sequences: dict[int, _Sequence] = {}
        self._tracks: dict[int, _Track] = {}
        self._processes: dict[int, str] = {}
        # Events that come before the descriptor of their track or of a parent, by the id in the descriptor.
        self._waiting: dict[
            int, list[tuple[_Sequence, int, list[tuple[int, Value]]]]
        ] = {}
        self._clocks: dict[int, int] = {}
        self._flows: set[int] = set()
        self._devices: list[dict[str, Any]] = []
        self._pieces = self._json()
        self._of_cutrace = False
        #: The number of translated events, and of unsupported packets of each kind.
        self.used = 0
        self.unsupported: Counter[str] = Counter()
        #: The processes of GPU work, and the first process.
        self.gpus: dict[int, kineto.GpuOwner] = {}
        self.host: int | None = None

    def __enter__(self) -> _Translation:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def read(self, size: int) -> bytes:
        """Some JSON, nothing at the end."""
        return b"".join(islice(self._pieces, _BATCH))

    def _json(self) -> Iterator[bytes]:
        yield b'{"traceEvents":['
        for event in self._events():
            yield ((",\n" if self.used else "") + _as_json(event)).encode()
            self.used += 1
        rest: dict[str, Any] = (
            {"deviceProperties": self._devices} if self._devices else {}
        )
        if REALTIME in self._clocks:
            rest["baseTimeNanoseconds"] = -self._clocks[REALTIME]
        members = "".join(
            f',"{key}":{json.dumps(value)}' for key, value in rest.items()
        )
        yield f"]{members}}}".encode()
        for what, count in self.unsupported.items():
            self._out.left(what, count)
        if self._of_cutrace:
            self._out.note(WITHOUT_CAPTURE)

    def _events(self) -> Iterator[dict[str, Any]]:
        try:
            with self._source.open() as file:
                yield from self._of_packets(iter(lambda: file.read(_CHUNK), b""))
        except _DAMAGED as error:
            self._out.damaged("the file", str(error) or "its compression is damaged")
        while self._waiting:
            yield from self._release(next(iter(self._waiting)))
        with_events = {track.pid for track in self._tracks.values() if track.named}
        for pid in (
            with_events & self._processes.keys()
        ):  # described behind their events
            yield from self._process_name(pid)
        for track in self._tracks.values():
            for time, event in track.open:
                yield {"ph": "B", "ts": time, **event}

    def _of_packets(
        self, chunks: Iterable[bytes], *, grouped: bool = False
    ) -> Iterator[dict[str, Any]]:
        for packet in _split(chunks):
            try:
                fields = _fields(packet)
                events = list(self._packet(fields))
            except (_Malformed, RecursionError):
                self._lose("packets", "damaged")
                continue
            yield from events
            for number, value in fields:
                # Groups are not nested.
                if (
                    number in (DEFLATED, ZSTD)
                    and isinstance(value, bytes)
                    and not grouped
                ):
                    unpack = _inflated if number == DEFLATED else _unzstd
                    try:
                        yield from self._of_packets(unpack(value), grouped=True)
                    except (zlib.error, zstandard.ZstdError, _Malformed) as error:
                        self._out.damaged("a group of packets", str(error))

    def _packet(self, fields: list[tuple[int, Value]]) -> Iterator[dict[str, Any]]:
        values = dict(fields)
        described = 0
        sequence = self._sequences.setdefault(
            _number(values.get(SEQUENCE)), _Sequence()
        )
        if _number(values.get(FLAGS)) & 1 or _number(values.get(CLEARED)):
            sequence.texts.clear()
            sequence.kernels.clear()
            for uuid in sequence.differences:
                self._tracks[uuid].total = 0
        for number, value in fields:
            if isinstance(value, int):
                continue
            if number == INTERNED:
                self._intern(sequence, value)
            elif number == DEFAULTS:
                defaults = dict(_fields(value))
                sequence.clock = _number(defaults.get(CLOCK)) or sequence.clock
                of_events = _fields(_bytes(defaults.get(11)))
                sequence.track = _number(dict(of_events).get(11)) or sequence.track
                sequence.extra = {
                    tracks: _numbers(of_events, tracks) for tracks, _ in _EXTRA
                }
            elif number == CLOCKS:
                self._snapshot(sequence, value)
            elif number == TRACK:
                described = self._describe(sequence, value)
            elif number == GPU_INFO:
                names = (
                    _text(dict(_fields(_bytes(gpu))).get(1))
                    for n, gpu in _fields(value)
                    if n == 1
                )
                self._devices = [
                    {"id": i, "name": name} for i, name in enumerate(names)
                ]
            elif number == CUTRACE_TABLE or (
                number == ATTRIBUTES and b"cutrace.version" in value
            ):
                self._of_cutrace = True
            elif number not in _ABOUT and number not in (
                TRACK_EVENT,
                GPU_EVENT,
                DEFLATED,
                ZSTD,
            ):
                self.unsupported[
                    _HOLDS.get(number, f"packets with field {number}")
                ] += 1
        if described in self._waiting:
            yield from self._release(described)
        for number, make in (
            (TRACK_EVENT, self._track_event),
            (GPU_EVENT, self._gpu_event),
        ):
            if number in values:
                time = self._time(sequence, values)
                what = "track events" if number == TRACK_EVENT else "GPU events"
                if time is None:
                    self._lose(what, "its clock is not known")
                else:
                    event = _fields(_bytes(values[number]))
                    for unread, _ in event:
                        if unread not in _READ[number]:
                            self.unsupported[f"field {unread} of {what}"] += 1
                    yield from make(sequence, time, event)

    def _lose(self, what: str, why: str) -> None:
        self._out.lost(what, 1, why=why)

    # Interned data, tracks and clocks

    def _intern(self, sequence: _Sequence, data: bytes) -> None:
        for number, entry in _fields(data):
            fields = _fields(_bytes(entry))
            values = dict(fields)
            iid = _number(values.get(1))
            if number == _KERNEL:
                sequence.kernels[iid] = (
                    _text(values.get(2)),
                    self._arguments(sequence, fields, 5),
                )
            elif number == _CONTEXT:
                sequence.contexts[iid] = _number(values.get(2))
            elif isinstance(values.get(2), bytes):
                sequence.texts[number, iid] = _text(values[2])

    def _describe(self, sequence: _Sequence, data: bytes) -> int:
        """Read a descriptor. Returns the id of its track."""
        values = dict(_fields(data))
        uuid = _number(values.get(1))
        track = self._tracks.setdefault(uuid, _Track())
        track.described = True
        track.ready = False
        track.parent = 0
        old = track.name
        track.name = next(
            (_text(values[n]) for n in (2, 10, 13) if n in values), track.name
        )
        if 4 in values:
            thread = dict(_fields(_bytes(values[4])))
            track.pid = _number(thread.get(1))
            track.tid = _number(thread.get(2))
            track.name = _text(thread.get(5)) or track.name
        elif 3 in values:
            process = dict(_fields(_bytes(values[3])))
            track.pid = _number(process.get(1))
            self._processes[track.pid] = _text(process.get(6))
        else:
            track.tid = f"track {uuid}"
            track.parent = _number(values.get(5))
        if 8 in values:
            counter = _fields(_bytes(values[8]))
            properties = dict(counter)
            track.unit = _text(properties.get(6)) or _UNITS.get(
                _number(properties.get(3)), ""
            )
            track.name = track.name or _COUNTERS.get(_number(properties.get(1)), "")
            track.multiplier = _signed(properties.get(4)) or 1
            if properties.get(5):
                track.total = track.total or 0
                sequence.differences.add(uuid)
            track.derived = any(
                n == 2 and _text(category) in _DERIVED for n, category in counter
            )
        track.named = track.named and track.name == old
        return uuid

    def _missing(self, uuid: int, depth: int = 0) -> int:
        """The first of a track and its parents whose descriptor is not read; 0 if none is, and then the track has its
        process id."""
        track = self._tracks.get(uuid)
        if uuid == 0 or (track is not None and track.ready):
            return 0
        if track is None or not track.described:
            return uuid
        if track.parent and depth < _DEEPEST:
            missing = self._missing(track.parent, depth + 1)
            if missing:
                return missing
            track.pid = self._tracks[track.parent].pid
        track.ready = True
        return 0

    def _release(self, uuid: int) -> Iterator[dict[str, Any]]:
        """The events that wait for a descriptor, which is read, or will not come."""
        self._tracks.setdefault(uuid, _Track()).described = True
        for event in self._waiting.pop(uuid):
            yield from self._undamaged(self._track_event(*event))

    def _undamaged(self, events: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        try:
            return list(events)
        except (_Malformed, RecursionError):
            self._lose("packets", "damaged")
            return []

    def _snapshot(self, sequence: _Sequence, data: bytes) -> None:
        read = [
            dict(_fields(_bytes(clock)))
            for number, clock in _fields(data)
            if number == 1
        ]
        times = {_number(c.get(1)): _number(c.get(2)) for c in read}
        boot = times.get(BOOTTIME)
        if boot is None:  # use the first clock that is not of the sequence
            known = (
                time + self._clocks.get(clock, 0)
                for clock, time in times.items()
                if clock < FIRST_OF_SEQUENCE
            )
            boot = next(known, None)
        if boot is None:
            return
        for clock in read:
            number = _number(clock.get(1))
            time = _number(clock.get(2))
            if number >= FIRST_OF_SEQUENCE:
                sequence.clocks[number] = (
                    boot,
                    time,
                    bool(clock.get(3)),
                    _number(clock.get(4)) or 1,
                )
            else:
                self._clocks[number] = boot - time

    def _time(self, sequence: _Sequence, values: dict[int, Value]) -> int | None:
        """The time of a packet on BOOTTIME (ns), None if its clock is unknown."""
        time = _number(values.get(TIMESTAMP))
        number = _number(values.get(CLOCK)) or sequence.clock
        if number < FIRST_OF_SEQUENCE:
            return time + self._clocks.get(number, 0)
        if number not in sequence.clocks:
            return None
        boot, base, incremental, unit = sequence.clocks[number]
        if incremental:
            boot = boot + time * unit
            base = 0
            sequence.clocks[number] = boot, base, incremental, unit
            return boot
        return boot + (time - base) * unit

    # Events

    def _track_event(
        self, sequence: _Sequence, time: int, fields: list[tuple[int, Value]]
    ) -> Iterator[dict[str, Any]]:
        values = dict(fields)
        kind = _number(values.get(9))
        uuid = _number(values.get(11)) or sequence.track
        missing = self._missing(uuid)
        if missing:
            waiting = self._waiting.setdefault(missing, [])
            waiting.append((sequence, time, fields))
            if len(waiting) == _MOST_WAITING:
                yield from self._release(missing)
            return
        if values.keys() & _OLD_TIMES:
            self._lose("track events", "their times have a form of before 2020")
            return
        for (tracks, counts), read in zip(_EXTRA, (_signed, _double), strict=True):
            uuids = _numbers(fields, tracks) or sequence.extra.get(tracks, [])
            found = _numbers(fields, counts)
            for of, value in zip(uuids, found, strict=False):
                yield from self._counter_value(
                    self._tracks.setdefault(of, _Track()), time, read(value)
                )
            for _ in found[len(uuids) :]:
                self._lose("counter values", "without a track")
        track = self._tracks.setdefault(uuid, _Track())
        categories = [
            _text(v) if n == 22 else sequence.texts.get((_CATEGORY, _number(v)), "")
            for n, v in fields
            if n in (3, 22)
        ]
        track.derived = track.derived or not set(_DERIVED).isdisjoint(categories)
        if track.derived:  # remembered, because the ends of slices have no category
            if kind != _END:
                self.unsupported["events that cutrace computed"] += 1
            return
        yield from self._named(track)
        legacy = dict(_fields(_bytes(values.get(6))))
        name_id = _number(values.get(10)) or _number(legacy.get(1))
        name = _text(values.get(23)) or sequence.texts.get((_NAME, name_id), "")
        where: dict[str, Any] = {
            "pid": track.pid,
            "name": name,
            "cat": ",".join(filter(None, categories)),
        }
        if track.tid is not None:
            where["tid"] = track.tid
        arguments = self._arguments(sequence, fields, 4)
        if arguments:
            where["args"] = arguments
        if 2 in legacy:
            yield from self._legacy(time, where, legacy)
        elif kind == _BEGIN and isinstance(track.tid, int):
            track.open.append((time, where))
        elif kind == _END and track.open:
            begin, event = track.open.pop()
            if arguments:
                event["args"] = event.get("args", {}) | arguments
            yield {"ph": "X", "ts": begin, "dur": time - begin, **event}
        elif kind in (_BEGIN, _END):
            yield {"ph": "B" if kind == _BEGIN else "E", "ts": time, **where}
        elif kind == _INSTANT:
            yield {"ph": "i", "ts": time, **where}
        elif kind == _COUNTER:
            counted = _double(values[44]) if 44 in values else _signed(values.get(30))
            yield from self._counter_value(track, time, counted, where)
        else:
            self._lose("track events", "of an unknown type")
        for number, flow in fields:
            if number in (36, 42, 47, 48):
                last = number in (42, 48)
                known = _number(flow) in self._flows
                self._flows.add(_number(flow))
                step = {
                    "ph": "f" if last else "t" if known else "s",
                    "ts": time,
                    "pid": track.pid,
                }
                yield step | {
                    "tid": track.tid or 0,
                    "name": "flow",
                    "id": _number(flow),
                    "bp": "e",
                }

    def _counter_value(
        self,
        track: _Track,
        time: int,
        value: float,
        where: dict[str, Any] | None = None,
    ) -> Iterator[dict[str, Any]]:
        if track.derived:
            self.unsupported["events that cutrace computed"] += 1
            return
        if where is None:
            yield from self._named(track)
            where = {"pid": track.pid, "name": "", "cat": ""} | (
                {} if track.tid is None else {"tid": track.tid}
            )
        value *= track.multiplier
        if track.total is not None:  # the values are differences
            track.total = value = track.total + value
        own = {"unit": track.unit, "single": True}
        name = track.name or where["name"]
        yield {
            "ph": "C",
            "ts": time,
            **where,
            "name": name,
            "args": {"value": value},
            OWN: own,
        }

    def _legacy(
        self, time: int, where: dict[str, Any], legacy: dict[int, Value]
    ) -> Iterator[dict[str, Any]]:
        event: dict[str, Any] = {
            "ph": chr(_number(legacy.get(2)) & 0x7F),
            "ts": time,
            **where,
        }
        if 3 in legacy:
            event["dur"] = 1000 * _signed(legacy[3])
        if 6 in legacy or 11 in legacy:
            event["id"] = _number(legacy.get(6, legacy.get(11)))
        elif 10 in legacy:
            event["id2"] = {"local": hex(_number(legacy[10]))}
        if _number(legacy.get(12)):
            event["bp"] = "e"
        for number, key in ((18, "pid"), (19, "tid")):
            if number in legacy:
                event[key] = _signed(legacy[number])
        yield event

    def _gpu_event(
        self, sequence: _Sequence, time: int, fields: list[tuple[int, Value]]
    ) -> Iterator[dict[str, Any]]:
        values = dict(fields)
        launch = _fields(_bytes(values.get(21)))
        kernel, constant = sequence.kernels.get(_number(values.get(19)), ("", {}))
        arguments = constant | self._arguments(sequence, launch, 3)
        for number, key in ((1, "grid"), (2, "block")):
            if number in dict(launch):
                size = dict(_fields(_bytes(dict(launch)[number])))
                arguments[key] = [_number(size.get(axis)) or 1 for axis in (1, 2, 3)]
        shared = [
            arguments.pop(f"shared_mem_{kind}", 0) for kind in ("static", "dynamic")
        ]
        if any(isinstance(size, int) and size for size in shared):
            arguments["shared memory"] = sum(
                size for size in shared if isinstance(size, int)
            )
        extra = (
            dict(_fields(_bytes(value))) for number, value in fields if number == 6
        )
        arguments |= {_text(pair.get(1)): _text(pair.get(2)) for pair in extra}
        context = _number(values.get(5))
        arguments = {_KINETO.get(key, key): value for key, value in arguments.items()}
        arguments = {"device": _number(values.get(11)), "context": context} | arguments
        arguments["correlation"] = _number(values.get(10))
        pid = sequence.contexts.get(context, 0)
        self.gpus.setdefault(pid, kineto.GpuOwner(pid, device=False))
        self.host = pid if self.host is None else self.host
        stage, queue = (
            sequence.texts.get((_STAGE, _number(values.get(n))), "") for n in (14, 13)
        )
        name = (
            kernel
            or sequence.texts.get((_NAME, _number(values.get(20))), "")
            or _text(values.get(17))
            or stage
        )
        yield {
            "ph": "X", "ts": time, "dur": _number(values.get(2)), "pid": pid, "name": name, "args": arguments,
            "tid": queue or f"queue {_number(values.get(3))}", "cat": "kernel" if kernel else "gpu_slice",
        }  # fmt: skip

    def _named(self, track: _Track) -> Iterator[dict[str, Any]]:
        """The names of a track and its process, before the track's first event."""
        self.host = track.pid if self.host is None else self.host
        if track.named:
            return
        track.named = True
        if track.name and track.tid is not None:
            yield {
                "ph": "M",
                "name": "thread_name",
                "args": {"name": track.name},
                "pid": track.pid,
                "tid": track.tid,
            }
        yield from self._process_name(track.pid)

    def _process_name(self, pid: int) -> Iterator[dict[str, Any]]:
        name = self._processes.pop(pid, "")
        if name:
            yield {
                "ph": "M",
                "name": "process_name",
                "args": {"name": name},
                "pid": pid,
            }

    def _arguments(
        self, sequence: _Sequence, fields: list[tuple[int, Value]], of: int
    ) -> dict[str, Any]:
        """Arguments of events (``DebugAnnotation``) or of GPU work (``ExtraComputeArg``)."""
        table = _ARGUMENT if of == 4 else _KERNEL_ARGUMENT
        return dict(
            self._argument(sequence, _bytes(value), table)
            for number, value in fields
            if number == of
        )

    def _argument(
        self, sequence: _Sequence, data: bytes, table: int = _ARGUMENT
    ) -> tuple[str, Any]:
        fields = _fields(data)
        values = dict(fields)
        name = _text(values.get(10 if table == _ARGUMENT else 2)) or sequence.texts.get(
            (table, _number(values.get(1))), ""
        )
        value: Any = None
        for number, raw in fields:
            if number in _VALUES[table]:
                value = _VALUES[table][number](raw)
            elif number == (17 if table == _ARGUMENT else 7):
                value = sequence.texts.get((_STRING, _number(raw)), "")
            elif number == 11:
                value = (value if isinstance(value, dict) else {}) | dict(
                    [self._argument(sequence, _bytes(raw))]
                )
            elif number == 12:
                value = [
                    *(value if isinstance(value, list) else []),
                    self._argument(sequence, _bytes(raw))[1],
                ]
        return name, value


def _as_json(event: dict[str, Any]) -> str:
    """An event as JSON. Its times (ns) become microseconds with three decimals."""
    times = [(key, event.pop(key)) for key in ("ts", "dur") if key in event]
    exact = (
        f'"{key}":{"-" if t < 0 else ""}{abs(t) // 1000}.{abs(t) % 1000:03d},'
        for key, t in times
    )
    return "{" + "".join(exact) + json.dumps(event)[1:]


# The wire format


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The packets in chunks of a trace. Raises :class:`_Malformed` at bytes that are not a packet."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        at = 0
        while at < len(data):
            if data[at] != 0x0A:
                raise _Malformed("the next bytes are not a packet")
            try:
                size, begin = _varint(data, at + 1)
            except _Malformed:
                if len(data) - at > 10:
                    raise _Malformed("the next bytes are not a packet") from None
                break
            if size > _LARGEST:
                raise _Malformed("a packet is too large")
            if begin + size > len(data):
                break
            yield data[begin : begin + size]
            at = begin + size
        rest = data[at:]
    if rest:
        raise _Malformed("it is cut off")


def _begins(head: bytes) -> bool:
    """Whether a file with this head has packets of a trace."""
    data = head
    at = 0
    while at < len(data) and data[at] == 0x0A:
        try:
            size, begin = _varint(data, at + 1)
            packet = data[begin : begin + size]
            if packet[:2] in _GROUPS or any(n in _SURE for n, _ in _fields(packet)):
                return True
        except _Malformed:
            return False
        at = begin + size
    return False


def _fields(data: bytes) -> list[tuple[int, Value]]:
    """The fields of a message: field number, and a number or bytes. Raises :class:`_Malformed`."""
    fields: list[tuple[int, Value]] = []
    at = 0
    end = len(data)
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
        number = tag >> 3
        wire = tag & 7
        if wire == 0 or wire == 2:
            value, at = (
                (data[at], at + 1)
                if at < end and data[at] < 0x80
                else _varint(data, at)
            )
            if wire == 0:
                fields.append((number, value))
                continue
            size = value
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _Malformed("damaged")
        if not 0 < number < 1 << 29 or size > end - at:
            raise _Malformed("damaged")
        body = data[at : at + size]
        fields.append((number, body if wire == 2 else int.from_bytes(body, "little")))
        at += size
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at = at + 1
        shift = shift + 7
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise _Malformed("damaged")


def _number(value: Value | None) -> int:
    if isinstance(value, int):
        return value
    return 0


def _numbers(fields: list[tuple[int, Value]], of: int) -> list[int]:
    return [_number(value) for number, value in fields if number == of]


def _signed(value: Value | None) -> int:
    number = _number(value)
    if number >> 63:
        return number - (1 << 64)
    return number


def _double(value: Value | None) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", _number(value)))[0])


def _bytes(value: Value | None) -> bytes:
    if isinstance(value, bytes):
        return value
    return b""


def _text(value: Value | None) -> str:
    return _bytes(value).decode("utf-8", "replace")


#: How the values of arguments are read, by field.
_VALUES: dict[int, dict[int, Callable[[Value], Any]]] = {
    _ARGUMENT: {
        2: bool,
        3: _number,
        4: _signed,
        5: _double,
        6: _text,
        7: _number,
        9: _text,
    },
    _KERNEL_ARGUMENT: {3: _signed, 4: _number, 5: _double, 6: _text},
}


def _inflated(data: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj()
    rest: bytes = data
    while not unpacker.eof:
        chunk = unpacker.decompress(rest, _CHUNK)
        rest = unpacker.unconsumed_tail
        if not chunk and not rest:
            raise zlib.error("it is cut off")
        yield chunk


def _unzstd(data: bytes) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        while chunk := reader.read(_CHUNK):
            yield chunk


PERFETTO = PerfettoImporter()
