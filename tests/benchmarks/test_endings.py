"""The benchmark of endings, with some of them on the fake GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.fakedriver import ROOT, FakeDriver

pytestmark = pytest.mark.campaign

ENDINGS = ROOT / "benchmarks" / "endings.py"


def test_programs_balance(fake_driver: FakeDriver, tmp_path: Path) -> None:
    out = tmp_path / "endings.json"
    command = [sys.executable, str(ENDINGS), "--fake", str(fake_driver.directory.parent), "--out", str(out)]
    command += ["--only", "normal,SIGKILL,64,spawn"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(row["ending"], row["closed"]) for row in rows] == [
        ("normal", True), ("SIGKILL", False), ("64 threads", True), ("spawn", True), ("spawn", True),
    ]  # fmt: skip
    assert [row["launches"]["recorded"] for row in rows if row["closed"]] == [1000, 64 * 200, 1000, 1000]
    killed = rows[1]["launches"]
    assert 0 < killed["recorded"] <= killed["begun"]


def test_what_is_neither_recorded_nor_lost_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ENDINGS.parent))
    from endings import Balance, Row

    exact = Balance(10, 10, 8, 2, 0)
    late = Balance(11, 10, 8, 0, 120)
    row = Row("SIGKILL", "main", 1, False, 350, 0, exact, late, [], [])
    assert list(row.faults) == []
    assert list(replace(row, allowed_ms=100).faults) == ["2 ranges are neither recorded nor counted as lost"]
    assert list(replace(row, closed=True, allowed_ms=0).faults) == ["2 ranges are neither recorded nor counted as lost"]
    assert list(replace(row, closed=None).faults) == ["2 ranges are neither recorded nor counted as lost"]
    assert list(replace(row, ending="normal").faults) == [
        "the process ended with its exit handlers, and its capture was not closed"
    ]
    assert list(replace(row, launches=Balance(10, 10, 12, 0, 0)).faults) == ["2 launches more than there were"]
