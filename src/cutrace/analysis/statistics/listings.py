"""Listings: the events of a trace one by one, in the order of time, in bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...runbin.layout import GPU_WORK
from ...trace import Trace
from ..context import DEFAULTS, CollectorContext, Configuration, StatsOptions
from ..statistic import (
    SPARE_GPU_OF_STREAM,
    SPARE_PROCESS,
    SPARE_STREAM,
    Statistic,
    View,
    count_column,
    moment_column,
    size_column,
    text_column,
    time_column,
)
from ..sweep import Stream, Sweep, SweepBatch
from .gpus import work_name
from .kernels import size_text

_KERNELS = GPU_WORK.index("kernels")


@dataclass(frozen=True)
class ApiCall:
    """An API call. Times are in ns; ``status`` is the returned value, 0 for success."""

    start: int
    end: int
    correlation: int
    status: int
    process: int
    thread: int
    name: str


@dataclass(frozen=True)
class GpuEvent:
    """A kernel, copy, fill or graph. Times are in ns. ``call`` is the launching call, None if it was not recorded.
    ``shape`` is the launch configuration of a kernel, else None. ``bytes`` is the size of a copy or fill, else None.
    ``created_in`` has the ranges in which the graph node was created, "" outside of graphs."""

    start: int
    end: int
    correlation: int
    process: int
    stream: Stream
    name: str
    call: ApiCall | None
    shape: Configuration | None = None
    bytes: int | None = None
    created_in: str = ""


def gpu_events(trace: Trace, options: StatsOptions) -> Iterator[GpuEvent]:
    """All GPU work, in the order of start."""
    context = CollectorContext(trace, options)
    return _in_order(context, (*GPU_WORK, "api_calls"), _GpuEvents(context).of)


def api_calls(trace: Trace) -> Iterator[ApiCall]:
    """All API calls, in the order of start."""
    context = CollectorContext(trace, DEFAULTS)
    return _in_order(context, ("api_calls",), _ApiCalls(context).of)


_Event = TypeVar("_Event", ApiCall, GpuEvent)


def _in_order(
    context: CollectorContext,
    tables: tuple[str, ...],
    events_of: Callable[[int, Sweep], Iterator[_Event]],
) -> Iterator[_Event]:
    joins = len(tables) > 1
    processes = []
    for process, infos in enumerate(context.trace.infos_by_process(tables)):
        sweep = Sweep(context.trace, infos, joins=joins)
        processes.append(events_of(process, sweep))
    return heapq.merge(*processes, key=lambda event: event.start)


class _ApiCalls:
    def __init__(self, context: CollectorContext) -> None:
        functions = context.functions
        self._names = [functions.names[n] for n in functions.numbers.tolist()]
        self._status = context.trace.functions["status"].tolist()

    def of(self, process: int, sweep: Sweep) -> Iterator[ApiCall]:
        for batch in sweep:
            rows = batch.tables["api_calls"]
            columns = (
                rows["start"],
                rows["end"],
                rows["correlation"],
                rows["function"],
                rows["thread"],
            )
            for start, end, correlation, function, thread in _tuples(columns):
                yield self.call(start, end, correlation, function, process, thread)

    def call(
        self,
        start: int,
        end: int,
        correlation: int,
        function: int,
        process: int,
        thread: int,
    ) -> ApiCall:
        status = self._status[function]
        name = self._names[function]
        return ApiCall(start, end, correlation, status, process, thread, name)


class _GpuEvents:
    def __init__(self, context: CollectorContext) -> None:
        self._context = context
        self._calls = _ApiCalls(context)
        # The ranges of the creation of graph nodes, by path.
        self._created_in = [""]
        origins = context.trace.origins
        if origins:
            self._created_in = list(map(origins.text, range(len(origins.paths))))

    def of(self, process: int, sweep: Sweep) -> Iterator[GpuEvent]:
        number_of, shapes = self._context.configurations
        for batch in sweep:
            work = batch.work
            calls = work.calls
            path = self._context.created(work)
            if path is None:
                path = np.zeros(len(work), np.uint32)
            sizes = _sizes(batch)
            columns = (
                *(work.start, work.end, work.correlation, work.stream),
                *(work.table, work.detail, work.launch, path),
                *(calls.known, calls.start, calls.end, calls.function, calls.thread),
            )
            for row in _tuples(columns):
                start, end, correlation, stream, table, detail, launch, created = row[
                    :8
                ]
                known, call_start, call_end, function, thread = row[8:]
                call = None
                if known:
                    call = self._calls.call(
                        call_start, call_end, correlation, function, process, thread
                    )
                shape = None
                if table == _KERNELS:
                    shape = shapes[number_of[launch]]
                    name = shape.name
                else:
                    _, name = work_name(table, detail)
                yield GpuEvent(
                    start,
                    end,
                    correlation,
                    process,
                    sweep.streams[stream],
                    name,
                    call,
                    shape,
                    next(sizes[table]) if table in sizes else None,
                    self._created_in[created],
                )


def _sizes(batch: SweepBatch) -> dict[int, Iterator[int]]:
    """The bytes of the rows of GPU work, for tables with a size. The work of a table is in the order of its rows."""
    sizes = {}
    for table, name in enumerate(GPU_WORK):
        rows = batch.tables.get(name)
        if rows and "bytes" in rows:
            sizes[table] = iter(rows["bytes"].tolist())
    return sizes


def _tuples(columns: tuple[np.ndarray, ...]) -> Iterator[tuple[Any, ...]]:
    lists = (column.tolist() for column in columns)
    return zip(*lists, strict=True)


# GPU work


def _duration(view: View, event: Any) -> int:
    return event.end - event.start


def _grid(view: View, event: GpuEvent) -> str:
    return size_text(event.shape.grid) if event.shape else ""


def _block(view: View, event: GpuEvent) -> str:
    return size_text(event.shape.block) if event.shape else ""


def _registers(view: View, event: GpuEvent) -> int | None:
    return event.shape.registers if event.shape else None


def _shared(view: View, event: GpuEvent) -> int | None:
    return sum(event.shape.shared) if event.shape else None


def _gpu_events(view: View) -> Iterator[GpuEvent]:
    return gpu_events(view.trace, view.collected.options)


CUDA_GPU_TRACE = Statistic(
    "cuda_gpu_trace",
    "GPU work, one row each",
    _gpu_events,
    (
        moment_column(
            "start",
            doc="start, on the clock of the trace, as --start of slice and convert takes it",
        ),
        time_column("duration", _duration, doc="time on the GPU"),
        count_column("correlation", doc="correlation id of the launching call"),
        text_column("grid", _grid, spare=True, doc="blocks of the grid: x y z"),
        text_column("block", _block, spare=True, doc="threads of a block: x y z"),
        count_column("registers", _registers, spare=True, doc="registers per thread"),
        size_column(
            "shared",
            _shared,
            spare=True,
            doc="static and dynamic shared memory of a block",
        ),
        size_column("bytes", doc="bytes of a copy or fill"),
        SPARE_PROCESS,
        SPARE_GPU_OF_STREAM,
        SPARE_STREAM,
        text_column(
            "created in",
            "created_in",
            spare=True,
            doc="NVTX ranges around the creation of the graph node",
        ),
        text_column("name", doc="name of the kernel, direction of the copy, or graph"),
    ),
    usual=False,
    listing=True,
    options=("names",),
    doc="Each kernel, copy, fill and whole graph, by its start.",
)


# API calls


def _api_calls(view: View) -> Iterator[ApiCall]:
    return api_calls(view.trace)


CUDA_API_TRACE = Statistic(
    "cuda_api_trace",
    "API calls, one row each",
    _api_calls,
    (
        moment_column(
            "start",
            doc="start, on the clock of the trace, as --start of slice and convert takes it",
        ),
        time_column("duration", _duration, doc="time in the call"),
        count_column("correlation", doc="correlation id of the call"),
        count_column("status", spare=True, doc="value returned; 0 is success"),
        SPARE_PROCESS,
        count_column("thread", doc="thread id of the operating system"),
        text_column("name", doc="function, without version suffix"),
    ),
    usual=False,
    listing=True,
    doc="Each call of the CUDA API, by its start.",
)


# Launches of kernels


def _launched_kernels(view: View) -> Iterator[GpuEvent]:
    for event in _gpu_events(view):
        if event.shape and event.call:
            yield event


def _call_time(view: View, event: Any) -> int:
    return event.call.end - event.call.start


def _queue_time(view: View, event: Any) -> int:
    time: int = event.start - event.call.end
    return max(time, 0)


def _total_time(view: View, event: Any) -> int:
    time: int = event.end - event.call.start
    return max(time, 0)


CUDA_KERN_EXEC_TRACE = Statistic(
    "cuda_kern_exec_trace",
    "Launch, queue and run of each kernel",
    _launched_kernels,
    (
        moment_column(
            "call start",
            "call.start",
            doc="start of the call, on the clock of the trace, as --start of slice and convert takes it",
        ),
        time_column("call", _call_time, doc="time in the call"),
        moment_column(
            "start", spare=True, doc="start of the kernel, on the same clock"
        ),
        time_column(
            "queue",
            _queue_time,
            doc="time from the end of the call to the start of the kernel; 0 if the kernel started earlier",
        ),
        time_column("kernel", _duration, doc="time of the kernel"),
        time_column(
            "total",
            _total_time,
            spare=True,
            doc="time from the start of the call to the end of the kernel; 0 if the kernel ended earlier",
        ),
        SPARE_PROCESS,
        count_column("thread", "call.thread", spare=True, doc="thread of the call"),
        SPARE_GPU_OF_STREAM,
        SPARE_STREAM,
        text_column("api", "call.name", doc="function that launched it"),
        text_column(
            "name", doc="stable name of the kernel, or its full name with --names full"
        ),
    ),
    usual=False,
    listing=True,
    options=("names",),
    doc="Each kernel with its launching call, by the start of the kernel.",
)
