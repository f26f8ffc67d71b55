"""Other features of pytest and of its plugins work as without this plugin."""

from __future__ import annotations

import os
import signal
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

import cutrace
from cutrace.reports.model import State
from support.suites import Suite


def test_every_kind_of_test(suite: Suite) -> None:
    suite.write("test_a.py", """
        import unittest

        VALUES = ["a/b", "", "é", "x" * 200, "[]", "A", "a", 1.5, None, "..", "a::b", "line\\nbreak"]

        @pytest.mark.parametrize("value", VALUES)
        def test_ids(value):
            fakegpu.launch("k")

        class TestClass:
            @pytest.fixture(scope="class")
            def shared(self):
                fakegpu.launch("shared")

            def test_one(self, shared):
                fakegpu.launch("k")

            def test_two(self, shared):
                fakegpu.launch("k")

        class TestCase(unittest.TestCase):
            def setUp(self):
                self.x = 1

            def test_method(self):
                fakegpu.launch("k")

        @pytest.mark.asyncio
        async def test_async():
            fakegpu.launch("k")

        if pytest.version_tuple >= (9, 0):
            def test_subtests(subtests):
                fakegpu.launch("k")
                for i in range(3):
                    with subtests.test(str(i)):
                        fakegpu.launch("in")

        def documented():
            '''
            >>> import fakegpu
            >>> fakegpu.launch("doc")
            '''
    """)  # fmt: skip
    options = ("--cutrace", "--doctest-modules")
    done = suite.run(*options, "--cutrace-update", plugins=("asyncio",))
    assert done.status == 0, done.output
    kernels = {name: case.values["kernels"] for name, case in done.cases.items()}
    once = {"test_a.documented"}
    if pytest.version_tuple >= (9, 0):
        once.add("test_subtests")
        assert kernels.pop("test_subtests") == {"in": 3, "k": 1}
    assert kernels.pop("test_a.documented") == {"doc": 1}
    assert set(map(str, kernels.values())) == {"{'k': 1}"}
    assert len(kernels) == 16
    assert list(suite.golden()) == ["test_a.toml"]
    again = suite.run(*options, plugins=("asyncio",))
    assert again.status == 0, again.output
    unconfirmed = {name for name, case in again.cases.items() if case.state is State.UNCONFIRMED}
    assert unconfirmed == once
    assert {case.state for name, case in again.cases.items() if name not in unconfirmed} == {State.GATED}
    confirmed = suite.run(*options, "--cutrace-update", plugins=("asyncio",))
    assert {name for name, case in confirmed.cases.items() if case.state is State.UPDATED} == unconfirmed
    golden = suite.golden()
    assert "unconfirmed" not in golden["test_a.toml"]
    distributed = suite.run(*options, "--cutrace-update", "-n", "2", plugins=("asyncio", "xdist"))
    assert {name: case.state for name, case in distributed.cases.items()} == dict.fromkeys(done.cases, State.GATED)
    assert suite.golden() == golden


def test_expected_failures_and_skips(suite: Suite) -> None:
    suite.write("test_a.py", """
        LIMIT = pytest.mark.gpu_limit(kernel_launches=0)

        @LIMIT
        @pytest.mark.xfail
        def test_drift_is_expected():
            fakegpu.launch("k")

        @LIMIT
        @pytest.mark.xfail(strict=True)
        def test_no_drift():
            pass

        @pytest.mark.xfail(strict=True)
        def test_no_failure():
            fakegpu.launch("k")

        @pytest.mark.skip
        @pytest.mark.cutrace
        def test_skipped():
            pass

        @pytest.mark.cutrace
        def test_skips_itself():
            fakegpu.launch("k")
            pytest.skip("no")

        @LIMIT
        def test_drifts():
            fakegpu.launch("k")

        def test_not_reached():
            pass
    """)  # fmt: skip
    suite.write("conftest.py", "fakegpu.init()")
    done = suite.run("--cutrace", "-x", "--maxfail=3")
    assert {name: case.outcome for name, case in done.cases.items()} == {
        "test_drift_is_expected": "xfailed",
        "test_no_drift": "failed",
        "test_no_failure": "failed",
        "test_skipped": "skipped",
        "test_skips_itself": "skipped",
        "test_drifts": "failed",
    }
    assert done.case("test_skipped").state is State.UNTRACED
    assert suite.run("--cutrace=require", "-k", "skip").status == 0


