"""The machine code of kernels in tests: recording, comparison and golden values."""

from __future__ import annotations

import re

import pytest

from captures import DATA
from cutrace.golden import Codes, read
from cutrace.reports.model import State
from support import cutrace as command
from support.suites import Outcome, Suite

#: The kernel ``scale`` has different code in the two cubins. ``elsewhere`` is in no module that CUPTI reports.
SUITE = """
    from pathlib import Path

    @pytest.fixture(scope="session", autouse=True)
    def module():
        for name in os.environ["CUBINS"].split():
            fakegpu.load_module(Path(name).read_bytes())

    def test_scale():
        fakegpu.launch("scale")
        fakegpu.synchronize()

    def test_more():
        fakegpu.launch("scale")
        fakegpu.launch("elsewhere")
"""
SCALE = """
    @pytest.mark.cutrace(gate="work,code")
    def test_scale():
        fakegpu.launch("scale")
"""
BEFORE = "44dc9ac2e148c399 registers=10 shared=128 bytes=512"
AFTER = "e7b8b13667d8ea81 registers=10 shared=128 bytes=384"
CHANGE = "scale: other code, code bytes 512 -> 384"
GATE = "--cutrace-gate=work,counter,code"


def run(suite: Suite, *options: str, cubins: str = "sm_100", **more: str) -> Outcome:
    files = [DATA / "cubins" / f"{name}.cubin" for name in cubins.split()]
    return suite.run(*options, CUBINS=" ".join(map(str, files)), **more)


def updated(suite: Suite, *options: str, cubins: str = "sm_100") -> None:
    done = run(suite, *options, cubins=cubins)
    assert done.status == 0, done.output


def codes(suite: Suite, test: str = "test_scale", on: str = "sm_90") -> dict[str, tuple[str, ...]] | None:
    found = read(suite.folder / "golden/test_a.toml").tests[test][on].values[""].get("code")
    return found.by_kernel if isinstance(found, Codes) else None


def test_without_a_word_nothing_is_recorded_and_written(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, "--cutrace-update")
    before = suite.golden()
    assert "code" not in before["test_a.toml"].partition("\n")[2]
    for options in (("--cutrace",), ("--cutrace-update",), ("--cutrace-update=all",)):
        done = run(suite, *options)
        assert {case.codes for case in done.cases.values()} == {None}
        assert done.case("test_scale").code == "unknown"
    assert suite.golden() == before


@pytest.mark.parametrize("options", [("--cutrace-update=code",), ("--cutrace-update", GATE)])
def test_code_is_written_on_request(suite: Suite, options: tuple[str, ...]) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, *options)
    assert suite.golden()["test_a.toml"].endswith(
        "[test_scale]\n"
        "kernels = { scale = 1 }\n"
        "syncs = { cudaDeviceSynchronize = 1 }\n"
        "[test_scale.on.sm_90]\n"
        f'code.scale = "{BEFORE}"\n'
        "\n"
        "# d8b3\n"
        "[test_more]\n"
        "kernels = { elsewhere = 1, scale = 1 }\n"
        "[test_more.on.sm_90]\n"
        f'code.scale = "{BEFORE}"\n'
    )
    before = suite.golden()
    updated(suite, "--cutrace-update")
    assert suite.golden() == before


def test_other_code_is_told_and_fails_nothing(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, "--cutrace-update=code")
    same = run(suite, "--cutrace=require")
    assert same.status == 0, same.output
    assert "other code" not in same.output
    assert {name: case.code for name, case in same.cases.items()} == {"test_scale": "same", "test_more": "unknown"}
    assert same.case("test_more").codes == {"elsewhere": ("unknown",), "scale": (BEFORE,)}
    assert same.case("test_more").notes == ("the machine code of elsewhere is not known, so it is not compared",)

    page = suite.folder / "summary.md"
    junit = suite.folder / "junit.xml"
    reports = (f"--cutrace-report=markdown:{page},html,junit", f"--junitxml={junit}")
    other = run(suite, "--cutrace=require", *reports, cubins="sm_80")
    assert other.status == 0, other.output
    assert {case.state for case in other.cases.values()} == {State.GATED}
    assert {case.code for case in other.cases.values()} == {"other"}
    assert f"other code 2 test_scale: {CHANGE} test_more: {CHANGE}" in other.words
    assert "Other machine code: 2 tests" in page.read_text()
    assert "code bytes 512 -&" in page.read_text()
    assert "code bytes 512" in (suite.folder / ".cutrace/report.html").read_text()
    assert 'name="cutrace.code" value="other"' in junit.read_text()
    assert 'name="cutrace.other.code"' in junit.read_text()
    assert "other code: 2 test_scale: scale: other code" in run(suite, "--cutrace", "-q", cubins="sm_80").words


