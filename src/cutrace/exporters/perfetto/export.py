"""A whole capture as a Perfetto trace, one process after the other: first its GPU work, then the host.

Both are written in windows of time. A window has, of all tables, what begins before a moment. So what follows from
several tables is known when an event is written, and memory is bounded by the window and not by the capture. Per
window: read rows, index their styles, derive columns, encode.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._native import Lanes, Submissions
from ...errors import CutraceError
from ...runbin import BlockInfo
from ...runbin.layout import TABLES
from ...trace import Trace
from ...trace.rows import never_ended, time_order
from ..base import Progress, Request
from ..rows import payload_columns
from . import gpu_events, host_tables
from .annotations import TEXT, Annotations
from .derived.counters import CounterValues, MemoryCounters, WorkCounters
from .derived.launches import LaunchIndex, ReadBlock
from .derived.projection import Projection
from .derived.waits import CallWaits, Waits
from .descriptors import DERIVED, Descriptors, counter, write_header, write_missing
from .flows import Flows, needs_slice
from .gpu_events import QUEUE_FIELDS, GpuBlock, GpuEvents, GpuPart, KeyIndex, Lists, StyleIndex
from .host_tables import (
    COUNTED,
    THREAD,
    HostChunk,
    HostEvents,
    HostTable,
    HostTracks,
    Spool,
    SpoolBlock,
    Track,
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

#: Bytes of freed blocks that may stay with the process.
KEPT_FREE = 16 << 20

#: Ids of GPU work that are kept for the first correlations of a process: up to here, an id takes three bytes.
NEAR_IDS = 1 << 21

#: Bytes of rows that are read for a window, and that may stay in memory for later ones.
GPU_WINDOW, GPU_KEPT = 1 << 20, 32 << 20
HOST_WINDOW, HOST_KEPT = 3 << 20, 16 << 20

#: The host events of processes with few rows are written with those of others, of so many processes at most.
_FEW_ROWS, _MOST_PROCESSES = 1 << 16, 8

#: Values of derived counters in a block.
_SPOOLED = 1 << 14

#: Perfetto's importer accepts so many values of counters with another event.
_MOST_EXTRA = 8

#: Windows that may wait for a thread, each with its rows.
_WINDOWS_AHEAD = 2

#: Chunks in one window at most: the native side numbers them with one byte.
_CHUNKS = 200

NEVER = (1 << 64) - 1

#: What is moved or left out, for the notices of the trace.
_SPILLED = "slices that overlap others of their thread, shown on a track of their own"
_DETACHED = "steps of arrows that lie in no slice, not shown"
_UNSOUGHT = "synchronizations, too many to look for what they waited for"
_UNLOOKED = "NVTX ranges on streams, too many to look for the work in them"

_GPU_TABLES = tuple(t.name for t in gpu_events.TABLES)
_PC_SAMPLES = "pc_samples"
_HOST_TABLES = tuple(dict.fromkeys(t.name for t in host_tables.TABLES if not t.derived))
#: Names of annotations that stand beside arguments of the source.
_RESERVED = frozenset(name for t in host_tables.TABLES if t.text for name in t.arguments)


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace for ui.perfetto.dev to ``path``; a path that ends with .gz is compressed as a whole.

    Memory does not grow with the capture; progress is counted in rows.
    """
    compress = request.compress
    if compress not in (None, "zstd", "deflate"):
        raise CutraceError(f"cannot compress with {compress!r}: choose zstd or deflate")
    if compress and path.suffix == ".gz":
        raise CutraceError("compress the whole file with .gz or its packets with --compress, not both")
    # The C library gives the memory of freed blocks back to the system, which has to clear it for the next ones. Having
    # freed something larger once, it keeps them.
    np.empty(KEPT_FREE, np.uint8)
    with PacketFile(path, wrapper(compress)) as file:
        output = Output(file)
        if request.capture or (request.capture is None and not compress and path.suffix != ".gz"):
            output.capture(trace)  # in front of all else, where it is found at once
        _write(trace, output, request)


