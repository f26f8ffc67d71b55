"""Common parts of all events: process and thread ids, links by correlation id, and times of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...trace import Trace
from ...trace.launches import Launches
from ...trace_events import EXTERNAL_KIND, LAUNCHED_AT, STACK
from .lines import Column, EventArguments, Line, Pieces, dumped, members, quoted

#: The first process id of devices of further processes, and the number of ids for each process.
_DEVICES = 0x40000000
_DEVICES_A_PROCESS = 0x10000
_OVERHEADS = 0x38000000
#: The first thread id of waits.
WAITS = 1_000_000
#: The first process id of processes whose id is a duplicate.
_DUPLICATES = 0x30000000
#: The tables with GPU work that a call launches.
_STARTED = ("kernels", "memcpys", "memsets")


class PidTid:
    """Process and thread ids of events: pieces ``"pid":…,"tid":…``.

    Events of the host have their own ids. GPU work has the device as process and the stream as thread, as in files of
    torch.profiler. Waits for a stream have a separate thread, because they overlap its work. Overheads of the profiler
    have process -1. In a trace with several processes, the devices and overheads of further processes get unused
    process ids.
    """

    def __init__(self, trace: Trace) -> None:
        self._ids: list[Any] = []
        taken: set[Any] = set()
        for process in trace.processes:
            pid = process.info.get("source_pid", process.pid)
            usable = isinstance(pid, int | str) and pid not in taken
            if pid is not None and not usable:
                pid = _DUPLICATES + process.index
            taken.add(pid)
            self._ids.append(pid)
        self._threads = [
            as_dict(process.info.get("source_threads")) for process in trace.processes
        ]
        #: Process, device and thread of the written GPU work.
        self.streams: list[tuple[int, int, int]] = []
        self.host = Pieces(2, self.where)
        self.gpu = Pieces(3, self._gpu)
        self.overheads = Pieces(2, self._overhead)

    def pid(self, process: int) -> Any:
        """The process id in the file: a number, a string or None."""
        return self._ids[process]

    def tid(self, process: int, thread: int) -> Any:
        return self._threads[process].get(str(thread), thread)

    def device(self, process: int, device: int) -> int:
        if process == 0:
            return device
        return _DEVICES + process * _DEVICES_A_PROCESS + device

    def overhead(self, process: int) -> int:
        """The process id of the profiler's overheads in a process."""
        if process == 0:
            return -1
        return _OVERHEADS + process

    def where(self, process: int, thread: int | None = None) -> bytes:
        """The ids of a process or of a thread as JSON, preceded by a comma."""
        out = b""
        pid = self.pid(process)
        if pid is not None:
            out += b',"pid":%s' % dumped(pid)
        tid = None
        if thread is not None:
            tid = self.tid(process, thread)
        if tid is not None:
            out += b',"tid":%s' % dumped(tid)
        return out

    def _gpu(self, process: int, device: int, thread: int) -> bytes:
        self.streams.append((process, device, thread))
        return b',"pid":%d,"tid":%d' % (self.device(process, device), thread)

    def _overhead(self, process: int, thread: int) -> bytes:
        tid = self.tid(process, thread)
        if not isinstance(tid, int):
            tid = thread
        return b',"pid":%d,"tid":%d' % (self.overhead(process), tid)


class CorrelationIndex:
    """External ids by correlation id, and the calls that launched GPU work. A key is the process and the correlation id
    as one number."""

    def __init__(self, trace: Trace) -> None:
        self._started = Launches(trace).ids(_launched(trace))
        keys = [np.zeros(0, np.uint64)]
        externals = [np.zeros(0, np.uint64)]
        for rows in trace.blocks("external_correlations"):
            rows = rows[rows["kind"] == EXTERNAL_KIND]
            keys.append(self.keys(rows))
            externals.append(rows["external"])
        self._keys, first = np.unique(np.concatenate(keys), return_index=True)
        self._externals = np.concatenate(externals)[first]

    def externals(self, rows: np.ndarray) -> np.ndarray:
        """The external id of each row, 0 if it has none."""
        known, at = find(self._keys, self.keys(rows))
        out = np.zeros(len(rows), np.uint64)
        out[known] = self._externals[at[known]]
        return out

    def starts_work(self, calls: np.ndarray) -> np.ndarray:
        return self._started.has(calls["process"], calls["correlation"])

    @staticmethod
    def keys(rows: np.ndarray) -> np.ndarray:
        """The keys of rows, which are also the ids of flows from calls to work."""
        process = rows["process"].astype(np.uint64)
        correlation = rows["correlation"].astype(np.uint64)
        return process << np.uint64(32) | correlation


