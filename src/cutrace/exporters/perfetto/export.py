"""The way of a whole capture into a Perfetto trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..._native import Submissions
from ...errors import CutraceError
from ...outputs import unwritable
from ...runbin import BlockInfo
from ...runbin.layout import TABLES
from ...trace import Trace
from ..base import Request
from . import gpu, styles, tracks, work
from .archive import Archive
from .arguments import Arguments
from .arrows import Arrows
from .devices import Devices
from .gauges import CounterTracks, MemoryGauge, WorkGauges
from .header import Header
from .launched import Launches
from .naming import Names, Numbers, ThreadNames, lost_sentences, pids
from .numbered import Numbered
from .output import Output
from .projection import Projection
from .spool import Spool
from .sweep import Sweep
from .waits import Waits

#: Bytes of freed blocks that may stay with the process.
KEPT_FREE = 16 << 20

#: Ids of GPU work that are kept for the first correlations of a process: up to here, an id takes three bytes.
NEAR_IDS = 1 << 21

_HOST_TABLES = tuple(dict.fromkeys(t.name for t in tracks.TABLES if not t.derived_layout))
_GPU_TABLES = tuple(t.name for t in gpu.TABLES)
#: Names of annotations that stand beside arguments of the source.
_BESIDE = frozenset(name for t in tracks.TABLES if t.text for name in t.arguments)
_READ_BACK = frozenset((*_GPU_TABLES, *(t.name for t in tracks.TABLES if t.read_back)))


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace for ui.perfetto.dev to ``path``; a path that ends with .gz is compressed as a whole.

    Memory does not grow with the capture; progress is counted in rows. Raises :class:`CutraceError` when the file
    cannot be written; none is left then.
    """
    compress = request.compress
    if compress not in (None, "zstd", "deflate"):
        raise CutraceError(f"cannot compress with {compress!r}: choose zstd or deflate")
    packed = bool(compress) or path.suffix.lower() == ".gz"
    if compress and path.suffix.lower() == ".gz":
        raise CutraceError("compress the whole file with .gz or its packets with --compress, not both")
    # The C library gives the memory of freed blocks back to the system, which has to clear it for the next ones; having
    # freed something larger once, it keeps them.
    np.empty(KEPT_FREE, np.uint8)
    try:
        with Output(path, compress) as output:
            if request.capture or (request.capture is None and not packed):
                output.capture(trace)  # in front of all else, where it is found at once
            _Export(trace, output, request).run()
    except OSError as error:
        raise unwritable(path, error) from None


class _Export:
    """One conversion: what its parts share, and their order."""

    def __init__(self, trace: Trace, output: Output, request: Request) -> None:
        self._trace, self._output, self._request, self._progress = trace, output, request, request.progress
        self._names, self._numbers = Names(), Numbers()
        self._pids = pids(trace)
        self._threads = ThreadNames(trace)
        self._devices = Devices(trace, self._pids)
        self._unknown = dict.fromkeys(TABLES, 0)
        self._infos = {name: trace.block_infos(name) for name in (*_GPU_TABLES, *_HOST_TABLES)}
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
        self._arguments = Arguments(self._trace.strings, self._names, self._used(), _BESIDE)
        self._arrows = Arrows(self._trace.blocks("flows"))
        archive = Archive(self._trace, self._output, _READ_BACK, self._arguments)
        archive.begin()
        self._spilled, self._detached, self._unsought, self._unlooked, free_id = 0, 0, 0, 0, 0
        for process in self._trace.processes:
            rows = sum(info.rows for name in self._infos for info in self._of(name, process.index))
            submissions = Submissions(free_id, min(rows, NEAR_IDS))
            self._write(process.index, uuids[process.index], submissions)
            free_id = submissions.end
        archive.undrawn()
        for info in self._apart:
            unknown = self._trace.block(info)[1]
            archive.rows(TABLES[info.table or ""], unknown[~tracks.never_ended(info.table or "", unknown)])
        moved = (self._spilled, self._detached, self._unsought, self._unlooked)
        lost = lost_sentences(self._trace, self._unknown, *moved)
        header.finish(list(lost), self._numbers)

    def _used(self) -> Iterator[int]:
        """The ids of texts with arguments."""
        used = np.zeros(len(self._trace.strings), bool)
        for name in dict.fromkeys(t.name for t in tracks.TABLES if t.text):
            for info in self._infos[name]:
                for rows in self._trace.block(info):
                    used[rows[tracks.TEXT]] = True
        return iter(np.flatnonzero(used).tolist())

    def _of(self, name: str, process: int) -> list[BlockInfo]:
        """The blocks of a table and process in rising time."""
        return self._blocks.get((name, process), [])

    def _write(self, process: int, uuid: int, submissions: Submissions) -> None:
        """Write what one process did."""
        span = self._trace.start, self._trace.end
        queues, memory = Numbered(*styles.QUEUE_FIELDS), MemoryGauge(*span)
        derived = self._request.derived
        launches = Launches(self._trace, process, self._of("api_calls", process) if derived else [])
        waits = Waits(self._trace if derived else None, process, queues)
        gauges = WorkGauges(process, self._devices, queues, *span)
        with Spool(tracks.PROJECTED) as spool:
            ranges = self._of("nvtx_ranges", process) if derived else []
            projection = Projection(self._trace, process, ranges, launches, queues, spool)
            follows = work.Work(queues, launches, projection, waits, gauges) if derived else None
            self._write_gpu(process, submissions, launches, follows)
            sweep = Sweep(
                self._trace, process, self._pids[process], uuid, names=self._names, arguments=self._arguments,
                arrows=self._arrows, numbers=self._numbers, threads=self._threads, devices=self._devices,
                submissions=submissions, waits=waits.of_calls(), output=self._output, advance=self._advance,
                memory=memory if derived else None,
            )  # fmt: skip
            sweep.run([info for name in _HOST_TABLES for info in self._of(name, process)], spool.blocks)
        self._spilled += sweep.spilled
        self._detached += sweep.detached
        self._unsought += waits.dropped
        self._unlooked += projection.dropped
        counters = CounterTracks(uuid, self._numbers, self._output)
        gauges.write(counters)
        memory.write(counters)

    def _write_gpu(self, process: int, submissions: Submissions, launches: Launches, follows: work.Work | None) -> None:
        names = gpu.GpuNames(self._trace, self._devices, self._names, process)
        writers = {
            table.name: gpu.GpuWriter(table, names, submissions, self._numbers, self._output) for table in gpu.TABLES
        }
        infos = [info for table in gpu.TABLES for info in self._of(table.name, process)]
        if follows is None:
            for info in infos:
                rows, writer = self._read(info), writers[info.table or ""]
                if len(rows):
                    writer.write(writer.whole(rows))
            return
        shift = self._trace.processes[process].clock_offset
        for until, parts in work.windows(infos, writers, self._read, shift, launches.steps):
            follows.write(until, parts)

    def _read(self, info: BlockInfo) -> np.ndarray:
        rows, unknown = self._trace.block(info)
        self._advance(info, len(unknown))
        return rows

    def _advance(self, info: BlockInfo, unknown: int) -> None:
        """Note that a block was written, and how many of its rows have no known times."""
        if unknown and info.table in _READ_BACK:
            self._apart.append(info)
        self._unknown[info.table or ""] += unknown
        self._done += info.rows
        if self._progress:
            self._progress(self._done, self._total)