def _write(trace: Trace, output: Output, request: Request) -> None:
    blocks, descriptors = Blocks(trace, output.file, request.progress), Descriptors(trace)
    uuids = write_header(output, descriptors)
    annotations = Annotations(trace.strings, output.names, _texts(trace), _RESERVED)
    flows, range_metrics = Flows(trace.blocks("flows")), RangeMetrics(trace)
    moved = Counter(dict.fromkeys((_SPILLED, _DETACHED, _UNSOUGHT, _UNLOOKED), 0))
    free_id = 0
    for group in groups([blocks.rows(process) for process in range(len(uuids))]):
        columns: dict[int, HostColumns] = {}
        pending: list[BlockInfo | SpoolBlock] = []
        with Spool() as derived_rows, Spool() as blocks.still_open:
            for process in group:
                submissions = Submissions(free_id, min(blocks.rows(process), NEAR_IDS))
                spool = derived_rows if request.derived else None
                derived = _write_work(process, blocks, output, descriptors, submissions, spool)
                waits = derived.waits.of_calls() if derived else None
                if derived:
                    moved.update({_UNSOUGHT: derived.waits.dropped, _UNLOOKED: derived.projection.dropped})
                columns[process] = HostColumns(annotations, range_metrics, flows, submissions, waits)
                pending += _write_samples(process, blocks, output, descriptors)
                free_id = submissions.end
            blocks.read_ahead([block for block in pending if isinstance(block, BlockInfo)])
            host = HostWriter(blocks, columns, HostTracks(output, descriptors, uuids), output)
            pending += derived_rows.blocks
            host.write(host_tables.TABLES, [_Block(block.first_time, block) for block in pending])
            host.write(host_tables.OPEN_TABLES, [_Block(block.first_time, block) for block in blocks.still_open.blocks])
        moved.update({_SPILLED: host.spilled, _DETACHED: host.detached})
    write_kernel_metrics(trace, output, descriptors)
    write_missing(output, trace, blocks.unknown, moved)


def _write_work(
    process: int,
    blocks: Blocks,
    output: Output,
    descriptors: Descriptors,
    submissions: Submissions,
    derived_rows: Spool | None,
) -> DerivedWork | None:
    """Write the GPU work of a process. With a spool, return what follows from it; projected ranges and counters are in
    the spool."""
    queues = KeyIndex(*QUEUE_FIELDS)
    indices = [StyleIndex(table, descriptors, process, output, queues) for table in gpu_events.TABLES]
    events = {index.table.name: GpuEvents(index, output, submissions) for index in indices}
    with output.file.thread(_WINDOWS_AHEAD) as beside:
        derived = DerivedWork(blocks, process, queues, derived_rows, beside) if derived_rows else None
        blocks.read_ahead(blocks.of(process, *_GPU_TABLES), sort=True)
        _write_gpu(process, blocks, events, derived)
        beside.wait()
    if derived and derived_rows:
        values = derived.values([descriptors.devices.queue_name(process, *key) for key in queues.keys])
        _spool_counters(values, derived_rows, descriptors, process)
    return derived


def _write_samples(
    process: int, blocks: Blocks, output: Output, descriptors: Descriptors
) -> list[BlockInfo | SpoolBlock]:
    """Write the samples of a process. Returns the blocks of its other host tables."""
    tables = _HOST_TABLES
    blocks.read_ahead(blocks.of(process, _PC_SAMPLES))
    if is_sampled(blocks.trace, process):
        samples = SampleWriter(blocks.trace, output, descriptors, process)
        samples.write(map(blocks.read, blocks.of(process, "counters")))
        tables = tuple(name for name in tables if name != "counters")
    pc_samples = PcSampleWriter(blocks.trace, output, descriptors, process)
    pc_samples.write(map(blocks.read, blocks.of(process, _PC_SAMPLES)))
    return list(blocks.of(process, *tables))


def groups(rows: Sequence[int]) -> list[list[int]]:
    """The processes whose host events are written together, by their numbers of rows: at most one has many rows, since
    what its host events follow from stays in memory."""
    groups: list[list[int]] = []
    large = 0
    for process, size in enumerate(rows):
        large += size > _FEW_ROWS
        if not groups or large > 1 or len(groups[-1]) == _MOST_PROCESSES:
            groups.append([])
            large = int(size > _FEW_ROWS)
        groups[-1].append(process)
    return groups


def _texts(trace: Trace) -> Iterator[int]:
    """The ids of texts with arguments."""
    used = np.zeros(len(trace.strings), bool)
    for name in dict.fromkeys(table.name for table in host_tables.TABLES if table.text):
        for info in trace.block_infos(name):
            for rows in trace.block(info):
                used[rows[TEXT]] = True
    return iter(np.flatnonzero(used).tolist())


