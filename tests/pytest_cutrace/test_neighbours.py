"""Tests that other plugins repeat, run in threads or forks, or stop after a time limit."""

from __future__ import annotations

from cutrace.reports.model import State
from support.suites import FORKING, Outcome, Suite

PROGRAM = """
    import random

    @pytest.mark.parametrize("n", [1, 2])
    def test_many(n):
        for _ in range(n):
            fakegpu.launch("k")

    def test_one():
        for _ in range(int(os.environ.get("MORE", 1))):
            fakegpu.launch("k")

    def test_drawn():
        for _ in range(random.randrange(1, 1000)):
            fakegpu.launch("k")

    def test_idle():
        pass
"""
REPEATED = {
    "repeat": ("--count=3",),
    "flakefinder": ("--flake-finder", "--flake-runs=3"),
}


def recorded(suite: Suite) -> dict[str, str]:
    suite.write("test_a.py", PROGRAM)
    assert suite.run("--cutrace-update").status == 0
    return suite.golden()


def states(done: Outcome) -> set[State]:
    return {case.state for name, case in done.cases.items() if not name.startswith("test_idle")}


def test_repetitions_have_the_golden_values_of_their_test(suite: Suite) -> None:
    golden = recorded(suite)
    for plugin, options in REPEATED.items():
        done = suite.run("--cutrace=require", *options, plugins=(plugin,))
        assert done.status == 0, done.output
        assert len(done.cases) == 15
        assert states(done) == {State.GATED}
        assert "golden 4: 4 compared" in done.words
    assert suite.golden() == golden


def test_repetitions_in_workers(suite: Suite) -> None:
    recorded(suite)
    done = suite.run("--cutrace=require", "--count=3", "-n", "2", plugins=("repeat", "xdist"))
    assert done.status == 0, done.output
    assert "golden 4: 4 compared" in done.words
    some = suite.run("--cutrace=require", "--count=3", "-n", "2", "-k", "one", plugins=("repeat", "xdist"))
    assert some.status == 0, some.output
    assert "golden 4: 1 compared, 3 not selected" in some.words


def test_repetitions_are_written_once(suite: Suite) -> None:
    golden = recorded(suite)
    (suite.folder / "golden/test_a.toml").unlink()
    assert suite.run("--cutrace-update", "--count=3", plugins=("repeat",)).status == 0
    assert suite.golden() == golden


def test_a_repetition_that_differs_names_the_test(suite: Suite) -> None:
    recorded(suite)
    done = suite.run("--cutrace", "--count=2", "-k", "one", plugins=("repeat",), MORE="2")
    assert done.failed == {"test_one[1-2]", "test_one[2-2]"}
    assert "if intended: pytest --cutrace-update test_a.py::test_one\n" in done.output
    assert done.output.count("\n  golden ") == 1
    assert suite.run("--cutrace-update", "--count=2", "-k", "one", plugins=("repeat",), MORE="2").status == 0
    assert suite.run("--cutrace=require", "-k", "one", MORE="2").status == 0


