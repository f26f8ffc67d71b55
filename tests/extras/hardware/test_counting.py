"""Counters of regions of a program on the fake GPU. A kernel there executes 1,000 instructions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from support.fakedriver import FakeDriver


@pytest.fixture
def program(fake_driver: FakeDriver, tmp_path: Path):
    def run(code: str, **variables: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", f"import cutrace, fakegpu\n{code}"],
            cwd=tmp_path, env=fake_driver.environment() | {"XDG_RUNTIME_DIR": str(tmp_path)} | variables, text=True,
            capture_output=True, timeout=60,
        )  # fmt: skip
        return done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]

    return run


REGION = """
fakegpu.init()
for kernels in (1, 3):
    with cutrace.region("step", counters=["instructions", "sm__inst_executed.avg"]) as counted:
        assert counted == {}
        for _ in range(kernels):
            fakegpu.launch()
    print(counted)
"""
COUNTED = "{'instructions': 1000, 'sm__inst_executed.avg': 10}\n{'instructions': 3000, 'sm__inst_executed.avg': 30}"


def test_a_region_has_the_values_of_its_counters(program):
    assert program(REGION) == (COUNTED, "")


def recorded(**options: object) -> str:
    words = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"with cutrace.record('run.bin'{words}):{REGION}".replace("\n", "\n    ")


@pytest.mark.parametrize("options", [{"nvtx": False}, {"kinds": "nvtx"}])
def test_a_recording_without_marks_or_gpu_work_changes_no_value(program, options):
    assert program(recorded(**options)) == (COUNTED, "")


def test_a_recording_has_them_as_marks(program, tmp_path):
    assert program(recorded()) == (COUNTED, "")
    with cutrace.load(tmp_path / "run.bin") as trace:
        marks = [trace.strings[int(text)] for text in trace.nvtx_marks["name"]]
        assert [text for text in marks if text.startswith("step")] == [
            "step: instructions 1,000, sm__inst_executed.avg 10", "step: instructions 3,000, sm__inst_executed.avg 30",
        ]  # fmt: skip
        assert len(trace.kernels) == 4
        calls = trace.strings.take(trace.functions["name"][trace.api_calls["function"]])
        assert not any("Synchronize" in call for call in calls)


@pytest.mark.parametrize(
    ("code", "failure", "sentence"),
    [
        ("with cutrace.region('a', ['instructions']): pass", "", "CUDA is not in use yet"),
        ("fakegpu.init()\nwith cutrace.region('a', ['instruction']): pass", "", "GH100 has no metric instruction"),
        ("fakegpu.init()\nwith cutrace.region('a', ['l2_bytes']): pass", "RangeProfilerStart:35", "ERR_NVGPUCTRPERM"),
        (
            "fakegpu.init()\nwith cutrace.region('a', 'l2_bytes'), cutrace.region('b', 'l2_bytes'): pass",
            "",
            "the GPU counts one range at a time",
        ),
        (
            "names = 'sm__throughput.avg.pct_of_peak_sustained_elapsed l2_bytes'.split()\n"
            "fakegpu.init()\nwith cutrace.region('a', names): pass",
            "",
            "need 2 passes, but a range runs once",
        ),
    ],
)
def test_what_is_in_the_way_is_an_error(program, code, failure, sentence):
    complaint = program(code, FAKE_CUPTI_FAILURES=failure)[1]
    assert sentence in complaint
    assert complaint.startswith("cutrace.")


def test_a_region_that_fails_lets_the_next_one_count(program):
    code = """
fakegpu.init()
try:
    with cutrace.region("a", "instructions") as counted:
        raise KeyError
except KeyError:
    assert counted == {}
"""
    assert program(code + REGION) == (COUNTED, "")
