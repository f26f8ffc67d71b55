"""Write a whole capture as a Perfetto trace, process by process: first its GPU work, then its host events.

Both are written in windows of time. A window has the rows of all tables that begin before a time, so columns that
depend on several tables are known when an event is written. Memory is bounded by the window, not by the capture. Each
window reads rows, indexes their styles, derives columns and encodes events.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._native import Blobs, Lanes, Program, Submissions
from ...errors import CutraceError
from ...runbin import BlockInfo
from ...runbin.layout import TABLES
from ...trace import Trace
from ...trace.rows import distinct, never_ended
from ..base import Progress, Request
from ..rows import payload_columns
from . import gpu_tables, host_tables
from .annotations import TEXT, Annotations
from .call_stacks import StackArguments
from .derived.counters import MemoryCounters, WorkCounters
from .derived.launches import LaunchIndex, ReadBlock
from .derived.projection import Projection
from .derived.replays import Replays
from .derived.waits import CallWaits, Waits
from .descriptors import Descriptors, write_header, write_missing
from .flows import Flows, needs_slice
from .gpu_events import GpuBlock, GpuEvents, GpuPart, GpuRows, Lists
from .gpu_styles import KernelNames, KeyIndex, Queues, StyleIndex
from .host_tables import (
    COUNTED,
    THREAD,
    HostChunk,
    HostEvents,
    HostRows,
    HostTable,
    HostTracks,
    SharedArguments,
    Spool,
    SpoolBlock,
    TrackNews,
    counter_values,
    end_template,
)
from .kernel_metrics import RangeMetrics, write_kernel_metrics
from .packets import Output, wrapper
from .pc_samples import PcSampleWriter
from .pipeline import OrderedThread, PacketFile
from .proto import Columns
from .samples import SampleWriter, is_sampled

#: Bytes of freed memory that the C library keeps.
KEPT_FREE = 16 << 20

#: Ids reserved for the GPU work of the first correlations of a process: ids below this take three bytes.
NEAR_IDS = 1 << 21

#: Bytes of rows to read for a window, and bytes to keep in memory for later windows.
GPU_WINDOW, GPU_KEPT = 2 << 20, 32 << 20
HOST_WINDOW, HOST_KEPT = 3 << 20, 16 << 20

#: The rows of a large process, and the largest number of processes whose host events are written together.
_FEW_ROWS, _MOST_PROCESSES = 1 << 16, 8

#: The number of derived counter values in a block.
_SPOOLED = 1 << 14

#: The largest number of counter values that Perfetto's importer accepts in another event.
_MOST_EXTRA = 8

#: The largest number of windows that wait for a thread.
_WINDOWS_AHEAD = 2

#: The largest number of blocks to read for a window, and to keep in memory for later windows.
_BLOCKS, _BLOCKS_KEPT = 100, 50

NEVER = (1 << 64) - 1

#: The notices of the trace about data that is moved or left out.
_SPILLED = "slices that overlap others of their thread, shown on a separate track"
_DETACHED = "steps of flows outside any slice, not shown"
_UNSOUGHT = "synchronizations not matched with the work they waited for: too many"
_UNLOOKED = "NVTX ranges on streams not matched with the work in them: too many"

_GPU_TABLES = tuple(t.name for t in gpu_tables.TABLES)
_PC_SAMPLES = "pc_samples"
_HOST_TABLES = tuple(dict.fromkeys(t.name for t in host_tables.TABLES if not t.derived))
#: Names of annotations from fields of rows that also have arguments of the source.
_RESERVED = frozenset(name for t in host_tables.TABLES if t.text for name in t.arguments)


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace for ui.perfetto.dev to ``path``; a path that ends with .gz is compressed as a whole.

    Memory does not grow with the capture. Progress is counted in rows. Raises CutraceError for an unknown compression.
    """
    compress = request.compress
    if compress not in (None, "zstd", "deflate"):
        raise CutraceError(f"cannot compress with {compress!r}: choose zstd or deflate")
    if compress and path.suffix == ".gz":
        raise CutraceError("compress the whole file with .gz or its packets with --compress, not both")
    # The C library returns freed blocks to the system, which clears them for the next use. After a larger block is
    # freed once, the library keeps such blocks.
    np.empty(KEPT_FREE, np.uint8)
    with PacketFile(path, wrapper(compress)) as file:
        output = Output(file)
        if request.capture or (request.capture is None and not compress and path.suffix != ".gz"):
            output.carry(trace)
        _write(trace, output, request)
        while output.next_piece():
            pass


