"""Limits of synchronising calls, with exceptions by place."""

from __future__ import annotations

import re

import pytest

from cutrace.reports.model import State
from support.suites import Suite

LIBRARY = """
    import os
    import threading

    import fakegpu

    def step():
        fakegpu.launch("k")
        if "STEP_WAITS" in os.environ:
            fakegpu.synchronize()

    class Reader:
        def read(self):
            fakegpu.copy("DtoH", 64)
            fakegpu.synchronize("cudaStreamSynchronize", stream=7)

    def in_a_thread():
        thread = threading.Thread(target=Reader().read)
        thread.start()
        thread.join()
"""
TEST = """
    from mylib import io

    @pytest.mark.gpu_limit(sync_calls=0, allow=["mylib/io.py:read"], reason="the caller needs the result")
    def test_step():
        io.step()
        io.Reader().read()
        io.Reader().read()
"""
REGION = """
    from mylib import io

    def test_step(gpu_trace):
        with gpu_trace.region("decode", sync_calls=0, allow="mylib/io.py:Reader.read", reason="the caller needs it"):
            io.step()
            io.Reader().read()
        fakegpu.synchronize()
"""


@pytest.fixture
def library(suite: Suite) -> Suite:
    suite.write("mylib/__init__.py", "", prelude=False)
    suite.write("mylib/io.py", LIBRARY, prelude=False)
    suite.write("conftest.py", "", prelude=False)
    return suite


@pytest.mark.parametrize(
    "place",
    ["mylib/io.py:read", "mylib/io.py:Reader.read", "mylib/io.py:*", "mylib/*:*", "mylib/io.py:15", "/io.py:R/",
     "test_a.py:test_step"],
)  # fmt: skip
def test_calls_at_allowed_places_do_not_count(library: Suite, place: str) -> None:
    library.write("test_a.py", TEST.replace("mylib/io.py:read", place))
    done = library.run("--cutrace")
    case = done.case("test_step")
    assert (done.status, case.state) == (0, State.GATED), done.output
    assert case.values["sync_calls"] == 2
    assert "sync_calls leaves out 2 calls at allowed places: the caller needs the result" in case.notes


def test_a_call_elsewhere_fails_and_is_named(library: Suite) -> None:
    library.write("test_a.py", TEST)
    done = library.run("--cutrace", STEP_WAITS="1")
    assert done.failed == {"test_step"}
    assert "cutrace: sync_calls 1 (limit 0: mylib/io.py:10 in step)" in done.output
    assert re.search(r"sync_calls +0 +1 +limit +WORSE over the limit, mylib/io.py:10 in step", done.output)


@pytest.mark.parametrize("option", ["--cutrace", "--cutrace-update"])
def test_regions_have_lists_of_their_own(library: Suite, option: str) -> None:
    library.write("test_a.py", REGION)
    done = library.run(option)
    assert done.status == 0, done.output
    assert "decode/sync_calls leaves out 1 call at allowed places: the caller needs it" in done.case("test_step").notes
    done = library.run(option, STEP_WAITS="1")
    assert done.failed == {"test_step"}
    assert "cutrace: decode/sync_calls 1 (limit 0: mylib/io.py:10 in step)" in done.output


def test_a_list_leaves_the_lines_of_other_work(library: Suite) -> None:
    limited = REGION.replace("def test_step", "@pytest.mark.gpu_limit(kernel_launches=1)\n    def test_step")
    library.write("test_a.py", f"{limited}        fakegpu.launch('late')\n")
    done = library.run("--cutrace")
    assert done.failed == {"test_step"}
    (work,) = done.case("test_step").added
    assert {site.place for site in work.sites} == {"mylib/io.py:8 in step", "test_a.py:14 in test_step"}


def test_golden_values_count_all_calls(library: Suite) -> None:
    library.write("test_a.py", TEST)
    library.run("--cutrace-update")
    assert "syncs = { cudaStreamSynchronize = 2 }" in library.golden()["test_a.toml"]
    library.write("test_a.py", TEST + "        io.Reader().read()\n")
    done = library.run("--cutrace")
    assert done.failed == {"test_step"}
    assert "sync_calls 2 -> 3 (+ cudaStreamSynchronize)" in done.output


def test_a_call_without_a_python_frame_counts(library: Suite) -> None:
    library.write("test_a.py", """
        import subprocess

        @pytest.mark.gpu_limit(sync_calls=0, allow=["*:*"], reason="x")
        def test_child():
            fakegpu.launch("k")
            program = "import fakegpu; fakegpu.launch('k'); fakegpu.synchronize()"
            subprocess.run([sys.executable, "-c", program], check=True)

        @pytest.mark.gpu_limit(sync_calls=0, allow=["mylib/io.py:read"], reason="x")
        def test_thread():
            from mylib import io

            io.in_a_thread()
    """)  # fmt: skip
    done = library.run("--cutrace")
    assert done.failed == {"test_child"}, done.output
    assert "cutrace: sync_calls 1 (limit 0: no Python frame)" in done.output


def test_a_list_that_allows_nothing_is_told(library: Suite) -> None:
    stale = TEST.replace("mylib/io.py:read", "mylib/io.py:readd").replace("io.Reader", "#")
    library.write("test_a.py", stale)
    done = library.run("--cutrace")
    assert done.status == 0
    assert done.case("test_step").allowed == {"mylib/io.py:readd": 0}
    assert "allow no call was made at mylib/io.py:readd (1 test): correct or remove it" in done.words
    library.write("test_a.py", TEST)
    library.write("test_b.py", TEST.replace("io.Reader", "#").replace("test_step", "test_other"))
    used = library.run("--cutrace")
    assert [used.case(name).allowed for name in ("test_step", "test_other")] == [
        {"mylib/io.py:read": 2}, {"mylib/io.py:read": 0},
    ]  # fmt: skip
    assert "no call was made" not in used.words, "one test is enough"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("sync_calls=0, allow=[], reason='x'", "allow=[] names no place"),
        ("sync_calls=0, allow=['mylib/io.py:*']", "allow needs a reason"),
        ("allow=['mylib/io.py:*'], reason='x'", "write sync_calls=0 beside it"),
        ("sync_calls=0, allow=['mylib/io.py'], reason='x'", "write mylib/io.py:FUNCTION, mylib/io.py:LINE"),
    ],
)
def test_wrong_lists(suite: Suite, arguments: str, told: str) -> None:
    path = suite.write("test_a.py", f"@pytest.mark.gpu_limit({arguments})\ndef test_it():\n    pass\n")
    done = suite.run("--cutrace")
    assert done.status == 4
    assert re.search(rf"{re.escape(str(path))}:5: .*{re.escape(told)}", done.output)
    path = suite.write(
        "test_a.py", f"def test_it(gpu_trace):\n    with gpu_trace.region('r', {arguments}):\n        pass\n"
    )
    done = suite.run()
    assert re.search(rf"{re.escape(str(path))}:6: .*{re.escape(told)}", done.output)


def test_a_closer_marker_may_add_a_list(library: Suite) -> None:
    library.write("test_a.py", """
        from mylib import io

        @pytest.mark.gpu_limit(sync_calls=0)
        class TestAll:
            @pytest.mark.gpu_limit(allow=["mylib/io.py:read"], reason="x")
            def test_read(self):
                io.Reader().read()

            def test_other(self):
                io.Reader().read()
    """)  # fmt: skip
    assert library.run("--cutrace").failed == {"TestAll.test_other"}
