"""Hardware counters in tests, on a GPU with readable counters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cutrace.golden import Observed, golden_files, read
from cutrace.reports.jsonfile import read_report
from cutrace.reports.model import SessionReport, State

SUITE = '''
"""Bodies whose instructions are counted five times."""

import pytest
import torch

SIZE = 1 << 26


@pytest.fixture(scope="module")
def x():
    return torch.ones(SIZE, device="cuda")


@pytest.fixture(scope="module")
def y(x):
    return torch.zeros_like(x)


@pytest.fixture(scope="module")
def graph(x, y):
    y.copy_(x)
    torch.cuda.synchronize()
    found = torch.cuda.CUDAGraph()
    with torch.cuda.graph(found):
        y.copy_(x)
        y.add_(1)
    return found


COUNTED = pytest.mark.cutrace(counters=["instructions", "dram_bytes", "l2_bytes"], warmup=1, repeat=5)


@COUNTED
def test_copy(x, y):
    y.copy_(x)


@COUNTED
def test_matmul(x):
    a = x[: 1 << 22].view(2048, 2048)
    a @ a


@COUNTED
def test_reduction(x):
    x.sum()


@COUNTED
def test_graph(graph):
    graph.replay()


@COUNTED
def test_elementwise(x, y):
    torch.add(x, y, alpha=2, out=y)


@pytest.mark.cutrace(counters=["dram_read_bytes", "dram_write_bytes"], warmup=1, repeat=5)
def test_directions(x, y):
    y.copy_(x)


@pytest.mark.cutrace(counters=["tensor_instructions"], warmup=1, repeat=5)
def test_tensor_cores(x):
    a = x[: 1 << 22].view(2048, 2048).to(torch.bfloat16)
    a @ a


@pytest.mark.cutrace(warmup=1, repeat=5)
def test_region(x, y, gpu_trace):
    y.copy_(x)
    with gpu_trace.region("add", counters=["instructions"]):
        y.add_(1)
'''
BYTES = 4 << 26  # the bytes of x and y
BYTE_COUNTERS = ("dram_bytes", "dram_read_bytes", "dram_write_bytes", "l2_bytes")
BODIES = ("test_copy", "test_matmul", "test_reduction", "test_graph", "test_elementwise")
#: A process counts while another process, which has counted before, waits.
HOLDER = """
import signal, sys, torch
from cutrace.extras.hardware.counting import Counting

signal.alarm(60)
x = torch.ones(1 << 20, device="cuda")
counting = Counting()
for turn in sys.stdin:
    counting.start(["instructions"])
    x.add_(1)
    torch.cuda.synchronize()
    print(counting.stop()["instructions"], flush=True)
"""


def run(folder: Path, *options: str) -> tuple[int, str, SessionReport]:
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini", *options),
        f"--cutrace-report=json:{report}",
    ]
    inherited = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_XDIST_")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=inherited)
    assert report.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, read_report(report)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Observed]]:
    """The folder of the suite, and the entries of its golden file by test."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("counters")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_bodies.py").write_text(SUITE)
    status, output, report = run(folder, "--cutrace-update")
    assert status == 0, output
    assert {case.state for case in report.cases} == {State.UPDATED}, output
    (path,) = golden_files(folder / "golden")
    return folder, {test: next(iter(entry.values())) for test, entry in read(path).tests.items()}


@pytest.mark.parametrize("body", BODIES)
def test_five_repetitions_execute_the_same_instructions(recorded: tuple[Path, dict[str, Observed]], body: str) -> None:
    found = recorded[1][body]
    count = found.values[""].get("instructions")
    assert isinstance(count, int), found
    assert count > 0


def test_a_copy_moves_what_it_copies_through_dram(recorded: tuple[Path, dict[str, Observed]]) -> None:
    copied = recorded[1]["test_copy"].values[""]
    assert copied["dram_bytes"] == pytest.approx(2 * BYTES, rel=0.02)
    directions = recorded[1]["test_directions"].values[""]
    assert directions["dram_read_bytes"] == pytest.approx(BYTES, rel=0.02)
    assert directions["dram_write_bytes"] == pytest.approx(BYTES, rel=0.02)


def test_tensor_cores_and_regions_are_counted(recorded: tuple[Path, dict[str, Observed]]) -> None:
    assert recorded[1]["test_tensor_cores"].values[""]["tensor_instructions"] != 0
    region = recorded[1]["test_region"]
    assert region.values["add"]["instructions"] != 0
    assert "instructions" not in region.values[""]


@pytest.mark.parametrize("workers", [1, 2])
def test_another_session_counts_the_same(recorded: tuple[Path, dict[str, Observed]], workers: int) -> None:
    if workers > 1:
        pytest.importorskip("xdist")
    # DRAM bytes are counted for the whole GPU, so they include the bytes of other workers.
    several = ["-n", "2", "-o", f"cutrace_ignore={','.join(BYTE_COUNTERS)}"] if workers > 1 else []
    status, output, report = run(recorded[0], "--cutrace=require", *several)
    assert status == 0, output
    assert {case.state for case in report.cases} == {State.GATED}, output


def test_a_kernel_more_is_named(recorded: tuple[Path, dict[str, Observed]]) -> None:
    folder = recorded[0]
    (folder / "test_bodies.py").write_text(SUITE.replace("    x.sum()\n", "    x.sum()\n    x[:1024] + 1\n"))
    try:
        status, output, _ = run(folder, "--cutrace", "-o", "cutrace_ignore=kernels", "-k", "test_reduction")
    finally:
        (folder / "test_bodies.py").write_text(SUITE)
    assert status == 1
    assert "cutrace: instructions" in output


def test_a_process_that_has_counted_lets_another_one_count(needs: Callable[..., None]) -> None:
    needs("torch")
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    counts = []
    try:
        for turn in range(4):
            holder = holders[turn % 2]
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write("go\n")
            holder.stdin.flush()
            counts.append(holder.stdout.readline().strip())
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
    assert len(set(counts)) == 1, counts
    assert counts[0].isdigit()