class Blocks:
    """The blocks of the tables that become events. Counts what is read, for progress and for the rows without known
    times (``unknown``, by table). Slices that never ended are put into the spool ``still_open``."""

    def __init__(self, trace: Trace, file: PacketFile, progress: Progress | None) -> None:
        self.trace, self._file, self._progress = trace, file, progress
        self.unknown = dict.fromkeys(TABLES, 0)
        infos = [info for name in (*_GPU_TABLES, *_HOST_TABLES, _PC_SAMPLES) for info in trace.block_infos(name)]
        self._total, self._done = sum(info.rows for info in infos), 0
        self._block: ReadBlock = trace.block
        self._read: set[int] = set()  # offsets of blocks
        self.still_open: Spool  # set for each group of processes
        self._blocks: dict[tuple[str, int], list[BlockInfo]] = {}
        for info in sorted(infos, key=lambda info: info.first_time):
            self._blocks.setdefault((info.table or "", info.process), []).append(info)

    def of(self, process: int, *tables: str) -> list[BlockInfo]:
        """The blocks of some tables of a process, those of each table in rising time."""
        return [info for table in tables for info in self._blocks.get((table, process), [])]

    def rows(self, process: int) -> int:
        """How many rows of a process become events."""
        return sum(info.rows for info in self.of(process, *_GPU_TABLES, *_HOST_TABLES))

    def ahead(self, infos: Iterable[BlockInfo], *, sort: bool = False) -> ReadBlock:
        """Let the threads of the file read some blocks, in rising time, before the function that is returned is called.
        With ``sort`` it gives rows in the order of their begin."""
        ordered = sorted(infos, key=lambda info: info.first_time)
        return self._file.read_ahead(self._sorted if sort else self.trace.block, ordered)

    def read_ahead(self, infos: Iterable[BlockInfo], *, sort: bool = False) -> None:
        """Let :meth:`read` take some blocks from :meth:`ahead`."""
        self._block = self.ahead(infos, sort=sort)

    def _sorted(self, info: BlockInfo) -> tuple[np.ndarray, np.ndarray]:
        rows, unknown = self.trace.block(info)
        order = time_order(rows["start"])
        if order is not None:
            # As plain bytes: whole rows, not field by field.
            rows = rows.view(f"V{rows.itemsize}").take(order).view(rows.dtype)
        return rows, unknown

    def read(self, info: BlockInfo) -> np.ndarray:
        """The rows of a block with known times, to be written. Counts the block when it is read first."""
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
    """What follows from the GPU work of one process. Projected ranges are put into a spool.

    Only what work waited for is part of its events. The rest is derived in a thread ``beside`` that which writes them:
    it is there when that thread is done.
    """

    def __init__(self, blocks: Blocks, process: int, queues: KeyIndex, projected: Spool, beside: OrderedThread) -> None:
        trace = blocks.trace
        span, self._beside = (trace.start, trace.end), beside
        read = blocks.ahead(blocks.of(process, "api_calls", "nvtx_ranges"))
        self.launches = LaunchIndex(read, blocks.of(process, "api_calls"))
        self.projection = Projection(read, blocks.of(process, "nvtx_ranges"), self.launches, queues, projected)
        self.waits = Waits(trace, process, queues)
        self.counters, self._memory = WorkCounters(queues, span), MemoryCounters(span)
        for info in blocks.of(process, "allocations"):
            beside.run(self._add_allocations, trace, info)

    def window(self, until: int, calls: Sequence[BlockInfo], parts: Sequence[GpuPart]) -> list[Lists | None]:
        """Add the work of a window, and ``calls`` that may have launched it. Returns what the rows of each part waited
        for, None where that is nothing."""
        queues = [part.queues for part in parts]
        self._beside.run(self._derive, until, calls, parts, queues)
        return self.waits.window(parts, queues)

    def values(self, queue_names: Sequence[str]) -> list[CounterValues]:
        """All counters, when the thread is done; ``queue_names`` has the names of the streams."""
        return [*self.counters.values(queue_names), *self._memory.values()]

    def _add_allocations(self, trace: Trace, info: BlockInfo) -> None:
        self._memory.add(trace.block(info)[0])

    def _derive(
        self, until: int, calls: Sequence[BlockInfo], parts: Sequence[GpuPart], queues: Sequence[np.ndarray]
    ) -> None:
        for info in calls:
            self.launches.read(info)
        self.projection.advance(until)
        for part, queue in zip(parts, queues, strict=True):
            self.counters.add(part)
            if self.launches.known:
                rows, wanted = part.rows, self.projection.active
                columns = rows["correlation"], rows["start"], rows["end"], queue
                self.launches.calls.launch(*columns, *self.counters.depth, wanted)
        self.projection.settle(until)


