"""The reports of `cutrace stats`: their tables, row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import ORIGIN, Capture, join, replays, training_steps
from cutrace.analysis import reports
from cutrace.analysis.collection import collect
from cutrace.analysis.context import DEFAULTS
from cutrace.analysis.distribution import QUANTILE_ERROR
from cutrace.analysis.reports import statistics, tables
from cutrace.analysis.statistics.copies import MEMORY_OPERATIONS
from cutrace.analysis.statistics.kernels import KERNELS
from cutrace.analysis.statistics.streams import STREAMS
from cutrace.analysis.tables import Column, Table
from cutrace.errors import CutraceError
from profiled import profiled_capture
from sampled import sampled_capture
from support.plain_stats import work

DATA = Path(__file__).parents[1] / "data"


def table(path: Path, name: str) -> list[dict]:
    with cutrace.load(path) as trace:
        (found,) = tables(trace, [name])
        return [dict(zip((c.name for c in found.columns), row, strict=True)) for row in found.rows]


@pytest.fixture
def capture(tmp_path) -> Path:
    with Capture(tmp_path / "a.bin", command=["train"]) as c:
        c.device()
        c.context()
        c.add("resource_names", kind=1, object=8, context=1, name="copies")
        c.api("cudaLaunchKernel_v7000", 0, 100, correlation=1)
        c.api("cudaLaunchKernel", 200, 500, correlation=2, status=1)
        c.api("cudaMemcpyAsync", 510, 520, correlation=3)
        c.kernel(c.launch("_Z4axpyPf", grid=(8, 1, 1), block=(64, 2, 1)), 1_000, 3_000, correlation=1)
        c.kernel(c.launch("_Z4axpyPd"), 4_000, 5_000, correlation=2)
        c.memcpy(1_500, 3_500, 4096, stream=8, correlation=3)
        c.push_pop("step", 150, 515, domain="d")
    return tmp_path / "a.bin"


def test_every_report_of_every_real_capture_has_rows_as_wide_as_its_columns():
    for path in sorted(DATA.glob("*.bin")):
        with cutrace.load(path) as trace:
            found = tables(trace, list(statistics()))
            assert [t.name for t in found] == list(statistics())
            for one in found:
                assert all(len(row) == len(one.columns) for row in one.rows), one.name


@pytest.mark.parametrize(
    ("field", "value"), [("names", str.swapcase), ("short_ns", 1 << 40), ("consecutive_ns", 1 << 40)]
)
def test_a_report_declares_the_options_that_change_it(tmp_path, field, value):
    with Capture(tmp_path / "lines.bin", pid=3) as c:
        c.add("instruction_metrics", function="k", offset=0, name="inst_executed", value=1, launches=1)
    paths = [
        training_steps(tmp_path / "steps.bin"),
        profiled_capture(tmp_path / "profiled.bin", ("axpy", 1_000, {"a": 1.0})),
        sampled_capture(tmp_path / "sampled.bin"),
        tmp_path / "lines.bin",
    ]
    with cutrace.load(paths) as trace:
        before, after = (
            {t.name: list(t.rows) for t in tables(trace, list(statistics()), options)}
            for options in (DEFAULTS, replace(DEFAULTS, **{field: value}))
        )
    assert {name for name in statistics() if before[name] != after[name]} == {
        r.name for r in statistics().values() if field in r.options
    }


def test_names_of_columns_differ_within_a_report(capture):
    with cutrace.load(capture) as trace:
        for one in tables(trace, list(statistics())):
            names = [c.name for c in one.columns]
            assert len(set(names)) == len(names), one.name


def test_kernels_are_sorted_by_total_time_and_have_shares(capture):
    (row,) = table(capture, "cuda_gpu_kern_sum")
    assert (row["name"], row["count"], row["total"], row["share"]) == ("axpy", 2, 3_000, 1.0)
    rows = table(DATA / "torch_step.bin", "cuda_gpu_kern_sum")
    totals = [row["total"] for row in rows]
    assert totals == sorted(totals, reverse=True)
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_launch_configurations_are_told_apart(capture):
    rows = table(capture, "cuda_gpu_kern_gb_sum")
    assert [(r["grid"], r["block"], r["total"]) for r in rows] == [
        ("8x1x1", "64x2x1", 2_000),
        ("1x1x1", "32x1x1", 1_000),
    ]


def test_calls_are_counted_under_one_name_and_failures_are_told(capture):
    rows = table(capture, "cuda_api_sum")
    assert [(r["name"], r["count"], r["total"], r["failed"]) for r in rows] == [
        ("cudaLaunchKernel", 2, 400, 1),
        ("cudaMemcpyAsync", 1, 10, 0),
    ]


def test_copies_have_a_bandwidth(capture):
    (row,) = table(capture, "copy_size_sum")
    assert (row["from"], row["to"], row["at least"], row["bytes"], row["time"]) == (
        "pageable",
        "device",
        4096,
        4096,
        2_000,
    )
    assert row["bandwidth"] == 4096 * 1e9 / 2_000


def test_copies_by_time_have_a_bandwidth(capture):
    (row,) = table(capture, "cuda_gpu_mem_time_sum")
    assert row["bandwidth"] == 4096 * 1e9 / 2_000


def test_host_slices_are_sorted_by_the_time_outside_inner_ones(tmp_path):
    def slice_(name, start, end, thread=5, **fields):
        c.add("host_slices", start=ORIGIN + start, end=ORIGIN + end, name=name, thread=thread, kind=1, **fields)

    with Capture(tmp_path / "a.bin") as c:
        slice_("module", 0, 1_000)
        slice_("forward", 0, 900)
        slice_("mm", 100, 700)
        slice_("kernel launch", 200, 300)
        slice_("mm", 950, 980)
        slice_("module", 400, 500, thread=6)
        slice_("async", 100, 200, track="7")
    rows = table(tmp_path / "a.bin", "host_sum")
    assert [(r["name"], r["self"], r["total"]) for r in rows] == [
        ("mm", 530, 630),
        ("forward", 300, 900),
        ("module", 170, 1_100),
        ("async", 100, 100),
        ("kernel launch", 100, 100),
    ]
    assert [r["share"] for r in rows] == [pytest.approx(r["self"] / 1_200) for r in rows]


def test_ranges_are_named_with_their_domain_and_have_their_work(capture):
    (row,) = table(capture, "nvtx_sum")
    assert (row["range"], row["total"]) == ("d:step", 365)
    (row,) = table(capture, "nvtx_gpu_proj_sum")
    assert (row["range"], row["operations"], row["GPU time"], row["total"]) == ("d:step", 2, 3_000, 3_500)
    (row,) = table(capture, "nvtx_kern_sum")
    assert (row["kernel"], row["count"], row["total"]) == ("axpy", 1, 1_000)


def test_projected_ranges_have_the_cpu_time_of_ranges_with_work(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("step", 0, 100)
        c.push_pop("step", 200, 500)
        c.push_pop("step", 600, None)
        for number, time in enumerate((10, 610), 1):
            c.api("cudaLaunchKernel", time, time + 5, correlation=number)
            c.kernel(c.launch("k"), time + 10, time + 30, correlation=number)
    (row,) = table(tmp_path / "a.bin", "nvtx_gpu_proj_sum")
    assert (row["count"], row["total"], row["CPU time"]) == (2, 40, 100)


def test_gpus_and_streams_have_names(capture):
    (row,) = table(capture, "gpu_sum")
    assert (row["process"], row["GPU"], row["kernels"], row["busy"]) == ("train (100)", "0 NVIDIA H200", 2, 3_500)
    assert row["busy share"] == 3_500 / 4_000
    assert [r["stream"] for r in table(capture, "stream_sum")] == ["7", "8 copies"]


def test_streams_of_several_contexts_say_which(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("k"), 10, 20)
        c.kernel(c.launch("k"), 10, 20, context=2)
    assert [r["stream"] for r in table(tmp_path / "a.bin", "stream_sum")] == ["1/7", "2/7"]


def test_rows_of_streams_do_not_look_at_all_streams(tmp_path, monkeypatch):
    """The time for many streams is linear: all streams are searched a few times, not once for each row."""
    streams = 300
    with Capture(tmp_path / "a.bin") as c:
        for stream in range(streams):
            c.api("cudaLaunchKernel", 10 * stream, 10 * stream + 5, correlation=stream + 1)
            c.kernel(c.launch("k"), 10 * stream, 10 * stream + 5, stream=stream, correlation=stream + 1)
    seen = 0

    class Counting(tuple):
        def __iter__(self):
            nonlocal seen
            seen += len(self)
            return super().__iter__()

    def collected(*arguments):
        found = collect(*arguments)
        found.streams = Counting(found.streams)
        found._rows[STREAMS] = Counting(found[STREAMS])
        return found

    monkeypatch.setattr(reports, "collect", collected)
    with cutrace.load(tmp_path / "a.bin") as trace:
        rows = {one.name: len(list(one.rows)) for one in tables(trace, list(statistics()))}
    assert rows["stream_sum"] == rows["idle_sum"] == rows["cuda_gpu_trace"] == streams
    assert seen < 10 * streams


def test_what_computation_hides(capture):
    (row,) = table(capture, "overlap_sum")
    assert (row["communication"], row["time"], row["hidden"], row["exposed"]) == ("copies", 2_000, 1_500, 500)


def test_launches_in_medians(capture):
    (row,) = table(capture, "launch_sum")
    assert (row["launches"], row["call"]) == (2, 200)
    assert (row["latency"], row["queue"]) == pytest.approx((2_400, 2_200), rel=QUANTILE_ERROR)
    assert (row["short"], row["bound"]) == (1.0, 0.0)


def test_the_time_between_windows_counts_for_streams_that_ran_before_and_after_it(tmp_path):
    windows = [[ORIGIN, ORIGIN + 100, ORIGIN + 100], [ORIGIN + 500, ORIGIN + 900, ORIGIN + 900]]
    with Capture(tmp_path / "a.bin", capture_range="profiler", windows=windows) as c:
        for stream, start in ((7, 10), (7, 30), (8, 20), (8, 510), (9, 520), (9, 560)):
            c.kernel(c.launch("k"), start, start + 10, stream=stream)
    spans = {row["stream"]: row["span"] for row in table(tmp_path / "a.bin", "stream_sum")}
    assert spans == {"7": 30, "8": 500 - 400, "9": 50}


def test_traces_have_a_row_for_each_event_in_the_order_of_time(tmp_path):
    path = training_steps(tmp_path / "a.bin", steps=3)
    rows = table(path, "cuda_gpu_trace")
    with cutrace.load(path) as trace:
        want = work(trace)
        calls = sorted((int(r["start"]), int(r["end"])) for r in trace.api_calls)
    assert [(r["start"], r["duration"]) for r in rows] == [(w.start, w.duration) for w in want]
    assert [r["name"] for r in rows if r["grid"]] == [w.name for w in want if w.table == "kernels"]
    assert [r["bytes"] for r in rows if r["name"] == "[CUDA memset]"] == [1 << 16] * 3
    rows = table(path, "cuda_api_trace")
    assert [(r["start"], r["start"] + r["duration"]) for r in rows] == calls
    rows = table(path, "cuda_kern_exec_trace")
    kernels = [w for w in want if w.table == "kernels"]
    assert [(r["call start"], r["kernel"], r["api"]) for r in rows] == [
        (w.call.start, w.duration, w.call.function) for w in kernels
    ]


def test_no_time_of_a_launch_is_negative(tmp_path):
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        c.api("cudaLaunchKernel", 50, 60, correlation=1)
        c.kernel(c.launch("k"), 20, 30, correlation=1)
    row = table(path, "cuda_kern_exec_trace")[0]
    assert (row["queue"], row["kernel"], row["total"]) == (0, 10, 0)
    assert table(path, "cuda_kern_exec_sum")[0]["total mean"] == 0


def test_a_kernel_is_listed_with_its_own_grid(capture):
    with cutrace.load(capture) as trace:
        launches = trace.launches[np.sort(trace.kernels, order="start")["launch"]]
    want = ["x".join(str(row[f"{what}_{axis}"]) for axis in "xyz") for row in launches for what in ("grid", "block")]
    rows = [row for row in table(capture, "cuda_gpu_trace") if row["grid"]]
    assert [text for row in rows for text in (row["grid"], row["block"])] == want
    assert any(row["grid"] != row["block"] for row in rows)


def test_events_of_several_processes_are_one_list(tmp_path):
    for name, start in (("a.bin", 100), ("b.bin", 50)):
        with Capture(tmp_path / name, pid=start) as c:
            for at in range(start, 400, 100):
                c.kernel(c.launch("k"), at, at + 10)
    (tmp_path / "ab.bin").write_bytes((tmp_path / "a.bin").read_bytes() + (tmp_path / "b.bin").read_bytes())
    starts = [r["start"] - ORIGIN for r in table(tmp_path / "ab.bin", "cuda_gpu_trace")]
    assert starts == [50, 100, 150, 200, 250, 300, 350]


def test_work_of_graphs_by_the_ranges_of_its_creation(tmp_path):
    with cutrace.load(replays(tmp_path / "run.bin")) as trace:
        (found,) = tables(trace, ["graph_range_sum"])
        whole = sum(use.time.total for one in (KERNELS, MEMORY_OPERATIONS) for use in one.of(trace))
    columns = [column.name for column in found.columns]
    rows = [dict(zip(columns, row, strict=True)) for row in found.rows]
    assert [(r["created in"], r["total"], r["count"], r["nodes"], r["replays"]) for r in rows] == [
        ("forward/layer0/attn", 393, 6, 2, 3), ("(not recorded)", 252, 3, None, None), ("(no range)", 249, 3, 1, 3),
        ("forward/layer1", 246, 3, 1, 3), ("forward/layer0", 240, 3, 1, 3),
    ]  # fmt: skip
    assert sum(r["total"] for r in rows) == whole
    assert sum(r["share"] for r in rows) == pytest.approx(1)


def test_the_listing_of_gpu_work_names_the_ranges_of_its_creation(tmp_path):
    rows = table(replays(tmp_path / "run.bin", count=1), "cuda_gpu_trace")
    assert [row["created in"] for row in rows] == [
        "forward/layer0", "forward/layer0/attn", "forward/layer1", "(no range)", "(not recorded)",
        "forward/layer0/attn",
    ]  # fmt: skip
    assert {row["created in"] for row in table(training_steps(tmp_path / "steps.bin", steps=1), "cuda_gpu_trace")} == {
        ""
    }


def test_equal_ranges_of_creation_in_several_processes_are_one_row(tmp_path):
    parts = [replays(tmp_path / f"{pid}.bin", pid=pid, count=pid) for pid in (1, 2)]
    with cutrace.load(join(tmp_path / "run.bin", parts)) as trace:
        (found,) = tables(trace, ["graph_range_sum"])
    columns = [column.name for column in found.columns]
    rows = {row[columns.index("created in")]: dict(zip(columns, row, strict=True)) for row in found.rows}
    assert (rows["forward/layer1"]["count"], rows["forward/layer1"]["nodes"], rows["forward/layer1"]["replays"]) == (
        3, 2, 2,
    )  # fmt: skip


def test_usual_reports_without_rows_are_left_out(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("k"), 10, 20)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert [t.name for t in tables(trace)] == ["gpu_sum", "stream_sum", "idle_sum", "cuda_gpu_kern_sum"]
        assert [t.name for t in tables(trace, ["um_sum"])] == ["um_sum"]


def test_a_report_that_does_not_exist_is_refused_with_a_hint(capture):
    with cutrace.load(capture) as trace, pytest.raises(CutraceError, match="did you mean cuda_gpu_kern_sum"):
        tables(trace, ["cuda_gpu_kernel_sum"])


def test_tables_are_sorted_by_any_column():
    columns = (Column("n"), Column("name", "text"))
    found = Table("t", "T", columns, [(1, "b"), (None, "c"), (3, "a")])
    assert found.sorted("n").rows == [(3, "a"), (1, "b"), (None, "c")]
    assert found.sorted("name").rows == [(3, "a"), (1, "b"), (None, "c")]
    assert found.sorted("other") is found
    with pytest.raises(CutraceError, match="in the order of time"):
        Table("t", "T", columns, iter([]), listing=True).sorted("n")
