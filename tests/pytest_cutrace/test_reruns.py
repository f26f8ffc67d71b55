"""Repeated bodies repeat their work. Tests that cannot be repeated are not gated before a second session agrees."""

from __future__ import annotations

import re

import pytest

from cutrace.reports.model import State
from support.suites import Suite


def test_methods_of_unittest_run_again_in_an_instance_of_their_own(suite: Suite) -> None:
    suite.write("test_a.py", """
        import unittest

        EVENTS = []

        @pytest.fixture
        def prepared(request):
            request.instance.size = 3

        @pytest.mark.usefixtures("prepared")
        class TestCase(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                EVENTS.append("class")

            def setUp(self):
                EVENTS.append("up")
                self.warm = hasattr(self, "used")
                self.addCleanup(EVENTS.append, "cleanup")

            def tearDown(self):
                EVENTS.append("down")

            def test_method(self):
                assert not self.warm
                self.used = True
                for i in range(self.size):
                    with self.subTest(i=i):
                        fakegpu.launch("k")
                if len(EVENTS) == 2 and "COLD" in os.environ:
                    fakegpu.launch("cold")

        class TestAsync(unittest.IsolatedAsyncioTestCase):
            async def asyncSetUp(self):
                self.size = 2

            async def test_method(self):
                for _ in range(self.size):
                    fakegpu.launch("k")

        def test_after():
            assert EVENTS == ["class", *["up", "down", "cleanup"] * int(os.environ.get("RUNS", 1))]
    """)  # fmt: skip
    first = suite.run("--cutrace-update", RUNS="2")
    assert first.status == 0, first.output
    assert "unconfirmed" not in suite.golden()["test_a.toml"]
    assert first.case("TestCase.test_method").values["kernels"] == {"k": 3}
    assert first.case("TestAsync.test_method").values["kernels"] == {"k": 2}
    assert suite.run("--cutrace=require").status == 0
    cold = suite.run("--cutrace", RUNS="2", COLD="1")
    assert cold.status == 0, cold.output
    assert cold.case("TestCase.test_method").notes == ("the first run differed too: this is the second run",)


