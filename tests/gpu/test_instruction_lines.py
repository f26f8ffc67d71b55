"""cutrace profile --lines on a GPU: sums equal the GPU's counter, and the lines belong to the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutrace

KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def known(x, y, times, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    for _ in range(times):  # hot
        value = value * 0.99 + tl.sqrt(value)  # hot
    tl.store(y + at, value)

@triton.jit
def other(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * 2)

torch.manual_seed(0)
x = torch.rand(1 << 20, device="cuda")
y = torch.empty_like(x)
for _ in range(3):
    known[(1024,)](x, y, 40, BLOCK=1024)
    other[(1024,)](y, BLOCK=1024)
torch.cuda.synchronize()
print("sum", float(y.double().sum()))
"""
EXECUTED = "smsp__sass_inst_executed"


def profile(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cutrace", "profile", *options, "--", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def test_instructions_by_line_add_up_to_the_counter_of_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "program.py").write_text(KERNEL)
    done = profile(tmp_path, "--lines", "--kernel", "/^(known|other)$/", "--skip", "2", "-o", "lines.bin")
    profile(tmp_path, "--metrics", "smsp__inst_executed.sum", "--kernel", "/^(known|other)$/", "--skip", "2")
    sums = [line for line in done.stdout.splitlines() if line.startswith("sum ")]
    assert len(sums) == 3, "a recorded run and one for each kernel"
    assert len(set(sums)) == 1, "the program computes the same"
    with cutrace.load(tmp_path / "lines.bin") as trace:
        rows = [row for row in trace.arrow("instruction_metrics").to_pylist() if row["name"] == EXECUTED]
    with cutrace.load(tmp_path / "run.bin") as trace:
        counted = sum(trace.kernel_metrics["value"])
    assert {(row["function"], row["launches"]) for row in rows} == {("known", 2), ("other", 2)}
    assert sum(row["value"] for row in rows) == counted
    by_line: dict[int, float] = {}
    for row in rows:
        if row["file"] and Path(row["file"]).name == "program.py":
            by_line[row["line"]] = by_line.get(row["line"], 0) + row["value"]
    hot = {number for number, line in enumerate(KERNEL.splitlines(), 1) if line.endswith("# hot")}
    assert max(by_line, key=lambda line: by_line[line]) in hot
