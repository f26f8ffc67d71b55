"""The way of a whole trace into a file of trace events, block by block."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ...embedding import JSON_KEY, pieces
from ...errors import CutraceError
from ...outputs import unwritable
from ...runbin import TABLES
from ...trace import Trace
from ..base import Request
from .arguments import Arguments, dumped
from .gpu import GpuLines
from .host import HostLines
from .ids import Ties
from .lines import Names, quoted
from .other import OtherLines
from .places import WAITS, Places
from .top import behind, devices_and_more, offset_of

#: gzip's level: the next ones take much longer for little.
_LEVEL = 5
#: Tables that are written, in this order.
_GPU = ("kernels", "memcpys", "memsets", "synchronizations", "graph_launches", "gpu_slices")
_HOST = (
    "api_calls", "nvtx_ranges", "nvtx_marks", "host_slices", "instants", "counters", "flows", "overheads",
)  # fmt: skip
_OTHER = ("allocations", "memory_pools", "unified_memory", "jit")


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write trace-event JSON to ``path``; one that ends with .gz is compressed.

    Memory does not grow with the trace, but for the correlation ids of GPU work and for slices whose begin and end are
    events apart. Raises :class:`CutraceError` when the file cannot be written.
    """
    if request.compress:
        raise CutraceError(f"JSON has no packets to compress with {request.compress}: let the name end with .json.gz")
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "wb", _LEVEL) as packed:
                _Export(trace, cast(BinaryIO, packed), request).run()
        else:
            with path.open("wb") as file:
                _Export(trace, file, request).run()
    except OSError as error:
        raise unwritable(path, error) from None


