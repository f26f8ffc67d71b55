"""The comparison of benchmarks/step_sum.py, on a synthetic capture of steps that copy and compute."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from captures import Capture

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEPS = 20


@pytest.fixture(scope="module")
def step_sum() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("step_sum", BENCHMARKS / "step_sum.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(BENCHMARKS))
    return module


@pytest.fixture
def compared(step_sum, tmp_path) -> Any:
    """Compares steps of 1 ms, which copy for 200 us, with the times that a program measured."""
    with Capture(tmp_path / "a.bin", pid=7) as c:
        c.device()
        kernel = c.launch("_Z4axpyPf")
        for number in range(STEPS):
            now = 1_010_000 * number
            c.push_pop(f"step {number}", now, now + 1_000_000)
            c.memcpy(now + 100_000, now + 300_000, 1 << 20)
            c.kernel(kernel, now + 400_000, now + 900_000)

    def compare(variant: str, wall: int, **more: Any) -> tuple[dict[str, Any], list[str]]:
        told = {"pid": 7, "steps": [wall] * STEPS, "added": [], "loop": STEPS * wall, "joules": None} | more
        run = step_sum.compare(tmp_path / "a.bin", told, variant)
        plain = {"parts_ns": dict.fromkeys(step_sum.PARTS, 0)}
        return run, step_sum.faults(run, plain)

    return compare


def test_a_loop_that_measures_the_same_has_no_faults(compared):
    run, faults = compared("plain", 1_002_000)
    assert faults == []
    assert (run["steps"], run["exact_sums"], run["wall_ns"]) == (STEPS, STEPS, STEPS * 1_000_000)
    assert run["parts_ns"]["copies"] == STEPS * 200_000
    assert run["median_error"] == pytest.approx(0.002, rel=0.01)
    assert compared("async", 1_002_000)[1] == []
    assert compared("copy", 1_002_000, added=[199_000] * STEPS)[1] == []


def test_another_time_is_a_fault(compared):
    assert len(compared("plain", 1_020_000)[1]) == 2  # one for all steps, and one for a single step
    assert len(compared("async", 1_020_000)[1]) == 1
    (fault,) = compared("plain", 1_000_000, steps=[1_000_000] * (STEPS + 1))[1][:1]
    assert fault == f"plain: {STEPS} of {STEPS + 1} steps are in the report"


def test_what_was_added_has_to_be_in_its_part(compared):
    assert compared("copy", 1_000_000, added=[300_000] * STEPS)[1] == [
        "copy: copies is 4000000 ns, although 6000000 ns were added"
    ]
    assert len(compared("copy", 1_000_000, added=[50_000] * STEPS)[1]) == 1  # 45 us of 200 us are not explained
