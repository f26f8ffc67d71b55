"""The way of a whole capture into a Perfetto trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..._native import Submissions
from ...errors import CutraceError
from ...outputs import unwritable
from ...runbin import BlockInfo
from ...runbin.layout import TABLES
from ...trace import Trace
from ..base import Request
from . import gpu, tracks
from .archive import Archive
from .devices import Devices
from .header import Header
from .naming import Names, Numbers, ThreadNames, lost_sentences, pids
from .output import Output
from .sweep import Sweep, never_ended

#: Bytes of freed blocks that may stay with the process.
KEPT_FREE = 16 << 20

#: Ids of GPU work that are kept for the first correlations of a process: up to here, an id takes three bytes.
NEAR_IDS = 1 << 21

_HOST_TABLES = tuple(dict.fromkeys(t.name for t in tracks.TABLES))
_GPU_TABLES = tuple(t.name for t in gpu.TABLES)


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace for ui.perfetto.dev to ``path``; a path that ends with .gz is compressed as a whole.

    Memory does not grow with the capture; progress is counted in rows. Raises :class:`CutraceError` when the file
    cannot be written; none is left then.
    """
    compress = request.compress
    if compress not in (None, "zstd", "deflate"):
        raise CutraceError(f"cannot compress with {compress!r}: choose zstd or deflate")
    if compress and path.suffix == ".gz":
        raise CutraceError("compress the whole file with .gz or its packets with --compress, not both")
    # The C library gives the memory of freed blocks back to the system, which has to clear it for the next ones; having
    # freed something larger once, it keeps them.
    np.empty(KEPT_FREE, np.uint8)
    try:
        with Output(path, compress) as output:
            _Export(trace, output, request).run()
    except OSError as error:
        raise unwritable(path, error) from None


class _Export:
    """One conversion: what its parts share, and their order."""

    def __init__(self, trace: Trace, output: Output, request: Request) -> None:
        self._trace, self._output, self._request, self._progress = trace, output, request, request.progress
        start, end = request.start, request.end
        self._start, self._end = start or 0, end if end is not None else (1 << 64) - 1
        self._whole = start is None and end is None
        self._names, self._numbers = Names(), Numbers()
        self._pids = pids(trace)
        self._threads = ThreadNames(trace)
        self._devices = Devices(trace, self._pids)
        self._unknown = dict.fromkeys(TABLES, 0)
        self._infos = {name: trace.block_infos(name, start, end) for name in (*_GPU_TABLES, *_HOST_TABLES)}
        self._total = sum(info.rows for infos in self._infos.values() for info in infos)
        # By table and process, the blocks in rising time.
        self._blocks: dict[tuple[str, int], list[BlockInfo]] = {}
        for name, infos in self._infos.items():
            for info in sorted(infos, key=lambda i: i.first_time):
                self._blocks.setdefault((name, info.process), []).append(info)
        self._done = 0
        self._apart: list[BlockInfo] = []  # blocks with rows that become no event

    def run(self) -> None:
        header = Header(self._trace, self._output, self._pids)
        uuids = [self._numbers.uuid() for _ in self._trace.processes]
        header.begin(self._devices, uuids)
        archive = Archive(self._trace, self._output, self._infos)
        archive.begin()
        spilled, free_id = 0, 0
        for process in self._trace.processes:
            rows = sum(info.rows for name in self._infos for info in self._of(name, process.index))
            submissions = Submissions(free_id, min(rows, NEAR_IDS))
            self._write_gpu(process.index, submissions)
            free_id = submissions.end
            spilled += self._write_host(process.index, uuids[process.index], submissions)
        archive.undrawn(self._request.start, self._request.end)
        for info in self._apart if self._whole else ():
            unknown = self._trace.block(info)[1]
            archive.rows(TABLES[info.table or ""], unknown[~never_ended(info.table or "", unknown)])
        header.finish(list(lost_sentences(self._trace, self._unknown, spilled)), self._numbers)

    def _of(self, name: str, process: int) -> list[BlockInfo]:
        """The blocks of a table and process in rising time."""
        return self._blocks.get((name, process), [])

    def _write_gpu(self, process: int, submissions: Submissions) -> None:
        names = gpu.GpuNames(self._trace, self._devices, self._names, process)
        for table in gpu.TABLES:
            infos = self._of(table.name, process)
            writer = gpu.GpuWriter(table, names, submissions, self._numbers, self._output) if infos else None
            for info in infos:
                rows, unknown = self._trace.block(info)
                rows = self._cut(rows, table.name)
                if writer and len(rows):
                    writer.write(rows)
                self._advance(info, len(unknown))

    def _write_host(self, process: int, uuid: int, submissions: Submissions) -> int:
        sweep = Sweep(
            self._trace, process, self._pids[process], uuid, names=self._names, numbers=self._numbers,
            threads=self._threads, submissions=submissions, output=self._output, cut=self._cut, advance=self._advance,
        )  # fmt: skip
        sweep.run([info for name in _HOST_TABLES for info in self._of(name, process)])
        return sweep.spilled

    def _cut(self, rows: np.ndarray, name: str) -> np.ndarray:
        """The rows that touch the chosen time."""
        if self._whole or not len(rows):
            return rows
        first, last = rows[TABLES[name].start_field], rows[TABLES[name].end_field]
        return rows[(last >= self._start) & (first < self._end)]

    def _advance(self, info: BlockInfo, unknown: int) -> None:
        """Note that a block was written, and how many of its rows have no known times."""
        if unknown:
            self._apart.append(info)
        self._unknown[info.table or ""] += unknown
        self._done += info.rows
        if self._progress:
            self._progress(self._done, self._total)
