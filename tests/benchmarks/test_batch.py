"""The benchmark of batch reports, on a few ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.campaign

pytest.importorskip("distributed")
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "batch.py"


def test_planted_facts_are_found_and_the_memory_of_many_ranks_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    sizes = ["--ranks", "16", "--runs", "16", "--copies", "2", "--large", "0", "--rounds", "0", "--scale", "4"]
    # tests/extras/fleet/test_running.py tests the modes.
    sizes += ["--only", "job,runs,scale", "--mode", "sequential"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *sizes, "--out", str(out)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(out.read_text())
    for part in ("job", "runs"):
        assert result[part]["found"] == result[part]["planted"]
        assert result[part]["invented"] == []
    assert result["scale"]["ranks"] == 4
    assert min(result["scale"]["client_mib"], result["scale"]["worker_mib"]) > 0
