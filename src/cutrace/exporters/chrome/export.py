"""Writing a trace as a file of trace events, block by block."""

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
from .gpu import GpuEvents
from .host import MEMORY, HostEvents
from .metadata import devices_and_streams, keys_before, keys_behind, processes_and_threads
from .shared import Shared

#: gzip's level: the next ones take much longer for little.
_LEVEL = 5
#: Tables that are written, in this order.
_GPU = ("kernels", "memcpys", "memsets", "synchronizations", "graph_launches", "gpu_slices")
_HOST = (
    "api_calls", "nvtx_ranges", "nvtx_marks", "host_slices", "instants", "counters", "flows", "overheads",
)  # fmt: skip


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write trace-event JSON to ``path``; one that ends with .gz is compressed.

    Memory does not grow with the trace, but for the correlation ids of GPU work and for slices whose begin and end are
    events apart.
    """
    if request.compress:
        raise CutraceError(f"JSON has no packets to compress with {request.compress}: let the name end with .json.gz")
    with gzip.open(path, "wb", _LEVEL) if path.suffix.lower() == ".gz" else path.open("wb") as file:
        _Export(trace, cast(BinaryIO, file), request).run()


class _Export:
    """One export: what its parts share, and their order."""

    def __init__(self, trace: Trace, file: BinaryIO, request: Request) -> None:
        self._trace, self._file, self._request = trace, file, request
        self._shared = Shared(trace)
        gpu, host = GpuEvents(self._shared), HostEvents(self._shared)
        self._lines: dict[str, Callable[[np.ndarray], bytes]] = {
            name: getattr(events, name) for events, names in ((gpu, _GPU), (host, _HOST)) for name in names
        } | {table: partial(host.memory, table) for table in MEMORY}
        self._empty = True
        self._total = sum(trace.count(name) for name in self._lines)
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
        self._file.write(b"\n]" + keys_behind(self._trace, self._unsupported()) + b"\n}\n")

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
            rows = np.append(rows, unknown[never_ended(name, unknown)]) if len(unknown) else rows
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

    def _unsupported(self) -> dict[str, int]:
        timed = [name for name, table in TABLES.items() if table.number < 48 and name not in self._lines]
        return {name: count for name in timed if (count := self._trace.count(name)) and name != "external_correlations"}
