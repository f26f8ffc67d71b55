"""Waits for GPU work: host calls that synchronize, and work after a ``cudaStreamWaitEvent``.

CUPTI numbers API calls in the order in which they start, so correlation ids give the order of calls, even of calls that
are not in the capture. A wait ends with the last work of a stream before a call:

* wait for a stream: the work of the stream with the highest correlation id below the id of the waiting call;
* wait for a context: the same for each of its streams;
* wait for an event: the work with the highest correlation id below the id of the call that recorded the event, on the
  stream of that call. CUPTI may name the recording; otherwise it is the last one before the wait.

After a stream waits for an event, the next work of that stream has the wait: the first work with a higher id. Waits for
events or work that are not in the capture are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....runbin.layout import TABLES
from ....trace import Trace
from ....trace.rows import ascends, by_value, changes, chosen, distinct, joined, spanned
from ..gpu_events import GpuPart, Lists
from ..gpu_styles import KeyIndex

#: Waits are not derived from more rows of ``synchronizations`` and ``cuda_events`` than this, to limit memory.
MOST = 1 << 21

_EVENT = 1
_STREAM_EVENT = 2
_STREAM = 3
_CONTEXT = 4
_LOOKED_AT = ("correlation", "event_record", "stream", "event", "context", "type")

# Here a stream is one number: its context and its id.


class _Last:
    """For each of the correlation ids ``asked`` (ascending), the last work of one stream with a lower id."""

    def __init__(self, asked: np.ndarray) -> None:
        self.asked = asked
        self._work = np.zeros(len(asked), np.uint32)
        self._ids = np.zeros(len(asked), np.uint64)
        # Entries below this index include the work of all entries before them.
        self._filled = 0

    def note(self, work: np.ndarray, ids: np.ndarray) -> None:
        """Add work by ascending correlation id, and the ids of its events."""
        begin = int(np.searchsorted(self.asked, work[0], "right"))
        last = int(np.searchsorted(self.asked, work[-1], "right"))
        end = last + 1
        asked = self.asked[begin:end]
        if not len(asked):
            return
        at = np.searchsorted(work, asked) - 1
        newest = work[at]
        later = newest >= self._work[begin:end]
        self._work[begin:end][later] = newest[later]
        newest_ids = ids[at]
        self._ids[begin:end][later] = newest_ids[later]
        self._filled = min(self._filled, begin)

    def below(self, asked: np.ndarray) -> np.ndarray:
        """The event id of the last noted work with a lower correlation id than each of these ids, 0 for none. The ids
        must be among ``self.asked``."""
        at = np.searchsorted(self.asked, asked)
        self._fill(int(at.max(initial=-1)) + 1)
        noted = self._work[at] > 0
        return np.where(noted, self._ids[at], np.uint64(0))

    def _fill(self, end: int) -> None:
        begin = max(self._filled - 1, 0)
        if end <= begin:
            return
        work = self._work[begin:end]
        best = np.maximum.accumulate(work)
        place = np.arange(len(work))
        has_best = np.where(work == best, place, 0)
        at = np.maximum.accumulate(has_best)
        ids = self._ids[begin:end]
        self._ids[begin:end] = ids[at]
        self._work[begin:end] = best
        self._filled = max(self._filled, end)


#: A wait: the correlation id of the waiting call or work, the waiting stream (0 for the host), the awaited stream, and
#: a correlation id. The awaited work is the last work of the stream with a lower id.
_WAIT = np.dtype(
    [
        ("by", np.uint32),
        ("waiter", np.uint64),
        ("stream", np.uint64),
        ("below", np.uint32),
    ]
)


def _grouped(waits: np.ndarray, field: str) -> dict[int, np.ndarray]:
    """The waits by the value of a field, in their order."""
    order = np.argsort(waits[field], kind="stable")
    waits = chosen(waits, order)
    values, starts = np.unique(waits[field], return_index=True)
    groups = np.split(waits, starts[1:])
    return dict(zip(values.tolist(), groups, strict=False))


def _stream_waits(syncs: np.ndarray) -> np.ndarray:
    """The waits of the host for all work of a stream."""
    mine = chosen(syncs, syncs["type"] == _STREAM)
    waits = np.zeros(len(mine), _WAIT)
    waits["by"] = mine["correlation"]
    waits["below"] = mine["correlation"]
    waits["stream"] = _key(mine["context"], mine["stream"])
    return waits


def _event_waits(syncs: np.ndarray, records: np.ndarray, kind: int) -> np.ndarray:
    """The waits for events whose recording is known. ``kind`` selects waits of the host or of streams."""
    mine = chosen(syncs, syncs["type"] == kind)
    row = _recorded(mine, records)
    known = row >= 0
    mine = chosen(mine, known)
    recorded = chosen(records, row[known])
    waits = np.zeros(len(mine), _WAIT)
    waits["by"] = mine["correlation"]
    waits["below"] = recorded["correlation"]
    waits["stream"] = _key(recorded["context"], recorded["stream"])
    if kind == _STREAM_EVENT:
        waits["waiter"] = _key(mine["context"], mine["stream"])
    return waits


def _context_waits(syncs: np.ndarray) -> dict[int, np.ndarray]:
    """The calls that wait for all streams of a context, by context, ascending."""
    mine = chosen(syncs, syncs["type"] == _CONTEXT)
    calls = {}
    for context in distinct(mine["context"]).tolist():
        of_context = mine[mine["context"] == context]
        calls[context] = np.sort(of_context["correlation"])
    return calls


@dataclass
class _StreamWaits:
    """Waits of one stream for others, by ascending correlation id. The first ``done`` are resolved."""

    waits: np.ndarray
    done: int = 0

    def __post_init__(self) -> None:
        order = np.argsort(self.waits["by"], kind="stable")
        self.waits = chosen(self.waits, order)
        self.by = self.waits["by"].copy()


class _Work(NamedTuple):
    """Work of one stream in one part: correlation ids (ascending), event ids and rows."""

    part: int
    work: np.ndarray
    ids: np.ndarray
    rows: np.ndarray


class Waits:
    """The waits of one process, resolved in step with the work. ``queues`` numbers its streams. ``dropped`` counts the
    waits beyond :data:`MOST`, which are not resolved."""

    def __init__(self, trace: Trace, process: int, queues: KeyIndex) -> None:
        self._queues = queues
        self.dropped = 0
        syncs = _rows(trace, "synchronizations", process)
        records = _rows(trace, "cuda_events", process)
        if len(syncs) + len(records) > MOST:
            self.dropped = len(syncs)
            syncs = syncs[:0]
            records = records[:0]
        for_events = _event_waits(syncs, records, _EVENT)
        host = np.append(_stream_waits(syncs), for_events)
        device = _event_waits(syncs, records, _STREAM_EVENT)
        #: By context, the calls that wait for all its streams.
        self._whole = _context_waits(syncs)
        #: By awaited stream, the waits of the host, and all waits.
        self._host = _grouped(host, "stream")
        self._awaited = _grouped(np.append(device, host), "stream")
        #: By stream, its waits for other streams.
        by_waiter = _grouped(device, "waiter")
        self._waiting = {
            stream: _StreamWaits(by_waiter[stream]) for stream in by_waiter
        }
        self._last: dict[int, _Last] = {}
        self._wholes = 0
        #: Streams whose waits for the whole context are dropped.
        self._partial: set[int] = set()
        self._active = bool(self._host or self._whole or self._waiting)

    def window(
        self, parts: Sequence[GpuPart], queues: Sequence[np.ndarray]
    ) -> list[Lists | None]:
        """Add the work of a window. Returns the event ids that the rows of each part waited for, None for a part
        without waits."""
        out: list[Lists | None] = [None] * len(parts)
        if not self._active:
            return out
        resolved = []
        for stream, works in self._note(parts, queues).items():
            resolved.append(self._resolve(self._waiting[stream], works))
        if not resolved:
            return out
        part_of, rows, ids = map(np.concatenate, zip(*resolved, strict=True))
        for number, part in enumerate(parts):
            mine = part_of == number
            if mine.any():
                count = len(part.block.rows)
                out[number] = _lists(rows[mine], ids[mine], count)
        return out

    def _note(
        self, parts: Sequence[GpuPart], queues: Sequence[np.ndarray]
    ) -> dict[int, list[_Work]]:
        """Note the work of streams that others wait for. Returns the work of streams that wait for others."""
        waiting: dict[int, list[_Work]] = {}
        for number, (part, queue) in enumerate(zip(parts, queues, strict=True)):
            correlations = np.ascontiguousarray(part.rows["correlation"])
            for queue_number, at in _each(queue):
                _, context, stream = self._queues.keys[queue_number]
                key = context << 32 | stream
                waits = key in self._waiting
                if not (waits or key in self._awaited or context in self._whole):
                    continue
                work = _work(number, part, correlations, at)
                if not len(work.work):
                    continue
                self._last_of(key).note(work.work, work.ids)
                if waits:
                    waiting.setdefault(key, []).append(work)
        return waiting

    def of_calls(self) -> CallWaits:
        """The waits of host calls, after all work was added."""
        nothing = np.zeros(0, _WAIT)
        calls = [nothing["by"]]
        ids = [np.zeros(0, np.uint64)]
        for stream, last in self._last.items():
            host = self._host.get(stream, nothing)
            if stream in self._partial:
                whole = nothing["by"]
            else:
                whole = self._of_context(stream)
            asked = ((whole, whole), (host["by"], host["below"]))
            for by, below in asked:
                events = last.below(below)
                calls.append(by[events > 0])
                ids.append(events[events > 0])
        return CallWaits(np.concatenate(calls), np.concatenate(ids))

    def _of_context(self, stream: int) -> np.ndarray:
        return self._whole.get(stream >> 32, np.zeros(0, np.uint32))

    def _last_of(self, stream: int) -> _Last:
        if stream not in self._last:
            asked = self._of_context(stream)
            if self._wholes + len(asked) > MOST:
                # A wait for a context needs one entry for each of its streams. A capture can have many waits and many
                # streams.
                self.dropped += len(asked)
                self._partial.add(stream)
                asked = asked[:0]
            self._wholes += len(asked)
            waits = self._awaited.get(stream)
            if waits is not None:
                asked = np.append(asked, waits["below"])
            self._last[stream] = _Last(distinct(asked))
        return self._last[stream]

    def _resolve(
        self, waiting: _StreamWaits, works: Sequence[_Work]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The waits of work in this window: the part and row of the work, and the event id that it waited for."""
        work = np.concatenate([w.work for w in works])
        rows = np.concatenate([w.rows for w in works])
        sizes = [len(w.work) for w in works]
        parts = np.repeat([w.part for w in works], sizes)
        if len(works) > 1:
            order = np.argsort(work, kind="stable")
            work = work[order]
            rows = rows[order]
            parts = parts[order]
        end = int(np.searchsorted(waiting.by, work[-1]))
        end = max(end, waiting.done)
        waits = waiting.waits[waiting.done : end]
        waiting.done = end
        at = np.searchsorted(work, waits["by"], "right")
        ids = np.zeros(len(waits), np.uint64)
        for stream in distinct(waits["stream"]).tolist():
            mine = waits["stream"] == stream
            last = self._last_of(stream)
            ids[mine] = last.below(waits["below"][mine])
        known = ids > 0
        at = at[known]
        return parts[at], rows[at], ids[known]