def _write(trace: Trace, output: Output, request: Request) -> None:
    blocks, descriptors = Blocks(trace, output.file, request.progress), Descriptors(trace)
    uuids, names = write_header(output, descriptors), KernelNames(trace.strings, output.names)
    with_text, texts = _texts(trace)
    annotations = Annotations(trace.strings, output.names, texts, _RESERVED)
    flows, range_metrics = Flows(trace.blocks("flows")), RangeMetrics(trace)
    stacks = StackArguments(trace.python_stacks) if trace.python_stacks else None
    moved = Counter(dict.fromkeys((_SPILLED, _DETACHED, _UNSOUGHT, _UNLOOKED), 0))
    free_id = 0
    for group in groups([blocks.rows(process) for process in range(len(uuids))]):
        columns: dict[int, HostColumns] = {}
        memory: dict[int, MemoryCounters] = {}
        pending: list[BlockInfo | SpoolBlock] = []
        with Spool() as derived_rows, Spool() as blocks.still_open:
            for process in group:
                submissions = Submissions(free_id, min(blocks.rows(process), NEAR_IDS))
                spool = derived_rows if request.derived else None
                derived = _write_work(process, blocks, output, descriptors, names, submissions, spool)
                waits = derived.waits.of_calls() if derived else None
                if derived:
                    count = sum(info.rows for info in blocks.of(process, "allocations"))
                    memory[process] = MemoryCounters(descriptors, process, (trace.start, trace.end), count)
                    moved.update({_UNSOUGHT: derived.waits.dropped, _UNLOOKED: derived.projection.dropped})
                shared = (annotations, with_text, range_metrics)
                columns[process] = HostColumns(*shared, flows, submissions, waits, stacks)
                pending += _write_samples(process, blocks, output, descriptors)
                free_id = submissions.end
            host = HostWriter(blocks, columns, memory, HostTracks(output, descriptors, uuids), output)
            blocks.read_ahead([block for block in pending if isinstance(block, BlockInfo)], host.prepare)
            host.write(host_tables.TABLES, [*pending, *derived_rows.blocks])
            host.write(host_tables.OPEN_TABLES, blocks.still_open.blocks)
        moved.update({_SPILLED: host.spilled, _DETACHED: host.detached})
    write_kernel_metrics(trace, output, descriptors)
    write_missing(output, trace, blocks.unknown, moved)


def _write_work(
    process: int,
    blocks: Blocks,
    output: Output,
    descriptors: Descriptors,
    names: KernelNames,
    submissions: Submissions,
    derived_rows: Spool | None,
) -> DerivedWork | None:
    """Write the GPU work of a process. With a spool, derive data from it, put projected ranges and counters into the
    spool, and return the rest."""
    queues = Queues(descriptors, process)
    indices = [StyleIndex(table, descriptors, process, output, queues, names) for table in gpu_tables.TABLES]
    events = {index.table.name: GpuEvents(index, output, submissions) for index in indices}
    with output.file.thread(_WINDOWS_AHEAD) as thread:
        counters = WorkCounters(descriptors, process, queues, (blocks.trace.start, blocks.trace.end))
        derived = DerivedWork(blocks, process, queues, counters, derived_rows, thread) if derived_rows else None
        blocks.read_ahead(blocks.of(process, *_GPU_TABLES), lambda info, rows: events[info.table or ""].prepare(rows))
        _write_gpu(process, blocks, output, events, derived)
        thread.wait()
    if derived and derived_rows:
        for rows in counters.rows([descriptors.devices.queue_name(process, *key) for key in queues.keys]):
            for begin in range(0, len(rows), _SPOOLED):
                derived_rows.add(COUNTED, rows[begin : begin + _SPOOLED])
    return derived


