"""The benchmark of killed updates, with one kill in each configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.fakedriver import ROOT, FakeDriver

pytestmark = pytest.mark.campaign

pytest.importorskip("xdist")


def test_a_killed_update_keeps_the_tests_that_finished(fake_driver: FakeDriver, tmp_path: Path) -> None:
    out = tmp_path / "recovery.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "update_recovery.py"), "--kills", "1", "--out", str(out)]
    command += ["--cache", str(fake_driver.directory.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in json.loads(out.read_text())["results"].values():
        assert part["finished"][0] > 0
        assert part["most_lost"] == 0
