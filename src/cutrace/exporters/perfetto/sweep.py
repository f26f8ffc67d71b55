"""The host's side of one process, in the order of time.

Slices of a thread come from several tables, lie in blocks in any order, and have to be written as begin and end
events that nest. The sweep goes over the process in windows of time: it reads the blocks that reach into the window,
lets :class:`cutrace._native.Lanes` lay out what begins there, and writes the events of each track on the track's own
packet sequence. A block that reaches far ahead is dropped and read again when its time comes, so memory stays
bounded by the window and not by the capture.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from ..._native import Blobs, Keys, Lanes, Submissions
from ...runbin import BlockInfo
from ...runbin.layout import TABLES as LAYOUT
from ...trace import Trace
from . import schema
from .naming import Names, Needs, Numbers, ThreadNames
from .output import Output
from .sequence import NEEDS_STATE, Interned, Sequence
from .template import Column, Delta, Each, Pieces, Template, When
from .tracks import OPEN_RANGES, TABLES, THREAD, TrackTable, track_name

SLICE_BEGIN, SLICE_END, INSTANT = 1, 2, 3

#: Bytes of rows that a window begins with.
WINDOW_BYTES = 6 << 20
_NEVER = (1 << 64) - 1

_PAYLOADS = {"unsigned": "uint_value", "signed": "int_value", "float": "double_value"}


@dataclass(order=True)
class _Pending:
    """A block with rows that begin at ``time`` or later; those that begin before ``written`` were written."""

    time: int
    order: int
    info: BlockInfo = field(compare=False)
    written: int = field(compare=False, default=0)


@dataclass
class _Track:
    """A track of the trace: the group of slices that Lanes keeps nested, with its packet sequence."""

    uuid: int
    kind: int
    sequence: Sequence
    descriptor: dict[str, Any]
    name: str
    lanes: list[int]  # uuids of the tracks for what does not nest, from lane 1 on


class Stream:
    """One description of a table: its template, and the styles of the rows seen so far."""

    def __init__(self, table: TrackTable, names: Names) -> None:
        self.table = table
        self.instant = "end" not in LAYOUT[table.name].offsets
        self.keys = Keys(len(table.style_fields))
        self.pieces = Blobs()
        self.needs: list[Needs] = []
        self.common = Needs(names)
        self._names = names
        self.plain = self._template(payload=False)
        self.with_payload = self._template(payload=True) if table.payload else self.plain

    def _template(self, *, payload: bool) -> Template:
        annotations: list[Any] = [self._argument(name) for name in self.table.arguments]
        if payload:
            iid = self.common.name("debug_annotation_names", "payload")
            for kind, value in _PAYLOADS.items():
                annotations.append(When(f"is_{kind}", {"name_iid": iid, value: Column(kind)}))
        event: dict[str, Any] = {
            "type": INSTANT if self.instant else SLICE_BEGIN,
            "track_uuid": Column("track", omit=0, event=True),
            "pieces": Pieces("style", "pieces"),
            "debug_annotations": annotations,
        }
        if self.table.submits:
            ids = {"render_stage_submission_event_ids": Each("submission_offsets", "submissions")}
            event["gpu_correlation"] = When("submission_count", ids)
        return Template("Trace", {"packet": packet(event)})

    def _argument(self, name: str) -> When:
        iid = self.common.name("debug_annotation_names", name)
        return When(name, {"name_iid": iid, "uint_value": Column(name)})

    def styles(self, trace: Trace, rows: np.ndarray) -> np.ndarray:
        """The style of each row; new ones are described."""
        styles, new = self.keys.ids([rows[f] for f in self.table.style_fields])
        for row in rows[new]:
            needs = Needs(self._names)
            self.pieces.add(schema.encode("TrackEvent", self.table.style(trace, row, needs)))
            self.needs.append(needs)
        return styles

    def template(self, rows: np.ndarray) -> Template:
        """The template for these rows: payloads, which few ranges have, cost nothing where there are none."""
        return self.with_payload if self.table.payload and rows["payload_type"].any() else self.plain

    def columns(self, rows: np.ndarray, styles: np.ndarray, submissions: Submissions) -> dict[str, np.ndarray | Blobs]:
        """The columns of the template for some rows, without those by event."""
        columns: dict[str, np.ndarray | Blobs] = {name: rows[name] for name in self.table.arguments}
        columns["style"], columns["pieces"] = styles, self.pieces
        if self.table.payload and rows["payload_type"].any():
            columns |= payload_columns(rows)
        if self.table.submits:
            offsets, ids = submissions.lists(rows["correlation"])
            columns |= {"submission_offsets": offsets, "submissions": ids, "submission_count": np.diff(offsets)}
        return columns


def packet(event: dict[str, Any]) -> dict[str, Any]:
    """A packet of a track's sequence around a ``TrackEvent``."""
    return {
        "timestamp": Delta("time"),
        "trusted_packet_sequence_id": Column("sequence", event=True),
        "sequence_flags": NEEDS_STATE,
        "track_event": event,
    }


