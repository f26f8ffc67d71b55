"""Recordings that dump themselves for a slow step, an idle GPU or high memory, and cases without a dump."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace

Record = Callable[..., Any]

BEGIN = """
import sys, threading, time
import torch
from torch.cuda import nvtx
a = torch.randn(512, 512, device="cuda")
torch.cuda.synchronize()
def step(number, pause=0.0):
    with nvtx.range("step"):
        with nvtx.range(f"number {number}"):
            for _ in range(5):
                a.mul_(1)
            time.sleep(pause)
            a.mul_(1)
            torch.cuda.synchronize()
def hold(seconds):
    # A kernel that runs for so long, and does not wait for it.
    torch.cuda._sleep(int(seconds * CYCLES))
begin = time.monotonic()
torch.cuda._sleep(10**9)
torch.cuda.synchronize()
CYCLES = 10**9 / (time.monotonic() - begin)
step(-1)
for i in range(100):
    step(-2, 0.005)
"""


@pytest.fixture
def dumping(record: Record, needs: Callable[..., None], tmp_path: Path) -> Callable[..., list[Path]]:
    """``dumping(program, *conditions)``: the dumps of a program that ends by itself."""
    needs("torch")

    def run(program: str, *conditions: str, last: str = "8s") -> list[Path]:
        given = [word for condition in conditions for word in ("--dump-when", condition)]
        recorded = record([sys.executable, "-c", BEGIN + program], "--last", last, *given, limit=90)
        assert recorded.status == 0, recorded.stderr
        dumps = sorted(tmp_path.glob("run-*.bin"))
        print(recorded.stderr)
        longest_idle(recorded.path)
        for dump in dumps:
            assert f"{dump} holds the newest rows" in recorded.stderr
        return dumps

    return run


def longest_idle(capture: Path) -> float:
    """The longest time (s) without GPU work in a whole capture, between its first and its last work. Prints it, and the
    long kernels."""
    with cutrace.load(capture) as trace:
        work = np.concatenate([trace.table(name)[["start", "end"]] for name in ("kernels", "memcpys", "memsets")])
        work = np.sort(work, order="start")
        latest = np.maximum.accumulate(work["end"])
        gaps = work["start"][1:].astype(np.int64) - latest[:-1].astype(np.int64)
        for row in work[work["end"] - work["start"] > 10**8]:
            print("long", (int(row["start"]) - trace.start) / 1e9, (int(row["end"]) - trace.start) / 1e9)
        for at in np.flatnonzero(gaps > 10**8):
            print("idle", (int(latest[at]) - trace.start) / 1e9, gaps[at] / 1e9)
        return float(gaps.max()) / 1e9


Dumping = Callable[..., list[Path]]


def reasons(dump: Path) -> list[str]:
    with cutrace.load(dump) as trace:
        assert trace.quality.damage == ()
        return [reason for process in trace.processes for reason in process.dumped_because]


def test_one_slow_step_in_a_thousand_is_dumped_with_its_neighbours(dumping: Dumping) -> None:
    program = "for i in range(1000):\n    step(i, 0.3 if i == 600 else 0.002)\n"
    (dump,) = dumping(program, "nvtx:step > 200ms", "nvtx:step > 50x median")
    fixed, median = reasons(dump)
    assert fixed.startswith("step took 30")
    assert "the median is" in median
    with cutrace.load(dump) as trace:
        ranges = trace.nvtx_ranges
        names = trace.strings.take(ranges["name"])
        for number in range(550, 650):
            (step,) = ranges[names == f"number {number}"]
            inside = (trace.kernels["start"] > step["start"]) & (trace.kernels["end"] < step["end"])
            assert np.count_nonzero(inside) == 6, number


def test_an_idle_gpu_is_seen_while_another_thread_sleeps(dumping: Dumping) -> None:
    """The other thread has launched work before, so CUPTI gave it a buffer."""
    program = """
ready, end = threading.Event(), threading.Event()
def sleeper():
    step(1)
    ready.set()
    end.wait()
threading.Thread(target=sleeper).start()
ready.wait()
for i in range(100):
    step(i, 0.005)
time.sleep(0.8)
for i in range(300):
    step(i, 0.005)
end.set()
"""
    (dump,) = dumping(program, "gpu idle > 500ms")
    (reason,) = reasons(dump)
    assert reason.startswith("GPU 0 was idle for 8")


BUSY = """
other = torch.cuda.Stream()
small = torch.cuda.Stream()
# Loading a kernel waits for the GPU, so it must be loaded before a long one runs.
with torch.cuda.stream(small):
    a.add_(0)
torch.cuda.synchronize()
def beats(seconds):
    # A short kernel each 0.7 s on a stream of its own.
    for _ in range(int(seconds / 0.7)):
        with torch.cuda.stream(small):
            a.add_(0)
        time.sleep(0.7)
"""


@pytest.mark.parametrize(
    "program",
    [
        # A kernel on another stream runs all the time.
        "with torch.cuda.stream(other):\n    hold(7)\nbeats(3.5)\n",
        # A graph on another stream runs all the time. Its nodes end one by one.
        """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(14):
        hold(0.5)
with torch.cuda.stream(other):
    graph.replay()
beats(3.5)
""",
        # Another thread keeps the GPU busy, and the main thread makes calls in between.
        """
def work():
    with torch.cuda.stream(other):
        for _ in range(35):
            hold(0.2)
            other.synchronize()
thread = threading.Thread(target=work)
thread.start()
beats(3.5)
thread.join()
""",
    ],
    ids=["kernel", "graph", "thread"],
)
def test_a_gpu_at_work_is_not_idle(dumping: Dumping, tmp_path: Path, program: str) -> None:
    dumps = dumping(BUSY + program + "torch.cuda.synchronize()\n", "gpu idle > 600ms", last="20s")
    assert longest_idle(tmp_path / "run.bin") < 0.6, "the program itself left the GPU idle"
    assert [reasons(dump) for dump in dumps] == []


def test_memory_is_seen_when_it_rises(dumping: Dumping) -> None:
    program = """
held = []
for i in range(60):
    step(i, 0.01)
    if 20 <= i < 26:
        held.append(torch.empty(1 << 29, dtype=torch.uint8, device="cuda"))
"""
    (dump,) = dumping(program, "memory > 2GiB", "memory > 60GiB")
    (reason,) = reasons(dump)
    assert reason.endswith("in use (memory > 2GiB)")
