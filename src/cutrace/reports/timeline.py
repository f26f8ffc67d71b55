"""The timeline of a test: API calls by thread, GPU work by stream, NVTX ranges and regions.

A timeline has a limited number of slices, so that a page with hundreds of tests opens quickly. The longest slices are
kept. Between two long slices, one slice with a number replaces all other slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._native import demangle
from ..analysis.collection import duration as duration_of
from ..analysis.context import Numbering
from ..analysis.definitions import COPY_KINDS
from ..analysis.distribution import Distributions
from ..analysis.marks import ALL_PROCESSES, Window
from ..analysis.metrics import DIRECTIONS, belonging
from ..analysis.names import normalize_kernel
from ..analysis.work import Index, WorkSelection, index_of
from ..runbin.labels import MEMORY_KINDS
from ..trace import Trace
from ..units import count_of
from .model import Case, Kernel, Lane, Style, Timeline
from .values import duration, short, size

#: Default maximum of slices.
LIMIT = 600
#: Maximum of lanes, and of rows of a lane.
_LANES = 48
_DEPTH = 10
#: Maximum length of a full name.
_FULL_NAME = 240


#: A slice: its start and end (ns from the start of the timeline), its style, and the launching API call (-1: none).
_SLICE = np.dtype([("start", "i8"), ("end", "i8"), ("style", "i8"), ("call", "i8")])


@dataclass(frozen=True)
class _LaneSlices:
    """The slices of one lane, rows of :data:`_SLICE`. ``rank`` orders the lanes. ``share`` is the share of all slices
    for lanes of this kind."""

    title: str
    group: str
    rank: tuple[int, ...]
    share: float
    slices: np.ndarray

    def __len__(self) -> int:
        return len(self.slices)


def _in_order(slices: np.ndarray) -> np.ndarray:
    """Slices in the order of time. If slices have the same start, longer slices come first."""
    return slices[np.lexsort((-slices["end"], slices["start"]))]


def timeline(
    trace: Trace,
    window: Window,
    *,
    limit: int = LIMIT,
    normalize: Callable[[str], str] = normalize_kernel,
) -> Timeline:
    """The timeline of a window with at most about ``limit`` slices.

    It has the work that :func:`~cutrace.analysis.metrics.measure` counts, and the NVTX ranges and marks of the window.
    """
    index = index_of(trace)
    processes, work = belonging(index, window)
    maker = _Maker(trace, index, window, normalize)
    everything = [
        *maker.regions(),
        *maker.nvtx(processes),
        *maker.calls(work),
        *maker.gpu(work),
    ]
    everything.sort(key=lambda lane: lane.rank)
    lanes = everything[:_LANES]
    left_out = sum(map(len, everything[_LANES:]))

    # Keep the longest slices of each lane.
    reduced = []
    for lane, keep in zip(lanes, _kept(lanes, limit), strict=True):
        longest, left = maker.reduced(lane, keep)
        reduced.append(longest)
        left_out += left
    span = window.end - window.start
    for lane in reduced:
        span = max(span, int(lane.slices["end"].max(initial=0)))

    # Give each slice a row of its lane.
    linked = _links(reduced)
    drawn = []
    for lane in reduced:
        in_rows, left = _rows(lane, linked)
        drawn.append(in_rows)
        left_out += left
    return Timeline(span, tuple(drawn), tuple(maker.styles), left_out)


def top_kernels(
    trace: Trace,
    window: Window,
    count: int = 10,
    *,
    normalize: Callable[[str], str] = normalize_kernel,
) -> tuple[Kernel, ...]:
    """The kernels of a window with the most time, by stable name."""
    index = index_of(trace)
    _, work = belonging(index, window)
    rows = work["kernels"].with_times
    recorded, which = np.unique(index.kernel_names(rows), return_inverse=True)
    stable = Numbering.of(normalize(index.strings[name]) for name in recorded.tolist())
    times = Distributions()
    times.add(stable.numbers[which.reshape(-1)], duration_of(rows))
    kernels = []
    for name, time in zip(stable.names, times.spreads(), strict=True):
        kernels.append(Kernel(name, time.count, time.total, time.min, time.max))
    kernels.sort(key=lambda kernel: (-kernel.total_ns, kernel.name))
    return tuple(kernels[:count])


def pictured(
    case: Case,
    trace: Trace,
    window: Window,
    *,
    normalize: Callable[[str], str] = normalize_kernel,
) -> Case:
    """The case with the timeline and the top kernels of its window."""
    kernels = top_kernels(trace, window, normalize=normalize)
    return replace(
        case, kernels=kernels, timeline=timeline(trace, window, normalize=normalize)
    )


class _Maker:
    """Makes the lanes from the tables of a capture and collects the styles of their slices."""

    def __init__(
        self,
        trace: Trace,
        index: Index,
        window: Window,
        normalize: Callable[[str], str],
    ) -> None:
        self._trace = trace
        self._index = index
        self._window = window
        self._normalize = normalize
        self._several = len(trace.processes) > 1
        self.styles: dict[Style, int] = {}

    def style(self, name: str, detail: str, kind: str) -> int:
        return self.styles.setdefault(Style(name, detail, kind), len(self.styles))

    # Lanes

    def regions(self) -> Iterator[_LaneSlices]:
        starts = []
        ends = []
        styles = []
        for part in self._window.regions:
            starts.append(part.start)
            ends.append(part.end)
            styles.append(self.style(part.name, "", "region"))
        if styles:
            yield self._lane(
                "regions",
                "",
                rank=(0,),
                share=0.25,
                start=starts,
                end=ends,
                style=styles,
            )

    def nvtx(self, processes: list[int] | None) -> Iterator[_LaneSlices]:
        """Ranges that overlap the window, cut at its edges, and marks in it."""
        first = self._window.start
        last = self._window.end
        ranges = self._trace.nvtx_ranges
        ranges = ranges[(ranges["start"] < last) & (ranges["end"] >= first)]
        marks = self._trace.nvtx_marks
        marks = marks[(marks["time"] >= first) & (marks["time"] < last)]
        marks = marks[marks["source"] == 0]
        if processes is not None and self._window.process != ALL_PROCESSES:
            ranges = ranges[np.isin(ranges["process"], processes)]
            marks = marks[np.isin(marks["process"], processes)]
        times = marks["time"]
        starts = np.append(ranges["start"], times).astype(np.int64)
        starts = np.clip(starts, first, last)
        ends = np.append(ranges["end"], times).astype(np.int64)
        ends = np.clip(ends, first, last)
        texts = ["name", "domain"]
        styles = np.append(
            _each(ranges[texts], partial(self._message, "nvtx")),
            _each(marks[texts], partial(self._message, "mark")),
        )
        process = np.append(ranges["process"], marks["process"])
        thread = np.append(ranges["thread"], marks["thread"])
        for key, at in _groups(process, thread):
            yield self._lane(
                "NVTX",
                self._thread(*key),
                rank=(1, *key, 0),
                share=0.25,
                start=starts[at],
                end=ends[at],
                style=styles[at],
            )

    def calls(self, work: WorkSelection) -> Iterator[_LaneSlices]:
        calls = work.calls
        rows = calls.rows
        styles = _each(rows["function"], self._call)
        for key, at in _groups(rows["process"], rows["thread"]):
            yield self._lane(
                "CUDA API",
                self._thread(*key),
                rank=(1, *key, 1),
                share=0.3,
                start=rows["start"][at],
                end=rows["end"][at],
                style=styles[at],
                call=calls.call[at],
            )

    def gpu(self, work: WorkSelection) -> Iterator[_LaneSlices]:
        copied = ["kind", "bytes", "source_memory", "destination_memory"]
        styles_of: tuple[tuple[str, Any, Callable[..., int]], ...] = (
            ("kernels", "launch", self._kernel),
            ("memcpys", copied, self._copy),
            ("memsets", ["bytes", "value"], self._fill),
            ("graph_launches", "graph", self._graph),
        )
        parts = []
        styles_by_table = []
        for table, columns, style in styles_of:
            rows = work[table]
            part = rows[rows.timed]
            parts.append(part)
            styles_by_table.append(_each(part.rows[columns], style))
        styles = np.concatenate(styles_by_table)

        def column(name: str) -> np.ndarray:
            values = [part.rows[name] for part in parts]
            return np.concatenate(values).astype(np.int64)

        start = column("start")
        end = column("end")
        call = np.concatenate([part.call for part in parts])
        keys = map(column, ("process", "device", "context", "stream"))
        for key, at in _groups(*keys):
            process, device, context, stream = key
            gpu = "GPU"
            row = self._trace.device_rows.get((process, device))
            if row is not None:
                gpu = self._index.strings[int(row["name"])]
            group = f"{gpu} ({device})"
            if self._several:
                group += f", {self._process(process)}"
            name = self._trace.stream_names.get((process, context, stream))
            yield self._lane(
                name or f"stream {stream}",
                group,
                rank=(2, *key),
                share=1.0,
                start=start[at],
                end=end[at],
                style=styles[at],
                call=call[at],
            )

    def reduced(self, lane: _LaneSlices, keep: int) -> tuple[_LaneSlices, int]:
        """The lane in the order of time, with its ``keep`` longest slices and one slice for each run of other slices;
        and the number of other slices."""
        slices = _in_order(lane.slices)
        if len(slices) <= keep:
            return replace(lane, slices=slices), 0
        longest = np.argsort(slices["start"] - slices["end"], kind="stable")
        is_kept = np.zeros(len(slices), bool)
        is_kept[longest[:keep]] = True
        others = slices[~is_kept]
        # The first slice of each run, and the number and the time of its slices.
        kept_before = np.cumsum(is_kept)[~is_kept]
        runs = np.flatnonzero(np.diff(kept_before, prepend=-1))
        counts = np.diff(np.append(runs, len(others)))
        times = np.add.reduceat(others["end"] - others["start"], runs)
        joined = others[runs]
        joined["end"] = np.maximum.reduceat(others["end"], runs)
        joined["style"] = list(map(self._rest, counts.tolist(), times.tolist()))
        joined["call"] = -1
        shown = np.append(slices[is_kept], joined)
        return replace(lane, slices=_in_order(shown)), len(others)

    def _rest(self, count: int, time: int) -> int:
        """The style of a slice that replaces other slices."""
        name = count_of(count, "more slice")
        return self.style(name, f"left out; {duration(time)} in all", "rest")

    def _lane(
        self,
        title: str,
        group: str,
        *,
        rank: tuple[int, ...],
        share: float,
        start: ArrayLike,
        end: ArrayLike,
        style: Sized,
        call: ArrayLike = -1,
    ) -> _LaneSlices:
        slices = np.empty(len(style), _SLICE)
        slices["start"] = start
        slices["end"] = end
        slices["start"] -= self._window.start
        slices["end"] -= self._window.start
        slices["style"] = style
        slices["call"] = call
        return _LaneSlices(title, group, rank, share, slices)

    # Styles of rows

    def _kernel(self, launch: int) -> int:
        row = self._trace.launches[launch]
        raw = self._index.strings[int(row["name"])]
        name = self._normalize(raw)
        full = demangle(raw)
        grid = _dim3(row, "grid")
        block = _dim3(row, "block")
        registers = int(row["registers"])
        details = [f"grid {grid}, block {block}, {registers} registers"]
        shared = int(row["static_shared"]) + int(row["dynamic_shared"])
        if shared:
            details.append(f"{size(shared)} shared")
        if full != name:
            details.append(short(full, _FULL_NAME))
        return self.style(name, "\n".join(details), "kernel")

    def _copy(self, key: tuple[int, ...]) -> int:
        kind, count, *memories = key
        direction = COPY_KINDS[DIRECTIONS.get(kind, "other")]
        known = [MEMORY_KINDS[one] for one in memories if one and one in MEMORY_KINDS]
        detail = f"{size(count)}, {' to '.join(known)}"
        return self.style(f"copy {direction}", detail, "copy")

    def _fill(self, key: tuple[int, int]) -> int:
        count, value = key
        return self.style("fill", f"{size(count)} with {value:#x}", "fill")

    def _graph(self, graph: int) -> int:
        return self.style(f"graph {graph}", "a whole CUDA graph", "graph")

    def _call(self, function: int) -> int:
        functions = self._index.functions
        detail = ""
        status = int(self._index.function_status[function])
        if status:
            detail = f"returned error {status}"
        kind = "api"
        if functions.synchronizes[function]:
            kind = "wait"
        return self.style(functions.name[function], detail, kind)

    def _message(self, kind: str, key: tuple[int, int]) -> int:
        name, domain = map(self._index.strings.__getitem__, key)
        detail = ""
        if domain:
            detail = f"domain {short(domain)}"
        return self.style(short(name, _FULL_NAME), detail, kind)

    # Titles

    def _thread(self, process: int, thread: int) -> str:
        label = f"thread {thread}"
        name = self._trace.thread_names.get((process, thread))
        if name:
            label = f"{name} ({label})"
        if self._several:
            return f"{self._process(process)}, {label}"
        return label

    def _process(self, process: int) -> str:
        return f"process {self._trace.processes[process].pid}"


def _dim3(row: np.void, what: str) -> str:
    return " x ".join(str(int(row[f"{what}_{axis}"])) for axis in "xyz")


def _each(keys: np.ndarray, number: Callable[..., int]) -> np.ndarray:
    """The result of ``number`` for each key. ``number`` is called once for equal keys."""
    unique, which = np.unique(keys, return_inverse=True)
    numbers = np.array(list(map(number, unique.tolist())), np.int64)
    return numbers[which.reshape(-1)]


def _groups(*columns: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Each combination of values with the indices of its rows, in the order of the values."""
    if not len(columns[0]):
        return
    order = np.lexsort(columns[::-1])
    keys = np.stack([column[order].astype(np.int64) for column in columns], axis=1)
    changes = (keys[1:] != keys[:-1]).any(axis=1)
    edges = np.flatnonzero(changes) + 1
    firsts = np.append(0, edges)
    for key, at in zip(keys[firsts].tolist(), np.split(order, edges), strict=True):
        yield tuple(key), at


