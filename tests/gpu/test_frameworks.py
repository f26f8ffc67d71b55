"""PyTorch, Triton, cuda.core and CuPy programs: NVTX from Python, two streams, launches through the driver API, and
several processes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Record = Callable[..., Any]
Needs = Callable[..., None]


def test_a_training_step(record: Record, scripts: Path, needs: Needs) -> None:
    needs("torch")
    recorded = record([sys.executable, scripts / "train.py"])
    trace, steps = recorded.trace, recorded.report["steps"]
    names = Counter(trace.strings.take(trace.nvtx_ranges["name"]))
    expected = dict.fromkeys(("forward", "backward", "optimizer", "prefetch"), steps)
    assert {name: names[name] for name in expected} == expected
    assert len(trace.nvtx_marks) == steps
    recorded.assert_lossless()
    recorded.launching_calls(trace.kernels)
    # The batches are copied on a stream that runs no kernels.
    copied = set(trace.memcpys["stream"][trace.memcpys["kind"] == 1]) - set(trace.kernels["stream"])
    assert copied


def test_kernels_of_the_backward_pass_are_launched_by_another_thread_during_the_range(
    record: Record, scripts: Path, needs: Needs
) -> None:
    needs("torch")
    recorded = record([sys.executable, scripts / "train.py"])
    trace = recorded.trace
    calls = recorded.launching_calls(trace.kernels)
    ranges = trace.nvtx_ranges
    backward = ranges[trace.strings.take(ranges["name"]) == "backward"]
    assert recorded.report["steps"] == len(backward)
    for one in backward:
        inside = (calls["start"] >= one["start"]) & (calls["end"] <= one["end"])
        elsewhere = calls["thread"][inside] != one["thread"]
        # The thread that calls backward() launches only the fill of the first gradient.
        assert np.count_nonzero(elsewhere) >= 10
        assert np.count_nonzero(~elsewhere) <= 1


def test_triton_launches(record: Record, scripts: Path, needs: Needs) -> None:
    needs("torch", "triton")
    recorded = record([sys.executable, scripts / "triton_add.py"])
    counts = recorded.kernel_counts()
    assert {name: counts[name] for name in recorded.report["kernels"]} == recorded.report["kernels"]
    ours = np.isin(recorded.kernel_names(), list(recorded.report["kernels"]))
    calls = recorded.call_counts(recorded.launching_calls(recorded.trace.kernels[ours]))
    assert set(calls) <= {"cuLaunchKernel", "cuLaunchKernelEx"}
    recorded.assert_lossless()


def test_cuda_core_launches(record: Record, scripts: Path, needs: Needs) -> None:
    needs("cuda.core")
    recorded = record([sys.executable, scripts / "core_saxpy.py"])
    assert recorded.kernel_counts() == Counter(recorded.report["kernels"])
    calls = recorded.call_counts(recorded.launching_calls(recorded.trace.kernels))
    assert set(calls) <= {"cuLaunchKernel", "cuLaunchKernelEx"}
    recorded.assert_lossless()


CUPY = """
import cupy, json
x = cupy.arange(1 << 16, dtype=cupy.float32)
scale = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "twice")
for _ in range(7):
    x = scale(x)
cupy.cuda.Device().synchronize()
print(json.dumps({"kernels": 7}))
"""


def test_cupy_launches(record: Record, needs: Needs) -> None:
    needs("cupy")
    recorded = record([sys.executable, "-c", CUPY])
    assert recorded.kernel_counts()["twice"] == recorded.report["kernels"]
    recorded.launching_calls(recorded.trace.kernels)


def test_spawned_workers_are_in_the_same_capture(record: Record, scripts: Path, needs: Needs) -> None:
    needs("torch")
    recorded = record([sys.executable, scripts / "processes.py"])
    assert recorded.status == 0, recorded.stderr
    trace, reports = recorded.trace, recorded.reports
    assert {r["name"] for r in reports} == {"parent", "worker 0", "worker 1"}
    assert {p.pid for p in trace.processes} == {r["pid"] for r in reports}
    assert len({p.boot_id for p in trace.processes}) == 1
    for process in trace.processes:
        report = next(r for r in reports if r["pid"] == process.pid)
        ranges = trace.nvtx_ranges[trace.nvtx_ranges["process"] == process.index]
        wanted = {f"{report['name']}: product {number}" for number in range(report["products"])}
        assert set(trace.strings.take(ranges["name"])) == wanted
        kernels = trace.kernels[trace.kernels["process"] == process.index]
        assert len(kernels) >= 2 * report["products"]
    recorded.assert_lossless()


CHILDREN = """
import subprocess, sys
children = [subprocess.Popen([sys.argv[1], "return"]) for _ in range(2)]
sys.exit(sum(child.wait() for child in children))
"""


def test_cuda_children_of_a_program_without_cuda(record: Record, programs: Path) -> None:
    recorded = record([sys.executable, "-c", CHILDREN, programs / "endings"])
    assert recorded.status == 0, recorded.stderr
    trace = recorded.trace
    assert {p.pid for p in trace.processes} == {r["pid"] for r in recorded.reports}
    assert np.bincount(trace.kernels["process"]).tolist() == [1000, 1000]
    recorded.assert_lossless()
