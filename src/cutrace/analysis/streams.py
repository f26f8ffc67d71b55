"""What each stream of a process did, and why it did nothing: busy time, idle time by reason, the queue before it.

docs/stats.md has the rules. The reasons of idle time are those of Holistic Trace Analysis (host wait, kernel wait,
other), with waits for other streams taken out of "other".
"""

from __future__ import annotations

from dataclasses import dataclass

from .._native import StreamTimes
from ..trace.quality import GPU_WORK
from .distribution import NOTHING, Distributions, Spread
from .sweep import Stream, Window

#: Gaps up to this (ns) are what it takes to start a kernel behind another one; HTA calls it consecutive kernel delay.
CONSECUTIVE_NS = 30
#: Work that begins so soon (ns) behind the end of work of another stream is taken to have waited for it.
RELEASE_NS = 10_000
#: Launches that fill the queue of a stream: the next call that launches waits.
FULL_QUEUE = 1024

# Queues are not measured beyond.
_LONGEST = 4096


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


class Streams:
    """Takes in the windows of one process, in order."""

    def __init__(self, *, consecutive_ns: int = CONSECUTIVE_NS, full_queue: int = FULL_QUEUE) -> None:
        self._times = StreamTimes(consecutive_ns, RELEASE_NS, full_queue, _LONGEST)

    def add(self, window: Window) -> None:
        work, calls = window.work, window.work.calls
        called = (calls.known, calls.start, calls.end)
        self._times.add(work.start, work.end, work.table, work.stream, work.correlation, *called)

    def uses(self, process: int, streams: list[Stream]) -> list[StreamUse]:
        """What came of it."""
        lengths = Distributions(self._times.lengths).spreads()
        found = []
        for number, (counts, first, last, busy, idle, gaps, waited, span, full) in enumerate(self._times.uses()):
            at_launch = lengths[number] if number < len(lengths) else NOTHING
            host, kernel, dependency, other = idle
            mean = (waited[0] << 64 | waited[1]) / span if span > 0 else 0.0
            found.append(
                StreamUse(
                    process=process,
                    stream=streams[number],
                    counts=dict(zip(GPU_WORK, counts, strict=True)),
                    first=first,
                    last=last,
                    busy=busy,
                    idle=Idle(host, kernel, dependency, other, gaps),
                    queue=Queue(at_launch, mean, full),
                )
            )
        return found
