"""What waited for which work: calls of the host that synchronise, and work behind a ``cudaStreamWaitEvent``.

CUPTI numbers API calls in the order in which they begin, so correlation ids tell what came before what, also for calls
that were not recorded themselves. A wait is for the last work of a stream before a call:

* a stream: the work of this stream with the highest correlation id below that of the waiting call;
* a context: that of each of its streams;
* an event: the record of this event (the recording CUPTI names, else the last one before the wait), and of the
  stream that it was recorded in the work with the highest id below that of the record.

Work waits for an event when a wait of its stream lies before it: the first work with a higher id than the wait's. What
the records do not tell is left out: a wait for an event whose record is not in the capture, work before the capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ...runbin.layout import TABLES
from ...trace import Trace
from .gpu import Part
from .numbered import Numbered

#: Rows of ``synchronizations`` and ``cuda_events`` beyond which waits are not looked for: they are kept in memory.
MOST = 1 << 21

_EVENT, _STREAM_EVENT, _STREAM, _CONTEXT = 1, 2, 3, 4

Stream = tuple[int, ...]  # context and stream
Lists = tuple[np.ndarray, np.ndarray]  # offsets by row, and ids


class _Last:
    """For some correlation ids ``asked`` (ascending), the last work of one stream below each."""

    def __init__(self, asked: np.ndarray) -> None:
        self.asked = asked
        self._work = np.zeros(len(asked), np.uint32)
        self._ids = np.zeros(len(asked), np.uint64)
        self._filled = 0  # what lies before this has all that came before in it

    def note(self, work: np.ndarray, ids: np.ndarray) -> None:
        """Work by ascending correlation id, and the ids of its events."""
        begin = int(np.searchsorted(self.asked, work[0], "right"))
        end = min(int(np.searchsorted(self.asked, work[-1], "right")) + 1, len(self.asked))
        if begin >= end:
            return
        at = np.searchsorted(work, self.asked[begin:end]) - 1
        later = work[at] >= self._work[begin:end]
        self._work[begin:end][later] = work[at][later]
        self._ids[begin:end][later] = ids[at][later]
        self._filled = min(self._filled, begin)

    def below(self, asked: np.ndarray) -> np.ndarray:
        """The event of the last work below each of these ids, which are among those asked, as far as work was noted; 0
        for none."""
        at = np.searchsorted(self.asked, asked)
        self._fill(int(at.max(initial=-1)) + 1)
        return np.where(self._work[at] > 0, self._ids[at], np.uint64(0))

    def _fill(self, end: int) -> None:
        begin = max(self._filled - 1, 0)
        if end <= begin:
            return
        work = self._work[begin:end]
        best = np.maximum.accumulate(work)
        at = np.maximum.accumulate(np.where(work == best, np.arange(len(work)), 0))
        self._ids[begin:end], self._work[begin:end] = self._ids[begin:end][at], best
        self._filled = max(self._filled, end)


@dataclass(frozen=True)
class _Asked:
    """Waits, by row: the correlation id of what waits, and below which id the last work of which stream it awaits."""

    by: np.ndarray
    context: np.ndarray
    stream: np.ndarray
    below: np.ndarray

    def __len__(self) -> int:
        return len(self.by)

    def __getitem__(self, at: np.ndarray | slice) -> _Asked:
        return _Asked(self.by[at], self.context[at], self.stream[at], self.below[at])

    def of(self, stream: Stream) -> np.ndarray:
        """Which are for work of this stream."""
        same: np.ndarray = (self.context == stream[0]) & (self.stream == stream[1])
        return same


class _Waiting:
    """Waits of one stream for others, by ascending correlation id; ``done`` of them are answered."""

    def __init__(self, asked: _Asked) -> None:
        self.asked = asked[np.argsort(asked.by, kind="stable")]
        self.done = 0


@dataclass(frozen=True)
class _Work:
    """Work of one stream in one part, by ascending correlation id, with the ids of its events and its rows."""

    part: int
    work: np.ndarray
    ids: np.ndarray
    rows: np.ndarray


class Waits:
    """The waits of one process, read along with the work waited for. ``queues`` numbers its streams; ``dropped``
    counts the waits that were too many to look for."""

    def __init__(self, trace: Trace, process: int, queues: Numbered) -> None:
        self._queues, self.dropped = queues, 0
        syncs, records = (_rows(trace, table, process) for table in ("synchronizations", "cuda_events"))
        if len(syncs) + len(records) > MOST:
            self.dropped = len(syncs)
            syncs, records = syncs[:0], records[:0]
        kind = syncs["type"]
        self._whole = syncs[kind == _CONTEXT][["correlation", "context"]]  # waits for all streams of a context
        streams = syncs[kind == _STREAM]
        of_streams = _Asked(*(streams[f] for f in ("correlation", "context", "stream", "correlation")))
        of_events = _recorded(syncs[kind == _EVENT], records)[1]
        self._host = _Asked(
            *(np.concatenate([getattr(of_streams, f.name), getattr(of_events, f.name)]) for f in fields(_Asked))
        )
        behind = syncs[kind == _STREAM_EVENT]
        known, asked = _recorded(behind, records)
        self._waiting: dict[Stream, _Waiting] = {}
        for key in np.unique(behind[["context", "stream"]][known]).tolist():
            mine = (behind["context"][known] == key[0]) & (behind["stream"][known] == key[1])
            self._waiting[key] = _Waiting(asked[mine])
        self._last: dict[Stream, _Last] = {}
        self.active = bool(len(self._host) or len(self._whole) or self._waiting)

    def window(self, parts: Sequence[Part], queues: Sequence[np.ndarray]) -> list[Lists | None]:
        """Note the work of a window; for each part what its rows waited for, None where that is nothing."""
        out: list[Lists | None] = [None] * len(parts)
        if not self.active:
            return out
        waiting: dict[Stream, list[_Work]] = {}
        for number, (part, queue) in enumerate(zip(parts, queues, strict=True)):
            for one in np.flatnonzero(np.bincount(queue)).tolist():
                stream = self._queues.keys[one][1:]
                work = _work(number, part, np.flatnonzero(queue == one))
                if len(work.work):
                    self._last_of(stream).note(work.work, work.ids)
                    if stream in self._waiting:
                        waiting.setdefault(stream, []).append(work)
        found = [self._answer(self._waiting[stream], works) for stream, works in waiting.items()]
        if found:
            of, rows, ids = (np.concatenate(columns) for columns in zip(*found, strict=True))
            for number, part in enumerate(parts):
                mine = np.unique(np.stack([rows[of == number], ids[of == number]], axis=1), axis=0)
                if len(mine):
                    counts = np.bincount(mine[:, 0].astype(np.int64), minlength=len(part.block.rows))
                    offsets = np.append(0, np.cumsum(counts)).astype(np.uint32)
                    out[number] = offsets, np.ascontiguousarray(mine[:, 1])
        return out

    def of_calls(self) -> CallWaits:
        """What calls of the host waited for, once all work was noted."""
        by, ids = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint64)]
        for stream, last in self._last.items():
            mine, whole = self._host[self._host.of(stream)], self._of_context(stream)
            for calls, below in ((mine.by, mine.below), (whole, whole)):
                events = last.below(below)
                by.append(calls[events > 0])
                ids.append(events[events > 0])
        return CallWaits(np.concatenate(by), np.concatenate(ids))

    def _of_context(self, stream: Stream) -> np.ndarray:
        calls: np.ndarray = self._whole["correlation"][self._whole["context"] == stream[0]]
        return calls

    def _last_of(self, stream: Stream) -> _Last:
        if stream not in self._last:
            others = (self._host, *(waiting.asked for waiting in self._waiting.values()))
            asked = [self._of_context(stream), *(w.below[w.of(stream)] for w in others)]
            self._last[stream] = _Last(np.unique(np.concatenate(asked)))
        return self._last[stream]

    def _answer(self, waiting: _Waiting, works: Sequence[_Work]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The waits that end with work of this window: their parts, rows, and the events that were waited for."""
        work, rows = (np.concatenate([getattr(w, name) for w in works]) for name in ("work", "rows"))
        parts = np.repeat([w.part for w in works], [len(w.work) for w in works]).astype(np.uint64)
        if len(works) > 1:
            order = np.argsort(work, kind="stable")
            work, rows, parts = work[order], rows[order], parts[order]
        end = int(np.searchsorted(waiting.asked.by, work[-1]))
        asked = waiting.asked[slice(waiting.done, max(end, waiting.done))]
        waiting.done = max(end, waiting.done)
        at = np.searchsorted(work, asked.by, "right")
        ids = np.zeros(len(asked), np.uint64)
        for stream in np.unique(np.stack([asked.context, asked.stream], axis=1), axis=0).tolist():
            mine = asked.of(tuple(stream))
            ids[mine] = self._last_of(tuple(stream)).below(asked.below[mine])
        known = ids > 0
        return parts[at[known]], rows[at[known]].astype(np.uint64), ids[known]