def _spool_counters(found: Sequence[CounterValues], spool: Spool, descriptors: Descriptors, process: int) -> None:
    """Put the values of derived counters into a spool, in rising time."""
    rows = np.zeros(sum(len(one.times) for one in found), COUNTED.dtype)
    rows["process"] = process
    begin = 0
    for number, one in enumerate(found):
        described = {"name": one.name, "description": one.description, "counter": counter(one.unit, DERIVED)}
        descriptors.counters[process, number] = described
        part = rows[begin : begin + len(one.times)]
        part["time"], part["value"], part["counter"] = one.times, one.values, number
        begin += len(part)
    rows = rows[np.argsort(rows["time"], kind="stable")]
    for begin in range(0, len(rows), _SPOOLED):
        spool.add(COUNTED, rows[begin : begin + _SPOOLED])


def _write_gpu(process: int, blocks: Blocks, events: Mapping[str, GpuEvents], derived: DerivedWork | None) -> None:
    """Write the GPU work of a process. Blocks that reach too far ahead, and all blocks where nothing is derived, are
    taken whole, in the window in which they are read."""
    live: list[GpuBlock] = []
    size, kept = 0, 0
    ordered = sorted(blocks.of(process, *_GPU_TABLES), key=lambda info: info.first_time)
    for number, info in enumerate(ordered, 1):
        rows = blocks.read(info)
        if len(rows):
            live.append(events[info.table or ""].block(rows))
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
            del parts  # they hold their blocks
        live = [block for block in live if block.written < len(block.rows)]
        size, kept = 0, sum(block.rows.nbytes for block in live)


@dataclass(frozen=True)
class HostColumns:
    """The columns of host tables. Without ``waits``, calls waited for nothing."""

    annotations: Annotations
    range_metrics: RangeMetrics
    flows: Flows
    submissions: Submissions
    waits: CallWaits | None

    def shared(self, table: HostTable) -> Annotations | RangeMetrics | None:
        """What tells the arguments that rows of a table share, by the column ``shared``."""
        if table.text:
            return self.annotations
        return self.range_metrics if table.counted and self.range_metrics else None

    def submitted(self, table: HostTable, rows: np.ndarray) -> Lists | None:
        """The work that calls launched. It is asked for in the order of the rows: not all is told."""
        return self.submissions.lists(rows["correlation"]) if table.submits else None

    def of(self, table: HostTable, rows: np.ndarray, submitted: Lists | None) -> Columns:
        """The columns of rows for the template of their table. Several threads call this."""
        columns: Columns = {name: rows[name] for name in table.arguments}
        if table.payload and rows["payload_type"].any():
            columns |= payload_columns(rows)
        if table.value:
            columns["value"] = counter_values(table.value(rows))[1]
        if table.text:
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
    """A block. Its rows that begin before ``written`` were written, the others begin at ``time`` or later. In memory it
    is one chunk for each description that takes rows of it."""

    time: int
    source: BlockInfo | SpoolBlock = field(compare=False)
    written: int = field(compare=False, default=0)
    chunks: list[HostChunk] = field(compare=False, default_factory=list)
    order: int = field(default_factory=count().__next__)


class _Laid(NamedTuple):
    """Events as :class:`cutrace._native.Lanes` lays them out: the tracks, each with the events ``offsets[i]`` to
    ``offsets[i + 1]``; by event its chunk (or ``Lanes.END``), row, time and lane."""

    tracks: list[Track]
    offsets: np.ndarray
    which: np.ndarray
    rows: np.ndarray
    times: np.ndarray
    lanes: np.ndarray

    def only(self, kept: np.ndarray) -> _Laid:
        """The events of a mask, and the tracks that have any."""
        offsets = np.append(0, np.cumsum(kept))[self.offsets]
        some = np.diff(offsets) > 0
        tracks = [track for track, has in zip(self.tracks, some.tolist(), strict=True) if has]
        offsets = np.append(offsets[:-1][some], offsets[-1]).astype(np.uint32)
        return _Laid(tracks, offsets, self.which[kept], self.rows[kept], self.times[kept], self.lanes[kept])


