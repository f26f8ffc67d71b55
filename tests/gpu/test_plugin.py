"""The pytest plugin on a GPU. pytest runs the suite in the folder ``suite``, as users run theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cutrace.analysis.definitions import METRICS, MetricClass
from cutrace.golden import Codes, golden_files, read
from cutrace.reports.jsonfile import read_report
from cutrace.reports.model import Case, State

ROOT = Path(__file__).parents[2]
SUITE = "tests/gpu/suite"
WORK = {name for name, metric in METRICS.items() if metric.kind is MetricClass.WORK}


@dataclass(frozen=True)
class Run:
    """One run of the suite: its exit status, its output, and its measurements by node id."""

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
    """Runs the suite, or the ``tests`` in another folder ``root``. Golden files and results are in ``folder``."""

    def __init__(self, folder: Path, root: Path = ROOT, tests: str = SUITE) -> None:
        self.golden = folder / "golden"
        self._folder = folder
        self._root = root
        self._tests = tests
        self._runs = 0

    def run(self, *options: str, **variables: str) -> Run:
        self._runs += 1
        results = self._folder / f"run{self._runs}"
        command = [
            *(sys.executable, "-m", "pytest", self._tests, "-q", "-p", "no:cacheprovider", "--cutrace", *options),
            f"--cutrace-dir={results}",
            f"--cutrace-report=json:{results / 'report.json'}",
            *("-o", f"cutrace_golden_dir={self.golden}"),
        ]
        # The run must not look like an xdist worker, even if this test runs in one.
        inherited = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_XDIST_")}
        done = subprocess.run(
            command, cwd=self._root, capture_output=True, text=True, timeout=300, env=inherited | variables
        )
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


#: Tests with one kernel, by the requirement of the test. The kernel's code depends on ``$STEPS``, but its name does
#: not.
CODED = {
    "cuda.core": """
        import os
        import pytest
        from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

        SOURCE = '''
        extern "C" __global__ void own_kernel(float* x) {
          __shared__ float part[32 * STEPS];
          for (int step = 0; step < STEPS; ++step) part[32 * step + threadIdx.x] = x[threadIdx.x] + step;
          __syncthreads();
          float sum = 0;
          for (int step = 0; step < STEPS; ++step) sum += part[32 * step + 31 - threadIdx.x];
          x[threadIdx.x] = sum;
        }
        '''

        @pytest.fixture(scope="module")
        def device():
            device = Device()
            device.set_current()
            return device

        @pytest.fixture(scope="module")
        def kernel(device):
            options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
            source = SOURCE.replace("STEPS", os.environ["STEPS"])
            return Program(source, code_type="c++", options=options).compile("cubin").get_kernel("own_kernel")

        def test_coded(device, kernel):
            stream = device.create_stream()
            x = device.allocate(4 * 32, stream=stream)
            launch(stream, LaunchConfig(grid=1, block=32), kernel, int(x.handle))
            stream.sync()
            x.close(stream)
    """,
    "triton": """
        import os
        import pytest
        import torch, triton
        import triton.language as tl

        @triton.jit
        def own_kernel(x, BLOCK: tl.constexpr):
            at = tl.arange(0, BLOCK)
            tl.store(x + at, tl.load(x + at) * 2)

        @pytest.fixture(scope="module")
        def x():
            return torch.empty(1024, device="cuda")

        def test_coded(x):
            own_kernel[(1,)](x, BLOCK=1024, num_warps=int(os.environ["STEPS"]))
            torch.cuda.synchronize()
    """,
}


@pytest.mark.parametrize("source", CODED)
def test_other_code_of_a_kernel_is_told_and_fails_where_it_is_gated(
    tmp_path: Path, needs: Callable[..., None], source: str
) -> None:
    needs(source)
    (tmp_path / "test_a.py").write_text(textwrap.dedent(CODED[source]))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    suite = Suite(tmp_path, tmp_path, "test_a.py")
    gate = "--cutrace-gate=work,counter,code"
    test = "test_a.py::test_coded"

    written = suite.run("--cutrace-update=code", STEPS="1")
    assert written.status == 0, written.output
    (entry,) = read(suite.golden / "test_a.toml").tests["test_coded"].values()
    codes = entry.values[""]["code"]
    assert isinstance(codes, Codes), written.output
    assert set(codes.by_kernel) == {"own_kernel"}
    (code,) = codes.by_kernel["own_kernel"]
    assert " registers=" in code
    assert " bytes=" in code

    same = suite.run("--cutrace=require", gate, STEPS="1")
    assert same.status == 0, same.output
    assert same.cases[test].code == "same"
    assert same.cases[test].codes == codes.by_kernel

    told = suite.run("--cutrace=require", STEPS="4")
    assert told.status == 0, told.output
    assert told.cases[test].code == "other"
    assert "test_coded: own_kernel: other code" in told.output

    failed = suite.run("--cutrace=require", gate, STEPS="4")
    assert failed.failed == {test}, failed.output
    assert "cutrace: own_kernel: other code" in failed.output
    assert "kernel_launches" not in failed.output
    if source == "cuda.core":
        assert "static shared 128 -> 512" in failed.output

    updated = suite.run("--cutrace-update", STEPS="4")
    assert updated.status == 0, updated.output
    assert suite.run("--cutrace=require", gate, STEPS="4").status == 0