def _write_samples(
    process: int, blocks: Blocks, output: Output, descriptors: Descriptors
) -> list[BlockInfo | SpoolBlock]:
    """Write the samples of a process. Returns the blocks of its other host tables."""
    tables = _HOST_TABLES
    blocks.read_ahead(blocks.of(process, _PC_SAMPLES), lambda _, rows: rows)
    if is_sampled(blocks.trace, process):
        samples = SampleWriter(blocks.trace, output, descriptors, process)
        samples.write(map(blocks.read, blocks.of(process, "counters")))
        tables = tuple(name for name in tables if name != "counters")
    pc_samples = PcSampleWriter(blocks.trace, output, descriptors, process)
    pc_samples.write(map(blocks.read, blocks.of(process, _PC_SAMPLES)))
    return list(blocks.of(process, *tables))


def groups(rows: Sequence[int]) -> list[list[int]]:
    """Group processes, given their numbers of rows, to write their host events together. A group has at most one
    process with many rows, because the inputs of its host events stay in memory."""
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
    for name in dict.fromkeys(table.name for table in host_tables.TABLES if table.text and not table.derived):
        for info in trace.block_infos(name):
            for rows in trace.block(info):
                used[rows[TEXT]] = True
                if rows[TEXT].any():
                    tables.add(name)
    if "nvtx_ranges" in tables:
        tables.add(host_tables.PROJECTED.name)
    return frozenset(tables), np.flatnonzero(used).tolist()


class Blocks:
    """The blocks of the tables that become events. Reports progress, counts the rows without known times by table
    (``unknown``), and puts slices that never ended into the spool ``still_open``."""

    def __init__(self, trace: Trace, file: PacketFile, progress: Progress | None) -> None:
        self.trace, self.file, self._progress = trace, file, progress
        self.unknown = dict.fromkeys(TABLES, 0)
        infos = [info for name in (*_GPU_TABLES, *_HOST_TABLES, _PC_SAMPLES) for info in trace.block_infos(name)]
        self._total, self._done = sum(info.rows for info in infos), 0
        self._block: Callable[[BlockInfo], tuple[Any, np.ndarray]] = trace.block
        self._read: set[int] = set()  # offsets of blocks
        self.still_open: Spool  # set for each group of processes
        self._blocks: dict[tuple[str, int], list[BlockInfo]] = {}
        for info in sorted(infos, key=lambda info: info.first_time):
            self._blocks.setdefault((info.table or "", info.process), []).append(info)

    def of(self, process: int, *tables: str) -> list[BlockInfo]:
        """The blocks of some tables of a process, table by table, in rising time."""
        return [info for table in tables for info in self._blocks.get((table, process), [])]

    def rows(self, process: int) -> int:
        """The number of rows of a process that become events."""
        return sum(info.rows for info in self.of(process, *_GPU_TABLES, *_HOST_TABLES))

    def ahead(self, infos: Iterable[BlockInfo]) -> ReadBlock:
        """A function that returns the rows of blocks; the threads of the file read these ahead in rising time."""
        return self.file.read_ahead(self.trace.block, sorted(infos, key=lambda info: info.first_time))

    def read_ahead(self, infos: Iterable[BlockInfo], prepare: Callable[[BlockInfo, np.ndarray], Any]) -> None:
        """Read blocks ahead for :meth:`read`, which then returns what ``prepare`` makes of their rows, in any
        thread."""

        def block(info: BlockInfo) -> tuple[Any, np.ndarray]:
            rows, unknown = self.trace.block(info)
            return prepare(info, rows), unknown

        self._block = self.file.read_ahead(block, sorted(infos, key=lambda info: info.first_time))

    def read(self, info: BlockInfo) -> Any:  # what `prepare` returns
        """The rows of a block with known times, prepared. Counts the block at the first call."""
        rows, unknown = self._block(info)
        if info.offset in self._read:
            return rows
        self._read.add(info.offset)
        table = info.table or ""
        still_open = unknown[never_ended(table, unknown)]
        self.still_open.add(TABLES[table], still_open)
        self.unknown[table] += len(unknown) - len(still_open)
        self._done += info.rows
        if self._progress:
            self._progress(self._done, self._total)
        return rows


