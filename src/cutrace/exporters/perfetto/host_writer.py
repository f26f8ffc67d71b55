"""Write the host events of some processes in the order of time: rows become slices on tracks, and slices become
events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..._native import Blobs, Lanes, Program, Submissions
from ...runbin import BlockInfo
from ...trace.ordered import BlockOrder, Limits, LiveBlock
from ...trace.rows import distinct
from ..rows import payload_columns
from .annotations import TEXT, Annotations
from .blocks import Blocks
from .call_stacks import StackArguments
from .derived.counters import MemoryCounters
from .derived.waits import CallWaits
from .flows import Flows, needs_slice
from .gpu_events import Lists
from .host_tables import (
    COUNTED,
    THREAD,
    HostChunk,
    HostEvents,
    HostRows,
    HostTable,
    HostTracks,
    SharedArguments,
    SpoolBlock,
    TrackNews,
    counter_values,
    end_template,
)
from .kernel_metrics import RangeMetrics
from .packets import Output
from .pipeline import OrderedThread
from .proto import Columns

#: Bytes and blocks of rows to read for a window, and to keep in memory for later windows.
HOST_WINDOW = 3 << 20
HOST_KEPT = 16 << 20
HOST_BLOCKS = 100
HOST_BLOCKS_KEPT = 50

#: The largest number of counter values that Perfetto's importer accepts in another event.
_MOST_EXTRA = 8

#: The largest number of windows that wait for a thread.
_WINDOWS_AHEAD = 2


class HostColumns(NamedTuple):
    """The columns of the host tables. ``with_text`` names the tables whose rows have arguments in JSON. ``waits`` is
    None if no data is derived. ``stacks`` is None if no call has a stack."""

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
        """The ids of the work that calls launched. Use it in the order of the rows, because only newer ids are kept."""
        if table.submits:
            return self.submissions.lists(rows["correlation"])
        return None

    def of(
        self, table: HostTable, rows: np.ndarray, submitted: Lists | None
    ) -> Columns:
        """The columns of rows for the template of their table; thread-safe."""
        columns: Columns = {
            name: rows[name] for name in (*table.arguments, *table.strings)
        }
        if table.payload and rows["payload_type"].any():
            columns |= payload_columns(rows)
        if table.kind == "counter":
            columns["value"] = counter_values(rows["value"])
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


@dataclass
class _HostBlock:
    """The rows of a block for each :class:`HostTable` that selects some. The chunks are made later."""

    parts: list[HostRows]
    chunks: list[HostChunk] = field(default_factory=list)


class _HostSlices(NamedTuple):
    """The rows of a chunk that start in a window, at ``begin`` or later. ``tracks`` are by combination."""

    chunk: HostChunk
    begin: int
    tracks: np.ndarray


class HostWriter:
    """Writes the host events of some processes. By process, ``columns`` computes the columns of the events. ``memory``
    receives the allocations and returns the values of its counters.

    The slices of a thread come from several tables, in any order, and are written as begin and end events that nest. A
    pass goes over the processes in windows of time. It reads the blocks of the window, lays out the rows that start in
    it (:class:`cutrace._native.Lanes`), and writes the events of all tracks in rising time. A block whose header has a
    later time than its first row waits for another pass (:class:`cutrace.trace.ordered.BlockOrder`).

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
        self._blocks = blocks
        self._columns = columns
        self._memory = memory
        self._tracks = tracks
        self._output = output
        self._lanes = Lanes()
        self._events: dict[tuple[int, str], list[HostEvents]] = {}
        self._allocations: set[int] = set()  # offsets of blocks that are counted
        self.spilled = 0
        self.detached = 0

    def write(
        self, tables: Iterable[HostTable], sources: Iterable[BlockInfo | SpoolBlock]
    ) -> None:
        """Write the events of some blocks, as ``tables`` describe them."""
        limits = Limits(HOST_WINDOW, HOST_BLOCKS, HOST_KEPT, HOST_BLOCKS_KEPT)
        order: BlockOrder[BlockInfo | SpoolBlock, _HostBlock] | None
        order = BlockOrder(sources, self._read, limits, apart=True)
        while order and not order.done:
            self._begin_pass(tables)
            file = self._output.file
            with (
                file.thread(_WINDOWS_AHEAD) as writing,
                file.thread(_WINDOWS_AHEAD) as layout,
            ):
                self._pass(order, layout, writing)
                layout.wait()
                writing.wait()
            # By track, up to the last one with events.
            spilled = self._lanes.spilled().tolist()
            for count, track in zip(spilled, self._tracks.tracks, strict=False):
                if track.kind == THREAD:
                    self.spilled += count
            self.detached += self._lanes.outside
            order = order.left_over()

    def _begin_pass(self, tables: Iterable[HostTable]) -> None:
        """Make new tracks, because the tracks of an earlier pass have events up to the end of the capture."""
        self._lanes = Lanes()
        self._events = {}
        self._tracks.clear()
        for process, columns in self._columns.items():
            for table in tables:
                trace = self._blocks.trace
                text = columns.has_text(table)
                shared = columns.shared(table)
                events = HostEvents(
                    table, process, trace, self._output.names, text, shared
                )
                self._events.setdefault((process, table.name), []).append(events)

    def _pass(
        self,
        order: BlockOrder[BlockInfo | SpoolBlock, _HostBlock],
        layout: OrderedThread,
        writing: OrderedThread,
    ) -> None:
        """Write the rows of all blocks in rising time, window by window."""
        while not order.ended:
            until = order.fill()
            chunks: list[tuple[HostChunk, int]] = []
            # Rows with equal times nest in the order of the capture.
            for block in sorted(order.live, key=lambda block: block.source.offset):
                chunks += [(chunk, block.taken) for chunk in self._chunks_of(block)]
            chunks += [(chunk, order.begin) for chunk in self._counted(until)]
            # Tracks are numbered when all chunks of the window are known.
            slices = []
            for chunk, begin in chunks:
                tracks = self._tracks.of(chunk.events)
                slices.append(_HostSlices(chunk, begin, tracks))
            layout.run(self._close_window, slices, until, self._tracks.news(), writing)
            order.advance(until)

    def _counted(self, until: int) -> list[HostChunk]:
        """The values of the memory counters before ``until``."""
        chunks: list[HostChunk] = []
        for process, memory in self._memory.items():
            rows = memory.rows(until)
            if len(rows):
                parts = self._select(process, COUNTED.name, rows)
                chunks += self._chunks(process, parts)
        return chunks

    def _chunks_of(
        self, block: LiveBlock[BlockInfo | SpoolBlock, _HostBlock]
    ) -> list[HostChunk]:
        """The chunks of a block, made once it is in a window."""
        content = block.content
        if not content.chunks:
            content.chunks = self._chunks(block.source.process, content.parts)
        return content.chunks

    def _read(
        self, source: BlockInfo | SpoolBlock
    ) -> tuple[np.ndarray, _HostBlock] | None:
        """The starts and the rows of a block. Allocations are counted when they are read first."""
        if isinstance(source, SpoolBlock):
            parts = self.prepare(source, source.read())
        else:
            parts = self._blocks.read(source)
        if not parts:
            return None
        if source.table == "allocations" and source.offset not in self._allocations:
            self._allocations.add(source.offset)
            self._count_memory(source.process, parts)
        starts = np.concatenate([part.starts for part in parts])
        return starts, _HostBlock(parts)

    def _count_memory(self, process: int, parts: Iterable[HostRows]) -> None:
        memory = self._memory.get(process)
        if memory is None:
            return
        for part in parts:
            assert part.kinds is not None
            assert part.first is not None
            memory.add(part.rows, part.kinds, part.first)

    def _chunks(self, process: int, parts: Iterable[HostRows]) -> list[HostChunk]:
        chunks = []
        columns = self._columns[process]
        for part in parts:
            table = part.events.table
            rows = part.rows
            submitted = columns.submitted(table, rows)
            made = self._output.file.submit(columns.of, table, rows, submitted)
            chunks.append(part.events.chunk(part, made))
        return chunks

    def prepare(
        self, source: BlockInfo | SpoolBlock, rows: np.ndarray
    ) -> list[HostRows]:
        """The rows of a block for each :class:`HostTable` that selects some; thread-safe."""
        return self._select(source.process, source.table or "", rows)

    def _select(self, process: int, table: str, rows: np.ndarray) -> list[HostRows]:
        descriptions = self._events[process, table]
        parts = [events.select(rows) for events in descriptions]
        return [part for part in parts if len(part.rows)]

    def _close_window(
        self,
        slices: Sequence[_HostSlices],
        until: int,
        news: Iterable[TrackNews],
        writing: OrderedThread,
    ) -> None:
        """Lay out the rows that start before ``until``."""
        for number, (chunk, begin, tracks) in enumerate(slices):
            inside = None
            table = chunk.events.table
            if table.kind == "flow":
                inside = needs_slice(chunk.rows)
            self._lanes.add(
                number,
                chunk.combinations,
                chunk.starts,
                chunk.end,
                begin,
                until,
                tracks,
                inside,
                chunk.levels,
                table.inner_first,
                table.kind == "",
            )
        self._lanes.close(until)
        chunks = [chunk for chunk, *_ in slices]
        writing.run(self._write_window, chunks, news)

    def _write_window(
        self, chunks: Sequence[HostChunk], news: Iterable[TrackNews]
    ) -> None:
        """Write the events of the oldest closed window. Integer values of counters are in the packet of the first event
        at their time."""
        self._tracks.add(news)
        joins = bytes(
            chunk.events.table.kind == "counter" and chunk.whole for chunk in chunks
        )
        instant_lanes = self._lanes.instant_lanes()
        uuids = self._tracks.prepare(*self._lanes.groups(), instant_lanes)
        events, extras = self._lanes.take(joins, _MOST_EXTRA, uuids)
        which, rows, times, tracks = events
        extra, extra_rows, offsets, extra_tracks = extras
        if not len(times):
            return
        by_event: Columns = {
            "time": times,
            "track": tracks,
            "bare_prefixes": self._output.bare_prefixes,
        }
        streams = _streams(chunks, by_event)
        if len(extra):
            extra_tracks[extra_tracks == 0] = self._tracks.default
            by_event |= {
                "extra_tracks": extra_tracks,
                "extra_values": _values(chunks, extra, extra_rows),
            }
            streams += _streams(chunks, by_event | {"extra_offsets": offsets})
        edges = np.array([0, len(times)], np.uint32)
        self._output.events(
            streams, [self._tracks.sequence], edges, times, which=which, rows=rows
        )
        self._output.next_piece()


def _streams(
    chunks: Sequence[HostChunk], by_event: Columns
) -> list[tuple[Program, list[np.ndarray | Blobs]]]:
    """The programs of the events of chunks, and of the ends of slices."""
    ends = end_template("extra_offsets" in by_event).bind(by_event)
    return [*(chunk.bind(by_event) for chunk in chunks), ends]


def _values(
    chunks: Sequence[HostChunk], numbers: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """The counter values of events, given their chunks and rows."""
    values = np.zeros(len(rows), np.int64)
    for number in distinct(numbers).tolist():
        mine = numbers == number
        of_chunk = np.asarray(chunks[number].columns.result()["value"])
        values[mine] = of_chunk[rows[mine]]
    return values
