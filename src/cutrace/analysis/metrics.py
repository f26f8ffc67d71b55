"""The metrics of a window of a capture: comparable numbers on the work of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..patterns import any_matcher
from ..runbin.layout import GPU_WORK, LOSS_REASONS
from ..trace import Process, Trace
from ..trace.codes import UNKNOWN
from ..trace.intervals import Intervals
from ..trace.origins import NODE_FIELDS, Origins
from ..trace.quality import counted_loss, unfinished
from ..trace.rows import changes, counted, distinct, numbered
from ..trace.selection import united
from ..units import count_of
from .definitions import COPY_KINDS, METRICS, Metrics, Value
from .gpu import devices_of
from .marks import ALL_PROCESSES, Window
from .names import normalize_kernel
from .work import (
    TABLES_WITH_CALLS,
    Index,
    WorkRows,
    WorkSelection,
    index_of,
    threads_of,
)

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
#: The index in COPY_KINDS of each CUpti_ActivityMemcpyKind.
DIRECTION_NUMBERS = np.array(
    [list(COPY_KINDS).index(DIRECTIONS.get(kind, "other")) for kind in range(256)]
)


#: CUpti_ActivityMemoryKind of device memory, arrays and managed memory. Variables of modules (6, 7) do not count,
#: because the driver allocates them.
DEVICE_MEMORY = (3, 4, 5)
PINNED_MEMORY = 2
PAGEABLE_MEMORY = 1
#: The column with the kind of the host's memory, by direction.
HOST_SIDES = {"h2d": "source_memory", "d2h": "destination_memory"}
ALLOCATE = 1
RELEASE = 2

# Losses that make metrics wrong. NVTX losses are not among them, because a window with a lost mark is reported as
# incomplete.
_FATAL_LOSSES = ("cupti_dropped", "memory_limit", "size_limit", "write_error", "unknown_record", "table_limit",
                 "unreadable", "kept_back", "name_unknown", "not_closed")  # fmt: skip
_NEEDED_KINDS = {"kernel": "kernels", "memcpy": "copies", "memset": "memory fills", "api": "API calls",
                 "memory": "allocations"}  # fmt: skip
# Names in losses of refused kinds, besides the names above. CUPTI may refuse these once the program uses the GPU.
_REFUSED_PARTS = ("GPU activity", "kernels, copies and fills")


def measure(
    trace: Trace,
    window: Window,
    *,
    normalize: Callable[[str], str] = normalize_kernel,
    ignore: Sequence[str] = (),
) -> Metrics:
    """Compute the metrics of a window or of a region.

    Work counts if the API call that launched it started in the window, on any thread of the window's process or of a
    process that belongs to it (:func:`.windows.owners`). ``normalize`` returns the stable name of a kernel. Kernels
    whose stable name matches a pattern of ``ignore`` do not count.
    """
    index = index_of(trace)
    processes, work = belonging(index, window)
    names = _stable_names(index, work["kernels"], normalize)
    work = _without_ignored(index, work, names, ignore)
    nodes = _nodes(trace.origins, work)
    regions = {}
    for name in dict.fromkeys(region.name for region in window.regions):
        of_region = _of_region(work, name, window, trace.origins, nodes)
        regions[name] = _values(index, of_region, names)
    gpu_records = 0
    without_launch = 0
    for table in GPU_WORK:
        gpu_records += len(work[table])
        without_launch += np.count_nonzero(work[table].call < 0)
    gpus, facts = _hardware(trace, work, window)
    return Metrics(
        values=_values(index, work, names),
        regions=regions,
        problems=tuple(_problems(trace, index, work, window, processes)),
        gpus=gpus,
        facts=facts,
        gpu_records=gpu_records,
        without_launch=without_launch,
        codes=_codes(trace, index, work["kernels"].rows, names),
    )


# Work that belongs to the window


def belonging(index: Index, window: Window) -> tuple[list[int] | None, WorkSelection]:
    """The processes whose work can belong to a window (None: all), and the calls and the work of the window."""
    processes = None
    if window.process != ALL_PROCESSES:
        processes = index.processes_of(window.process)
    work = index.everything.within([(window.start, window.end)])
    if processes is not None and len(processes) < len(index.owner):
        work = work.of_processes(processes)
    if index.loading.any():
        work = work.without_calls(index.loading)
    if window.tool:
        work = work.without_calls(_made_by_tool(index, window))
    return processes, work


def work_by_thread(
    trace: Trace, window: Window, names: Mapping[int, str]
) -> Counter[str]:
    """The number of kernels, copies, fills and whole graphs that threads launched in a window, by the ``names`` of the
    threads. Work of other threads and work whose launch was not recorded are left out."""
    index = index_of(trace)
    _, work = belonging(index, window)
    threads = index.calls["thread"]
    by_name = Counter[str]()
    for table in GPU_WORK:
        calls = work[table].call
        launching = threads[calls[calls >= 0]]
        for thread in launching.tolist():
            if thread in names:
                by_name[names[thread]] += 1
    return by_name


def work_in(trace: Trace, window: Window, region: str = "") -> WorkSelection:
    """The calls and the work of a window, or of its regions of this name."""
    _, work = belonging(index_of(trace), window)
    if not region:
        return work
    nodes = _nodes(trace.origins, work)
    return _of_region(work, region, window, trace.origins, nodes)


def _nodes(origins: Origins | None, work: WorkSelection) -> dict[str, np.ndarray]:
    """The graph node of each row by table; nothing without graphs."""
    if not origins:
        return {}
    return {table: origins.of_rows(table, work[table].rows) for table in NODE_FIELDS}


def _of_region(
    work: WorkSelection,
    name: str,
    window: Window,
    origins: Origins | None,
    nodes: dict[str, np.ndarray],
) -> WorkSelection:
    """The calls and the work launched within a region, and the work of graph nodes that were created in it: while it
    was open, or in an NVTX range of its name. ``nodes`` has the node of each row by table."""
    parts = [(part.start, part.end) for part in window.regions if part.name == name]
    # Regions of the same name may be nested; their work counts once.
    spans = united(parts)
    inside = work.within(spans)
    if not origins:
        return inside
    paths = np.array([name in path for path in origins.paths])
    begins, ends = np.array(spans, np.int64).T
    tables = dict(inside.tables)
    for table, node in nodes.items():
        rows = work[table]
        times = np.stack([rows.when, origins.created[node]])
        begun = np.searchsorted(begins, times, "right")
        ended = np.searchsorted(ends, times, "right")
        open_then = (begun > ended).any(axis=0)
        in_range = paths[origins.path_of[node]]
        tables[table] = rows[open_then | in_range]
    return WorkSelection(inside.calls, tables)


def _made_by_tool(index: Index, window: Window) -> np.ndarray:
    calls = index.everything.calls
    inside = np.zeros(len(calls), bool)
    edges = np.searchsorted(calls.when, np.asarray(window.tool, np.int64))
    for first, last in edges.tolist():
        inside[first:last] = True
    inside &= calls.rows["thread"] == window.thread
    inside &= calls.rows["process"] == window.process
    return inside


def _stable_names(
    index: Index, kernels: WorkRows, normalize: Callable[[str], str]
) -> dict[int, str]:
    """The stable names of these kernels, by string id of the recorded name."""
    recorded = distinct(index.kernel_names(kernels.rows))
    return {name: normalize(index.strings[name]) for name in recorded.tolist()}


def _without_ignored(
    index: Index, work: WorkSelection, names: dict[int, str], ignore: Sequence[str]
) -> WorkSelection:
    matches = any_matcher(ignore)
    ignored = [recorded for recorded, name in names.items() if matches(name)]
    if not ignored:
        return work
    kernels = work["kernels"]
    counts = ~np.isin(index.kernel_names(kernels.rows), ignored)
    return WorkSelection(work.calls, {**work.tables, "kernels": kernels[counts]})


# The values


def _values(
    index: Index, work: WorkSelection, names: dict[int, str]
) -> dict[str, Value]:
    values = {
        **_launches(index, work, names),
        **_copied(work),
        **_waits(index, work),
        **_memory(index, work["allocations"]),
        **_streams(index, work),
        **_times(index, work),
    }
    return {name: values[name] for name in METRICS if name in values}


def _launches(
    index: Index, work: WorkSelection, names: dict[int, str]
) -> dict[str, Value]:
    kernels = work["kernels"].rows
    function = work.calls.rows["function"]
    launches_graph = index.functions.launches_graph[function]
    succeeded = index.function_status[function] == 0
    graphs = int((launches_graph & succeeded).sum())
    # Where graphs are traced as a whole, their rows replace launching calls that were not recorded.
    graphs += int((work["graph_launches"].call < 0).sum())
    return {
        "kernel_launches": len(kernels),
        "kernels": _counts(index.kernel_names(kernels), names.__getitem__),
        "graph_launches": graphs,
    }


def _codes(
    trace: Trace, index: Index, kernels: np.ndarray, names: dict[int, str]
) -> dict[str, tuple[str, ...]] | None:
    """The machine code of kernels by stable name; None if it was not recorded."""
    if trace.codes is None:
        return None
    stable = {}
    for recorded in distinct(index.kernel_names(kernels)).tolist():
        stable[index.strings[recorded]] = names[recorded]
    # Kernels without a launch configuration have no code.
    codes: dict[str, tuple[str, ...]] = dict.fromkeys(stable.values(), (UNKNOWN,))
    known = trace.codes.of_kernels(kernels, stable.__getitem__)
    for name, kernel in known.items():
        codes[name] = kernel.descriptions
    return dict(sorted(codes.items()))


def _copied(work: WorkSelection) -> dict[str, Value]:
    copies = work["memcpys"].rows
    fills = work["memsets"].rows
    values: dict[str, Value] = {
        "memcpy_count": len(copies),
        "memcpy_bytes": int(copies["bytes"].sum()),
        "memset_count": len(fills),
        "memset_bytes": int(fills["bytes"].sum()),
        "pageable_copies": int(pageable(copies).sum()),
    }
    if not len(copies):
        return values
    direction = DIRECTION_NUMBERS[copies["kind"]]
    for number, kind in enumerate(COPY_KINDS):
        of_kind = copies[direction == number]
        if not len(of_kind):
            continue
        values[f"memcpy_{kind}_count"] = len(of_kind)
        values[f"memcpy_{kind}_bytes"] = int(of_kind["bytes"].sum())
    return values


def pageable(copies: np.ndarray) -> np.ndarray:
    """A mask of the copies between pageable memory of the host and the device."""
    mask = np.zeros(len(copies), bool)
    if not len(copies):
        return mask
    direction = DIRECTION_NUMBERS[copies["kind"]]
    for number, kind in enumerate(COPY_KINDS):
        if kind in HOST_SIDES:
            here = direction == number
            here &= copies[HOST_SIDES[kind]] == PAGEABLE_MEMORY
            mask |= here
    return mask


def _waits(index: Index, work: WorkSelection) -> dict[str, Value]:
    functions = work.calls.rows["function"]
    waits = functions[index.functions.synchronizes[functions]]
    by_name = _counts(waits, index.function_name)
    return {"sync_calls": sum(by_name.values()), "syncs": by_name}


def _counts(numbers: np.ndarray, name: Callable[[int], str]) -> dict[str, int]:
    """The number of occurrences of each name. ``name`` returns the name of a number."""
    by_name = Counter[str]()
    for number, count in counted(numbers).items():
        by_name[name(number)] += count
    return dict(sorted(by_name.items()))


_NO_MEMORY: dict[str, Value] = {
    "allocations": 0,
    "allocators": {},
    "frees": 0,
    "pinned_allocations": 0,
    "pinned_frees": 0,
    "peak_memory_bytes": 0,
    "net_memory_bytes": 0,
}


def _memory(index: Index, allocations: WorkRows) -> dict[str, Value]:
    rows = allocations.rows
    if not len(rows):
        return dict(_NO_MEMORY)
    pinned = rows[rows["memory"] == PINNED_MEMORY]["operation"]
    on_device = np.isin(rows["memory"], DEVICE_MEMORY)
    calls = allocations.call[on_device & (rows["operation"] == ALLOCATE)]
    # Function 0 has no name and stands for calls that were not recorded.
    functions = np.append(index.calls["function"], 0)[calls]
    device = rows[on_device]
    taken = device["operation"] == ALLOCATE
    given = device["operation"] == RELEASE
    size = device["bytes"].astype(np.int64)
    change = size * (taken.astype(np.int64) - given)
    # At equal times releases come first, so that the result does not depend on the order of processes.
    order = np.lexsort((taken, device["time"]))
    level = np.cumsum(change[order])
    return {
        "allocations": int(taken.sum()),
        "allocators": _counts(functions, index.function_name),
        "frees": int(given.sum()),
        "pinned_allocations": int((pinned == ALLOCATE).sum()),
        "pinned_frees": int((pinned == RELEASE).sum()),
        "peak_memory_bytes": int(level.max(initial=0)),
        "net_memory_bytes": int(change.sum()),
    }


#: The bits of a stream's number.
_STREAM = (1 << 32) - 1


def _streams(index: Index, work: WorkSelection) -> dict[str, Value]:
    """The number of streams on which GPU work ran, and the work on default streams if all of them are known."""
    streams = set[int]()
    on_default = 0
    for table in GPU_WORK:
        rows = work[table].rows
        # A test suite has thousands of windows. Most of them have rows in one or two tables only.
        if not len(rows):
            continue
        for key, count in counted(contexts_of(rows) << 32 | rows["stream"]).items():
            streams.add(key)
            if index.default_streams.get(key >> 32) == key & _STREAM:
                on_default += count
    values: dict[str, Value] = {"streams_used": len(streams)}
    if all(key >> 32 in index.default_streams for key in streams):
        values["default_stream_work"] = on_default
    return values


def contexts_of(rows: np.ndarray) -> np.ndarray:
    """The context of each row, as the keys of :attr:`.Index.default_streams`."""
    return rows["process"].astype(np.int64) << 16 | rows["context"]


def on_default_stream(index: Index, rows: np.ndarray) -> np.ndarray:
    """A mask of the rows of GPU work on the legacy default stream of their context."""
    contexts = contexts_of(rows)
    mask = np.zeros(len(rows), bool)
    for context in distinct(contexts).tolist():
        stream = index.default_streams.get(context)
        if stream is not None:
            mask |= (contexts == context) & (rows["stream"] == stream)
    return mask


def _times(index: Index, work: WorkSelection) -> dict[str, Value]:
    timed = {table: work[table].with_times for table in GPU_WORK}
    copies = timed["memcpys"]
    parts = [_intervals(rows) for rows in timed.values() if len(rows)]
    spans = np.zeros((2, 0), np.uint64)
    if parts:
        spans = np.concatenate(parts, axis=1)
    busy = union(spans)
    values: dict[str, Value] = {
        "kernel_time_ns": _total_time(timed["kernels"]),
        "busy_ns": busy,
        "api_time_ns": _api_time(work.calls.rows),
    }
    if spans.shape[1]:
        starts, ends = spans
        span = int(ends.max()) - int(starts.min())
        values["gpu_span_ns"] = span
        values["idle_share"] = 0.0
        if span:
            values["idle_share"] = 1.0 - busy / span
    latency = _latencies(index, work["kernels"])
    if len(latency):
        values["launch_latency_ns"] = _median(latency)
    copying = _total_time(copies)
    if copying:
        copied = int(copies["bytes"].sum())
        values["copy_bandwidth"] = round(copied * 1_000_000_000 / copying)
    return values


def _median(values: np.ndarray) -> int:
    """The median of integers without its fraction."""
    ordered = np.sort(values)
    below = int(ordered[(len(ordered) - 1) // 2])
    above = int(ordered[len(ordered) // 2])
    return int((below + above) / 2)


def _total_time(rows: np.ndarray) -> int:
    """The sum of the times (ns) of rows."""
    if not len(rows):
        return 0
    return int((rows["end"] - rows["start"]).sum())


def union(intervals: np.ndarray) -> int:
    """The length of the union of intervals, given as an array (2, n) of starts and ends."""
    if intervals.shape[1] <= _FEW_INTERVALS:
        return _union_of_few(intervals)
    start, end = intervals
    return Intervals.union(start, end).length


#: The number of intervals that Python unites faster than NumPy.
_FEW_INTERVALS = 16


def _union_of_few(intervals: np.ndarray) -> int:
    length = 0
    reached = 0
    for start, end in sorted(intervals.T.tolist()):
        length += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return length


def _intervals(rows: np.ndarray) -> np.ndarray:
    return np.stack([rows["start"], rows["end"]])


def _api_time(calls: np.ndarray) -> int:
    """The time (ns) in calls, added over threads. Nested calls of a thread count once."""
    if not len(calls):
        return 0
    threads, number = numbered(threads_of(calls))
    if len(threads) == 1:
        return union(_intervals(calls))
    first = calls["start"].min()
    length = int(calls["end"].max()) - int(first) + 1
    # Shift the threads one after another on a single axis, so that one union computes all.
    shift = number.astype(np.uint64) * np.uint64(length)
    return union(_intervals(calls) - first + shift)


def _latencies(index: Index, kernels: WorkRows) -> np.ndarray:
    """For each call, the time (ns) from its start to the start of the first kernel that it launched. It is negative if
    CUPTI's clocks disagree."""
    known = kernels.timed & (kernels.call >= 0)
    start = kernels.rows["start"][known].astype(np.int64)
    call = kernels.call[known]
    order = np.lexsort((start, call))
    first = order[changes(call[order])]
    called = index.everything.calls.when[call[first]]
    return start[first] - called


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
            rows = rows[np.isin(rows["memory"], DEVICE_MEMORY)]
        pairs, _ = devices_of(rows)
        used.update(pairs)
    names: dict[bytes, str] = {}
    facts: dict[str, str] = {}
    capabilities: set[str] = set()
    for row in trace.devices:
        process = int(row["process"])
        device = int(row["device"])
        uuid = bytes(row["uuid"])
        if (process, device) not in used or uuid in names:
            continue
        names[uuid] = trace.strings[int(row["name"])]
        capabilities.add(f"{row['compute_major']}.{row['compute_minor']}")
        clock = round(int(row["core_clock"]) / 1000)
        facts.setdefault("clock", f"{clock} MHz")
    if capabilities:
        facts["compute capability"] = "+".join(sorted(capabilities))
    if trace.processes:
        process_info = trace.processes[max(window.process, 0)].info
        facts |= _software(process_info)
    return tuple(names.values()), facts