class DerivedWork:
    """The data derived from the GPU work of one process. Projected ranges are put into a spool.

    Events of GPU work need only the waits. ``thread`` derives the rest at the same time, so the rest is complete when
    that thread is done.
    """

    def __init__(
        self,
        blocks: Blocks,
        process: int,
        queues: KeyIndex,
        counters: WorkCounters,
        projected: Spool,
        thread: OrderedThread,
    ) -> None:
        trace, self._counters, self._thread = blocks.trace, counters, thread
        read = blocks.ahead(blocks.of(process, "api_calls", "nvtx_ranges"))
        self.launches = LaunchIndex(read, blocks.of(process, "api_calls"))
        self.projection = Projection(read, blocks.of(process, "nvtx_ranges"), self.launches, queues, projected)
        self._replays = Replays(trace.origins, process, queues, projected) if trace.origins else None
        self._waits = blocks.file.submit(Waits, trace, process, queues)

    @property
    def waits(self) -> Waits:
        return self._waits.result()

    def window(self, until: int, calls: Sequence[BlockInfo], parts: Sequence[GpuPart]) -> list[Lists | None]:
        """Add the work of a window, and blocks of ``calls`` that may have launched it. Returns the event ids that the
        rows of each part waited for, None for a part without waits."""
        queues = [part.queues for part in parts]
        self._thread.run(self._derive, until, calls, parts, queues)
        return self.waits.window(parts, queues)

    def _derive(
        self, until: int, calls: Sequence[BlockInfo], parts: Sequence[GpuPart], queues: Sequence[np.ndarray]
    ) -> None:
        for info in calls:
            self.launches.read(info)
        self.projection.advance(until)
        for part, queue in zip(parts, queues, strict=True):
            self._counters.add(part)
            if self.launches.known:
                rows, wanted = part.rows, self.projection.active
                columns = rows["correlation"], rows["start"], rows["end"], queue
                self.launches.calls.launch(*columns, *self._counters.depth, wanted)
        self.projection.settle(until)
        if self._replays:
            self._replays.add(parts, queues)
            if until == NEVER:
                self._replays.finish()


def _write_gpu(
    process: int, blocks: Blocks, output: Output, events: Mapping[str, GpuEvents], derived: DerivedWork | None
) -> None:
    """Write the GPU work of a process. The last window, and a window with too many bytes of rows in memory, take whole
    blocks. So does each window if nothing is derived."""
    live: list[GpuBlock] = []
    size, kept = 0, 0
    ordered = sorted(blocks.of(process, *_GPU_TABLES), key=lambda info: info.first_time)
    for number, info in enumerate(ordered, 1):
        prepared: GpuRows = blocks.read(info)
        if len(prepared.rows):
            live.append(events[info.table or ""].block(prepared))
        size += info.payload_size
        kept += info.payload_size
        if size < GPU_WINDOW and number < len(ordered):
            continue
        until = ordered[number].first_time if number < len(ordered) and kept < GPU_KEPT else NEVER
        for moment, calls in derived.launches.steps(until) if derived else [(NEVER, [])]:
            parts = [block.before(moment) for block in live if block.written < len(block.rows)]
            parts = [part for part in parts if len(part)]
            waits: Sequence[Lists | None] = derived.window(moment, calls, parts) if derived else [None] * len(parts)
            for part, waited in zip(parts, waits, strict=True):
                events[part.block.index.table.name].write(part, waited)
            del parts  # to release their blocks
        output.next_piece()
        live = [block for block in live if block.written < len(block.rows)]
        size, kept = 0, sum(block.rows.nbytes for block in live)


