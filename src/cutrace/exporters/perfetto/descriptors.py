"""Descriptions in a trace: clocks, processes, threads, GPUs, queues, tracks, and missing data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from ..._native import VERSION
from ...trace import Trace
from ...trace.quality import GPU_WORK, summed
from .packets import BOOTTIME, CLEARED, Interned, Output

REALTIME = 1
MONOTONIC = 3
MONOTONIC_RAW = 5
#: The sequence of packets about the trace as a whole.
_SEQUENCE = 1
_SLICE_BEGIN = 1
_SLICE_END = 2
_INSTANT = 3

#: Value of InternedGraphicsContext.Api and of GpuApi.
CUDA = 4

#: The category of events that are computed from records.
DERIVED = "cutrace.derived"

#: Units of Perfetto's counters.
_UNITS = {"ns": 1, "count": 2, "bytes": 3, "B": 3}

#: Kinds of GPU work, with the description that viewers show. Stages and queues share the ids of gpu_specifications:
#: stages have the first ones.
STAGES = {
    "Kernel": "CUDA kernel",
    "Memcpy": "copy of memory",
    "Memset": "fill of memory",
    "CUDA graph": "CUDA graph, recorded as a whole",
}
#: Values of RenderStageCategory.
COMPUTE = 2
_OTHER = 0
_FIRST_QUEUE = 16

_ARCHITECTURES = {
    (5, 0): "Maxwell", (5, 2): "Maxwell", (5, 3): "Maxwell", (6, 0): "Pascal", (6, 1): "Pascal", (6, 2): "Pascal",
    (7, 0): "Volta", (7, 2): "Volta", (7, 5): "Turing", (8, 0): "Ampere", (8, 6): "Ampere", (8, 7): "Ampere",
    (8, 9): "Ada Lovelace", (9, 0): "Hopper", (10, 0): "Blackwell", (10, 3): "Blackwell", (11, 0): "Blackwell",
    (12, 0): "Blackwell", (12, 1): "Blackwell",
}  # fmt: skip


class Devices:
    """The GPUs, contexts and streams of a trace. A capture numbers devices, contexts and streams per process. A
    Perfetto trace numbers them for all processes. ``rows`` has the rows of ``devices`` by process and ordinal."""

    def __init__(self, trace: Trace, pids: list[int]) -> None:
        self._trace = trace
        self._pids = pids
        self.rows = {(int(r["process"]), int(r["device"])): r for r in trace.devices}
        self._gpus: dict[Any, int] = {}
        self._taken: set[int] = set()
        self._free = count()  # candidates for the index of a GPU; some are taken
        self._gpu_rows: dict[int, np.void] = {}
        self._contexts: dict[tuple[int, int], int] = {}
        self._queues: dict[tuple[int, int, int, int], int] = {}
        self._first_queues: dict[
            int, tuple[int, int]
        ] = {}  # by process, device and context
        self._stream_names = {
            (int(r["process"]), int(r["context"]), int(r["object"])): trace.strings[
                int(r["name"])
            ]
            for r in trace.resource_names
            if r["kind"] == 1
        }
        self._several = (
            len({info.process for name in GPU_WORK for info in trace.block_infos(name)})
            > 1
        )
        contexts = {(int(r["process"]), int(r["context"])) for r in trace.contexts}
        self._context_count = Counter(process for process, _ in contexts)
        for (process, device), row in sorted(self.rows.items()):
            self._gpu_rows.setdefault(self.gpu(process, device), row)

    def gpu(self, process: int, device: int) -> int:
        """The index of a device among the GPUs of the trace. Devices that the capture shows to be one physical GPU have
        one index."""
        row = self.rows.get((process, device))
        key: Any
        if row is None:
            key = ("ordinal", self._trace.processes[process].host, device)
        elif bytes(row["uuid"]).strip(b"\0"):
            key = ("uuid", bytes(row["uuid"]))
        else:
            key = (
                "row",
                self._trace.processes[process].host,
                device,
                int(row["name"]),
                int(row["pci"]),
            )
        if key not in self._gpus:
            index = len(self._gpus)
            if not self.rows:
                if device not in self._taken:
                    index = device
                else:
                    index = next(i for i in self._free if i not in self._taken)
            self._gpus[key] = index
            self._taken.add(index)
        return self._gpus[key]

    def context(self, process: int, context: int) -> Interned:
        """A context as interned data."""
        key = process, context
        if key not in self._contexts:
            self._contexts[key] = len(self._contexts) + 1
        return Interned(
            "graphics_contexts",
            self._contexts[key],
            {"pid": self._pids[process], "api": CUDA},
        )

    def queue(
        self, process: int, device: int, context: int, stream: int
    ) -> tuple[int, str]:
        """The interned id of a stream, and its name among all processes."""
        key = process, device, context, stream
        if key not in self._queues:
            self._queues[key] = _FIRST_QUEUE + len(self._queues)
        name = self.queue_name(*key)
        if self._several:
            name = (
                f"{self._trace.processes[process].name} ({self._pids[process]}) {name}"
            )
        return self._queues[key], name

    def queue_name(self, process: int, device: int, context: int, stream: int) -> str:
        """The name of a stream within its process. Queues with equal names would share a track, so the name includes
        the device and the context when the process uses several. Context 0 is an unknown context. It is treated as the
        context of the first call."""
        given = self._stream_names.get(
            (process, context, stream)
        ) or self._stream_names.get((process, 0, stream))
        name = f"stream {stream} {given}" if given else f"stream {stream}"
        first = self._first_queues.setdefault(process, (device, context))
        if self._context_count[process] > 1 or (device, context) not in (
            first,
            (first[0], 0),
        ):
            if context:
                where = f"device {device} context {context}"
            else:
                where = f"device {device}"
            name = f"{where} {name}"
        return name

    def stage(self, name: str) -> Interned:
        """A kind of GPU work as interned data. Only kernels have the category compute."""
        category = COMPUTE if name == "Kernel" else _OTHER
        number = 1 + list(STAGES).index(name)
        return Interned(
            "gpu_specifications",
            number,
            {"name": name, "description": STAGES[name], "category": category},
        )

    def info(self) -> dict[str, Any] | None:
        """The ``gpu_info`` of the GPUs that the capture describes; None if it describes no GPU."""
        if not self._gpu_rows:
            return None
        names = [self._trace.strings[int(r["name"])] for r in self._gpu_rows.values()]
        gpus = [
            self._describe(row, name if names.count(name) == 1 else f"{name} #{gpu}")
            for (gpu, row), name in zip(
                sorted(self._gpu_rows.items()), names, strict=True
            )
        ]
        return {"gpus": gpus}

    def _describe(self, row: np.void, name: str) -> dict[str, Any]:
        info = self._trace.processes[int(row["process"])].info
        major = int(row["compute_major"])
        minor = int(row["compute_minor"])
        extra: dict[str, Any] = {
            "driver_version": info.get("driver_version"),
            "runtime_version": info.get("runtime_version"),
            "cupti_version": info.get("cupti_version"),
            "compute_capability": f"{major}.{minor}" if major else None,
            "multiprocessors": row["multiprocessors"],
            "memory_bytes": row["memory"],
            "memory_bandwidth_kb_per_s": row["memory_bandwidth"],
            "core_clock_khz": row["core_clock"],
            "memory_clock_khz": row["memory_clock"],
            "l2_cache_bytes": row["l2_cache"],
            "copy_engines": row["copy_engines"],
            "mig": row["mig"] if row["mig"] else None,
        }
        return {
            "name": name,
            "vendor": "NVIDIA",
            "model": self._trace.strings[int(row["name"])],
            "architecture": _ARCHITECTURES.get((major, minor)),
            "uuid": bytes(row["uuid"]) if bytes(row["uuid"]).strip(b"\0") else None,
            "pci_bdf": self._trace.strings[int(row["pci"])] or None,
            "extra_info": [
                {"key": k, "value": str(v)} for k, v in extra.items() if v is not None
            ],
        }


class Descriptors:
    """The fields of ``TrackDescriptor`` for the processes, threads and tracks of a trace. ``pids`` has the process id
    of each process in the trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.pids = trace, pids(trace)
        self.devices = Devices(trace, self.pids)
        self.counters: list[
            dict[str, Any]
        ] = []  # tracks of derived counters, by number
        # The last name of a thread wins, and names from NVTX win over those from the operating system.
        self._threads = {
            (int(row["process"]), int(row["thread"])): trace.strings[int(row["name"])]
            for row in trace.threads[np.argsort(trace.threads["source"], kind="stable")]
        }

    def thread(self, process: int, thread: int) -> dict[str, Any]:
        """The track of a thread."""
        if not thread:
            return {"name": "unknown thread"}
        name = self._threads.get((process, thread))
        return {
            "thread": {"pid": self.pids[process], "tid": thread, "thread_name": name}
        }


