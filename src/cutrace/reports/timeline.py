"""The timeline of a test: API calls by thread, GPU work by stream, NVTX ranges and regions.

A timeline has a limited number of slices, so that a page with hundreds of tests opens quickly. The longest slices are
kept; one slice with their number replaces all others between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from .._native import demangle
from ..analysis.definitions import COPY_KINDS
from ..analysis.marks import ALL_PROCESSES, Window
from ..analysis.metrics import DIRECTIONS, belonging
from ..analysis.names import normalize_kernel
from ..analysis.work import Index, WorkSelection, index_of
from ..runbin.labels import MEMORY_KINDS
from ..trace import Trace
from ..trace.quality import GPU_WORK
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


@dataclass(frozen=True)
class _LaneSlices:
    """The slices of one lane as arrays: start and end (ns from the begin of the timeline), style, and launching API
    call (-1: none). ``rank`` orders the lanes; ``share`` is the share of slices that lanes of this kind may use."""

    title: str
    group: str
    rank: tuple[int, ...]
    share: float
    start: np.ndarray
    end: np.ndarray
    style: np.ndarray
    call: np.ndarray

    def __getitem__(self, at: np.ndarray) -> _LaneSlices:
        return replace(
            self,
            start=self.start[at],
            end=self.end[at],
            style=self.style[at],
            call=self.call[at],
        )


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
    reduced = [
        maker.reduced(lane, keep)
        for lane, keep in zip(lanes, _kept(lanes, limit), strict=True)
    ]
    linked = _links([lane for lane, _ in reduced])
    drawn = [_rows(lane, linked) for lane, _ in reduced]
    left_out = sum(len(lane.start) for lane in everything[_LANES:])
    left_out += sum(left for _, left in (*reduced, *drawn))
    ends = [int(lane.end.max()) for lane, _ in reduced if len(lane.end)]
    span = max([window.end - window.start, *ends])
    return Timeline(
        span, tuple(lane for lane, _ in drawn), tuple(maker.styles), left_out
    )


def top_kernels(
    trace: Trace,
    window: Window,
    count: int = 10,
    *,
    normalize: Callable[[str], str] = normalize_kernel,
) -> tuple[Kernel, ...]:
    """The kernels of a window with the most time, by stable name."""
    index = index_of(trace)
    rows = belonging(index, window)[1]["kernels"].with_times
    times = (rows["end"] - rows["start"]).astype(np.int64)
    parts: dict[str, list[np.ndarray]] = {}
    for (name,), at in _groups(index.launch_name[rows["launch"]]):
        parts.setdefault(normalize(index.strings[name]), []).append(times[at])
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    kernels = [
        Kernel(n, len(t), int(t.sum()), int(t.min()), int(t.max()))
        for n, t in joined.items()
    ]
    return tuple(
        sorted(kernels, key=lambda kernel: (-kernel.total_ns, kernel.name))[:count]
    )


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
        self._devices = self._names(trace.devices, "process", "device")
        self._threads = self._names(trace.threads, "process", "thread")
        streams = trace.resource_names[trace.resource_names["kind"] == 1]
        self._streams = self._names(streams, "process", "context", "object")

    def _names(self, rows: np.ndarray, *keys: str) -> dict[tuple[int, ...], str]:
        names = {}
        for row in rows:
            key = tuple(int(row[field]) for field in keys)
            names[key] = self._trace.strings[int(row["name"])]
        return names

    def style(self, name: str, detail: str, kind: str) -> int:
        return self.styles.setdefault(Style(name, detail, kind), len(self.styles))

    # Lanes

    def regions(self) -> Iterator[_LaneSlices]:
        parts = self._window.regions
        if parts:
            styles = [self.style(part.name, "", "region") for part in parts]
            starts = [part.start for part in parts]
            ends = [part.end for part in parts]
            yield self._lane("regions", "", (0,), 0.25, starts, ends, styles)

    def nvtx(self, processes: list[int] | None) -> Iterator[_LaneSlices]:
        """Ranges that overlap the window, cut at its edges, and marks in it."""
        first = self._window.start
        last = self._window.end
        ranges = self._trace.nvtx_ranges
        marks = self._trace.nvtx_marks
        ranges = ranges[(ranges["start"] < last) & (ranges["end"] >= first)]
        marks = marks[
            (marks["time"] >= first) & (marks["time"] < last) & (marks["source"] == 0)
        ]
        if processes is not None and self._window.process != ALL_PROCESSES:
            ranges, marks = (
                rows[np.isin(rows["process"], processes)] for rows in (ranges, marks)
            )
        times = np.concatenate([ranges["start"], marks["time"]]).astype(np.int64)
        ends = np.concatenate([ranges["end"], marks["time"]]).astype(np.int64)
        styles = np.concatenate(
            [self._messages(ranges, "nvtx"), self._messages(marks, "mark")]
        )
        owners = [
            np.concatenate([ranges[f], marks[f]]).astype(np.int64)
            for f in ("process", "thread")
        ]
        for key, at in _groups(*owners):
            start = np.clip(times[at], first, last)
            end = np.clip(ends[at], first, last)
            yield self._lane(
                "NVTX", self._thread(*key), (1, *key, 0), 0.25, start, end, styles[at]
            )

    def calls(self, work: WorkSelection) -> Iterator[_LaneSlices]:
        calls = work.calls
        functions = self._index.functions
        rows = calls.rows

        def style(function: int) -> int:
            status = int(functions.status[function])
            kind = "wait" if functions.synchronizes[function] else "api"
            return self.style(
                functions.name[function],
                f"returned error {status}" if status else "",
                kind,
            )

        styles = _each(rows["function"], style)
        for key, at in _groups(rows["process"], rows["thread"]):
            columns = (rows["start"][at], rows["end"][at], styles[at], calls.call[at])
            yield self._lane(
                "CUDA API", self._thread(*key), (1, *key, 1), 0.3, *columns
            )

    def gpu(self, work: WorkSelection) -> Iterator[_LaneSlices]:
        parts = {name: work[name][work[name].timed] for name in GPU_WORK}
        styles = np.concatenate(
            [getattr(self, f"_{name}")(part.rows) for name, part in parts.items()]
        )

        def column(name: str) -> np.ndarray:
            return np.concatenate([part.rows[name] for part in parts.values()]).astype(
                np.int64
            )

        start = column("start")
        end = column("end")
        call = np.concatenate([part.call for part in parts.values()])
        for key, at in _groups(
            *map(column, ("process", "device", "context", "stream"))
        ):
            process, device, context, stream = key
            name = self._devices.get((process, device), "GPU")
            group = f"{name} ({device})" + (
                f", {self._process(process)}" if self._several else ""
            )
            title = self._streams.get((process, context, stream)) or f"stream {stream}"
            yield self._lane(
                title, group, (2, *key), 1.0, start[at], end[at], styles[at], call[at]
            )

    def reduced(self, lane: _LaneSlices, keep: int) -> tuple[_LaneSlices, int]:
        """The lane in the order of time with its ``keep`` longest slices and one slice for each run of others; and the
        number of others."""
        lane = lane[np.lexsort((-lane.end, lane.start))]
        if len(lane.start) <= keep:
            return lane, 0
        kept = np.zeros(len(lane.start), bool)
        kept[np.argsort(lane.start - lane.end, kind="stable")[:keep]] = True
        others = np.flatnonzero(~kept)
        runs = np.flatnonzero(np.diff(np.cumsum(kept)[others], prepend=-1))
        rest = lane[others]
        lengths = np.diff(np.append(runs, len(others)))
        inside = np.add.reduceat(rest.end - rest.start, runs)
        styles = [
            self.style(
                f"{count_of(int(n), 'more slice')}",
                f"left out; {duration(int(t))} in all",
                "rest",
            )
            for n, t in zip(lengths, inside, strict=True)
        ]
        joined = replace(
            lane,
            start=np.append(lane.start[kept], rest.start[runs]),
            end=np.append(lane.end[kept], np.maximum.reduceat(rest.end, runs)),
            style=np.append(lane.style[kept], styles),
            call=np.append(lane.call[kept], np.full(len(runs), -1)),
        )
        return joined[np.lexsort((-joined.end, joined.start))], len(others)

    def _lane(
        self,
        title: str,
        group: str,
        rank: tuple[int, ...],
        share: float,
        start: object,
        end: object,
        style: object,
        call: object = None,
    ) -> _LaneSlices:
        first, last = (
            np.asarray(edge).astype(np.int64) - self._window.start
            for edge in (start, end)
        )
        call = np.full(len(first), -1) if call is None else np.asarray(call, np.int64)
        return _LaneSlices(
            title, group, rank, share, first, last, np.asarray(style, np.int64), call
        )

    # Styles of rows

    def _kernels(self, rows: np.ndarray) -> np.ndarray:
        def style(launch: int) -> int:
            row = self._trace.launches[launch]
            raw = self._index.strings[int(row["name"])]
            name = self._normalize(raw)
            full = demangle(raw)
            shared = int(row["static_shared"]) + int(row["dynamic_shared"])
            details = [
                f"grid {_dim3(row, 'grid')}, block {_dim3(row, 'block')}, {int(row['registers'])} registers"
            ]
            if shared:
                details.append(f"{size(shared)} shared")
            if full != name:
                details.append(short(full, _FULL_NAME))
            return self.style(name, "\n".join(details), "kernel")

        return _each(rows["launch"], style)

    def _memcpys(self, rows: np.ndarray) -> np.ndarray:
        def style(key: tuple[int, ...]) -> int:
            kind, count, source, target = key
            direction = COPY_KINDS[DIRECTIONS.get(kind, "other")]
            memory = [
                MEMORY_KINDS[kind]
                for kind in (source, target)
                if kind and kind in MEMORY_KINDS
            ]
            return self.style(
                f"copy {direction}",
                ", ".join([size(count), " to ".join(memory)]),
                "copy",
            )

        return _each(
            rows[["kind", "bytes", "source_memory", "destination_memory"]], style
        )

    def _memsets(self, rows: np.ndarray) -> np.ndarray:
        return _each(
            rows[["bytes", "value"]],
            lambda k: self.style("fill", f"{size(k[0])} with {k[1]:#x}", "fill"),
        )

    def _graph_launches(self, rows: np.ndarray) -> np.ndarray:
        return _each(
            rows["graph"],
            lambda graph: self.style(f"graph {graph}", "a whole CUDA graph", "graph"),
        )

    def _messages(self, rows: np.ndarray, kind: str) -> np.ndarray:
        def style(key: tuple[int, ...]) -> int:
            name, domain = (self._index.strings[number] for number in key)
            return self.style(
                short(name, _FULL_NAME),
                f"domain {short(domain)}" if domain else "",
                kind,
            )

        return _each(rows[["name", "domain"]], style)

    # Titles

    def _thread(self, process: int, thread: int) -> str:
        name = self._threads.get((process, thread), "")
        label = f"{name} (thread {thread})" if name else f"thread {thread}"
        if self._several:
            return f"{self._process(process)}, {label}"
        return label

    def _process(self, process: int) -> str:
        return f"process {self._trace.processes[process].pid}"


def _dim3(row: np.void, what: str) -> str:
    return " x ".join(str(int(row[f"{what}_{axis}"])) for axis in "xyz")


def _each(keys: np.ndarray, number: Callable[..., int]) -> np.ndarray:
    """The result of ``number`` for each key; it is called once for equal keys."""
    unique, which = np.unique(keys, return_inverse=True)
    return np.array([number(key) for key in unique.tolist()], np.int64)[
        which.reshape(-1)
    ]


def _groups(*columns: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Each combination of values with the indices of its rows, in the order of the values."""
    if not len(columns[0]):
        return
    order = np.lexsort(columns[::-1])
    keys = np.stack([column[order].astype(np.int64) for column in columns])
    edges = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    for at in np.split(order, edges):
        yield tuple(int(column[at[0]]) for column in columns), at


