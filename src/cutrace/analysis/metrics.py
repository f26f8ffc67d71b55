"""The metrics of a window of a capture: comparable numbers of what the program did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..patterns import any_matcher
from ..runbin.layout import LOSS_REASONS
from ..trace import Trace
from ..trace.origins import NODE_FIELDS, Origins
from ..trace.quality import GPU_WORK, unfinished
from ..trace.selection import united
from .definitions import COPY_KINDS, METRICS, Metrics, Value
from .marks import ALL_PROCESSES, Window
from .names import normalize_kernel
from .work import TABLES_WITH_CALLS, Index, WorkRows, WorkSelection, index_of

#: The direction of each CUpti_ActivityMemcpyKind; any other is "other".
DIRECTIONS = {
    1: "h2d",
    2: "d2h",
    3: "h2d",
    4: "d2h",
    5: "d2d",
    6: "d2d",
    7: "d2d",
    8: "d2d",
    9: "h2h",
    10: "p2p",
}
_DIRECTION_NUMBERS = np.array(
    [list(COPY_KINDS).index(DIRECTIONS.get(kind, "other")) for kind in range(256)]
)


# CUpti_ActivityMemoryKind of device memory, arrays and managed memory. The variables of modules (6, 7) are allocated by
# the driver, so they do not count.
_DEVICE_MEMORY = (3, 4, 5)
_PINNED_MEMORY = 2
_ALLOCATE = 1
_RELEASE = 2

# Losses that make metrics wrong. NVTX losses do not: a window with a lost mark is incomplete, which is reported.
_FATAL_LOSSES = ("cupti_dropped", "memory_limit", "size_limit", "write_error", "unknown_record", "table_limit",
                 "kept_back", "name_unknown")  # fmt: skip
_NEEDED_KINDS = {"kernel": "kernels", "memcpy": "copies", "memset": "memory fills", "api": "API calls",
                 "memory": "allocations"}  # fmt: skip


def measure(
    trace: Trace,
    window: Window,
    *,
    normalize: Callable[[str], str] = normalize_kernel,
    ignore: Sequence[str] = (),
) -> Metrics:
    """Compute the metrics of a window or of a region.

    Work counts if the API call that launched it began in the window, on any thread of the window's process or of a
    process that belongs to it (:func:`.windows.owners`). ``normalize`` returns the stable name of a kernel. Kernels
    whose stable name matches a pattern of ``ignore`` do not count.
    """
    index = index_of(trace)
    processes, work = belonging(index, window)
    names = _stable_names(index, work["kernels"], normalize)
    work = _without_ignored(index, work, names, ignore)
    spans: dict[str, list[tuple[int, int]]] = {}
    for region in window.regions:
        spans.setdefault(region.name, []).append((region.start, region.end))
    origins = trace.origins
    if origins:
        nodes = {
            table: origins.of_rows(table, work[table].rows) for table in NODE_FIELDS
        }
    else:
        nodes = {}
    gpus, facts = _hardware(trace, work, window)
    gpu_work = [work[t] for t in GPU_WORK]
    return Metrics(
        values=_values(index, work, names),
        # Regions of the same name may be nested; their work counts once.
        regions={
            name: _values(
                index, _of_region(work, name, united(parts), origins, nodes), names
            )
            for name, parts in spans.items()
        },
        problems=tuple(_problems(trace, index, work, window, processes)),
        gpus=gpus,
        facts=facts,
        gpu_records=sum(map(len, gpu_work)),
        without_launch=sum(int((part.call < 0).sum()) for part in gpu_work),
    )


# What belongs to the window


def belonging(index: Index, window: Window) -> tuple[list[int] | None, WorkSelection]:
    """The processes whose work can belong to a window (None: all), and the calls and the work of the window."""
    if window.process == ALL_PROCESSES:
        processes = None
    else:
        processes = index.processes_of(window.process)
    work = index.everything.within([(window.start, window.end)])
    if processes is not None and len(processes) < len(index.owner):
        work = work.of_processes(processes)
    if index.loading.any():
        work = work.without_calls(index.loading)
    if window.tool:
        work = work.without_calls(_made_by_tool(index, window))
    return processes, work


def _of_region(
    work: WorkSelection,
    name: str,
    spans: list[tuple[int, int]],
    origins: Origins | None,
    nodes: dict[str, np.ndarray],
) -> WorkSelection:
    """The calls and the work launched within a region, and the work of graph nodes that were created in it: while it
    was open, or in an NVTX range of its name. ``nodes`` has the node of each row by table."""
    inside = work.within(spans)
    if not origins:
        return inside
    paths = np.array([name in path for path in origins.paths])
    begins, ends = np.array(spans, np.int64).T
    tables = dict(inside.tables)
    for table, node in nodes.items():
        times = np.stack([work[table].when, origins.created[node]])
        open_then = np.searchsorted(begins, times, "right") > np.searchsorted(
            ends, times, "right"
        )
        tables[table] = work[table][
            open_then.any(axis=0) | paths[origins.path_of[node]]
        ]
    return WorkSelection(inside.calls, tables)


def _made_by_tool(index: Index, window: Window) -> np.ndarray:
    calls = index.everything.calls
    mine: np.ndarray = (calls.rows["thread"] == window.thread) & (
        calls.rows["process"] == window.process
    )
    edges = np.searchsorted(calls.when, np.asarray(window.tool, np.int64))
    inside = np.zeros(len(calls), bool)
    for first, last in edges.tolist():
        inside[first:last] = True
    mine &= inside
    return mine


def _stable_names(
    index: Index, kernels: WorkRows, normalize: Callable[[str], str]
) -> dict[int, str]:
    """The stable names of these kernels, by string id of the recorded name."""
    return {
        i: normalize(index.strings[i])
        for i in np.unique(index.launch_name[kernels.rows["launch"]]).tolist()
    }


def _without_ignored(
    index: Index, work: WorkSelection, names: dict[int, str], ignore: Sequence[str]
) -> WorkSelection:
    matches = any_matcher(ignore)
    ignored = [i for i, name in names.items() if matches(name)]
    if not ignored:
        return work
    kernels = work["kernels"]
    counting = kernels[~np.isin(index.launch_name[kernels.rows["launch"]], ignored)]
    return WorkSelection(work.calls, work.tables | {"kernels": counting})


# The values


def _values(
    index: Index, work: WorkSelection, names: dict[int, str]
) -> dict[str, Value]:
    values = (
        _launches(index, work, names)
        | _copied(work)
        | _waits(index, work)
        | _memory(index, work["allocations"])
        | {"streams_used": _streams(work)}
        | _times(index, work)
    )
    return {name: values[name] for name in METRICS if name in values}


def _launches(
    index: Index, work: WorkSelection, names: dict[int, str]
) -> dict[str, Value]:
    kernels = work["kernels"].rows
    calls = index.functions.launches_graph[work.calls.rows["function"]]
    graphs = int(
        (calls & (index.functions.status[work.calls.rows["function"]] == 0)).sum()
    )
    # Where graphs are traced as a whole, their rows replace launching calls that were not recorded.
    graphs += int((work["graph_launches"].call < 0).sum())
    by_name = _counts(index.launch_name[kernels["launch"]], names.__getitem__)
    return {
        "kernel_launches": len(kernels),
        "kernels": by_name,
        "graph_launches": graphs,
    }


def _copied(work: WorkSelection) -> dict[str, Value]:
    copies = work["memcpys"].rows
    fills = work["memsets"].rows
    values: dict[str, Value] = {
        "memcpy_count": len(copies),
        "memcpy_bytes": int(copies["bytes"].sum()),
        "memset_count": len(fills),
        "memset_bytes": int(fills["bytes"].sum()),
    }
    direction = _DIRECTION_NUMBERS[copies["kind"]]
    for number in np.unique(direction).tolist() if len(copies) else ():
        of_kind = copies[direction == number]
        kind = list(COPY_KINDS)[number]
        values[f"memcpy_{kind}_count"] = len(of_kind)
        values[f"memcpy_{kind}_bytes"] = int(of_kind["bytes"].sum())
    return values


def _waits(index: Index, work: WorkSelection) -> dict[str, Value]:
    functions = work.calls.rows["function"]
    by_name = _counts(
        functions[index.functions.synchronizes[functions]], index.function_name
    )
    return {"sync_calls": sum(by_name.values()), "syncs": by_name}


def _counts(numbers: np.ndarray, name: Callable[[int], str]) -> dict[str, int]:
    """How often each name occurs; ``name`` returns that of a number."""
    by_name = Counter[str]()
    for i, count in zip(
        *(part.tolist() for part in np.unique(numbers, return_counts=True)), strict=True
    ):
        by_name[name(i)] += count
    return dict(sorted(by_name.items()))


def _memory(index: Index, allocations: WorkRows) -> dict[str, Value]:
    rows = allocations.rows
    pinned = rows[rows["memory"] == _PINNED_MEMORY]["operation"]
    on_device = np.isin(rows["memory"], _DEVICE_MEMORY)
    device = rows[on_device]
    calls = allocations.call[on_device & (rows["operation"] == _ALLOCATE)]
    # Function 0 has no name and stands for calls that were not recorded.
    functions = np.append(index.calls["function"], 0)[calls]
    # At equal times releases come first, so that the result does not depend on the order of processes.
    device = device[np.lexsort((device["operation"] == _ALLOCATE, device["time"]))]
    taken = device["operation"] == _ALLOCATE
    given = device["operation"] == _RELEASE
    level = np.cumsum(
        device["bytes"].astype(np.int64) * (taken.astype(np.int64) - given)
    )
    return {
        "allocations": int(taken.sum()),
        "allocators": _counts(functions, index.function_name),
        "frees": int(given.sum()),
        "pinned_allocations": int((pinned == _ALLOCATE).sum()),
        "pinned_frees": int((pinned == _RELEASE).sum()),
        "peak_memory_bytes": int(max(level.max(initial=0), 0)),
        "net_memory_bytes": int(level[-1]) if len(level) else 0,
    }


def _streams(work: WorkSelection) -> int:
    keys = [
        rows["process"].astype(np.uint64) << np.uint64(48)
        | rows["context"].astype(np.uint64) << np.uint64(32)
        | rows["stream"]
        for rows in (work[t].rows for t in GPU_WORK)
        if len(rows)
    ]
    if keys:
        return len(np.unique(np.concatenate(keys)))
    return 0


def _times(index: Index, work: WorkSelection) -> dict[str, Value]:
    kernels = work["kernels"].with_times
    copies = work["memcpys"].with_times
    spans = np.concatenate([_intervals(work[t].with_times) for t in GPU_WORK], axis=1)
    busy = union(spans)
    values: dict[str, Value] = {
        "kernel_time_ns": int((kernels["end"] - kernels["start"]).sum()),
        "busy_ns": busy,
        "api_time_ns": _api_time(work.calls.rows),
    }
    if spans.shape[1]:
        span = int(spans[1].max()) - int(spans[0].min())
        values["gpu_span_ns"] = span
        values["idle_share"] = 1.0 - busy / span if span else 0.0
    if len(latency := _latencies(index, work["kernels"])):
        values["launch_latency_ns"] = int(np.median(latency))
    copying = int((copies["end"] - copies["start"]).sum())
    if copying:
        values["copy_bandwidth"] = round(
            int(copies["bytes"].sum()) * 1_000_000_000 / copying
        )
    return values


def union(intervals: np.ndarray) -> int:
    """The length of the union of intervals, given as an array (2, n) of starts and ends."""
    if not intervals.shape[1]:
        return 0
    start, end = intervals[:, np.argsort(intervals[0], kind="stable")]
    reached = np.maximum.accumulate(end)
    # Each interval adds its part beyond all earlier intervals.
    before = np.concatenate([start[:1], reached[:-1]])
    return int((reached - np.minimum(np.maximum(before, start), reached)).sum())


def _intervals(rows: np.ndarray) -> np.ndarray:
    return np.stack([rows["start"], rows["end"]])


def _api_time(calls: np.ndarray) -> int:
    """The time (ns) in calls, added over threads. Nested calls of a thread count once."""
    if not len(calls):
        return 0
    thread = calls["process"].astype(np.uint64) << np.uint64(32) | calls["thread"]
    _, number = np.unique(thread, return_inverse=True)
    first = int(calls["start"].min())
    # Shift the threads one after another on a single axis, so that one union computes all.
    shift = number.reshape(-1).astype(np.uint64) * np.uint64(
        int(calls["end"].max()) - first + 1
    )
    return union(_intervals(calls) - np.uint64(first) + shift)


def _latencies(index: Index, kernels: WorkRows) -> np.ndarray:
    """For each call, the time from its begin to the start of the first kernel that it launched (ns; negative if
    CUPTI's clocks disagree)."""
    known = kernels[kernels.timed & (kernels.call >= 0)]
    start = known.rows["start"].astype(np.int64)
    order = np.argsort(start, kind="stable")
    call, first = np.unique(known.call[order], return_index=True)
    latency: np.ndarray = start[order][first] - index.everything.calls.when[call]
    return latency


# Hardware and problems


def _hardware(
    trace: Trace, work: WorkSelection, window: Window
) -> tuple[tuple[str, ...], dict[str, str]]:
    used: set[tuple[int, int]] = set()
    for table in TABLES_WITH_CALLS:
        rows = work[table].rows
        if not len(rows):
            continue
        if table == "allocations":
            rows = rows[np.isin(rows["memory"], _DEVICE_MEMORY)]
        pairs = np.unique(
            rows["process"].astype(np.uint32) << np.uint32(16) | rows["device"]
        )
        used |= {(pair >> 16, pair & 0xFFFF) for pair in pairs.tolist()}
    names: dict[bytes, str] = {}
    facts: dict[str, str] = {}
    capabilities: set[str] = set()
    for row in trace.devices:
        if (int(row["process"]), int(row["device"])) in used and bytes(
            row["uuid"]
        ) not in names:
            names[bytes(row["uuid"])] = trace.strings[int(row["name"])]
            capabilities.add(f"{row['compute_major']}.{row['compute_minor']}")
            facts.setdefault("clock", f"{round(int(row['core_clock']) / 1000)} MHz")
    if capabilities:
        facts["compute capability"] = "+".join(sorted(capabilities))
    info = trace.processes[max(window.process, 0)].info if trace.processes else {}
    facts |= _software(info)
    return tuple(names.values()), facts


def _software(info: dict[str, Any]) -> dict[str, str]:
    facts = {}
    if isinstance(driver := info.get("driver"), str):
        facts["driver"] = driver
    for key in ("runtime_version", "driver_version"):
        if (
            isinstance(version := info.get(key), int)
            and version
            and "cuda" not in facts
        ):
            facts["cuda"] = f"{version // 1000}.{version % 1000 // 10}"
    return facts


def _problems(
    trace: Trace,
    index: Index,
    work: WorkSelection,
    window: Window,
    processes: list[int] | None,
) -> Iterator[str]:
    chosen = [p for p in trace.processes if processes is None or p.index in processes]
    if not window.complete:
        yield f"a mark of {window.name!r} is missing: the program was interrupted, or the capture lost it"
    for name in dict.fromkeys(r.name for r in window.regions if not r.complete):
        yield f"region {name!r} was not ended in the test that began it, or a mark of it is missing"
    yield from _losses(trace, window, {p.index for p in chosen})
    for table in TABLES_WITH_CALLS:
        count = int((~work[table].timed).sum())
        if count:
            yield f"{count:,} {table} have no known times"
    if index.lost:
        yield f"{index.lost:,} records of GPU work have neither a time nor a launch: they may belong to any test"
    for damage in trace.damage:
        yield f"the capture is damaged: {damage.reason}"
    for p in chosen:
        if isinstance(kinds := p.info.get("kinds"), list) and (
            lacking := _NEEDED_KINDS.keys() - set(kinds)
        ):
            what = ", ".join(
                name for kind, name in _NEEDED_KINDS.items() if kind in lacking
            )
            notes = p.info.get("notes")
            if isinstance(notes, list) and notes:
                why = f": {'; '.join(map(str, notes))}"
            else:
                why = ""
            yield f"process {p.pid} ({p.name}) recorded no {what}{why}"
    for loss in unfinished(chosen):
        yield f"{loss.meaning} ({loss.detail})"


def _losses(trace: Trace, window: Window, processes: set[int]) -> Iterator[str]:
    """Losses counted since the window began. A loss is counted when it is noticed, which is after it happens."""
    rows = trace.losses
    if not len(rows):
        return
    rows = rows[
        np.isin(rows["process"], list(processes)) & (rows["time"] >= window.start)
    ]
    fatal = [
        number for number, (name, _) in LOSS_REASONS.items() if name in _FATAL_LOSSES
    ]
    rows = rows[np.isin(rows["reason"], fatal)]
    for reason, detail in dict.fromkeys(rows[["reason", "detail"]].tolist()):
        same = (rows["reason"] == reason) & (rows["detail"] == detail)
        about = f" ({trace.strings[detail]})" if detail else ""
        yield f"{int(rows['count'][same].sum()):,} {LOSS_REASONS[reason][1]}{about}"
