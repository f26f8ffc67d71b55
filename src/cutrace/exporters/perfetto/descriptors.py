"""Descriptions in a trace: clocks, processes, threads, GPUs, queues, tracks, and missing data."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..._native import VERSION
from ...runbin.layout import GPU_WORK
from ...trace import Process, Trace
from ...trace.quality import counted_loss, located, summed
from ...units import count_of
from .packets import BOOTTIME, CLEARED, Interned, Output

REALTIME = 1
MONOTONIC = 3
MONOTONIC_RAW = 5
#: The sequence of packets about the trace as a whole.
_SEQUENCE = 1
_SLICE_BEGIN = 1
_SLICE_END = 2
_INSTANT = 3

#: Value of InternedGraphicsContext.Api.
CUDA = 4

#: The category of events that are computed from records.
DERIVED = "cutrace.derived"

#: Units of Perfetto's counters.
_UNITS = {"ns": 1, "count": 2, "bytes": 3, "B": 3}

#: The kinds of GPU work, which are stages. Stages and queues share the ids of gpu_specifications; stages have the first
#: ids. Stages have no description, because it would be an argument of each of their events.
STAGES = ("Kernel", "Memcpy", "Memset", "CUDA graph")
#: Values of RenderStageCategory.
COMPUTE = 2
_OTHER = 0
_FIRST_QUEUE = 16

_ARCHITECTURES = {
    (5, 0): "Maxwell",
    (5, 2): "Maxwell",
    (5, 3): "Maxwell",
    (6, 0): "Pascal",
    (6, 1): "Pascal",
    (6, 2): "Pascal",
    (7, 0): "Volta",
    (7, 2): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 6): "Ampere",
    (8, 7): "Ampere",
    (8, 9): "Ada Lovelace",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (10, 3): "Blackwell",
    (11, 0): "Blackwell",
    (12, 0): "Blackwell",
    (12, 1): "Blackwell",
}

#: Vendors of GPUs in imported traces, by the first word of a GPU's name. All other GPUs are NVIDIA's.
_VENDORS = {"AMD": "AMD", "Intel": "Intel", "Intel(R)": "Intel"}


class Devices:
    """The GPUs, contexts and streams of a trace. A capture numbers devices, contexts and streams per process. A
    Perfetto trace numbers them for all processes."""

    def __init__(self, trace: Trace, pids: list[int]) -> None:
        self._trace = trace
        self._pids = pids
        self._gpus: dict[Any, int] = {}
        self._taken: set[int] = set()
        self._gpu_rows: dict[int, np.void] = {}
        self._contexts: dict[tuple[int, int], int] = {}
        self._queues: dict[tuple[int, int, int, int], int] = {}
        # By process, device and stream, the contexts of its work.
        self._contexts_of: dict[tuple[int, int, int], set[int]] = {}
        # By process, the device and the context of its first queue.
        self._first_queues: dict[int, tuple[int, int]] = {}
        self._favoured: set[tuple[int, int, int]] = set()
        for row in trace.streams:
            if row["priority"] < 0:
                stream = (int(row["process"]), int(row["context"]), int(row["stream"]))
                self._favoured.add(stream)
        working: set[int] = set()
        for name in GPU_WORK:
            working.update(info.process for info in trace.block_infos(name))
        self._several = len(working) > 1
        for (process, device), row in sorted(trace.device_rows.items()):
            self._gpu_rows.setdefault(self.gpu(process, device), row)

    def gpu(self, process: int, device: int) -> int:
        """The index of a device among the GPUs of the trace. Devices have one index if their UUIDs are equal. Without
        UUIDs, host, ordinal, name and PCI address have to be equal."""
        row = self._trace.device_rows.get((process, device))
        host = self._trace.processes[process].host
        key: Any
        if row is None:
            key = ("ordinal", host, device)
        else:
            key = _uuid(row)
            if key is None:
                model = int(row["name"])
                key = ("row", host, device, model, int(row["pci"]))
        if key not in self._gpus:
            if row is not None:
                index = len(self._gpus)
            elif device not in self._taken:
                index = device
            else:
                index = 0
                while index in self._taken:
                    index += 1
            self._gpus[key] = index
            self._taken.add(index)
        return self._gpus[key]

    def context(self, process: int, context: int) -> Interned:
        """A context as interned data."""
        key = process, context
        if key not in self._contexts:
            self._contexts[key] = len(self._contexts) + 1
        fields = {"pid": self._pids[process], "api": CUDA}
        return Interned("graphics_contexts", self._contexts[key], fields)

    def queue(
        self, process: int, device: int, context: int, stream: int
    ) -> tuple[int, str]:
        """The interned id of a stream, and its name among all processes."""
        key = process, device, context, stream
        if key not in self._queues:
            self._queues[key] = _FIRST_QUEUE + len(self._queues)
            if context:
                stream_key = process, device, stream
                self._contexts_of.setdefault(stream_key, set()).add(context)
        name = self.queue_name(*key)
        if self._several:
            name += f", {self._owner(process)}"
        return self._queues[key], name

    def known_context(
        self, process: int, device: int, context: int, stream: int
    ) -> int:
        """The context of a stream. In annotations of some sources the context is 0. It is then the context of the work
        on the stream, if all this work is in one context."""
        if context:
            return context
        contexts = self._contexts_of.get((process, device, stream), set())
        if len(contexts) != 1:
            return context
        return next(iter(contexts))

    def _owner(self, process: int) -> str:
        owner = self._trace.processes[process]
        if owner.rank is None:
            return f"{owner.name} ({self._pids[process]})"
        return f"rank {owner.rank}"

    def queue_name(self, process: int, device: int, context: int, stream: int) -> str:
        """The name of a stream within its process. Queues with equal names would share a track. So the name includes
        the device and the context, except in the context of the first named stream. Context 0 is unknown, and counts as
        this context."""
        name = f"stream {stream}"
        names = self._trace.stream_names
        given = names.get((process, context, stream)) or names.get((process, 0, stream))
        if given:
            name += f" {given}"
        if (process, context, stream) in self._favoured:
            name += " (high priority)"
        first = self._first_queues.setdefault(process, (device, context))
        usual = (first, (first[0], 0))
        if (device, context) in usual:
            return name
        if context:
            return f"{name}, device {device} context {context}"
        return f"{name}, device {device}"

    def stage(self, name: str) -> Interned:
        """A kind of GPU work as interned data. Only kernels have the category compute."""
        category = COMPUTE if name == "Kernel" else _OTHER
        number = 1 + STAGES.index(name)
        fields = {"name": name, "category": category}
        return Interned("gpu_specifications", number, fields)

    def info(self) -> dict[str, Any] | None:
        """The ``gpu_info`` of the GPUs that the capture describes; None if it describes no GPU."""
        if not self._gpu_rows:
            return None
        gpus = []
        names = [int(row["name"]) for row in self._gpu_rows.values()]
        models = Counter(names)
        for gpu, row in sorted(self._gpu_rows.items()):
            model = int(row["name"])
            name = self._trace.strings[model]
            if models[model] > 1:
                name += f" #{gpu}"
            gpus.append(self._describe(row, name))
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
            "mig": row["mig"] or None,
        }
        known = {key: str(value) for key, value in extra.items() if value is not None}
        model = self._trace.strings[row["name"]]
        vendor = _VENDORS.get(model.partition(" ")[0], "NVIDIA")
        architecture = None
        if vendor == "NVIDIA":
            architecture = _ARCHITECTURES.get((major, minor))
        return {
            "name": name,
            "vendor": vendor,
            "model": model,
            "architecture": architecture,
            "uuid": _uuid(row),
            "pci_bdf": self._trace.strings[row["pci"]] or None,
            "extra_info": [{"key": key, "value": known[key]} for key in known],
        }


def _uuid(row: np.void) -> bytes | None:
    """The UUID of a row of ``devices``; None if it is unknown."""
    uuid = bytes(row["uuid"])
    if uuid.strip(b"\0"):
        return uuid
    return None


class Descriptors:
    """The fields of ``TrackDescriptor`` for the processes, threads and tracks of a trace. ``pids`` has the process id
    of each process in the trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.pids = pids(trace)
        self.devices = Devices(trace, self.pids)
        #: The tracks of derived counters, by number.
        self.counters: list[dict[str, Any]] = []

    def thread(self, process: int, thread: int) -> dict[str, Any]:
        """The track of a thread."""
        if not thread:
            return {"name": "unknown thread"}
        pid = self.pids[process]
        name = _without_id(self.trace.thread_names.get((process, thread)), thread)
        return {"thread": {"pid": pid, "tid": thread, "thread_name": name}}


