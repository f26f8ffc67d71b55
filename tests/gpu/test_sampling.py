"""cutrace record --sample on a GPU: the sum of the samples of a known copy, and the clock of the samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cutrace

BYTES, COPIES = 4 << 26, 200
PROGRAM = f"""
import time, torch
x = torch.ones({BYTES // 4}, device="cuda"); y = torch.empty_like(x)
torch.cuda.synchronize(); time.sleep(0.3)
for _ in range({COPIES}): y.copy_(x)
torch.cuda.synchronize(); time.sleep(0.3)
"""
READ, WRITE = "dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"
ACTIVE = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("sampling")
    command = [sys.executable, "-m", "cutrace", "record", "--sample", "metrics", "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return folder / "run.bin"


def samples(trace: cutrace.Trace, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The starts, ends and values of the samples of one counter of GPU 0."""
    rows = np.concatenate(list(trace.blocks("counters")))
    names = [trace.strings[number] for number in rows["name"].tolist()]
    rows = rows[(np.array(names) == name) & (rows["device"] == 0)]
    times, values = rows["time"].astype(np.int64), rows["value"]
    return times[:-1], times[1:], np.nan_to_num(values[:-1])


def copies(trace: cutrace.Trace) -> tuple[int, int]:
    """The start and the end of the copies."""
    large = trace.memcpys[trace.memcpys["bytes"] == BYTES]
    assert len(large) == COPIES
    return int(large["start"].min()), int(large["end"].max())


def test_bytes_of_a_copy_add_up(sampled: Path) -> None:
    with cutrace.load(sampled) as trace:
        begin, end = copies(trace)
        for name in (READ, WRITE):
            start, stop, value = samples(trace, name)
            near = (stop > begin - 50_000_000) & (start < end + 50_000_000)
            total = float((value * (stop - start))[near].sum()) / 1e9
            assert abs(total / (BYTES * COPIES) - 1) < 0.05, (name, total, BYTES * COPIES)


def test_samples_are_on_the_clock_of_the_records(sampled: Path) -> None:
    with cutrace.load(sampled) as trace:
        begin, end = copies(trace)
        start, stop, value = samples(trace, READ)
        busy = value > value.max() / 2
        assert abs(int(start[busy].min()) - begin) < 1_000_000
        assert abs(int(stop[busy].max()) - end) < 1_000_000


def test_no_sample_is_lost_and_percentages_are_some(sampled: Path) -> None:
    with cutrace.load(sampled) as trace:
        assert not [loss for loss in trace.named_losses if loss.reason == "samples_lost"]
        start, stop, value = samples(trace, ACTIVE)
        assert value.min() >= 0
        assert value.max() <= 101
        assert np.median(stop - start) == pytest.approx(1_000_000, rel=0.05)
