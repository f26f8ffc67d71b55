"""Golden values apply in their environment, and in other environments if two GPUs agree."""

from __future__ import annotations

import re

import pytest

from cutrace.golden import accept, read
from cutrace.reports.model import State
from support.suites import Outcome, Suite

CONFTEST = """
capability = tuple(map(int, os.environ["SM"].split(".")))
fakegpu.describe("NVIDIA " + os.environ["SM"], capability)
"""
PROGRAM = """
from importlib.metadata import version

LIBRARY = f"sm{os.environ['SM']}_gemm_{version('fakeblas')}".replace(".", "_")

def test_own():
    fakegpu.launch("mylib_softmax")
    for _ in range(int(os.environ.get("MORE", 0))):
        fakegpu.launch("mylib_cast")

def test_library():
    fakegpu.launch("mylib_pad")
    fakegpu.launch(LIBRARY)
    fakegpu.copy("DtoH", 4)
"""


class Machines:
    """The suite on GPUs of several architectures, with a library in several versions."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self._version = ""
        suite.write("conftest.py", CONFTEST)
        suite.write("test_a.py", PROGRAM)
        self.install("12.1")

    def install(self, version: str) -> None:
        place = self.suite.folder / "fakeblas.dist-info"
        place.mkdir(exist_ok=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fakeblas\nVersion: {version}\n")

    def run(self, capability: str, *options: str, **variables: str) -> Outcome:
        return self.suite.run(*options, SM=capability, **variables)

    def states(self, capability: str, **variables: str) -> list[State]:
        done = self.run(capability, "--cutrace", **variables)
        assert done.status == 0, done.output
        return [done.case(name).state for name in ("test_own", "test_library")]

    def accept(self) -> None:
        accept(self.suite.folder / ".cutrace/proposed", self.suite.folder / "golden")

    def said(self, environment: str) -> dict[str, object]:
        module = read(self.suite.folder / "golden/test_a.toml")
        return {test: entry.get(environment) for test, entry in module.tests.items()}


@pytest.fixture
def machines(suite: Suite) -> Machines:
    return Machines(suite)


def test_three_architectures(machines: Machines) -> None:
    assert machines.run("9.0", "--cutrace-update").status == 0
    first = machines.said("sm_90")
    unknown = machines.run("8.0", "--cutrace")
    assert unknown.status == 0, unknown.output
    assert {case.state for case in unknown.cases.values()} == {State.UNVERIFIED}
    assert "2 unverified" in unknown.output
    assert "unverified   2  no golden for sm_80" in unknown.output
    assert machines.run("8.0", "--cutrace=require").status == 4
    assert machines.states("9.0") == [State.GATED] * 2, "nothing has changed where it was recorded"
    machines.run("8.0", "--cutrace")
    machines.accept()
    assert machines.states("8.0") == machines.states("9.0") == [State.GATED] * 2
    assert machines.said("sm_90") == first

    assert machines.states("10.0") == [State.GATED, State.UNVERIFIED], "what both have holds on a third one"
    third = machines.run("10.0", "--cutrace", MORE="1")
    assert third.failed == {"test_own"}
    assert "kernel_launches 1 -> 2 (+ mylib_cast" in third.output
    before = {name: machines.said(name) for name in ("sm_80", "sm_90")}
    assert machines.run("10.0", "--cutrace-update").status == 0
    assert {name: machines.said(name) for name in before} == before
    for capability in ("8.0", "9.0", "10.0"):
        assert machines.states(capability) == [State.GATED] * 2


def test_kernels_of_the_project_s_own_hold_everywhere(machines: Machines) -> None:
    machines.suite.write("pytest.ini", "[pytest]\ncutrace_own_kernels =\n    mylib_*\n")
    machines.run("9.0", "--cutrace-update")
    more = machines.run("8.0", "--cutrace")
    assert more.case("test_library").state is State.UNVERIFIED
    machines.suite.write("test_a.py", PROGRAM.replace('fakegpu.launch("mylib_pad")', "fakegpu.init()"))
    assert machines.run("8.0", "--cutrace").case("test_library").rows[0].golden is not None


def test_an_intended_change_of_own_kernels_holds_on_the_other_gpus(machines: Machines) -> None:
    machines.suite.write("pytest.ini", "[pytest]\ncutrace_own_kernels =\n    mylib_*\n")
    for capability in ("8.0", "9.0"):
        assert machines.run(capability, "--cutrace-update").status == 0
    assert machines.run("8.0", "--cutrace", MORE="2").failed == {"test_own"}
    assert machines.run("9.0", "--cutrace-update", MORE="2").status == 0
    assert machines.run("8.0", "--cutrace=require", MORE="2").status == 0
    assert machines.run("8.0", "--cutrace", MORE="1").case("test_own").better


def test_two_versions_of_a_library(machines: Machines) -> None:
    machines.suite.write("pytest.ini", "[pytest]\ncutrace_variant = blas{fakeblas:1}\n")
    assert machines.run("9.0", "--cutrace-update").status == 0
    first = machines.said("sm_90-blas12")
    assert all(first.values())
    machines.install("13.0")
    other = machines.run("9.0", "--cutrace")
    assert (other.status, {case.state for case in other.cases.values()}) == (0, {State.UNVERIFIED})
    assert "no golden for sm_90-blas13" in other.output
    machines.accept()
    assert machines.states("9.0") == [State.GATED] * 2
    machines.run("9.0", "--cutrace-update")
    machines.install("12.1")
    assert machines.states("9.0") == [State.GATED] * 2
    assert machines.said("sm_90-blas12") == first


def test_recording_again_changes_nothing_and_names_no_driver(machines: Machines) -> None:
    machines.run("9.0", "--cutrace-update")
    before = machines.suite.golden()
    assert "driver" not in str(before).lower()
    machines.run("9.0", "--cutrace-update=all")
    assert machines.suite.golden() == before


def test_the_variant_has_the_version_of_cuda(suite: Suite) -> None:
    suite.write("pytest.ini", "[pytest]\ncutrace_variant = cuda{cuda}\n")
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n")
    done = suite.run("--cutrace-update")
    assert done.status == 0, done.output
    version = re.search(r"CUDA ([0-9]+)\.", done.case("test_it").recorded_on)
    assert version is not None
    assert done.case("test_it").environment == f"sm_90-cuda{version[1]}"
    assert f'seen = ["sm_90-cuda{version[1]}"]' in suite.golden()["test_a.toml"]