def test_a_failing_unittest_is_neither_compared_nor_run_again(suite: Suite) -> None:
    suite.write("test_a.py", """
        import unittest

        class TestCase(unittest.TestCase):
            runs = 0

            @pytest.mark.cutrace
            def test_fails(self):
                type(self).runs += 1
                fakegpu.launch("k")
                assert self.runs == 2, f"run {self.runs}"
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.failed == {"TestCase.test_fails"}
    assert "run 1" in done.output
    case = done.case("TestCase.test_fails")
    assert (case.state, case.reason) == (State.UNVERIFIED, "the test did not pass")


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 9 has subtests")
def test_what_cannot_be_run_again_is_gated_when_a_second_session_has_agreed(suite: Suite) -> None:
    suite.write("test_a.py", """
        STATE = []

        def test_subtests(subtests):
            for _ in range(int(os.environ.get("LAUNCHES", 1))):
                fakegpu.launch("k")
            with subtests.test("a"):
                pass

        def test_once():
            STATE.append(1)
            assert len(STATE) == 1
            fakegpu.launch("k")

        def documented():
            '''
            >>> import fakegpu
            >>> fakegpu.launch("k")
            '''
    """)  # fmt: skip
    options = ("--doctest-modules",)
    done = suite.run("--cutrace-update", *options)
    assert done.status == 0, done.output
    assert suite.golden()["test_a.toml"].count("unconfirmed = ") == 3
    notes = {name: case.notes for name, case in done.cases.items()}
    assert notes["test_subtests"] == ("it is not run again: a test with subtests runs once",)
    assert "another run did not pass" in notes["test_once"][0]
    shown = suite.run("--cutrace", *options, LAUNCHES="2")
    assert shown.status == 0, "one run alone is not gated"
    assert {case.state for case in shown.cases.values()} == {State.UNCONFIRMED}
    assert "3 unconfirmed" in shown.output
    assert suite.run("--cutrace=require", *options).status == 4
    suite.run("--cutrace-update", *options)
    assert "unconfirmed" not in suite.golden()["test_a.toml"]
    assert suite.run("--cutrace=require", *options).status == 0
    assert suite.run("--cutrace", *options, LAUNCHES="2").failed == {"test_subtests"}


def test_fixtures_read_the_report_of_each_run(suite: Suite) -> None:
    suite.write("conftest.py", """
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            setattr(item, f"rep_{report.when}", report)
            return report

        @pytest.fixture(autouse=True)
        def screenshot(request):
            request.node.rep_call = None
            yield
            assert request.node.rep_call.passed
    """)  # fmt: skip
    suite.write("test_a.py", """
        def test_it():
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.status == 0, done.output
    assert "unconfirmed" not in suite.golden()["test_a.toml"]


def test_a_run_that_a_hook_reports_as_failed_fails_the_test(suite: Suite) -> None:
    suite.write("conftest.py", """
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call" and item.module.FAILURES:
                report.outcome = "failed"
                report.longrepr = item.module.FAILURES.pop()
            return report
    """)  # fmt: skip
    suite.write("test_a.py", """
        FAILURES = []
        RUNS = []

        def test_it():
            fakegpu.launch("k")
            RUNS.append(1)
            if len(RUNS) == 1:
                FAILURES.append("a check failed")
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.failed == {"test_it"}
    assert "a check failed" in done.output
    assert suite.golden() == {}


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 9 has subtests")
def test_two_sessions_that_do_not_agree(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_subtests(subtests):
            fakegpu.memset(64)
            for _ in range(int(os.environ["LAUNCHES"])):
                fakegpu.launch("k")
    """)  # fmt: skip
    for launches in ("1", "2"):
        suite.run("--cutrace-update", LAUNCHES=launches)
    (text,) = suite.golden().values()
    assert "unstable.kernels = { k = [1, 2] }" in text
    assert suite.run("--cutrace=require", LAUNCHES="1").status == 0


def test_a_benchmark_is_traced_and_never_gated(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it(benchmark):
            benchmark(fakegpu.launch, "k")

        @pytest.mark.cutrace
        def test_marked(benchmark):
            benchmark(fakegpu.launch, "k")

        def test_plain():
            fakegpu.launch("k")
    """)  # fmt: skip
    speed = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=1")
    done = suite.run("--cutrace-update", *speed, plugins=("benchmark",))
    assert done.status == 0, done.output
    case = done.case("test_it")
    assert (case.state, case.reason) == (State.TRACED, "a benchmark decides how often it runs")
    text = suite.golden()["test_a.toml"]
    assert "[test_it]" not in text
    assert '[test_marked]\nunconfirmed = ["sm_90"]' in text
    again = suite.run("--cutrace", *speed, plugins=("benchmark",))
    assert again.status == 0
    assert {name: case.state for name, case in again.cases.items()} == {
        "test_it": State.TRACED, "test_marked": State.UNCONFIRMED, "test_plain": State.GATED,
    }  # fmt: skip


def test_hypothesis_is_as_well_behaved_as_without(suite: Suite) -> None:
    pytest.importorskip("hypothesis")
    suite.write("test_a.py", """
        from hypothesis import given, settings, strategies

        @settings(derandomize=True, max_examples=10, database=None, deadline=None)
        @given(strategies.integers(1, 5))
        def test_it(n):
            for _ in range(n):
                fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    done = suite.run("--cutrace")
    assert (done.status, done.case("test_it").state) == (0, State.GATED), done.output


def test_a_method_of_hypothesis_runs_again_in_its_instance(suite: Suite) -> None:
    pytest.importorskip("hypothesis")
    suite.write("test_a.py", """
        from hypothesis import given, settings, strategies

        class TestIt:
            @settings(derandomize=True, max_examples=3, database=None, deadline=None)
            @given(strategies.integers(0, 3))
            def test_it(self, n):
                fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    assert "unconfirmed" not in suite.golden()["test_a.toml"]
    done = suite.run("--cutrace=require")
    assert done.status == 0, done.output


def test_log_records_of_an_earlier_run_are_gone(suite: Suite) -> None:
    suite.write("test_a.py", """
        import logging

        @pytest.fixture
        def logged(caplog):
            assert caplog.messages == []
            logging.warning("set up")
            yield
            assert caplog.messages == []
            logging.warning("tear down")
            messages = [record.message for record in caplog.get_records("call")]
            assert messages == ["body"]

        def test_it(logged, caplog):
            fakegpu.launch("k")
            logging.warning("body")
            assert caplog.text.count("body") == 1
            assert caplog.messages == ["body"]
            assert [record.message for record in caplog.get_records("setup")] == ["set up"]
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.status == 0, done.output
    assert "unconfirmed" not in suite.golden()["test_a.toml"]


def test_properties_are_recorded_once(suite: Suite) -> None:
    suite.write("conftest.py", """
        def pytest_runtest_setup(item):
            item.user_properties.append(("hook", 1))
    """)  # fmt: skip
    suite.write("test_a.py", """
        @pytest.fixture
        def recording(record_property):
            record_property("set up", 1)
            yield
            record_property("torn down", 1)

        def test_it(recording, record_property):
            fakegpu.launch("k")
            record_property("body", 1)
    """)  # fmt: skip
    done = suite.run("--cutrace-update", "--junitxml=junit.xml")
    assert done.status == 0, done.output
    names = re.findall('<property name="(.*?)"', (suite.folder / "junit.xml").read_text())
    assert names == ["hook", "set up", "body", "torn down"]


def test_a_test_with_warm_up_has_no_second_chance(suite: Suite) -> None:
    suite.write("test_a.py", """
        RUNS = []

        @pytest.mark.cutrace(warmup=1)
        def test_warm():
            RUNS.append(1)
            for _ in range(2 if len(RUNS) == int(os.environ.get("BUSY", 0)) else 1):
                fakegpu.launch("k")

        def test_runs():
            print(f"bodies: {len(RUNS)}")
    """)  # fmt: skip
    assert suite.run("--cutrace-update", "test_a.py::test_warm").status == 0
    warm = suite.run("--cutrace", "-s", BUSY="1")
    assert warm.status == 0, "the run for warm-up is not compared"
    assert "bodies: 2" in warm.output
    judged = suite.run("--cutrace", BUSY="2")
    assert judged.failed == {"test_warm"}
    assert not any("second run" in note for note in judged.case("test_warm").notes)
