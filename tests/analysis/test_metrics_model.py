"""Metrics of random captures, compared with a simple implementation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

import cutrace
from captures import ORIGIN, Capture, join
from cutrace.analysis.marks import begin, end
from cutrace.analysis.metrics import measure
from cutrace.analysis.windows import windows

FUNCTIONS = [
    "cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpy", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaFree",
]  # fmt: skip
DIRECTIONS = {1: "h2d", 2: "d2h", 8: "d2d", 9: "h2h", 10: "p2p", 3: "h2d", 0: "other", 77: "other"}
TIMES = st.integers(1, 60)


@dataclass(frozen=True)
class Span:
    start: int
    end: int


@dataclass(frozen=True)
class ApiCall(Span):
    thread: int
    function: str
    correlation: int
    failed: bool
    domain: int


@dataclass(frozen=True)
class Work(Span):
    correlation: int
    stream: int
    size: int
    kind: int
    name: str


@dataclass
class Process:
    calls: list[ApiCall] = field(default_factory=list)
    kernels: list[Work] = field(default_factory=list)
    copies: list[Work] = field(default_factory=list)
    fills: list[Work] = field(default_factory=list)
    graphs: list[Work] = field(default_factory=list)
    memory: list[Work] = field(default_factory=list)


@st.composite
def spans(draw: st.DrawFn, longest: int = 12) -> Span:
    start = draw(TIMES)
    return Span(start, start + draw(st.integers(0, longest)))


CORRELATIONS = st.integers(0, 12)
API_CALLS = st.builds(
    lambda s, *rest: ApiCall(s.start, s.end, *rest),
    spans(), st.integers(1, 2), st.sampled_from(FUNCTIONS), CORRELATIONS, st.booleans(), st.integers(1, 2),
)  # fmt: skip
WORK = st.builds(
    lambda s, *rest: Work(s.start, s.end, *rest),
    spans(), CORRELATIONS, st.integers(1, 3), st.integers(0, 100), st.sampled_from([*DIRECTIONS]),
    st.sampled_from("abc"),
)  # fmt: skip
PROCESSES = st.builds(
    Process, st.lists(API_CALLS, max_size=14), *(st.lists(WORK, max_size=size) for size in (10, 6, 4, 3, 8))
)


@st.composite
def marked(draw: st.DrawFn) -> list[Span]:
    """Regions of one name with marks in sequence. They may touch, nest and be empty."""
    return draw(st.lists(spans(20), max_size=3))


def write(path: Path, processes: list[Process], window: Span, regions: list[Span], tools: list[Span]) -> Path:
    parts = []
    for number, process in enumerate(processes):
        parts.append(path.with_suffix(f".{number}"))
        with Capture(parts[-1], pid=number + 1, parent_pid=number, ended=1) as c:
            c.device()
            c.add("contexts", context=1, null_stream=1)
            for a in process.calls:
                c.api(a.function, a.start, a.end, thread=a.thread, correlation=a.correlation, domain=a.domain,
                      status=700 * a.failed)  # fmt: skip
            for k in process.kernels:
                c.kernel(c.launch(k.name), k.start, k.end, stream=k.stream, correlation=k.correlation)
            for m in process.copies:
                c.memcpy(m.start, m.end, m.size, kind=m.kind, stream=m.stream, correlation=m.correlation)
            for m in process.fills:
                c.memset(m.start, m.end, m.size, stream=m.stream, correlation=m.correlation)
            for g in process.graphs:
                c.add("graph_launches", start=ORIGIN + g.start, end=ORIGIN + g.end, stream=g.stream, context=1,
                      correlation=g.correlation)  # fmt: skip
            for m in process.memory:
                c.add("allocations", time=ORIGIN + m.start, bytes=m.size, operation=1 + m.kind % 2, memory=1 + m.stream,
                      correlation=m.correlation, context=1)  # fmt: skip
            if number == 0:
                c.mark(begin("test", "t"), window.start, thread=1, source=1)
                c.mark(end("test", "t"), window.end, thread=1, source=1)
                for i, tool in enumerate(tools):
                    c.mark(begin("tool", str(i)), tool.start, thread=1, source=1)
                    c.mark(end("tool", str(i)), tool.end, thread=1, source=1)
                # Each region is in a separate thread, so that its end is paired with its start.
                for i, region in enumerate(regions):
                    c.mark(begin("region", "r"), region.start, thread=10 + i, source=1)
                    c.mark(end("region", "r"), region.end, thread=10 + i, source=1)
    return join(path, parts)


def expected(processes: list[Process], windows: list[Span], tools: list[Span]) -> dict[str, object]:
    """All metrics of the work that was launched in the windows, computed record by record."""
    values: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    syncs: Counter[str] = Counter()
    allocators: Counter[str] = Counter()
    streams, busy, waits, levels = set(), set(), [], []
    ends: list[int] = []
    api_time = copying = 0

    def belongs(when: int, thread: int | None) -> bool:
        by_tool = thread is not None and any(t.start <= when < t.end for t in tools)
        return any(w.start <= when < w.end for w in windows) and not by_tool

    for number, process in enumerate(processes):
        outer: dict[int, ApiCall] = {}
        for call in sorted(process.calls, key=lambda a: (a.start, -a.end, -a.domain)):
            if call.correlation:
                outer.setdefault(call.correlation, call)
        moments: dict[int, set[int]] = {1: set(), 2: set()}
        for call in [a for a in process.calls if not a.correlation] + list(outer.values()):
            if belongs(call.start, 1 if (number, call.thread) == (0, 1) else None):
                moments[call.thread].update(range(call.start, call.end))
                values["graph_launches"] += call.function == "cudaGraphLaunch" and not call.failed
                if call.function in ("cudaMemcpy", "cudaStreamSynchronize"):
                    syncs[call.function] += 1
        api_time += sum(map(len, moments.values()))

        def of_window(work: list[Work], outer: dict[int, ApiCall] = outer, number: int = number) -> list[Work]:
            mine = []
            for w in work:
                call = outer.get(w.correlation)
                when, thread = (call.start, call.thread) if call else (w.start, None)
                if belongs(when, 1 if (number, thread) == (0, 1) else None):
                    mine.append(w)
            return mine

        first: dict[int, int] = {}
        for k in of_window(process.kernels):
            kernels[k.name] += 1
            values["kernel_time_ns"] += k.end - k.start
            if k.correlation in outer:
                first[k.correlation] = min(first.get(k.correlation, k.start), k.start)
        waits += [start - outer[c].start for c, start in first.items()]
        for m in of_window(process.copies):
            values["memcpy_count"] += 1
            values["memcpy_bytes"] += m.size
            values[f"memcpy_{DIRECTIONS[m.kind]}_count"] += 1
            values[f"memcpy_{DIRECTIONS[m.kind]}_bytes"] += m.size
            values["pageable_copies"] += DIRECTIONS[m.kind] == "h2d"  # from pageable memory (1) to the device (3)
            copying += m.end - m.start
        for m in of_window(process.fills):
            values["memset_count"] += 1
            values["memset_bytes"] += m.size
        values["graph_launches"] += sum(g.correlation not in outer for g in of_window(process.graphs))
        for m in of_window(process.memory):
            if m.stream == 1:
                values["pinned_frees" if m.kind % 2 else "pinned_allocations"] += 1
            elif m.stream in (2, 3):
                values["frees" if m.kind % 2 else "allocations"] += 1
                if not m.kind % 2:
                    allocators[outer[m.correlation].function if m.correlation in outer else "(unknown call)"] += 1
                levels.append((m.start, -m.size if m.kind % 2 else m.size))
        for w in of_window(process.kernels + process.copies + process.fills + process.graphs):
            streams.add((number, w.stream))
            values["default_stream_work"] += w.stream == 1
            busy.update(range(w.start, w.end))
            ends += [w.start, w.end]

    level = peak = 0
    for _, change in sorted(levels):  # at equal times, releases first
        level += change
        peak = max(peak, level)
    out: dict[str, object] = dict(values)
    out |= {"kernels": dict(kernels), "kernel_launches": kernels.total(), "syncs": dict(syncs),
            "allocators": dict(allocators), "api_time_ns": api_time, "sync_calls": syncs.total(),
            "streams_used": len(streams), "busy_ns": len(busy), "net_memory_bytes": level,
            "peak_memory_bytes": peak}  # fmt: skip
    if ends:
        span = max(ends) - min(ends)
        out |= {"gpu_span_ns": span, "idle_share": 1.0 - len(busy) / span if span else 0.0}
    if waits:
        out["launch_latency_ns"] = int(median(waits))
    if copying:
        out["copy_bandwidth"] = round(values["memcpy_bytes"] * 1e9 / copying)
    return out


def without_zeros(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value}


@settings(max_examples=150, deadline=None)
@given(st.lists(PROCESSES, min_size=1, max_size=3), spans(60), marked(), st.lists(spans(8), max_size=2))
def test_arrays_count_as_one_counts_by_hand(tmp_path_factory, processes, window, regions, tools):
    path = write(tmp_path_factory.mktemp("model") / "a.bin", processes, window, regions, tools)
    with cutrace.load(path) as trace:
        (found,) = windows(trace)
        measured = measure(trace, found)
    tools = [t for t in tools if window.start <= t.start < window.end]  # tools outside the window are not in the test
    assert without_zeros(measured.values) == without_zeros(expected(processes, [window], tools))
    mine = [r for r in regions if window.start <= r.start < window.end]
    assert set(measured.regions) == ({"r"} if mine else set())
    for values in measured.regions.values():
        cut = [Span(r.start, min(r.end, window.end)) for r in mine]
        assert without_zeros(values) == without_zeros(expected(processes, cut, tools))
