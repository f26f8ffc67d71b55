"""Common parts of all events: process and thread ids, links by correlation id, and times of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from ...trace import Trace
from ...trace.launches import Launches
from ...trace_events import EXTERNAL_KIND, LAUNCHED_AT, STACK
from .lines import Column, EventArguments, Line, Pieces, members, quoted

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
    have process -1. If a trace has several processes, the devices and the overheads of all but the first get numbers
    that no process has.
    """

    def __init__(self, trace: Trace) -> None:
        self._ids: list[Any] = []
        taken: set[Any] = set()
        for process in trace.processes:
            pid = process.info.get("source_pid", process.pid)
            if pid is not None and (not isinstance(pid, int | str) or pid in taken):
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
        """The process id in the file: a number, a text or None."""
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
        ids = {
            "pid": self.pid(process),
            "tid": None if thread is None else self.tid(process, thread),
        }
        plain = {
            key: quoted(i) if isinstance(i, str) else json.dumps(i).encode()
            for key, i in ids.items()
        }
        return b"".join(
            b',"%s":%s' % (key.encode(), plain[key])
            for key in ids
            if ids[key] is not None
        )

    def _gpu(self, process: int, device: int, thread: int) -> bytes:
        self.streams.append((process, device, thread))
        return b',"pid":%d,"tid":%d' % (self.device(process, device), thread)

    def _overhead(self, process: int, thread: int) -> bytes:
        tid = self.tid(process, thread)
        return b',"pid":%d,"tid":%d' % (
            self.overhead(process),
            tid if isinstance(tid, int) else thread,
        )


class CorrelationIndex:
    """External ids by correlation id, and the calls that launched GPU work. A key is the process and the correlation id
    as one number."""

    def __init__(self, trace: Trace) -> None:
        self._started = Launches(trace).ids(
            (info.process, rows)
            for name in _STARTED
            for info in trace.block_infos(name)
            for rows in trace.block(info)[:1]
        )
        externals = [
            rows[rows["kind"] == EXTERNAL_KIND]
            for rows in trace.blocks("external_correlations")
        ]
        keys = [self.keys(rows) for rows in externals]
        self._keys, at = np.unique(
            np.concatenate(keys) if keys else np.zeros(0, np.uint64), return_index=True
        )
        if keys:
            self._externals = np.concatenate([rows["external"] for rows in externals])[
                at
            ]
        else:
            self._externals = self._keys

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
        return np.asarray(
            rows["process"].astype(np.uint64) << np.uint64(32)
            | rows["correlation"].astype(np.uint64)
        )


def find(keys: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the queries that are among the ascending keys, and their indices there."""
    if not len(keys):
        return np.zeros(len(queries), bool), np.zeros(len(queries), np.int64)
    at = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.asarray(keys[at] == queries), at


class Shared:
    """The ids, links, names and columns that the writers of all tables share."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self._offset = trace, offset_of(trace)
        self.pid_tid = PidTid(trace)
        self.correlations = CorrelationIndex(trace)
        self.names = Pieces(1, lambda text: quoted(trace.strings[text]))
        self.arguments = EventArguments(trace.strings)
        self._python = trace.python_stacks
        self._stack_texts, self._places = Pieces(1, self._stack), Pieces(1, self._place)
        #: Columns of the lines of several tables, from rows.
        self._columns: dict[str, Callable[[np.ndarray], Column]] = {
            "start": lambda rows: self.at(rows["start"]),
            "stop": lambda rows: self.at(rows["end"]),
            "time": lambda rows: self.at(rows["time"]),
            "duration": lambda rows: np.where(
                rows["end"] > 0, rows["end"] - rows["start"], 0
            ),
            "ended": lambda rows: rows["end"] > 0,
            "bandwidth": lambda rows: (
                rows["bytes"]
                / np.maximum(rows["end"] - rows["start"], 1).astype(np.float64)
            ),
            "graphed": lambda rows: (rows["graph_node"] > 0) | (rows["graph"] > 0),
            "name": lambda rows: self.names(rows["name"]),
            "where": lambda rows: self.pid_tid.host(rows["process"], rows["thread"]),
            "external_id": self.correlations.externals,
            "arrow": self.correlations.keys,
            "stack": self._stack_of,
            "launched": self._launch_of,
        }

    def write(self, line: Line, rows: np.ndarray, **columns: Column) -> bytes:
        """The lines of rows. A column that is not given is a shared column or the field of this name."""
        for name in line.columns:
            if name not in columns:
                columns[name] = (
                    self._columns[name](rows) if name in self._columns else rows[name]
                )
        return line.write(columns, len(rows))

    def _stack_of(self, calls: np.ndarray) -> Column:
        """The argument with the Python stack of each call, preceded by a comma."""
        return self._stack_texts(
            self._python.of_rows(calls)
            if self._python
            else np.zeros(len(calls), np.uint32)
        )

    def _launch_of(self, work: np.ndarray) -> Column:
        """The argument with the Python frame of the launch of GPU work, preceded by a comma."""
        if self._python is None:
            return self._places(np.zeros(len(work), np.uint32))
        return self._places(self._python.innermost(self._python.of_rows(work)))

    def _stack(self, stack: int) -> bytes:
        if self._python and stack:
            return members({STACK: self._python.text(stack)})
        return b""

    def _place(self, frame: int) -> bytes:
        if self._python and frame:
            return members({LAUNCHED_AT: self._python.place(frame)})
        return b""

    def at(self, times: np.ndarray) -> np.ndarray:
        """Convert times (ns) to those of the file."""
        return times.astype(np.int64) - self._offset


def offset_of(trace: Trace) -> int:
    """The offset (ns) that an import added to the times of its file; 0 if processes have different offsets."""
    offsets = {
        process.info.get("time_offset_ns", 0)
        for process in trace.processes
        if not process.alignment.moves
    }
    offset = offsets.pop() if len(offsets) == 1 else 0
    if isinstance(offset, int) and abs(offset) < 2**62:
        return offset
    return 0


def as_dict(value: Any) -> dict[str, Any]:
    """A value of a process description if it is an object, else an empty one."""
    if isinstance(value, dict):
        return value
    return {}
