"""From events of a Perfetto trace that cutrace wrote back to the rows that they were.

All steps are done for the events of some megabytes of packets at once. An event has a *style*: a row with the fields
that it shares with others, told before the first of them. Its times, its arguments and the number of its track make the
row whole. Slices become rows when they end, which may be long after they began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .._native import Nesting
from ..runbin import TABLES
from ..runbin.layout import Table
from .base import Import
from .perfetto_patterns import Patterns
from .perfetto_tables import Layouts
from .perfetto_wire import (
    ARGUMENT_NAMES,
    COUNTER,
    DEBUG_NAMES,
    INCREMENTAL_CLOCK,
    INSTANT,
    OWN,
    SLICE_BEGIN,
    SLICE_END,
    Arguments,
    Packets,
    StyleRows,
    fields,
    messages,
    numbers,
)
from .restoring import Restoring, duration_of

#: Slices that may be open at one time.
_MOST_OPEN = 1 << 20
#: The field with the arguments that a source gave.
TEXT = "arguments"
_UNEXPLAINED = "notices, and what was computed from records"
#: Types of NVTX payloads (nvtxPayloadType_t).
_U32, _I32, _F32 = 4, 5, 6


@dataclass
class _Open:
    """Rows of slices that have not ended, with the numbers of their events, rising."""

    numbers: np.ndarray
    rows: np.ndarray

    def added(self, numbers: np.ndarray, rows: np.ndarray) -> _Open:
        return _Open(np.concatenate([self.numbers, numbers]), np.concatenate([self.rows, rows]))


class Events:
    """Takes packets in the order of the file, and writes rows."""

    def __init__(self, out: Import, restoring: Restoring, layouts: Layouts, patterns: Patterns) -> None:
        self._out, self._restoring, self._layouts = out, restoring, layouts
        self._patterns = patterns
        self._styles = _Styles(layouts)
        self._names: dict[int, str] = {}  # of annotations, by id
        self._argument_names: dict[int, str] = {}
        self._numbers: dict[int, int] = {}  # by sequence, the number of its track
        self._processes: dict[int, int] = {}  # by sequence, the process of its track
        self._tracks: dict[int, int] = {}  # by sequence, its own track
        self._clocks: dict[int, int] = {}  # by sequence, where its clock stands
        self._nesting = Nesting()
        self._fed = 0
        self._open: dict[str, _Open] = {}
        self._of_tracks: list[tuple[int, dict[int, int]]] = []  # styles that tracks told since the last events

    # What packets say that are no events

    def names(self, data: memoryview) -> None:
        """Names of arguments, from interned data."""
        for field, known in ((DEBUG_NAMES, self._names), (ARGUMENT_NAMES, self._argument_names)):
            for entry in messages(data, field):
                found = dict(fields(entry))
                iid, text = found.get(1), found.get(2)
                if isinstance(iid, int) and isinstance(text, memoryview):
                    known[iid] = bytes(text).decode("utf-8", "replace")

    def track(self, sequence: int, data: memoryview) -> None:
        """The description of a track: the first of a sequence is that of the sequence's own."""
        found = numbers(data)
        if OWN in found:
            self._numbers.setdefault(sequence, found[OWN])
            self._processes.setdefault(sequence, found.get(OWN + 1, 0))
            self._of_tracks += ((sequence, numbers(row)) for row in messages(data, OWN + 2))

    def defaults(self, sequence: int, data: memoryview) -> None:
        """What the packets of a sequence have in common."""
        for event in messages(data, 11):
            self._tracks[sequence] = numbers(event).get(11, 0)

    def anchor(self, data: memoryview) -> int | None:
        """Where a snapshot of clocks sets the clock of a sequence; None when it does not."""
        for clock in messages(data, 1):
            found = numbers(clock)
            if found.get(1) == INCREMENTAL_CLOCK:
                return found.get(2, 0)
        return None

    # Rows

    def archived(self, table: Table, rows: np.ndarray) -> None:
        """Rows that are in the trace as they are."""
        self._write(table.name, rows, events=True)

    def add(self, packets: Packets, anchors: list[tuple[int, int, int]]) -> None:
        """The events of some packets. ``anchors`` set clocks: before which event, of which sequence, to which time."""
        self._styles.add(packets.styles, of_sequence=False)
        self._styles.add(packets.kernel_styles, of_sequence=True)
        # One by one, each would cost as much as all that are known.
        self._styles.add(StyleRows.of_tracks(self._of_tracks), of_sequence=True)
        self._of_tracks.clear()
        times = self._times(packets, anchors)
        styles = self._styles.find(packets)
        self._add_gpu(packets, times, styles)
        self._add_host(packets, times, styles)

    def finish(self, *, whole: bool) -> None:
        """Write what never ended. Only in a trace that is ``whole`` is that how it was."""
        left = sum(len(still.rows) for still in self._open.values())
        for name, still in self._open.items():
            self._write(name, still.rows)
        self._open.clear()
        self._nesting.take_open()
        if self._patterns.refused:
            self._out.seen("texts of arguments", self._patterns.refused)
            self._out.lost("texts of arguments", self._patterns.refused, why="more than so small a file can have")
            self._patterns.refused = 0
        if left and not whole:
            self._out.note(f"{left:,} slices have no end, since the trace is not whole: convert the capture again")

    def _add_gpu(self, packets: Packets, times: np.ndarray, styles: np.ndarray) -> None:
        on_gpu = packets.kernel != 0
        self._unexplained(on_gpu & (styles < 0), packets.duration)
        at = np.flatnonzero(on_gpu & (styles >= 0))
        for name, which, rows in self._rows(at, styles, times, packets, packets.arguments, self._argument_names):
            rows["end"] = times[which] + packets.duration[which]
            rows["correlation"] = packets.correlation[which]
            self._write(name, rows, events=True)

    def _add_host(self, packets: Packets, times: np.ndarray, styles: np.ndarray) -> None:
        kind = packets.type
        self._unexplained((kind != 0) & (kind != SLICE_END) & (styles < 0))
        begins = self._begins(packets)
        first, self._fed = self._fed, self._fed + len(begins)
        ends = np.flatnonzero(begins >= 0)
        # By event, when the slice that it begins ends; by event of earlier packets, likewise.
        end_of = np.zeros(len(begins), np.uint64)
        ended = np.zeros(len(begins), bool)
        here = begins[ends] >= first
        end_of[begins[ends[here]] - first] = times[ends[here]]
        ended[begins[ends[here]] - first] = True
        self._end_open(begins[ends[~here]], times[ends[~here]])
        at = np.flatnonzero(((kind == SLICE_BEGIN) | (kind == INSTANT) | (kind == COUNTER)) & (styles >= 0))
        for name, which, rows in self._rows(at, styles, times, packets, packets.annotations, self._names):
            if name == "counters":
                whole = packets.count[which].view(np.int64).astype(np.float64)
                rows["value"] = np.where(packets.value[which] != 0, packets.value[which].view(np.float64), whole)
            if "end" not in TABLES[name].offsets:
                self._write(name, rows, events=True)
                continue
            rows["end"] = end_of[which]
            has_end = ended[which]
            self._out.seen(name, len(rows))
            self._write(name, rows[has_end])
            if not has_end.all():
                still = self._open.get(name) or _Open(np.zeros(0, np.int64), rows[:0])
                self._open[name] = still.added(which[~has_end] + first, rows[~has_end])
        if self._nesting.open > _MOST_OPEN:
            self.finish(whole=False)

    def _end_open(self, begins: np.ndarray, times: np.ndarray) -> None:
        """End slices of earlier packets: those that these events began, at these times."""
        if not len(begins):
            return
        order = np.argsort(begins)
        begins, times = begins[order], times[order]
        for name, still in list(self._open.items()):
            at = np.searchsorted(begins, still.numbers)
            at[at == len(begins)] = 0
            ended = begins[at] == still.numbers
            if ended.any():
                rows = still.rows[ended]
                rows["end"] = times[at[ended]]
                self._write(name, rows)
                self._open[name] = _Open(still.numbers[~ended], still.rows[~ended])

    def _begins(self, packets: Packets) -> np.ndarray:
        """For each event, the number of the one that it ends, -1 for none."""
        tracks = packets.track
        own = tracks == 0
        if own.any():
            tracks = np.where(own, _looked_up(self._tracks, packets.sequence, np.dtype(np.uint64)), tracks)
        kind = packets.type
        phases = np.where((kind == SLICE_BEGIN) | (kind == SLICE_END), kind, 0).astype(np.uint8)
        return self._nesting.feed(np.ascontiguousarray(tracks), phases)

    def _rows(
        self,
        at: np.ndarray,
        styles: np.ndarray,
        times: np.ndarray,
        packets: Packets,
        arguments: Arguments,
        names: dict[int, str],
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """For each table, the events ``at`` that are its, and their rows without ends."""
        if not len(at):
            return
        tables = self._styles.tables[styles[at]]
        for number in np.flatnonzero(np.bincount(tables)).tolist():
            which = at[tables == number]
            mine = styles[which]
            table, rows = self._styles.rows(number, mine)
            rows[table.start_field] = times[which]
            self._set_track_fields(table, rows, mine, packets.sequence[which], packets.kernel[which] == 0)
            self._set_arguments(table, rows, mine, which, len(times), arguments, names)
            yield table.name, which, rows

    def _set_track_fields(
        self, table: Table, rows: np.ndarray, styles: np.ndarray, sequences: np.ndarray, on_track: np.ndarray
    ) -> None:
        """Set what the tracks of events say of them: the process, and a field that numbers tracks."""
        if on_track.all():
            rows["process"] = _looked_up(self._processes, sequences, np.dtype(np.uint16))
        places = self._styles.track_fields[styles]
        for place in np.flatnonzero(np.bincount(places)).tolist():
            name = self._styles.field(table, place - 1) if place else None
            if name is not None:
                of = places == place
                rows[name][of] = _looked_up(self._numbers, sequences[of], rows.dtype[name])

    def _set_arguments(
        self,
        table: Table,
        rows: np.ndarray,
        styles: np.ndarray,
        which: np.ndarray,
        events: int,
        arguments: Arguments,
        names: dict[int, str],
    ) -> None:
        wanted = self._styles.arguments[styles]
        place = np.full(events, -1, np.int64)
        place[which] = np.arange(len(which))
        place = place[arguments.events]
        if TEXT in table.offsets:
            rows[TEXT] = self._patterns.texts(rows[TEXT], place, arguments, names)
        if not wanted.any() or not len(arguments.events):
            return
        mine = np.flatnonzero(place >= 0)
        place = place[mine]
        ids, inverse = _distinct(arguments.names[mine])
        for i, iid in enumerate(ids.tolist()):
            name = names.get(iid)
            bit = self._styles.place(table, name) if name else None
            if name is None or bit is None:
                continue
            chosen = np.flatnonzero(inverse == i)
            chosen = chosen[(wanted[place[chosen]] >> np.uint64(bit) & np.uint64(1)).astype(bool)]
            values = arguments.values[mine[chosen]]
            target = rows.dtype[name]
            rows[name][place[chosen]] = values.view(np.float64) if target.kind == "f" else values.astype(target)
        if "payload" in table.offsets:
            _unshow_payloads(rows)

    # How they are made

    def _times(self, packets: Packets, anchors: list[tuple[int, int, int]]) -> np.ndarray:
        """The time of each event. That of a packet is the difference to the packet of its sequence before it."""
        sequences, differs = packets.sequence, packets.clock
        absolute = (differs != 0) & (differs != INCREMENTAL_CLOCK)
        steps = np.where(absolute, 0, packets.time)
        present, _ = _distinct(sequences)
        # Where the clocks stood before, as if they were set there.
        set_at = [(0, s, self._clocks.get(s, 0)) for s in present.tolist()] + anchors
        before, of, to = (
            (np.array(column, np.uint64) for column in zip(*set_at, strict=True))
            if set_at
            else [np.zeros(0, np.uint64)] * 3
        )
        where = before.astype(np.int64)
        sequences = np.insert(sequences, where, of)
        steps = np.insert(steps, where, np.zeros(len(to), np.uint64))
        is_set = np.insert(np.zeros(len(differs), bool), where, np.ones(len(to), bool))
        values = np.insert(np.zeros(len(differs), np.uint64), where, to)
        order = np.argsort(sequences, kind="stable")
        total = np.cumsum(steps[order], dtype=np.uint64)
        last = np.maximum.accumulate(np.where(is_set[order], np.arange(len(order)), 0))
        times = np.empty(len(order), np.uint64)
        times[order] = total - total[last] + values[order][last] if len(order) else 0
        of_order = sequences[order]
        ends = order[np.flatnonzero(np.append(of_order[1:] != of_order[:-1], np.ones(min(len(order), 1), bool)))]
        self._clocks.update(zip(sequences[ends].tolist(), times[ends].tolist(), strict=True))
        times = times[~is_set]
        return np.where(absolute, packets.time, times)

    def _unexplained(self, which: np.ndarray, durations: np.ndarray | None = None) -> None:
        count = int(which.sum())
        if count:
            duration = int(durations[which].sum()) if durations is not None else 0
            self._out.seen("events", count, duration)
            self._out.left("events", count, duration, why=_UNEXPLAINED)

    def _write(self, name: str, rows: np.ndarray, *, events: bool = False) -> None:
        """Write rows and note that they are kept; ``events``: that they were seen, too."""
        if not len(rows):
            return
        lost = self._restoring.rows(name, rows)
        unknown = _unknown(name, rows)
        known = rows[~lost & ~unknown]
        duration = duration_of(name, known)
        if events:
            self._out.seen(name, len(rows))
        self._out.seen(name, 0, duration)
        self._out.kept(name, int((~lost).sum()), duration)
        self._out.lost(name, int(lost.sum()), why="of no process")


class _Styles:
    """The rows of styles, by id."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._keys = np.zeros(0, np.uint64)  # rising
        self._of_keys = np.zeros(0, np.int64)
        self.tables = np.zeros(0, np.int64)
        self.track_fields = np.zeros(0, np.int64)
        self.arguments = np.zeros(0, np.uint64)
        self._places = np.zeros(0, np.int64)  # of each style among the rows of its table
        self._tables: dict[int, Table] = {}
        self._rows: dict[int, np.ndarray] = {}

    def add(self, told: StyleRows, *, of_sequence: bool) -> None:
        """More styles. Ids of kernels hold in their sequence, others in the whole trace."""
        usable = (told.ids < 1 << 32) & (told.sequences < 1 << 32) & (told.track_fields < 64)
        at = np.flatnonzero(usable)
        keys = told.ids[at] | (told.sequences[at] << np.uint64(32) if of_sequence else np.uint64(0))
        # Several sequences are told of one style.
        keys, first = np.unique(keys, return_index=True)
        new = ~np.isin(keys, self._keys)
        keys, at = keys[new], at[first[new]]
        if not len(at):
            return
        tables = told.tables[at]
        places = np.full(len(at), -1, np.int64)
        for number in np.unique(tables).tolist():
            mine = tables == number
            table, rows = self._layouts.styles(number, told.fields, at[mine])
            if table is None:
                continue
            known = self._rows.get(number, rows[:0])
            places[mine] = np.arange(len(known), len(known) + len(rows))
            self._tables[number], self._rows[number] = table, np.concatenate([known, rows])
        good = places >= 0
        count = len(self.tables)
        self.tables = np.append(self.tables, tables[good].astype(np.int64))
        self.track_fields = np.append(self.track_fields, told.track_fields[at][good].astype(np.int64))
        self.arguments = np.append(self.arguments, told.arguments[at][good])
        self._places = np.append(self._places, places[good])
        keys = np.append(self._keys, keys[good])
        of_keys = np.append(self._of_keys, np.arange(count, len(self.tables)))
        order = np.argsort(keys, kind="stable")
        self._keys, self._of_keys = keys[order], of_keys[order]

    def find(self, packets: Packets) -> np.ndarray:
        """The style of each event, -1 for none."""
        gpu = packets.kernel != 0
        # Kernels are numbered from 1 in each sequence, and counters have one style in each, 0 so to speak.
        of_sequence = gpu | (packets.type == COUNTER)
        keys = np.where(of_sequence, packets.kernel | packets.sequence << np.uint64(32), packets.name)
        none = np.full(len(keys), -1, np.int64)
        if not len(self._keys):
            return none
        at = np.searchsorted(self._keys, keys)
        at[at == len(self._keys)] = 0
        found: np.ndarray = np.where((self._keys[at] == keys) & (keys != 0), self._of_keys[at], none)
        return found

    def rows(self, number: int, styles: np.ndarray) -> tuple[Table, np.ndarray]:
        """The rows of styles of one table, to be changed."""
        return self._tables[number], self._rows[number][self._places[styles]]

    def place(self, table: Table, name: str) -> int | None:
        """Where the writer of the file had a field; None for no field of this version's table."""
        if name not in table.offsets:
            return None
        return next((i for i, (n, _) in enumerate(self._layouts.fields(table)) if n == name), None)

    def field(self, table: Table, place: int) -> str | None:
        """The field that the writer of the file had there."""
        found = self._layouts.fields(table)
        name = found[place][0] if place < len(found) else ""
        return name if name in table.offsets else None


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of a column with long runs, rising, and where each value is among them."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    found, inverse = np.unique(values[starts], return_inverse=True)
    return found, np.repeat(inverse, np.diff(np.append(starts, len(values))))


def _looked_up(known: dict[int, int], sequences: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """What is known of the sequence of each event, 0 for nothing."""
    found, inverse = _distinct(sequences)
    values = np.array([known.get(sequence, 0) for sequence in found.tolist()], np.uint64).astype(dtype)
    looked_up: np.ndarray = values[inverse]
    return looked_up


def _unshow_payloads(rows: np.ndarray) -> None:
    """The bits of NVTX payloads, from the numbers that show them."""
    kind, bits = rows["payload_type"], rows["payload"]
    short = (kind == _U32) | (kind == _I32)
    if short.any():
        bits[short] &= np.uint64(0xFFFFFFFF)
    single = kind == _F32
    if single.any():
        with np.errstate(invalid="ignore", over="ignore"):
            bits[single] = bits[single].view(np.float64).astype(np.float32).view(np.uint32)


def _unknown(name: str, rows: np.ndarray) -> np.ndarray:
    """Which rows have no known times, and so no duration."""
    table = TABLES[name]
    if table.start_field is None or table.end_field is None:
        return np.zeros(len(rows), bool)
    latest = np.uint64((1 << 63) - 1)
    start, end = rows[table.start_field], rows[table.end_field]
    unknown: np.ndarray = (start == 0) | (end < start) | (end > latest)
    return unknown
