"""A simple implementation of the statistics, for comparison with the real one."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import cutrace
from cutrace.analysis.calls import plain_name
from cutrace.analysis.collection import StatsCollection
from cutrace.analysis.gpu import communicates
from cutrace.analysis.names import normalize_kernel
from cutrace.analysis.statistics import (
    api,
    copies,
    counters,
    gpus,
    graphs,
    host,
    kernels,
    launches,
    memory,
    nccl,
    nvtx,
    paths,
    stacks,
    streams,
)
from cutrace.runbin import TABLES, Writer
from cutrace.trace import Trace
from cutrace.trace.selection import INTERNED
from range_rule import Range, owners, ranges_of

_FAMILIES = (
    *(api, copies, counters, gpus, graphs, host, kernels),
    *(launches, memory, nccl, nvtx, paths, stacks, streams),
)
#: All collections of the core.
COLLECTIONS = [value for module in _FAMILIES for value in vars(module).values() if isinstance(value, StatsCollection)]
GPU_TABLES = ("kernels", "memcpys", "memsets", "graph_launches")
Moments = Iterable[tuple[int, int]]


@dataclass(frozen=True)
class Call:
    start: int
    end: int
    thread: int
    function: str


@dataclass(frozen=True)
class Work:
    table: str
    process: int
    device: int
    context: int
    stream: int
    start: int
    end: int
    correlation: int
    name: str
    call: Call | None

    @property
    def duration(self) -> int:
        return self.end - self.start


def union(intervals: Moments) -> int:
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(end, reached) - max(start, reached)
        reached = max(reached, end)
    return total


def intersection(a: Moments, b: Moments) -> int:
    a, b = list(a), list(b)
    return union(a) + union(b) - union(a + b)


def grouped(pairs: Iterable[tuple[Hashable, object]]) -> dict:
    found = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def same(spread, values: list[int]) -> bool:
    """Whether a spread is the spread of these values. Quantiles of large values may differ by 0.05 %."""

    ordered = sorted(values)

    def close(found: float, part: float) -> bool:
        rank = part * (len(ordered) - 1)
        low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
        exact = low + (high - low) * (rank - math.floor(rank))
        return math.isclose(found, exact, rel_tol=1e-12) if high < 2048 else abs(found - exact) <= 0.0005 * high

    if not values:
        return spread.count == 0
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return (
        (spread.count, spread.total, spread.min, spread.max) == (len(values), sum(values), min(values), max(values))
        and np.isclose(spread.mean, statistics.fmean(values), rtol=1e-12)
        and close(spread.median, 0.5)
        and close(spread.q3, 0.75)
        and np.isclose(spread.std, deviation, rtol=1e-6, atol=1e-6)
    )


def calls(trace: Trace) -> dict[tuple[int, int], Call]:
    """The API call of each correlation id of each process, the outermost one."""
    found: dict[tuple[int, int], Call] = {}
    names = trace.functions["name"]
    for row in trace.api_calls:
        key = int(row["process"]), int(row["correlation"])
        name = plain_name(trace.strings[int(names[row["function"]])]) or "(unknown call)"
        call = Call(int(row["start"]), int(row["end"]), int(row["thread"]), name)
        if key[1] and (key not in found or (call.start, -call.end) < (found[key].start, -found[key].end)):
            found[key] = call
    return found


def work(trace: Trace) -> list[Work]:
    """All GPU work, sorted by start."""
    behind = calls(trace)
    found = []
    for table in GPU_TABLES:
        for row in trace.table(table):
            name = ""
            if table == "kernels":
                name = normalize_kernel(trace.strings[int(trace.launches[row["launch"]]["name"])])
            process, device, context, stream, start, end, correlation = (
                int(row[f]) for f in ("process", "device", "context", "stream", "start", "end", "correlation")
            )
            call = behind.get((process, correlation))
            found.append(Work(table, process, device, context, stream, start, end, correlation, name, call))
    return sorted(found, key=lambda w: w.start)


def streams(trace: Trace) -> dict[tuple[int, int, int, int], list[Work]]:
    return grouped(((w.process, w.device, w.context, w.stream), w) for w in work(trace))


def idle(trace: Trace, key: tuple[int, int, int, int], consecutive: int = 30) -> dict[str, int]:
    """Idle time of a stream by reason, gap by gap."""
    everything = [w for w in work(trace) if w.process == key[0]]
    found = Counter(dict.fromkeys(("host", "kernel", "dependency", "other", "gaps"), 0))
    reached = None
    for w in streams(trace)[key]:
        if reached is not None and w.start > reached:
            ends = [o.end for o in everything if o.end <= w.start and o.end > o.start]
            released = max(ends, default=-1)
            if w.call and w.call.start > reached:
                reason = "host"
            elif w.start - reached < consecutive:
                reason = "kernel"
            elif w.call and released > reached and w.call.end <= released and w.start - released <= 10_000:
                reason = "dependency"
            else:
                reason = "other"
            found[reason] += w.start - reached
            found["gaps"] += 1
        reached = max(reached or 0, w.end)
    return dict(found)


def queue(trace: Trace, key: tuple[int, int, int, int], full: int) -> tuple[list[int], float, int]:
    """The length of the queue at each launch, its mean over time, and the time (ns) with at least ``full`` launches."""
    launches, before, queued = [], 0, 0
    for w in streams(trace)[key]:
        if w.correlation != before and w.call:
            # Later work entered the queue later, and has not started.
            queued = max(queued, min(w.call.start, w.start))
            launches.append((queued, w.start))
        before = w.correlation
    lengths = [max(i + 1 - sum(begin <= at for _, begin in launches), 0) for i, (at, _) in enumerate(launches)]
    if not launches:
        return [], 0.0, 0
    span = launches[-1][1] - launches[0][0]
    waited = sum(begin - at for at, begin in launches)
    # The queue is full from the launch that fills it until its first work starts.
    filled = [(at, launches[i + 1 - full][1]) for i, (at, _) in enumerate(launches) if i + 1 >= full]
    return lengths, waited / span if span > 0 else 0.0, union((a, b) for a, b in filled if a < b)


def gpu(trace: Trace, process: int, device: int) -> dict[str, int]:
    """Busy time, computation, communication and hidden time on one GPU."""
    mine = [w for w in work(trace) if (w.process, w.device) == (process, device)]
    copies = [(w.start, w.end) for w in mine if w.table == "memcpys"]
    names = {w: w.table == "kernels" and communicates(w.name) for w in mine}
    talking = [(w.start, w.end) for w in mine if names[w]]
    compute = [(w.start, w.end) for w in mine if w.table in ("kernels", "graph_launches") and not names[w]]
    return {
        "busy": union((w.start, w.end) for w in mine),
        "compute": union(compute),
        "communication": union(talking),
        "communication hidden": intersection(talking, compute),
        "copies": union(copies),
        "copies hidden": intersection(copies, compute),
        "both": union(copies + talking),
        "both hidden": intersection(copies + talking, compute),
    }


def inside(trace: Trace, within: Range) -> list[Work]:
    """The GPU work that belongs to a range."""
    ranges = ranges_of(trace)
    called = [w for w in work(trace) if w.process == within.process and w.call]
    called = [w for w in called if within.start <= w.call.start < within.end]
    nest = within.thread, within.domain
    return [w for w in called if nest in owners(ranges, w.process, w.call.thread, w.call.start)[1]]


def rewritten(source: Path, target: Path, *, rows: int, order: Callable[[int], np.ndarray]) -> Path:
    """Write the same capture in blocks of ``rows`` rows. ``order`` gets the number of rows of a table, and returns the
    order in which to write them."""
    with cutrace.load(source) as trace:
        parts = []
        for process in trace.processes:
            part = target.with_suffix(f".{process.index}")
            parts.append(part)
            info = {k: v for k, v in process.info.items() if k in ("boot_id", "host", "command")}
            with Writer(part, pid=process.pid, instance=process.index + 1, **info) as writer:
                for text in list(trace.strings)[1:]:
                    writer.string(text)
                for name, table in TABLES.items():
                    found = np.concatenate([trace.table(name), trace.unknown(name)])
                    if name in INTERNED:
                        found = found[1:]
                    if "process" in table.offsets:
                        found = found[found["process"] == process.index]
                        found["process"] = 0
                    if table.start_field:
                        found = found[order(len(found))]
                    for at in range(0, len(found), rows if table.start_field else len(found) or 1):
                        writer.rows(name, found[at : at + (rows if table.start_field else len(found))])
    target.write_bytes(b"".join(part.read_bytes() for part in parts))
    return target