class HostWriter:
    """Writes the host's events of some processes. ``columns`` has what makes their columns, by process.

    Slices of a thread come from several tables, lie in blocks in any order, and have to be written as begin and end
    events that nest. A pass goes over the process in windows of time. It reads the blocks that reach into the window,
    lets :class:`cutrace._native.Lanes` lay out what begins there, and writes the events of all tracks in the order of
    time. Blocks that reach far ahead are dropped when there are too many of them, and read again when their time comes.

    The caller's thread reads rows and numbers what they have in common, in order. Other threads make their columns, and
    one more writes window after window.

    ``spilled`` counts the slices of threads that did not nest, ``detached`` the steps of arrows that lie in no slice
    and are not written.
    """

    def __init__(self, blocks: Blocks, columns: Mapping[int, HostColumns], tracks: HostTracks, output: Output) -> None:
        self._blocks, self._columns, self._tracks, self._output = blocks, columns, tracks, output
        self._lanes = Lanes()
        self._events: dict[tuple[int, str], list[HostEvents]] = {}
        self.spilled, self.detached = 0, 0

    def write(self, tables: Iterable[HostTable], pending: list[_Block]) -> None:
        has_steps = any(block.source.table == "flows" for block in pending)
        while pending:
            # Each pass has tracks of its own: those of an earlier pass are in use up to the end of the capture.
            self._lanes, self._events = Lanes(), {}
            self._tracks.clear()
            for process, columns in self._columns.items():
                for table in tables:
                    events = HostEvents(table, process, self._blocks.trace, self._output.names, columns.shared(table))
                    self._events.setdefault((process, table.name), []).append(events)
            with self._output.file.thread(_WINDOWS_AHEAD) as writing:
                pending = self._pass(pending, has_steps, writing)
                writing.wait()
            threads = [track.kind == THREAD for track in self._tracks.tracks]
            self.spilled += int(self._lanes.spilled()[: len(threads)][threads].sum())

    def _pass(self, pending: list[_Block], has_steps: bool, writing: OrderedThread) -> list[_Block]:
        """One pass in rising time. Returns blocks that hold earlier rows than their header says: a capture that lies
        about its times costs another pass, not a wrong trace."""
        late: list[_Block] = []
        live: list[_Block] = []
        heapq.heapify(pending)
        begin = 0
        while pending or live:
            size, first = 0, pending[0].time if pending else NEVER
            while pending and len(live) < _CHUNKS // 2 and (size < HOST_WINDOW or pending[0].time <= first):
                block = heapq.heappop(pending)
                size += block.source.payload_size
                block.chunks = self._load(block, begin, late)
                if block.chunks:
                    live.append(block)
            until = pending[0].time if pending else NEVER
            if until <= begin and live:
                until = begin + 1  # many blocks begin at one moment: it is written in parts
            chunks = self._close_window(live, until)
            writing.run(self._write_window, chunks, self._tracks.news(), has_steps)
            live = [block for block in live if block.time != NEVER]
            live.sort(key=lambda block: block.time)
            while sum(block.source.payload_size for block in live) > HOST_KEPT or len(live) > _CHUNKS // 4:
                dropped = live.pop()
                dropped.chunks.clear()
                heapq.heappush(pending, dropped)
            begin = until
        return late

    def _load(self, block: _Block, begin: int, late: list[_Block]) -> list[HostChunk]:
        source = block.source
        tables, makes = self._events[source.process, source.table or ""], self._columns[source.process]
        rows = source.read() if isinstance(source, SpoolBlock) else self._blocks.read(source)
        if not len(rows):
            return []
        if not block.written and begin:
            first = int(rows[tables[0].table.layout.start_field].min())
            if first < begin:
                late.append(_Block(first, source))
                return []
        chunks: list[HostChunk] = []
        for events in tables:
            chosen = events.table.select(rows) if events.table.select else None
            part = rows if chosen is None or chosen.all() else rows[chosen]
            if len(part):
                submitted = makes.submitted(events.table, part)
                columns = self._output.file.submit(makes.of, events.table, part, submitted)
                chunks.append(events.chunk(part, columns))
        return chunks

    def _close_window(self, live: list[_Block], until: int) -> list[HostChunk]:
        """Let what begins before a moment be laid out. Returns the chunks, by the number that each has there."""
        chunks: list[HostChunk] = []
        for block in live:
            block.time = NEVER
            for chunk in block.chunks:
                track_of = self._tracks.of(chunk.events)
                after = self._lanes.add(
                    len(chunks), chunk.combinations, chunk.start, chunk.end, block.written, until, track_of
                )
                block.time = min(block.time, after)
                chunks.append(chunk)
            block.written = until
        self._lanes.close(until)
        return chunks

    def _write_window(self, chunks: Sequence[HostChunk], news: Iterable[TrackNews], has_steps: bool) -> None:
        """Write the events of the oldest window that is closed."""
        self._tracks.add(news)
        groups, offsets, which, rows, times, lanes = self._lanes.take()
        if not len(times):
            return
        laid = _Laid([self._tracks.tracks[group] for group in groups.tolist()], offsets, which, rows, times, lanes)
        if has_steps:
            kept = _attached(laid, chunks)
            self.detached += int((~kept).sum())
            laid = laid.only(kept)
        if not laid.tracks:
            return
        track = self._tracks.prepare(laid.tracks, laid.offsets, laid.times, laid.lanes)
        order = np.argsort(laid.times, kind="stable")
        times, numbers = laid.times[order], np.minimum(laid.which, len(chunks))[order]
        by_event: Columns = {"bare_prefixes": self._output.bare_prefixes}
        extra, host = _extra(chunks, numbers, times)
        if len(extra):
            kept = np.ones(len(times), bool)
            kept[extra] = False
            tracks, rows = track[order[extra]], laid.rows[order[extra]]
            by_event["extra_tracks"] = np.where(tracks == 0, np.uint32(self._tracks.default), tracks)
            by_event["extra_values"] = _values(chunks, numbers[extra], rows)
            counts = np.bincount(host, minlength=len(times))[kept]
            by_event["extra_offsets"] = np.append(0, np.cumsum(counts)).astype(np.uint32)
            times, numbers, order = times[kept], numbers[kept], order[kept]
        by_event |= {"time": times, "track": track[order]}
        streams = [chunk.bind(by_event) for chunk in chunks]
        streams.append(end_template(bool(len(extra))).bind(by_event))
        edges = np.array([0, len(times)], np.uint32)
        self._output.events(streams, [self._tracks.sequence], edges, times, which=numbers, rows=laid.rows[order])