def test_parameters_that_look_like_a_repetition_are_kept(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.parametrize("name", ["1-3", "2-3"])
        def test_it(name):
            fakegpu.launch(name)
    """)  # fmt: skip
    suite.run("--cutrace-update")
    for options in ((), ("--count=3",)):
        done = suite.run("--cutrace=require", *options, plugins=("repeat",))
        assert (done.status, states(done)) == (0, {State.GATED}), done.output


def test_tests_in_threads_are_not_compared(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it():
            exec("fakegpu.launch('k')")  # else the plugin sees that it calls ctypes

        @pytest.mark.iterations(2)
        def test_iterated(gpu_trace):
            with gpu_trace.region("launch"):
                fakegpu.launch("k")

        @pytest.mark.thread_unsafe
        def test_alone():
            fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    done = suite.run("--cutrace", "--parallel-threads=3", plugins=("run-parallel",))
    assert done.status == 0, done.output
    assert {name: case.state for name, case in done.cases.items()} == {
        "test_it": State.UNVERIFIED, "test_iterated": State.UNVERIFIED, "test_alone": State.GATED,
    }  # fmt: skip
    assert "unverified 2 pytest-run-parallel runs it several times at once" in done.words
    golden = suite.golden()
    assert suite.run("--cutrace-update=all", "--parallel-threads=3", plugins=("run-parallel",)).status == 0
    assert suite.golden() == golden


def test_tests_in_forks_are_not_compared(suite: Suite) -> None:
    suite.write("conftest.py", FORKING)
    suite.write("test_a.py", """
        def test_it(gpu_trace):
            with gpu_trace.region("launch"):
                fakegpu.launch("k")

        @pytest.mark.cutrace(may_skip=True)
        @pytest.mark.skipif("FORKED" in os.environ, reason="-")
        def test_skipped():
            fakegpu.launch("k")

        def test_new():
            fakegpu.launch("k")
            fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    text = (suite.folder / "golden/test_a.toml").read_text()
    (suite.folder / "golden/test_a.toml").write_text(text.replace("k = 2", "k = 1"))
    done = suite.run("--cutrace", FORKED="1")
    assert done.status == 0, done.output
    assert {name: (case.state, case.reason) for name, case in done.cases.items()} == {
        "test_it": (State.UNVERIFIED, "it ran in a fork of the traced process"),
        "test_skipped": (State.UNTRACED, "skipped, as may_skip allows"),
        "test_new": (State.UNVERIFIED, "it ran in a fork of the traced process"),
    }
    assert "golden 3: 2 not verified, 1 skipped as allowed" in done.words


def test_a_test_that_is_retried_without_a_report_of_pytest(suite: Suite) -> None:
    # pytest-retry does this.
    suite.write("conftest.py", """
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call" and report.failed:
                item.session._setupstate.teardown_exact(item.parent)
                item._initrequest()
                item.ihook.pytest_runtest_setup(item=item)
                call = pytest.CallInfo.from_call(lambda: item.ihook.pytest_runtest_call(item=item), "call")
                report = pytest.TestReport.from_item_and_call(item, call)
            return report
    """)  # fmt: skip
    suite.write("test_a.py", """
        def test_it():
            for _ in range(int(os.environ.get("MORE", 1))):
                fakegpu.launch("k")
            assert "FAIL" not in os.environ
    """)  # fmt: skip
    suite.run("--cutrace-update")
    for variables in ({"MORE": "2"}, {"FAIL": "1"}):
        done = suite.run("--cutrace", **variables)
        assert done.status == 1
        assert done.failed == {"test_it"}


def test_each_run_of_a_test_has_the_whole_time(suite: Suite) -> None:
    suite.write("conftest.py", """
        def pytest_timeout_set_timer(item, settings):
            print("started:", item.name, settings.timeout)
            return True

        def pytest_timeout_cancel_timer(item):
            return True
    """)  # fmt: skip
    suite.write("test_a.py", """
        def test_it():
            print("a run")
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace-update", "-s", "--timeout=60", plugins=("timeout",))
    assert done.status == 0, done.output
    lines = [line for line in done.output.splitlines() if "started:" in line or "a run" in line]
    told = [line.partition("started")[1] or "a run" for line in lines]
    assert told == ["started", "a run", "started", "a run"]


def test_a_run_that_takes_too_long_fails_alone(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_hangs():
            fakegpu.launch("k")
            if "HANG" in os.environ:
                time.sleep(60)

        def test_works():
            fakegpu.launch("k")
    """)  # fmt: skip
    suite.run("--cutrace-update")
    done = suite.run("--cutrace", "--timeout=2", plugins=("timeout",), HANG="1")
    assert done.failed == {"test_hangs"}
    assert "Timeout" in done.output
    assert done.case("test_works").state is State.GATED
