"""torch.profiler's JSON, which Kineto writes: trace events whose categories say which of CUPTI's records they were.

Kernels, copies, fills, API calls, waits and overheads go into the tables that a recording has; operators, annotations
and Python functions into ``host_slices``. docs/importers.md has the whole mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .._native import Keys
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
from .base import Import, Source
from .chrome import looks_like_events, read, without_mark
from .events import Events, Key, Rule, Want, keys
from .generic import Generic
from .match_begin_end import match_begin_end
from .timeline import Fate, Timeline, value_of

_EXTERNAL = (Key("External id"), Key("external id", column="External id"))
_WHERE = (*keys("device", "context", "stream", "correlation"), *_EXTERNAL)
_GRAPH = keys("graph id", "graph node id")
#: What Kineto computed of the rest, or counted for itself.
_DERIVED = ("Ev Idx", "Record function id")
_OF_KERNELS = ("queued", "blocks per SM", "warps per SM", "est. achieved occupancy %", "occupancy")
_OF_COPIES = ("memory bandwidth (GB/s)",)
_OF_PYTHON = ("Python id", "Python parent id", "Python module id")
_SIZES = ("registers per thread", "shared memory")
_OWN = (Key(OWN, Want.JSON),)
_CALL = (*_EXTERNAL, *_OWN, *keys("cbid", "correlation"))
_WAIT = keys("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id")
#: Keys of events that mean nothing for slices.
_KEYS = ("id", "id text", "id2", "bp")
_TOTALS = ("Total Allocated", "Total Reserved")
_NVTX = (
    *keys("category", "color", "payload", "payload bits", "payload type", "range id", "depth", "source"),
    *keys("domain", want=Want.TEXT),
)  # fmt: skip


def _rules(
    group: str, phases: str, *categories: str, arguments: Iterable[Key] = (), left: Iterable[str] = ()
) -> list[Rule]:
    wanted = (*arguments, *keys(*left, want=Want.NOTHING))
    return [Rule(f"{group}:{category}", phases, category, None, wanted) for category in categories]


#: What Kineto's events become. Old releases capitalised categories.
RULES = (
    *_rules(
        "kernels", "X", "kernel", "Kernel", left=(*_DERIVED, *_OF_KERNELS),
        arguments=(
            *_WHERE, *_GRAPH, *keys(*_SIZES, "priority"), *keys("grid", "block", want=Want.JSON), *_OWN,
        ),
    ),
    *_rules(
        "memcpys", "X", "gpu_memcpy", "Memcpy", left=(*_DERIVED, *_OF_COPIES),
        arguments=(
            *_WHERE, *_GRAPH, *_OWN, Key("bytes"),
            *keys("fromDevice", "inDevice", "toDevice", "fromContext", "inContext", "toContext"),
        ),
    ),
    *_rules(
        "memsets", "X", "gpu_memset", "Memset", left=(*_DERIVED, *_OF_COPIES),
        arguments=(*_WHERE, *_GRAPH, *_OWN, Key("bytes")),
    ),
    *_rules("runtime", "X", "cuda_runtime", "Runtime", left=_DERIVED, arguments=_CALL),
    *_rules("driver", "X", "cuda_driver", left=_DERIVED, arguments=_CALL),
    *_rules(
        "synchronizations", "X", "cuda_sync", left=(*_DERIVED, "cuda_sync_kind"),
        arguments=(*_WHERE, *_OWN, *_WAIT),
    ),
    *_rules("cuda_events", "X", "cuda_event", left=_DERIVED, arguments=(*_WHERE, *_OWN, Key("event_id"))),
    *_rules("overheads", "X", "overhead", left=_DERIVED, arguments=keys("correlation")),
    *_rules("graphs", "X", "graph_launch", left=_DERIVED, arguments=(*_WHERE, *_GRAPH)),
    *_rules(
        "annotations", "X", "gpu_user_annotation", "gpu_slice", left=_DERIVED,
        arguments=(*keys("device", "context", "stream", "correlation"), *_OWN),
    ),
    Rule("pushed", "X", "nvtx", None, _NVTX),
    Rule("started", "be", "nvtx", None, _NVTX),
    Rule("marks", "i", "nvtx", None, _NVTX),
    *_rules("operators", "X", "cpu_op", "Operator", left=_DERIVED, arguments=_EXTERNAL),
    *_rules("user", "X", "user_annotation", left=_DERIVED, arguments=_EXTERNAL),
    *_rules("python", "X", "python_function", left=(*_DERIVED, *_OF_PYTHON), arguments=_EXTERNAL),
    Rule(
        "memory", "i", "cpu_instant_event", "[memory]",
        (*keys(*_TOTALS, "Device Id", "Device Type"), *keys(*_DERIVED, "finished", want=Want.NOTHING)),
    ),
    *_rules("arrows", "stf", "ac2g", "async_cpu_to_gpu", "async_gpu"),
)  # fmt: skip

#: Groups of GPU work: the table of their rows, and arguments that are left out beside :data:`_DERIVED`.
_GPU_GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kernels": ("kernels", _OF_KERNELS),
    "memcpys": ("memcpys", _OF_COPIES),
    "memsets": ("memsets", _OF_COPIES),
    "synchronizations": ("synchronizations", ()),
    "graphs": ("graph_launches", ()),
    "cuda_events": ("gpu_slices", ()),
    "annotations": ("gpu_slices", ()),
}
_HOST_KINDS = {"operators": 1, "user": 2, "python": 3}
#: Categories that say which process the profiler ran in.
_OF_HOST = ("runtime", "driver", "operators", "user", "python")

_MARKS = re.compile(rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds)"\s*:')
_CATEGORIES = re.compile(
    rb'"cat"\s*:\s*"(?:[Kk]ernel|gpu_mem(?:cpy|set)|cuda_(?:runtime|driver)|cpu_op|python_function)"'
    rb'|"Trace name"\s*:\s*"PyTorch Profiler"'
)
_HOST_EVENT = re.compile(
    rb'"cat"\s*:\s*"(?:cuda_runtime|cuda_driver|cpu_op|user_annotation|python_function)"[^{}]*?"pid"\s*:\s*(\d+)'
)
_COPY = re.compile(r"Memcpy (\S+) \((.+) -> (.+)\)")
_FILL = re.compile(r"Memset \((.+)\)")
#: Ids of functions and devices have 16 bits.
_MOST = 0xFFFF
_FACTS = {f.name for f in TABLES["devices"].fields if f.type in ("u32", "u64")}
#: Device properties: Kineto's names, and one that only ROCm uses.
_PROPERTIES = DEVICE_PROPERTIES | {"maxSharedMemoryPerMultiProcessor": "shared_per_multiprocessor"}
_NUMBERS = ("u8", "u16", "u32", "u64", "i32", "i64")


class KinetoImporter:
    """See :class:`cutrace.importers.base.Importer`."""

    name = "kineto"
    description = "torch.profiler (Kineto) JSON"

    def recognizes(self, source: Source) -> bool:
        head = source.head
        if without_mark(head).startswith(b"{") and _MARKS.search(head):
            return True
        return looks_like_events(head) and bool(_CATEGORIES.search(head))

    def read(self, source: Source, out: Import) -> None:
        found = _HOST_EVENT.search(source.head)
        host = int(found[1]) if found else None
        read(source, out, RULES, _label, lambda timeline, generic: Kineto(timeline, generic, host))


def _label(phase: str, category: str) -> str:
    if not category:
        return f"{phase} events"
    return category if phase == "X" else f"{category} ({phase})"


@dataclass(frozen=True)
class Gpu:
    """The owner of events without a process id: the id of the process, and whether the events are those of one of
    its devices."""

    process: int | bytes
    device: bool


@dataclass(frozen=True)
class _Ranges:
    """Begins and ends of NVTX ranges that wait for each other; ``rows`` have the time of each as their start."""

    ids: np.ndarray
    phases: np.ndarray
    categories: np.ndarray
    processes: np.ndarray
    fates: np.ndarray
    rows: np.ndarray


class Kineto:
    """Turns Kineto's groups into rows. All GPU work is of the process that the profiler ran in, whose id is ``host``
    where the begin of the file says it."""

    def __init__(self, timeline: Timeline, generic: Generic, host: int | None) -> None:
        self._timeline, self._generic, self._host = timeline, generic, host
        self._gpus: dict[int, Gpu] | None = None
        self._launches = Keys(13)
        self._functions = Keys(5)
        self._externals = Keys(3)
        self._recorded = Keys(5)
        self._priorities = Keys(4)
        self._contexts = Keys(3)
        self._sizes: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
        self._own: dict[int, dict[str, Any]] = {0: {}}
        self._ranges: list[_Ranges] = []

    def begin(self, batch: list[Events]) -> None:
        if self._gpus is None:
            self._gpus = _gpus(self._timeline.reader.others.get(OWN))
        if self._host is None:
            for events in batch:
                if events.group.split(":")[0] in _OF_HOST:
                    pids = [self._timeline.reader.threads[i][0] for i in np.unique(events.threads).tolist()]
                    self._host = next((pid for pid in pids if isinstance(pid, int) and pid >= 0), None)
                    if self._host is not None:
                        break

    def take(self, events: Events) -> None:
        group = events.group.split(":")[0]
        if group in _HOST_KINDS:
            fate = self._generic.slices(events, _HOST_KINDS[group], events.integers("External id").astype(np.uint64))
            self._left(events, *(_OF_PYTHON if group == "python" else ()))
        elif group in _GPU_GROUPS:
            fate = self._gpu_work(group, events)
        elif group == "started":
            self._started(events)
            return
        else:
            fate = getattr(self, f"_{group}")(events)
        self._timeline.account_events(events, fate)

    # GPU work

    def _gpu_work(self, group: str, events: Events) -> np.ndarray:
        """Rows of GPU work. The method that is named as the group sets what only such rows have."""
        table, left = _GPU_GROUPS[group]
        start, end, fate = self._timeline.spans(events)
        kept = fate == Fate.KEPT
        rows, home = self._gpu_rows(table, events, start, end, kept), self._homes(events)[kept]
        fill = getattr(self, f"_{group}", None)
        if fill:
            fill(events, kept, home, rows)
        if table != "kernels":  # what cutrace adds there is of the launch configuration
            self._set_own_rows(events, rows, table, kept)
        self._timeline.put(table, home, rows)
        if table == "gpu_slices":
            self._left(events, *left)
        else:
            self._gpu_left(events, fate, *left)
        return fate

    def _kernels(self, events: Events, kept: np.ndarray, home: np.ndarray, rows: np.ndarray) -> None:
        own = events.ids(OWN)[kept]
        grid, block = self._triples(events.ids("grid")[kept]), self._triples(events.ids("block")[kept])
        numbers = ("registers per thread", "shared memory", "graph node id", "graph id")
        columns = [
            home, events.names[kept], *grid.T, *block.T, *(events.integers(name)[kept] for name in numbers), own,
        ]  # fmt: skip
        ids, first = self._launches.ids([np.ascontiguousarray(c, np.int64) for c in columns])
        rows["launch"] = ids + 1
        self._write_launches([np.asarray(c)[first] for c in columns], ids[first] + 1)
        self._write_priorities(events, kept, home, rows)

    def _write_launches(self, columns: list[np.ndarray], ids: np.ndarray) -> None:
        """New launch configurations, given by the columns that they were told apart by."""
        home, names, gx, gy, gz, bx, by, bz, registers, shared, node, graph, own = columns
        rows = np.zeros(len(ids), TABLES["launches"].dtype)
        rows["id"], rows["name"] = ids, names
        for axis, of_grid, of_block in (("x", gx, bx), ("y", gy, by), ("z", gz, bz)):
            rows[f"grid_{axis}"], rows[f"block_{axis}"] = of_grid, of_block
        rows["registers"], rows["dynamic_shared"] = registers, shared
        rows["graph_node"], rows["graph"], rows["carveout"] = node, graph, 255
        for i in np.flatnonzero(own).tolist():
            rows[i : i + 1] = self._set_own(rows[i : i + 1], "launches", int(own[i]))
        self._timeline.put("launches", home, rows)

    def _memcpys(self, events: Events, kept: np.ndarray, home: np.ndarray, rows: np.ndarray) -> None:
        rows["bytes"] = np.maximum(events.integers("bytes"), 0)[kept]
        named = self._timeline.by_text(events.names[kept], _copy_named, object)
        kinds = np.array([name or (0, 0, 0) for name in named], np.uint8).reshape(-1, 3)
        rows["kind"], rows["source_memory"], rows["destination_memory"] = kinds.T
        without = sum(name is None for name in named)
        self._timeline.leave("names of copies", without, why="they do not say which kind of copy it is")
        device = rows["device"].astype(np.int64)
        peer = events.present("inDevice")[kept]
        rows["device"] = device = np.where(peer, _u16(events.integers("inDevice"))[kept], device)
        rows["context"] = np.where(peer, _u16(events.integers("inContext"))[kept], rows["context"])
        for field, name in (("source_device", "fromDevice"), ("destination_device", "toDevice")):
            rows[field] = np.where(events.present(name)[kept], _u16(events.integers(name))[kept], device)
        other = np.where(
            events.integers("fromContext") == events.integers("inContext"),
            events.integers("toContext"),
            events.integers("fromContext"),
        )
        rows["peer_context"] = np.where(peer, _u16(other)[kept], 0)

    def _memsets(self, events: Events, kept: np.ndarray, home: np.ndarray, rows: np.ndarray) -> None:
        rows["bytes"] = np.maximum(events.integers("bytes"), 0)[kept]
        memory = self._timeline.by_text(events.names[kept], _fill_named)
        rows["memory"] = np.maximum(memory, 0)
        self._timeline.leave("names of memory fills", int((memory < 0).sum()), why="they do not say which memory it is")

    def _synchronizations(self, events: Events, kept: np.ndarray, home: np.ndarray, rows: np.ndarray) -> None:
        rows["type"] = self._timeline.by_text(events.names[kept], lambda name: SYNCHRONIZATIONS.get(name, 0))
        record = np.maximum(events.integers("wait_on_cuda_event_record_corr_id"), 0)[kept]
        rows["event"], rows["event_record"] = _u32(events.integers("wait_on_cuda_event_id"))[kept], record
        self._set_own_rows(events, rows, "synchronizations", kept)
        # What is waited for was recorded by a call, in a stream: that is said nowhere else.
        told = record > 0
        stream = _u32(events.integers("wait_on_stream"))[kept]
        self._write_recorded(*(c[told] for c in (home, rows["event"], record, stream, rows["context"])))

    def _cuda_events(self, events: Events, kept: np.ndarray, home: np.ndarray, rows: np.ndarray) -> None:
        self._gpu_slices(events, kept, rows, kind=0)
        event = _u32(events.integers("event_id"))[kept]
        self._write_recorded(home, event, rows["correlation"], rows["stream"], rows["context"])

    def _annotations(self, events: Events, kept: np.ndarray, home: np.ndarray, rows: np.ndarray) -> None:
        self._gpu_slices(events, kept, rows, kind=1)

    def _gpu_slices(self, events: Events, kept: np.ndarray, rows: np.ndarray, kind: int) -> None:
        rows["name"], rows["category"] = events.names[kept], events.categories[kept]
        rows["arguments"], rows["kind"] = events.arguments[kept], kind

    def _write_recorded(
        self, home: np.ndarray, event: np.ndarray, record: np.ndarray, stream: np.ndarray, context: np.ndarray
    ) -> None:
        """Recordings of CUDA events, each once, with the correlation id of the call as their number."""
        columns = (home, event, record, stream, context)
        _, first = self._recorded.ids([np.ascontiguousarray(c, np.int64) for c in columns])
        rows = np.zeros(len(first), TABLES["cuda_events"].dtype)
        rows["event"], rows["event_record"], rows["correlation"] = event[first], record[first], _u32(record[first])
        rows["stream"], rows["context"] = stream[first], context[first]
        self._timeline.put("cuda_events", home[first], rows)

    def _gpu_rows(self, table: str, events: Events, start: np.ndarray, end: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Rows of a table with what all GPU work has. Without the arguments, process and thread ids tell device and
        stream."""
        layout = TABLES[table]
        rows = np.zeros(int(kept.sum()), layout.dtype)
        pid, tid = self._numbers_of_threads(events.threads)
        values = {
            "device": _u16(np.where(events.present("device"), events.integers("device"), pid)),
            "context": _u16(events.integers("context")),
            "stream": _u32(np.where(events.present("stream"), events.integers("stream"), tid)),
            "correlation": _u32(events.integers("correlation")),
            "graph_node": events.integers("graph node id").astype(np.uint64),
            "graph": _u32(events.integers("graph id")),
            "start": start,
            "end": end,
        }
        for name, column in values.items():
            if name in layout.offsets:
                rows[name] = column[kept]
        home = self._homes(events)
        if "External id" in events.columns:
            self._write_externals(events, kept, home)
        self._write_contexts(home[kept], values["device"][kept], values["context"][kept])
        return rows

    def _homes(self, events: Events) -> np.ndarray:
        """The process of each event on a GPU: the profiled one, unless the file says whose a device is."""
        if not self._gpus:
            return np.full(len(events), self._home, np.int64)
        which, inverse = np.unique(events.threads, return_inverse=True)
        known = self._timeline.reader.threads
        return np.array([self._home_of(known[i][0]) for i in which.tolist()], np.int64)[inverse]

    def _home_of(self, pid: Any) -> int:
        """The process that a device, or what the profiler cost, is of."""
        gpu = (self._gpus or {}).get(pid)
        return self._home if gpu is None else self._timeline.process_index(gpu.process)

    def _write_contexts(self, home: np.ndarray, device: np.ndarray, context: np.ndarray) -> None:
        """Which device a context is on."""
        there = (context > 0) & (device != _MOST)
        columns = [np.ascontiguousarray(c, np.int64)[there] for c in (home, device, context)]
        _, first = self._contexts.ids(columns)
        rows = np.zeros(len(first), TABLES["contexts"].dtype)
        rows["device"], rows["context"], rows["compute_api"] = columns[1][first], columns[2][first], 1
        self._timeline.put("contexts", columns[0][first], rows)

    def _numbers_of_threads(self, threads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers in the process and thread ids of threads (indices): "stream 7" is 7, and no number 0."""
        which, inverse = np.unique(threads, return_inverse=True)
        known = self._timeline.reader.threads
        numbers = np.array([[_number(id_) for id_ in known[i]] for i in which.tolist()], np.int64).reshape(-1, 2)
        return numbers[inverse, 0], numbers[inverse, 1]

    def _write_priorities(self, events: Events, kept: np.ndarray, home: np.ndarray, rows: np.ndarray) -> None:
        given = events.present("priority")[kept]
        if given.any():
            columns = (home, rows["context"], rows["stream"], events.integers("priority")[kept])
            columns = tuple(np.ascontiguousarray(c, np.int64)[given] for c in columns)
            _, first = self._priorities.ids(columns)
            out = np.zeros(len(first), TABLES["streams"].dtype)
            for name, column in zip(("context", "stream", "priority"), columns[1:], strict=True):
                out[name] = column[first]
            self._timeline.put("streams", columns[0][first], out)

    def _gpu_left(self, events: Events, fate: np.ndarray, *columns: str) -> None:
        self._timeline.leave_arguments(events, fate, *_DERIVED, *columns)
        self._timeline.leave_columns(events, "key", *_KEYS)

    def _left(self, events: Events, *columns: str) -> None:
        """Arguments that are left out where all others are kept."""
        self._timeline.leave_columns(events, "argument", *_DERIVED, *columns)
        self._timeline.leave_columns(events, "key", *_KEYS)

    # The host

    def _runtime(self, events: Events) -> np.ndarray:
        return self._calls(events, 2)

    def _driver(self, events: Events) -> np.ndarray:
        return self._calls(events, 1)

    def _calls(self, events: Events, domain: int) -> np.ndarray:
        start, end, fate = self._timeline.spans(events)
        usable = fate == Fate.KEPT
        process, thread = self._timeline.threads(events.threads)
        fields = {
            "domain": np.full(len(events), domain, np.int64),
            "callback": _u32(events.integers("cbid")),
            "status": self._own_numbers(events, "status"),
            "name": events.names,
        }
        columns = [np.ascontiguousarray(column[usable], np.int64) for column in (process, *fields.values())]
        numbers, first = self._functions.ids(columns)
        functions = np.zeros(len(first), TABLES["functions"].dtype)
        functions["id"] = np.minimum(numbers[first] + 1, _MOST)
        for name, column in fields.items():
            functions[name] = column[usable][first]
        there = numbers[first] < _MOST
        self._timeline.put("functions", process[usable][first][there], functions[there])
        full = numbers >= _MOST
        fate[np.flatnonzero(usable)[full]] = Fate.FULL
        kept = fate == Fate.KEPT
        rows = np.zeros(int(kept.sum()), TABLES["api_calls"].dtype)
        rows["start"], rows["end"], rows["thread"] = start[kept], end[kept], thread[kept]
        rows["correlation"] = _u32(events.integers("correlation"))[kept]
        rows["function"] = numbers[~full] + 1
        self._timeline.put("api_calls", process[kept], rows)
        self._write_externals(events, kept, process)
        self._gpu_left(events, fate)
        return fate

    def _write_externals(self, events: Events, kept: np.ndarray, process: np.ndarray) -> None:
        """Kineto's ids of what was running, by correlation id."""
        given = kept & events.present("External id") & (events.integers("correlation") > 0)
        if not given.any():
            return
        columns = [process[given], events.integers("External id")[given], events.integers("correlation")[given]]
        _, first = self._externals.ids([np.ascontiguousarray(c, np.int64) for c in columns])
        rows = np.zeros(len(first), TABLES["external_correlations"].dtype)
        rows["external"], rows["correlation"] = columns[1][first], _u32(columns[2][first])
        rows["kind"] = EXTERNAL_KIND
        self._timeline.put("external_correlations", columns[0][first], rows)

    def _overheads(self, events: Events) -> np.ndarray:
        start, end, fate = self._timeline.spans(events)
        kinds = self._timeline.by_text(events.names, lambda name: OVERHEADS.get(name, -1))
        process, thread = self._places_of_overheads(events)
        known = (fate == Fate.KEPT) & (kinds >= 0)
        rows = np.zeros(int(known.sum()), TABLES["overheads"].dtype)
        rows["start"], rows["end"], rows["kind"] = start[known], end[known], kinds[known]
        rows["thread"], rows["correlation"] = thread[known], _u32(events.integers("correlation"))[known]
        self._timeline.put("overheads", process[known], rows)
        others = (fate == Fate.KEPT) & ~known
        slices = np.zeros(int(others.sum()), TABLES["host_slices"].dtype)
        slices["start"], slices["end"] = start[others], end[others]
        slices["name"], slices["category"] = events.names[others], events.categories[others]
        slices["arguments"], slices["thread"] = events.arguments[others], thread[others]
        self._timeline.put("host_slices", process[others], slices)
        self._left(events)
        self._timeline.leave_arguments(events, np.where(known, fate, Fate.PHASE))
        return fate

    def _places_of_overheads(self, events: Events) -> tuple[np.ndarray, np.ndarray]:
        """Processes and threads of overheads: Kineto writes -1 for the process, which means its own."""
        which, inverse = np.unique(events.threads, return_inverse=True)
        known = self._timeline.reader.threads
        places = []
        for pid, tid in (known[i] for i in which.tolist()):
            own = isinstance(pid, int) and (pid < 0 or pid in (self._gpus or {}))
            process = self._home_of(pid) if own else self._timeline.process_index(pid)
            places.append((process, self._timeline.thread_number(process, tid, pid)))
        columns = np.array(places, np.int64).reshape(-1, 2)[inverse]
        return columns[:, 0], columns[:, 1]

    def _memory(self, events: Events) -> np.ndarray:
        """What the allocator of the framework says: two counters a device, and the moment with what is left to say."""
        fate = self._generic.instants(events)
        time, _ = self._timeline.starts(events)
        process, _ = self._timeline.threads(events.threads)
        on_gpu = events.integers("Device Type") == 1
        device = np.where(on_gpu, _u16(events.integers("Device Id")), 0xFFFF)
        for name in _TOTALS:
            given = events.present(name) & (fate == Fate.KEPT)
            rows = np.zeros(int(given.sum()), TABLES["counters"].dtype)
            rows["time"], rows["value"] = time[given], events.integers(name)[given]
            rows["device"], rows["name"] = device[given], self._timeline.text(name)
            rows["unit"] = self._timeline.text("bytes")
            self._timeline.put("counters", process[given], rows)
        self._left(events, "finished")
        return fate

    def _arrows(self, events: Events) -> np.ndarray:
        return np.full(len(events), Fate.REDUNDANT, np.uint8)

    # NVTX, as cutrace writes it

    def _pushed(self, events: Events) -> np.ndarray:
        start, end, fate = self._timeline.spans(events)
        kept = fate == Fate.KEPT
        rows, process = self._said("nvtx_ranges", events, kept)
        rows["start"], rows["end"] = start[kept], end[kept]
        rows["end_thread"] = np.where(rows["end"] > 0, rows["thread"], 0)
        rows["depth"], rows["flags"] = _u16(events.integers("depth"))[kept], end[kept] == 0
        self._timeline.put("nvtx_ranges", process, rows)
        self._timeline.leave_columns(events, "key", *_KEYS)
        return fate

    def _marks(self, events: Events) -> np.ndarray:
        time, fate = self._timeline.starts(events)
        kept = fate == Fate.KEPT
        rows, process = self._said("nvtx_marks", events, kept)
        rows["time"], rows["source"] = time[kept], events.integers("source")[kept] == 1
        self._timeline.put("nvtx_marks", process, rows)
        self._timeline.leave_columns(events, "key", *_KEYS)
        return fate

    def _started(self, events: Events) -> None:
        """Begins and ends of ranges wait for the end of the file."""
        time, fate = self._timeline.starts(events)
        rows, process = self._said("nvtx_ranges", events, np.ones(len(events), bool))
        rows["start"], rows["kind"], rows["range_id"] = time, 1, events.integers("range id").astype(np.uint64)
        self._ranges.append(
            _Ranges(events.integers("id"), events.phases, events.categories, process, fate, rows)
        )  # fmt: skip

    def _said(self, table: str, events: Events, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows with what ranges and marks have, and their processes."""
        process, thread = self._timeline.threads(events.threads[kept])
        rows = np.zeros(int(kept.sum()), TABLES[table].dtype)
        rows["name"], rows["thread"], rows["domain"] = events.names[kept], thread, events.ids("domain")[kept]
        rows["category"], rows["color"] = _u32(events.integers("category"))[kept], _u32(events.integers("color"))[kept]
        # A payload that is not a signed integer has its bits beside it.
        bits = np.where(events.present("payload bits"), *map(events.integers, ("payload bits", "payload")))
        rows["payload"] = bits.astype(np.uint64)[kept]
        rows["payload_type"] = events.integers("payload type").astype(np.uint8)[kept]
        self._timeline.leave_arguments(events, np.where(kept, Fate.KEPT, Fate.PHASE))
        return rows, process

    def _finish_ranges(self) -> None:
        if not self._ranges:
            return
        ids, phases, categories, process, fate, rows = (
            np.concatenate([getattr(part, field.name) for part in self._ranges]) for field in fields(_Ranges)
        )
        usable = np.flatnonzero(fate == Fate.KEPT)
        starts, ends, without = match_begin_end(ids[usable], rows["start"][usable], phases[usable] == ord("b"))
        fate[usable[without]] = Fate.NO_BEGIN
        begun, ended = usable[starts], ends >= 0
        out, last = rows[begun], rows[usable[np.maximum(ends, 0)]]
        out["end"], out["end_thread"] = np.where(ended, last["start"], 0), np.where(ended, last["thread"], 0)
        out["flags"] = ~ended
        self._timeline.put("nvtx_ranges", process[begun], out)
        self._timeline.account(phases, categories, np.zeros(len(ids), np.int64), fate)

    # The end

    def finish(self, others: dict[str, Any]) -> None:
        self._finish_ranges()
        self._metadata()
        others.pop(OWN, None)
        writer = self._timeline.writer(self._home)
        info = {
            name: others.pop(f"cuda_{name}") for name in ("driver_version", "runtime_version")
            if isinstance(others.get(f"cuda_{name}"), int)
        }  # fmt: skip
        if isinstance(others.get("cupti_version"), int):
            info["cupti_version"] = others.pop("cupti_version")
        distributed = others.get("distributedInfo")
        if isinstance(distributed, dict) and isinstance(distributed.get("rank"), int):
            info["rank"] = distributed["rank"]
        writer.process(info)
        self._devices(others)
        self._clocks(others)

    def _metadata(self) -> None:
        """Names of devices and streams stay behind: the capture has devices and streams, and no processes for them."""
        kept = []
        for event in self._generic.metadata:
            of_host = self._timeline.known_process(event.pid) or (event.pid == self._host and self._host is not None)
            if of_host or not isinstance(event.pid, int):
                kept.append(event)
            else:
                self._generic.tell(event, Fate.OF_DEVICE)
        self._generic.metadata[:] = kept

    def _devices(self, others: dict[str, Any]) -> None:
        devices = others.pop("deviceProperties", None)
        if not isinstance(devices, list):
            return
        rows = []
        for told in devices:
            if not isinstance(told, dict) or not isinstance(told.get("id"), int) or not 0 <= told["id"] <= _MOST:
                self._timeline.leave("devices", 1, why="they have no id")
                continue
            row = np.zeros(1, TABLES["devices"].dtype)
            row["device"], row["name"] = told["id"], self._timeline.text(str(told.get("name", "")))
            own = told.get(OWN)
            facts = [(name, _PROPERTIES.get(name, ""), value) for name, value in told.items()]
            facts += [(name, name, value) for name, value in own.items()] if isinstance(own, dict) else []
            for name, field, value in facts:
                if not self._set_fact(row, field, value) and name not in ("id", "name", OWN):
                    self._timeline.leave(f"device property {name}", 1)
            if row["warp_size"][0]:
                row["max_warps_per_multiprocessor"] = row["max_threads_per_multiprocessor"] // row["warp_size"]
            rows.append(row)
        told_of = (gpu.process for gpu in (self._gpus or {}).values() if gpu.device)
        homes = {self._home, *map(self._timeline.process_index, told_of)}
        for home in sorted(homes) if rows else ():
            self._timeline.put("devices", np.full(len(rows), home, np.int64), np.concatenate(rows))

    def _set_fact(self, row: np.ndarray, field: str, value: Any) -> bool:
        """Set a field of a device; False when there is no such field, or the value does not fit."""
        if field == "uuid" and isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value):
            row["uuid"] = np.frombuffer(bytes.fromhex(value), row.dtype["uuid"])
        elif field == "pci" and isinstance(value, str):
            row["pci"] = self._timeline.text(value)
        elif field in _FACTS and isinstance(value, int) and 0 <= value <= np.iinfo(row.dtype[field]).max:
            row[field] = value
        else:
            return False
        return True

    def _clocks(self, others: dict[str, Any]) -> None:
        """The wall clock, which the file has as the moment at which its own clock was 0."""
        base = others.get("baseTimeNanoseconds")
        first = self._timeline.first
        epoch = first - self._timeline.offset > 10**18
        if not first or not (isinstance(base, int) or epoch):
            return
        row = np.zeros(1, TABLES["clocks"].dtype)
        realtime = first - self._timeline.offset + (base if isinstance(base, int) else 0)
        if 0 < realtime < 2**63:
            row["boottime"], row["realtime"] = first, realtime
            for process in range(self._timeline.process_count):
                self._timeline.writer(process).rows("clocks", row)

    # Helpers

    @property
    def _home(self) -> int:
        """The process that all GPU work is of."""
        return self._timeline.process_index(self._host if self._host is not None else 0)

    def _triples(self, texts: np.ndarray) -> np.ndarray:
        """Lists of three numbers, from their JSON."""
        which, inverse = np.unique(texts, return_inverse=True)
        for text in which.tolist():
            if text not in self._sizes:
                value = value_of(self._timeline.one_text(text))
                good = (
                    isinstance(value, list)
                    and len(value) == 3
                    and all(isinstance(v, int) and 0 <= v < 2**32 for v in value)
                )
                self._sizes[text] = tuple(value) if good else (0, 0, 0)
        return np.array([self._sizes[text] for text in which.tolist()], np.int64).reshape(-1, 3)[inverse]

    def _own_of(self, text: int) -> dict[str, Any]:
        """Fields of a record that Kineto does not have, from the JSON of cutrace's own argument."""
        if text not in self._own:
            value = value_of(self._timeline.one_text(text))
            self._own[text] = value if isinstance(value, dict) else {}
        return self._own[text]

    def _set_own(self, rows: np.ndarray, table: str, text: int) -> np.ndarray:
        """Rows with the fields that cutrace's own argument has, where they fit."""
        types = {f.name: f.type for f in TABLES[table].fields}
        for name, value in self._own_of(text).items():
            if name == "name" and isinstance(value, str) and types.get(name) == "string":
                rows[name] = self._timeline.text(value)
            elif (
                types.get(name) in _NUMBERS and name not in ("id", "start", "end", "process") and isinstance(value, int)
            ):
                limits = np.iinfo(rows.dtype[name])
                if limits.min <= value <= limits.max:
                    rows[name] = value
        return rows

    def _set_own_rows(self, events: Events, rows: np.ndarray, table: str, kept: np.ndarray) -> None:
        texts = events.ids(OWN)[kept]
        told = np.flatnonzero(texts)
        if len(told):
            told = told[np.argsort(texts[told], kind="stable")]
            for part in np.split(told, np.flatnonzero(np.diff(texts[told])) + 1):
                rows[part] = self._set_own(rows[part], table, int(texts[part[0]]))

    def _own_numbers(self, events: Events, name: str) -> np.ndarray:
        """One field of cutrace's own argument, 0 where there is none."""
        which, inverse = np.unique(events.ids(OWN), return_inverse=True)
        values = [self._own_of(text).get(name) for text in which.tolist()]
        return np.array([v if isinstance(v, int) and 0 <= v < 2**32 else 0 for v in values], np.int64)[inverse]


def _gpus(told: bytes | None) -> dict[int, Gpu]:
    """The process ids that stand for devices, as cutrace writes them."""
    value = value_of(told or b"")
    gpus = value.get("gpus") if isinstance(value, dict) else None
    out = {}
    for gpu in gpus if isinstance(gpus, list) else ():
        if isinstance(gpu, dict) and isinstance(gpu.get("pid"), int) and isinstance(gpu.get("process"), int | str):
            process = gpu["process"]
            pid = process.encode("utf-8", "replace") if isinstance(process, str) else process
            out[gpu["pid"]] = Gpu(pid, "device" in gpu)
    return out


def _copy_named(name: str) -> tuple[int, int, int] | None:
    """Kind, source and destination of a copy by its name, None for a name that does not say."""
    found = _COPY.fullmatch(name)
    if not found:
        return None
    return MEMCPY_KINDS.get(found[1], 0), MEMORY_KINDS.get(found[2], 0), MEMORY_KINDS.get(found[3], 0)


def _fill_named(name: str) -> int:
    """The memory of a fill by its name, -1 for a name that does not say."""
    found = _FILL.fullmatch(name)
    return MEMORY_KINDS.get(found[1], 0) if found else -1


def _number(id_: int | bytes | None) -> int:
    if isinstance(id_, bytes):
        digits = re.search(rb"(\d{1,9})\D*$", id_)
        return int(digits[1]) if digits else 0
    return id_ or 0


def _u16(values: np.ndarray) -> np.ndarray:
    """Values of 16 bits, 0xffff for those that are not."""
    return np.where((values >= 0) & (values <= _MOST), values, _MOST)


def _u32(values: np.ndarray) -> np.ndarray:
    """The lower 32 bits: -1 is the largest of them, as in CUPTI's records."""
    return values.astype(np.int64) & 0xFFFFFFFF


KINETO = KinetoImporter()
