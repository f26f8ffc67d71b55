"""The memory of ranks over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import ORIGIN, Capture
from cutrace.extras.fleet.engines import Engine
from cutrace.extras.fleet.model import HeatMap
from cutrace.extras.fleet.running import run

pytest.importorskip("pyarrow")

DEVICE, PINNED = 3, 2
SECOND = 1_000_000_000
MIB = 1 << 20


def rank(path: Path, number: int, size: int) -> Path:
    """A rank that allocates ``size`` bytes on its GPU, releases half of them, and allocates 64 KiB of pinned memory."""
    with Capture(path, pid=100 + number, rank=number) as c:
        launch = c.launch("work")
        for at in (1, 4):
            c.kernel(launch, at * SECOND, at * SECOND + 1_000, correlation=at)
        for at, operation in ((1, 1), (2, 1), (3, 2)):
            time = ORIGIN + at * SECOND
            c.add("allocations", time=time, bytes=size // 2, operation=operation, memory=DEVICE, context=1)
        c.add("allocations", time=ORIGIN + 3 * SECOND, bytes=64 << 10, operation=1, memory=PINNED, context=1)
        c.clocks()
    return path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [rank(tmp_path / f"rank{n}.bin", n, (8 if n == 3 else 4) * MIB) for n in range(8)]


def test_the_peak_of_each_rank_is_told_by_kind(paths, tmp_path):
    result = cutrace.batch("memory", paths, tmp_path / "out", mode="sequential")
    found = result.reports[0].arrow().to_pylist()
    assert len(found) == 16
    assert found[0] == {
        "peak_bytes": 8 * MIB, "net_bytes": 4 * MIB, "memory": "device", "gpu": "rank 3 GPU 0", "host": "test",
    }  # fmt: skip
    assert {(row["peak_bytes"], row["net_bytes"]) for row in found if row["memory"] == "pinned"} == {
        (64 << 10, 64 << 10)
    }
    (sentence,) = result.sentences
    assert sentence == "rank 3 GPU 0: its device memory has a peak 2.00 times as high as on the median GPU"


def test_the_picture_has_the_level_over_time(paths, tmp_path):
    done = run("memory", paths, tmp_path / "out", engine=Engine("sequential"))
    (picture,) = done.results["memory"].pictures
    assert isinstance(picture, HeatMap)
    assert picture.labels[3] == "rank 3 GPU 0"
    known = picture.values[3][np.isfinite(picture.values[3])]
    assert (known[0], known.max(), known[-1]) == (4 * MIB, 8 * MIB, 4 * MIB)


def test_captures_without_allocations_have_no_rows(tmp_path):
    with Capture(tmp_path / "rank0.bin", rank=0) as c:
        c.kernel(c.launch("work"), 1_000, 2_000, correlation=1)
    result = cutrace.batch("memory", [tmp_path / "rank0.bin"], tmp_path / "out", mode="sequential")
    assert result.reports[0].arrow().num_rows == 0
    assert "Nothing is known to be missing." in (tmp_path / "out" / "memory.html").read_text()
