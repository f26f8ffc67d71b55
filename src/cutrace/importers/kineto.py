"""torch.profiler's JSON, written by Kineto: trace events whose categories name kinds of CUPTI records.

Kernels, copies, fills, API calls, waits and overheads go into the tables of a recording; operators, annotations and
Python functions go into ``host_slices``. docs/internals/importers.md has the whole mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
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
_PLACE = keys("device", "context", "stream", "correlation")
_WHERE = (*_PLACE, *_EXTERNAL)
_WORK = (*_WHERE, *keys("graph id", "graph node id"))
#: Arguments that are not imported. Kineto computes or counts them, and cutrace adds the last one.
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
#: The keys of events that slices do not use.
_KEYS = ("id", "id text", "id2", "bp")
_TOTALS = ("Total Allocated", "Total Reserved")


def _rules(
    group: str,
    *categories: str,
    arguments: Iterable[Key] = (),
    left: Iterable[str] = (),
) -> list[Rule]:
    """The rules of complete events."""
    counted = keys(*_DERIVED, *left, want=Want.NOTHING)
    wanted = (*arguments, *counted)
    return [Rule(group, "X", category, None, wanted) for category in categories]


#: The groups of Kineto's events. Old releases capitalised categories.
RULES = (
    *_rules(
        "kernels",
        "kernel",
        "Kernel",
        left=_OF_KERNELS,
        arguments=(
            *_WORK,
            *keys(*_SIZES, "priority"),
            *keys("grid", "block", want=Want.JSON),
        ),
    ),
    *_rules(
        "memcpys",
        "gpu_memcpy",
        "Memcpy",
        left=_OF_COPIES,
        arguments=(
            *_WORK,
            *keys(
                "bytes",
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
        "gpu_memset",
        "Memset",
        left=_OF_COPIES,
        arguments=(*_WORK, Key("bytes")),
    ),
    *_rules(
        "runtime",
        "cuda_runtime",
        "Runtime",
        "xpu_runtime",
        "privateuse1_runtime",
        arguments=_CALL,
    ),
    *_rules(
        "driver",
        "cuda_driver",
        "xpu_driver",
        "privateuse1_driver",
        arguments=_CALL,
    ),
    *_rules(
        "synchronizations",
        "cuda_sync",
        # The name contains the kind, too.
        arguments=(*_WHERE, *_WAIT, Key("cuda_sync_kind", Want.JSON)),
    ),
    *_rules(
        "cuda_events",
        "cuda_event",
        arguments=(*_WHERE, Key("event_id")),
    ),
    *_rules(
        "overheads",
        "overhead",
        arguments=keys("correlation"),
    ),
    *_rules("graphs", "graph_launch", arguments=_WORK),
    *_rules(
        "annotations",
        "gpu_user_annotation",
        "gpu_slice",
        arguments=_PLACE,
    ),
    *_rules("operators", "cpu_op", "Operator", arguments=_EXTERNAL),
    *_rules("user", "user_annotation", arguments=_EXTERNAL),
    *_rules(
        "python",
        "python_function",
        left=_OF_PYTHON,
        arguments=_EXTERNAL,
    ),
    *_rules("os_runtime", "OS runtime"),
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
    Rule("arrows", "stf", "ac2g"),
    Rule("arrows", "stf", "async_cpu_to_gpu"),
    Rule("arrows", "stf", "async_gpu"),
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
_HOST_KINDS = {"operators": 1, "user": 2, "python": 3, "os_runtime": 4}
#: The groups whose process is the profiled process. They are calls, or the groups of _OF_HOST in files without calls.
_CALLS = ("runtime", "driver")
_OF_HOST = tuple(_HOST_KINDS)

_MARKS = re.compile(rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds)"\s*:')
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
# The pattern of file names of tensorboard_trace_handler().
_NAMED_BY_TORCH = re.compile(
    r"(?P<host>.+)_(?P<pid>\d{1,9})\.\d+\.pt\.trace\.json(?:\.gz)?"
)
_CATEGORIES = re.compile(
    rb'"cat"\s*:\s*"(?:[Kk]ernel|gpu_mem(?:cpy|set)|cuda_(?:runtime|driver)|cpu_op|python_function)"'
    rb'|"Trace name"\s*:\s*"PyTorch Profiler"'
)
_COPY = re.compile(r"Memcpy (\S+) \((.+) -> (.+)\)")
_FILL = re.compile(r"Memset \((.+)\)")
#: The largest id of functions and devices, which have 16 bits.
_MOST = 0xFFFF
#: The first number of streams whose id has more than 32 bits.
_FIRST_STREAM = 500_000
_DEVICE_FIELDS = {f.name for f in TABLES["devices"].fields if f.type in ("u32", "u64")}
#: Device properties: Kineto's names, and a name that only ROCm uses.
_PROPERTIES = DEVICE_PROPERTIES | {
    "maxSharedMemoryPerMultiProcessor": "shared_per_multiprocessor"
}


class KinetoImporter:
    """See :class:`cutrace.importers.base.Importer`."""

    name = "kineto"
    description = "torch.profiler (Kineto) JSON"

    def recognizes(self, source: SourceFile) -> bool:
        head = source.head
        mark = _MARKS.search(head)
        if without_mark(head).startswith(b"{") and mark:
            # Inner objects of other programs have such keys, too.
            before = _STRINGS.sub(b"", head[: mark.start()])
            opened = before.count(b"{")
            closed = before.count(b"}")
            if opened == closed + 1:
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
    """Converts Kineto's groups too. All GPU work belongs to the profiled process."""

    def __init__(self, timeline: ImportTimeline) -> None:
        super().__init__(timeline)
        self._host: int | None = None
        self._gpus: dict[int, GpuOwner] | None = None
        # The threads of the file with GPU work. Arrows end on these threads, or on threads of unsupported devices.
        self._gpu_threads: set[int] = set()
        self._arrows: list[Events] = []

    def begin(self, batch: list[Events]) -> None:
        """Find the host process before groups are taken."""
        if self._gpus is None:
            own = object_of(self._timeline.reader.others.get(OWN) or b"")
            self._gpus = _gpus(own.get("gpus"))
            if _fits(own.get("process"), "u4"):
                self._host = own["process"]
        if self._host is None:
            # Edited files have operators of other processes, too.
            threads = [events.threads for events in batch if events.group in _CALLS]
            if not threads:
                threads = [e.threads for e in batch if e.group in _OF_HOST]
            if threads:
                self._host = self._first_process(np.concatenate(threads))

    def _first_process(self, threads: np.ndarray) -> int | None:
        """The first process id of some threads that is a number, in the order of the file."""
        for index in np.unique(threads).tolist():
            pid, _ = self._timeline.reader.threads[index]
            if isinstance(pid, int) and pid >= 0:
                return pid
        return None

    def take(self, events: Events) -> None:
        group = events.group
        if group not in _GROUPS:
            super().take(events)
            return
        if group == "arrows":
            self._arrows.append(events)
            return
        if group in _HOST_KINDS:
            outcome = self._slices(events, _HOST_KINDS[group])
        elif group in _GPU_GROUPS:
            outcome = self._gpu_work(group, events)
        else:
            outcome = getattr(self, f"_{group}")(events)
        self._timeline.leave_columns(events, "argument", *events.counted)
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
        self._gpu_threads.update(np.unique(events.threads).tolist())
        # The id "stream 7" becomes 7. An id without a number becomes 0.
        numbers = self._by_thread(events, lambda *ids: list(map(_number, ids)))
        pid, tid = numbers
        home = self._homes(events)
        device = _u16(_given(events, "device", pid))
        context = events.integers("context")
        self._leave_values(events, "context", context > _MOST)
        context = _u16(context)
        stream = _given(events, "stream", tid)
        values = {
            "device": device,
            "context": context,
            "stream": self._streams(stream, home, context),
            "correlation": self._numbers_of(events, "correlation"),
            "graph_node": events.integers("graph node id"),
            "start": start,
            "end": end,
        }
        fields = TABLES[table].offsets
        if "graph" in fields:
            values["graph"] = self._numbers_of(events, "graph id")
        known = {name: values[name] for name in values if name in fields}
        rows = rows_of(table, len(events), **known)
        self._write_externals(events, home)
        there = (context > 0) & (device != _MOST)
        self._timeline.add_once(
            "contexts",
            home[there],
            device=device[there],
            context=context[there],
            compute_api=1,
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
            "registers": self._sizes(events, "registers per thread"),
            "static_shared": self._sizes(events, "static shared memory"),
            "dynamic_shared": self._sizes(events, "shared memory"),
            "graph_node": events.integers("graph node id"),
            "graph": self._numbers_of(events, "graph id"),
        }
        for name in ("grid", "block"):
            x, y, z = self._triples(events.ids(name)).T
            fields |= {f"{name}_x": x, f"{name}_y": y, f"{name}_z": z}
        numbers, first = self._timeline.distinct("launches", home, *fields.values())
        rows["launch"] = numbers + 1
        new = {name: column[first] for name, column in fields.items()}
        new["id"] = numbers[first] + 1
        launches = rows_of("launches", len(first), carveout=255, **new)
        self._timeline.put("launches", home[first], launches)
        given = events.present("priority")
        self._timeline.add_once(
            "streams",
            home[given],
            context=rows["context"][given],
            stream=rows["stream"][given],
            priority=events.integers("priority")[given],
        )

    def _memcpys(self, events: Events, home: np.ndarray, rows: np.ndarray) -> None:
        rows["bytes"] = self._sizes(events, "bytes", most=1 << 62)
        named = self._timeline.by_text(events.names, _copy_named, object)
        kinds = np.array(named.tolist(), np.int16).reshape(-1, 3)
        known = np.maximum(kinds, 0)
        rows["kind"], rows["source_memory"], rows["destination_memory"] = known.T
        without = int(np.count_nonzero((kinds < 0).any(axis=1)))
        self._timeline.out.left(
            "names of copies", without, why="without a known kind of copy or memory"
        )
        peer = events.present("inDevice")
        own = events.integers("inContext")
        rows["device"] = _u16(_given(events, "inDevice", rows["device"]))
        rows["context"] = np.where(peer, _u16(own), rows["context"])
        rows["source_device"] = _u16(_given(events, "fromDevice", rows["device"]))
        rows["destination_device"] = _u16(_given(events, "toDevice", rows["device"]))
        source = events.integers("fromContext")
        destination = events.integers("toContext")
        other = np.where(source == own, destination, source)
        rows["peer_context"] = np.where(peer, _u16(other), 0)

    def _memsets(self, events: Events, home: np.ndarray, rows: np.ndarray) -> None:
        rows["bytes"] = self._sizes(events, "bytes", most=1 << 62)
        memory = self._timeline.by_text(events.names, _fill_named)
        rows["memory"] = np.maximum(memory, 0)
        without = int(np.count_nonzero(memory < 0))
        self._timeline.out.left(
            "names of memory fills", without, why="without a known kind of memory"
        )

    def _synchronizations(
        self, events: Events, home: np.ndarray, rows: np.ndarray
    ) -> None:
        rows["type"] = self._timeline.by_text(
            events.names, lambda name: SYNCHRONIZATIONS.get(name, 0)
        )
        record = np.maximum(events.integers("wait_on_cuda_event_record_corr_id"), 0)
        rows["event"] = self._numbers_of(events, "wait_on_cuda_event_id")
        rows["event_record"] = record
        # The wait is the only record that names the stream and the call of the recording of its event.
        stream = events.integers("wait_on_stream")
        stream = self._streams(stream, home, rows["context"])
        known = record > 0
        self._write_recorded(
            home[known],
            rows["event"][known],
            record[known],
            stream[known],
            rows["context"][known],
        )

    def _cuda_events(self, events: Events, home: np.ndarray, rows: np.ndarray) -> None:
        self._annotations(events, home, rows, kind=0)
        event = self._numbers_of(events, "event_id")
        self._write_recorded(
            home, event, rows["correlation"], rows["stream"], rows["context"]
        )

    def _annotations(
        self, events: Events, home: np.ndarray, rows: np.ndarray, kind: int = 1
    ) -> None:
        rows["name"] = events.names
        rows["category"] = events.categories
        rows["arguments"] = events.arguments
        rows["kind"] = kind

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
        made = [make(*known[thread]) for thread in which.tolist()]
        columns = zip(*made, strict=True)
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
            "callback": self._numbers_of(events, "cbid"),
            "name": events.names,
        }
        numbers, first = self._timeline.distinct("functions", process, *fields.values())
        first = first[numbers[first] < _MOST]
        new = {name: column[first] for name, column in fields.items()}
        new["id"] = numbers[first] + 1
        self._timeline.add("functions", process[first], **new)
        fits = numbers < _MOST
        kept = np.flatnonzero(outcome == Outcome.KEPT)
        outcome[kept[~fits]] = Outcome.FULL
        correlation = self._numbers_of(events, "correlation")
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
        if not self._gpus:
            # The work of these calls is among the work of the profiled process.
            elsewhere = fits & (process != self._home)
            self._timeline.foreign_ids(self._home, correlation[elsewhere])
        return outcome

    def _write_externals(self, events: Events, process: np.ndarray) -> None:
        """Write Kineto's external ids by correlation id."""
        external = events.integers("External id")
        correlation = events.integers("correlation")
        usable = (correlation > 0) & (correlation <= 0xFFFFFFFF)
        given = events.present("External id") & usable
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
        correlation = self._numbers_of(events, "correlation")
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
        gpus = self._gpus or {}
        own = isinstance(pid, int) and (pid < 0 or pid in gpus)
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
        reserved = events.integers("Total Reserved")
        for name in _TOTALS:
            given = events.present(name)
            if name == "Total Reserved":
                given &= on_gpu | (reserved != 0)  # The host reserves no memory.
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
        self._finish_arrows()
        self._leave_metadata()
        writer = self._timeline.writer(self._home)
        info = {}
        for name in ("cuda_driver_version", "cuda_runtime_version", "cupti_version"):
            if isinstance(others.get(name), int):
                info[name.removeprefix("cuda_")] = others.pop(name)
        distributed = others.get("distributedInfo")
        if isinstance(distributed, dict):
            for name in ("rank", "world_size"):
                if isinstance(distributed.get(name), int):
                    info[name] = distributed[name]
        host = self._host_in_name()
        if host:
            info["host"] = host
        writer.process(info)
        self._devices(others)
        self._clocks(others)

    def _finish_arrows(self) -> None:
        """Write the arrows that end on threads without GPU work as flows. Correlation ids replace the other arrows."""
        starts: set[int] = set()
        ends: set[int] = set()
        for events in self._arrows:
            ids = events.integers("id")
            starts.update(ids[events.phases == ord("s")].tolist())
            elsewhere = ~np.isin(events.threads, list(self._gpu_threads))
            ends.update(ids[elsewhere & (events.phases == ord("f"))].tolist())
        of_flows = list(starts & ends)
        for events in self._arrows:
            chosen = np.isin(events.integers("id"), of_flows)
            outcome = np.full(len(events), Outcome.REDUNDANT, np.uint8)
            flows = events.select(chosen)
            if len(flows):
                outcome[chosen] = self._flows(flows)
            self._timeline.account_events(events, outcome)

    def _host_in_name(self) -> str:
        """The host in the name that torch.profiler gives a file, "" in other names. The process id in the name has to
        be the process id of the trace, because programs may choose the first part of the name."""
        named = _NAMED_BY_TORCH.fullmatch(Path(self._timeline.reader.path).name)
        if named and int(named["pid"]) == self._host:
            return named["host"]
        return ""

    def _leave_metadata(self) -> None:
        """Leave out the metadata of devices and streams, because they are no processes in a capture."""
        kept = []
        for event in self.metadata:
            of_host = event.pid == self._host or self._timeline.known_process(event.pid)
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
                known = self._set_property(row, _PROPERTIES.get(name, ""), value)
                if not known and name not in ("id", "name"):
                    self._timeline.out.left(f"device property {name}", 1)
            if row["warp_size"][0]:
                threads = row["max_threads_per_multiprocessor"]
                row["max_warps_per_multiprocessor"] = threads // row["warp_size"]
            rows.append(row)
        homes = {self._home}
        for gpu in (self._gpus or {}).values():
            if gpu.device:
                homes.add(self._timeline.process_index(gpu.process))
        if not rows:
            return
        for home in sorted(homes):
            of_rows = np.full(len(rows), home, np.int64)
            self._timeline.put("devices", of_rows, np.concatenate(rows))

    def _set_property(self, row: np.ndarray, field: str, value: Any) -> bool:
        """Set a field of a device; False when there is no such field, or the value does not fit."""
        if field not in _DEVICE_FIELDS or not _fits(value, row.dtype[field]):
            return False
        row[field] = value
        return True

    def _clocks(self, others: dict[str, Any]) -> None:
        """Write the wall clock. The file has the wall-clock time at which its own clock was 0."""
        first = self._timeline.first
        if not first:
            return
        realtime = first - self._timeline.offset
        base = others.get("baseTimeNanoseconds")
        if isinstance(base, int):
            realtime += base
        elif realtime <= 10**18:
            return  # It is not a time since 1970.
        if 0 < realtime < 2**63:
            row = rows_of("clocks", 1, boottime=first, realtime=realtime)
            for process in range(self._timeline.process_count):
                self._timeline.writer(process).rows("clocks", row)

    # Helpers

    @property
    def _home(self) -> int:
        return self._timeline.process_index(self._host or 0)

    def _sizes(self, events: Events, column: str, most: int = 0xFFFFFFFF) -> np.ndarray:
        """The sizes in a column. Other values become 0 and are counted as left out."""
        values = events.integers(column)
        unusable = (values < 0) | (values > most)
        self._leave_values(events, column, unusable)
        return np.where(unusable, 0, values)

    def _numbers_of(self, events: Events, column: str) -> np.ndarray:
        """The ids in a column, 0xffffffff for -1. Ids of more than 32 bits become 0 and are counted as left out."""
        values = events.integers(column)
        unusable = _is_large(values)
        self._leave_values(events, column, unusable)
        return _u32(np.where(unusable, 0, values))

    def _leave_values(self, events: Events, column: str, unusable: np.ndarray) -> None:
        """Count the unusable values of a column as left out."""
        count = int(np.count_nonzero(unusable))
        if count:
            what = f"argument {column} of {self._timeline.kind_of(events)}"
            self._timeline.out.left(what, count, why="out of range")

    def _streams(
        self, ids: np.ndarray, home: np.ndarray, context: np.ndarray
    ) -> np.ndarray:
        """The numbers of streams. A stream whose id has more than 32 bits gets a number, and its id becomes its
        name."""
        large = _is_large(ids)
        numbers = _u32(ids)
        if not large.any():
            return numbers
        assigned, _ = self._timeline.distinct("large streams", ids[large])
        numbers[large] = _FIRST_STREAM + assigned
        names = self._timeline.texts_of(ids[large])
        self._timeline.add_once(
            "resource_names",
            home[large],
            object=numbers[large],
            context=context[large],
            name=names,
            kind=1,
        )
        return numbers

    def _triples(self, texts: np.ndarray) -> np.ndarray:
        def triple(text: str) -> list[int]:
            value: Any = value_of(text)
            if not isinstance(value, list) or len(value) != 3:
                return [0, 0, 0]
            if all(_fits(number, "u4") for number in value):
                return value
            return [0, 0, 0]

        triples = self._timeline.by_text(texts, triple, object)
        return np.array(triples.tolist(), np.int64).reshape(-1, 3)


