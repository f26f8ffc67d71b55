"""Batch reports find the planted facts of simulated jobs, and no other facts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.campaign

pytest.importorskip("pyarrow")
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "planted_facts.py"
#: tests/extras/fleet has tests of the other scenarios.
SCENARIOS = ["nothing", "node", "network", "groups", "inferred", "restarted", "clocks", "formats"]


def test_each_fact_is_found_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    sizes = ["--seeds", "1", "--pairs", "1", "--only", ",".join(SCENARIOS)]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *sizes, "--out", str(out)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(out.read_text())
    assert list(result["scenarios"]) == SCENARIOS
    assert result["pairs"]["reported"] == {"same": 0, "slower": 1}
