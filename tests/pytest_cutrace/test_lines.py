"""A failure names the Python line that added work."""

from __future__ import annotations

import pytest

from support.suites import Outcome, Suite

#: A library of the project, and tests that add work if ADD is set. Comments mark the lines that failures name.
LIBRARY = """
import os
import fakegpu

ADD = os.environ.get("ADD", "").split()

def fused_add():
    fakegpu.launch("softmax")  # softmax
    if "kernel" in ADD:
        fakegpu.launch("cast")  # cast
    if "copy" in ADD:
        fakegpu.copy("DtoH", 64)  # copy
    if "sync" in ADD:
        fakegpu.synchronize()  # sync
    if "fill" in ADD:
        fakegpu.memset(16)  # fill
    if "memory" in ADD:
        fakegpu.malloc(1 << 20)  # memory
    if "graph" in ADD:
        fakegpu.graph_launch(["node"])  # graph
    for _ in range("more" in ADD):
        fakegpu.launch("softmax")  # more
"""
PROGRAM = """
from mylib.ops import fused_add

@pytest.mark.cutrace(gate="work,allocations,peak_memory")
def test_add():
    fused_add()  # body
"""


class Lines:
    """A suite with a library that changes after its golden values were recorded."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        suite.write("mylib/__init__.py", "", prelude=False)
        suite.write("mylib/ops.py", LIBRARY, prelude=False)

    def line(self, name: str, mark: str) -> str:
        """The line with a mark: ``mylib/ops.py:12``."""
        text = (self.suite.folder / name).read_text().splitlines()
        (number,) = [at for at, line in enumerate(text, 1) if line.endswith(f"# {mark}")]
        return f"{name}:{number}"

    def changed(self, add: str, *options: str, program: str = PROGRAM, **more) -> Outcome:
        self.suite.write("test_it.py", program)
        assert self.suite.run("--cutrace", "--cutrace-update", **more).status == 0
        return self.suite.run("--cutrace", *options, ADD=add, **more)


@pytest.fixture
def lines(suite: Suite) -> Lines:
    suite.write("conftest.py", "sys.path.insert(0, os.path.dirname(__file__))\n")
    return Lines(suite)


def added(done: Outcome, name: str = "test_add") -> list[tuple]:
    """The added work in a case: the change, and the place, test and count of each site."""
    return [
        (work.change, [(site.place, site.test, site.count) for site in work.sites]) for work in done.case(name).added
    ]


@pytest.mark.parametrize(
    ("add", "mark", "change"),
    [
        ("kernel", "cast", "+ cast"),
        ("copy", "copy", "+ d2h"),
        ("sync", "sync", "+ cudaDeviceSynchronize"),
        ("fill", "fill", "memset_count 0 -> 1"),
        ("graph", "graph", "graph_launches 0 -> 1"),
        ("graph", "graph", "+ node"),
        ("memory", "memory", "allocations 0 -> 1"),
    ],
)
def test_new_work_has_its_line_and_the_line_of_the_test(lines: Lines, add: str, mark: str, change: str) -> None:
    done = lines.changed(add)
    place = f"{lines.line('mylib/ops.py', mark)} in fused_add"
    test = lines.line("test_it.py", "body")
    assert (change, [(place, test, 1)]) in added(done)
    assert f"  {change}   " in done.output
    assert f"   {place}  <- {test}\n" in done.output


def test_more_of_the_same_work_has_all_of_its_lines(lines: Lines) -> None:
    """It is unknown which of the lines was added."""
    program = PROGRAM + "    fused_add()  # again\n"
    done = lines.changed("more", program=program)
    old = lines.line("mylib/ops.py", "softmax") + " in fused_add"
    new = lines.line("mylib/ops.py", "more") + " in fused_add"
    body, again = (lines.line("test_it.py", mark) for mark in ("body", "again"))
    sites = [(old, body, 1), (new, body, 1), (old, again, 1), (new, again, 1)]
    assert added(done) == [("softmax 2 -> 4", sites)]
    assert "and 1 more place\n" in done.output


def test_work_of_the_body_itself_has_one_line(lines: Lines) -> None:
    program = """
        def test_add():
            fakegpu.launch("softmax")
            if os.environ.get("ADD"):
                for _ in range(3):
                    fakegpu.launch("cast")  # own
    """
    done = lines.changed("kernel", program=program)
    assert added(done) == [("+ cast", [(f"{lines.line('test_it.py', 'own')} in test_add", "", 3)])]
    assert f"  + cast   3x {lines.line('test_it.py', 'own')} in test_add" in done.output
    assert "<-" not in done.output


def test_what_is_gone_has_no_line(lines: Lines) -> None:
    program = """
        @pytest.mark.cutrace(gate="work,less")
        def test_add():
            fakegpu.launch("softmax")
            if not os.environ.get("ADD"):
                fakegpu.launch("cast")
    """
    done = lines.changed("kernel", program=program)
    assert done.failed == {"test_add"}
    assert added(done) == []


def test_a_limit_has_the_lines_of_all_that_counts(lines: Lines) -> None:
    program = """
        @pytest.mark.gpu_limit(sync_calls=0, kernel_launches=1, memcpy_d2h_count=0)
        def test_add():
            for _ in range(2):
                fakegpu.launch("softmax")  # launch
            fakegpu.copy("DtoH", 8)  # copy
            fakegpu.synchronize()  # sync
    """
    lines.suite.write("test_it.py", program)
    done = lines.suite.run("--cutrace")
    assert added(done) == [
        ("sync_calls 1", [(f"{lines.line('test_it.py', 'sync')} in test_add", "", 1)]),
        ("kernel_launches 2", [(f"{lines.line('test_it.py', 'launch')} in test_add", "", 2)]),
        ("memcpy_d2h_count 1", [(f"{lines.line('test_it.py', 'copy')} in test_add", "", 1)]),
    ]


def test_a_limit_adds_no_lines_to_those_of_golden_values(lines: Lines) -> None:
    program = """
        @pytest.mark.gpu_limit(kernel_launches=1)
        def test_add():
            fakegpu.launch("softmax")
            if os.environ.get("ADD"):
                fakegpu.launch("cast")  # cast
    """
    done = lines.changed("kernel", program=program)
    rows = [(row.metric, row.rule) for row in done.case("test_add").failed_rows]
    assert rows == [("kernel_launches", "exact"), ("kernel_launches", "limit")]
    assert added(done) == [("+ cast", [(f"{lines.line('test_it.py', 'cast')} in test_add", "", 1)])]


def test_memory_in_use_has_the_lines_of_allocations_with_their_bytes(lines: Lines) -> None:
    program = """
        @pytest.mark.gpu_limit(peak_memory="1 MiB")
        def test_add():
            fakegpu.malloc(1 << 20)  # small
            fakegpu.malloc(3 << 20)  # large
    """
    lines.suite.write("test_it.py", program)
    done = lines.suite.run("--cutrace")
    small, large = (f"{lines.line('test_it.py', mark)} in test_add" for mark in ("small", "large"))
    assert added(done) == [("peak_memory 4 MiB", [(large, "", 1), (small, "", 1)])]
    assert f"  peak_memory 4 MiB   3 MiB {large}\n" in done.output


def test_a_region_names_its_lines_unless_the_whole_test_does(lines: Lines) -> None:
    program = """
        def test_add(gpu_trace):
            with gpu_trace.region("forward"):
                if os.environ.get("ADD") != "more":
                    fakegpu.launch("softmax")
                if os.environ.get("ADD"):
                    fakegpu.copy("DtoH", 4)  # inside
            with gpu_trace.region("backward"):
                if os.environ.get("ADD") == "more":
                    fakegpu.launch("softmax")  # moved
    """
    done = lines.changed("copy", program=program)
    assert [change for change, _ in added(done)] == ["+ d2h"]
    done = lines.suite.run("--cutrace", ADD="more")
    moved = (f"{lines.line('test_it.py', 'moved')} in test_add", "", 1)
    assert ("backward: + softmax", [moved]) in added(done)


def test_a_run_that_does_other_work_names_no_line(lines: Lines) -> None:
    program = """
        RUNS = []
        def test_add():
            RUNS.append(1)
            fakegpu.launch("softmax")
            if os.environ.get("ADD"):
                fakegpu.launch("cast")
                for _ in range(max(len(RUNS), 2)):
                    fakegpu.launch("other")
    """
    done = lines.changed("kernel", program=program)
    assert [change for change, _ in added(done)] == ["+ cast"]
    assert "other work" in " ".join(done.case("test_add").notes)


def test_a_test_that_runs_once_has_no_line_and_says_why(lines: Lines) -> None:
    program = """
        RUNS = []
        def test_add():
            RUNS.append(1)
            with open("runs", "w") as file:
                file.write(str(len(RUNS)))
            assert len(RUNS) == 1 or not os.environ.get("ADD")
            fakegpu.launch("softmax")
            if os.environ.get("ADD"):
                fakegpu.launch("cast")
    """
    done = lines.changed("kernel", program=program)
    assert added(done) == []
    assert "another run did not pass: AssertionError" in done.output
    assert (lines.suite.folder / "runs").read_text() == "3", "no run more than for the decision"


def test_a_teardown_that_fails_in_between_leaves_the_failure_as_it_was(lines: Lines) -> None:
    program = """
        RUNS = []
        @pytest.fixture
        def state():
            yield
            RUNS.append(1)
            assert len(RUNS) != 2 or not os.environ.get("ADD")
        def test_add(state):
            fakegpu.launch("softmax")
            if os.environ.get("ADD"):
                fakegpu.launch("cast")
    """
    done = lines.changed("kernel", program=program)
    assert "cutrace: kernel_launches 1 -> 2 (+ cast)\n" in done.output
    assert added(done) == []


def test_without_stacks_a_note_says_why(lines: Lines) -> None:
    """For example, the frames of this Python version may be unknown."""
    lines.suite.write(
        "conftest.py",
        """
        from pytest_cutrace.recording import SessionRecording
        sys.path.insert(0, os.path.dirname(__file__))
        SessionRecording.stacks = lambda self, calls: "the frames of Python 4.0 are unknown"
    """,
    )
    done = lines.changed("kernel")
    assert added(done) == []
    assert done.output.count("no line is named: the frames of Python 4.0 are unknown") == 1


def test_work_without_a_python_frame_says_so(lines: Lines) -> None:
    program = """
        def test_add():
            fakegpu.launch("softmax")
            if os.environ.get("ADD"):
                code = "import fakegpu; fakegpu.launch('cast')"
                subprocess.run([sys.executable, "-c", code], check=True)
    """
    done = lines.changed("kernel", program=program)
    assert added(done) == [("+ cast", [("", "", 1)])]
    assert "  + cast   no Python frame\n" in done.output


def test_a_thread_of_python_has_its_line(lines: Lines) -> None:
    program = """
        import threading
        def work():
            if os.environ.get("ADD"):
                fakegpu.launch("cast")  # thread
        def test_add():
            fakegpu.launch("softmax")
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    """
    done = lines.changed("kernel", program=program)
    assert added(done) == [("+ cast", [(f"{lines.line('test_it.py', 'thread')} in work", "", 1)])]


def test_installed_packages_are_not_the_code_of_the_project(lines: Lines) -> None:
    lines.suite.write("venv/lib/python3/site-packages/other.py", "import fakegpu\ndef cast(): fakegpu.launch('cast')\n")
    lines.suite.write(
        "mylib/ops.py",
        """
        import os, sys
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../venv/lib/python3/site-packages"))
        import other
        def fused_add():
            if os.environ.get("ADD"):
                other.cast()  # cast
    """,
        prelude=False,
    )
    program = PROGRAM.replace("    fused_add()", "    fakegpu.launch('softmax'); fused_add()")
    done = lines.changed("kernel", program=program)
    assert added(done)[0][1][0][0] == f"{lines.line('mylib/ops.py', 'cast')} in fused_add"


def test_a_test_that_an_installed_plugin_makes_has_its_line_in_the_module(lines: Lines) -> None:
    """As scenarios of pytest-bdd, and coroutines that pytest-trio wraps."""
    scenario = """
        def scenario(step):
            def wrapped():
                step()
            return wrapped
    """
    lines.suite.write("site-packages/scenarios.py", scenario, prelude=False)
    lines.suite.write("conftest.py", """
        sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "site-packages")]
    """)  # fmt: skip
    program = """
        from mylib.ops import fused_add
        from scenarios import scenario

        def step():
            fused_add()  # step

        test_add = scenario(step)
    """
    done = lines.changed("kernel", program=program)
    place = f"{lines.line('mylib/ops.py', 'cast')} in fused_add"
    assert added(done) == [("+ cast", [(place, lines.line("test_it.py", "step"), 1)])]


def test_only_the_first_failure_of_a_cause_runs_once_more(lines: Lines) -> None:
    program = """
        @pytest.mark.parametrize("number", range(4))
        def test_add(number):
            with open("runs", "a") as file:
                file.write(".")
            fakegpu.launch("softmax")
            if os.environ.get("ADD"):
                fakegpu.launch("cast")  # cast
    """
    runs = lines.suite.folder / "runs"
    lines.suite.write("test_it.py", program)
    assert lines.suite.run("--cutrace", "--cutrace-update").status == 0
    runs.unlink()
    done = lines.suite.run("--cutrace", ADD="kernel")
    assert len(runs.read_text()) == 4 * 2 + 1
    assert [bool(done.case(f"test_add[{number}]").added) for number in range(4)] == [True, False, False, False]


@pytest.mark.parametrize("options", [("--cutrace=require",), ("-n", "2")])
def test_other_modes_have_the_same_lines(lines: Lines, options: tuple[str, ...]) -> None:
    plugins = ("xdist",) if "-n" in options else ()
    done = lines.changed("kernel", *options, plugins=plugins)
    assert done.status == 1
    assert [change for change, _ in added(done)] == ["+ cast"]


def test_later_tests_take_no_stacks(lines: Lines) -> None:
    """The recording continues, but takes no more stacks."""
    program = (
        PROGRAM
        + """
def test_later():
    callbacks = ctypes.CDLL("libcupti.so.13").fake_callbacks
    before = callbacks()
    fakegpu.synchronize()
    with open("callbacks", "a") as file:
        file.write(f"{callbacks() - before} ")
"""
    )
    lines.changed("kernel", program="import ctypes\n" + program)
    counts = (lines.suite.folder / "callbacks").read_text().split()
    assert len(set(counts)) == 1