@dataclass(frozen=True)
class HostColumns:
    """The columns of the host tables. ``with_text`` names the tables whose rows have arguments in JSON. ``waits`` is
    None if no data is derived, ``stacks`` if no call has a stack."""

    annotations: Annotations
    with_text: frozenset[str]
    range_metrics: RangeMetrics
    flows: Flows
    submissions: Submissions
    waits: CallWaits | None
    stacks: StackArguments | None

    def has_text(self, table: HostTable) -> bool:
        """Whether rows of a table have arguments in JSON."""
        return table.text and table.name in self.with_text

    def shared(self, table: HostTable) -> list[SharedArguments]:
        """The sources of the arguments that rows of a table share."""
        sources: list[SharedArguments] = []
        if self.has_text(table):
            sources.append(self.annotations)
        if table.submits and self.stacks:
            sources.append(self.stacks)
        if table.counted and self.range_metrics:
            sources.append(self.range_metrics)
        return sources

    def submitted(self, table: HostTable, rows: np.ndarray) -> Lists | None:
        """The ids of the work that calls launched. Callers must ask in the order of the rows, because not all ids are
        kept."""
        return self.submissions.lists(rows["correlation"]) if table.submits else None

    def of(self, table: HostTable, rows: np.ndarray, submitted: Lists | None) -> Columns:
        """The columns of rows for the template of their table; thread-safe."""
        columns: Columns = {name: rows[name] for name in table.arguments}
        if table.payload and rows["payload_type"].any():
            columns |= payload_columns(rows)
        if table.value:
            columns["value"] = counter_values(table.value(rows))[1]
        if self.has_text(table):
            columns |= self.annotations.columns(rows[TEXT])
        if table.kind == "flow":
            columns |= self.flows.columns(rows)
        if not submitted:
            return columns
        offsets, columns["submissions"] = submitted
        columns |= {"submission_offsets": offsets, "correlated": np.diff(offsets)}
        waited = self.waits.lists(rows["correlation"]) if self.waits else None
        if waited:
            columns["wait_offsets"], columns["waits"] = waited
            columns["correlated"] = np.diff(offsets) | np.diff(waited[0])
        return columns


@dataclass(order=True)
class _Block:
    """A block. Rows that begin before ``written`` are written; the others begin at ``time`` or later. A block in memory
    has one chunk for each :class:`HostTable` that selects rows of it, and the begins of all rows, up to ``last``."""

    time: int
    source: BlockInfo | SpoolBlock = field(compare=False)
    written: int = field(compare=False, default=0)
    chunks: list[HostChunk] = field(compare=False, default_factory=list)
    order: int = field(default_factory=count().__next__)
    starts: np.ndarray = field(compare=False, default_factory=lambda: np.zeros(0, np.uint64))
    last: int = field(compare=False, default=0)

    def find_next(self) -> int:
        """Set ``time`` to the first begin of the rows that are not written."""
        self.time = int(self.starts[self.starts >= np.uint64(self.written)].min())
        return self.time


class _Slices(NamedTuple):
    """The rows of a chunk that begin in a window, at ``begin`` or later. ``tracks`` are by combination."""

    chunk: HostChunk
    begin: int
    tracks: np.ndarray