def counter(unit: str, *categories: str) -> dict[str, Any]:
    """The fields of ``CounterDescriptor``: unit and categories."""
    known = {"unit": _UNITS[unit]} if unit in _UNITS else {"unit_name": unit or None}
    return {"categories": categories, **known}


def pids(trace: Trace) -> list[int]:
    """A distinct process id for each process of the trace, because viewers identify processes by it. A process whose
    pid is taken (by another machine, or reused) gets a number from 2**30, where no system has pids."""
    taken: set[int] = set()
    out = []
    for process in trace.processes:
        pid = process.pid
        if pid in taken or not 0 < pid < 1 << 31:
            pid = next(
                p for p in range((1 << 30) + process.index, 1 << 31) if p not in taken
            )
        taken.add(pid)
        out.append(pid)
    return out


def write_header(output: Output, descriptors: Descriptors) -> list[int]:
    """Write the packets that a reader needs first. Returns the uuid of each process's track."""
    _packet(output, {"sequence_flags": CLEARED})
    for clocks in _clocks(descriptors.trace):
        snapshot = [
            {"clock_id": clock, "timestamp": int(time)}
            for clock, time in clocks.items()
        ]
        _packet(
            output,
            {"clock_snapshot": {"clocks": snapshot, "primary_trace_clock": BOOTTIME}},
        )
    msb, lsb = np.frombuffer(os.urandom(16), np.int64).tolist()
    _packet(output, {"trace_uuid": {"msb": msb, "lsb": lsb}})
    info = descriptors.devices.info()
    if info:
        _packet(output, {"gpu_info": info})
    uuids = []
    for process in descriptors.trace.processes:
        uuids.append(output.uuid())
        pid = descriptors.pids[process.index]
        command = list(process.command)
        descriptor = {"pid": pid, "process_name": process.name, "cmdline": command}
        _packet(
            output, {"track_descriptor": {"uuid": uuids[-1], "process": descriptor}}
        )
    return uuids


