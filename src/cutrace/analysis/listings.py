"""The events of a capture one by one, in the order of time, however large the capture is."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ..trace import Trace
from ..trace.quality import GPU_WORK
from .collectors import Context, operation_name, operations
from .stats import DEFAULTS, Configuration, Options
from .sweep import Stream, Sweep, Window


@dataclass(frozen=True)
class Call:
    """An API call. Times in ns; ``status`` is what it returned, 0 for success."""

    start: int
    end: int
    correlation: int
    status: int
    process: int
    thread: int
    name: str


@dataclass(frozen=True)
class GpuEvent:
    """A kernel, copy, fill or graph. Times in ns; ``call`` is the one that launched it, None where it was not recorded;
    ``shape`` is that of a kernel, ``bytes`` the size of a copy or fill, else None."""

    start: int
    end: int
    correlation: int
    process: int
    stream: Stream
    name: str
    call: Call | None
    shape: Configuration | None = None
    bytes: int | None = None


def gpu_events(trace: Trace, options: Options) -> Iterator[GpuEvent]:
    """All GPU work by its begin."""
    return _in_order(trace, (*GPU_WORK, "api_calls"), partial(_gpu_events, Context(trace, options)))


def calls(trace: Trace) -> Iterator[Call]:
    """All API calls by their begin."""
    return _in_order(trace, ("api_calls",), partial(_calls, Context(trace, DEFAULTS)))


_Event = TypeVar("_Event", Call, GpuEvent)


def _in_order(
    trace: Trace, tables: tuple[str, ...], events: Callable[[int, Sweep], Iterator[_Event]]
) -> Iterator[_Event]:
    joins = len(tables) > 1
    sweeps = [Sweep(trace, infos, joins=joins) for infos in trace.infos_by_process(tables)]
    return heapq.merge(*(events(*each) for each in enumerate(sweeps)), key=lambda event: event.start)


def _functions(c: Context) -> tuple[list[str], list[int]]:
    """The names and the returned values of API functions."""
    return [c.functions.names[n] for n in c.functions.numbers.tolist()], c.trace.functions["status"].tolist()


def _calls(c: Context, process: int, sweep: Sweep) -> Iterator[Call]:
    names, status = _functions(c)
    for window in sweep:
        rows = window.tables["api_calls"]
        columns = (rows[field].tolist() for field in ("start", "end", "correlation", "function", "thread"))
        for start, end, correlation, function, thread in zip(*columns, strict=True):
            yield Call(start, end, correlation, status[function], process, thread, names[function])


def _gpu_events(c: Context, process: int, sweep: Sweep) -> Iterator[GpuEvent]:
    names, status = _functions(c)
    shapes: dict[int, Configuration] = {}
    for window in sweep:
        work, launched = window.work, window.work.calls
        others = _others(c, window)
        columns = (
            work.start, work.end, work.table, work.stream, work.correlation, work.launch,
            launched.known, launched.start, launched.end, launched.thread, launched.function,
        )  # fmt: skip
        for start, end, table, stream, correlation, launch, known, *called in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            call = shape = size = None
            if known:
                begin, until, thread, function = called
                call = Call(begin, until, correlation, status[function], process, thread, names[function])
            if table:
                name, size = next(others[table])
            else:
                shape = shapes.get(launch)
                if shape is None:
                    shape = shapes[launch] = c.configuration(c.configurations[0][launch])
                name = shape.name
            yield GpuEvent(start, end, correlation, process, sweep.streams[stream], name, call, shape, size)


def _others(c: Context, window: Window) -> dict[int, Iterator[tuple[str, int | None]]]:
    """Names and sizes of work that is no kernel, by table, in the order of its begin."""
    found: dict[int, Iterator[tuple[str, int | None]]] = {}
    for number, table in enumerate(GPU_WORK):
        rows = window.tables.get(table)
        if not rows or not number:
            continue
        if table == "graph_launches":
            found[number] = ((f"graph {graph}", None) for graph in rows["graph"].tolist())
        else:
            kinds = operations(c, rows)[0].tolist()
            labels = {kind: operation_name(kind) for kind in set(kinds)}
            found[number] = zip([labels[kind] for kind in kinds], rows["bytes"].tolist(), strict=True)
    return found