def _software(info: dict[str, Any]) -> dict[str, str]:
    facts = {}
    driver = info.get("driver")
    if isinstance(driver, str):
        facts["driver"] = driver
    for key in ("driver_version", "runtime_version"):
        version = info.get(key)
        if isinstance(version, int) and version:
            facts["cuda"] = f"{version // 1000}.{version % 1000 // 10}"
    return facts


def _problems(
    trace: Trace,
    index: Index,
    work: WorkSelection,
    window: Window,
    processes: list[int] | None,
) -> Iterator[str]:
    chosen = trace.processes
    if processes is not None:
        chosen = tuple(trace.processes[at] for at in sorted(processes))
    if not window.complete:
        yield f"a mark of {window.name!r} is missing: the program was interrupted, or the capture lost it"
    incomplete = (region.name for region in window.regions if not region.complete)
    for name in dict.fromkeys(incomplete):
        yield f"region {name!r} was not ended in the test that began it, or a mark of it is missing"
    yield from _losses(trace, window, {process.index for process in chosen})
    for table in TABLES_WITH_CALLS:
        timed = work[table].timed
        count = len(timed) - np.count_nonzero(timed)
        if count:
            yield f"{count_of(count, 'row')} of {table} without known times"
    if index.lost:
        records = count_of(index.lost, "record")
        yield f"{records} of GPU work without a time and a launch, which may belong to any test"
    for damage in trace.damage:
        yield f"the capture is damaged: {damage.reason}"
    for process in chosen:
        yield from _lacking(process)
    for loss in unfinished(chosen):
        yield f"{counted_loss(loss.count, loss.meaning)} ({loss.detail})"