#: Names of threads with their id: ``thread 7`` and ``thread 7 (name)`` of torch.profiler, ``name/7`` of XLA.
_WITH_ID = re.compile(
    r"thread (?P<first>\d+)( \((?P<name>.+)\))?|(?P<text>.+)/(?P<last>\d+)"
)


def _without_id(name: str | None, thread: int) -> str | None:
    """The name of a thread without its id, because viewers add the id to each name."""
    match = _WITH_ID.fullmatch(name or "")
    if not match:
        return name
    if str(thread) not in (match["first"], match["last"]):
        return name
    return match["name"] or match["text"]


def shown_name(process: Process) -> str:
    """The name of a process, with its rank if it is known: ``rank 3: train.py``. Merged processes are named by rank."""
    rank = f"rank {process.rank}"
    if process.rank is None or f"{process.name} ".startswith(f"{rank} "):
        return process.name
    interpreter, _, script = process.name.partition(" ")
    name = process.name
    if script and interpreter.startswith("python"):
        name = script
    return f"{rank}: {name}"


def counter(unit: str, *categories: str) -> dict[str, Any]:
    """The fields of ``CounterDescriptor``: unit and categories."""
    if unit in _UNITS:
        return {"categories": categories, "unit": _UNITS[unit]}
    return {"categories": categories, "unit_name": unit or None}


