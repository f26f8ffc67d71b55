"""The ranges in which graph nodes were created, from the program to the reports, on the fake GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from cutrace.analysis.flame import flame
from cutrace.slicing import Conditions, cut
from support.fakedriver import FakeDriver

PROGRAM = """
import nvtx, fakegpu
fakegpu.launch("_Z7warm_upv")
fakegpu.begin_capture()
fakegpu.launch("_Z4barev")
bare = fakegpu.instantiate(fakegpu.end_capture())
fakegpu.begin_capture()
with nvtx.annotate("model"):
    with nvtx.annotate("layer 0"):
        fakegpu.launch("_Z1av")
        with nvtx.annotate("attention", domain="torch"):
            fakegpu.launch("_Z1bv")
    fakegpu.launch("_Z1cv")
graph = fakegpu.instantiate(fakegpu.end_capture())
for _ in range(3):
    fakegpu.replay(graph)
fakegpu.replay(bare)
fakegpu.synchronize()
"""


@pytest.fixture
def recorded(fake_driver: FakeDriver, tmp_path: Path) -> Path:
    command = [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=tmp_path, env=fake_driver.environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "run.bin"


def test_replayed_kernels_have_the_ranges_of_their_capture(recorded: Path) -> None:
    with cutrace.load(recorded) as trace:
        kernels = sorted(trace.arrow("kernels").to_pylist(), key=lambda kernel: kernel["start"])
        root = flame(trace)
        (table,) = cutrace.stats(trace, ["graph_range_sum"])
    assert [(k["name"], k["created_in"]) for k in kernels] == [("warm_up()", None)] + [
        ("a()", "model/layer 0"), ("b()", "model/layer 0/torch:attention"), ("c()", "model"),
    ] * 3 + [("bare()", "(no range)")]  # fmt: skip
    columns = [column.name for column in table.columns]
    at = [columns.index(name) for name in ("created in", "count", "nodes", "replays")]
    assert sorted(tuple(row[i] for i in at) for row in table.rows) == [
        ("(no range)", 1, 1, 1), ("model", 3, 1, 3), ("model/layer 0", 3, 1, 3),
        ("model/layer 0/torch:attention", 3, 1, 3),
    ]  # fmt: skip
    paths = {tuple(f.name for f in frames) for frames in root.walk() if frames[-1].kind == "kernel"}
    assert ("model", "layer 0", "torch:attention", "b") in paths


def test_a_slice_by_range_has_the_replayed_work_of_it(recorded: Path) -> None:
    part = recorded.with_name("part.bin")
    cut(recorded, part, Conditions(nvtx=["attention"]))
    with cutrace.load(part) as trace:
        assert set(trace.arrow("kernels").to_pydict()["created_in"]) == {"model/layer 0/torch:attention"}
        assert trace.count("kernels") == 3
        assert json.loads(trace.strings[int(trace.graph_nodes["ranges"][0])])[-1] == "torch:attention"
