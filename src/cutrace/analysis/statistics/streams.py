"""Streams: busy time, idle time by reason, and queues of launches.

Idle time has the reasons of Holistic Trace Analysis (host wait, kernel wait, other). Waits for other streams are
separated from "other". docs/reference/statistics.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from ..._native import StreamTimes
from ...runbin.layout import GPU_WORK
from ...trace.capture_ranges import time_within
from ...trace.rows import LATEST
from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext
from ..distribution import NOTHING, Distributions, Spread
from ..statistic import (
    SPARE_GPU_OF_STREAM,
    SPARE_PROCESS,
    STREAM,
    Statistic,
    View,
    count_column,
    number_column,
    share_column,
    time_column,
)
from ..sweep import Stream, SweepBatch

#: Work counts as waiting for another stream if it starts within this time (ns) after the end of work of that stream.
_RELEASE_NS = 10_000
#: The longest queue that is measured.
_LONGEST_QUEUE = 4096


@dataclass(frozen=True)
class Idle:
    """Idle time (ns) between the pieces of work of a stream, by reason, and the number of gaps."""

    host: int = 0
    kernel: int = 0
    dependency: int = 0
    other: int = 0
    gaps: int = 0

    @property
    def total(self) -> int:
        return self.host + self.kernel + self.dependency + self.other

    def without(self, unrecorded: list[tuple[int, int]], first: int, last: int) -> Idle:
        """Leave out the unrecorded times of a stream whose work lasts from ``first`` to ``last``. Work after an
        unrecorded time was launched after it. So the gap counted as a wait for the host or as "other"."""
        inside = [span for span in unrecorded if first <= span[0] and span[1] <= last]
        time = time_within(inside, first, last)
        of_host = min(time, self.host)
        of_other = min(time - of_host, self.other)
        return replace(self, host=self.host - of_host, other=self.other - of_other)


@dataclass(frozen=True)
class Queue:
    """The queue of a stream: work that was launched and has not started. ``at_launch`` is the spread of its length
    after each launch, ``mean`` its average length from the first launch to the last start, and ``full`` the time (ns)
    with a length of :attr:`.context.StatsOptions.full_queue` or more."""

    at_launch: Spread = NOTHING
    mean: float = 0.0
    full: int = 0


@dataclass(frozen=True)
class StreamUse:
    """The use of one stream. ``counts`` has its pieces of GPU work by table; ``first`` and ``last`` (ns) are the first
    start and the last end of its work; ``busy`` is the time (ns) in which any work ran."""

    process: int
    stream: Stream
    counts: dict[str, int]
    first: int
    last: int
    busy: int
    idle: Idle
    queue: Queue


class _StreamCollector(StatsCollector[StreamUse]):
    tables = (*GPU_WORK, "api_calls")
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        options = context.options
        consecutive = min(options.consecutive_ns, int(LATEST))
        self._times = StreamTimes(
            consecutive, _RELEASE_NS, options.full_queue, _LONGEST_QUEUE
        )
        self._lengths = Distributions()

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        calls = work.calls
        stream, length = self._times.add(
            work.start,
            work.end,
            work.table,
            work.stream,
            work.correlation,
            calls.known,
            calls.start,
            calls.end,
        )
        self._lengths.add(stream, length)

    def end(self, process: int, streams: list[Stream]) -> Iterator[StreamUse]:
        unrecorded = self.context.trace.unrecorded(process)
        lengths = [*self._lengths.spreads(), *(NOTHING for _ in streams)]
        uses = zip(streams, lengths, self._times.uses(), strict=False)
        for stream, at_launch, use in uses:
            counts, first, last, busy, idle, gaps, waited, span, full = use
            high, low = waited
            mean = (high << 64 | low) / span if span > 0 else 0.0
            host, kernel, dependency, other = idle
            waits = Idle(host, kernel, dependency, other, gaps)
            yield StreamUse(
                process,
                stream,
                dict(zip(GPU_WORK, counts, strict=True)),
                first,
                last,
                busy,
                waits.without(unrecorded, first, last),
                Queue(at_launch, mean, full),
            )


#: The use of each stream.
STREAMS = CollectedBy(_StreamCollector)


def recorded_span(view: View, use: Any) -> int:
    """The time (ns) from the first to the last work, without the time between the windows of a capture range."""
    unrecorded = view.trace.unrecorded(use.process)
    return use.last - use.first - time_within(unrecorded, use.first, use.last)


def _trace_span(view: View, use: Any) -> int:
    return view.span


def work_of(table: str) -> Callable[[View, Any], int]:
    """The number of pieces of work of one table."""

    def count(view: View, use: Any) -> int:
        return use.counts[table]

    return count


_WHICH_STREAM = (SPARE_PROCESS, SPARE_GPU_OF_STREAM, STREAM)

STREAM_SUM = Statistic(
    "stream_sum",
    "Streams",
    STREAMS,
    (
        *_WHICH_STREAM,
        count_column("kernels", work_of("kernels"), doc="kernels"),
        count_column("copies", work_of("memcpys"), doc="copies"),
        count_column("fills", work_of("memsets"), doc="memory fills"),
        count_column(
            "graphs",
            work_of("graph_launches"),
            spare=True,
            doc="CUDA graphs that were traced as a whole",
        ),
        time_column("busy", doc="time in which work of the stream ran"),
        share_column("busy share", "busy", recorded_span, doc="busy / span"),
        time_column(
            "span",
            recorded_span,
            spare=True,
            doc="time from the first start of work on the stream to the last end, without the time outside a "
            "capture range",
        ),
    ),
    doc="How busy each stream was.",
)

IDLE_SUM = Statistic(
    "idle_sum",
    "Idle time of streams, by what they waited for",
    STREAMS,
    (
        *_WHICH_STREAM,
        count_column("gaps", "idle.gaps", spare=True, doc="number of gaps"),
        time_column("idle", "idle.total", doc="sum of the gaps"),
        time_column(
            "host",
            "idle.host",
            doc="gaps in which the call that launched the next work had not started: the host was late",
        ),
        time_column(
            "kernel",
            "idle.kernel",
            doc="gaps below --kernel-wait: the time to start one kernel after another",
        ),
        time_column(
            "dependency",
            "idle.dependency",
            doc="gaps in which work of another stream of the process ended shortly before the next start",
        ),
        time_column("other", "idle.other", doc="all other gaps"),
        share_column(
            "host share", "idle.host", "idle.total", spare=True, doc="host / idle"
        ),
    ),
    options=("consecutive_ns",),
    doc="What each stream waited for. A gap is the time from the latest end of earlier work to the next "
    "start; the first reason that applies gets the whole gap. [Idle time of streams](#idle-time-of-streams) has the "
    "details.",
)

QUEUE_SUM = Statistic(
    "queue_sum",
    "Queues of launches",
    STREAMS,
    (
        *_WHICH_STREAM,
        count_column(
            "launches",
            "queue.at_launch.count",
            doc="launches whose calls were recorded",
        ),
        number_column(
            "mean",
            "queue.mean",
            doc="average queue length, from the first launch to the last start",
        ),
        number_column(
            "mean at launch",
            "queue.at_launch.mean",
            doc="mean queue length after a launch, including that launch",
        ),
        number_column(
            "median at launch",
            "queue.at_launch.median",
            spare=True,
            doc="median of the same",
        ),
        count_column(
            "min", "queue.at_launch.min", spare=True, doc="minimum of the same"
        ),
        count_column(
            "max", "queue.at_launch.max", doc="maximum of the same, up to 4,096"
        ),
        time_column(
            "full",
            "queue.full",
            doc="time in which the queue held 1,024 launches or more",
        ),
        share_column(
            "full share",
            "queue.full",
            _trace_span,
            spare=True,
            doc="full / length of the trace",
        ),
    ),
    where=attrgetter("queue.at_launch.count"),
    doc="How many launches waited in the queue of each stream. [Launch "
    "queues](#launch-queues) has the rules.",
)
