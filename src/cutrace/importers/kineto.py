"""torch.profiler's JSON, written by Kineto: trace events whose categories name kinds of CUPTI records.

Kernels, copies, fills, API calls, waits and overheads go into the tables of a recording; operators, annotations and
Python functions go into ``host_slices``. docs/importers.md has the whole mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runbin import TABLES
from ..trace_events import (
    DEVICE_PROPERTIES,
    EXTERNAL_KIND,
    MEMCPY_KINDS,
    MEMORY_KINDS,
    OVERHEADS,
    OWN,
    SYNCHRONIZATIONS,
)
from . import generic
from .base import Import, SourceFile, object_of, rows_of, value_of
from .chrome import looks_like_events, read, without_mark
from .events import EventReader, Events, Key, Rule, Want, keys
from .generic import Generic
from .timeline import ImportTimeline, Outcome

_EXTERNAL = (Key("External id"), Key("external id", column="External id"))
_WHERE = (*keys("device", "context", "stream", "correlation"), *_EXTERNAL)
_GRAPH = keys("graph id", "graph node id")
#: Arguments that Kineto computes from the others or uses for its own counting, and the one that cutrace adds.
_DERIVED = ("Ev Idx", "Record function id", OWN)
_OF_KERNELS = (
    "queued",
    "blocks per SM",
    "warps per SM",
    "est. achieved occupancy %",
    "occupancy",
)
_OF_COPIES = ("memory bandwidth (GB/s)",)
_OF_PYTHON = ("Python id", "Python parent id", "Python module id")
_SIZES = ("registers per thread", "shared memory")
_CALL = (*_EXTERNAL, *keys("cbid", "correlation"))
_WAIT = keys(
    "wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id"
)
#: Keys of events that slices do not use.
_KEYS = ("id", "id text", "id2", "bp")
_TOTALS = ("Total Allocated", "Total Reserved")


def _rules(
    group: str,
    phases: str,
    *categories: str,
    arguments: Iterable[Key] = (),
    left: Iterable[str] = (),
) -> list[Rule]:
    wanted = (*arguments, *keys(*left, want=Want.NOTHING))
    return [Rule(group, phases, category, None, wanted) for category in categories]


#: The groups of Kineto's events. Old releases capitalised categories.
RULES = (
    *_rules(
        "kernels",
        "X",
        "kernel",
        "Kernel",
        left=(*_DERIVED, *_OF_KERNELS),
        arguments=(
            *_WHERE,
            *_GRAPH,
            *keys(*_SIZES, "priority"),
            *keys("grid", "block", want=Want.JSON),
        ),
    ),
    *_rules(
        "memcpys",
        "X",
        "gpu_memcpy",
        "Memcpy",
        left=(*_DERIVED, *_OF_COPIES),
        arguments=(
            *_WHERE,
            *_GRAPH,
            Key("bytes"),
            *keys(
                "fromDevice",
                "inDevice",
                "toDevice",
                "fromContext",
                "inContext",
                "toContext",
            ),
        ),
    ),
    *_rules(
        "memsets",
        "X",
        "gpu_memset",
        "Memset",
        left=(*_DERIVED, *_OF_COPIES),
        arguments=(*_WHERE, *_GRAPH, Key("bytes")),
    ),
    *_rules("runtime", "X", "cuda_runtime", "Runtime", left=_DERIVED, arguments=_CALL),
    *_rules("driver", "X", "cuda_driver", left=_DERIVED, arguments=_CALL),
    *_rules(
        "synchronizations",
        "X",
        "cuda_sync",
        left=_DERIVED,
        # The name has the kind too.
        arguments=(*_WHERE, *_WAIT, Key("cuda_sync_kind", Want.JSON)),
    ),
    *_rules(
        "cuda_events",
        "X",
        "cuda_event",
        left=_DERIVED,
        arguments=(*_WHERE, Key("event_id")),
    ),
    *_rules("overheads", "X", "overhead", left=_DERIVED, arguments=keys("correlation")),
    *_rules("graphs", "X", "graph_launch", left=_DERIVED, arguments=(*_WHERE, *_GRAPH)),
    *_rules(
        "annotations",
        "X",
        "gpu_user_annotation",
        "gpu_slice",
        left=_DERIVED,
        arguments=keys("device", "context", "stream", "correlation"),
    ),
    *_rules("operators", "X", "cpu_op", "Operator", left=_DERIVED, arguments=_EXTERNAL),
    *_rules("user", "X", "user_annotation", left=_DERIVED, arguments=_EXTERNAL),
    *_rules(
        "python",
        "X",
        "python_function",
        left=(*_DERIVED, *_OF_PYTHON),
        arguments=_EXTERNAL,
    ),
    Rule(
        "memory",
        "i",
        "cpu_instant_event",
        "[memory]",
        (
            *keys(*_TOTALS, "Device Id", "Device Type"),
            *keys(*_DERIVED, "finished", want=Want.NOTHING),
        ),
    ),
    *_rules("arrows", "stf", "ac2g", "async_cpu_to_gpu", "async_gpu"),
)

_GROUPS = frozenset(rule.group for rule in RULES)
#: Groups of GPU work, and the tables of their rows.
_GPU_GROUPS = {
    "kernels": "kernels",
    "memcpys": "memcpys",
    "memsets": "memsets",
    "synchronizations": "synchronizations",
    "graphs": "graph_launches",
    "cuda_events": "gpu_slices",
    "annotations": "gpu_slices",
}
_HOST_KINDS = {"operators": 1, "user": 2, "python": 3}
#: Groups whose process is the one that the profiler ran in: calls, and in files without calls these.
_CALLS = ("runtime", "driver")
_OF_HOST = tuple(_HOST_KINDS)

_MARKS = re.compile(rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds)"\s*:')
_CATEGORIES = re.compile(
    rb'"cat"\s*:\s*"(?:[Kk]ernel|gpu_mem(?:cpy|set)|cuda_(?:runtime|driver)|cpu_op|python_function)"'
    rb'|"Trace name"\s*:\s*"PyTorch Profiler"'
)
_COPY = re.compile(r"Memcpy (\S+) \((.+) -> (.+)\)")
_FILL = re.compile(r"Memset \((.+)\)")
#: The largest id of functions and devices, which have 16 bits.
_MOST = 0xFFFF
_DEVICE_FIELDS = {f.name for f in TABLES["devices"].fields if f.type in ("u32", "u64")}
#: Device properties: Kineto's names, and one that only ROCm uses.
_PROPERTIES = DEVICE_PROPERTIES | {
    "maxSharedMemoryPerMultiProcessor": "shared_per_multiprocessor"
}


class KinetoImporter:
    """See :class:`cutrace.importers.base.Importer`."""

    name = "kineto"
    description = "torch.profiler (Kineto) JSON"

    def recognizes(self, source: SourceFile) -> bool:
        head = source.head
        if without_mark(head).startswith(b"{") and _MARKS.search(head):
            return True
        return looks_like_events(head) and bool(_CATEGORIES.search(head))

    def read(self, source: SourceFile, out: Import) -> None:
        events = EventReader(source, (*RULES, *generic.RULES), out)
        read(events, out, _label, Kineto)


def _label(phase: str, category: str) -> str:
    if not category:
        return f"{phase} events"
    if phase == "X":
        return category
    return f"{category} ({phase})"


@dataclass(frozen=True)
class GpuOwner:
    """The owner of events whose process id stands for a GPU: the id of the process, and whether the GPU is one of its
    devices."""

    process: int | bytes
    device: bool


class Kineto(Generic):
    """Converts Kineto's groups too. All GPU work belongs to the process that the profiler ran in."""

    def __init__(self, timeline: ImportTimeline) -> None:
        super().__init__(timeline)
        self._host: int | None = None
        self._gpus: dict[int, GpuOwner] | None = None

    def begin(self, batch: list[Events]) -> None:
        """Find the host process before groups are taken."""
        if self._gpus is None:
            self._gpus = _gpus(self._timeline.reader.others.get(OWN))
        if self._host is None:
            # Edited files have operators of other processes, too.
            callers = [events.threads for events in batch if events.group in _CALLS]
            threads = callers or [
                events.threads for events in batch if events.group in _OF_HOST
            ]
            indices = (
                np.unique(np.concatenate(threads)).tolist() if threads else []
            )  # in the order of the file
            pids = (self._timeline.reader.threads[i][0] for i in indices)
            self._host = next(
                (pid for pid in pids if isinstance(pid, int) and pid >= 0), None
            )

    def take(self, events: Events) -> None:
        group = events.group
        if group not in _GROUPS:
            super().take(events)
            return
        if group in _HOST_KINDS:
            outcome = self._slices(events, _HOST_KINDS[group])
        elif group in _GPU_GROUPS:
            outcome = self._gpu_work(group, events)
        elif group == "arrows":
            outcome = np.full(len(events), Outcome.REDUNDANT, np.uint8)
        else:
            outcome = getattr(self, f"_{group}")(events)
        self._timeline.leave_columns(events, "argument", *events.counted)
        if group != "arrows":
            self._timeline.leave_columns(events, "key", *_KEYS)
        self._timeline.account_events(events, outcome)

    # GPU work

    def _gpu_work(self, group: str, events: Events) -> np.ndarray:
        """Write rows of GPU work. The method named after the group sets the specific fields. Without arguments, the
        process and thread ids are the device and stream."""
        events, start, end, outcome = self._timeline.spans(events)
        if not len(events):
            return outcome
        table = _GPU_GROUPS[group]
        # "stream 7" is 7; an id without a number is 0.
        pid, tid = self._by_thread(events, lambda *ids: [_number(id_) for id_ in ids])
        home = self._homes(events)
        values = {
            "device": _u16(
                np.where(events.present("device"), events.integers("device"), pid)
            ),
            "context": _u16(events.integers("context")),
            "stream": _u32(
                np.where(events.present("stream"), events.integers("stream"), tid)
            ),
            "correlation": _u32(events.integers("correlation")),
            "graph_node": events.integers("graph node id"),
            "graph": _u32(events.integers("graph id")),
            "start": start,
            "end": end,
        }
        known = {
            name: column
            for name, column in values.items()
            if name in TABLES[table].offsets
        }
        rows = rows_of(table, len(events), **known)
        self._write_externals(events, home)
        there = (values["context"] > 0) & (values["device"] != _MOST)
        device = values["device"][there]
        context = values["context"][there]
        self._timeline.add_once(
            "contexts", home[there], device=device, context=context, compute_api=1
        )
        if group != "graphs":
            getattr(self, f"_{group}")(events, home, rows)
        self._timeline.put(table, home, rows)
        if table != "gpu_slices":
            self._timeline.leave_arguments(events)
        return outcome

    def _kernels(self, events: Events, home: np.ndarray, rows: np.ndarray) -> None:
        fields = {
            "name": events.names,
            "registers": events.integers("registers per thread"),
            "dynamic_shared": events.integers("shared memory"),
            "graph_node": events.integers("graph node id"),
            "graph": events.integers("graph id"),
        }
        for name in ("grid", "block"):
            sizes = self._triples(events.ids(name)).T
            fields |= {
                f"{name}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)
            }
        numbers, first = self._timeline.distinct("launches", home, *fields.values())
        rows["launch"] = numbers + 1
        new = {name: column[first] for name, column in fields.items()}
        launches = rows_of(
            "launches", len(first), id=numbers[first] + 1, carveout=255, **new
        )
        self._timeline.put("launches", home[first], launches)
        given = events.present("priority")
        where = {name: rows[name][given] for name in ("context", "stream")}
        self._timeline.add_once(
            "streams", home[given], **where, priority=events.integers("priority")[given]
        )

    def _memcpys(self, events: Events, home: np.ndarray, rows: np.ndarray) -> None:
        rows["bytes"] = np.maximum(events.integers("bytes"), 0)
        named = self._timeline.by_text(events.names, _copy_named, object)
        kinds = np.array([name or (0, 0, 0) for name in named], np.uint8).reshape(-1, 3)
        rows["kind"], rows["source_memory"], rows["destination_memory"] = kinds.T
        without = sum(name is None for name in named)
        self._timeline.out.left(
            "names of copies", without, why="without a known kind of copy"
        )
        peer = events.present("inDevice")
        for name, column in (("device", "inDevice"), ("context", "inContext")):
            rows[name] = np.where(peer, _u16(events.integers(column)), rows[name])
        for name, column in (
            ("source_device", "fromDevice"),
            ("destination_device", "toDevice"),
        ):
            rows[name] = np.where(
                events.present(column), _u16(events.integers(column)), rows["device"]
            )
        source, own, destination = (
            events.integers(f"{which}Context") for which in ("from", "in", "to")
        )
        rows["peer_context"] = np.where(
            peer, _u16(np.where(source == own, destination, source)), 0
        )

    def _memsets(self, events: Events, home: np.ndarray, rows: np.ndarray) -> None:
        rows["bytes"] = np.maximum(events.integers("bytes"), 0)
        memory = self._timeline.by_text(events.names, _fill_named)
        rows["memory"] = np.maximum(memory, 0)
        self._timeline.out.left(
            "names of memory fills",
            int((memory < 0).sum()),
            why="without a known kind of memory",
        )

    def _synchronizations(
        self, events: Events, home: np.ndarray, rows: np.ndarray
    ) -> None:
        rows["type"] = self._timeline.by_text(
            events.names, lambda name: SYNCHRONIZATIONS.get(name, 0)
        )
        record = np.maximum(events.integers("wait_on_cuda_event_record_corr_id"), 0)
        rows["event"], rows["event_record"] = (
            _u32(events.integers("wait_on_cuda_event_id")),
            record,
        )
        # Only the wait names the stream and the call that recorded its event.
        known = record > 0
        columns = (
            rows["event"],
            record,
            _u32(events.integers("wait_on_stream")),
            rows["context"],
        )
        self._write_recorded(home[known], *(column[known] for column in columns))

    def _cuda_events(self, events: Events, home: np.ndarray, rows: np.ndarray) -> None:
        self._annotations(events, home, rows, kind=0)
        event = _u32(events.integers("event_id"))
        self._write_recorded(
            home, event, rows["correlation"], rows["stream"], rows["context"]
        )

    def _annotations(
        self, events: Events, home: np.ndarray, rows: np.ndarray, kind: int = 1
    ) -> None:
        rows["name"], rows["category"] = events.names, events.categories
        rows["arguments"], rows["kind"] = events.arguments, kind

    def _write_recorded(
        self,
        home: np.ndarray,
        event: np.ndarray,
        record: np.ndarray,
        stream: np.ndarray,
        context: np.ndarray,
    ) -> None:
        """Write each recording of a CUDA event once, with the correlation id of its call as its number."""
        self._timeline.add_once(
            "cuda_events",
            home,
            event=event,
            event_record=record,
            correlation=_u32(record),
            stream=stream,
            context=context,
        )

    def _homes(self, events: Events) -> np.ndarray:
        """The process of each GPU event: the profiled one, unless the file names the process of a GPU."""
        if not self._gpus:
            return np.full(len(events), self._home, np.int64)
        (homes,) = self._by_thread(events, lambda pid, tid: [self._home_of(pid)])
        return homes

    def _by_thread(
        self, events: Events, make: Callable[[Any, Any], Sequence[int]]
    ) -> list[np.ndarray]:
        """Apply ``make`` to the process and thread ids of each event (at least one); returns columns of numbers."""
        which, inverse = np.unique(events.threads, return_inverse=True)
        known = self._timeline.reader.threads
        columns = zip(*(make(*known[i]) for i in which.tolist()), strict=True)
        return [np.array(column, np.int64)[inverse] for column in columns]

    def _home_of(self, pid: Any) -> int:
        """The process of a GPU, or of the profiler's own overhead."""
        gpu = (self._gpus or {}).get(pid)
        if gpu is None:
            return self._home
        return self._timeline.process_index(gpu.process)

    # The host

    def _runtime(self, events: Events) -> np.ndarray:
        return self._calls(events, 2)

    def _driver(self, events: Events) -> np.ndarray:
        return self._calls(events, 1)

    def _calls(self, events: Events, domain: int) -> np.ndarray:
        events, start, end, outcome = self._timeline.spans(events)
        process, thread = self._timeline.threads(events.threads)
        fields = {
            "domain": np.full(len(events), domain),
            "callback": _u32(events.integers("cbid")),
            "name": events.names,
        }
        numbers, first = self._timeline.distinct("functions", process, *fields.values())
        first = first[numbers[first] < _MOST]
        new = {name: column[first] for name, column in fields.items()}
        self._timeline.add("functions", process[first], id=numbers[first] + 1, **new)
        fits = numbers < _MOST
        outcome[np.flatnonzero(outcome == Outcome.KEPT)[~fits]] = Outcome.FULL
        correlation = _u32(events.integers("correlation"))
        columns = {
            "start": start,
            "end": end,
            "thread": thread,
            "correlation": correlation,
            "function": numbers + 1,
        }
        fitting = {name: column[fits] for name, column in columns.items()}
        self._timeline.add("api_calls", process[fits], **fitting)
        self._write_externals(events.select(fits), process[fits])
        self._timeline.leave_arguments(events.select(fits))
        return outcome

    def _write_externals(self, events: Events, process: np.ndarray) -> None:
        """Write Kineto's external ids by correlation id."""
        external = events.integers("External id")
        correlation = events.integers("correlation")
        given = events.present("External id") & (correlation > 0)
        self._timeline.add_once(
            "external_correlations",
            process[given],
            external=external[given],
            correlation=_u32(correlation[given]),
            kind=EXTERNAL_KIND,
        )

    def _overheads(self, events: Events) -> np.ndarray:
        events, start, end, outcome = self._timeline.spans(events)
        if not len(events):
            return outcome
        kinds = self._timeline.by_text(
            events.names, lambda name: OVERHEADS.get(name, -1)
        )
        process, thread = self._by_thread(events, self._overhead_thread)
        known = kinds >= 0
        correlation = _u32(events.integers("correlation"))
        rows = rows_of(
            "overheads",
            len(events),
            start=start,
            end=end,
            kind=kinds,
            thread=thread,
            correlation=correlation,
        )
        self._timeline.put("overheads", process[known], rows[known])
        slices = rows_of(
            "host_slices",
            len(events),
            start=start,
            end=end,
            name=events.names,
            category=events.categories,
            arguments=events.arguments,
            thread=thread,
        )
        self._timeline.put("host_slices", process[~known], slices[~known])
        self._timeline.leave_arguments(events.select(known))
        return outcome

    def _overhead_thread(self, pid: Any, tid: Any) -> tuple[int, int]:
        """Process and thread of an overhead. Process id -1 means the profiler's own process."""
        own = isinstance(pid, int) and (pid < 0 or pid in (self._gpus or {}))
        process = self._home_of(pid) if own else self._timeline.process_index(pid)
        return process, self._timeline.thread_number(process, tid, pid)

    def _memory(self, events: Events) -> np.ndarray:
        """Write events of the framework's allocator: two counters for each device, and an instant with the other
        arguments."""
        outcome = self._instants(events)
        events, time, _ = self._timeline.starts(events)
        process, _ = self._timeline.threads(events.threads)
        on_gpu = events.integers("Device Type") == 1
        device = np.where(on_gpu, _u16(events.integers("Device Id")), 0xFFFF)
        for name in _TOTALS:
            given = events.present(name)
            self._timeline.add(
                "counters",
                process[given],
                time=time[given],
                value=events.integers(name)[given],
                device=device[given],
                name=self._timeline.text(name),
                unit=self._timeline.text("bytes"),
            )
        return outcome

    # The end

    def finish(self, others: dict[str, Any]) -> None:
        super().finish(others)
        self._leave_metadata()
        writer = self._timeline.writer(self._home)
        versions = ("cuda_driver_version", "cuda_runtime_version", "cupti_version")
        known = [name for name in versions if isinstance(others.get(name), int)]
        info = {name.removeprefix("cuda_"): others.pop(name) for name in known}
        distributed = others.get("distributedInfo")
        if isinstance(distributed, dict) and isinstance(distributed.get("rank"), int):
            info["rank"] = distributed["rank"]
        writer.process(info)
        self._devices(others)
        self._clocks(others)

    def _leave_metadata(self) -> None:
        """Leave out the names of devices and streams: a capture has no processes for them."""
        kept = []
        for event in self.metadata:
            of_host = self._timeline.known_process(event.pid) or (
                event.pid == self._host and self._host is not None
            )
            if of_host or not isinstance(event.pid, int):
                kept.append(event)
            else:
                self._timeline.count(ord("M"), event.category, Outcome.OF_DEVICE)
        self.metadata = kept

    def _devices(self, others: dict[str, Any]) -> None:
        devices = others.pop("deviceProperties", None)
        if not isinstance(devices, list):
            return
        rows = []
        for device in devices:
            if not isinstance(device, dict) or not _fits(device.get("id"), "u2"):
                self._timeline.out.left("devices", 1, why="they have no id")
                continue
            name = self._timeline.text(str(device.get("name", "")))
            row = rows_of("devices", 1, device=device["id"], name=name)
            for name, value in device.items():
                if not self._set_property(
                    row, _PROPERTIES.get(name, ""), value
                ) and name not in ("id", "name"):
                    self._timeline.out.left(f"device property {name}", 1)
            if row["warp_size"][0]:
                row["max_warps_per_multiprocessor"] = (
                    row["max_threads_per_multiprocessor"] // row["warp_size"]
                )
            rows.append(row)
        owners = (gpu.process for gpu in (self._gpus or {}).values() if gpu.device)
        homes = {self._home, *map(self._timeline.process_index, owners)}
        for home in sorted(homes) if rows else ():
            self._timeline.put(
                "devices", np.full(len(rows), home, np.int64), np.concatenate(rows)
            )

    def _set_property(self, row: np.ndarray, field: str, value: Any) -> bool:
        """Set a field of a device; False when there is no such field, or the value does not fit."""
        if field not in _DEVICE_FIELDS or not _fits(value, row.dtype[field]):
            return False
        row[field] = value
        return True

    def _clocks(self, others: dict[str, Any]) -> None:
        """Write the wall clock, which the file gives as the wall-clock time at which its own clock was 0."""
        base = others.get("baseTimeNanoseconds")
        first = self._timeline.first
        epoch = first - self._timeline.offset > 10**18
        if not first or not (isinstance(base, int) or epoch):
            return
        realtime = (
            first - self._timeline.offset + (base if isinstance(base, int) else 0)
        )
        if 0 < realtime < 2**63:
            row = rows_of("clocks", 1, boottime=first, realtime=realtime)
            for process in range(self._timeline.process_count):
                self._timeline.writer(process).rows("clocks", row)

    # Helpers

    @property
    def _home(self) -> int:
        return self._timeline.process_index(self._host if self._host is not None else 0)

    def _triples(self, texts: np.ndarray) -> np.ndarray:
        def triple(text: str) -> list[int]:
            value: Any = value_of(text)
            good = (
                isinstance(value, list)
                and len(value) == 3
                and all(_fits(v, "u4") for v in value)
            )
            if good:
                numbers: list[int] = value
                return numbers
            return [0, 0, 0]

        return np.array(
            [*self._timeline.by_text(texts, triple, object)], np.int64
        ).reshape(-1, 3)


