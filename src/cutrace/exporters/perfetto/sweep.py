"""The host's side of one process, in the order of time.

Slices of a thread come from several tables, lie in blocks in any order, and have to be written as begin and end
events that nest. The sweep goes over the process in windows of time: it reads the blocks that reach into the window,
lets :class:`cutrace._native.Lanes` lay out what begins there, and writes the events of each track on the track's own
packet sequence. Blocks that reach far ahead are dropped when there are too many of them, and read again when their
time comes, so memory is bounded by the window and not by the capture.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

import numpy as np

from ..._native import Lanes, Submissions
from ...runbin import BlockInfo
from ...trace import Trace
from . import archive
from .arguments import Arguments
from .arrows import Arrows
from .devices import Devices
from .gauges import MemoryGauge
from .naming import Names, Numbers, ThreadNames
from .output import Output
from .sequence import Interned, Sequence
from .spool import SpoolBlock
from .streams import Chunk, Stream, end_template
from .template import Columns
from .tracks import COUNTER, COUNTER_FIELDS, OPEN, TABLES, THREAD, TrackTable, described, never_ended
from .waits import CallWaits

#: Bytes of rows that are read for a window, and that may stay in memory for later ones.
WINDOW_BYTES = 3 << 20
KEPT_BYTES = 16 << 20

#: Chunks in one window at most: the native side numbers them with one byte.
_CHUNKS = 200
_NEVER = (1 << 64) - 1


@dataclass(order=True)
class _Pending:
    """A block with rows that begin at ``time`` or later; those that begin before ``written`` were written."""

    time: int
    order: int
    info: BlockInfo | SpoolBlock = field(compare=False)
    written: int = field(compare=False, default=0)


@dataclass
class _Live:
    """A block in memory, as one chunk for each stream that takes rows of it. ``next`` is the first moment at which
    rows begin that were not written."""

    info: BlockInfo | SpoolBlock
    chunks: list[Chunk]
    written: int
    next: int = 0


@dataclass
class _Track:
    """A track of the trace: the group of slices that Lanes keeps nested, with its packet sequence."""

    uuid: int
    kind: int
    sequence: Sequence
    descriptor: dict[str, Any]
    name: str
    waiting: list[Interned]  # what the sequence has to be told before its next event
    lanes: list[int]  # uuids of the tracks for what does not nest, from lane 1 on
    open: int = 0  # slices that have not ended so far, on lane 0; only counted where there are arrows


class Sweep:
    """Writes the host's side of one process. ``spilled`` counts the slices of threads that did not nest, ``detached``
    the steps of arrows that lie in no slice, and are not written."""

    def __init__(
        self,
        trace: Trace,
        process: int,
        pid: int,
        uuid: int,
        *,
        names: Names,
        arguments: Arguments,
        arrows: Arrows,
        numbers: Numbers,
        threads: ThreadNames,
        devices: Devices,
        submissions: Submissions,
        waits: CallWaits,
        output: Output,
        advance: Callable[[BlockInfo, int], None],
        memory: MemoryGauge | None,
    ) -> None:
        self._trace, self._process, self._pid, self._uuid = trace, process, pid, uuid
        self._names, self._arguments, self._arrows = names, arguments, arrows
        self._numbers, self._threads, self._devices = numbers, threads, devices
        self._submissions, self._waits = submissions, waits
        self._output, self._advance, self._memory = output, advance, memory
        self._read: set[int] = set()
        self._counted: set[BlockInfo | SpoolBlock] = set()  # blocks of allocations, which may be read again
        self._open: dict[str, list[np.ndarray]] = {}
        self._order = count()
        self._steps = False  # whether there are steps of arrows
        self.spilled, self.detached = 0, 0

    def run(self, infos: list[BlockInfo], derived: list[SpoolBlock]) -> None:
        """Write the rows of these blocks, and the slices among them that never ended."""
        shift = self._trace.processes[self._process].clock_offset
        self._steps = any(info.table == "flows" for info in infos)
        pending = [_Pending(max(info.first_time + shift, 0), next(self._order), info) for info in infos]
        pending += [_Pending(block.first_time, next(self._order), block) for block in derived]
        while pending:
            pending = self._sweep(pending)
        for name, rows in self._open.items():
            self._write_open(name, np.concatenate(rows))

    def _begin(self) -> None:
        """New tracks: those of an earlier pass are in use up to the end of the capture."""
        self._lanes = Lanes()
        self._tracks: list[_Track] = []
        self._track_numbers: dict[tuple[int, Hashable], int] = {}
        self._streams: dict[str, list[Stream]] = {}
        for table in TABLES:
            stream = self._stream(table, self._track_of)
            self._streams.setdefault(table.name, []).append(stream)

    def _stream(self, table: TrackTable, track_of: Callable[[int, Hashable, list[Interned]], int]) -> Stream:
        return Stream(table, self._trace, self._names, self._arguments, self._arrows, track_of)

    def _sweep(self, pending: list[_Pending]) -> list[_Pending]:
        """One pass in rising time. Returns blocks that hold earlier rows than their header says: a capture that lies
        about its times costs another pass on tracks of its own, not a wrong trace."""
        self._begin()
        late: list[_Pending] = []
        live: list[_Live] = []
        heapq.heapify(pending)
        begin = 0
        while pending or live:
            size, first = 0, pending[0].time if pending else _NEVER
            while pending and len(live) < _CHUNKS // 2 and (size < WINDOW_BYTES or pending[0].time <= first):
                block = heapq.heappop(pending)
                size += block.info.payload_size
                chunks = self._load(block, begin, late)
                if chunks:
                    live.append(_Live(block.info, chunks, block.written))
            until = pending[0].time if pending else _NEVER
            if until <= begin and live:
                until = begin + 1  # many blocks begin at one moment: it is written in parts
            self._write(live, until)
            live = [block for block in live if block.next != _NEVER]
            live.sort(key=lambda block: block.next)
            while sum(block.info.payload_size for block in live) > KEPT_BYTES or len(live) > _CHUNKS // 4:
                dropped = live.pop()
                heapq.heappush(pending, _Pending(dropped.next, next(self._order), dropped.info, until))
            begin = until
        threads = [track.kind == THREAD for track in self._tracks]
        self.spilled += int(self._lanes.spilled()[: len(threads)][threads].sum())
        return late

    def _load(self, block: _Pending, begin: int, late: list[_Pending]) -> list[Chunk]:
        """Read a block."""
        name = block.info.table or ""
        rows = self._rows(block.info, name)
        if not len(rows):
            return []
        if not block.written and begin:
            first = int(rows[self._streams[name][0].start_field].min())
            if first < begin:
                late.append(_Pending(first, next(self._order), block.info))
                return []
        chunks: list[Chunk] = []
        for stream in self._streams[name]:
            chosen = stream.table.select(rows) if stream.table.select else None
            part = rows if chosen is None or chosen.all() else rows[chosen]
            if len(part):
                chunks.append(stream.chunk(part, self._submissions, self._waits))
        if self._memory and name == "allocations" and block.info not in self._counted:
            self._counted.add(block.info)
            self._memory.add(chunks[0])
        return chunks

    def _rows(self, info: BlockInfo | SpoolBlock, name: str) -> np.ndarray:
        """The rows of a block that are to be written in the order of time."""
        if isinstance(info, SpoolBlock):
            return info.read()
        rows, unknown = self._trace.block(info)
        if info.offset not in self._read:
            self._read.add(info.offset)
            still_open = never_ended(name, unknown)
            if still_open.any():
                self._open.setdefault(name, []).append(unknown[still_open])
                unknown = unknown[~still_open]
            self._advance(info, len(unknown))
        return rows

    def _write(self, live: list[_Live], until: int) -> None:
        """Write the events of all blocks before a moment."""
        bound: list[Chunk] = []
        for block in live:
            block.next = _NEVER
            for chunk in block.chunks:
                after = self._lanes.add(
                    len(bound), chunk.combinations, chunk.start, chunk.end, block.written, until, chunk.stream.group_of
                )
                block.next = min(block.next, after)
                bound.append(chunk)
            block.written = until
        groups, offsets, which, rows, times, lanes = self._lanes.take(until)
        if not len(times):
            return
        tracks = [self._tracks[group] for group in groups.tolist()]
        for track, first in zip(tracks, offsets.tolist(), strict=False):
            self._prepare(track, int(times[first]))
        if self._steps:
            kept = self._attached(tracks, offsets, which, rows, lanes, bound)
            offsets = np.append(0, np.cumsum(kept))[offsets].astype(np.uint32)
            which, rows, times, lanes = which[kept], rows[kept], times[kept], lanes[kept]
        by_event: Columns = {"time": times, **self._output.prefixed}
        if lanes.any():
            by_event["track"] = self._lane_uuids(tracks, offsets, lanes)
        streams = [chunk.bind(by_event) for chunk in bound]
        streams.append(end_template("track" in by_event).bind(by_event))
        np.minimum(which, len(bound), out=which)
        clocks = np.array([track.sequence.time for track in tracks], np.uint64)
        pieces = np.array([track.sequence.piece for track in tracks], np.uint32)
        self._output.events(streams, offsets, pieces, clocks, which=which, rows=rows)
        for track, time in zip(tracks, clocks.tolist(), strict=True):
            track.sequence.time = time

    def _attached(
        self,
        tracks: list[_Track],
        offsets: np.ndarray,
        which: np.ndarray,
        rows: np.ndarray,
        lanes: np.ndarray,
        bound: list[Chunk],
    ) -> np.ndarray:
        """Which events are no steps of arrows that lie in no slice: viewers have nothing to attach these to."""
        of_slices = np.array([not chunk.stream.instant for chunk in bound] + [False])
        change = np.where(which == Lanes.END, -1, of_slices[np.minimum(which, len(bound))]) * (lanes == 0)
        depth = np.cumsum(change)
        before = np.append(0, depth)[offsets]
        depth += np.repeat([track.open for track in tracks] - before[:-1], offsets[1:] - offsets[:-1])
        for track, change_here in zip(tracks, np.diff(before).tolist(), strict=True):
            track.open += change_here
        kept = np.ones(len(which), bool)
        for number, chunk in enumerate(bound):
            if chunk.stream.table.kind == "flow":
                at = np.flatnonzero(which == number)
                # The end of an arrow may be for the next slice.
                inside = (chunk.rows["phase"] != ord("f")) | (chunk.rows["flags"] & 1 == 1)
                kept[at] = (depth[at] > 0) | ~inside[rows[at]]
        self.detached += int((~kept).sum())
        return kept

    def _track_of(self, kind: int, key: Hashable, entries: list[Interned]) -> int:
        """The track of this kind and key, made if it was not there; its sequence will be told ``entries``."""
        known = self._track_numbers.get((kind, key))
        if known is None:
            known = self._track_numbers[kind, key] = len(self._tracks)
            self._tracks.append(self._new_track(kind, key))
        self._tracks[known].waiting += entries
        return known

    def _new_track(self, kind: int, key: Hashable) -> _Track:
        uuid = self._numbers.uuid()
        descriptor: dict[str, Any] = {"uuid": uuid}
        if kind == THREAD and key:
            name = "overlapping slices"
            thread = self._threads.get(self._process, cast(int, key))
            descriptor["thread"] = {"pid": self._pid, "tid": key, "thread_name": thread}
        else:
            descriptor["parent_uuid"] = self._uuid
            descriptor |= described(self._trace, self._devices, self._process, kind, key)
            name = descriptor["name"]
        number = key if isinstance(key, int) else 0
        descriptor |= {"cutrace_number": number, "cutrace_process": self._process}
        if kind == COUNTER:
            values = dict(zip(COUNTER_FIELDS, cast("tuple[int, ...]", key), strict=True))
            descriptor["cutrace_row"] = archive.track_row("counters", values)
        defaults = {"track_event_defaults": {"track_uuid": uuid}}
        return _Track(uuid, kind, Sequence(self._numbers.sequence(), self._output, defaults), descriptor, name, [], [])

    def _prepare(self, track: _Track, time: int) -> None:
        """Open the sequence of a track when this is its first event, and tell it what its next events refer to."""
        if track.sequence.time < 0:
            track.sequence.anchor(time)
            track.sequence.packet({"track_descriptor": track.descriptor})
        if track.waiting:
            track.sequence.intern(track.waiting)
            track.waiting.clear()

    def _lane_uuids(self, tracks: list[_Track], offsets: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """The track of each event, 0 for the default track of its sequence."""
        uuids = np.zeros(len(lanes), np.uint64)
        for track, begin, end in zip(tracks, offsets.tolist(), offsets[1:].tolist(), strict=False):
            used = lanes[begin:end]
            for _ in range(len(track.lanes), int(used.max(initial=0))):
                track.lanes.append(self._new_lane(track))
            uuids[begin:end] = np.array([0, *track.lanes], np.uint64)[used]
        return uuids

    def _new_lane(self, track: _Track) -> int:
        """A track for slices that do not nest: below a thread's track, beside any other."""
        uuid = self._numbers.uuid()
        parent = track.uuid if "thread" in track.descriptor else self._uuid
        track.sequence.packet({"track_descriptor": {"uuid": uuid, "parent_uuid": parent, "name": track.name}})
        return uuid

    def _write_open(self, name: str, rows: np.ndarray) -> None:
        """Slices that never ended begin on a track of their own: elsewhere, ends of others would close them."""
        self._begin()
        rows = rows[np.lexsort((rows["start"], rows["thread"]))]
        table = self._streams[name][0].table
        if name == "nvtx_ranges":
            table = replace(table, arguments=("range_id", "thread", "end_thread"))
        stream = self._stream(table, lambda _, n, e: self._track_of(OPEN[name], n, e))
        chunk = stream.chunk(rows, self._submissions, self._waits)
        groups, begins = np.unique(stream.group_of[chunk.combinations], return_index=True)
        order = np.argsort(begins)
        tracks = [self._tracks[group] for group in groups[order].tolist()]
        offsets = np.append(begins[order], len(rows)).astype(np.uint32)
        for track, first in zip(tracks, offsets.tolist(), strict=False):
            self._prepare(track, int(rows["start"][first]))
        by_event: Columns = {"time": rows["start"], **self._output.prefixed}
        clocks = np.array([track.sequence.time for track in tracks], np.uint64)
        pieces = np.array([track.sequence.piece for track in tracks], np.uint32)
        self._output.events([chunk.bind(by_event)], offsets, pieces, clocks)
