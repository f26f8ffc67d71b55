"""The soak benchmark: a short run of each part on the fake GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cutrace.runbin import TABLES, Writer
from support.fakedriver import ROOT, FakeDriver

pytestmark = pytest.mark.campaign

SOAK = ROOT / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def result(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    out = tmp_path_factory.mktemp("soak") / "soak.json"
    command = [sys.executable, str(SOAK), "--quick", str(fake_driver.directory.parent), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert out.exists(), done.stderr
    said = json.loads(out.read_text())
    assert said["failures"] == {}
    assert "| launches |" in done.stdout
    return {part["part"]: part for part in said["parts"]}


@pytest.mark.parametrize("part", ["launches", "graph", "nodes", "cycles"])
def test_every_launch_is_recorded_or_counted_as_lost(result: dict[str, dict[str, int]], part: str) -> None:
    found = result[part]
    assert found["launched"] == found["recorded"] + found["lost"]
    assert found["launched"] > 0


@pytest.mark.parametrize("part", ["launches", "graph", "nodes"])
def test_the_wall_clock_is_explained_by_the_snapshots(result: dict[str, dict[str, int]], part: str) -> None:
    assert result[part]["unexplained_ns"] < 125_000


def test_losses_and_memory_that_grows_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOAK.parent))
    from soak import Outcome

    good = Outcome("launches", 10, 10, 1.0, 10, 10, 0, 1 << 20, 2 << 20, 2 << 20, 5, 0)
    assert good.faults == []
    times = {"without_times": 3, "wrong_times": 2}
    bad = Outcome("launches", 10, 9, 1.0, 10, 8, 1, 1 << 20, 99 << 20, 99 << 20, 5, 10**9, **times)
    assert len(bad.faults) == 7


def test_kernels_and_losses_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(SOAK.parent / "workloads"))
    from soak_program import contents

    path = tmp_path / "run.bin"
    writer = Writer(path, pid=1, instance=1, started=0)
    writer.rows("kernels", np.zeros(7, TABLES["kernels"].dtype))
    losses = np.zeros(4, TABLES["losses"].dtype)
    losses["reason"], losses["count"] = (1, 9, 2, 3), (5, 1, 6, 4)
    writer.rows("losses", losses)
    writer.close()
    assert contents(path) == (7, 11, 4)