def pids(trace: Trace) -> list[int]:
    """A distinct process id for each process of the trace, because viewers identify processes by it. A process whose
    pid occurs before (on another machine, or reused) gets a number from 2**30 on. No system has such pids."""
    taken: set[int] = set()
    out = []
    for process in trace.processes:
        pid = process.pid
        if pid in taken or not 0 < pid < 1 << 31:
            pid = (1 << 30) + process.index
            while pid in taken:
                pid += 1
        taken.add(pid)
        out.append(pid)
    return out


def write_header(output: Output, descriptors: Descriptors) -> list[int]:
    """Write the packets that a reader needs before all others. Returns the uuid of each process's track."""
    _packet(output, {"sequence_flags": CLEARED})
    for clocks in _clocks(descriptors.trace):
        times = [{"clock_id": c, "timestamp": int(clocks[c])} for c in clocks]
        snapshot = {"clocks": times, "primary_trace_clock": BOOTTIME}
        _packet(output, {"clock_snapshot": snapshot})
    random = np.frombuffer(os.urandom(16), np.int64)
    msb, lsb = random.tolist()
    _packet(output, {"trace_uuid": {"msb": msb, "lsb": lsb}})
    version = {"key": "cutrace.version", "string_value": VERSION}
    _packet(output, {"trace_attributes": {"attribute": [version]}})
    info = descriptors.devices.info()
    if info:
        _packet(output, {"gpu_info": info})
    uuids = []
    for process in descriptors.trace.processes:
        uuid = output.uuid()
        described = {
            "pid": descriptors.pids[process.index],
            "process_name": shown_name(process),
            "cmdline": list(process.command),
        }
        _packet(output, {"track_descriptor": {"uuid": uuid, "process": described}})
        uuids.append(uuid)
    return uuids