def _lists(rows: np.ndarray, ids: np.ndarray, count: int) -> Lists:
    """Lists of distinct ids by row, for ``count`` rows."""
    order = np.lexsort((ids, rows))
    rows = rows[order]
    ids = ids[order]
    new = changes(rows, ids)
    counts = np.bincount(rows[new], minlength=count)
    offsets = np.append(0, np.cumsum(counts))
    return offsets.astype(np.uint32), ids[new]


class CallWaits:
    """The event ids that API calls waited for, by correlation id of the call."""

    def __init__(self, by: np.ndarray, ids: np.ndarray) -> None:
        order = np.lexsort((ids, by))
        self._ids = ids[order]
        self._calls, starts = np.unique(by[order], return_index=True)
        self._offsets = np.append(starts, len(ids))

    def lists(self, correlations: np.ndarray) -> Lists | None:
        """The event ids that each call waited for; None if no call waited."""
        if not len(self._calls) or not len(correlations):
            return None
        begin = int(np.searchsorted(self._calls, correlations.min(), "left"))
        end = int(np.searchsorted(self._calls, correlations.max(), "right"))
        if begin == end:
            return None
        at = _places(self._calls[begin:end], correlations)
        rows = np.flatnonzero(at >= 0)
        waiting = begin + at[rows]
        starts = self._offsets[waiting]
        stops = self._offsets[waiting + 1]
        counts = np.zeros(len(correlations), np.int64)
        counts[rows] = stops - starts
        offsets = np.append(0, np.cumsum(counts))
        # Each list is a slice of self._ids.
        ids = self._ids[spanned(starts, stops)]
        return offsets.astype(np.uint32), ids


