"""A test fails if its GPU work differs from its golden file, and the failure shows the difference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cutrace.reports.model import State
from support.fakedriver import FakeDriver
from support.suites import Suite

PROGRAM = """
def work(extra):
    address = fakegpu.malloc(4096)
    fakegpu.launch("_Z7softmaxPf", duration_ns=5000)
    fakegpu.copy("DtoH", 4)
    fakegpu.synchronize("cudaStreamSynchronize", stream=7)
    if os.environ.get("EXTRA") == extra:
        exec(os.environ["PROGRAM"])
    fakegpu.free(address)

def test_one():
    work("one")

def test_two():
    work("two")

def test_without_gpu():
    pass
"""


@pytest.fixture(scope="module")
def golden(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden files of the suite, written by one session."""
    suite = Suite(tmp_path_factory.mktemp("recorded"), fake_driver)
    suite.write("pytest.ini", "[pytest]\n")
    suite.write("test_it.py", PROGRAM)
    done = suite.run("--cutrace", "--cutrace-update")
    assert done.status == 0, done.output
    return suite.folder / "golden"


@pytest.fixture
def recorded(suite: Suite, golden: Path) -> Suite:
    """A suite with golden files."""
    suite.write("test_it.py", PROGRAM)
    shutil.copytree(golden, suite.folder / "golden")
    return suite


def test_nothing_changed(recorded: Suite) -> None:
    done = recorded.run("--cutrace")
    assert done.status == 0
    assert {name: case.state for name, case in done.cases.items()} == {
        "test_one": State.GATED,
        "test_two": State.GATED,
        "test_without_gpu": State.UNTRACED,
    }
    assert "cutrace: 2 traced, 2 gated, 0 unverified, 1 not traced on NVIDIA FAKE (sm_90)" in done.output


ADDED = [
    ('fakegpu.launch("_Z9cast_fp32Pf")', "kernel_launches", "+ cast_fp32 (new)"),
    ('fakegpu.launch("_Z7softmaxPf")', "kernel_launches", "+ softmax"),
    ('fakegpu.copy("HtoD", 4096)', "memcpy_count", "h2d"),
    ('fakegpu.synchronize("cudaDeviceSynchronize")', "sync_calls", "+ cudaDeviceSynchronize (new)"),
    ("fakegpu.memset(64)", "memset_count", ""),
    ("fakegpu.graph_launch(['a'])", "graph_launches", ""),
]


def test_what_is_added_fails_the_test_it_is_in(suite: Suite) -> None:
    tests = (f"def test_{at}():\n    work('now', {program!r})\n" for at, (program, _, _) in enumerate(ADDED))
    work = PROGRAM.partition("def test_one")[0].replace("(extra)", "(extra, program)")
    work = work.replace('os.environ["PROGRAM"]', "program")
    suite.write("test_it.py", "\n".join([work, *tests, "def test_same():\n    work('never', '')\n"]))
    assert suite.run("--cutrace-update").status == 0
    done = suite.run("--cutrace", EXTRA="now")
    assert done.status == 1
    assert done.failed == {f"test_{at}" for at in range(len(ADDED))}
    for at, (_, metric, told) in enumerate(ADDED):
        rows = {row.metric: row for row in done.case(f"test_{at}").rows if row.failed}
        assert metric in rows
        assert told in rows[metric].detail
        failure = done.output.partition(f"  test_{at} on NVIDIA FAKE")[2].partition("if intended: ")[0]
        table = failure.partition("\n  metric ")[2]
        (line,) = [line for line in table.splitlines() if line.split()[:1] == [metric.removesuffix("_bytes")]]
        assert told in line
        assert f"if intended: pytest --cutrace-update test_it.py::test_{at}" in done.output


@pytest.mark.parametrize(
    ("program", "metric", "told"),
    [
        ("fakegpu.free(fakegpu.malloc(1 << 24))", "allocations", "allocations 1 -> 2"),
        ('fakegpu.launch("_Z7softmaxPf", stream=9)', "streams_used", ""),
    ],
)
def test_states_of_the_process_fail_where_they_are_gated(suite: Suite, program: str, metric: str, told: str) -> None:
    """The contents of memory pools depend on earlier tests. So differences are only shown, unless a suite gates
    them."""
    suite.write("test_it.py", PROGRAM)
    gated = "--cutrace-gate=work,counter,state"
    assert suite.run("--cutrace-update", gated).status == 0
    more = {"EXTRA": "two", "PROGRAM": program if metric == "allocations" else f"fakegpu.synchronize(); {program}"}
    done = suite.run("--cutrace", gated, **more)
    (row,) = [row for row in done.case("test_two").rows if row.metric == metric]
    assert (row.failed, row.verdict.name) == (True, "WORSE")
    assert "test_two" in done.failed
    assert told in done.output
    if metric == "allocations":
        assert suite.run("--cutrace", **more).status == 0