def write_missing(
    output: Output,
    trace: Trace,
    unknown: Mapping[str, int],
    moved: Mapping[str, int],
    covered: str | None,
) -> None:
    """Write the notices of missing and moved data, as attributes of the trace and as instants on their own track.
    ``unknown`` counts the rows without known times by table. ``moved`` counts the data that the exporter left out or
    moved. ``covered`` is the sentence on the share of GPU time in ranges. A file without these attributes was cut
    off."""
    missing = list(_missing(trace, unknown, moved))
    attributes: list[dict[str, Any]] = [
        {"key": "cutrace.missing", "long_value": len(missing)}
    ]
    attributes += _numbered("cutrace.missing", [text for text, _ in missing])
    if missing:
        quality = replace(trace.quality, unknown=dict(unknown), never_ended={})
        carried = quality.carried([])
        losses = {"key": "cutrace.losses", "string_value": json.dumps(carried)}
        attributes.append(losses)
    reasons: list[str] = []
    for process in trace.processes:
        reasons += process.dumped_because
    attributes += _numbered("cutrace.dumped_because", reasons)
    if covered:
        attributes.append({"key": "cutrace.ranges", "string_value": covered})
    _packet(output, {"trace_attributes": {"attribute": attributes}})
    if not missing:
        return
    track = output.uuid()
    descriptor = {
        "uuid": track,
        "name": "cutrace",
        "description": "what this trace lacks",
    }
    _packet(output, {"track_descriptor": descriptor})
    for text, count in missing:
        event: dict[str, Any] = {
            "type": _INSTANT,
            "track_uuid": track,
            "name": text,
            "categories": ["cutrace.missing", "error"],
        }
        if count:
            event["debug_annotations"] = [{"name": "count", "uint_value": count}]
        # The instants are at the end of the trace, because viewers sort all events if one is earlier than its
        # predecessor.
        _event(output, max(trace.end, 1), event)
    # Viewers have to sort events for these, but only captures of windows have them.
    for start, end in trace.unrecorded():
        begin_event = {
            "type": _SLICE_BEGIN,
            "track_uuid": track,
            "name": "not recorded",
            "categories": ["cutrace.unrecorded"],
        }
        _event(output, start, begin_event)
        _event(output, end, {"type": _SLICE_END, "track_uuid": track})


def _numbered(key: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Attributes of the trace with the keys ``key.0``, ``key.1``, and so on."""
    return [
        {"key": f"{key}.{number}", "string_value": text}
        for number, text in enumerate(texts)
    ]


def _event(output: Output, time: int, event: dict[str, Any]) -> None:
    values = {
        "timestamp": time,
        "timestamp_clock_id": BOOTTIME,
        "track_event": event,
    }
    _packet(output, values)


def _packet(output: Output, values: dict[str, Any]) -> None:
    output.packet({"trusted_packet_sequence_id": _SEQUENCE, **values})


def _clocks(trace: Trace) -> list[dict[int, int]]:
    """The snapshots of clocks from processes whose times are on the clock of the trace."""
    here = trace.processes[0].boot_id
    shifted = [p for p in trace.processes if p.alignment.moves or p.boot_id != here]
    of_shifted = np.isin(trace.clocks["process"], [p.index for p in shifted])
    rows = trace.clocks[~of_shifted]
    snapshots = []
    for row in rows[np.argsort(rows["boottime"], kind="stable")]:
        snapshot = {
            BOOTTIME: row["boottime"],
            MONOTONIC: row["monotonic"],
            MONOTONIC_RAW: row["monotonic_raw"],
            REALTIME: row["realtime"],
        }
        snapshots.append(snapshot)
    return snapshots or [{BOOTTIME: trace.start}]


def _missing(
    trace: Trace, unknown: Mapping[str, int], moved: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """The notices of missing and moved data, each with its count, 0 if nothing is counted."""
    yield from summed(trace.named_losses, trace.notes).items()
    for table, count in unknown.items():
        if count:
            rows = count_of(count, "row")
            yield f"{rows} of {table} without known times, not shown", count
    # The export does not read all tables.
    for damage in trace.quality.damage:
        yield located(damage), damage.rows
    for note in trace.notes:
        yield note, 0
    for what, count in moved.items():
        if count:
            yield counted_loss(count, what), count
