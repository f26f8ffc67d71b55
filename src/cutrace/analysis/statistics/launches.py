"""Launches of kernels: the times of the calls, and the times from call to kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...runbin.layout import GPU_WORK
from ..collection import CollectedBy, GroupSpreads, StatsCollector
from ..context import CollectorContext
from ..distribution import Distributions, Spread
from ..statistic import (
    PROCESS,
    Statistic,
    StatisticColumn,
    count_column,
    share_column,
    text_column,
    time_column,
)
from ..sweep import Stream, SweepBatch

_KERNELS = GPU_WORK.index("kernels")


class _LaunchedKernels:
    """The kernels of a batch whose calls were recorded: parallel arrays with the times (ns) of :class:`LaunchUse`.
    ``all`` is the number of kernels with and without a recorded call."""

    def __init__(self, batch: SweepBatch) -> None:
        work = batch.work
        kernel = work.table == _KERNELS
        self.all = int(np.count_nonzero(kernel))
        kernel &= work.calls.known
        self._at = None if kernel.all() else np.flatnonzero(kernel)
        start = self.of(work.start)
        called = self.of(work.calls.start)
        returned = self.of(work.calls.end)
        self.time = self.of(work.end) - start
        self.call = returned - called
        self.latency = start - called
        self.queue = np.maximum(start - returned, 0)

    def of(self, column: np.ndarray) -> np.ndarray:
        """The part of a column of :attr:`SweepBatch.work` that belongs to these kernels."""
        if self._at is None:
            return column
        return column.take(self._at)


# By process


@dataclass(frozen=True)
class LaunchUse:
    """The kernel launches of one process whose calls were recorded.

    Times are in ns: ``call`` is the time in the call, ``latency`` the time from the start of the call to the start of
    the kernel, ``queue`` the time from the end of the call to the start of the kernel (0 if it starts earlier).
    ``bound`` kernels took less time than their call, ``short`` kernels less than
    :attr:`.context.StatsOptions.short_ns`, ``early`` kernels seem to start before their call. ``kernels`` counts all
    kernels.
    """

    process: int
    kernels: int
    call: Spread
    latency: Spread
    queue: Spread
    bound: int
    short: int
    early: int


class _LaunchCollector(StatsCollector[LaunchUse]):
    tables = ("kernels", "api_calls")
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._call = Distributions()
        self._latency = Distributions()
        self._queue = Distributions()
        self._kernels = 0
        self._bound = 0
        self._short = 0
        self._early = 0

    def add(self, batch: SweepBatch) -> None:
        kernels = _LaunchedKernels(batch)
        self._call.add(0, kernels.call)
        self._latency.add(0, np.maximum(kernels.latency, 0))
        self._queue.add(0, kernels.queue)
        short = kernels.time < self.context.options.short_ns
        self._kernels += kernels.all
        self._bound += int(np.count_nonzero(kernels.time < kernels.call))
        self._short += int(np.count_nonzero(short))
        self._early += int(np.count_nonzero(kernels.latency < 0))

    def end(self, process: int, streams: list[Stream]) -> Iterator[LaunchUse]:
        if not len(self._call):
            return
        yield LaunchUse(
            process,
            self._kernels,
            call=self._call.spreads()[0],
            latency=self._latency.spreads()[0],
            queue=self._queue.spreads()[0],
            bound=self._bound,
            short=self._short,
            early=self._early,
        )


#: The launches of each process.
LAUNCHES = CollectedBy(_LaunchCollector)

LAUNCH_SUM = Statistic(
    "launch_sum",
    "Launches of kernels (medians)",
    LAUNCHES,
    (
        PROCESS,
        count_column(
            "launches",
            "call.count",
            doc="kernels whose launching call was recorded; each node of a graph counts",
        ),
        time_column("call", "call.median", doc="median time of the call"),
        time_column(
            "latency",
            "latency.median",
            doc="median time from the start of the call to the start of the kernel; 0 if the kernel started earlier",
        ),
        time_column(
            "queue",
            "queue.median",
            spare=True,
            doc="median time from the end of the call to the start of the kernel; 0 if the kernel started earlier",
        ),
        time_column("max call", "call.max", spare=True, doc="maximum time of the call"),
        time_column("max latency", "latency.max", spare=True, doc="maximum latency"),
        time_column("max queue", "queue.max", spare=True, doc="maximum queue time"),
        share_column(
            "short",
            "short",
            "call.count",
            spare=True,
            doc="fraction of these launches whose kernel took less than --short",
        ),
        share_column(
            "bound",
            "bound",
            "call.count",
            doc="fraction of these launches that are launch-bound: the kernel is shorter than the call",
        ),
        count_column(
            "kernels",
            spare=True,
            doc="all kernels that ran",
        ),
        count_column(
            "early",
            spare=True,
            doc="kernels that seem to start before their call, because clocks are converted",
        ),
    ),
    options=("short_ns",),
    doc="How long launches take and how long kernels wait: one row per process. Covers kernels whose "
    "launching call was recorded.",
)


# By function and kernel


@dataclass(frozen=True)
class ExecutionUse:
    """The kernels of one name that one API function launched. Times (ns) are as in :class:`LaunchUse`; ``time`` is the
    time of the kernel, ``total`` the time from the start of the call to the end of the kernel."""

    api: str
    kernel: str
    call: Spread
    queue: Spread
    time: Spread
    total: Spread


class _ExecutionCollector(StatsCollector[ExecutionUse]):
    tables = ("kernels", "api_calls")

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._spreads = GroupSpreads()

    def add(self, batch: SweepBatch) -> None:
        kernels = _LaunchedKernels(batch)
        if not len(kernels.time):
            return
        functions = self.context.functions.numbers
        function = functions.take(kernels.of(batch.work.calls.function))
        names = self.context.kernels.numbers
        name = names.take(kernels.of(batch.work.launch))
        group = self._spreads.groups.of(function, name)
        total = np.maximum(kernels.latency + kernels.time, 0)
        self._spreads.add(group, kernels.call, kernels.queue, kernels.time, total)

    def result(self) -> Iterator[ExecutionUse]:
        for (function, kernel), times in self._spreads.rows():
            call, queue, time, total = times
            yield ExecutionUse(
                self.context.functions.names[function],
                self.context.kernels.names[kernel],
                call,
                queue,
                time,
                total,
            )


#: The launched kernels by API function and name.
EXECUTIONS = CollectedBy(_ExecutionCollector)


def _execution_times() -> list[StatisticColumn]:
    """The columns with the spread of each time of a launch. A narrow terminal shows the means, except the mean of the
    total."""
    columns = []
    for kind, time, doc in (
        ("total", "total", "time from the start of the call to the end of the kernel"),
        ("call", "call", "time in the call"),
        (
            "queue",
            "queue",
            "time from the end of the call to the start of the kernel",
        ),
        ("kernel", "time", "time of the kernel"),
    ):
        for figure, attribute in (
            ("mean", "mean"),
            ("median", "median"),
            ("min", "min"),
            ("max", "max"),
            ("stddev", "std"),
        ):
            column = time_column(
                f"{kind} {figure}",
                f"{time}.{attribute}",
                spare=figure != "mean" or kind == "total",
                doc=f"{figure} of the {doc}",
            )
            columns.append(column)
    return columns


CUDA_KERN_EXEC_SUM = Statistic(
    "cuda_kern_exec_sum",
    "Launch, queue and run of kernels",
    EXECUTIONS,
    (
        count_column(
            "count", "time.count", doc="kernels whose launching call was recorded"
        ),
        *_execution_times(),
        text_column("api", doc="function that launched them"),
        text_column(
            "kernel",
            doc="stable name of the kernel, or its full name with --names full",
        ),
    ),
    order=lambda use: (-use.total.total, use.api, use.kernel),
    usual=False,
    options=("names",),
    doc="Where the time between a launching call and the end of its kernel goes, by function and kernel. The "
    "times of kernels that seem to start or end before their call are 0 where they would be negative.",
)