def _kept(lanes: list[_LaneSlices], limit: int) -> list[int]:
    """The number of slices of each lane to keep. If not all fit, half of the limit is used, because runs of others need
    the rest."""
    sizes = [len(lane.start) for lane in lanes]
    if sum(sizes) <= limit:
        return sizes
    kept = [0] * len(lanes)
    left = limit // 2
    for share in sorted({lane.share for lane in lanes}):
        mine = [at for at, lane in enumerate(lanes) if lane.share == share]
        budget = min(int(left * share), sum(sizes[at] for at in mine))
        # Small lanes keep all slices, large ones share the rest.
        for position, at in enumerate(sorted(mine, key=lambda at: sizes[at])):
            kept[at] = min(sizes[at], budget // (len(mine) - position))
            budget -= kept[at]
            left -= kept[at]
    return kept


def _links(lanes: list[_LaneSlices]) -> dict[int, int]:
    """Numbers from 1 for the API calls that have more than one slice."""
    calls, counts = np.unique(
        np.concatenate([lane.call for lane in lanes] or [np.zeros(0)]),
        return_counts=True,
    )
    shared = calls[(counts > 1) & (calls >= 0)]
    return {int(call): number for number, call in enumerate(shared.tolist(), 1)}


def _rows(lane: _LaneSlices, linked: dict[int, int]) -> tuple[Lane, int]:
    """The lane with each slice in the first free row, and the number of slices without a free row."""
    free = list(range(_DEPTH))
    busy: list[tuple[int, int]] = []
    slices = []
    columns = (
        column.tolist() for column in (lane.start, lane.end, lane.style, lane.call)
    )
    for start, end, style, call in zip(*columns, strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if not free:
            continue
        depth = heappop(free)
        heappush(busy, (max(end, start + 1), depth))
        slices.append((start, end - start, style, depth, linked.get(call, 0)))
    return Lane(lane.title, lane.group, tuple(slices)), len(lane.start) - len(slices)
