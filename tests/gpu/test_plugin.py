"""The pytest plugin on a GPU: the suite next to this file, run by pytest as its users do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cutrace.analysis.definitions import METRICS, MetricClass
from cutrace.golden import golden_files, read
from cutrace.reports.jsonfile import read_report
from cutrace.reports.model import Case, State

ROOT = Path(__file__).parents[2]
SUITE = "tests/gpu/suite"
WORK = {name for name, metric in METRICS.items() if metric.kind is MetricClass.WORK}


@dataclass(frozen=True)
class Run:
    """One run of the suite: its exit status, its output and what it measured by node id."""

    status: int
    output: str
    cases: dict[str, Case]

    @property
    def work(self) -> dict[str, Any]:
        """The work of each test, and of its regions."""
        return {
            name: [{m: v for m, v in values.items() if m in WORK} for values in (case.values, *case.regions.values())]
            for name, case in self.cases.items()
        }

    @property
    def failed(self) -> set[str]:
        return {name for name, case in self.cases.items() if case.outcome == "failed"}


class Suite:
    """Runs the suite with golden files and results in separate folders."""

    def __init__(self, folder: Path) -> None:
        self.golden = folder / "golden"
        self._folder = folder
        self._runs = 0

    def run(self, *options: str, **variables: str) -> Run:
        self._runs += 1
        results = self._folder / f"run{self._runs}"
        command = [
            *(sys.executable, "-m", "pytest", SUITE, "-q", "-p", "no:cacheprovider", "--cutrace", *options),
            f"--cutrace-dir={results}",
            f"--cutrace-report=json:{results / 'report.json'}",
            *("-o", f"cutrace_golden_dir={self.golden}"),
        ]
        # The run must not look like an xdist worker, even if this test runs in one.
        inherited = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_XDIST_")}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=inherited | variables)
        report = results / "report.json"
        assert report.exists(), done.stdout + done.stderr
        return Run(done.returncode, done.stdout, {case.nodeid: case for case in read_report(report).cases})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Suite, Run]:
    """The suite, and the run that wrote its golden files."""
    suite = Suite(tmp_path_factory.mktemp("suite"))
    return suite, suite.run("--cutrace-update")


def test_golden_files_are_written_for_every_test(recorded: tuple[Suite, Run]) -> None:
    suite, first = recorded
    assert first.status == 0, first.output
    assert {case.state for case in first.cases.values()} == {State.UPDATED}, first.output
    tests = [test for path in golden_files(suite.golden) for test in read(path).tests]
    assert len(tests) == len(first.cases) >= 15


@pytest.mark.parametrize("how", ["again", "backwards", "together"])
def test_work_is_the_same_in_every_order_and_in_parallel(recorded: tuple[Suite, Run], how: str) -> None:
    suite, first = recorded
    if how == "together":
        pytest.importorskip("xdist")
    options = ["-n", "4"] if how == "together" else []
    run = suite.run(*options, **({"SUITE_REVERSED": "1"} if how == "backwards" else {}))
    assert run.status == 0, run.output
    assert {case.state for case in run.cases.values()} == {State.GATED}, run.output
    assert run.work == first.work


ADDED = {
    "kernel": ("test_two_streams", "added_kernel"),
    "copy": ("test_saxpy", "d2d"),
    "synchronisation": ("test_elementwise", "cuStreamSynchronize"),
}


@pytest.mark.parametrize("what", ADDED)
def test_what_is_added_fails_the_test_it_is_in_and_is_named(recorded: tuple[Suite, Run], what: str) -> None:
    suite, _ = recorded
    where, name = ADDED[what]
    run = suite.run(SUITE_ADD=f"{what}:{where}")
    assert run.status == 1, run.output
    assert [one.rpartition("::")[2] for one in run.failed] == [where], run.output
    assert name in run.output
