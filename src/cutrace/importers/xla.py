"""The ``.trace.json.gz`` of XLA's profiler, which JAX and TensorFlow use: trace events without categories.

Each GPU is a process of the file, and each of its streams a thread. All arguments are strings. Events of streams are
translated into Kineto's groups, and :class:`.kineto.Kineto` writes their rows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from . import generic
from .base import Import, SourceFile, object_of
from .chrome import looks_like_events, read
from .events import EventReader, Events, Rule, Want, keys
from .kineto import Kineto
from .timeline import ImportTimeline, Outcome

#: For events of streams: the argument that identifies a kind, its group, and its name in the account.
_KINDS = (
    ("kernel_details", "kernels", "kernel"),
    ("theoretical_occupancy_pct", "kernels", "kernel"),  # Older files hide the details.
    ("memcpy_details", "memcpys", "gpu_memcpy"),
    ("Memset_details", "memsets", "gpu_memset"),
    ("cuda_graph_exec_id", "graphs", "graph_launch"),
)
#: Ids of all work, and their columns.
_ID_COLUMNS = {
    "correlation_id": "correlation",
    "context_id": "context",
    "cuda_graph_id": "graph id",
    "cuda_graph_node_id": "graph node id",
}
_TELLING = [argument for argument, _, _ in _KINDS]
_WANTED = (*_ID_COLUMNS, *_TELLING)
#: Numbers in the details of a kernel, and their columns.
_KERNEL_NUMBERS = {
    "regs": "registers per thread",
    "static_shared": "static shared memory",
    "dynamic_shared": "shared memory",
}
#: Wanted arguments without a field, by group.
_UNUSED = {
    "kernels": ("theoretical_occupancy_pct",),
    "annotations": ("cuda_graph_id", "cuda_graph_node_id"),
    "driver": _WANTED[1:],
    "slices": _WANTED,
}
RULES = (
    Rule("xla", "X", arguments=keys(*_WANTED, want=Want.TEXT)),
    *generic.RULES,
)

#: The groups of work that an operation of XLA can launch.
_WORK = ("kernels", "memcpys", "memsets", "graphs")

_PROCESS = re.compile(
    rb'"process_name"\s*,\s*"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device:\w+:\d+|host:CPU)'
)
_DEVICE = re.compile(r"/device:GPU:(\d+)")
_STREAM = re.compile(r"Stream #(\d+)")
_HOST = "/host:CPU"
_DETAIL = re.compile(r"(\w+):(\S+)")
_COPY = re.compile(r"Memcpy(\w)2(\w)")


class XlaImporter:
    """See :class:`cutrace.importers.base.Importer`."""

    name = "xla"
    description = "JSON of XLA's profiler (JAX, TensorFlow)"

    def recognizes(self, source: SourceFile) -> bool:
        """Whether the first processes of the file have the names that XLA gives to hosts and devices."""
        if not looks_like_events(source.head):
            return False
        return bool(_PROCESS.search(source.head))

    def read(self, source: SourceFile, out: Import) -> None:
        events = EventReader(source, RULES, out)
        read(events, out, _label, Xla)


def _label(phase: str, category: str) -> str:
    return category or f"{phase} events"


class Xla(Kineto):
    """Converts events of streams as GPU work of the host's process. The other lines of a GPU, such as "XLA Ops", are
    threads of a process with the GPU's name."""

    def __init__(self, timeline: ImportTimeline) -> None:
        super().__init__(timeline)
        # By process id of the file, the ordinal of its GPU; by process and thread id, the number of its stream.
        self._device_of: dict[Any, int] = {}
        self._stream_of: dict[Any, int] = {}

    def begin(self, batch: list[Events]) -> None:
        """Find the GPUs and streams. Their names are at the start of the file."""
        for events in batch:
            if events.group == "metadata":
                self._learn(events)
        if self._host is None and self._device_of:
            self._host = min(self._device_of)

    def _learn(self, events: Events) -> None:
        reader = self._timeline.reader
        texts = reader.texts(events.arguments)
        kinds = reader.texts(events.names)
        threads = events.threads.tolist()
        for thread, kind, text in zip(threads, kinds, texts, strict=True):
            pid, tid = reader.threads[thread]
            given = object_of(text).get("name")
            name = str(given)
            stream = _STREAM.match(name)
            if kind == b"process_name":
                self._learn_process(pid, name)
            elif kind == b"thread_name" and stream:
                self._stream_of[pid, tid] = int(stream[1])

    def _learn_process(self, pid: Any, name: str) -> None:
        device = _DEVICE.match(name)
        if device:
            self._device_of[pid] = int(device[1])
        elif name == _HOST:
            self._host = pid

    def take(self, events: Events) -> None:
        if events.group != "xla":
            super().take(events)
            return
        device, stream = self._by_thread(events, self._place)
        of_gpu = device >= 0
        of_stream = of_gpu & (stream >= 0)
        rest = of_stream
        for argument, group, category in _KINDS:
            chosen = rest & events.present(argument)
            rest = rest & ~chosen
            self._take_part(events, chosen, group, category)
        self._take_part(events, rest, "annotations")
        correlated = events.present("correlation_id")
        called = correlated & ~of_gpu
        others = ~of_stream & ~called
        self._take_part(events, called, "driver", "cuda_driver")
        self._take_part(events, others, "slices")

    def _place(self, pid: Any, tid: Any) -> tuple[int, int]:
        """The GPU and the stream of a thread of the file, -1 for none."""
        device = self._device_of.get(pid, -1)
        stream = self._stream_of.get((pid, tid), -1)
        return device, stream

    def _take_part(
        self, events: Events, chosen: np.ndarray, group: str, category: str = ""
    ) -> None:
        """Take the chosen events as a group of Kineto's events."""
        if not chosen.any():
            return
        part = events.select(chosen)
        text = self._timeline.text(category)
        named = np.full(len(part), text, np.uint32)
        part = replace(part, group=group, categories=named)
        unused = _UNUSED.get(group, ())
        self._timeline.leave_columns(part, "argument", *unused)
        columns = self._columns(part)
        part = _with_columns(part, columns)
        if group in _WORK:
            part = self._name_operations(part)
        super().take(part)

    def _name_operations(self, events: Events) -> Events:
        """Write a slice for the operation of XLA of each piece of work. The slice has the other arguments of the work.
        Returns the events without these arguments."""
        names = self._timeline.by_text(events.arguments, self._operation)
        named = names > 0
        if not named.any():
            return events
        category = np.full(len(events), self._timeline.text("XLA Ops"), np.uint32)
        operations = replace(events, names=names.astype(np.uint32), categories=category)
        self._gpu_work("annotations", operations.select(named))
        rest = np.where(named, np.uint32(0), events.arguments)
        return replace(events, arguments=rest)

    def _operation(self, text: str) -> int:
        """The id of the operation among the arguments of an event, 0 for none."""
        name = object_of(text).get("hlo_op")
        if isinstance(name, str):
            return self._timeline.text(name)
        return 0

    def _columns(self, events: Events) -> dict[str, np.ndarray]:
        """The arguments of an event, with Kineto's names."""
        device, stream = self._by_thread(events, self._place)
        columns = {"device": device, "stream": stream}
        for argument, column in _ID_COLUMNS.items():
            columns[column] = self._numbers(events, argument)
        details = getattr(self, f"_details_of_{events.group}", None)
        if details is not None:
            columns |= details(events)
        return columns

    def _details_of_kernels(self, events: Events) -> dict[str, np.ndarray]:
        columns = {}
        for name, column in _KERNEL_NUMBERS.items():
            columns[column] = self._detail(events, "kernel_details", name)
        for name in ("grid", "block"):
            columns[name] = self._dimensions(events, name)
        return columns

    def _dimensions(self, events: Events, name: str) -> np.ndarray:
        """The three sizes of a grid or a block as ids of JSON text."""

        def as_json(text: str) -> int:
            sizes = _details(text).get(name, "")
            return self._timeline.text(f"[{sizes}]")

        ids = events.ids("kernel_details")
        return self._timeline.by_text(ids, as_json)

    def _details_of_memcpys(self, events: Events) -> dict[str, np.ndarray]:
        ids = events.ids("memcpy_details")
        kinds = self._timeline.by_text(events.names, _copy_kind, object)
        memory = self._timeline.by_text(ids, _copied_memory, object)
        names = kinds + memory
        for i, name in enumerate(names):
            events.names[i] = self._timeline.text(name)
        device, _ = self._by_thread(events, self._place)
        to = self._detail(events, "memcpy_details", "dest")
        size = self._detail(events, "memcpy_details", "size")
        of_peers = kinds == "Memcpy PtoP"
        return {"bytes": size, "toDevice": np.where(of_peers, to, device)}

    def _details_of_memsets(self, events: Events) -> dict[str, np.ndarray]:
        ids = events.ids("Memset_details")

        def name(text: str) -> int:
            memory = _memory(text, "kind")
            return self._timeline.text(f"Memset ({memory})")

        events.names[:] = self._timeline.by_text(ids, name)
        return {"bytes": self._detail(events, "Memset_details", "num_bytes")}

    def _details_of_graphs(self, events: Events) -> dict[str, np.ndarray]:
        return {"graph id": self._numbers(events, "cuda_graph_exec_id")}

    def _numbers(self, events: Events, argument: str) -> np.ndarray:
        return self._timeline.by_text(events.ids(argument), _number)

    def _detail(self, events: Events, argument: str, name: str) -> np.ndarray:
        def number(text: str) -> int:
            value = _details(text).get(name, "")
            return _number(value)

        return self._timeline.by_text(events.ids(argument), number)

    def _leave_metadata(self) -> None:
        """Leave out the names of streams. The GPUs are processes, because they have other lines, too."""
        kept = []
        for event in self.metadata:
            of_stream = (event.pid, event.tid) in self._stream_of
            unused = not self._timeline.known_process(event.pid)
            if of_stream or (unused and event.pid in self._device_of):
                self._timeline.count(ord("M"), event.category, Outcome.OF_DEVICE)
            else:
                kept.append(event)
        self.metadata = kept