def _gpus(own: bytes | None) -> dict[int, GpuOwner]:
    """The process ids that stand for GPUs, from cutrace's own top-level value."""
    gpus = object_of(own or b"").get("gpus")
    out = {}
    for gpu in gpus if isinstance(gpus, list) else ():
        if (
            isinstance(gpu, dict)
            and isinstance(gpu.get("pid"), int)
            and isinstance(gpu.get("process"), int | str)
        ):
            process = gpu["process"]
            if isinstance(process, str):
                pid = process.encode("utf-8", "replace")
            else:
                pid = process
            out[gpu["pid"]] = GpuOwner(pid, "device" in gpu)
    return out


def _copy_named(name: str) -> tuple[int, int, int] | None:
    """Kind, source and destination of a copy from its name, None for another name."""
    match = _COPY.fullmatch(name)
    if not match:
        return None
    return (
        MEMCPY_KINDS.get(match[1], 0),
        MEMORY_KINDS.get(match[2], 0),
        MEMORY_KINDS.get(match[3], 0),
    )


def _fill_named(name: str) -> int:
    """The memory of a fill from its name, -1 for another name."""
    match = _FILL.fullmatch(name)
    if match:
        return MEMORY_KINDS.get(match[1], 0)
    return -1


def _fits(value: Any, dtype: Any) -> bool:
    """Whether a value is an integer in the range of a dtype."""
    limits = np.iinfo(dtype)
    return isinstance(value, int) and bool(limits.min <= value <= limits.max)


def _number(id_: int | bytes | None) -> int:
    if isinstance(id_, bytes):
        digits = re.search(rb"(\d{1,9})\D*$", id_)
        if digits:
            return int(digits[1])
        return 0
    return id_ or 0


def _u16(values: np.ndarray) -> np.ndarray:
    """Values as 16 bits, 0xffff for values out of range."""
    return np.where((values >= 0) & (values <= _MOST), values, _MOST)


def _u32(values: np.ndarray) -> np.ndarray:
    """The lower 32 bits: -1 becomes 0xffffffff, as in CUPTI's records."""
    return values.astype(np.int64) & 0xFFFFFFFF


KINETO = KinetoImporter()
