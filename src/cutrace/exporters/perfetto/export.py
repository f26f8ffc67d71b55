"""Write a whole capture as a Perfetto trace, process by process: first its GPU work, then its host events.

Both are written in windows of time. A window has the rows of all tables that start before a time, so columns that
depend on several tables are known when an event is written. Memory is bounded by the window, not by the capture. Each
window reads rows, indexes their styles, derives columns and encodes events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..._native import Submissions
from ...analysis.coverage import RANGE_WAYS, coverage, range_shares
from ...errors import CutraceError
from ...runbin import BlockInfo
from ...trace import Trace
from ...trace.launches import REMEMBERED_BITS, CallBlocks
from ...trace.ordered import NEVER, BlockOrder, Limits
from ...trace.ranges import RANGE_TABLES, RangesBy
from ..base import Request
from . import gpu_tables, host_tables
from .annotations import TEXT, Annotations
from .blocks import GPU_TABLES, HOST_TABLES, PC_SAMPLES, Blocks
from .call_stacks import StackArguments
from .derived.counters import MemoryCounters, WorkCounters
from .derived.projection import RangesOnStreams
from .derived.replays import Replays
from .derived.waits import Waits
from .descriptors import Descriptors, write_header, write_missing
from .flows import Flows
from .gpu_events import GpuBlock, GpuEvents, GpuPart, GpuRows, Lists
from .gpu_styles import KeyIndex, Queues, StyleIndex
from .host_tables import COUNTED, HostTracks, Spool
from .host_writer import HostColumns, HostWriter
from .kernel_metrics import RangeMetrics, write_kernel_metrics
from .kernel_names import KernelNameColumns
from .packets import Output, wrapper
from .pc_samples import PcSampleWriter
from .pipeline import OrderedThread, PacketFile
from .readings import write_environment, write_gpu_memory
from .samples import SampleWriter, is_sampled

#: Bytes of freed memory that the C library keeps.
KEPT_FREE = 16 << 20

#: The number of ids reserved for the GPU work of the first correlation ids of a process. Lower ids take three bytes.
NEAR_IDS = 1 << 21

#: Bytes of rows to read for a window, and bytes to keep in memory for later windows.
GPU_WINDOW = 2 << 20
GPU_KEPT = 32 << 20

#: A process with more than ``_FEW_ROWS`` rows is large. The host events of at most ``_MOST_PROCESSES`` processes are
#: written together.
_FEW_ROWS = 1 << 16
_MOST_PROCESSES = 8

#: The number of derived counter values in a block.
_SPOOLED = 1 << 14

#: The largest number of windows that wait for a thread.
_WINDOWS_AHEAD = 2

#: The notices on data that is moved or left out.
_SPILLED = "slice shown on a separate track: overlap with others of the thread, or more than 500 levels"
_DETACHED = "step of flows outside any slice, not shown"
_UNSOUGHT = "synchronization not matched with the awaited work: too many"
_OVERLAPPED = "value of hardware metrics of overlapping kernels, not shown because viewers mix them up"

#: The names of annotations that come from fields of a row. Arguments of the source must not use them.
_RESERVED = frozenset(
    name for t in host_tables.TABLES if t.text for name in t.arguments
)


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace for ui.perfetto.dev to ``path``; a path that ends with .gz is compressed as a whole.

    Memory does not grow with the capture. Progress is counted in rows. Raises CutraceError for an unknown compression.
    """
    compress = request.compress
    if compress not in (None, "zstd", "deflate"):
        raise CutraceError(f"cannot compress with {compress!r}: choose zstd or deflate")
    if compress and path.suffix == ".gz":
        raise CutraceError(
            "compress the whole file with .gz or its packets with --compress, not both"
        )
    # The C library returns freed blocks to the system, and the system clears them for the next use. The library keeps
    # such blocks after a larger block was freed once.
    np.empty(KEPT_FREE, np.uint8)
    with PacketFile(path, wrapper(compress)) as file:
        output = Output(file)
        if request.capture is not False:
            output.carry(trace)
        _write(trace, output, request)
        while output.next_piece():
            pass