def _lacking(process: Process) -> Iterator[str]:
    """Sentences on kinds of records that metrics need and a process did not record."""
    kinds = process.info.get("kinds")
    if not isinstance(kinds, list):
        return
    names = [name for kind, name in _NEEDED_KINDS.items() if kind not in kinds]
    if not names:
        return
    problem = f"process {process.pid} ({process.name}) recorded no {', '.join(names)}"
    notes = process.info.get("notes")
    if isinstance(notes, list) and notes:
        problem += f": {'; '.join(map(str, notes))}"
    yield problem


def _losses(trace: Trace, window: Window, processes: set[int]) -> Iterator[str]:
    """Losses counted since the start of the window. A loss is counted after it happens, when the collector notices it.
    A loss without a time may have happened in any window."""
    rows = trace.losses
    if not len(rows):
        return
    rows = rows[np.isin(rows["process"], list(processes))]
    since = rows["time"] >= window.start
    rows = rows[since | (rows["time"] == 0)]
    from_start = window.start <= trace.start
    for reason, detail in dict.fromkeys(rows[["reason", "detail"]].tolist()):
        name, meaning = LOSS_REASONS.get(reason, ("", ""))
        what = trace.strings[detail]
        if not _is_fatal(name, what, from_start):
            continue
        if detail:
            meaning += f" ({what})"
        same = (rows["reason"] == reason) & (rows["detail"] == detail)
        yield counted_loss(int(rows["count"][same].sum()), meaning)


def _is_fatal(reason: str, detail: str, from_start: bool) -> bool:
    """Whether a loss makes the metrics of a window wrong. ``from_start`` is True for a window that starts with the
    trace. Only such a window lacks the old rows that were dropped to keep the newest rows."""
    if reason == "kind_refused":
        refused = detail.removeprefix("a part of ").partition(":")[0]
        return refused in _NEEDED_KINDS or refused in _REFUSED_PARTS
    if reason == "let_go":
        return from_start
    return reason in _FATAL_LOSSES