def payload_columns(rows: np.ndarray) -> dict[str, np.ndarray]:
    """NVTX payloads by the type of value they become, and which rows have one of that type."""
    kind, bits = rows["payload_type"], np.ascontiguousarray(rows["payload"])
    low = bits.astype(np.uint32)
    return {
        "is_unsigned": np.isin(kind, (1, 4)),
        "is_signed": np.isin(kind, (2, 5)),
        "is_float": np.isin(kind, (3, 6)),
        "unsigned": np.where(kind == 4, low, bits),
        "signed": np.where(kind == 5, low.view(np.int32).astype(np.int64), bits.view(np.int64)),
        "float": np.where(kind == 6, low.view(np.float32).astype(np.float64), bits.view(np.float64)),
    }


class Sweep:
    """Writes the host's side of one process."""

    def __init__(
        self,
        trace: Trace,
        process: int,
        pid: int,
        process_uuid: int,
        *,
        names: Names,
        numbers: Numbers,
        threads: ThreadNames,
        submissions: Submissions,
        output: Output,
        cut: Callable[[np.ndarray, str], np.ndarray],
        advance: Callable[[BlockInfo, int], None],
    ) -> None:
        self._trace, self._process, self._pid, self._process_uuid = trace, process, pid, process_uuid
        self._names, self._numbers, self._threads = names, numbers, threads
        self._submissions, self._output, self._cut, self._advance = submissions, output, cut, advance
        self._streams = [Stream(table, names) for table in TABLES]
        end = {"type": SLICE_END, "track_uuid": Column("track", omit=0, event=True)}
        self._end = Template("Trace", {"packet": packet(end)})
        self._read: set[int] = set()
        self._open_ranges: list[np.ndarray] = []
        self._order = count()
        self.spilled = 0

    def run(self, infos: list[BlockInfo]) -> None:
        """Write the rows of these blocks, and the ranges among them that never ended."""
        shift = self._trace.processes[self._process].clock_offset
        pending = [_Pending(max(info.first_time + shift, 0), next(self._order), info) for info in infos]
        while pending:
            pending = self._sweep(pending)
        self._write_open_ranges()

    def _sweep(self, pending: list[_Pending]) -> list[_Pending]:
        """One pass in rising time. Returns blocks that hold earlier rows than their header says: a capture that lies
        about its times costs another pass on tracks of their own, not a wrong trace."""
        self._lanes, self._groups, self._pairs = Lanes(), Keys(2), Keys(3)
        self._tracks: list[_Track] = []
        late: list[_Pending] = []
        heapq.heapify(pending)
        begin = 0
        while pending:
            window: list[_Pending] = []
            size = 0
            while pending and (size < WINDOW_BYTES or pending[0].time <= window[0].time):
                block = heapq.heappop(pending)
                window.append(block)
                size += block.info.payload_size
            until = pending[0].time if pending else _NEVER
            rows: dict[str, list[np.ndarray]] = {}
            for block in window:
                part = self._load(block, begin, until, pending, late)
                if len(part):
                    rows.setdefault(block.info.table or "", []).append(part)
            self._write({name: p[0] if len(p) == 1 else np.concatenate(p) for name, p in rows.items()}, until)
            begin = until
        self.spilled += self._count_spilled()
        return late

    def _load(
        self, block: _Pending, begin: int, until: int, pending: list[_Pending], late: list[_Pending]
    ) -> np.ndarray:
        """The rows of a block that begin in the window. What begins behind it goes back to ``pending``."""
        rows, unknown = self._trace.block(block.info)
        name = block.info.table or ""
        if block.info.offset not in self._read:
            self._read.add(block.info.offset)
            self._advance(block.info, len(unknown))
            if name == "nvtx_ranges":
                self._open_ranges.append(unknown[(unknown["start"] > 0) & (unknown["end"] == 0)])
        rows = self._cut(rows, name)
        if not len(rows):
            return rows
        start = rows[LAYOUT[name].start_field]
        first = int(start.min())
        if not block.written and first < begin:
            late.append(_Pending(first, next(self._order), block.info))
            return rows[:0]
        behind = start >= until
        if behind.any():
            heapq.heappush(pending, _Pending(int(start[behind].min()), next(self._order), block.info, until))
        elif not block.written:
            return rows
        return rows[(start >= block.written) & ~behind]

    def _write(self, tables: dict[str, np.ndarray], until: int) -> None:
        """Write the events of one window."""
        entries: dict[int, list[Interned]] = {}
        bound: list[tuple[Template, dict[str, np.ndarray | Blobs]]] = []
        for number, stream in enumerate(self._streams):
            rows = tables.get(stream.table.name)
            if rows is None or not len(rows):
                continue
            if stream.table.select is not None:
                chosen = stream.table.select(rows)
                rows = rows if chosen.all() else rows[chosen]
                if not len(rows):
                    continue
            groups = self._groups_of(stream.table, rows)
            styles = stream.styles(self._trace, rows)
            self._gather(number, stream, groups, styles, entries)
            layout = LAYOUT[stream.table.name]
            self._lanes.add(len(bound), groups, rows[layout.start_field], None if stream.instant else rows["end"])
            bound.append((stream.template(rows), stream.columns(rows, styles, self._submissions)))

        groups, offsets, which, event_rows, times, lanes = self._lanes.take(until)
        if not len(times):
            return
        which = np.minimum(which, len(bound))
        uuids = self._lane_uuids(groups, offsets, lanes)
        for group, begin, end in zip(groups.tolist(), offsets.tolist(), offsets[1:].tolist(), strict=False):
            track = self._tracks[group]
            self._open(track, int(times[begin]))
            track.sequence.intern(entries.get(group, ()))
            by_event = {"time": times, "track": uuids, "sequence": track.sequence.column}
            active = [template.bind(columns | by_event) for template, columns in (*bound, (self._end, {}))]
            track.sequence.time = self._output.events(
                active, end - begin, which=which, rows=event_rows, last=track.sequence.time, first=begin
            )

    def _groups_of(self, table: TrackTable, rows: np.ndarray) -> np.ndarray:
        """The track of each row; new tracks are made."""
        kind = np.broadcast_to(np.uint32(table.track), len(rows))
        number = rows[table.track_field] if table.track_field else np.broadcast_to(np.uint32(0), len(rows))
        groups, new = self._groups.ids([kind, number])
        for row in new.tolist():
            self._tracks.append(self._new_track(table.track, int(number[row])))
        return groups

    def _new_track(self, kind: int, number: int) -> _Track:
        uuid = self._numbers.uuid()
        descriptor: dict[str, Any]
        if kind == THREAD and number:
            name = "overlapping slices"
            thread = {"pid": self._pid, "tid": number, "thread_name": self._threads.get(self._process, number)}
            descriptor = {"uuid": uuid, "thread": thread}
        else:
            name = track_name(self._trace, kind, number)
            descriptor = {"uuid": uuid, "parent_uuid": self._process_uuid, "name": name}
        defaults = {"track_event_defaults": {"track_uuid": uuid}}
        return _Track(uuid, kind, Sequence(self._numbers.sequence(), self._output, defaults), descriptor, name, [])

    def _open(self, track: _Track, time: int) -> None:
        if track.sequence.time < 0:
            track.sequence.anchor(time)
            track.sequence.packet({"track_descriptor": track.descriptor})

    def _gather(
        self, number: int, stream: Stream, groups: np.ndarray, styles: np.ndarray, entries: dict[int, list[Interned]]
    ) -> None:
        """Note what each track's sequence has to be told before it can use these styles."""
        _, new = self._pairs.ids([groups, np.broadcast_to(np.uint32(number), len(groups)), styles])
        for group, style in zip(groups[new].tolist(), styles[new].tolist(), strict=True):
            entries.setdefault(group, []).extend([*stream.common, *stream.needs[style]])

    def _lane_uuids(self, groups: np.ndarray, offsets: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """The track of each event, 0 for the default track of its sequence."""
        if not lanes.any():
            return np.broadcast_to(np.uint64(0), len(lanes))
        uuids = np.zeros(len(lanes), np.uint64)
        for group, begin, end in zip(groups.tolist(), offsets.tolist(), offsets[1:].tolist(), strict=False):
            used = lanes[begin:end]
            track = self._tracks[group]
            for _ in range(len(track.lanes), int(used.max(initial=0))):
                track.lanes.append(self._new_lane(track))
            uuids[begin:end] = np.array([0, *track.lanes], np.uint64)[used]
        return uuids

    def _new_lane(self, track: _Track) -> int:
        """A track for slices that do not nest: below a thread's track, beside any other."""
        uuid = self._numbers.uuid()
        thread = "thread" in track.descriptor
        parent = track.uuid if thread else self._process_uuid
        self._output.packet({"track_descriptor": {"uuid": uuid, "parent_uuid": parent, "name": track.name}})
        return uuid

    def _count_spilled(self) -> int:
        threads = [track.kind == THREAD for track in self._tracks]
        return int(self._lanes.spilled()[: len(threads)][threads].sum())

    def _write_open_ranges(self) -> None:
        """Ranges that never ended begin on a track of their own: elsewhere, ends of others would close them."""
        number = next(i for i, s in enumerate(self._streams) if s.table.payload and not s.instant)
        stream = self._streams[number]
        rows = np.concatenate(self._open_ranges) if self._open_ranges else np.zeros(0, LAYOUT["nvtx_ranges"].dtype)
        rows = rows[np.argsort(rows["start"], kind="stable")]
        styles = stream.styles(self._trace, rows)
        for thread in np.unique(rows["thread"]).tolist():
            chosen = rows["thread"] == thread
            part, part_styles = rows[chosen], styles[chosen]
            track = self._new_track(OPEN_RANGES, thread)
            self._open(track, int(part["start"][0]))
            track.sequence.intern(stream.common)
            for style in np.unique(part_styles).tolist():
                track.sequence.intern(stream.needs[style])
            columns = stream.columns(part, part_styles, self._submissions) | {
                "time": np.ascontiguousarray(part["start"]),
                "track": np.broadcast_to(np.uint64(0), len(part)),
                "sequence": track.sequence.column,
            }
            self._output.events([stream.template(part).bind(columns)], len(part), last=track.sequence.time)
