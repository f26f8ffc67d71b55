"""Golden files are written only on request, change as little as possible, and contain only tests that pass."""

from __future__ import annotations

from difflib import unified_diff

import pytest

from cutrace.reports.model import State
from support import cutrace
from support.suites import Suite

PROGRAM = """
def test_it():
    address = fakegpu.malloc(int(os.environ.get("MEMORY", 1 << 24)))
    for _ in range(int(os.environ.get("LAUNCHES", 2))):
        fakegpu.launch("k", duration_ns=5000)
    fakegpu.free(address)
"""


def test_written_first_then_left_alone(suite: Suite) -> None:
    suite.write("test_a.py", PROGRAM)
    first = suite.run("--cutrace-update")
    assert first.case("test_it").state is State.UPDATED
    assert "1 test in 1 file: review before you commit" in first.output
    written = suite.golden()
    assert list(written) == ["test_a.toml"]
    for options in (["--cutrace"], ["--cutrace-update"], ["--cutrace", "--cutrace-update=missing"]):
        again = suite.run(*options)
        assert again.case("test_it").state is State.GATED
        assert suite.golden() == written
    (suite.folder / "golden" / "test_a.toml").unlink()
    assert suite.run("--cutrace-update=missing").case("test_it").state is State.UPDATED
    assert suite.golden() == written


def test_without_the_option_only_a_candidate_is_left(suite: Suite) -> None:
    suite.write("test_a.py", "@pytest.mark.cutrace" + PROGRAM)
    missing = suite.run("--cutrace", CI="1")
    assert missing.status == 0
    assert missing.case("test_it").state is State.MISSING
    told = "candidates .cutrace/proposed accept them cutrace golden accept .cutrace/proposed"
    assert told in " ".join(missing.output.split())
    assert suite.golden() == {}
    assert list(suite.golden(".cutrace/proposed")) == ["test_a.toml"]
    assert suite.run("--cutrace=require", CI="1").status == 4
    suite.run("--cutrace-update")
    golden = suite.golden()
    assert suite.run("--cutrace").status == 0
    drifted = suite.run("--cutrace", CI="1", LAUNCHES="3")
    assert drifted.status == 1
    assert suite.golden() == golden
    assert "kernels = { k = 3 }" in suite.golden(".cutrace/proposed")["test_a.toml"]


def test_candidates_belong_to_a_session(suite: Suite) -> None:
    suite.write("test_a.py", PROGRAM)
    suite.run("--cutrace-update")
    suite.run("--cutrace", LAUNCHES="3")
    assert suite.golden(".cutrace/proposed")
    suite.run("--cutrace", "--collect-only")
    assert suite.golden(".cutrace/proposed"), "nothing was run"
    suite.run("--cutrace-update", LAUNCHES="4")
    assert suite.golden(".cutrace/proposed") == {}
    suite.run("--cutrace", LAUNCHES="3")
    suite.run("--cutrace", "-n", "1", LAUNCHES="4", plugins=("xdist",))
    assert suite.golden(".cutrace/proposed") == {}


def test_modes(suite: Suite) -> None:
    suite.write("pytest.ini", "[pytest]\ncutrace_gate = work,counter,peak_memory\n")
    suite.write("test_a.py", PROGRAM)
    suite.run("--cutrace-update=missing")
    before = suite.golden()["test_a.toml"]
    changed = {"LAUNCHES": "3", "MEMORY": str(1 << 26)}
    suite.run("--cutrace-update=missing", **changed)
    assert suite.golden()["test_a.toml"] == before
    done = suite.run("--cutrace-update", **changed)
    after = suite.golden()["test_a.toml"]
    assert "kernels = { k = 3 }" in after
    assert str(1 << 24) in after, "worse memory is replaced by =all alone"
    assert str(1 << 26) not in after
    assert any("--cutrace-update=all" in note for note in done.case("test_it").notes)
    suite.run("--cutrace-update=all", **changed)
    assert str(1 << 26) in suite.golden()["test_a.toml"]


def test_an_update_of_one_metric(suite: Suite) -> None:
    suite.write("test_a.py", PROGRAM + "    fakegpu.memset(64 * int(os.environ.get('LAUNCHES', 2)))\n")
    suite.run("--cutrace-update")
    done = suite.run("--cutrace-update=kernels", LAUNCHES="3")
    assert done.case("test_it").state is State.UPDATED
    assert "kernels = { k = 3 }" in suite.golden()["test_a.toml"]
    assert "memset_bytes = 128" in suite.golden()["test_a.toml"]
    rows = {row.metric for row in suite.run("--cutrace", LAUNCHES="3").case("test_it").rows if row.failed}
    assert rows == {"memset_bytes"}


