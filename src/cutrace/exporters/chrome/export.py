"""Write a trace as trace-event JSON, block by block."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ...embedding import JSON_KEY, pieces
from ...errors import CutraceError
from ...runbin import TABLES
from ...trace import Trace
from ...trace.rows import never_ended
from ..base import Request
from .gpu import GpuJson
from .host import MEMORY, HostJson
from .metadata import (
    devices_and_streams,
    keys_before,
    keys_behind,
    processes_and_threads,
)
from .shared import Shared

#: The gzip level. Higher levels are much slower, and their files are about as large.
_LEVEL = 5
#: The tables that are written, in this order.
_GPU = (
    "kernels",
    "memcpys",
    "memsets",
    "synchronizations",
    "graph_launches",
    "gpu_slices",
)
_HOST = (
    "api_calls",
    "nvtx_ranges",
    "nvtx_marks",
    "host_slices",
    "instants",
    "counters",
    "flows",
    "overheads",
)


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write trace-event JSON to ``path``, compressed if it ends with .gz.

    Memory does not grow with the trace, except for the correlation ids of GPU work and for slices whose begin and end
    are separate events. Raises :class:`CutraceError` for a request with ``compress``.
    """
    if request.compress:
        raise CutraceError(
            f"JSON has no packets to compress with {request.compress}: let the name end with .json.gz"
        )
    with _opened(path) as file:
        _Export(trace, file, request).run()


def _opened(path: Path) -> BinaryIO:
    if path.suffix.lower() == ".gz":
        return cast(BinaryIO, gzip.open(path, "wb", _LEVEL))
    return path.open("wb")


class _Export:
    """One export: the writers of its parts, in their order."""

    def __init__(self, trace: Trace, file: BinaryIO, request: Request) -> None:
        self._trace = trace
        self._file = file
        self._request = request
        self._shared = Shared(trace)
        gpu = GpuJson(self._shared)
        host = HostJson(self._shared)
        self._lines: dict[str, Callable[[np.ndarray], bytes]] = {}
        for name in _GPU:
            self._lines[name] = getattr(gpu, name)
        for name in _HOST:
            self._lines[name] = getattr(host, name)
        for name in MEMORY:
            self._lines[name] = partial(host.memory, name)
        self._empty = True
        self._total = sum(map(trace.count, self._lines))
        self._done = 0

    def run(self) -> None:
        self._file.write(b"{\n")
        if self._request.capture:
            self._write_capture()
        about = self._trace, self._shared.pid_tid
        self._file.write(keys_before(*about) + b'"traceEvents": [')
        self._write(b"".join(processes_and_threads(*about)))
        for name, line in self._lines.items():
            for rows in self._rows(name):
                self._write(line(rows))
        self._write(b"".join(devices_and_streams(*about)))
        self._file.write(
            b"\n]" + keys_behind(self._trace, self._unsupported()) + b"\n}\n"
        )

    def _write_capture(self) -> None:
        """Write the capture in the first key, so that readers find it quickly."""
        self._file.write(b'"%s": [' % JSON_KEY.encode())
        separator = b"\n"
        for piece in pieces(self._trace):
            self._file.write(separator + b'"' + b64encode(piece) + b'"')
            separator = b",\n"
        self._file.write(b"],\n")

    def _write(self, lines: bytes) -> None:
        # Each line starts with the comma that ends the previous one.
        if self._empty:
            lines = lines[1:]
        if lines:
            self._file.write(lines)
            self._empty = False

    def _rows(self, name: str) -> Iterator[np.ndarray]:
        """The rows of a table, with the rows that have no end."""
        held_back: list[np.ndarray] = []
        for info in self._trace.block_infos(name):
            rows, unknown = self._trace.block(info)
            self._done += len(rows) + len(unknown)
            if len(unknown):
                rows = np.append(rows, unknown[never_ended(name, unknown)])
            if self._request.progress:
                self._request.progress(self._done, self._total)
            if name == "host_slices":
                # Slices whose begin and end are separate events are sorted together at the end.
                split = (rows["flags"] & 2) > 0
                held_back.append(rows[split])
                rows = rows[~split]
            if name == "counters" and len(rows):
                # The event of the last row may continue in the next block.
                if held_back:
                    rows = np.append(held_back.pop(), rows)
                last_time = rows["time"][-1]
                others = np.flatnonzero(rows["time"] != last_time)
                complete = 0
                if len(others):
                    complete = int(others[-1]) + 1
                held_back.append(rows[complete:])
                rows = rows[:complete]
            if len(rows):
                yield rows
        rest = [rows for rows in held_back if len(rows)]
        if rest:
            yield np.concatenate(rest)

    def _unsupported(self) -> dict[str, int]:
        """For each table that is not written, its number of rows."""
        counts = {}
        for name, table in TABLES.items():
            is_record = table.number < 48 and name != "external_correlations"
            if is_record and name not in self._lines:
                counts[name] = self._trace.count(name)
        return {name: count for name, count in counts.items() if count}
