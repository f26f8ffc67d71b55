"""cutrace profile on a GPU: values that follow from what a program does, and a program that computes the same."""

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
import json, sys, torch
x = torch.arange({BYTES // 4}, device="cuda", dtype=torch.float32)
y = torch.zeros_like(x)
for _ in range(3):
    torch.add(x, 1, out=y)
    y.mul_(2)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y.mul_(0.5)
graph.replay()
torch.cuda.synchronize()
print(json.dumps({{"sum": float(y.double().sum())}}))
"""
NAMES = ("dram__bytes_read.sum", "dram__bytes_write.sum", "sm__inst_executed.sum", "gpu__time_duration.sum")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("profile")
    program = [sys.executable, "-c", PROGRAM]
    command = [sys.executable, "-m", "cutrace", "profile", "--metrics", f"{','.join(NAMES)},speed-of-light",
               "--kernel", "/elementwise/", "--", *program]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done, folder / "run.bin"


def rows(path: Path) -> list[dict[str, Any]]:
    with cutrace.load(path) as trace:
        return trace.arrow("kernel_metrics").to_pylist()


def test_the_program_computes_the_same_while_its_kernels_are_replayed(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    sums = [json.loads(line)["sum"] for line in profiled[0].stdout.splitlines() if line.startswith('{"sum"')]
    assert len(sums) == 2
    assert sums[0] == sums[1]


def test_bytes_and_instructions_are_those_of_the_kernels(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    read = [row["value"] for row in rows(profiled[1]) if row["name"] == NAMES[0] and row["value"] > BYTES / 2]
    assert len(read) >= 6  # three of add and three of mul
    assert all(abs(value / BYTES - 1) < 0.02 for value in read), read
    by_kernel: dict[tuple[int, str], set[float]] = {}
    with cutrace.load(profiled[1]) as trace:
        launches = {int(k["correlation"]): int(k["launch"]) for k in trace.kernels}
    for row in rows(profiled[1]):
        if row["name"] == NAMES[2]:
            by_kernel.setdefault((launches[row["correlation"]], row["name"]), set()).add(row["value"])
    assert all(len(values) == 1 for values in by_kernel.values()), by_kernel


def test_times_are_those_of_the_run_without_counters(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    with cutrace.load(profiled[1]) as trace:
        own = {(int(k["correlation"]), int(k["start"]), int(k["end"])) for k in trace.kernels}
    assert {(row["correlation"], row["start"], row["end"]) for row in rows(profiled[1])} <= own


def test_launches_inside_graphs_are_left_out_and_said(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    assert "left out: 1 launch inside CUDA graphs" in profiled[0].stderr