def test_the_first_line_of_a_failure_names_the_metric(recorded: Suite) -> None:
    done = recorded.run("--cutrace", EXTRA="two", PROGRAM='fakegpu.launch("_Z4fillPf")')
    (line,) = [line for line in done.output.splitlines() if line.startswith("FAILED")]
    assert line == "FAILED test_it.py::test_two - Failed: cutrace: kernel_launches 1 -> 2 (+ fill)"


@pytest.mark.parametrize("distributed", [(), ("-n", "1")])
def test_failures_and_the_footer_have_colours_on_a_terminal(recorded: Suite, distributed: tuple[str, ...]) -> None:
    more = {"EXTRA": "two", "PROGRAM": 'fakegpu.launch("_Z4fillPf")'}
    plugins = ("xdist",) if distributed else ()
    junit = ("--junitxml=out.xml", *distributed)
    coloured = recorded.run("--cutrace", "--color=yes", *junit, plugins=plugins, **more).output
    assert "\x1b[31mcutrace: kernel_launches 1 -> 2" in coloured
    assert "\x1b[31mcutrace: 2 traced, 2 gated (1 failed)" in coloured
    text = (recorded.folder / "out.xml").read_text()
    assert "cutrace: kernel_launches 1 -&gt; 2" in text
    assert "#x1B" not in text
    plain = recorded.run("--cutrace", "--color=no", *distributed, plugins=plugins, **more)
    assert "\x1b" not in plain.output
    assert "\ncutrace: kernel_launches 1 -> 2" in plain.output


def test_less_is_better_by_name_and_fails_where_that_is_asked_for(recorded: Suite) -> None:
    recorded.write("test_it.py", PROGRAM.replace('    fakegpu.copy("DtoH", 4)\n', ""))
    done = recorded.run("--cutrace")
    assert done.status == 0
    (line,) = [line for line in done.output.splitlines() if line.startswith("  better")]
    assert line.split()[:5] == ["better", "2", "test_one:", "memcpy_count", "1"]
    done = recorded.run("--cutrace", "--cutrace-gate=work,less")
    assert done.status == 1
    assert done.failed == {"test_one", "test_two"}


def test_a_failure_leaves_the_trace_it_names(recorded: Suite) -> None:
    done = recorded.run("--cutrace", EXTRA="two", PROGRAM='fakegpu.launch("x")')
    (line,) = [line for line in done.output.splitlines() if line.startswith("  trace ")]
    trace = recorded.folder / line.split()[1]
    assert trace.stat().st_size > 100
    assert {path.name for path in trace.parent.iterdir()} == {"metrics.json", "run.bin", "trace.pftrace"}
    assert not (recorded.folder / ".cutrace/tests/test_it.py/test_one").exists()
    assert (recorded.folder / ".cutrace/.gitignore").read_text().endswith("*\n")


@pytest.mark.parametrize(("keep", "kept"), [("all", {"test_one", "test_two"}), ("none", set())])
def test_what_is_kept(recorded: Suite, keep: str, kept: set[str]) -> None:
    recorded.run("--cutrace", f"--cutrace-keep={keep}", EXTRA="two", PROGRAM='fakegpu.launch("x")')
    found = {path.parent.name for path in recorded.folder.glob(".cutrace/tests/test_it.py/*/trace.pftrace")}
    assert found == kept


def test_the_first_run_of_a_body_may_differ(recorded: Suite) -> None:
    """The first run may load modules and fill caches and pools. So the second run is judged, and the failure says
    so."""
    cold = "import builtins\nif not hasattr(builtins, 'warm'):\n    builtins.warm = fakegpu.launch('load')"
    done = recorded.run("--cutrace", EXTRA="one", PROGRAM=cold)
    assert done.status == 0
    assert done.case("test_one").notes == ("the first run differed too: this is the second run",)
    assert done.case("test_one").values["kernel_launches"] == 1
    done = recorded.run("--cutrace", EXTRA="one", PROGRAM='fakegpu.launch("x")')
    assert "this is the second run" in done.output