def _given(events: Events, argument: str, others: np.ndarray) -> np.ndarray:
    """The numbers of an argument. Events without the argument get their number in ``others``."""
    return np.where(events.present(argument), events.integers(argument), others)


def _gpus(gpus: Any) -> dict[int, GpuOwner]:
    """The process ids that stand for GPUs, from cutrace's own top-level value."""
    out: dict[int, GpuOwner] = {}
    if not isinstance(gpus, list):
        return out
    for gpu in gpus:
        if not isinstance(gpu, dict) or not isinstance(gpu.get("pid"), int):
            continue
        process = gpu.get("process")
        if isinstance(process, str):
            process = process.encode("utf-8", "replace")
        if isinstance(process, int | bytes):
            out[gpu["pid"]] = GpuOwner(process, "device" in gpu)
    return out


def _copy_named(name: str) -> tuple[int, int, int]:
    """The kind, source and destination of a copy from its name. Each is -1 if it is not in the name."""
    match = _COPY.fullmatch(name)
    if not match:
        return -1, -1, -1
    return (
        MEMCPY_KINDS.get(match[1], -1),
        MEMORY_KINDS.get(match[2], -1),
        MEMORY_KINDS.get(match[3], -1),
    )


def _fill_named(name: str) -> int:
    """The kind of memory of a fill from its name, -1 if it is not in the name."""
    match = _FILL.fullmatch(name)
    if match:
        return MEMORY_KINDS.get(match[1], -1)
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


def _is_large(ids: np.ndarray) -> np.ndarray:
    """Whether ids have more than 32 bits. The id -1 has 32 bits."""
    large: np.ndarray = (ids < -1) | (ids > 0xFFFFFFFF)
    return large


def _u32(values: np.ndarray) -> np.ndarray:
    """The lower 32 bits of values. So -1 becomes 0xffffffff, as in CUPTI's records."""
    return values.astype(np.int64) & 0xFFFFFFFF


KINETO = KinetoImporter()
