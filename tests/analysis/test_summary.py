"""Busy time of a GPU: the union of its work, computed in stretches of bounded size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutrace
from captures import ORIGIN, Capture
from cutrace.analysis import summary
from cutrace.analysis.metrics import union
from cutrace.analysis.statistics.gpus import GPUS
from cutrace.analysis.summary import summarize
from cutrace.runbin import Writer
from support import rows, small_capture

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30)


@given(INTERVALS)
def test_a_union_counts_each_moment_once(intervals):
    pairs = np.array([(a, a + length) for a, length in intervals], np.uint64).reshape(-1, 2).T
    moments = {t for a, length in intervals for t in range(a, a + length)}
    assert union(pairs) == len(moments)


@pytest.mark.parametrize("window", [1, 1000, 1 << 20])
def test_busy_time_does_not_depend_on_the_windows(tmp_path, monkeypatch, window):
    monkeypatch.setattr(summary, "_WINDOW_BYTES", window)
    random = np.random.default_rng(7)
    covered: set[int] = set()
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        for block in range(12):
            start = random.integers(1, 200, 20) + 50 * block
            end = start + random.integers(1, 120, 20)
            covered.update(t for a, b in zip(start, end, strict=True) for t in range(a, b))
            writer.rows("kernels", rows("kernels", 20, start=start, end=end))
    with cutrace.load(tmp_path / "a.bin") as trace:
        (gpu,) = summarize(trace).gpus
        kernels = trace.kernels
        assert gpu.busy_ns == len(covered)
        assert gpu.kernel_ns == int((kernels["end"] - kernels["start"]).sum())
        assert gpu.kernels == len(kernels)


def test_busy_and_compute_mean_what_they_mean_in_the_reports(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.device()
        c.kernel(c.launch("gemm"), 100, 200)
        c.kernel(c.launch("ncclDevKernel_AllReduce"), 150, 400, stream=8)
        c.memcpy(500, 600, 64)
        c.add("memsets", start=ORIGIN + 590, end=ORIGIN + 700, bytes=1)
        c.add("graph_launches", start=ORIGIN + 1000, end=ORIGIN + 1100)
    with cutrace.load(tmp_path / "a.bin") as trace:
        (gpu,) = summarize(trace).gpus
        (use,) = GPUS.of(trace)
    assert (gpu.busy_ns, gpu.compute_ns) == (use.busy, use.compute) == (600, 200)
    assert (gpu.kernels, gpu.kernel_ns) == (3, 450)
    assert use.kernel_ns == 450


def test_a_gpu_that_the_capture_does_not_describe_is_counted_too(tmp_path):
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        writer.rows("kernels", rows("kernels", 2, start=[10, 10], end=[20, 15], device=[0, 3]))
    with cutrace.load(tmp_path / "a.bin") as trace:
        found = summarize(trace)
    assert [(g.name, g.busy_ns) for g in found.gpus] == [("GPU 0 of process 0", 10), ("GPU 3 of process 0", 5)]


def test_rows_are_counted_for_each_process(tmp_path):
    a, b = small_capture(tmp_path / "a.bin", pid=1), small_capture(tmp_path / "b.bin", pid=2)
    (tmp_path / "ab.bin").write_bytes(a.read_bytes() + b.read_bytes())
    with cutrace.load(tmp_path / "ab.bin") as trace:
        found = summarize(trace)
    assert [c["kernels"] for c in found.process_counts] == [2, 2]
    assert found.counts["kernels"] == 4