def _extra(chunks: Sequence[HostChunk], numbers: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The whole values of counters that go into the packet of the first event of their moment, and these events.
    Events are in the order of time; ``numbers`` has the chunk of each."""
    whole = [chunk.events.table.kind == "counter" and chunk.whole for chunk in chunks]
    if not any(whole):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    extra = np.flatnonzero(np.array([*whole, False])[numbers])
    host = np.searchsorted(times, times[extra])
    extra, host = extra[host < extra], host[host < extra]
    rank = np.arange(len(extra)) - np.searchsorted(host, host)
    return extra[rank < _MOST_EXTRA], host[rank < _MOST_EXTRA]


def _values(chunks: Sequence[HostChunk], numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The values of counters, by their chunks and rows."""
    values = np.zeros(len(rows), np.int64)
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        values[mine] = np.asarray(chunks[number].columns.result()["value"])[rows[mine]]
    return values


def _attached(laid: _Laid, chunks: Sequence[HostChunk]) -> np.ndarray:
    """Which events to keep: all but steps of arrows that lie in no slice, which viewers cannot attach to anything.
    Updates the number of open slices of each track."""
    begins = np.array([chunk.events.table.begins for chunk in chunks] + [False])
    change = np.where(laid.which == Lanes.END, -1, begins[np.minimum(laid.which, len(chunks))]) * (laid.lanes == 0)
    depth = np.cumsum(change)
    before = np.append(0, depth)[laid.offsets]
    depth += np.repeat([track.open for track in laid.tracks] - before[:-1], np.diff(laid.offsets))
    for track, opened in zip(laid.tracks, np.diff(before).tolist(), strict=True):
        track.open += opened
    kept = np.ones(len(laid.which), bool)
    for number, chunk in enumerate(chunks):
        if chunk.events.table.kind == "flow":
            at = np.flatnonzero(laid.which == number)
            kept[at] = (depth[at] > 0) | ~needs_slice(chunk.rows)[laid.rows[at]]
    return kept
