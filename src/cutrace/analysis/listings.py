"""The events of a capture one by one, in the order of time, in bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from ..trace import Trace
from ..trace.quality import GPU_WORK
from .collectors import CollectorContext, operation_name, operations
from .stats import DEFAULTS, Configuration, StatsOptions
from .sweep import Batch, Stream, Sweep


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
    return _in_order(trace, (*GPU_WORK, "api_calls"), partial(_gpu_events, CollectorContext(trace, options)))


def calls(trace: Trace) -> Iterator[ApiCall]:
    """All API calls, in the order of begin."""
    return _in_order(trace, ("api_calls",), partial(_calls, CollectorContext(trace, DEFAULTS)))


_Event = TypeVar("_Event", ApiCall, GpuEvent)


def _in_order(
    trace: Trace, tables: tuple[str, ...], events: Callable[[int, Sweep], Iterator[_Event]]
) -> Iterator[_Event]:
    joins = len(tables) > 1
    sweeps = [Sweep(trace, infos, joins=joins) for infos in trace.infos_by_process(tables)]
    return heapq.merge(*(events(*each) for each in enumerate(sweeps)), key=lambda event: event.start)


def _functions(c: CollectorContext) -> tuple[list[str], list[int]]:
    """The names and the returned values of API functions."""
    return [c.functions.names[n] for n in c.functions.numbers.tolist()], c.trace.functions["status"].tolist()


def _calls(c: CollectorContext, process: int, sweep: Sweep) -> Iterator[ApiCall]:
    names, status = _functions(c)
    for batch in sweep:
        rows = batch.tables["api_calls"]
        columns = (rows[field].tolist() for field in ("start", "end", "correlation", "function", "thread"))
        for start, end, correlation, function, thread in zip(*columns, strict=True):
            yield ApiCall(start, end, correlation, status[function], process, thread, names[function])


def _gpu_events(c: CollectorContext, process: int, sweep: Sweep) -> Iterator[GpuEvent]:
    names, status = _functions(c)
    origins = c.trace.origins
    paths = [origins.text(path) for path in range(len(origins.paths))] if origins else [""]
    number_of, shapes = c.configurations
    for batch in sweep:
        work, calls = batch.work, batch.work.calls
        others, created = _others(c, batch), c.created(work)
        path = np.zeros(len(work), np.uint32) if created is None else created
        columns = (
            work.start, work.end, work.table, work.stream, work.correlation, work.launch, path,
            calls.known, calls.start, calls.end, calls.thread, calls.function,
        )  # fmt: skip
        for start, end, table, stream, correlation, launch, number, known, *called in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            call = shape = size = None
            if known:
                begin, until, thread, function = called
                call = ApiCall(begin, until, correlation, status[function], process, thread, names[function])
            if table:
                name, size = next(others[table])
            else:
                shape = shapes[number_of[launch]]
                name = shape.name
            where = sweep.streams[stream]
            yield GpuEvent(start, end, correlation, process, where, name, call, shape, size, paths[number])


def _others(c: CollectorContext, batch: Batch) -> dict[int, Iterator[tuple[str, int | None]]]:
    """Names and sizes of work other than kernels, by table, in the order of begin."""
    names_and_sizes: dict[int, Iterator[tuple[str, int | None]]] = {}
    for number, table in enumerate(GPU_WORK):
        rows = batch.tables.get(table)
        if not rows or not number:
            continue
        if table == "graph_launches":
            names_and_sizes[number] = ((f"graph {graph}", None) for graph in rows["graph"].tolist())
        else:
            kinds = operations(c, rows)[0].tolist()
            labels = {kind: operation_name(kind) for kind in set(kinds)}
            names_and_sizes[number] = zip([labels[kind] for kind in kinds], rows["bytes"].tolist(), strict=True)
    return names_and_sizes