def write_missing(
    output: Output,
    trace: Trace,
    unknown: Mapping[str, int],
    moved: Mapping[str, int],
    covered: str | None,
) -> None:
    """Write the notices of missing and moved data, as attributes of the trace and as instants on their own track.
    ``unknown`` counts the rows without known times by table. ``moved`` counts what the exporter left out or moved.
    ``covered`` says how much of the GPU time has a range."""
    missing = [
        (f"{n:,} {what}" if n else what, n)
        for what, n in _missing(trace, unknown, moved)
    ]
    attributes: list[dict[str, Any]] = [
        {"key": "cutrace.version", "string_value": VERSION},
        {"key": "cutrace.missing", "long_value": len(missing)},
    ]
    attributes += [
        {"key": f"cutrace.missing.{i}", "string_value": text}
        for i, (text, _) in enumerate(missing)
    ]
    reasons = [
        reason for process in trace.processes for reason in process.dumped_because
    ]
    attributes += [
        {"key": f"cutrace.dumped_because.{i}", "string_value": text}
        for i, text in enumerate(reasons)
    ]
    if covered:
        attributes.append({"key": "cutrace.ranges", "string_value": covered})
    _packet(output, {"trace_attributes": {"attribute": attributes}})
    if not missing:
        return
    track = output.uuid()
    _packet(
        output,
        {
            "track_descriptor": {
                "uuid": track,
                "name": "cutrace",
                "description": "what this trace lacks",
            }
        },
    )
    for text, n in missing:
        event: dict[str, Any] = {
            "type": _INSTANT,
            "track_uuid": track,
            "name": text,
            "categories": ["cutrace.missing", "error"],
            "debug_annotations": [{"name": "count", "uint_value": n}] if n else None,
        }
        # At the end of the trace: an event earlier than those before it makes viewers sort all events.
        _packet(
            output,
            {
                "timestamp": max(trace.end, 1),
                "timestamp_clock_id": BOOTTIME,
                "track_event": event,
            },
        )
    # Viewers have to sort these, but only captures of windows have them.
    for times in trace.unrecorded():
        for kind, time in zip((_SLICE_BEGIN, _SLICE_END), times, strict=True):
            event = {"type": kind, "track_uuid": track}
            if kind == _SLICE_BEGIN:
                event |= {"name": "not recorded", "categories": ["cutrace.unrecorded"]}
            _packet(
                output,
                {
                    "timestamp": time,
                    "timestamp_clock_id": BOOTTIME,
                    "track_event": event,
                },
            )


def _packet(output: Output, values: dict[str, Any]) -> None:
    output.packet({"trusted_packet_sequence_id": _SEQUENCE, **values})


def _clocks(trace: Trace) -> list[dict[int, int]]:
    """Snapshots of the machine's clocks, of the processes whose times are on the clock of the trace."""
    here = trace.processes[0].boot_id
    shifted = [
        p.index for p in trace.processes if p.alignment.moves or p.boot_id != here
    ]
    rows = trace.clocks[~np.isin(trace.clocks["process"], shifted)]
    fields = {
        BOOTTIME: "boottime",
        MONOTONIC: "monotonic",
        MONOTONIC_RAW: "monotonic_raw",
        REALTIME: "realtime",
    }
    rows = rows[np.argsort(rows["boottime"], kind="stable")]
    return [{clock: row[field] for clock, field in fields.items()} for row in rows] or [
        {BOOTTIME: trace.start}
    ]


def _missing(
    trace: Trace, unknown: Mapping[str, int], moved: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """The notices of missing and moved data, as (text, count). A notice with count 0 has no count in its text."""
    yield from summed(trace.named_losses, trace.notes).items()
    yield from (
        (f"{table} without known times, not shown", n)
        for table, n in unknown.items()
        if n
    )
    for damage in trace.damage:
        yield (
            f"{damage.reason} at byte {damage.offset} of the capture, {damage.size} bytes",
            damage.rows,
        )
    yield from ((note, 0) for note in trace.notes)
    yield from ((what, n) for what, n in moved.items() if n)