class CallWaits:
    """The events that API calls waited for, by the correlation id of the call."""

    def __init__(self, by: np.ndarray, ids: np.ndarray) -> None:
        order = np.lexsort((ids, by))
        self._ids = ids[order]
        self._calls, starts = np.unique(by[order], return_index=True)
        self._offsets = np.append(starts, len(ids))

    def lists(self, correlations: np.ndarray) -> Lists | None:
        """What each call waited for, None when none did."""
        if not len(self._calls) or not len(correlations):
            return None
        begin, end = np.searchsorted(self._calls, [correlations.min(), correlations.max() + np.int64(1)])
        if begin == end:
            return None
        calls = self._calls[begin:end]
        first, size = calls[0], int(calls[-1] - calls[0]) + 1
        if size < 16 * len(correlations):
            place = np.full(size + 1, -1, np.int32)  # the last one is for what lies outside
            place[calls - first] = np.arange(len(calls))
            at = place[np.minimum(correlations - first, np.uint32(size))]
        else:
            at = np.minimum(np.searchsorted(calls, correlations), len(calls) - 1)
            at = np.where(calls[at] == correlations, at, -1)
        rows = np.flatnonzero(at >= 0)
        starts, stops = self._offsets[begin + at[rows]], self._offsets[begin + at[rows] + 1]
        counts = np.zeros(len(correlations), np.int64)
        counts[rows] = stops - starts
        offsets = np.append(0, np.cumsum(counts))
        # Each list is a stretch of all ids: its place there less its place here, added to the numbers from 0 on.
        ids = self._ids[np.arange(offsets[-1]) + np.repeat(starts - offsets[rows], stops - starts)]
        return offsets.astype(np.uint32), ids


