"""Statistics of captures, compared with simple loops: on real and synthetic captures, and with other blocks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutrace
from captures import DATA, ORIGIN, Capture, join, named, training_steps
from cutrace._native import GpuTimes
from cutrace.analysis import sweep
from cutrace.analysis.calls import plain_name
from cutrace.analysis.collection import collect
from cutrace.analysis.context import StatsOptions
from cutrace.analysis.names import normalize_kernel
from cutrace.analysis.reports import statistics, tables
from cutrace.analysis.statistics import nvtx
from cutrace.analysis.statistics.api import CALLS, OVERHEADS, SYNCHRONIZATIONS
from cutrace.analysis.statistics.copies import COPIES, MEMORY_OPERATIONS, UNIFIED_MEMORY
from cutrace.analysis.statistics.counters import COUNTERS
from cutrace.analysis.statistics.gpus import GPUS, Overlap, overlap
from cutrace.analysis.statistics.graphs import GRAPHS
from cutrace.analysis.statistics.host import GPU_SLICES, HOST_SLICES
from cutrace.analysis.statistics.kernels import CONFIGURATIONS, KERNELS
from cutrace.analysis.statistics.launches import EXECUTIONS, LAUNCHES
from cutrace.analysis.statistics.memory import MEMORY
from cutrace.analysis.statistics.nvtx import RANGE_KERNELS, RANGES
from cutrace.analysis.statistics.streams import STREAMS
from cutrace.golden.captures import COMPARED, compare_captures
from cutrace.reports.tables import render
from cutrace.runbin import TABLES, Writer
from cutrace.trace import Trace, ordered, projection
from cutrace.trace.selection import INTERNED
from range_rule import ranges_of
from support import plain_stats as plain

REAL = sorted(path.name for path in DATA.glob("*.bin"))
QUEUE = 3


@pytest.fixture(params=[*REAL, "training_steps", "awkward"])
def capture(request, tmp_path) -> Path:
    return named(request.param, tmp_path)


def durations(trace: Trace, table: str, key) -> dict:
    return plain.grouped((key(row), int(row["end"]) - int(row["start"])) for row in trace.table(table))


def test_kernels_by_name(capture):
    with cutrace.load(capture) as trace:
        found = KERNELS.of(trace, StatsOptions(short_ns=2_000))
        names = trace.launches["name"]
        want = durations(trace, "kernels", lambda r: normalize_kernel(trace.strings[int(names[r["launch"]])]))
    assert {k.name for k in found} == set(want)
    for kernel in found:
        assert plain.same(kernel.time, want[kernel.name])
        assert kernel.short == sum(d < 2_000 for d in want[kernel.name])


def test_kernels_by_launch_configuration(capture):
    def key(launch) -> tuple:
        dims = tuple(tuple(int(launch[f"{what}_{axis}"]) for axis in "xyz") for what in ("grid", "block", "cluster"))
        shared = int(launch["static_shared"]), int(launch["dynamic_shared"])
        return (normalize_kernel(trace.strings[int(launch["name"])]), *dims, int(launch["registers"]), shared)

    with cutrace.load(capture) as trace:
        found = CONFIGURATIONS.of(trace)
        want = durations(trace, "kernels", lambda r: key(trace.launches[r["launch"]]))
    fields = ("name", "grid", "block", "cluster", "registers", "shared")
    got = {tuple(getattr(u.configuration, f) for f in fields): u.time for u in found}
    assert got.keys() == want.keys()
    assert all(plain.same(got[k], want[k]) for k in want)


def test_api_calls_by_function(capture):
    with cutrace.load(capture) as trace:
        found = CALLS.of(trace)
        functions = trace.functions

        def name(row) -> str:
            return plain_name(trace.strings[int(functions[row["function"]]["name"])]) or "(unknown call)"

        want = durations(trace, "api_calls", name)
        failed = Counter(name(r) for r in trace.api_calls if functions[r["function"]]["status"])
    assert {c.name for c in found} == set(want)
    for call in found:
        assert plain.same(call.time, want[call.name])
        assert call.failed == failed[call.name]


def test_copies_and_fills_by_kind_and_size(capture):
    with cutrace.load(capture) as trace:
        found = collect(trace, [MEMORY_OPERATIONS, COPIES])
        copies, fills = trace.memcpys, trace.memsets
    by_kind = plain.grouped((int(r["kind"]), int(r["bytes"])) for r in copies)
    sizes = sorted(
        tuple(sorted(sizes)) for sizes in [*by_kind.values(), *([fills["bytes"].tolist()] * bool(len(fills)))]
    )
    assert sorted(m.bytes.total for m in found[MEMORY_OPERATIONS]) == sorted(sum(s) for s in sizes)
    times = [int(r["end"]) - int(r["start"]) for t in (copies, fills) for r in t]
    assert sum(m.time.total for m in found[MEMORY_OPERATIONS]) == sum(times)
    assert sum(m.time.count for m in found[MEMORY_OPERATIONS]) == len(times)
    classes = plain.grouped(
        ((int(r["kind"]), int(r["source_memory"]), int(r["destination_memory"]), int(r["bytes"]).bit_length()),
         int(r["bytes"])) for r in copies
    )  # fmt: skip
    assert len(found[COPIES]) == len(classes)
    assert Counter((c.at_least, c.bytes.total) for c in found[COPIES]) == Counter(
        (1 << (bits - 1) if bits else 0, sum(sizes)) for (*_, bits), sizes in classes.items()
    )


def test_ranges_on_the_host_and_projected(capture):
    with cutrace.load(capture) as trace:
        found = {(r.domain, r.name, r.style): r for r in RANGES.of(trace)}
        strings = trace.strings

        def key(r) -> tuple[str, str, str]:
            return strings[int(r["domain"])], strings[int(r["name"])], ("push/pop", "start/end")[r["kind"]]

        want = durations(trace, "nvtx_ranges", key)
        projected, operations, gpu_ns = [], Counter(), Counter()
        for r in ranges_of(trace):
            work = plain.inside(trace, r)
            key_of_range = r.domain, r.name, r.style
            operations[key_of_range] += len(work)
            gpu_ns[key_of_range] += sum(w.duration for w in work)
            if work:
                projected.append((key_of_range, max(w.end for w in work) - min(w.start for w in work)))
    assert found.keys() == operations.keys()
    by_key = plain.grouped(projected)
    for k, use in found.items():
        assert plain.same(use.time, want.get(k, []))
        assert plain.same(use.projected.time, by_key.get(k, []))
        assert (use.projected.operations, use.projected.gpu_ns) == (operations[k], gpu_ns[k])


def test_kernels_by_range(capture):
    with cutrace.load(capture) as trace:
        found = RANGE_KERNELS.of(trace)
        want = []
        for r in ranges_of(trace):
            work = plain.inside(trace, r)
            want += [((r.name, r.domain, r.style, w.name), w.duration) for w in work if w.table == "kernels"]
    by_key = plain.grouped(want)
    assert {(u.name, u.domain, u.style, u.kernel) for u in found} == set(by_key)
    for use in found:
        assert plain.same(use.time, by_key[use.name, use.domain, use.style, use.kernel])


def test_kernels_in_many_ranges_that_never_end_are_matched_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(nvtx, "_PIECES", 3)
    sizes = []
    launch = projection.Projection.launch

    def noted(*arguments, **options):
        found = launch(*arguments, **options)
        sizes.append(len(found[0]))
        return found

    monkeypatch.setattr(projection.Projection, "launch", noted)
    with Capture(tmp_path / "a.bin") as c:
        kernel = c.launch("k")
        for i in range(10):
            c.push_pop("step", 100 * i, None)
            c.api("cudaLaunchKernel", 100 * i + 10, 100 * i + 20, correlation=i + 1)
            c.kernel(kernel, 100 * i + 30, 100 * i + 40, correlation=i + 1)
    with cutrace.load(tmp_path / "a.bin") as trace:
        (found,) = RANGE_KERNELS.of(trace)
    assert (found.time.count, found.time.total) == (55, 550)
    assert sizes == [1 + 2 + 3, 4 + 5 + 6, 7 + 8 + 9, 10]


def check_streams(path: Path) -> None:
    with cutrace.load(path) as trace:
        found = STREAMS.of(trace, StatsOptions(full_queue=QUEUE))
        want = plain.streams(trace)
        assert len(found) == len(want)
        for use in found:
            s = use.stream
            key = use.process, s.device, s.context, s.stream
            mine = want[key]
            assert use.counts == {t: sum(w.table == t for w in mine) for t in plain.GPU_TABLES}
            assert (use.first, use.last) == (min(w.start for w in mine), max(w.end for w in mine))
            assert use.busy == plain.union((w.start, w.end) for w in mine)
            idle = plain.idle(trace, key)
            assert {name: getattr(use.idle, name) for name in idle} == idle
            assert use.busy + use.idle.total == use.last - use.first
            lengths, mean, full = plain.queue(trace, key, QUEUE)
            assert plain.same(use.queue.at_launch, lengths)
            assert use.queue.mean == pytest.approx(mean)
            assert use.queue.full == full


def test_streams_are_busy_idle_and_queued(capture):
    check_streams(capture)


def check_gpus(path: Path) -> None:
    with cutrace.load(path) as trace:
        found = GPUS.of(trace)
        devices = {(w.process, w.device) for w in plain.work(trace)}
        assert sorted((g.process, g.device) for g in found) == sorted(devices)
        for g in found:
            parts = {"communication": g.communication, "copies": g.copies, "both": g.both}
            got = {"busy": g.busy, "compute": g.compute} | {name: part.time for name, part in parts.items()}
            got |= {f"{name} hidden": part.hidden for name, part in parts.items()}
            assert got == plain.gpu(trace, g.process, g.device)


def test_gpus_are_busy_and_hide_communication(capture):
    check_gpus(capture)


def test_launches(capture):
    with cutrace.load(capture) as trace:
        stats = collect(trace, [LAUNCHES, EXECUTIONS], StatsOptions(short_ns=3_000))
        kernels = [w for w in plain.work(trace) if w.table == "kernels"]
    launched = [w for w in kernels if w.call]
    for use in stats[LAUNCHES]:
        mine = [w for w in launched if w.process == use.process]
        assert use.kernels == sum(w.process == use.process for w in kernels)
        assert plain.same(use.call, [w.call.end - w.call.start for w in mine])
        assert plain.same(use.latency, [max(w.start - w.call.start, 0) for w in mine])
        assert plain.same(use.queue, [max(w.start - w.call.end, 0) for w in mine])
        assert use.bound == sum(w.duration < w.call.end - w.call.start for w in mine)
        assert use.short == sum(w.duration < 3_000 for w in mine)
        assert use.early == sum(w.start < w.call.start for w in mine)
    assert {u.process for u in stats[LAUNCHES]} == {w.process for w in launched}
    by_key = plain.grouped(((w.call.function, w.name), w) for w in launched)
    assert {(u.api, u.kernel) for u in stats[EXECUTIONS]} == set(by_key)
    for use in stats[EXECUTIONS]:
        mine = by_key[use.api, use.kernel]
        assert plain.same(use.time, [w.duration for w in mine])
        assert plain.same(use.total, [max(w.end - w.call.start, 0) for w in mine])


def test_waits_overheads_graphs_and_unified_memory(capture):
    with cutrace.load(capture) as trace:
        stats = collect(trace, [SYNCHRONIZATIONS, OVERHEADS, GRAPHS, UNIFIED_MEMORY])
        for uses, table, field in (
            (stats[SYNCHRONIZATIONS], "synchronizations", "type"),
            (stats[OVERHEADS], "overheads", "kind"),
            (stats[GRAPHS], "graph_launches", "graph"),
            (stats[UNIFIED_MEMORY], "unified_memory", "kind"),
        ):
            want = durations(trace, table, lambda r, field=field: int(r[field]))
            assert len(uses) == len(want)
            assert sorted(u.time.total for u in uses) == sorted(sum(d) for d in want.values())
            assert sorted(u.time.count for u in uses) == sorted(len(d) for d in want.values())


def test_memory_levels(capture):
    with cutrace.load(capture) as trace:
        found = MEMORY.of(trace)
        rows = sorted(trace.allocations, key=lambda r: int(r["time"]))
    groups = plain.grouped(
        ((int(r["process"]), int(r["device"]), int(r["memory"])), (int(r["operation"]), int(r["bytes"]))) for r in rows
    )
    assert len(found) == len(groups)
    want = []
    for (process, device, _), steps in groups.items():
        level = peak = 0
        for operation, size in steps:
            level += size if operation == 1 else -size
            peak = max(peak, level)
        taken, given = ([size for o, size in steps if o == operation] for operation in (1, 2))
        want.append((process, device, len(taken), sum(taken), len(given), sum(given), peak, level))
    got = [(m.process, m.device, m.allocations, m.allocated, m.frees, m.freed, m.peak, m.net) for m in found]
    assert sorted(got) == sorted(want)


# The same capture in other blocks


@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_neither_blocks_nor_windows_nor_the_order_of_rows_matter(tmp_path, monkeypatch, window, shuffled):
    """With small batches, blocks of few rows, rows in any order, and little memory for blocks."""
    random = np.random.default_rng(3)
    source = training_steps(tmp_path / "a.bin", steps=6)
    order = random.permutation if shuffled else np.arange
    other = plain.rewritten(source, tmp_path / "b.bin", rows=5, order=order)
    with cutrace.load(source) as trace:
        want = collect(trace, plain.COLLECTIONS)
    monkeypatch.setattr(sweep, "_BATCH_ROWS", window)
    monkeypatch.setattr(ordered, "KEPT_BYTES", 500)
    with cutrace.load(other) as trace:
        got = collect(trace, plain.COLLECTIONS)
    for one in plain.COLLECTIONS:
        assert {repr(_rounded(row)) for row in got[one]} == {repr(_rounded(row)) for row in want[one]}
    check_streams(other)
    check_gpus(other)


def _rounded(row):
    """Round deviations: their last digits depend on the order in which numbers are added."""
    if isinstance(row, float):
        return float(f"{row:.9g}")
    if hasattr(row, "__dataclass_fields__"):
        return {name: _rounded(getattr(row, name)) for name in row.__dataclass_fields__}
    return row


# Random captures

TIME = st.integers(1, 400)
WORK = st.tuples(st.sampled_from(["kernel", "nccl", "copy", "fill"]), st.integers(7, 9), TIME, st.integers(0, 60))
SOME_LAUNCHES = st.lists(st.tuples(WORK, st.integers(0, 300), st.integers(0, 40), st.integers(1, 2)), max_size=25)
SOME_RANGES = st.lists(st.tuples(st.sampled_from("abc"), TIME, st.integers(0, 200), st.integers(1, 2)), max_size=12)


def written(path: Path, launches, ranges, *, apart: int = 4) -> Path:
    """A capture of these launches in blocks of a few rows. No two pieces of work of a stream start at the same time."""
    taken: set[tuple[int, int]] = set()
    with Capture(path) as c:
        names = {"kernel": c.launch("k"), "nccl": c.launch("ncclDevKernel_AllReduce")}
        for number, ((kind, stream, start, length), lead, call, thread) in enumerate(launches, 1):
            while (stream, start) in taken:
                start += 1
            taken.add((stream, start))
            c.api("cudaLaunchKernel", start - lead, start - lead + call, thread=thread, correlation=number)
            where = {"stream": stream, "correlation": number}
            if kind in names:
                c.kernel(names[kind], start, start + length, **where)
            elif kind == "copy":
                c.memcpy(start, start + length, 8, **where)
            else:
                c.memset(start, start + length, 8, **where)
            if number % apart == 0:
                c.flush()
        for name, start, length, thread in ranges:
            c.push_pop(name, start, start + length, thread=thread)
    return path


@settings(max_examples=150, deadline=None)
@given(SOME_LAUNCHES, SOME_RANGES, st.integers(1, 8), st.sampled_from([1, 3, 1000]))
def test_random_captures(tmp_path_factory, launches, ranges, apart, window):
    path = written(tmp_path_factory.mktemp("random") / "a.bin", launches, ranges, apart=apart)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_BATCH_ROWS", window)
        check_streams(path)
        check_gpus(path)
        test_ranges_on_the_host_and_projected(path)
        test_kernels_by_range(path)
        test_launches(path)


# Examples of rules


def only_stream(path: Path, **options) -> object:
    with cutrace.load(path) as trace:
        found = STREAMS.of(trace, StatsOptions(**options))
    return found[0]


def test_idle_time_is_the_hosts_when_the_launch_came_late(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        k = c.launch("k")
        c.api("cudaLaunchKernel", 0, 100, correlation=1)
        c.kernel(k, 1_000, 2_000, correlation=1)
        c.api("cudaLaunchKernel", 5_000, 5_100, correlation=2)
        c.kernel(k, 6_000, 7_000, correlation=2)
    idle = only_stream(tmp_path / "a.bin").idle
    assert (idle.host, idle.total, idle.gaps) == (4_000, 4_000, 1)


def test_idle_time_is_a_kernel_wait_between_kernels_that_follow_at_once(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        k = c.launch("k")
        for number, start in enumerate((1_000, 2_029, 3_059), 1):
            c.api("cudaLaunchKernel", number, number + 1, correlation=number)
            c.kernel(k, start, start + 1_000, correlation=number)
    idle = only_stream(tmp_path / "a.bin").idle
    assert (idle.kernel, idle.other) == (29, 30)
    assert only_stream(tmp_path / "a.bin", consecutive_ns=31).idle.kernel == 59


def test_idle_time_is_a_dependency_when_work_of_another_stream_ended_just_before(tmp_path):
    def capture(name: str, call_end: int, begin: int) -> Path:
        with Capture(tmp_path / name) as c:
            k = c.launch("k")
            for number, (start, end, stream) in enumerate(
                ((1_000, 2_000, 7), (1_000, 50_000, 8), (begin, 90_000, 7)), 1
            ):
                c.api("cudaLaunchKernel", number, call_end if number == 3 else 10, correlation=number)
                c.kernel(k, start, end, stream=stream, correlation=number)
        return tmp_path / name

    assert only_stream(capture("a.bin", 20, 52_000)).idle.dependency == 50_000
    # The work did not wait for the other stream, because it started too long after the end there, or was launched after
    # that end.
    assert only_stream(capture("b.bin", 20, 60_001)).idle.other == 58_001
    assert only_stream(capture("c.bin", 50_001, 52_000)).idle.other == 50_000


def test_runtime_calls_stand_for_the_driver_calls_within_them(tmp_path):
    for first in (1, 2):
        path = tmp_path / f"{first}.bin"
        with Capture(path) as c:
            calls = [("cudaLaunchKernel", 100, 200), ("cuLaunchKernel", 100, 150)][:: 1 if first == 1 else -1]
            for name, start, end in calls:
                c.api(name, start, end, correlation=1)
            c.kernel(c.launch("k"), 300, 400, correlation=1)
        with cutrace.load(path) as trace:
            (use,) = EXECUTIONS.of(trace)
        assert (use.api, use.call.total) == ("cudaLaunchKernel", 100)


def test_processes_do_not_meet_in_their_correlation_ids(tmp_path):
    parts = []
    for i, name in enumerate(("cudaLaunchKernel", "cuLaunchKernel")):
        with Capture(tmp_path / f"{i}.bin", pid=i + 1) as c:
            c.api(name, 100 + i, 200, correlation=1)
            c.kernel(c.launch(f"k{i}"), 300, 400, correlation=1)
        parts.append(tmp_path / f"{i}.bin")
    with cutrace.load(join(tmp_path / "ab.bin", parts)) as trace:
        found = collect(trace, [EXECUTIONS, LAUNCHES])
    assert {(u.api, u.kernel) for u in found[EXECUTIONS]} == {("cudaLaunchKernel", "k0"), ("cuLaunchKernel", "k1")}
    assert [u.process for u in found[LAUNCHES]] == [0, 1]


def test_old_ranges_are_let_go_when_there_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(projection, "KEPT", 4)
    monkeypatch.setattr(sweep, "_BATCH_ROWS", 10)
    with Capture(tmp_path / "a.bin") as c:
        k = c.launch("k")
        c.push_pop("all", 50, 100_000)
        for i in range(60):
            at = 100 + 1_000 * i
            c.push_pop("step", at, at + 900)
            c.api("cudaLaunchKernel", at + 10, at + 20, correlation=i + 1)
            c.kernel(k, at + 100, at + 200, correlation=i + 1)
            c.flush()
    with cutrace.load(tmp_path / "a.bin") as trace:
        found = {r.name: r.projected for r in RANGES.of(trace)}
    assert (found["step"].operations, found["step"].time.count, found["step"].time.total) == (60, 60, 6_000)
    assert (found["all"].operations, found["all"].time.total) == (60, 59_100)


def test_old_ranges_are_let_go_without_gpu_work(tmp_path, monkeypatch):
    monkeypatch.setattr(projection, "KEPT", 4)
    monkeypatch.setattr(sweep, "_BATCH_ROWS", 10)
    taken = []
    take = projection.Projection.take

    def noted(self, until=None):
        taken.append(take(self, until))
        return taken[-1]

    monkeypatch.setattr(projection.Projection, "take", noted)
    with Capture(tmp_path / "a.bin") as c:
        for i in range(60):
            c.push_pop("step", 20_000_000 * i, 20_000_000 * i + 900)
            c.flush()
    with cutrace.load(tmp_path / "a.bin") as trace:
        (found,) = RANGES.of(trace)
    assert found.time.count == 60
    assert [before for before, _ in taken if before]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50), st.integers(0, 20)), max_size=30), st.integers(1, 5))
def test_overlaps_count_each_moment_once(intervals, pieces):
    """Kinds of work as sets of moments, added in pieces."""
    intervals = sorted(intervals, key=lambda i: i[1])
    kinds = np.array([kind for kind, _, _ in intervals], np.int64)
    start = np.array([start for _, start, _ in intervals], np.int64)
    end = start + np.array([length for _, _, length in intervals], np.int64)
    gpus = GpuTimes()
    for at in range(0, len(intervals), pieces):
        part = slice(at, at + pieces)
        number, table = np.zeros(len(start[part]), np.uint32), np.array([0, 0, 1, 2], np.uint8)[kinds[part]]
        gpus.add(number, start[part], end[part], table, np.array([1, 2, 4, 8], np.uint8)[kinds[part]])
    moments = [{t for kind, a, n in intervals if kind == k for t in range(a, a + n)} for k in range(4)]
    if not intervals:
        assert gpus.uses() == []
        return
    ((_, _, _, _, _, times),) = gpus.uses()
    for chosen in range(16):
        assert times[chosen] == len(set().union(*(moments[k] for k in range(4) if chosen >> k & 1)))
    for kinds in (2, 4, 6):
        moved = set().union(*(moments[k] for k in (1, 2) if kinds >> k & 1))
        assert overlap(times, kinds) == Overlap(len(moved), len(moved & moments[0]))


def test_what_importers_bring_is_counted(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.add("host_slices", start=ORIGIN + 10, end=ORIGIN + 110, name="aten::mm", category="cpu_op", thread=5, kind=1)
        c.add("host_slices", start=ORIGIN + 20, end=ORIGIN + 60, name="read", thread=5, kind=4)
        c.add("host_slices", start=ORIGIN + 10, end=ORIGIN + 110, name="request", track="7", thread=5, kind=5)
        c.api("cudaLaunchKernel", 30, 40, thread=5, correlation=1)
        c.kernel(c.launch("k"), 200, 260, correlation=1)
        c.add("gpu_slices", start=ORIGIN + 200, end=ORIGIN + 260, name="step", category="gpu_user_annotation", kind=1)
        for value in (1.0, 5.0, float("nan")):
            c.add("counters", time=ORIGIN + 5, value=value, name="memory", series="cuda:0", unit="MB")
    with cutrace.load(tmp_path / "a.bin") as trace:
        found = collect(trace, plain.COLLECTIONS)
    hosts = {h.name: h for h in found[HOST_SLICES]}
    assert (hosts["aten::mm"].kind, hosts["aten::mm"].time.total, hosts["aten::mm"].projected.gpu_ns) == (
        "operator",
        100,
        60,
    )
    assert (hosts["read"].kind, hosts["request"].kind) == ("system call", "asynchronous")
    assert hosts["request"].projected.operations == 0
    assert [(g.name, g.kind, g.time.total) for g in found[GPU_SLICES]] == [("step", "annotation", 60)]
    (counter,) = found[COUNTERS]
    assert (counter.name, counter.series, counter.unit, counter.samples) == ("memory", "cuda:0", "MB", 2)
    assert (counter.min, counter.mean, counter.max) == (1.0, 3.0, 5.0)


@pytest.mark.parametrize("window", [None, 1])
def test_rates_of_counters_add_up_over_the_time_for_which_they_hold(tmp_path, monkeypatch, window):
    if window:
        monkeypatch.setattr(sweep, "_BATCH_ROWS", window)
    second = 10**9
    with Capture(tmp_path / "a.bin") as c:
        for time, device, value in (
            (0, 0, 10.0), (1, 0, 20.0), (2, 1, 7.0), (3, 0, float("nan")), (4, 1, 8.0), (5, 0, 30.0),
            (5, 1, float("nan")), (6, 0, float("nan")),
        ):  # fmt: skip
            c.add("counters", time=ORIGIN + time * second, value=value, name="read", unit="bytes/s", device=device)
        c.add("counters", time=ORIGIN, value=1.0, name="active", unit="%", device=0)
    with cutrace.load(tmp_path / "a.bin") as trace:
        found = {(counter.name, counter.device): counter for counter in COUNTERS.of(trace)}
    # The level is 10 for one second, 20 for two, 0 for two, and 30 for one.
    assert found["read", 0].total == 10 + 40 + 30
    assert found["read", 1].total == 14 + 8
    assert found["active", 0].total is None
    assert [found["read", 0].samples, found["read", 0].min, found["read", 0].mean] == [3, 10, 20]


def test_times_at_the_ends_of_64_bits_are_counted(tmp_path):
    latest = (1 << 63) - 1
    with Capture(tmp_path / "a.bin") as c:
        k = c.launch("k")
        for start, end in ((1, latest), (latest, latest), (5, 9)):
            c.add("kernels", start=start, end=end, launch=k, stream=7)
        c.add("memcpys", start=3, end=4, bytes=(1 << 64) - 1, stream=7, kind=1)
    with cutrace.load(tmp_path / "a.bin") as trace:
        found = collect(trace, plain.COLLECTIONS)
    assert found[KERNELS][0].time.total == latest - 1 + 4
    assert found[GPUS][0].busy == latest - 1
    assert found[MEMORY_OPERATIONS][0].bytes.total == latest


def test_only_what_is_asked_for_is_collected(tmp_path):
    with cutrace.load(training_steps(tmp_path / "a.bin", steps=2)) as trace:
        found = collect(trace, [KERNELS])
        assert found[KERNELS]
        with pytest.raises(KeyError):
            found[CALLS]


def test_a_capture_without_rows_has_no_statistics(tmp_path):
    with Capture(tmp_path / "a.bin"):
        pass
    with cutrace.load(tmp_path / "a.bin") as trace:
        found = collect(trace, plain.COLLECTIONS)
    assert not any(found[one] for one in plain.COLLECTIONS)


def hostile(path: Path, random: np.random.Generator) -> Path:
    """A capture with random values in all fields of its rows."""

    def numbers(dtype: np.dtype, count: int) -> np.ndarray:
        if dtype.kind == "f":
            return random.choice([np.nan, np.inf, -1e308, 1e308, 0.0], count)
        most = np.iinfo(dtype).max
        small = random.integers(0, min(most, int(random.choice([8, 1 << 20]))), count)
        return random.choice(np.array([0, 1, most], dtype), count) if random.integers(3) == 0 else small

    with Writer(path, pid=1) as writer:
        for text in ("a", "_Z3foov", "nccl", "\x1b[m", "x" * 300):
            writer.string(text)
        for name in random.permutation(list(TABLES)):
            for _ in range(int(random.integers(4))):
                rows = np.zeros(int(random.integers(1, 20)), TABLES[name].dtype)
                for field in rows.dtype.names:
                    if rows.dtype[field].kind != "V":
                        rows[field] = numbers(rows.dtype[field], len(rows))
                if name in INTERNED:
                    rows["id"] = random.integers(0, 8, len(rows))
                writer.rows(name, rows)
    return path


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(12))
def test_rows_that_hold_anything_are_counted_and_shown(tmp_path, monkeypatch, seed):
    random = np.random.default_rng(seed)
    monkeypatch.setattr(sweep, "_BATCH_ROWS", int(random.choice([1, 10, 1000])))
    monkeypatch.setattr(ordered, "KEPT_BYTES", int(random.choice([1, 1000, 1 << 20])))
    with cutrace.load(hostile(tmp_path / "a.bin", random)) as trace:
        for form in ("table", "csv", "json", "markdown"):
            for table in tables(trace, list(statistics())):
                assert "".join(render([table], form, limit=3, width=80))
        found = collect(trace, COMPARED)
        assert not compare_captures(found, found).changes