def _write(trace: Trace, output: Output, request: Request) -> None:
    blocks = Blocks(trace, output.file, request.progress)
    descriptors = Descriptors(trace)
    uuids = write_header(output, descriptors)
    names = KernelNameColumns(trace.strings, output.names)
    with_text, texts = _texts(trace)
    annotations = Annotations(trace.strings, output.names, texts, _RESERVED)
    flows = Flows(trace.blocks("flows"))
    range_metrics = RangeMetrics(trace)
    stacks = StackArguments(trace.python_stacks) if trace.python_stacks else None
    shares = np.zeros((len(RANGE_WAYS), 2), np.int64)
    notices = (_SPILLED, _DETACHED, _UNSOUGHT, _OVERLAPPED)
    moved = Counter(dict.fromkeys(notices, 0))
    free_id = 0
    sizes = list(map(blocks.rows, range(len(uuids))))
    for group in groups(sizes):
        columns: dict[int, HostColumns] = {}
        memory: dict[int, MemoryCounters] = {}
        pending: list[BlockInfo] = []
        with Spool() as derived_rows, Spool() as blocks.still_open:
            for process in group:
                submissions = Submissions(free_id, min(blocks.rows(process), NEAR_IDS))
                spool = derived_rows if request.derived else None
                derived = _write_work(
                    process,
                    blocks,
                    output,
                    descriptors,
                    names,
                    submissions,
                    spool,
                    request.ranges,
                )
                waits = None
                if derived:
                    waits = derived.waits.of_calls()
                    shares += derived.launches.kept.shares()
                    count = sum(info.rows for info in blocks.of(process, "allocations"))
                    memory[process] = MemoryCounters(
                        descriptors, process, (trace.start, trace.end), count
                    )
                    moved[_UNSOUGHT] += derived.waits.dropped
                columns[process] = HostColumns(
                    annotations,
                    with_text,
                    range_metrics,
                    flows,
                    submissions,
                    waits,
                    stacks,
                )
                of_process = _write_samples(process, blocks, output, descriptors)
                pending += of_process
                free_id = submissions.end
            tracks = HostTracks(output, descriptors, uuids)
            host = HostWriter(blocks, columns, memory, tracks, output)
            blocks.read_ahead(pending, host.prepare)
            host.write(host_tables.TABLES, [*pending, *derived_rows.blocks])
            host.write(host_tables.OPEN_TABLES, blocks.still_open.blocks)
            for process, counters in memory.items():
                write_gpu_memory(output, descriptors, process, counters)
        moved[_SPILLED] += host.spilled
        moved[_DETACHED] += host.detached
    write_environment(trace, output, descriptors)
    moved[_OVERLAPPED] += write_kernel_metrics(trace, output, descriptors)
    covered = None
    if trace.count("nvtx_ranges"):
        covered = coverage(range_shares(shares.tolist()))
    if covered:
        request.say(covered)
    write_missing(output, trace, blocks.unknown, moved, covered)


def _write_work(
    process: int,
    blocks: Blocks,
    output: Output,
    descriptors: Descriptors,
    names: KernelNameColumns,
    submissions: Submissions,
    derived_rows: Spool | None,
    ranges: RangesBy,
) -> DerivedWork | None:
    """Write the GPU work of a process. With a spool, put the projected ranges and counters derived from the work into
    it, and return the other derived data."""
    queues = Queues(descriptors, process)
    events = {}
    for table in gpu_tables.TABLES:
        index = StyleIndex(table, descriptors, process, output, queues, names)
        events[table.name] = GpuEvents(index, output, submissions)
    with output.file.thread(_WINDOWS_AHEAD) as thread:
        span = (blocks.trace.start, blocks.trace.end)
        counters = WorkCounters(descriptors, process, queues, span)
        derived = None
        if derived_rows:
            derived = DerivedWork(
                blocks, process, queues, counters, derived_rows, thread, ranges
            )
        blocks.read_ahead(
            blocks.of(process, *GPU_TABLES),
            lambda info, rows: events[info.table or ""].prepare(rows),
        )
        _write_gpu(process, blocks, output, events, derived)
        thread.wait()
    if derived and derived_rows:
        for rows in counters.rows():
            for begin in range(0, len(rows), _SPOOLED):
                derived_rows.add(COUNTED, rows[begin : begin + _SPOOLED])
    return derived


def _write_samples(
    process: int, blocks: Blocks, output: Output, descriptors: Descriptors
) -> list[BlockInfo]:
    """Write the samples of a process. Returns the blocks of its other host tables."""
    tables = HOST_TABLES
    blocks.read_ahead(blocks.of(process, PC_SAMPLES), lambda _, rows: rows)
    if is_sampled(blocks.trace, process):
        samples = SampleWriter(blocks.trace, output, descriptors, process)
        samples.write(map(blocks.read, blocks.of(process, "counters")))
        tables = tuple(name for name in tables if name != "counters")
    pc_samples = PcSampleWriter(blocks.trace, output, descriptors, process)
    pc_samples.write(map(blocks.read, blocks.of(process, PC_SAMPLES)))
    return blocks.of(process, *tables)


def groups(rows: Sequence[int]) -> list[list[int]]:
    """Group processes, given their numbers of rows, to write their host events together. A group has at most one large
    process, because the inputs of its host events stay in memory."""
    groups: list[list[int]] = []
    large = 0
    for process, size in enumerate(rows):
        large += size > _FEW_ROWS
        if not groups or large > 1 or len(groups[-1]) == _MOST_PROCESSES:
            groups.append([])
            large = int(size > _FEW_ROWS)
        groups[-1].append(process)
    return groups


