"""The events of a capture one by one, in the order of time, in bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..trace import Trace
from ..trace.quality import GPU_WORK
from .collectors import CollectorContext, work_name
from .stats import DEFAULTS, Configuration, StatsOptions
from .sweep import Stream, Sweep


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
    """A kernel, copy, fill or graph. Times are in ns. ``call`` is the launching call, None if it was not recorded;
    ``shape`` is the launch configuration of a kernel, else None; ``bytes`` is the size of a copy or fill, else None;
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
    """All GPU work, in the order of begin."""
    return _in_order(
        CollectorContext(trace, options), (*GPU_WORK, "api_calls"), _gpu_events
    )


def calls(trace: Trace) -> Iterator[ApiCall]:
    """All API calls, in the order of begin."""
    return _in_order(CollectorContext(trace, DEFAULTS), ("api_calls",), _calls)


_Event = TypeVar("_Event", ApiCall, GpuEvent)


def _in_order(
    c: CollectorContext,
    tables: tuple[str, ...],
    events: Callable[[CollectorContext, int, Sweep], Iterator[_Event]],
) -> Iterator[_Event]:
    sweeps = [
        Sweep(c.trace, infos, joins=len(tables) > 1)
        for infos in c.trace.infos_by_process(tables)
    ]
    return heapq.merge(
        *(events(c, *each) for each in enumerate(sweeps)), key=lambda event: event.start
    )


def _functions(c: CollectorContext) -> tuple[list[str], list[int]]:
    """The names and the returned values of API functions."""
    return [
        c.functions.names[n] for n in c.functions.numbers.tolist()
    ], c.trace.functions["status"].tolist()


def _calls(c: CollectorContext, process: int, sweep: Sweep) -> Iterator[ApiCall]:
    names, status = _functions(c)
    for batch in sweep:
        rows = batch.tables["api_calls"]
        columns = (
            rows[field].tolist()
            for field in ("start", "end", "correlation", "function", "thread")
        )
        for start, end, correlation, function, thread in zip(*columns, strict=True):
            yield ApiCall(
                start,
                end,
                correlation,
                status[function],
                process,
                thread,
                names[function],
            )


def _gpu_events(c: CollectorContext, process: int, sweep: Sweep) -> Iterator[GpuEvent]:
    names, status = _functions(c)
    origins = c.trace.origins
    if origins:
        paths = [origins.text(path) for path in range(len(origins.paths))]
    else:
        paths = [""]
    number_of, shapes = c.configurations
    for batch in sweep:
        work, calls = batch.work, batch.work.calls
        created = c.created(work)
        tables = (
            (table, batch.tables.get(name)) for table, name in enumerate(GPU_WORK)
        )
        path = np.zeros(len(work), np.uint32) if created is None else created
        sizes = {
            table: iter(rows["bytes"].tolist())
            for table, rows in tables
            if rows and "bytes" in rows
        }
        columns = (
            work.start, work.end, work.table, work.detail, work.stream, work.correlation, work.launch, path,
            calls.known, calls.start, calls.end, calls.thread, calls.function,
        )  # fmt: skip
        for (
            start,
            end,
            table,
            detail,
            stream,
            correlation,
            launch,
            number,
            known,
            *called,
        ) in zip(*(column.tolist() for column in columns), strict=True):
            call = shape = None
            if known:
                begin, until, thread, function = called
                call = ApiCall(
                    begin,
                    until,
                    correlation,
                    status[function],
                    process,
                    thread,
                    names[function],
                )
            if not table:
                shape = shapes[number_of[launch]]
            name = shape.name if shape else work_name(table, detail)[1]
            where = sweep.streams[stream]
            size = next(sizes[table]) if table in sizes else None
            yield GpuEvent(
                start,
                end,
                correlation,
                process,
                where,
                name,
                call,
                shape,
                size,
                paths[number],
            )
