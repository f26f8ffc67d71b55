"""Which process and thread ids events get.

Work on the host has its own. Work on a GPU has the device as process and the stream as thread, as torch.profiler
writes it; waits for a stream lie beside its work, as they overlap it, and what the profiler cost is of process -1.
Where a trace has several processes, the devices and the overheads of all but the first get numbers that no process has.
"""

from __future__ import annotations

import json
from typing import Any

from ...trace import Trace
from .lines import Pieces, quoted

#: Devices of further processes: their process ids begin here, with this many for each process.
_DEVICES, _DEVICES_A_PROCESS = 0x40000000, 0x10000
_OVERHEADS = 0x38000000
#: Threads of waits: their ids begin here.
WAITS = 1_000_000
#: Process ids of processes that share theirs with another one of the trace.
_DOUBLES = 0x30000000


class Places:
    """Pieces ``"pid":…,"tid":…`` of all events."""

    def __init__(self, trace: Trace) -> None:
        self._processes = trace.processes
        self._ids: list[Any] = []
        taken: set[Any] = set()
        for process in trace.processes:
            told = process.info
            pid = told.get("source_pid", process.pid)
            if pid is not None and (not isinstance(pid, int | str) or pid in taken):
                pid = _DOUBLES + process.index
            taken.add(pid)
            self._ids.append(pid)
        self._threads = [_table(process.info.get("source_threads")) for process in trace.processes]
        #: Process, device and stream of all GPU work that was written.
        self.streams: list[tuple[int, int, int]] = []
        self.host = Pieces(2, self._host)
        self.gpu = Pieces(3, self._gpu)
        self.overheads = Pieces(2, self._overhead)

    def pid(self, process: int) -> Any:
        """The process id that is written for a process: a number, a text or None."""
        return self._ids[process]

    def tid(self, process: int, thread: int) -> Any:
        """The thread id that is written for a thread."""
        return self._threads[process].get(str(thread), thread)

    def device(self, process: int, device: int) -> int:
        """The process id of a device."""
        return device if process == 0 else _DEVICES + process * _DEVICES_A_PROCESS + device

    def overhead(self, process: int) -> int:
        """The process id of what the profiler cost a process."""
        return -1 if process == 0 else _OVERHEADS + process

    def where(self, process: int, thread: int | None = None) -> bytes:
        """The ids of a process, or of a thread, as JSON, with a comma before."""
        ids = {"pid": self.pid(process), "tid": None if thread is None else self.tid(process, thread)}
        return b"".join(b',"%s":%s' % (key.encode(), _plain(id_)) for key, id_ in ids.items() if id_ is not None)

    def _host(self, process: int, thread: int) -> bytes:
        return self.where(process, thread)

    def _gpu(self, process: int, device: int, thread: int) -> bytes:
        self.streams.append((process, device, thread))
        return b',"pid":%d,"tid":%d' % (self.device(process, device), thread)

    def _overhead(self, process: int, thread: int) -> bytes:
        return b',"pid":%d,"tid":%d' % (self.overhead(process), self._number(process, thread))

    def _number(self, process: int, thread: int) -> int:
        tid = self.tid(process, thread)
        return tid if isinstance(tid, int) else thread


def _plain(id_: Any) -> bytes:
    return quoted(id_) if isinstance(id_, str) else json.dumps(id_).encode()


def _table(told: Any) -> dict[str, Any]:
    return told if isinstance(told, dict) else {}