def _texts(trace: Trace) -> tuple[frozenset[str], list[int]]:
    """The tables whose rows have arguments in JSON, and the string ids of these."""
    used = np.zeros(len(trace.strings), bool)
    tables = set()
    recorded = [table for table in host_tables.TABLES if not table.derived]
    for name in {table.name for table in recorded if table.text}:
        for info in trace.block_infos(name):
            for rows in trace.block(info):
                used[rows[TEXT]] = True
                if rows[TEXT].any():
                    tables.add(name)
    if "nvtx_ranges" in tables:
        tables.add(host_tables.PROJECTED.name)
    return frozenset(tables), np.flatnonzero(used).tolist()


class DerivedWork:
    """The data derived from the GPU work of one process. Projected ranges are put into a spool.

    Events of GPU work need only the waits. ``thread`` derives the other data at the same time. The other data is
    complete when the thread ends.
    """

    def __init__(
        self,
        blocks: Blocks,
        process: int,
        queues: KeyIndex,
        counters: WorkCounters,
        projected: Spool,
        thread: OrderedThread,
        by: RangesBy,
    ) -> None:
        trace = blocks.trace
        self._counters = counters
        self._thread = thread
        calls = blocks.of(process, "api_calls")
        # Without NVTX ranges nothing is projected, and no output has the shares of ranges.
        ranges: list[BlockInfo] = []
        if trace.count("nvtx_ranges"):
            ranges = blocks.of(process, *RANGE_TABLES)
        read = blocks.ahead([*calls, *ranges])
        self._ranges = RangesOnStreams(read, ranges, by, queues, projected)
        self.launches = CallBlocks(read, calls, REMEMBERED_BITS, self._ranges)
        self._replays: Replays | None = None
        if trace.origins:
            self._replays = Replays(trace.origins, process, queues, projected)
        self._waits = blocks.file.submit(Waits, trace, process, queues)

    @property
    def waits(self) -> Waits:
        return self._waits.result()

    def window(
        self, until: int, calls: Sequence[BlockInfo], parts: Sequence[GpuPart]
    ) -> list[Lists | None]:
        """Add the work of a window, and blocks of ``calls`` that may have launched it. Returns the event ids that the
        rows of each part waited for, None for a part without waits."""
        queues = [part.queues for part in parts]
        self._thread.run(self._derive, until, calls, parts, queues)
        return self.waits.window(parts, queues)

    def _derive(
        self,
        until: int,
        calls: Sequence[BlockInfo],
        parts: Sequence[GpuPart],
        queues: Sequence[np.ndarray],
    ) -> None:
        for info in calls:
            self.launches.read(info)
        self._ranges.advance(until)
        for part in parts:
            self._counters.add(part)
        columns = []
        for part, queue in zip(parts, queues, strict=True):
            correlation = part.rows["correlation"]
            start = part.rows["start"]
            end = part.rows["end"]
            columns.append((correlation, start, end, queue))
            if self._ranges.active:
                called = self.launches.find(correlation)
                self._ranges.launch(called, queue, start, end)
        self.launches.kept.launch(columns, *self._counters.launch_queues)
        if until != NEVER:
            self._ranges.settle(until)
        if self._replays:
            self._replays.add(parts, queues)

    def finish(self) -> None:
        """Add the rows that waited for more work. All windows were added."""
        self._thread.run(self._finish)

    def _finish(self) -> None:
        self._ranges.settle(None)
        if self._replays:
            self._replays.finish()


def _write_gpu(
    process: int,
    blocks: Blocks,
    output: Output,
    events: Mapping[str, GpuEvents],
    derived: DerivedWork | None,
) -> None:
    """Write the GPU work of a process. A window takes whole blocks if it is the last one, if too many bytes of rows are
    in memory, or if nothing is derived."""

    def read(info: BlockInfo) -> tuple[np.ndarray, GpuBlock] | None:
        prepared: GpuRows = blocks.read(info)
        if not len(prepared.rows):
            return None
        block = events[info.table or ""].block(prepared)
        return block.rows["start"], block

    infos = blocks.of(process, *GPU_TABLES)
    order = BlockOrder(infos, read, Limits(GPU_WINDOW))
    while not order.done:
        until = order.fill()
        live = [block.content for block in order.live]
        if derived is None or order.size >= GPU_KEPT:
            until = NEVER
            order.release()
        else:
            order.advance(until)
        steps: Iterable[tuple[int, list[BlockInfo]]] = [(NEVER, [])]
        if derived:
            steps = derived.launches.steps(until)
        for moment, calls in steps:
            unwritten = [block for block in live if block.written < len(block.rows)]
            parts = [block.before(moment) for block in unwritten]
            parts = [part for part in parts if len(part)]
            waits: Sequence[Lists | None] = [None] * len(parts)
            if derived:
                waits = derived.window(moment, calls, parts)
            for part, waited in zip(parts, waits, strict=True):
                events[part.block.index.table.name].write(part, waited)
            del parts  # to release their blocks
        output.next_piece()
    if derived:
        derived.finish()