def test_other_code_fails_where_the_gate_names_it(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, "--cutrace-update=code")
    done = run(suite, "--cutrace", GATE, cubins="sm_80")
    assert done.failed == {"test_scale", "test_more"}
    assert f"cutrace: {CHANGE}\n" in done.output
    assert re.search(rf"code +1 kernel +1 kernel +exact +{CHANGE}", done.output)
    assert f"2 tests failed: {CHANGE}" in done.words
    accepted = command("golden", "accept", ".cutrace/proposed", cwd=suite.folder)
    assert accepted.returncode == 0, accepted.stderr
    assert codes(suite) == {"scale": (AFTER,)}


def test_an_update_replaces_code_where_there_is_some(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, "--cutrace-update=code")
    suite.write("test_a.py", SUITE + '\n    def test_new():\n        fakegpu.launch("scale")\n')
    done = run(suite, "--cutrace-update", cubins="sm_80")
    assert done.status == 0
    assert codes(suite) == {"scale": (AFTER,)}
    assert codes(suite, "test_new") is None
    assert "updated 3 tests in 1 file" in done.words


def test_code_belongs_to_its_gpu(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    suite.write("conftest.py", 'import fakegpu\nfakegpu.describe(capability=(int(os.environ["MAJOR"]), 0))\n'
                               .replace("import fakegpu", "import os, fakegpu"), prelude=False)  # fmt: skip
    own = ("-o", "cutrace_own_kernels=scale elsewhere")
    assert run(suite, "--cutrace-update=code", *own, MAJOR="9").status == 0
    other = run(suite, "--cutrace=require", GATE, *own, cubins="sm_80", MAJOR="8")
    assert other.status == 4
    assert {case.reason for case in other.cases.values()} == {"no golden for sm_80"}
    assert run(suite, "--cutrace-update", *own, cubins="sm_80", MAJOR="8").status == 0
    assert (codes(suite), codes(suite, on="sm_80")) == ({"scale": (BEFORE,)}, {"scale": (AFTER,)})


def test_code_that_is_not_certain_is_unverified_where_it_is_gated(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, "--cutrace-update=code")
    done = run(suite, "--cutrace=require", GATE, cubins="sm_80 sm_100")
    assert done.status == 4
    assert done.case("test_scale").codes == {"scale": ("ambiguous",)}
    assert done.case("test_scale").code == "unknown"
    assert {case.reason for case in done.cases.values()} == {"the machine code of a kernel is not known"}
    ignored = run(suite, "--cutrace=require", GATE, "-o", "cutrace_ignore=code:elsewhere")
    assert ignored.status == 0, ignored.output


def test_a_marker_needs_a_session_that_records_code(suite: Suite) -> None:
    suite.write("test_a.py", SUITE + SCALE.replace("test_scale", "test_marked"))
    updated(suite, "--cutrace-update")
    done = run(suite, "--cutrace")
    assert done.case("test_marked").state is State.UNVERIFIED
    assert "cutrace_gate = work,counter,code" in done.words
    assert done.case("test_scale").state is State.GATED
    updated(suite, "--cutrace-update=code")
    other = run(suite, "--cutrace", cubins="sm_80")
    assert other.failed == {"test_marked"}


def test_the_ini_gates_code_also_in_workers(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    suite.write("pytest.ini", "[pytest]\ncutrace_gate = work,counter,code\n", prelude=False)
    files = str(DATA / "cubins" / "sm_100.cubin")
    written = suite.run("--cutrace-update", "-n2", plugins=("xdist",), CUBINS=files)
    assert written.status == 0, written.output
    assert codes(suite) == codes(suite, "test_more") == {"scale": (BEFORE,)}
    other = str(DATA / "cubins" / "sm_80.cubin")
    done = suite.run("--cutrace", "-n2", plugins=("xdist",), CUBINS=other)
    assert done.failed == {"test_scale", "test_more"}


def test_a_wrong_code_is_an_error_with_file_and_line(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, "--cutrace-update=code")
    path = suite.folder / "golden/test_a.toml"
    path.write_text(path.read_text().replace(BEFORE, "9f3c", 1))
    done = run(suite, "--cutrace")
    assert done.status == 4
    assert re.search(r"golden/test_a.toml:12: the code of scale is a hash of 16 digits", done.words)


def test_captures_are_checked_too(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    updated(suite, "--cutrace-update=code")
    check = ("--test", "test_a.py::test_scale", "--gate", "work,code")
    artifact = ".cutrace/tests/test_a.py/test_scale/run.bin"
    run(suite, "--cutrace", "--cutrace-keep=all", cubins="sm_80")
    other = command("diff", "golden/test_a.toml", artifact, *check, cwd=suite.folder)
    assert other.returncode == 1
    assert CHANGE in other.stdout
    for file in (suite.folder / "golden").rglob("*.toml"):
        file.rename(suite.folder / "kept.toml")
    run(suite, "--cutrace", "--cutrace-keep=all")
    without = command("diff", "kept.toml", artifact, *check, cwd=suite.folder)
    assert without.returncode == 1
    assert "not verified: no machine code was recorded" in without.stdout
