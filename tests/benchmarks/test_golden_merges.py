"""The benchmark of merged golden files, in a few trials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.campaign

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "golden_merges.py"


def test_golden_files_of_two_branches_merge(tmp_path: Path) -> None:
    out = tmp_path / "merges.json"
    command = [sys.executable, str(PROGRAM), "--trials", "5", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["trials"] == 5
    assert all(result["edits"].values())
    assert result["golden_files_in_conflict"] == result["golden_files_unlike_an_update"] == []