def _work(number: int, part: Part, rows: np.ndarray) -> _Work:
    """Rows of one stream."""
    work = part.field("correlation")[rows]
    if (work[1:] < work[:-1]).any():
        order = np.argsort(work, kind="stable")
        rows, work = rows[order], work[order]
    known = int(np.searchsorted(work, 0, "right"))
    rows = rows[known:]
    return _Work(number, work[known:], part.ids[rows], part.numbers[rows])


def _rows(trace: Trace, table: str, process: int) -> np.ndarray:
    """The rows of a table that belong to a process and to a call."""
    parts = [np.zeros(0, TABLES[table].dtype)]
    for info in trace.block_infos(table):
        if info.process == process and sum(map(len, parts)) <= MOST:
            parts.append(trace.block(info)[0])
    rows = np.concatenate(parts)
    kept: np.ndarray = rows[rows["correlation"] > 0]
    return kept


def _recorded(syncs: np.ndarray, records: np.ndarray) -> tuple[np.ndarray, _Asked]:
    """Of waits for events those whose record is known, and what they are for."""
    at = np.full(len(syncs), -1)
    if len(records):
        events, of = np.unique(_event(records), return_inverse=True)
        event = np.minimum(np.searchsorted(events, _event(syncs)), len(events) - 1)
        known, named = events[event] == _event(syncs), syncs["event_record"] > 0
        # The recording that CUPTI names; else the last one before the wait.
        numbers = np.unique(records["event_record"])
        have, want = (np.searchsorted(numbers, rows["event_record"]) for rows in (records, syncs))
        found = _before(of, have, event, want + 1)
        named &= records["event_record"][found] == syncs["event_record"]
        at = np.where(known & named, found, at)
        found = _before(of, records["correlation"], event, syncs["correlation"])
        at = np.where(known & (syncs["event_record"] == 0), found, at)
    which = np.flatnonzero(at >= 0)
    chosen = records[at[which]]
    by = syncs["correlation"][which]
    return which, _Asked(by, chosen["context"], chosen["stream"], chosen["correlation"])


def _before(of: np.ndarray, have: np.ndarray, event: np.ndarray, want: np.ndarray) -> np.ndarray:
    """For each event the row of ``of`` that is it, with the highest number in ``have`` below ``want``; -1 for none."""
    high = np.uint64(32)
    keys = of.astype(np.uint64) << high | have.astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    found = np.searchsorted(keys[order], event.astype(np.uint64) << high | want.astype(np.uint64)) - 1
    row = order[np.maximum(found, 0)]
    return np.where((found >= 0) & (of[row] == event), row, -1)


def _event(rows: np.ndarray) -> np.ndarray:
    key: np.ndarray = rows["context"].astype(np.uint64) << np.uint64(32) | rows["event"]
    return key