def test_what_does_not_run_tests(suite: Suite) -> None:
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n")
    collected = suite.run("--cutrace", "--collect-only", "-q")
    assert collected.status == 0
    assert "traced" not in collected.output
    off = suite.run("-p", "no:cutrace", plugins=())
    assert off.status == 0
    assert not list(suite.folder.glob(".cutrace/tests"))
    helped = suite.run("--cutrace", "--help")
    assert "--cutrace-update" in helped.output
    assert "cutrace_golden_dir (string):" in helped.output


def test_markers_and_fixtures_without_the_option(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.cutrace(repeat=3)
        @pytest.mark.gpu_limit(kernel_launches=0)
        def test_it(gpu_trace, cutrace_dir):
            assert not gpu_trace.active
            with gpu_trace.region("a"):
                fakegpu.launch("k")
            gpu_trace.value("tokens", 3)
            assert cutrace_dir.is_dir()

        def test_metrics(gpu_trace):
            with gpu_trace.region("a"):
                fakegpu.launch("k")
            assert gpu_trace.metrics["kernel_launches"] == 1
    """)  # fmt: skip
    done = suite.run("--strict-markers", "-rs")
    assert done.status == 0
    assert "1 passed, 1 skipped" in done.output
    assert "gpu_trace.metrics: it needs pytest --cutrace" in done.output
    assert not (suite.folder / ".cutrace").exists()


def test_reruns_count_once_and_as_they_ended(suite: Suite) -> None:
    suite.write("test_a.py", """
        attempts = []

        @pytest.mark.cutrace
        def test_flaky():
            attempts.append(1)
            fakegpu.launch("k")
            assert len(attempts) > 1
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update", "--reruns", "2", plugins=("rerunfailures",))
    assert done.status == 0, done.output
    assert done.case("test_flaky").state is State.UPDATED
    assert "1 rerun" in done.output


def test_a_program_records_itself_after_its_session(suite: Suite) -> None:
    suite.write("conftest.py", """
        import atexit

        @atexit.register
        def record_itself():
            import cutrace
            fakegpu.launch("between")
            with cutrace.record("own.bin"):
                fakegpu.launch("own")
    """)  # fmt: skip
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n")
    done = suite.run("--cutrace")
    assert done.status == 0, done.output
    with cutrace.load(suite.folder / "own.bin") as trace:
        launches = trace.launches[trace.kernels["launch"]]
        names = trace.strings.take(launches["name"]).tolist()
    assert names == ["own"]


def test_interrupted(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_first():
            fakegpu.launch("k")

        def test_long():
            fakegpu.launch("k")
            open("started", "w").close()
            time.sleep(60)
    """)  # fmt: skip

    def interrupt(pid: int) -> None:
        deadline = time.monotonic() + 60
        while not (suite.folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(pid, signal.SIGINT)

    done = suite.run("--cutrace", while_running=interrupt)
    assert done.status == 2
    assert set(done.cases) == {"test_first"}
    assert "KeyboardInterrupt" in done.output
    assert "Traceback" not in done.output
    assert not list(suite.folder.glob(".cutrace/.recording.*"))


def test_two_sessions_in_one_folder(suite: Suite) -> None:
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n    time.sleep(0.5)\n")
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(suite.run, "--cutrace", report_name=f"report{i}.json") for i in range(2)]
    for run in runs:
        assert run.result().status == 0, run.result().output
        assert run.result().case("test_it").values["kernel_launches"] == 1
    assert not list(suite.folder.glob(".cutrace/.recording.*"))


@pytest.mark.parametrize("distributed", [(), ("-n", "2")])
def test_junit_has_the_final_state_once(suite: Suite, distributed: tuple[str, ...]) -> None:
    suite.write("test_a.py", """
        attempts = []

        def test_it():
            fakegpu.launch("k")

        def test_drifts():
            fakegpu.launch(os.environ.get("KERNEL", "k"))

        def test_flaky():
            attempts.append(1)
            fakegpu.launch("k")
            assert len(attempts) > 3 or "KERNEL" not in os.environ
    """)  # fmt: skip
    suite.run("--cutrace-update")
    plugins = ("rerunfailures", *(("xdist",) if distributed else ()))
    options = ("--junitxml=out.xml", "--cutrace-report=junit", "--reruns", "3", *distributed)
    suite.run("--cutrace", *options, plugins=plugins, KERNEL="other")
    cases = {}
    for case in ElementTree.parse(suite.folder / "out.xml").iter("testcase"):
        found = [(one.get("name"), one.get("value")) for one in case.iter("property")]
        assert len(found) == len(dict(found)), "each property once"
        cases[case.get("name")] = dict(found)
    assert {name: found.get("cutrace.state") for name, found in cases.items()} == dict.fromkeys(cases, "gated")
    assert set(cases) == {"test_it", "test_drifts", "test_flaky"}
    assert cases["test_it"]["cutrace.kernel_launches"] == "1"
    assert "(+ other, - k)" in cases["test_drifts"]["cutrace.failed.kernel_launches"]
    for found in cases.values():
        for file in (value for name, value in found.items() if name.startswith("cutrace.file.")):
            assert (suite.folder / ".cutrace" / file).is_file()
    assert "cutrace.file.trace.pftrace" in cases["test_drifts"]
    assert "cutrace.file.trace.pftrace" not in cases["test_it"]


@pytest.mark.parametrize("options", [("-n", "auto", "--pdb"), ("-n", "0"), ("-n", "auto")], ids=" ".join)
def test_tests_are_traced_where_xdist_starts_no_worker(suite: Suite, options: tuple[str, ...]) -> None:
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n")
    suite.run("--cutrace-update")
    done = suite.run("--cutrace=require", *options, plugins=("xdist",), PYTEST_XDIST_AUTO_NUM_WORKERS="0")
    assert (done.status, done.case("test_it").state) == (0, State.GATED), done.output
    assert done.case("test_it").worker == ""


@pytest.mark.parametrize("plugin", [False, True])
def test_workers_that_no_option_n_requests(suite: Suite, plugin: bool) -> None:
    suite.write("test_a.py", """
        def test_it():
            for _ in range(int(os.environ.get("MORE", 1))):
                fakegpu.launch("k")
    """)  # fmt: skip
    suite.run("--cutrace-update")
    options = ["-d", "--tx", "2*popen"]
    if plugin:
        suite.write("with_workers.py", """
            def pytest_load_initial_conftests(args):
                args[:] = ["-n", "2", *args]
        """)  # fmt: skip
        options = ["-p", "with_workers"]
    for more, status in (("1", 0), ("2", 1)):
        done = suite.run("--cutrace=require", *options, plugins=("xdist",), MORE=more)
        assert (done.status, done.case("test_it").state) == (status, State.GATED), done.output
        assert done.case("test_it").worker


def test_groups_of_xdist_are_no_part_of_ids(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.xdist_group("one")
        @pytest.mark.parametrize("n", ["a@b", "c"])
        def test_it(n):
            fakegpu.launch("k")
    """)  # fmt: skip
    suite.run("--cutrace-update")
    done = suite.run("--cutrace=require", "-n", "2", "--dist", "loadgroup", plugins=("xdist",))
    assert done.status == 0, done.output
    assert set(done.cases) == {"test_it[a@b]", "test_it[c]"}


def test_an_old_pytest_gets_a_sentence(suite: Suite) -> None:
    suite.write("old.py", "import pytest\npytest.version_tuple = (7, 4, 4)\npytest.__version__ = '7.4.4'\n")
    suite.write("test_a.py", "def test_it():\n    pass\n")
    done = suite.run("-p", "old", "--cutrace")
    assert done.status == 4
    assert "ERROR: --cutrace needs pytest 8.0 or later, this is 7.4.4: upgrade pytest" in done.output
    assert "Traceback" not in done.output
    assert suite.run("-p", "old").status == 0


@pytest.mark.parametrize("shown", ["--help", "--version", "--markers", "--fixtures", "--collect-only"])
def test_what_runs_no_test_needs_no_gpu_and_leaves_no_folder(suite: Suite, shown: str) -> None:
    suite.write("test_a.py", "def test_it():\n    pass\n", prelude=False)
    suite.write("pytest.ini", "[pytest]\ncutrace = require\n")
    assert suite.run(gpu=False).status == 4
    (suite.folder / ".cutrace/.gitignore").unlink()
    (suite.folder / ".cutrace").rmdir()
    done = suite.run(shown, gpu=False)
    assert done.status == 0, done.output
    assert not (suite.folder / ".cutrace").exists()
    assert suite.run("--cutrace=require", shown, gpu=False).status == 0
    assert not (suite.folder / ".cutrace").exists()


def test_off_overrides_the_ini_value_and_a_later_option_overrides_off(suite: Suite) -> None:
    test = "import os\n\ndef test_it(gpu_trace):\n    assert gpu_trace.active == ('ON' in os.environ)\n"
    suite.write("test_a.py", test, prelude=False)
    suite.write("pytest.ini", "[pytest]\ncutrace = require\n")
    done = suite.run("--cutrace=off", gpu=False)
    assert (done.status, done.report) == (0, None), done.output
    assert "cutrace:" not in done.output
    suite.write("pytest.ini", "[pytest]\naddopts = --cutrace=off\n")
    assert suite.run("--cutrace", ON="1").status == 0


def test_a_report_in_a_file_of_junit_that_is_not_requested_is_told(suite: Suite) -> None:
    suite.write("test_a.py", "def test_it():\n    pass\n")
    told = "--cutrace-report=junit wrote nothing: name a file with --junitxml"
    assert told in suite.run("--cutrace", "--cutrace-report=junit").output
    assert told not in suite.run("--cutrace", "--cutrace-report=junit", "--junitxml=out.xml").output


def test_a_report_is_relative_to_the_working_directory(suite: Suite) -> None:
    inside = Suite(suite.folder / "inside", suite.driver)
    inside.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n")
    done = inside.run("--cutrace", "--cutrace-report=markdown:out/summary.md", "--junitxml=out/junit.xml")
    assert done.status == 0, done.output
    assert sorted(path.name for path in (inside.folder / "out").iterdir()) == ["junit.xml", "summary.md"]
    assert "report  out/summary.md" in done.output
    assert (suite.folder / ".cutrace").is_dir()


def test_reports(suite: Suite) -> None:
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('axpy')\n")
    reports = "--cutrace-report=html,markdown:out/summary.md"
    done = suite.run("--cutrace", reports, "-n", "1", plugins=("xdist",))
    page = (suite.folder / ".cutrace/report.html").read_text()
    assert "test_it" in page
    assert "axpy" in page
    assert "1 traced" in (suite.folder / "out/summary.md").read_text()
    assert "report  .cutrace/report.html" in done.output


def test_a_report_has_the_times_of_its_session(suite: Suite) -> None:
    suite.write("test_a.py", "def test_it():\n    pass\n")
    before = time.time()
    report = suite.run("--cutrace").report
    after = time.time()
    assert report
    # The start is in whole seconds.
    assert before - 1 < datetime.fromisoformat(report.started).timestamp() <= after
    assert 0 < report.duration_s <= after - before


def test_a_report_links_to_artifacts_from_its_own_folder(suite: Suite) -> None:
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('axpy')\n")
    (suite.folder / "out/ci").mkdir(parents=True)
    done = suite.run("--cutrace", "--cutrace-keep=all", report_name="out/ci/report.json")
    artifacts = done.case("test_it").artifacts
    assert sorted(artifacts) == ["metrics.json", "run.bin", "trace.pftrace"]
    for name, path in artifacts.items():
        place = suite.folder / "out/ci" / path
        assert place.is_file()
        assert place.resolve().is_relative_to(suite.folder / ".cutrace"), name


def test_a_page_of_pytest_html_shows_the_metrics(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it():
            fakegpu.launch('axpy')

        def test_idle():
            pass
    """)  # fmt: skip
    done = suite.run("--cutrace", "--html=page.html", "--self-contained-html", plugins=("metadata", "html"))
    assert done.status == 0, done.output
    page = (suite.folder / "page.html").read_text()
    assert page.count("cutrace: traced  on NVIDIA FAKE") == 1
    assert "kernel_launches  1" in page


def test_values_of_any_size_and_class_come_from_workers(suite: Suite) -> None:
    suite.write("test_a.py", """
        import enum

        held = []

        def test_takes():
            held.append(fakegpu.malloc(5 << 30))
            fakegpu.launch("k")

        def test_gives_back():
            fakegpu.free(held.pop())
            fakegpu.launch("k")

        def test_a_class_of_the_worker_s_own(gpu_trace):
            gpu_trace.value("mylib.size", enum.IntEnum("Size", ["SMALL"]).SMALL)
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace", "-n", "1", plugins=("xdist",))
    assert done.status == 0, done.output
    assert done.case("test_gives_back").values["net_memory_bytes"] == -(5 << 30)
    assert done.case("test_a_class_of_the_worker_s_own").values["mylib.size"] == 1
