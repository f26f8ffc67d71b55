"""Pytest under `cutrace record --last`: a failing test leaves a capture of the time before the failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from support.fakedriver import FakeDriver
from support.suites import PRELUDE

TESTS = """
def test_before():
    fakegpu.launch("before")
    fakegpu.synchronize()

@pytest.mark.parametrize("odd", ["a/b"])
def test_fails(odd):
    fakegpu.launch("inside")
    fakegpu.synchronize()
    assert False, "for a reason"

def test_after():
    fakegpu.launch("after")
    fakegpu.synchronize()
"""


def run(driver: FakeDriver, folder: Path, *options: str, tests: str = TESTS) -> str:
    (folder / "test_it.py").write_text(PRELUDE + tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", *options, "--"]
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_cutrace.plugin"]
    variables = {**driver.environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, *pytest_command], cwd=folder, env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def kernels(capture: Path) -> set[str]:
    with cutrace.load(capture) as trace:
        return set(trace.strings.take(trace.launches[trace.kernels["launch"]]["name"]).tolist())


def test_a_failing_test_leaves_a_capture_that_its_failure_names(fake_driver: FakeDriver, tmp_path: Path) -> None:
    said = run(fake_driver, tmp_path, "--last", "1m")
    (capture,) = (tmp_path / "run-failed").rglob("*.bin")
    assert f"the newest records: {capture.relative_to(tmp_path)}" in said
    assert "test_fails" in str(capture)
    assert kernels(capture) == {"before", "inside"}
    assert kernels(tmp_path / "run.bin") == {"before", "inside", "after"}


def test_a_recording_that_keeps_everything_has_nothing_to_dump(fake_driver: FakeDriver, tmp_path: Path) -> None:
    said = run(fake_driver, tmp_path)
    assert "recorded last" not in said
    assert not (tmp_path / "run-failed").exists()


def test_a_failure_before_any_work_says_so(fake_driver: FakeDriver, tmp_path: Path) -> None:
    said = run(fake_driver, tmp_path, "--last", "1m", tests="def test_fails():\n    assert False\n")
    assert "the newest records could not be written: nothing to dump" in said


def test_a_place_that_cannot_be_written_is_said(fake_driver: FakeDriver, tmp_path: Path) -> None:
    (tmp_path / "run-failed").write_text("in the way")
    assert "the newest records could not be written" in run(fake_driver, tmp_path, "--last", "1m")


def test_without_a_recording_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cutrace.flight import recorder

    monkeypatch.delenv("CUTRACE_OPTIONS", raising=False)
    assert recorder() is None
    monkeypatch.setenv("CUTRACE_OPTIONS", "directory=/somewhere\nlast_ms=30000")
    assert recorder() is None