@pytest.mark.parametrize("distributed", [(), ("-n", "2")])
def test_an_update_is_an_update_in_every_report(suite: Suite, distributed: tuple[str, ...]) -> None:
    suite.write("test_a.py", PROGRAM)
    suite.run("--cutrace-update")
    reports = "--cutrace-report=markdown,html"
    done = suite.run("--cutrace-update", reports, *distributed, LAUNCHES="3", plugins=("xdist",) if distributed else ())
    case = done.case("test_it")
    assert (done.status, case.state, case.drifted) == (0, State.UPDATED, False)
    assert "failed" not in done.output
    assert "failed" not in (suite.folder / ".cutrace/report.md").read_text()


def test_what_runs_do_not_agree_on_is_unstable(suite: Suite) -> None:
    suite.write("test_a.py", """
        count = 0

        def test_it():
            global count
            count += 1
            fakegpu.launch("k")
            for _ in range(count):
                fakegpu.memset(64)
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.status == 0
    (text,) = suite.golden().values()
    assert "unstable.memset_count = [2, 3]" in text
    assert "unstable.memset_bytes = [128, 192]" in text
    assert "kernels = { k = 1 }" in text
    assert suite.run("--cutrace").status == 0


def test_nothing_is_recorded_of_tests_that_did_not_go_well(suite: Suite) -> None:
    suite.write("test_a.py", """
        import unittest

        def work():
            fakegpu.launch("k")

        def test_fails():
            work()
            assert False

        class TestCase(unittest.TestCase):
            def test_fails_too(self):
                work()
                self.fail()

        @pytest.mark.xfail
        def test_xfails():
            work()
            assert False

        @pytest.mark.xfail
        def test_xpasses():
            work()

        def test_skips():
            work()
            pytest.skip("not today")

        @pytest.fixture
        def broken():
            yield
            assert False

        def test_teardown(broken):
            work()

        def test_dropped():
            work()
            fakegpu.drop(3)

        def test_good():
            work()
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert {name for name, case in done.cases.items() if case.state is State.UPDATED} == {"test_good"}
    assert suite.golden()["test_a.toml"].count("kernels =") == 1
    again = suite.run("--cutrace")
    assert again.case("TestCase.test_fails_too").reason == "the test did not pass"


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 9 has subtests")
@pytest.mark.parametrize("subtest", ["assert False", "pytest.skip()", "pytest.xfail()"])
def test_nothing_is_recorded_of_a_test_with_a_subtest_that_does_not_pass(suite: Suite, subtest: str) -> None:
    body = """
        @pytest.mark.cutrace(repeat=1)
        def test_subtests(subtests):
            fakegpu.launch("k")
            with subtests.test("a"):
                {}
                fakegpu.launch("k")
    """
    suite.write("test_a.py", body.format("pass"))
    suite.run("--cutrace-update")
    suite.run("--cutrace-update")
    before = suite.golden()
    assert "k = 2" in before["test_a.toml"]
    suite.write("test_a.py", body.format(subtest))
    done = suite.run("--cutrace-update")
    assert done.case("test_subtests").state is State.UNVERIFIED
    assert suite.golden() == before
    suite.run("--cutrace")
    assert suite.golden(".cutrace/proposed") == {}


def test_no_work_does_not_replace_golden_values(suite: Suite) -> None:
    suite.write("conftest.py", "fakegpu.init()")
    suite.write("test_a.py", PROGRAM)
    suite.run("--cutrace-update")
    before = suite.golden()
    nothing = {"LAUNCHES": "0", "MEMORY": "1"}
    failed = suite.run("--cutrace", **nothing)
    assert failed.failed == {"test_it"}
    assert "kernel_launches 2 -> 0 (no GPU work" in failed.output
    suite.run("--cutrace-update", **nothing)
    assert suite.golden() == before
    suite.run("--cutrace-update=all", **nothing)
    assert "kernels" not in suite.golden()["test_a.toml"]


def test_a_golden_folder_that_cannot_be_read_is_found_before_the_tests_run(suite: Suite) -> None:
    suite.write("test_a.py", PROGRAM)
    (suite.folder / "golden").write_text("in the way")
    done = suite.run("--cutrace-update")
    assert done.status == 4
    assert "cannot read the folder" in done.output
    assert "test_a.py" not in done.output
    assert "Traceback" not in done.output


def test_a_golden_folder_that_cannot_be_written(suite: Suite) -> None:
    suite.write("test_a.py", PROGRAM)
    (suite.folder / "golden").symlink_to("/proc/nowhere")
    done = suite.run("--cutrace-update")
    assert done.status == 4
    assert "cannot write" in done.output
    assert done.case("test_it").state is State.UNVERIFIED
    assert "Traceback" not in done.output


def test_only_the_tests_whose_file_cannot_be_written_are_unverified(suite: Suite) -> None:
    suite.write("test_a.py", "def test_a():\n    fakegpu.launch('k')\n")
    suite.write("test_b.py", """
        def test_b():
            fakegpu.launch("k")
            os.makedirs("golden/test_b.toml", exist_ok=True)
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.status == 4
    assert done.case("test_a").state is State.UPDATED
    assert done.case("test_b").state is State.UNVERIFIED
    assert "k = 1" in (suite.folder / "golden" / "test_a.toml").read_text()


def test_the_file_is_in_the_order_of_the_source_and_one_for_a_module(suite: Suite) -> None:
    suite.write("shared.py", "def test_borrowed():\n    fakegpu.launch('k')\n")
    suite.write("test_a.py", """
        from shared import test_borrowed

        def test_z():
            fakegpu.launch("k")

        @pytest.mark.parametrize("n", range(12))
        def test_b(n):
            fakegpu.launch("k")

        class TestA:
            def test_a(self):
                fakegpu.launch("k")
    """)  # fmt: skip
    suite.run("--cutrace-update", "-n", "2", plugins=("xdist",))
    text = suite.golden()["test_a.toml"]
    headers = [line for line in text.splitlines() if line.startswith("[")]
    numbered = [f'["test_b[{n}]"]' for n in range(12)]
    assert headers == ["[test_z]", *numbered, '["TestA::test_a"]', "[test_borrowed]"]


def test_many_parameters_are_one_file_of_few_lines(suite: Suite) -> None:
    suite.write("test_a.py", """
        CHANGED = int(os.environ.get("CHANGED", -1))

        @pytest.mark.parametrize("n", range(100))
        def test_it(n):
            for _ in range(2 if n == CHANGED else 1):
                fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update", "-q").status == 0
    ((name, before),) = suite.golden().items()
    assert (name, before.count("kernels = ")) == ("test_a.toml", 100)
    assert len(before) < 300 * 100
    again = suite.run("--cutrace", "-q")
    assert (again.status, len(again.cases)) == (0, 100)
    assert {case.state for case in again.cases.values()} == {State.GATED}
    suite.run("--cutrace-update", "-q", "-k", "32", CHANGED="32")
    (after,) = suite.golden().values()
    changed = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[3:]
    assert changed == ["-kernels = { k = 1 }", "+kernels = { k = 2 }"]


def test_printed_commands_work_where_pytest_was_started(suite: Suite) -> None:
    """The commands for a failure and for candidates work, in a subfolder and with another golden folder."""
    suite.write("pytest.ini", "[pytest]\ncutrace_golden_dir = gold\n")
    suite.write("tests/test_a.py", "def test_it():\n    fakegpu.launch(os.environ.get('NAME', 'k'))\n")
    below = Suite(suite.folder / "tests", suite.driver)
    assert below.run("--cutrace-update").status == 0
    failed = below.run("--cutrace", NAME="other")
    assert "if intended: pytest --cutrace-update test_a.py::test_it" in failed.output
    assert "cutrace golden accept ../.cutrace/proposed" in failed.output
    accepted = cutrace("golden", "accept", "../.cutrace/proposed", cwd=below.folder)
    assert accepted.returncode == 0, accepted.stderr
    assert below.run("--cutrace=require", NAME="other").status == 0
    assert sorted(path.name for path in suite.folder.rglob("*.toml") if ".cutrace" not in path.parts) == ["test_a.toml"]


def killed(suite: Suite, name: str = "6") -> None:
    suite.write("test_a.py", f"""
        @pytest.mark.parametrize("n", range({name}))
        def test_it(n):
            for _ in range(n + 1):
                fakegpu.launch("k")

        def test_last():
            if os.environ.get("KILLED"):
                os.kill(os.getpid(), 9)
            fakegpu.launch("k")
    """)  # fmt: skip
    suite.run("--cutrace-update", KILLED="1")
    assert suite.golden() == {}


def test_a_killed_update_loses_the_running_test_alone(suite: Suite) -> None:
    killed(suite)
    assert list((suite.folder / ".cutrace").glob(".recording.*"))
    told = suite.run("--cutrace", "-k", "last")
    assert "an update was interrupted after 6 tests: pytest --cutrace-update takes them up" in told.output
    assert not list((suite.folder / ".cutrace").glob(".recording.*"))
    done = suite.run("--cutrace-update", "-k", "last")
    assert done.status == 0, done.output
    assert "6 tests of an interrupted update taken up" in done.output
    assert suite.golden()["test_a.toml"].count("kernels = ") == 7
    assert suite.run("--cutrace=require").status == 0
    assert not (suite.folder / ".cutrace/journal").exists()
    assert "interrupted" not in suite.run("--cutrace-update").output


@pytest.mark.parametrize("moment", ["before the report is read", "after, with a worker on another machine"])
def test_a_test_that_finished_in_a_worker_is_not_lost(suite: Suite, moment: str) -> None:
    suite.write("conftest.py", f"""
        import os
        import pytest

        BEFORE = {moment.startswith("before")}
        KILLED = "KILLED" in os.environ and "PYTEST_XDIST_WORKER" not in os.environ

        @pytest.hookimpl(optionalhook=True, trylast=True)
        def pytest_configure_node(node):
            if not BEFORE:
                node.workerinput["cutrace_journal"] = os.path.abspath("elsewhere/journal")

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_logreport(report):
            ends = KILLED and report.when == "teardown"
            if ends and BEFORE:
                os.kill(os.getpid(), 9)
            yield
            if ends:
                os.kill(os.getpid(), 9)
    """, prelude=False)  # fmt: skip
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n")
    suite.write("test_b.py", "def test_last():\n    fakegpu.launch('k')\n")
    suite.run("--cutrace-update", "-n", "1", "test_a.py", plugins=("xdist",), KILLED="1")
    assert suite.golden() == {}
    done = suite.run("--cutrace-update", "test_b.py")
    assert "1 test of an interrupted update taken up" in done.output
    assert list(suite.golden()) == ["test_a.toml", "test_b.toml"]
    assert suite.run("--cutrace=require").status == 0


def test_a_journal_whose_values_have_changed_since_is_left_out(suite: Suite) -> None:
    killed(suite, "2")
    journal = (suite.folder / ".cutrace/journal").read_text()
    assert suite.run("--cutrace-update", "-k", "it").status == 0
    before = suite.golden()
    (suite.folder / ".cutrace/journal").write_text(journal)
    done = suite.run("--cutrace-update", "-k", "nothing")
    assert "2 tests of an interrupted update left out: the golden values have changed since" in done.output
    assert suite.golden() == before


def test_a_journal_of_another_commit_is_left_out(suite: Suite) -> None:
    killed(suite, "2")
    journal = suite.folder / ".cutrace/journal"
    journal.write_text(journal.read_text().replace('"commit": ""', '"commit": "0123456789abcdef"'))
    done = suite.run("--cutrace-update", "-k", "last")
    assert "an interrupted update of commit 0123456789ab left out: this is another commit" in done.output
    assert suite.golden()["test_a.toml"].count("kernels = ") == 1


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b'{"commit"', b"[]\n{}", b'{"commit": ""}\n{"nodeid": 1}\n{"no'])
def test_a_damaged_journal_stops_nothing(suite: Suite, damage: bytes) -> None:
    suite.write("test_a.py", PROGRAM)
    (suite.folder / ".cutrace").mkdir()
    (suite.folder / ".cutrace/journal").write_bytes(damage)
    assert suite.run("--cutrace").status == 0
    assert suite.run("--cutrace-update").status == 0
    assert list(suite.golden()) == ["test_a.toml"]


def test_packages_of_pyargs_have_golden_files_of_their_own(suite: Suite) -> None:
    for package in ("pkg2", "pkg3"):
        for folder in (package, f"{package}/tests"):
            suite.write(f"lib/{folder}/__init__.py", "", prelude=False)
        suite.write(f"lib/{package}/tests/test_a.py", f"def test_it():\n    fakegpu.launch('{package}')\n")
    (suite.folder / "project").mkdir()
    (suite.folder / "project/pytest.ini").write_text("[pytest]\npythonpath = ../lib\n")
    project = Suite(suite.folder / "project", suite.driver)
    arguments = ("--pyargs", "pkg2", "pkg3")
    done = project.run("--cutrace-update", *arguments)
    assert done.status == 0, done.output
    assert list(project.golden()) == ["pkg2/tests/test_a.toml", "pkg3/tests/test_a.toml"]
    again = project.run("--cutrace=require", *arguments)
    assert again.status == 0, again.output
