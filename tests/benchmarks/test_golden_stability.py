"""The benchmark of golden files' stability, on a small suite for the fake GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.fakedriver import ROOT, FakeDriver

pytestmark = pytest.mark.campaign

PROGRAM = ROOT / "benchmarks" / "golden_stability.py"
STEADY = """
import os
import unittest

import fakegpu
import pytest

@pytest.mark.parametrize("size", range(20))
def test_kernels(size):
    for _ in range(size % 3 + 1):
        fakegpu.launch("scale")
    fakegpu.copy("DtoH", 64 * size)
    fakegpu.synchronize("cudaStreamSynchronize")

class TestCase(unittest.TestCase):
    def setUp(self):
        fakegpu.launch("prepare")

    def test_case(self):
        fakegpu.launch("scale")

def test_subtests(subtests):
    with subtests.test("a"):
        fakegpu.launch("scale")

def test_other_work_each_time():
    for _ in range(os.urandom(1)[0] + 1):
        fakegpu.launch("scale")

def test_fails_by_itself():
    fakegpu.launch("scale")
    assert False

def test_without_gpu():
    pass
"""
#: A test with work that depends on the number of workers.
SHAKY = """
import os

import fakegpu

def test_shaky():
    for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))):
        fakegpu.launch("scale")

def test_steady():
    fakegpu.launch("scale")
"""


class Bench:
    """Runs the benchmark on the suite in ``folder``."""

    def __init__(self, folder: Path, driver: FakeDriver, source: str) -> None:
        pytest.importorskip("xdist")
        self.folder = folder
        self.tests = folder / "suite"
        self.tests.mkdir()
        (self.tests / "pytest.ini").write_text("[pytest]\n")
        (self.tests / "test_suite.py").write_text(source)
        self._cache = driver.directory.parent

    def run(self, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        out = self.folder / "result.json"
        out.unlink(missing_ok=True)
        command = [sys.executable, str(PROGRAM), "--tests", str(self.tests), "--out", str(out)]
        command += ["--fake", str(self._cache), "--workers", "1", "2", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert "Traceback" not in done.stderr, done.stderr
        return done, json.loads(out.read_text()) if out.exists() else {}


@pytest.fixture(scope="module")
def steady(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, str, dict[str, Any]]:
    """A run of all stages: the benchmark, its output, and its result."""
    bench = Bench(tmp_path_factory.mktemp("stability"), fake_driver, STEADY)
    done, result = bench.run("--golden", str(bench.folder / "golden"), "--draw", "6")
    assert result["finished"], done.stderr
    assert done.returncode == 0, done.stdout
    return bench, done.stdout, result


def test_nothing_changed_and_nothing_fails(steady: tuple[Bench, str, dict[str, Any]]) -> None:
    _, output, result = steady
    assert list(result["plain"]["failed"]) == ["test_suite.py::test_fails_by_itself"]
    assert len(result["checks"]) == 3
    for check in result["checks"]:
        assert (check["tests"], check["with_gpu_work"], check["gated"]) == (25, 24, 22), check
        assert (check["false"], check["failed"], check["failed_by_themselves"]) == (0, 1, 1)
        assert check["failed_under_cutrace_alone"] == check["not_held"] == []
        assert (check["unstable"], check["unconfirmed"], check["loose"]) == (1, 0, 1)
        assert check["unverified"] == 1, "unstable values alone gate nothing"
    assert all(target["met"] for target in result["targets"]), result["targets"]
    assert "| check, 2 workers |" in output


def test_a_second_update_confirms_what_cannot_be_run_twice(steady: tuple[Bench, str, dict[str, Any]]) -> None:
    _, _, result = steady
    assert [update["written_unconfirmed"] for update in result["updates"]] == [1, 0]
    assert result["golden"]["files"] == 1


@pytest.mark.parametrize("kind", ["kernel", "copy", "synchronisation", "allocation", "kernel taken away"])
def test_every_change_is_found_and_named(steady: tuple[Bench, str, dict[str, Any]], kind: str) -> None:
    _, output, result = steady
    (row,) = [row for row in result["sensitivity"] if row["kind"] == kind]
    assert (row["drawn"], row["gated"], row["found"], row["named"]) == (6, 6, 6, 6), row
    assert f"| {kind} | 6 |" in output
    # One of the six is test_subtests, which runs once.
    lines = {"right": 5, "missing": 0, "wrong": 0, "once": 1}
    if kind == "kernel taken away":
        lines = dict.fromkeys(lines, 0)
    assert row["lines"] == lines


def test_golden_files_of_another_machine_are_checked_alone(steady: tuple[Bench, str, dict[str, Any]]) -> None:
    bench, _, _ = steady
    golden = bench.folder / "golden"
    before = {path: path.read_bytes() for path in golden.rglob("*.toml")}
    done, result = bench.run("--check-only", "--golden", str(golden), "--workers", "1", "1")
    assert done.returncode == 0, done.stdout
    assert [check["false"] for check in result["checks"]] == [0, 0, 0]
    assert "plain" not in result
    assert {path: path.read_bytes() for path in golden.rglob("*.toml")} == before


def test_a_false_failure_misses_the_target_and_is_listed(fake_driver: FakeDriver, tmp_path: Path) -> None:
    bench = Bench(tmp_path, fake_driver, SHAKY)
    done, result = bench.run("--stages", "update,check")
    assert done.returncode == 1
    together = result["checks"][1]
    assert (together["gated"], together["false"]) == (2, 1)
    (failure,) = together["false_failures"]
    assert failure["test"] == "test_suite.py::test_shaky"
    assert failure["metric"] == "kernel_launches"
    assert "scale" in failure["detail"]
    assert "* test_suite.py::test_shaky (check, 2 workers): kernel_launches" in done.stdout
    assert "MISSED" in done.stdout


def test_a_limit_of_time_leaves_what_was_measured(fake_driver: FakeDriver, tmp_path: Path) -> None:
    bench = Bench(tmp_path, fake_driver, SHAKY + "\ndef test_hangs():\n    import time; time.sleep(600)\n")
    done, result = bench.run("--limit-seconds", "2")
    assert done.returncode == 1
    assert not result["finished"]
    assert "after 2 s" in result["stopped"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--stages", "check,chekc"), "unknown stage chekc"),
        (("--stages", "check"), "--golden has to name a folder with golden files"),
        (("--files", "nothing_*.py"), "has none of the files"),
    ],
)
def test_wrong_arguments_are_said(
    fake_driver: FakeDriver, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    done, result = Bench(tmp_path, fake_driver, SHAKY).run(*options)
    assert done.returncode == 2
    assert words in done.stderr
    assert result == {}
