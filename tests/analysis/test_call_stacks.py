"""Calls and GPU work by Python stack: sums, reports and flame graphs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import captures
import cutrace
from cutrace import CutraceError
from cutrace.analysis.calls import call_kind
from cutrace.analysis.statistics.stacks import STACKS, OutermostCalls
from support import cutrace as run
from support import refused

MAIN, STEP, ADD = "train.py:10 in main", "train.py:42 in step", "ops.py:7 in fused_add"


@pytest.fixture
def path(tmp_path):
    return captures.python_calls(tmp_path / "run.bin")


def sums(path):
    with cutrace.load(path) as trace:
        return {
            (use.kind, *(frame.place for frame in use.frames)): (
                use.calls, use.api_ns, use.operations, use.gpu_ns, use.bytes
            )
            for use in STACKS.of(trace)
        }  # fmt: skip


EXPECTED = {
    # A driver call inside a runtime call is not counted as a call.
    ("launch", MAIN, STEP, ADD): (2, 200, 2, 80, 0),
    ("launch",): (1, 50, 1, 5, 0),
    ("launch", MAIN, "model.py:3 in forward"): (1, 50, 0, 0, 0),
    # A replay has the stack of its launch.
    ("launch", MAIN, "train.py:60 in replay"): (2, 20, 4, 602, 128),
    ("copy", MAIN, "data.py:5 in load"): (1, 100, 1, 400, 4096),
    ("alloc", MAIN, "data.py:5 in load"): (1, 700, 0, 0, 1 << 20),
    ("free", MAIN, "data.py:5 in load"): (1, 30, 0, 0, 1 << 20),
    ("sync", MAIN, STEP): (1, 500, 0, 0, 0),
    ("sync",): (1, 100, 0, 0, 0),
}  # fmt: skip


def test_calls_and_their_work_are_summed_by_kind_and_stack(path):
    assert sums(path) == EXPECTED


def test_equal_stacks_of_processes_are_one_row(tmp_path):
    parts = [captures.python_calls(tmp_path / f"{pid}.bin", pid=pid) for pid in (100, 200)]
    found = sums(captures.join(tmp_path / "run.bin", parts))
    assert found == {key: tuple(2 * value for value in values) for key, values in EXPECTED.items()}


def test_stacks_of_equal_lines_in_other_files_are_other_rows(tmp_path):
    parts = [captures.python_calls(tmp_path / f"{pid}.bin", pid=pid, root=f"/app{pid}") for pid in (100, 200)]
    found = sums(captures.join(tmp_path / "run.bin", parts))
    for pid in (100, 200):
        places = (f"train.py:{place}" for place in ("10 in main", "42 in step"))
        key = ("launch", *(f"app{pid}/{place}" for place in places), f"app{pid}/ops.py:7 in fused_add")
        assert found[key] == EXPECTED["launch", MAIN, STEP, ADD]
    assert found["sync",][0] == 2


def test_a_part_has_the_sums_of_its_calls(path, tmp_path):
    run("slice", path, "-o", tmp_path / "part.bin", "--start", f"@{captures.ORIGIN + 3_500}")
    found = sums(tmp_path / "part.bin")
    assert found == {key: EXPECTED[key] for key in found}
    assert ("launch", MAIN, STEP, ADD) not in found
    assert ("launch", MAIN, "train.py:60 in replay") in found


def test_the_report_is_sorted_by_the_time_of_calls_and_work(path):
    report = cutrace.stats(path, "stack_sum")
    rows = [dict(zip([c.name for c in report.columns], row, strict=True)) for row in report.rows]
    times = [row["API time"] + row["GPU time"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert [(row["kind"], row["line"]) for row in rows][:3] == [
        ("alloc", "data.py:5 in load"), ("launch", "train.py:60 in replay"), ("copy", "data.py:5 in load"),
    ]  # fmt: skip
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert rows[0]["share"] == pytest.approx(700 / sum(times))
    assert ("launch", "(no Python stack)") in [(row["kind"], row["line"]) for row in rows]
    [add] = [row for row in rows if row["line"] == ADD]
    assert add["stack"] == "main (/app/train.py:10);step (/app/train.py:42);fused_add (/app/ops.py:7)"


def test_a_capture_without_stacks_has_no_such_report(tmp_path):
    plain = captures.training_steps(tmp_path / "run.bin", steps=1)
    assert cutrace.stats(plain, "stack_sum").rows == []
    assert "stack_sum" not in [report.name for report in cutrace.stats(plain)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernelExC_v11060", "launch"), ("cuGraphLaunch_ptsz", "launch"), ("__cudaLaunchKernel", "launch"),
        ("cudaMemcpy2DAsync_v3020", "copy"), ("cuMemsetD8Async", "copy"), ("cudaMemPrefetchAsync", "copy"),
        ("cudaStreamSynchronize_v3020", "sync"), ("cuCtxSynchronize", "sync"), ("cudaStreamWaitEvent", "other"),
        ("cudaMallocAsync", "alloc"), ("cuMemAlloc_v2", "alloc"), ("cudaHostRegister", "alloc"),
        ("cuMemCreate", "alloc"), ("cudaFreeAsync", "free"), ("cuMemFree_v2", "free"), ("cudaHostUnregister", "free"),
        ("cuMemRelease", "free"), ("cudaMemGetInfo", "other"), ("cudaGraphInstantiate", "other"), ("", "other"),
    ],
)  # fmt: skip
def test_kinds_of_calls(name, kind):
    assert call_kind(name) == kind


def test_calls_inside_a_call_are_found_over_batches():
    # (id, start, end): the outer call of id 1 lasts over three batches.
    batches = [
        [(1, 0, 100), (1, 1, 9), (2, 2, 3), (2, 2, 4), (0, 5, 6), (0, 5, 6)],
        [(1, 10, 19), (2, 12, 13), (3, 15, 30)],
        [(1, 20, 99), (3, 21, 22), (4, 40, 41)],
    ]
    outermost = OutermostCalls()
    found = []
    for batch in batches:
        rows = np.array(batch, np.int64)
        calls = {"correlation": rows[:, 0].astype(np.uint32), "start": rows[:, 1], "end": rows[:, 2]}
        found.append([batch[i] for i in outermost.of(calls).tolist()])
    assert found == [[(1, 0, 100), (2, 2, 4), (0, 5, 6), (0, 5, 6)], [(2, 12, 13), (3, 15, 30)], [(4, 40, 41)]]


# Flame graphs


def test_a_flame_graph_has_the_frames_of_the_launching_calls(path):
    graph = cutrace.flame(path, by="stack")
    frames = {tuple(f.name for f in frames): frames[-1] for frames in graph.root.walk()}
    add = frames[MAIN, STEP, ADD, "add"]
    assert (add.kind, add.operations, add.gpu_ns, add.cpu_ns) == ("kernel", 2, 80, 0)
    assert (frames[MAIN, STEP].gpu_ns, frames[MAIN, STEP].cpu_ns) == (80, 700)
    assert frames[MAIN, "train.py:60 in replay", "node"].gpu_ns == 600
    # Work without a stack is at the root.
    assert frames["add",].gpu_ns == 5
    assert graph.root.gpu_ns == cutrace.flame(path).root.gpu_ns == 80 + 5 + 602 + 400
    assert graph.root.cpu_ns == 200 + 50 + 20 + 100 + 700 + 30 + 500
    assert "GPU time by Python stack" in graph._repr_html_()


def test_folded_and_speedscope_files_can_have_python_frames(path, tmp_path):
    assert run("convert", path, "-o", tmp_path / "run.folded", "--by", "stack").returncode == 0
    assert (tmp_path / "run.folded").read_text().splitlines() == [
        "add 5",
        f"{MAIN};data.py:5 in load;[CUDA memcpy Host-to-Device] 400",
        f"{MAIN};train.py:42 in step;{ADD};add 80",
        f"{MAIN};train.py:60 in replay;[CUDA memset] 2",
        f"{MAIN};train.py:60 in replay;node 600",
    ]
    cutrace.convert(path, tmp_path / "run.speedscope.json", by="stack")
    profiles = json.loads((tmp_path / "run.speedscope.json").read_text())["profiles"]
    assert [(p["name"], p["endValue"]) for p in profiles] == [("GPU time", 1087), ("time of API calls", 1600)]


def test_python_frames_that_cannot_be_are_refused(path, tmp_path):
    plain = captures.training_steps(tmp_path / "plain.bin", steps=1)
    done = run("convert", plain, "-o", tmp_path / "plain.folded", "--by", "stack")
    refused(done, "no call of the trace has a Python stack")
    refused(run("convert", path, "-o", tmp_path / "run.pftrace", "--by", "stack"), "choose .folded")
    assert {p.name for p in tmp_path.iterdir()} == {"run.bin", "plain.bin"}
    with pytest.raises(CutraceError, match="choose one of range, stack"):
        cutrace.flame(path, by="line")
