"""Hardware counters in tests: requests, golden values, and counters that cannot be read."""

from __future__ import annotations

import fcntl
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from cutrace.golden import read
from cutrace.reports.model import State
from support.fakedriver import FakeDriver
from support.suites import Outcome, Suite

#: On the fake GPU a kernel executes 1,000 instructions, and the bytes of copies are counted as DRAM bytes.
SUITE = """
    @pytest.mark.cutrace(counters=["instructions", "dram_bytes"])
    def test_copy():
        fakegpu.launch("k")
        fakegpu.copy("DtoD", 4096)
        fakegpu.synchronize()

    @pytest.mark.cutrace(counters="sm__inst_executed.sum")
    def test_graph():
        fakegpu.graph_launch(3)

    def test_plain():
        fakegpu.launch("k")
"""


def values(suite: Suite, test: str, module: str = "test_a.toml") -> dict[str, object]:
    return dict(read(suite.folder / "golden" / module).tests[test]["sm_90"].values[""])


def test_counts_are_written_and_compared(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    first = suite.run("--cutrace-update")
    assert first.status == 0, first.output
    assert values(suite, "test_copy")["instructions"] == 1000
    assert values(suite, "test_copy")["dram_bytes"] == 8192
    assert values(suite, "test_graph")["sm__inst_executed.sum"] == 3000
    assert "instructions" not in values(suite, "test_plain")
    before = suite.golden()

    again = suite.run("--cutrace=require")
    assert again.status == 0, again.output
    assert {case.state for case in again.cases.values()} == {State.GATED}
    assert again.case("test_copy").values["instructions"] == 1000
    suite.run("--cutrace-update")
    assert suite.golden() == before


def test_an_extra_kernel_fails_its_test_and_names_the_instructions(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    suite.run("--cutrace-update")
    suite.write("test_a.py", SUITE.replace('fakegpu.launch("k")\n        fakegpu.copy', 'fakegpu.launch("k"); ' * 2
                                           + "fakegpu.copy"))  # fmt: skip
    run = suite.run("--cutrace", "-o", "cutrace_ignore=kernels")
    assert run.failed == {"test_copy"}
    assert "cutrace: instructions 1,000 -> 2,000" in run.output
    assert re.search(r"instructions +1,000 +2,000 +exact", run.output)


def test_twenty_repetitions_count_the_same(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.cutrace(counters=["instructions"], repeat=20)
        def test_repeated():
            fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    run = suite.run("--cutrace=require")
    assert run.status == 0, run.output
    assert (run.case("test_repeated").runs, values(suite, "test_repeated")["instructions"]) == (20, 1000)


def test_a_limit_asks_for_its_counter(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.gpu_limit(instructions=1500)
        @pytest.mark.parametrize("kernels", [1, 2])
        def test_budget(kernels):
            for _ in range(kernels):
                fakegpu.launch("k")
    """)  # fmt: skip
    run = suite.run("--cutrace")
    assert run.failed == {"test_budget[2]"}
    assert "instructions 2,000 (limit 1,500)" in run.output


def test_counters_of_a_region(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.cutrace
        def test_step(gpu_trace):
            fakegpu.launch("before")
            for _ in range(2):
                with gpu_trace.region("forward", counters=["instructions"]):
                    fakegpu.launch("k")
                    with gpu_trace.region("inner"):
                        fakegpu.launch("i")
            assert gpu_trace.metrics["instructions"] == 2000
            with gpu_trace.region("backward"):
                fakegpu.launch("b")
            assert "instructions" not in gpu_trace.metrics

        @pytest.fixture
        def counted(gpu_trace):
            with gpu_trace.region("whole", counters="instructions"):
                yield

        @pytest.mark.cutrace
        def test_fixture(counted):
            fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    regions = {name: dict(found) for name, found in read(suite.folder / "golden/test_a.toml").tests["test_step"]
               ["sm_90"].values.items()}  # fmt: skip
    assert regions["forward"]["instructions"] == 4000
    assert not any("instructions" in regions[name] for name in ("", "inner", "backward"))
    run = suite.run("--cutrace=require")
    assert run.status == 0, run.output
    assert run.case("test_fixture").regions["whole"]["instructions"] == 1000
    # The plugin's own calls for counting do not belong to the test.
    assert run.case("test_step").regions["forward"]["sync_calls"] == 0


@pytest.mark.parametrize("outer", ['@pytest.mark.cutrace(counters="l2_bytes")', "@pytest.mark.cutrace"])
def test_counters_inside_counters_are_an_error(suite: Suite, outer: str) -> None:
    suite.write("test_a.py", f"""
        {outer}
        def test_nested(gpu_trace):
            fakegpu.launch("k")
            with gpu_trace.region("a", counters="instructions" if {"l2" not in outer} else ()):
                with gpu_trace.region("b", counters="instructions"):
                    pass
    """)  # fmt: skip
    run = suite.run("--cutrace")
    assert run.failed == {"test_nested"}
    assert "the region b requests counters inside a test or region with counters" in run.output


def test_names_are_checked_when_tests_are_collected(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.cutrace(counters=["instruction"])
        def test_a():
            pass
    """)  # fmt: skip
    run = suite.run("--cutrace")
    assert run.status == 4
    assert re.search(r"test_a.py:6: there is no hardware counter 'instruction': did you mean instructions", run.output)
    suite.write("test_a.py", """
        def test_a(gpu_trace):
            with gpu_trace.region("a", counters=["sm__inst_executed.avg"]):
                pass
    """)  # fmt: skip
    run = suite.run()
    assert "'sm__inst_executed.avg' is not a count: end it with .sum, .min or .max" in run.output


# Counters that cannot be read

MANY = [
    f"{name}.{rollup}"
    for rollup in ("sum", "min", "max")
    for name in ("sm__inst_executed", "smsp__thread_inst_executed", "dram__bytes", "dram__bytes_read", "lts__t_bytes",
                 "dram__bytes_write", "l1tex__t_bytes", "sm__warps_active", "smsp__issue_active", "pcie__read_bytes",
                 "pcie__write_bytes")
]  # fmt: skip


def reasons(run: Outcome) -> set[str]:
    return {case.reason.removeprefix("counters: ") for case in run.cases.values()}


COUNTED = """
    @pytest.mark.cutrace(counters={})
    @pytest.mark.parametrize("n", range(3))
    def test_counted(n):
        fakegpu.launch("k")
"""


@pytest.fixture(scope="module")
def counted(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden files of a suite with one counter."""
    suite = Suite(tmp_path_factory.mktemp("counted"), fake_driver)
    suite.write("pytest.ini", "[pytest]\n")
    suite.write("test_a.py", COUNTED.format(["instructions"]))
    assert suite.run("--cutrace-update").status == 0
    return suite.folder / "golden"


@pytest.mark.parametrize(
    ("failure", "counters", "sentence"),
    [
        ("RangeProfilerStart:35", ["instructions"], "only administrators may read counters here"),
        ("ProfilerGetCounterAvailability:35", ["instructions"], "only administrators may read counters here"),
        ("RangeProfilerSetConfig:26", ["instructions"], "another tool holds the counters of this GPU"),
        ("ProfilerInitialize:15", ["instructions"], "libnvperf_host.so"),
        ("ProfilerHostInitialize:15", ["instructions"], "libnvperf_host.so"),
        ("RangeProfilerPopRange:999", ["instructions"], "cuptiRangeProfilerPopRange failed"),
        ("", ["sm__inst_execute.sum"], "GH100 has no metric sm__inst_execute.sum: did you mean sm__inst_executed.sum"),
        ("", MANY, "sm__inst_executed.sum, smsp__thread_inst_executed.sum, dram__bytes.sum and 30 more need 2 passes"),
    ],
)
def test_what_keeps_counters_from_being_read_is_one_sentence(
    suite: Suite, counted: Path, failure: str, counters: list[str], sentence: str
) -> None:
    shutil.copytree(counted, suite.folder / "golden")
    suite.write("test_a.py", COUNTED.format(["instructions", *counters]))
    run = suite.run("--cutrace", FAKE_CUPTI_FAILURES=failure)
    assert run.status == 0, run.output
    assert {case.state for case in run.cases.values()} == {State.UNVERIFIED}
    # The footer has one line about this, for any number of tests.
    (reason,) = reasons(run)
    assert sentence in reason
    footer = "".join(run.output.split())
    assert footer.count("".join(f"unverified 3 counters: {reason}".split())) == 1, run.output
    assert not suite.golden(".cutrace/proposed")


def test_counters_that_cannot_be_read_keep_their_values(suite: Suite, counted: Path) -> None:
    shutil.copytree(counted, suite.folder / "golden")
    suite.write("test_a.py", COUNTED.format(["instructions"]))
    before, failure = suite.golden(), "RangeProfilerStart:35"
    update = suite.run("--cutrace-update", FAKE_CUPTI_FAILURES=failure)
    assert {case.state for case in update.cases.values()} == {State.UNVERIFIED}
    assert suite.golden() == before


def test_the_other_metrics_are_compared_without_counters(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    suite.run("--cutrace-update")
    suite.write("test_a.py", SUITE.replace('fakegpu.copy("DtoD", 4096)', 'fakegpu.copy("DtoD", 8192)'))
    run = suite.run("--cutrace", FAKE_CUPTI_FAILURES="RangeProfilerStart:35")
    assert run.failed == {"test_copy"}
    candidate = suite.golden(".cutrace/proposed")["test_a.toml"]
    assert "instructions = 1000" in candidate  # kept, because it was not counted


def test_a_first_run_that_initialises_cuda_is_followed_by_one_that_counts(suite: Suite) -> None:
    suite.write("test_a.py", """
        RUNS = []

        @pytest.mark.cutrace(counters="instructions")
        def test_first():
            RUNS.append(fakegpu.launch("k"))

        def test_runs():
            assert len(RUNS) == int(os.environ.get("RUNS", 2))
    """)  # fmt: skip
    assert suite.run("--cutrace-update", RUNS="3").status == 0
    run = suite.run("--cutrace=require")
    assert run.status == 0, run.output
    assert any("CUDA was not in use" in note for note in run.case("test_first").notes)


def test_a_test_that_cannot_run_again_needs_cuda_before(suite: Suite) -> None:
    suite.write(
        "conftest.py",
        """
        import pytest

        @pytest.fixture
        def subtests():
            pass
    """,
    )
    suite.write(
        "test_a.py",
        """
        @pytest.fixture(scope="session")
        def gpu():
            if os.environ.get("EARLY"):
                fakegpu.init()

        @pytest.mark.cutrace(counters="instructions")
        def test_first(gpu, subtests):
            fakegpu.launch("k")
    """,
    )
    suite.run("--cutrace-update", EARLY="1")
    suite.run("--cutrace-update", EARLY="1")
    run = suite.run("--cutrace")
    assert run.case("test_first").state is State.UNVERIFIED
    assert "use the GPU first, for example in a session fixture" in run.case("test_first").reason
    assert suite.run("--cutrace=require", EARLY="1").status == 0


def test_a_thread_without_a_context_counts_in_the_primary_one(suite: Suite) -> None:
    suite.write("test_a.py", """
        import threading

        @pytest.fixture(scope="session", autouse=True)
        def used_elsewhere():
            thread = threading.Thread(target=fakegpu.init)
            thread.start()
            thread.join()

        @pytest.mark.cutrace(counters="instructions", warmup=0, repeat=1)
        def test_counted():
            fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    assert values(suite, "test_counted")["instructions"] == 1000


def test_a_program_without_cuda_stays_so(suite: Suite) -> None:
    suite.write("test_a.py", """
        import ctypes

        @pytest.mark.cutrace(counters="instructions")
        def test_cpu():
            count = ctypes.c_int()
            assert ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) == 3
    """)  # fmt: skip
    run = suite.run("--cutrace")
    assert run.status == 0, run.output
    assert run.case("test_cpu").state is State.UNVERIFIED


# Several processes on one GPU


def test_workers_take_turns(suite: Suite) -> None:
    suite.write("test_a.py", """
        import fcntl

        @pytest.mark.cutrace(counters="instructions", warmup=0, repeat=1)
        @pytest.mark.parametrize("n", range(6))
        def test_counted(n):
            begin = time.monotonic()
            fakegpu.launch("k")
            time.sleep(0.05)
            with open("times", "a") as file:
                file.write(f"{os.getpid()} {begin} {time.monotonic()}\\n")
    """)  # fmt: skip
    suite.write("conftest.py", """
        @pytest.fixture(scope="session", autouse=True)
        def gpu():
            fakegpu.init()
    """)  # fmt: skip
    first = suite.run("--cutrace-update", "-n", "2", plugins=("xdist",), XDG_RUNTIME_DIR=str(suite.folder))
    assert first.status == 0, first.output
    assert all(values(suite, f"test_counted[{n}]")["instructions"] == 1000 for n in range(6))
    rows = [line.split() for line in (suite.folder / "times").read_text().splitlines()]
    assert len({process for process, _, _ in rows}) == 2
    spans = sorted((float(begin), float(end)) for _, begin, end in rows)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_a_gpu_that_another_process_keeps_is_waited_for_once(suite: Suite) -> None:
    suite.write("test_a.py", SUITE)
    suite.write("conftest.py", """
        import cutrace.extras.hardware.counting

        cutrace.extras.hardware.counting.PATIENCE = 0.5
    """)  # fmt: skip
    suite.run("--cutrace-update", XDG_RUNTIME_DIR=str(suite.folder))
    (lock,) = suite.folder.glob("cutrace/*.lock")
    with Path(lock).open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = suite.run("--cutrace", XDG_RUNTIME_DIR=str(suite.folder))
    assert run.status == 0, run.output
    assert run.case("test_graph").state is State.UNVERIFIED
    assert "another process has counted on this GPU for more than 0.5 s" in run.case("test_graph").reason
    assert run.case("test_graph").duration_s < 0.4  # the first test waited


def test_counters_are_free_in_a_test_that_is_off(suite: Suite) -> None:
    suite.write("test_a.py", """
        import ctypes

        @pytest.mark.cutrace(counters="instructions")
        def test_counted():
            fakegpu.launch("k")

        @pytest.mark.cutrace(off=True)
        def test_off():
            from cutrace.extras.hardware.ranges import Context, RangeCounters

            counters = RangeCounters(["sm__inst_executed.sum"], Context.current())
            counters.start()
            fakegpu.launch("k")
            assert counters.stop() == {"sm__inst_executed.sum": 1000}
            counters.close()
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
