"""Golden files are written when that is asked for, change as little as possible, and only by tests that went well."""

from __future__ import annotations

import pytest

from cutrace.reports.model import State
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
    first = suite.run("--cutrace", "--cutrace-update")
    assert first.case("test_it").state is State.UPDATED
    assert "1 file written: review before you commit" in first.output
    written = suite.golden()
    assert list(written) == ["test_a.py/test_it.toml"]
    for options in (["--cutrace"], ["--cutrace", "--cutrace-update"], ["--cutrace", "--cutrace-update=missing"]):
        again = suite.run(*options)
        assert again.case("test_it").state is State.GATED
        assert suite.golden() == written


def test_without_the_option_only_a_candidate_is_left(suite: Suite) -> None:
    suite.write("test_a.py", "@pytest.mark.cutrace" + PROGRAM)
    missing = suite.run("--cutrace", CI="1")
    assert missing.status == 0
    assert missing.case("test_it").state is State.MISSING
    assert "no golden  1 test: candidates are in .cutrace/proposed" in missing.output
    assert suite.golden() == {}
    assert list(suite.golden(".cutrace/proposed")) == ["test_a.py/test_it.toml"]
    strict = suite.run("--cutrace", "--cutrace-strict", CI="1")
    assert strict.status == 1
    assert "there is no golden/test_a.py/test_it.toml" in strict.output
    suite.run("--cutrace", "--cutrace-update")
    golden = suite.golden()
    assert suite.run("--cutrace").status == 0
    assert suite.golden(".cutrace/proposed") == {}, "what is well again has no candidate"
    drifted = suite.run("--cutrace", CI="1", LAUNCHES="3")
    assert drifted.status == 1
    assert suite.golden() == golden
    assert "kernel_launches = 3" in suite.golden(".cutrace/proposed")["test_a.py/test_it.toml"]


def test_modes(suite: Suite) -> None:
    suite.write("test_a.py", PROGRAM)
    suite.run("--cutrace", "--cutrace-update=missing")
    before = suite.golden()["test_a.py/test_it.toml"]
    changed = {"LAUNCHES": "3", "MEMORY": str(1 << 26)}
    suite.run("--cutrace", "--cutrace-update=missing", **changed)
    assert suite.golden()["test_a.py/test_it.toml"] == before
    done = suite.run("--cutrace", "--cutrace-update", **changed)
    after = suite.golden()["test_a.py/test_it.toml"]
    assert "kernel_launches = 3" in after
    assert f"peak_memory_bytes = {1 << 24}" in after, "worse memory is replaced by =all alone"
    assert any("--cutrace-update=all" in note for note in done.case("test_it").notes)
    suite.run("--cutrace", "--cutrace-update=all", **changed)
    assert f"peak_memory_bytes = {1 << 26}" in suite.golden()["test_a.py/test_it.toml"]


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
    done = suite.run("--cutrace", "--cutrace-update")
    assert done.status == 0
    (text,) = suite.golden().values()
    assert 'unstable = ["memset_count", "memset_bytes"]' in text
    assert "kernel_launches = 1" in text
    assert suite.run("--cutrace").status == 0


def test_nothing_is_recorded_of_tests_that_did_not_go_well(suite: Suite) -> None:
    suite.write("test_a.py", """
        def work():
            fakegpu.launch("k")

        def test_fails():
            work()
            assert False

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

        def test_subtests(subtests):
            work()
            with subtests.test("a"):
                assert False

        def test_dropped():
            work()
            fakegpu.drop(3)

        def test_good():
            work()
    """)  # fmt: skip
    suite.run("--cutrace", "--cutrace-update")
    assert list(suite.golden()) == ["test_a.py/test_good.toml"]


def test_no_work_does_not_replace_a_golden_file(suite: Suite) -> None:
    suite.write("conftest.py", "fakegpu.init()")
    suite.write("test_a.py", PROGRAM)
    suite.run("--cutrace", "--cutrace-update")
    before = suite.golden()
    nothing = {"LAUNCHES": "0"}
    failed = suite.run("--cutrace", **nothing)
    assert failed.failed == {"test_it"}
    assert "- k x2 (gone)" in failed.output
    suite.run("--cutrace", "--cutrace-update", **nothing)
    assert suite.golden() == before


def test_stale_files_are_told_of_when_all_was_collected(suite: Suite) -> None:
    suite.write("test_a.py", PROGRAM + PROGRAM.replace("test_it", "test_other"))
    suite.run("--cutrace", "--cutrace-update")
    suite.write("test_a.py", PROGRAM)
    told = "1 golden file without a test: see `cutrace golden check`"
    assert told in suite.run("--cutrace").output
    assert told not in suite.run("--cutrace", "-k", "it").output
    assert told not in suite.run("--cutrace", "test_a.py").output
    assert told in suite.run("--cutrace", "-n", "2", plugins=("xdist",)).output


@pytest.mark.parametrize("name", ["unittest", "subtests"])
def test_what_cannot_be_run_twice_is_recorded_from_one_run(suite: Suite, name: str) -> None:
    suite.write("test_a.py", """
        import unittest

        class TestIt(unittest.TestCase):
            def test_unittest(self):
                fakegpu.launch("k")

        def test_subtests(subtests):
            fakegpu.launch("k")
            with subtests.test("a"):
                pass
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update", "-k", name)
    (case,) = done.cases.values()
    assert case.state is State.UPDATED
    assert any("is not run again" in note for note in case.notes)
    assert suite.run("--cutrace", "-k", name).status == 0
