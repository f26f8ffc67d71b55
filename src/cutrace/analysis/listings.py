"""The events of a capture one by one, in the order of time, however large the capture is."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..runbin.labels import COPIES, known_label
from ..trace import Trace
from ..trace.quality import GPU_WORK
from .calls import UNKNOWN_CALL, plain_name
from .stats import Options
from .sweep import Stream, Sweep, Window, blocks_by_process


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
class Shape:
    """How a kernel was launched: its name, grid and block, registers a thread, shared memory of a block (bytes)."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared: int


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
    shape: Shape | None = None
    bytes: int | None = None


def gpu_events(trace: Trace, options: Options) -> Iterator[GpuEvent]:
    """All GPU work by its begin."""
    infos = blocks_by_process(trace, (*GPU_WORK, "api_calls"))
    parts = [
        _gpu_events(trace, process, Sweep(trace, process, infos[process]), options) for process in range(len(infos))
    ]
    return heapq.merge(*parts, key=lambda event: event.start)


def calls(trace: Trace) -> Iterator[Call]:
    """All API calls by their begin."""
    infos = blocks_by_process(trace, ("api_calls",))
    parts = [
        _calls(trace, process, Sweep(trace, process, infos[process], joins=False)) for process in range(len(infos))
    ]
    return heapq.merge(*parts, key=lambda call: call.start)


def _calls(trace: Trace, process: int, sweep: Sweep) -> Iterator[Call]:
    names, status = _functions(trace)
    for window in sweep:
        rows = window.tables["api_calls"]
        columns = (rows[field].tolist() for field in ("start", "end", "correlation", "function", "thread"))
        for start, end, correlation, function, thread in zip(*columns, strict=True):
            yield Call(start, end, correlation, status[function], process, thread, names[function])


def _functions(trace: Trace) -> tuple[list[str], list[int]]:
    names = trace.strings.take(trace.functions["name"], plain_name).tolist()
    return [name or UNKNOWN_CALL for name in names], trace.functions["status"].tolist()


def _gpu_events(trace: Trace, process: int, sweep: Sweep, options: Options) -> Iterator[GpuEvent]:
    names, status = _functions(trace)
    shapes: dict[int, Shape] = {}
    for window in sweep:
        work, c = window.work, window.work.calls
        others = _others(window)
        columns = (
            work.start, work.end, work.table, work.stream, work.correlation, work.launch,
            c.known, c.start, c.end, c.thread, c.function,
        )  # fmt: skip
        for start, end, table, stream, correlation, launch, known, *called in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            call = None
            if known:
                begin, until, thread, function = called
                call = Call(begin, until, correlation, status[function], process, thread, names[function])
            place = sweep.streams[stream]
            if table:
                name, size = next(others[table])
                yield GpuEvent(start, end, correlation, process, place, name, call, bytes=size)
                continue
            shape = shapes.get(launch)
            if shape is None:
                shape = shapes[launch] = _shape(trace, launch, options)
            yield GpuEvent(start, end, correlation, process, place, shape.name, call, shape)


def _shape(trace: Trace, launch: int, options: Options) -> Shape:
    row = trace.launches[launch]
    (gx, gy, gz), (bx, by, bz) = ((int(row[f"{what}_{axis}"]) for axis in "xyz") for what in ("grid", "block"))
    shared = int(row["static_shared"]) + int(row["dynamic_shared"])
    name = options.names(trace.strings[int(row["name"])])
    return Shape(name, (gx, gy, gz), (bx, by, bz), int(row["registers"]), shared)


def _others(window: Window) -> dict[int, Iterator[tuple[str, int | None]]]:
    """Names and sizes of work that is no kernel, by table, in the order of its begin."""
    found: dict[int, Iterator[tuple[str, int | None]]] = {}
    for number, table in enumerate(GPU_WORK):
        rows = window.tables.get(table)
        if not rows or not number:
            continue
        if table == "graph_launches":
            found[number] = ((f"graph {graph}", None) for graph in rows["graph"].tolist())
        else:
            kinds = rows["kind"] if table == "memcpys" else np.full(len(rows), -1)
            labels = {
                k: f"[CUDA memcpy {known_label(COPIES, k)}]" if k >= 0 else "[CUDA memset]" for k in set(kinds.tolist())
            }
            found[number] = zip([labels[k] for k in kinds.tolist()], rows["bytes"].tolist(), strict=True)
    return found