def _launched(trace: Trace) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of GPU work that a call launches, with the index of their process."""
    for name in _STARTED:
        for info in trace.block_infos(name):
            rows, _ = trace.block(info)
            yield info.process, rows


def find(keys: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the queries that are among the ascending ``keys``, and the indices of these keys."""
    if not len(keys):
        none = np.zeros(len(queries), bool)
        return none, np.zeros(len(queries), np.int64)
    at = np.searchsorted(keys, queries)
    at = np.minimum(at, len(keys) - 1)
    return keys[at] == queries, at


class Shared:
    """The ids, links, names and columns that the writers of all tables share."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._offset = offset_of(trace)
        self.pid_tid = PidTid(trace)
        self.correlations = CorrelationIndex(trace)
        self.names = Pieces(1, lambda text: quoted(trace.strings[text]))
        self.arguments = EventArguments(trace.strings)
        self._python = trace.python_stacks
        self._stack_texts = Pieces(1, self._stack)
        self._places = Pieces(1, self._place)
        #: Columns of the lines of several tables, from rows.
        self._columns: dict[str, Callable[[np.ndarray], Column]] = {
            "start": lambda rows: self.at(rows["start"]),
            "stop": lambda rows: self.at(rows["end"]),
            "time": lambda rows: self.at(rows["time"]),
            "duration": _durations,
            "ended": lambda rows: rows["end"] > 0,
            "bandwidth": _bandwidths,
            "graphed": lambda rows: (rows["graph_node"] > 0) | (rows["graph"] > 0),
            "name": lambda rows: self.names(rows["name"]),
            "where": lambda rows: self.pid_tid.host(rows["process"], rows["thread"]),
            "external_id": self.correlations.externals,
            "arrow": self.correlations.keys,
            "stack": self._stack_of,
            "launched": self._launch_of,
        }

    def write(self, line: Line, rows: np.ndarray, **columns: Column) -> bytes:
        """Write the lines of rows. A column that is not given is a shared column or the field of this name."""
        for name in line.columns:
            if name in columns:
                continue
            if name in self._columns:
                columns[name] = self._columns[name](rows)
            else:
                columns[name] = rows[name]
        return line.write(columns, len(rows))

    def _stack_of(self, calls: np.ndarray) -> Column:
        """The argument with the Python stack of each call, preceded by a comma."""
        if self._python is None:
            return self._stack_texts(np.zeros(len(calls), np.uint32))
        return self._stack_texts(self._python.of_rows(calls))

    def _launch_of(self, work: np.ndarray) -> Column:
        """The argument with the Python frame of the launch of GPU work, preceded by a comma."""
        if self._python is None:
            return self._places(np.zeros(len(work), np.uint32))
        stacks = self._python.of_rows(work)
        return self._places(self._python.innermost(stacks))

    def _stack(self, stack: int) -> bytes:
        if self._python and stack:
            return members({STACK: self._python.text(stack)})
        return b""

    def _place(self, frame: int) -> bytes:
        if self._python and frame:
            return members({LAUNCHED_AT: self._python.place(frame)})
        return b""

    def at(self, times: np.ndarray) -> np.ndarray:
        """Convert times (ns) to the clock of the file."""
        return times.astype(np.int64) - self._offset


def _durations(rows: np.ndarray) -> np.ndarray:
    """The duration (ns) of each row, 0 without an end."""
    durations = rows["end"] - rows["start"]
    return np.where(rows["end"] > 0, durations, 0)


def _bandwidths(rows: np.ndarray) -> np.ndarray:
    """The bandwidth (bytes/ns, which is GB/s) of each row."""
    durations = np.maximum(rows["end"] - rows["start"], 1)
    return rows["bytes"] / durations.astype(np.float64)


def offset_of(trace: Trace) -> int:
    """The offset (ns) that an import added to the times of its file; 0 if processes have different offsets."""
    unmoved = [p for p in trace.processes if not p.alignment.moves]
    offsets = {process.info.get("time_offset_ns", 0) for process in unmoved}
    if len(offsets) != 1:
        return 0
    offset = offsets.pop()
    if isinstance(offset, int) and abs(offset) < 2**62:
        return offset
    return 0


def as_dict(value: Any) -> dict[str, Any]:
    """A value of a process description if it is an object, else an empty one."""
    if isinstance(value, dict):
        return value
    return {}
