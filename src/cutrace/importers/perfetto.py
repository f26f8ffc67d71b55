"""Perfetto traces: track events and GPU work become trace events, which :mod:`.chrome` and :mod:`.kineto` take.

The packets are read in C++ (``native/import/perfetto.h``). A trace with an embedded capture is opened as that capture
instead (:mod:`cutrace.embedding`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import zstandard

from .._native import PerfettoReader
from ..errors import BadCapture
from . import chrome, kineto
from .base import DAMAGED, WITHOUT_CAPTURE, Import, SourceFile, value_of
from .events import BATCH, EventReader, Events, Rule
from .generic import RULES
from .timeline import ImportTimeline

#: The contents of the fields of TracePacket that are left out.
_HOLDS = {
    1: "ftrace events",
    2: "process trees",
    5: "events of old Chrome",
    7: "system statistics",
    9: "process statistics",
    33: "configurations of the tracing service",
    34: "ftrace statistics",
    35: "statistics of the tracing service",
    37: "heap profiles",
    39: "log messages",
    45: "system information",
    51: "Chrome metadata",
    66: "samples of stacks",
    69: "events of the tracing service",
}
_PHASES = {
    "B": "slices",
    "E": "slices",
    "X": "slices",
    "i": "instants",
    "C": "counter values",
    "s": "flows",
    "t": "flows",
    "f": "flows",
    "M": "names of tracks",
}
_CATEGORIES = {
    "kernel": "kernels",
    "gpu_slice": "GPU slices",
    "cuda_runtime": "API calls",
    "cuda_driver": "API calls",
    "gpu_memcpy": "copies",
    "gpu_memset": "fills",
    "cuda_sync": "synchronizations",
    "overhead": "overheads",
}
_GROUPS = (
    "kernels",
    "memcpys",
    "memsets",
    "annotations",
    "runtime",
    "driver",
    "synchronizations",
    "overheads",
    "operators",
    "user",
    "python",
    "os_runtime",
)
_RULES = tuple(rule for rule in kineto.RULES if rule.group in _GROUPS)

#: The note of a trace that torch.profiler wrote.
_SHORTENED = (
    "torch.profiler ends a kernel, copy or fill in a .pftrace where the next one on its stream starts, so overlapping "
    "work of CUDA graphs is shorter in the file than on the GPU. Export JSON for the recorded durations."
)

#: Bytes in a read.
_CHUNK = 4 << 20


class PerfettoImporter:
    """See :class:`cutrace.importers.base.Importer`."""

    name = "perfetto"
    description = "a Perfetto trace"

    def recognizes(self, source: SourceFile) -> bool:
        """Whether the source starts with packets of a trace."""
        return PerfettoReader.begins(source.head)

    def read(self, source: SourceFile, out: Import) -> None:
        events = PerfettoEvents(source, (*_RULES, *RULES), out)
        chrome.read(events, out, _label, lambda timeline: _Typed(events, timeline))


def _label(phase: str, category: str) -> str:
    if phase == "X" and category in _CATEGORIES:
        return _CATEGORIES[category]
    return _PHASES.get(phase, f"{phase} events")


class PerfettoEvents(EventReader):
    """The events of a trace. Iterate over it once. Raises :class:`BadCapture` at the end of a trace without events."""

    def __init__(
        self, source: SourceFile, rules: tuple[Rule, ...], out: Import
    ) -> None:
        super().__init__(source, rules, out)
        self.packets = PerfettoReader(self.scanner)
        self._is_damaged = False

    def __iter__(self) -> Iterator[list[Events]]:
        for _ in self._file():
            self._account()
            if self.scanner.pending >= BATCH:
                yield self._taken()
        self.packets.finish()
        self._account()
        self._leave()
        if self.scanner.pending:
            yield self._taken()

    @property
    def has_events(self) -> bool:
        return True

    @property
    def others(self) -> dict[str, bytes]:
        """The values that a JSON file has in its outer object: the devices and the wall clock."""
        out: dict[str, Any] = {}
        names = [name.decode("utf-8", "replace") for name in self.packets.devices]
        if names:
            devices = [{"id": i, "name": name} for i, name in enumerate(names)]
            out["deviceProperties"] = devices
        if self.packets.realtime is not None:
            out["baseTimeNanoseconds"] = self.packets.realtime
        return {key: json.dumps(value).encode() for key, value in out.items()}

    def _file(self) -> Iterator[None]:
        """Read the file, and stop when the scanner has enough events for a batch."""
        try:
            with self._source.open() as file:
                yield from self._read(iter(lambda: file.read(_CHUNK), b""))
        except (*DAMAGED, ValueError) as error:
            self._damaged("the file", str(error) or "its compression is damaged")

    def _read(
        self, chunks: Iterable[bytes], *, grouped: bool = False
    ) -> Iterator[None]:
        """Read packets. Raises ValueError at bytes that are not a packet."""
        rest = b""
        for chunk in chunks:
            data = rest + chunk
            behind = 0
            before = -1
            while behind > before:
                before = behind
                behind, packed = self.packets.read(data, before, BATCH)
                yield
                if not grouped:  # Groups are not nested.
                    for group in packed:
                        yield from self._group(*group)
            rest = data[behind:]
        if rest:
            raise ValueError("it is cut off")

    def _group(self, zstd: bool, data: bytes) -> Iterator[None]:
        unpack = _unzstd if zstd else _inflated
        try:
            yield from self._read(unpack(data), grouped=True)
        except (zlib.error, zstandard.ZstdError, ValueError) as error:
            self._damaged("a group of packets", str(error))

    def _damaged(self, what: str, how: str) -> None:
        self._account()
        self._is_damaged = True
        self._out.damaged(what, how)

    def _account(self) -> None:
        for what, why, count in self.packets.losses():
            self._out.lost(what, count, why=why)

    def _leave(self) -> None:
        left = {}
        for kind, number, count in self.packets.left:
            if kind == "packets":
                what = _HOLDS.get(number, f"packets with field {number}")
            elif kind == "computed":
                what = "events that cutrace computed"
            elif kind == "ends":
                what = "ends whose names no open slice has"
            elif kind == "first values":
                what = "values of GPU counters without a known start"
            else:
                what = f"field {number} of {kind}"
            left[what] = count
        if not self.packets.added and self._is_damaged:
            raise BadCapture(
                f"{self._source.path} is a Perfetto trace that is cut off or damaged, and its readable part has no "
                "track events and no GPU work. Copy or export the file again."
            )
        if not self.packets.added:
            holds = ", ".join(left) or "nothing else"
            raise BadCapture(
                f"{self._source.path} is a Perfetto trace without track events and GPU work (it holds {holds}): "
                "open it in ui.perfetto.dev."
            )
        for what, count in left.items():
            self._out.left(what, count)
        if self.packets.of_cutrace:
            self._out.note(WITHOUT_CAPTURE)
        for text in self.packets.carried:
            self._out.carried(value_of(text))
        if self.packets.of_torch:
            self._out.note(_SHORTENED)


class _Typed(kineto.Kineto):
    """Kineto's events, if each event names the process of its GPU work."""

    def __init__(self, events: PerfettoEvents, timeline: ImportTimeline) -> None:
        super().__init__(timeline)
        self._packets = events.packets

    def begin(self, batch: list[Events]) -> None:
        self._gpus = {
            process: kineto.GpuOwner(process, device=False)
            for process in self._packets.gpu_processes
        }
        self._host = self._packets.host


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