@pytest.mark.parametrize(
    "value", ["gate=sync_calls,memcpy_count", "tolerance=kernel_launches=100%", "ignore=kernels:soft*,sync_calls"]
)
def test_gates_and_tolerances(recorded: Suite, value: str) -> None:
    more = {"EXTRA": "two", "PROGRAM": 'fakegpu.launch("_Z7softmaxPf")'}
    done = recorded.run("--cutrace", "-o", f"cutrace_{value}", **more)
    assert done.status == 0, done.output
    done = recorded.run("--cutrace", "-o", f"cutrace_{value}", "-n", "1", plugins=("xdist",), **more)
    assert done.status == 0, done.output


def test_the_command_of_a_failure_gates_the_same_metrics(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it():
            fakegpu.free(fakegpu.malloc(int(os.environ["MIB"]) << 20))
            fakegpu.launch("k")
    """)  # fmt: skip
    suite.run("--cutrace-update", "--cutrace-gate=peak_memory", MIB="8")
    done = suite.run("--cutrace", "--cutrace-gate=peak_memory", MIB="64")
    (command,) = [line for line in done.output.splitlines() if "if intended: " in line]
    _, _, *options = command.partition("if intended: ")[2].split()[:-1]
    assert options == ["--cutrace-gate", "peak_memory"]
    suite.run("--cutrace-update=all", *options, MIB="64")
    assert "peak_memory_bytes = 67108864" in suite.golden()["test_a.toml"]


def test_the_gate_of_the_command_line_overrides_that_of_the_ini_file(recorded: Suite) -> None:
    recorded.write("pytest.ini", "[pytest]\ncutrace_gate = none\n")
    more = {"EXTRA": "two", "PROGRAM": 'fakegpu.launch("_Z7softmaxPf")'}
    assert recorded.run("--cutrace", **more).status == 0
    assert recorded.run("--cutrace", "--cutrace-gate=work", **more).status == 1


#: For each case, the runs of a test that are slow, and the resulting comparison.
SLOW = {
    "never": ("[]", "SAME"),
    "always": ("range(100)", "SLOW"),
    "at_first": ("range(3)", "AMBIGUOUS"),
    "at_the_second_look_too": ("range(6)", "AMBIGUOUS"),
}
#: A test with a kernel that takes a millisecond longer in its runs {slow_runs}, if SLOW is set.
TIMED = """
@pytest.mark.cutrace(gate="work,time", repeat=3)
def test_{name}(runs=iter(range(100))):
    slow = next(runs) in {slow_runs} and "SLOW" in os.environ
    fakegpu.launch("k", duration_ns=1_020_000 if slow else 20_000)
    fakegpu.synchronize()
"""


def test_a_slower_time_fails_only_when_every_look_agrees(suite: Suite) -> None:
    # Calls take real time on this machine. The times of kernels come from the fake GPU.
    suite.write("pytest.ini", "[pytest]\ncutrace_tolerance = api_time=100000%\n")
    tests = (TIMED.format(name=name, slow_runs=slow_runs) for name, (slow_runs, _) in SLOW.items())
    suite.write("test_it.py", "\n".join(tests))
    done = suite.run("--cutrace", "--cutrace-update")
    assert done.status == 0, done.output
    done = suite.run("--cutrace", SLOW="1")
    for name, (_, verdict) in SLOW.items():
        (row,) = [row for row in done.case(f"test_{name}").rows if row.metric == "kernel_time_ns"]
        assert row.verdict.name == verdict, done.output
    assert done.failed == {"test_always"}


@pytest.mark.parametrize(
    ("verbosity", "counts", "files", "notes"),
    [("-2", False, False, False), ("-1", True, False, False), ("0", True, True, False), ("1", True, True, True)],
)
def test_how_much_the_footer_says(recorded: Suite, verbosity: str, counts: bool, files: bool, notes: bool) -> None:
    (recorded.folder / "pytest.ini").write_text(f"[pytest]\nverbosity_cutrace = {verbosity}\n")
    extra = {"EXTRA": "two", "PROGRAM": 'fakegpu.launch("_Z7softmaxPf")'}
    output = recorded.run("--cutrace", **extra).output.partition("short test summary")[0]
    footer = output.rpartition("- cutrace -")[2] if "- cutrace -" in output else ""
    assert ("2 traced" in footer, "report.json" in footer, "this is the second run" in footer) == (counts, files, notes)
