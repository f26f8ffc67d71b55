"""Metrics of whole NVTX ranges on a GPU. The values follow from the work of the program in the ranges."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cutrace

BYTES = 4 << 26
PROGRAM = f"""
import json, torch
from torch.cuda import nvtx
x = torch.arange({BYTES // 4}, device="cuda", dtype=torch.float32)
y = torch.zeros_like(x)
side = torch.cuda.Stream()
torch.add(x, 1, out=y)
torch.cuda.synchronize()
with nvtx.range("step"):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with nvtx.range("in capture"):
            torch.add(x, 1, out=y)
for kernels in (1, 1, 2):
    with nvtx.range("step"):
        for _ in range(kernels):
            torch.add(x, 1, out=y)
with nvtx.range("graph"):
    graph.replay()
with nvtx.range("two streams"):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.add(x, 1, out=y)
    torch.cuda.current_stream().wait_stream(side)
torch.cuda.synchronize()
print(json.dumps({{"sum": float(y.double().sum())}}))
"""
NAMES = ("sm__inst_executed.sum", "dram__bytes_read.sum", "gpu__time_duration.sum")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ranges")
    command = [sys.executable, "-m", "cutrace", "profile", "--ranges", "*", "--metrics", ",".join(NAMES),
               "--format", "json", "--", sys.executable, "-c", PROGRAM]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done, folder / "run.bin"


def values(done: subprocess.CompletedProcess[str], metric: str) -> dict[tuple[str, int], float]:
    printed = done.stdout.rpartition('{"sum"')[2].partition("\n")[2]  # after the program's output in its second run
    rows: list[dict[str, Any]] = json.loads(printed)["reports"][0]["rows"]
    return {(row["range"], row["number"]): row["value"] for row in rows if row["metric"] == metric}


def test_ranges_count_what_runs_in_them(profiled: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    counted = values(profiled[0], NAMES[0])
    one = counted["step", 1]
    assert one > 0
    assert counted["step", 2] == one
    assert counted["step", 3] == 2 * one
    assert counted["graph", 0] == one
    assert counted["two streams", 0] == one
    read = values(profiled[0], NAMES[1])
    assert read["step", 2] == pytest.approx(BYTES, rel=0.02)
    assert read["graph", 0] == pytest.approx(BYTES, rel=0.02)


def test_the_program_computes_the_same(profiled: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    sums = [line for line in profiled[0].stdout.splitlines() if line.startswith('{"sum"')]
    assert len(sums) == 2
    assert sums[0] == sums[1]


def test_rows_have_the_name_and_the_times_of_their_range(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    with cutrace.load(profiled[1]) as trace:
        own = {(trace.strings[row["name"]], int(row["start"]), int(row["end"])) for row in trace.nvtx_ranges}
        found = {(trace.strings[row["range"]], int(row["start"]), int(row["end"])) for row in trace.kernel_metrics}
    assert found <= own
    assert {name for name, _, _ in found} >= {"step", "graph", "two streams"}


def test_a_range_inside_a_capture_leaves_the_capture_alone(tmp_path: Path) -> None:
    """No outer range is counted, so the start of this range would make the call that waits."""
    pytest.importorskip("torch")
    command = [
        sys.executable,
        "-m",
        "cutrace",
        "profile",
        "--ranges",
        "in capture",
        "--",
        sys.executable,
        "-c",
        PROGRAM,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert "a range began while a CUDA graph was captured" in done.stderr, done.stderr
    assert done.stdout.count('{"sum"') == 2