def _with_columns(events: Events, columns: dict[str, np.ndarray]) -> Events:
    """The events with added columns, which have a value for each event."""
    every = np.arange(len(events))
    added = dict(events.columns)
    for name, values in columns.items():
        added[name] = (every, values.astype(np.int64))
    return replace(events, columns=added)


def _details(text: str) -> dict[str, str]:
    """The values of "regs:32 grid:8,1,1"."""
    return dict(_DETAIL.findall(text))


def _number(text: str) -> int:
    """The number in "7" or in "$$7", which marks a string; 0 for another string."""
    digits = text.removeprefix("$$")
    if digits.isdecimal() and len(digits) < 19:
        return int(digits)
    return 0


def _copy_kind(name: str) -> str:
    """The start of Kineto's name of a copy: "Memcpy HtoD" for "MemcpyH2D"."""
    kind = _COPY.fullmatch(name)
    if kind:
        return f"Memcpy {kind[1]}to{kind[2]}"
    return "Memcpy Unknown"


def _copied_memory(text: str) -> str:
    source = _memory(text, "kind_src")
    destination = _memory(text, "kind_dst")
    return f" ({source} -> {destination})"


def _memory(text: str, name: str) -> str:
    """Kineto's name of a kind of memory: "Device Static" for "device_static"."""
    kind = _details(text).get(name, "unknown")
    return kind.replace("_", " ").title()


XLA = XlaImporter()
