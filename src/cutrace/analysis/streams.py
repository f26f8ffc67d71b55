"""What each stream of a process did, and why it did nothing: busy time, idle time by reason, the queue before it.

docs/stats.md has the rules. The reasons of idle time are those of Holistic Trace Analysis (host wait, kernel wait,
other), with waits for other streams taken out of "other".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .distribution import NOTHING, Distributions, Spread
from .sweep import Calls, Stream, Window, Work
from .work import GPU_TABLES

#: Gaps up to this (ns) are what it takes to start a kernel behind another one; HTA calls it consecutive kernel delay.
CONSECUTIVE_NS = 30
#: Work that begins so soon (ns) behind the end of work of another stream is taken to have waited for it.
RELEASE_NS = 10_000
#: Launches that fill the queue of a stream: the next call that launches waits.
FULL_QUEUE = 1024

# Begins of work that are kept of each stream; queues are not measured beyond.
_KEPT = 4096
_NEVER = -1
REASONS = ("host", "kernel", "dependency", "other")


@dataclass(frozen=True)
class Idle:
    """Time (ns) between pieces of work of a stream, by what it waited for, and the number of such gaps."""

    host: int = 0
    kernel: int = 0
    dependency: int = 0
    other: int = 0
    gaps: int = 0

    @property
    def total(self) -> int:
        return self.host + self.kernel + self.dependency + self.other


@dataclass(frozen=True)
class Queue:
    """Launches that had not begun to run. ``at_launch`` is the length that each launch made (itself included),
    ``mean`` the average over the time from the first launch to the last begin, ``full`` the time (ns) at
    :data:`FULL_QUEUE` or more."""

    at_launch: Spread = NOTHING
    mean: float = 0.0
    full: int = 0


@dataclass(frozen=True)
class StreamUse:
    """One stream. ``counts`` has its GPU work by table; ``first`` and ``last`` (ns) are the begin of its first work and
    the end of its last; ``busy`` is the time in which it ran any."""

    process: int
    stream: Stream
    counts: dict[str, int]
    first: int
    last: int
    busy: int
    idle: Idle
    queue: Queue


@dataclass
class _State:
    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(GPU_TABLES), np.int64))
    first: int = _NEVER
    reached: int = _NEVER
    busy: int = 0
    idle: np.ndarray = field(default_factory=lambda: np.zeros(len(REASONS), np.int64))
    gaps: int = 0
    correlation: int = 0
    begins: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    waited: int = 0  # the times between queueing and begin, added
    first_queued: int = _NEVER
    queued: int = _NEVER
    begun: int = _NEVER
    full: int = 0


class Streams:
    """Takes in the windows of one process, in order."""

    def __init__(self, *, consecutive_ns: int = CONSECUTIVE_NS, full_queue: int = FULL_QUEUE) -> None:
        self._consecutive, self._full = consecutive_ns, min(full_queue, _KEPT)
        self._states: list[_State] = []
        self._lengths = Distributions()
        self._ends = np.zeros(0, np.int64)  # ends of earlier work, for what waited for it

    def add(self, window: Window) -> None:
        work = window.work
        if not len(work):
            return
        ends = np.concatenate([self._ends, work.end[work.end > work.start]])
        ends.sort(kind="stable")
        order = np.argsort(work.stream, kind="stable")
        sizes = np.bincount(work.stream)
        while len(self._states) < len(sizes):
            self._states.append(_State())
        edges = np.append(0, np.cumsum(sizes)).tolist()
        for number in np.flatnonzero(sizes).tolist():
            at = order[edges[number] : edges[number + 1]] if len(edges) > 2 else slice(None)
            self._stream(number, work, at, ends)
        self._ends = ends[np.searchsorted(ends, int(work.start[-1]) - RELEASE_NS) :]

    def _stream(self, number: int, work: Work, at: np.ndarray | slice, ends: np.ndarray) -> None:
        state = self._states[number]
        start, end, calls = work.start[at], work.end[at], work.calls[at]
        state.counts += np.bincount(work.table[at], minlength=len(GPU_TABLES))
        before = reached_before(end, state.reached)
        if state.first == _NEVER:
            state.first = int(start[0])
            before[0] = state.first
        state.busy += int((np.maximum(end, before) - np.maximum(start, before)).sum())
        state.reached = max(int(before[-1]), int(end[-1]))
        gaps = np.flatnonzero(start > before)
        if len(gaps):
            state.gaps += len(gaps)
            state.idle += self._reasons(start[gaps], before[gaps], calls[gaps], ends)
        self._queue(number, state, start, work.correlation[at], calls)

    def _reasons(self, start: np.ndarray, before: np.ndarray, calls: Calls, ends: np.ndarray) -> np.ndarray:
        """The length of gaps between ``before`` and ``start``, by reason."""
        gap = start - before
        host = calls.known & (calls.start > before)
        kernel = ~host & (gap < self._consecutive)
        # The latest end of any work up to the begin: if it lies in the gap, it is another stream's.
        at = np.searchsorted(ends, start, "right")
        latest = np.append(_NEVER, ends)[at]
        dependency = calls.known & ~host & ~kernel & (latest > before)
        dependency &= (calls.end <= latest) & (start - latest <= RELEASE_NS)
        lengths = [int(gap[mask].sum()) for mask in (host, kernel, dependency)]
        return np.array([*lengths, int(gap.sum()) - sum(lengths)])

    def _queue(self, number: int, state: _State, start: np.ndarray, correlation: np.ndarray, calls: Calls) -> None:
        # A graph is one launch, however many of its nodes the stream runs.
        first = np.diff(correlation.astype(np.int64), prepend=state.correlation) != 0
        state.correlation = int(correlation[-1])
        chosen = first & calls.known
        if not chosen.all():
            start, called = start[chosen], calls.start[chosen]
        else:
            called = calls.start
        if not len(start):
            return
        # A stream runs its work in the order in which it was queued: what ran later was queued no earlier. Clocks that
        # differ make nothing be queued after its begin.
        queued = np.maximum.accumulate(np.append(state.queued, np.minimum(called, start)))[1:]
        begins = np.concatenate([state.begins, start])
        place = np.arange(len(state.begins), len(begins))
        length = np.maximum(place + 1 - np.searchsorted(begins, queued, "right"), 0)
        self._lengths.add(np.full(len(length), number), length)
        state.waited += int((start - queued).sum())
        state.first_queued = int(queued[0]) if state.first_queued == _NEVER else state.first_queued
        state.queued, state.begun = int(queued[-1]), int(start[-1])
        over = place[place + 1 >= self._full]
        if len(over):
            # From this launch on the queue is full until the work at its head begins.
            until = begins[over + 1 - self._full]
            earlier = np.append(_NEVER, begins)[over + 1 - self._full]
            since = np.maximum(queued[over - len(state.begins)], earlier)
            state.full += int(np.maximum(until - since, 0).sum())
        state.begins = begins[-_KEPT:]

    def uses(self, process: int, streams: list[Stream]) -> list[StreamUse]:
        """What came of it."""
        lengths = self._lengths.spreads()
        found = []
        for number, (state, stream) in enumerate(zip(self._states, streams, strict=False)):
            span = state.begun - state.first_queued
            queue = Queue(
                lengths[number] if number < len(lengths) else NOTHING,
                state.waited / span if span > 0 else 0.0,
                state.full,
            )
            counts = dict(zip(GPU_TABLES, state.counts.tolist(), strict=True))
            host, kernel, dependency, other = state.idle.tolist()
            idle = Idle(host, kernel, dependency, other, state.gaps)
            found.append(StreamUse(process, stream, counts, state.first, state.reached, state.busy, idle, queue))
        return found


def reached_before(end: np.ndarray, reached: int) -> np.ndarray:
    """For each of some intervals the latest end of those before it, ``reached`` being that of earlier ones."""
    before = np.empty_like(end)
    before[0] = reached
    np.maximum.accumulate(end[:-1], out=before[1:])
    np.maximum(before, reached, out=before)
    return before
