"""A short run of benchmarks/crash_recovery.py. The result of a long run is in benchmarks/results."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.fakedriver import FakeDriver

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.campaign
def test_ten_killed_programs_lack_no_more_than_a_flush(fake_driver: FakeDriver) -> None:
    spec = importlib.util.spec_from_file_location("crash_recovery", BENCHMARKS / "crash_recovery.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules["crash_recovery"] = benchmark
    spec.loader.exec_module(benchmark)
    summary: dict[str, Any] = benchmark.run(10, 100, 2, fake_driver.directory.parent)
    assert summary["readable"] == 10
    assert summary["launched"] > 10_000
    assert summary["missing_ms"]["median"] < 200, "more than one flush"


def test_the_long_run_kept_its_promise() -> None:
    result = json.loads((BENCHMARKS / "results" / "crash-recovery.json").read_text())
    assert result["kills"] == result["readable"] == 200
    assert result["missing_ms"]["mean"] < 100
    assert result["missing_ms"]["max"] < 2 * result["flush_ms"]