def _kept(lanes: list[_LaneSlices], limit: int) -> list[int]:
    """The number of slices to keep in each lane. If not all fit, half of the limit is used, because runs of other
    slices need the other half."""
    sizes = list(map(len, lanes))
    if sum(sizes) <= limit:
        return sizes
    by_share: dict[float, list[int]] = {}
    for at, lane in enumerate(lanes):
        by_share.setdefault(lane.share, []).append(at)
    kept = [0] * len(lanes)
    left = limit // 2
    for share, mine in sorted(by_share.items()):
        budget = int(left * share)
        # Small lanes keep all slices. Large lanes share the rest.
        mine.sort(key=sizes.__getitem__)
        waiting = len(mine)
        for at in mine:
            kept[at] = min(sizes[at], budget // waiting)
            budget -= kept[at]
            left -= kept[at]
            waiting -= 1
    return kept


def _links(lanes: list[_LaneSlices]) -> dict[int, int]:
    """Numbers from 1 for the API calls that have more than one slice."""
    if not lanes:
        return {}
    of_slices = np.concatenate([lane.slices["call"] for lane in lanes])
    calls, counts = np.unique(of_slices[of_slices >= 0], return_counts=True)
    shared = calls[counts > 1].tolist()
    return {call: number for number, call in enumerate(shared, 1)}


def _rows(lane: _LaneSlices, linked: dict[int, int]) -> tuple[Lane, int]:
    """The lane with each slice in the first free row, and the number of slices without a free row."""
    free = list(range(_DEPTH))
    busy: list[tuple[int, int]] = []
    slices = []
    for start, end, style, call in lane.slices.tolist():
        while busy and busy[0][0] <= start:
            _, depth = heappop(busy)
            heappush(free, depth)
        if not free:
            continue
        depth = heappop(free)
        heappush(busy, (max(end, start + 1), depth))
        link = linked.get(call, 0)
        slices.append((start, end - start, style, depth, link))
    drawn = Lane(lane.title, lane.group, tuple(slices))
    return drawn, len(lane) - len(slices)