def _places(calls: np.ndarray, correlations: np.ndarray) -> np.ndarray:
    """For each id, the index of the call with this id, -1 for none. The ids of the calls ascend."""
    first = calls[0]
    size = int(calls[-1] - first) + 1
    if size < 16 * len(correlations):
        # The last entry stands for ids out of range.
        index = np.full(size + 1, -1, np.int32)
        index[calls - first] = np.arange(len(calls))
        within = np.minimum(correlations - first, np.uint32(size))
        return index[within]
    at = np.searchsorted(calls, correlations)
    at = np.minimum(at, len(calls) - 1)
    return np.where(calls[at] == correlations, at, -1)


def _each(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each distinct value, with its indices."""
    numbers = np.flatnonzero(np.bincount(values)).tolist()
    return zip(numbers, by_value(values, numbers), strict=True)


def _work(
    number: int, part: GpuPart, correlations: np.ndarray, at: np.ndarray
) -> _Work:
    """Work of one stream: some rows of a part."""
    work = correlations[at]
    if not ascends(work):
        order = np.argsort(work, kind="stable")
        at = at[order]
        work = work[order]
    known = int(np.searchsorted(work, 0, "right"))
    rows = at[known:] + part.begin
    ids = part.block.ids[rows]
    return _Work(number, work[known:], ids, rows)


def _rows(trace: Trace, table: str, process: int) -> np.ndarray:
    """The rows of a table for a process that have a correlation id, with the fields in :data:`_LOOKED_AT`."""
    layout = TABLES[table]
    names = [field for field in _LOOKED_AT if field in layout.offsets]
    fields = [(name, layout.dtype[name]) for name in names]
    dtype = np.dtype(fields)
    parts: list[np.ndarray] = []
    for info in trace.block_infos(table):
        if info.process == process and sum(map(len, parts)) <= MOST:
            rows, _ = trace.block(info)
            part = np.empty(len(rows), dtype)
            for name in names:
                part[name] = rows[name]
            parts.append(part)
    rows = joined(dtype, parts)
    known = rows["correlation"] > 0
    if known.all():
        return rows
    return chosen(rows, known)


def _recorded(syncs: np.ndarray, records: np.ndarray) -> np.ndarray:
    """For each wait for an event, the row in ``records`` that it waits for, -1 if it is not known."""
    row = np.full(len(syncs), -1)
    if not len(records):
        return row
    named = syncs["event_record"] > 0
    if named.any():
        row[named] = _named(syncs[named], records)
    if not named.all():
        row[~named] = _newest(syncs[~named], records)
    return row


def _named(syncs: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Return, for each wait, the row in ``records`` with its event and ``event_record``, or -1."""
    events, of = np.unique(_event(records), return_inverse=True)
    numbers, rank = np.unique(records["event_record"], return_inverse=True)
    keys = _key(rank, of.astype(np.uint64))
    order = np.argsort(keys, kind="stable")
    event = _nearest(events, _event(syncs))
    number = _nearest(numbers, syncs["event_record"])
    wanted = _key(number, event.astype(np.uint64))
    row = order[_nearest(keys[order], wanted)]
    same = _event(records[row]) == _event(syncs)
    same &= records["event_record"][row] == syncs["event_record"]
    return np.where(same, row, -1)


def _newest(syncs: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Return, for each wait, the row in ``records`` of the latest earlier recording of its event, or -1."""
    events, of = np.unique(_event(records), return_inverse=True)
    event = _nearest(events, _event(syncs))
    keys = _key(of, records["correlation"])
    order = np.argsort(keys, kind="stable")
    wanted = _key(event, syncs["correlation"])
    place = np.searchsorted(keys[order], wanted) - 1
    row = order[np.maximum(place, 0)]
    known = (place >= 0) & (of[row] == event)
    known &= events[event] == _event(syncs)
    return np.where(known, row, -1)


def _nearest(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each wanted number, the index of the first value that is equal or greater, or of the last value. The values
    ascend."""
    return np.minimum(np.searchsorted(values, wanted), len(values) - 1)


def _event(rows: np.ndarray) -> np.ndarray:
    return _key(rows["context"], rows["event"])


def _key(context: np.ndarray, number: np.ndarray) -> np.ndarray:
    key: np.ndarray = context.astype(np.uint64) << np.uint64(32)
    key |= number
    return key