class _Export:
    """One export: what its parts share, and their order."""

    def __init__(self, trace: Trace, file: BinaryIO, request: Request) -> None:
        self._trace, self._file, self._request = trace, file, request
        self._places, self._names, self._arguments = Places(trace), Names(trace.strings), Arguments(trace.strings)
        offset = offset_of(trace)
        shared = (trace, self._places, Ties(trace), self._names, self._arguments, offset)
        gpu, host, other = GpuLines(*shared), HostLines(*shared), OtherLines(self._places, offset)
        self._lines: dict[str, Callable[[np.ndarray], bytes]] = {
            name: getattr(lines, name)
            for lines, names in ((gpu, _GPU), (host, _HOST), (other, _OTHER))
            for name in names
        }
        self._empty = True
        self._total = sum(trace.count(name) for name in self._lines)
        self._done = 0

    def run(self) -> None:
        self._file.write(b"{\n")
        if self._request.capture:
            self._write_capture()
        self._file.write(devices_and_more(self._trace, self._places) + b'"traceEvents": [')
        self._write(b"".join(self._of_processes()))
        for name, line in self._lines.items():
            for rows in self._rows(name):
                self._write(line(rows))
        self._write(b"".join(self._of_devices()))
        self._file.write(b"\n]" + behind(self._trace, self._unwritten()) + b"\n}\n")

    def _write_capture(self) -> None:
        """The capture behind the trace, in the first key: a reader finds it at once."""
        self._file.write(b'"%s": [' % JSON_KEY.encode())
        for number, piece in enumerate(pieces(self._trace)):
            self._file.write((b",\n" if number else b"\n") + b'"' + b64encode(piece) + b'"')
        self._file.write(b"],\n")

    def _write(self, lines: bytes) -> None:
        # Each line begins with the comma behind the one before.
        if lines:
            self._file.write(lines[1:] if self._empty else lines)
            self._empty = False

    def _rows(self, name: str) -> Iterator[np.ndarray]:
        """The rows of a table, those that never ended among them."""
        apart: list[np.ndarray] = []
        for info in self._trace.block_infos(name):
            rows, unknown = self._trace.block(info)
            self._done += len(rows) + len(unknown)
            rows = np.append(rows, unknown[_never_ended(name, unknown)]) if len(unknown) else rows
            if self._request.progress:
                self._request.progress(self._done, self._total)
            if name == "host_slices":
                # Begins and ends that are events apart are put in order as a whole.
                split = (rows["flags"] & 2) > 0
                apart.append(rows[split])
                rows = rows[~split]
            if name == "counters" and len(rows):
                # What belongs to the last row may be in the next block.
                rows = np.append(apart.pop(), rows) if apart else rows
                others = np.flatnonzero(rows["time"] != rows["time"][-1])
                whole = int(others[-1]) + 1 if len(others) else 0
                apart.append(rows[whole:])
                rows = rows[:whole]
            if len(rows):
                yield rows
        rest = [rows for rows in apart if len(rows)]
        if rest:
            yield np.concatenate(rest)

    # Names

    def _of_processes(self) -> Iterator[bytes]:
        threads: dict[int, list[tuple[int, int]]] = {}
        for process_index, thread, text in self._trace.threads[["process", "thread", "name"]].tolist():
            threads.setdefault(process_index, []).append((thread, text))
        for process in self._trace.processes:
            where = self._places.where(process.index)
            # The name of a process whose id is a text is that text, unless it has another one.
            if "source_pid" not in process.info or process.info.get("name") not in (process.info["source_pid"], ""):
                yield _metadata("process_name", where, {"name": process.name})
            for told in _list(process.info.get("metadata_events")):
                if isinstance(told, dict) and isinstance(told.get("name"), str):
                    tid = told.get("tid")
                    ids = where if tid is None else where + b',"tid":' + dumped(tid).encode()
                    yield _metadata(told["name"], ids, told.get("args"))
            made_up = _dict(process.info.get("source_threads"))
            for thread, text in threads.get(process.index, ()):
                # The name of a thread whose id is a text is that text, unless it has another one.
                if made_up.get(str(thread)) != self._trace.strings[text]:
                    yield _metadata(
                        "thread_name", self._places.where(process.index, thread), {"name": self._trace.strings[text]}
                    )

    def _of_devices(self) -> Iterator[bytes]:
        names = {
            (int(r["process"]), int(r["object"])): self._trace.strings[r["name"]]
            for r in self._trace.resource_names
            if r["kind"] == 1
        }
        for process, device in dict.fromkeys((p, d) for p, d, _ in self._places.streams):
            where = b',"pid":%d' % self._places.device(process, device)
            of = f" of {self._trace.processes[process].name}" if len(self._trace.processes) > 1 else ""
            yield _metadata("process_name", where, {"name": f"GPU {device}{of}"})
            yield _metadata("process_labels", where, {"labels": f"GPU {device}"})
            yield _metadata(
                "process_sort_index", where, {"sort_index": 5_000_000 + self._places.device(process, device)}
            )
        for process, device, thread in self._places.streams:
            where = b',"pid":%d,"tid":%d' % (self._places.device(process, device), thread)
            stream, wait = (thread - WAITS, " (sync)") if thread >= WAITS - 1 else (thread, "")
            yield _metadata("thread_name", where, {"name": names.get((process, stream), f"stream {stream}") + wait})
            yield _metadata("thread_sort_index", where, {"sort_index": stream})

    def _unwritten(self) -> dict[str, int]:
        """Rows of tables that have no events here."""
        timed = [name for name, table in TABLES.items() if table.number < 48 and name not in self._lines]
        return {name: count for name in timed if (count := self._trace.count(name)) and name != "external_correlations"}


def _never_ended(name: str, rows: np.ndarray) -> np.ndarray:
    if name not in ("host_slices", "nvtx_ranges"):
        return np.zeros(len(rows), bool)
    return np.asarray(((rows["flags"] & 1) > 0) & (rows["start"] > 0) & (rows["end"] == 0))


def _metadata(name: str, where: bytes, arguments: Any) -> bytes:
    return b',\n{"ph":"M","name":%s%s,"args":%s}' % (
        quoted(name),
        where,
        dumped(arguments or {}).encode("utf-8", "replace"),
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