class HostWriter:
    """Writes the host events of some processes. By process, ``columns`` computes their columns, and ``memory`` gets the
    allocations and returns the values of counters.

    The slices of a thread come from several tables, in any order, and are written as begin and end events that nest. A
    pass goes over the processes in windows of time. It reads the blocks of the window, lays out the rows that begin in
    it (:class:`cutrace._native.Lanes`), and writes the events of all tracks in rising time. When too many blocks are in
    memory, the ones with the latest times are dropped and read again later.

    The caller's thread reads rows and numbers their combinations, in order. Other threads compute columns. One thread
    lays out the slices, and one writes the windows.

    ``spilled`` counts the slices of threads that did not nest. ``detached`` counts the steps of flows outside any
    slice, which are not written.
    """

    def __init__(
        self,
        blocks: Blocks,
        columns: Mapping[int, HostColumns],
        memory: Mapping[int, MemoryCounters],
        tracks: HostTracks,
        output: Output,
    ) -> None:
        self._blocks, self._columns, self._memory, self._tracks, self._output = blocks, columns, memory, tracks, output
        self._lanes = Lanes()
        self._events: dict[tuple[int, str], list[HostEvents]] = {}
        self.spilled, self.detached = 0, 0

    def write(self, tables: Iterable[HostTable], sources: Iterable[BlockInfo | SpoolBlock]) -> None:
        """Write the events of some blocks, as ``tables`` describe them."""
        pending = [_Block(source.first_time, source) for source in sources]
        while pending:
            # Each pass needs new tracks, because an earlier pass used its tracks up to the end of the capture.
            self._lanes, self._events = Lanes(), {}
            self._tracks.clear()
            for process, columns in self._columns.items():
                for table in tables:
                    trace, text, shared = self._blocks.trace, columns.has_text(table), columns.shared(table)
                    events = HostEvents(table, process, trace, self._output.names, text, shared)
                    self._events.setdefault((process, table.name), []).append(events)
            file = self._output.file
            with file.thread(_WINDOWS_AHEAD) as writing, file.thread(_WINDOWS_AHEAD) as layout:
                pending = self._pass(pending, layout, writing)
                layout.wait()
                writing.wait()
            threads = [track.kind == THREAD for track in self._tracks.tracks]
            self.spilled += int(self._lanes.spilled()[: len(threads)][threads].sum())
            self.detached += self._lanes.outside

    def _pass(self, pending: list[_Block], layout: OrderedThread, writing: OrderedThread) -> list[_Block]:
        """One pass in rising time. Returns the blocks with rows earlier than their header says, for another pass."""
        late: list[_Block] = []
        live: list[_Block] = []
        heapq.heapify(pending)
        begin = 0
        while begin < NEVER:
            size, first = 0, pending[0].time if pending else NEVER
            while pending and len(live) < _BLOCKS and (size < HOST_WINDOW or pending[0].time <= first):
                block = heapq.heappop(pending)
                size += block.source.payload_size
                block.chunks = self._load(block, begin, late)
                if block.chunks:
                    live.append(block)
            until = pending[0].time if pending else NEVER
            if until <= begin and live:
                until = begin + 1  # many blocks begin at one time, which is written in parts
            chunks = [(chunk, block.written) for block in live for chunk in block.chunks]
            for process, memory in self._memory.items():
                if len(rows := memory.rows(until)):
                    parts = self._select(process, COUNTED.name, rows)
                    chunks += [(chunk, begin) for chunk in self._chunks(process, parts)]
            slices = [_Slices(chunk, written, self._tracks.of(chunk.events)) for chunk, written in chunks]
            layout.run(self._close_window, slices, until, self._tracks.news(), writing)
            for block in live:
                block.written = until
            live = [block for block in live if block.last >= until]
            if _too_many(live):
                live.sort(key=_Block.find_next)
            while _too_many(live):
                dropped = live.pop()
                dropped.chunks, dropped.starts = [], dropped.starts[:0].copy()
                heapq.heappush(pending, dropped)
            begin = until
        return late

    def _load(self, block: _Block, begin: int, late: list[_Block]) -> list[HostChunk]:
        source = block.source
        parts = self.prepare(source, source.read()) if isinstance(source, SpoolBlock) else self._blocks.read(source)
        if not parts:
            return []
        if source.table == "allocations" and source.process in self._memory and not block.written:
            for part in parts:
                assert part.kinds is not None
                assert part.first is not None
                self._memory[source.process].add(part.rows, part.kinds, part.first)
        block.starts = np.concatenate([part.starts for part in parts])
        block.last = int(block.starts.max())
        if not block.written and begin:
            first = int(block.starts.min())
            if first < begin:
                late.append(_Block(first, source, written=1))  # no row begins earlier
                return []
        return self._chunks(source.process, parts)

    def _chunks(self, process: int, parts: Iterable[HostRows]) -> list[HostChunk]:
        chunks, columns = [], self._columns[process]
        for part in parts:
            table, rows = part.events.table, part.rows
            submitted = columns.submitted(table, rows)
            chunks.append(part.events.chunk(part, self._output.file.submit(columns.of, table, rows, submitted)))
        return chunks

    def prepare(self, source: BlockInfo | SpoolBlock, rows: np.ndarray) -> list[HostRows]:
        """The rows of a block for each :class:`HostTable` that selects some; thread-safe."""
        return self._select(source.process, source.table or "", rows)

    def _select(self, process: int, table: str, rows: np.ndarray) -> list[HostRows]:
        parts = [events.select(rows) for events in self._events[process, table]]
        return [part for part in parts if len(part.rows)]

    def _close_window(
        self, slices: Sequence[_Slices], until: int, news: Iterable[TrackNews], writing: OrderedThread
    ) -> None:
        """Lay out the rows that begin before ``until``. Chunks have the number of their slices."""
        for number, (chunk, begin, tracks) in enumerate(slices):
            inside = needs_slice(chunk.rows) if chunk.events.table.kind == "flow" else None
            self._lanes.add(number, chunk.combinations, chunk.starts, chunk.end, begin, until, tracks, inside)
        self._lanes.close(until)
        writing.run(self._write_window, [chunk for chunk, *_ in slices], news)

    def _write_window(self, chunks: Sequence[HostChunk], news: Iterable[TrackNews]) -> None:
        """Write the events of the oldest closed window. Integer values of counters are in the packet of the first event
        at their time."""
        self._tracks.add(news)
        joins = bytes(chunk.events.table.kind == "counter" and chunk.whole for chunk in chunks)
        uuids = self._tracks.prepare(*self._lanes.groups())
        (which, rows, times, tracks), (extra, extra_rows, offsets, extra_tracks) = self._lanes.take(
            joins, _MOST_EXTRA, uuids
        )
        if not len(times):
            return
        by_event: Columns = {"time": times, "track": tracks, "bare_prefixes": self._output.bare_prefixes}
        streams = _streams(chunks, by_event)
        if len(extra):
            extra_tracks[extra_tracks == 0] = self._tracks.default
            by_event |= {"extra_tracks": extra_tracks, "extra_values": _values(chunks, extra, extra_rows)}
            streams += _streams(chunks, by_event | {"extra_offsets": offsets})
        edges = np.array([0, len(times)], np.uint32)
        self._output.events(streams, [self._tracks.sequence], edges, times, which=which, rows=rows)
        self._output.next_piece()


def _streams(chunks: Sequence[HostChunk], by_event: Columns) -> list[tuple[Program, list[np.ndarray | Blobs]]]:
    """The programs of the events of chunks, and of the ends of slices."""
    ends = end_template("extra_offsets" in by_event).bind(by_event)
    return [*(chunk.bind(by_event) for chunk in chunks), ends]


def _too_many(live: Sequence[_Block]) -> bool:
    """Whether some blocks must leave the memory."""
    return sum(block.source.payload_size for block in live) > HOST_KEPT or len(live) > _BLOCKS_KEPT


def _values(chunks: Sequence[HostChunk], numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The counter values of events, given their chunks and rows."""
    values = np.zeros(len(rows), np.int64)
    for number in distinct(numbers).tolist():
        mine = numbers == number
        values[mine] = np.asarray(chunks[number].columns.result()["value"])[rows[mine]]
    return values
