"""Limits on regions of a test."""

from __future__ import annotations

import re

import pytest

from cutrace.reports.model import State
from support.suites import Suite

DECODE = """
    MORE = int(os.environ.get("MORE", 0))

    def test_step(gpu_trace):
        fakegpu.synchronize()
        with gpu_trace.region("decode", sync_calls=0, kernel_launches=2, peak_memory="1 MiB"):
            fakegpu.launch("a")
            for _ in range(MORE):
                fakegpu.synchronize()
        with gpu_trace.region("decode", sync_calls=0, kernel_launches=2, peak_memory="1 MiB"):
            fakegpu.launch("b")
"""


def test_a_region_is_judged_by_its_limits(suite: Suite) -> None:
    suite.write("test_a.py", DECODE)
    assert suite.run().status == 0, "limits do nothing without --cutrace"
    for option in ("--cutrace", "--cutrace=require", "--cutrace-update"):
        done = suite.run(option, "-o", "cutrace_scope=marked")
        assert done.status == 0, done.output
        assert done.case("test_step").state is State.GATED
    done = suite.run("--cutrace", MORE="3")
    assert done.failed == {"test_step"}
    assert "cutrace: decode/sync_calls 3 (limit 0: cudaDeviceSynchronize x3)" in done.output
    assert re.search(r"decode/sync_calls +0 +3 +limit +WORSE over the limit", done.output)
    assert "if intended: raise the limit in gpu_trace.region('decode')" in done.output
    assert "gpu_limit" not in done.output


def test_regions_of_one_name_add_up_and_share_their_limits(suite: Suite) -> None:
    suite.write("test_a.py", DECODE.replace('fakegpu.launch("b")', 'fakegpu.launch("b"); fakegpu.launch("c")'))
    done = suite.run("--cutrace")
    assert "cutrace: decode/kernel_launches 3 (limit 2: a, b, c)" in done.output
    path = suite.write("test_a.py", """
        def test_step(gpu_trace):
            with gpu_trace.region("decode", sync_calls=0):
                fakegpu.launch("a")
            with gpu_trace.region("decode", sync_calls=1):
                fakegpu.launch("b")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.failed == {"test_step"}
    assert f"{path}:9: the region decode has other limits already" in done.output


def test_settled_runs_are_judged(suite: Suite) -> None:
    suite.write("test_a.py", """
        WARM = []

        def test_it(gpu_trace):
            with gpu_trace.region("decode", kernel_launches=1):
                if not WARM:
                    fakegpu.launch("compile")
                WARM.append(1)
                fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.status == 0, done.output
    assert done.case("test_it").state is State.GATED
    assert "the first run differed too: this is the second run" in done.case("test_it").notes


@pytest.mark.parametrize("option", [(), ("--cutrace",), ("--cutrace=off",)])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("sync_call=0", "there is no metric 'sync_call': did you mean sync_calls"),
        ("kernels=3", "kernels has counts by name and cannot be limited: limit kernel_launches instead"),
        ("peak_memory='much'", "'much' is not a size"),
        ("counters='instruction'", "there is no hardware counter 'instruction'"),
    ],
)
def test_wrong_limits(suite: Suite, option: tuple[str, ...], arguments: str, told: str) -> None:
    path = suite.write("test_a.py", f"""
        def test_it(gpu_trace):
            with gpu_trace.region("decode", {arguments}):
                pass
    """)  # fmt: skip
    done = suite.run(*option)
    assert done.status == 1
    assert f"CutraceError: {path}:7: {told}" in done.output
    assert "fixtures.py" not in done.output
    assert "attempt.py" not in done.output
    assert "contextlib.py" not in done.output


def test_a_limited_region_that_is_not_entered_is_unverified(suite: Suite) -> None:
    suite.write("test_a.py", """
        WARM = []

        def test_never(gpu_trace):
            gpu_trace.region("decode", sync_calls=0)
            fakegpu.launch("k")

        @pytest.fixture
        def before(gpu_trace):
            with gpu_trace.region("decode", sync_calls=0):
                fakegpu.launch("k")

        def test_before(before):
            fakegpu.launch("k")

        @pytest.mark.gpu_limit(kernel_launches=1)
        def test_once(gpu_trace):
            fakegpu.launch("k")
            if not WARM:
                WARM.append(1)
                with gpu_trace.region("compile", sync_calls=0):
                    fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.status == 0, done.output
    for case in done.cases.values():
        assert (case.state, case.reason) == (State.UNVERIFIED, "a region with limits was not entered"), case.name
    assert suite.run("--cutrace=require", "-o", "cutrace_scope=marked").status == 4


def test_limits_of_tests_that_could_not_be_traced_are_unverified(suite: Suite) -> None:
    text = """
        def test_it(gpu_trace):
            fakegpu.init()
            with gpu_trace.region("decode", sync_calls=0):
                pass
    """
    suite.write("test_a.py", text)
    assert suite.run("--cutrace").case("test_it").state is State.GATED, "a test without GPU work is within its limits"
    suite.write("test_a.py", text.replace("fakegpu.init()", "pass"))
    hidden = suite.run("--cutrace", CUDA_VISIBLE_DEVICES="")
    assert hidden.case("test_it").state is State.UNVERIFIED
    assert "hides all GPUs" in hidden.case("test_it").reason
    suite.write("fakegpu.py", "")
    without = suite.run("--cutrace", gpu=False).case("test_it")
    assert (without.state, without.reason) == (State.UNVERIFIED, "there is no NVIDIA driver (libcuda.so.1)")


def test_limits_of_a_fixture_that_spans_the_body(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.fixture
        def quiet(gpu_trace):
            with gpu_trace.region("quiet", sync_calls=0):
                yield

        def test_it(quiet):
            fakegpu.launch("k")
            for _ in range(int(os.environ.get("MORE", 0))):
                fakegpu.synchronize()
    """)  # fmt: skip
    assert suite.run("--cutrace").case("test_it").state is State.GATED
    assert "cutrace: quiet/sync_calls 1 (limit 0: cudaDeviceSynchronize)" in suite.run("--cutrace", MORE="1").output


def test_a_limit_asks_for_its_counter(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.parametrize("kernels", [1, 2])
        def test_budget(gpu_trace, kernels):
            fakegpu.init()
            with gpu_trace.region("decode", instructions=1500):
                for _ in range(kernels):
                    fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.failed == {"test_budget[2]"}, done.output
    assert "decode/instructions 2,000 (limit 1,500)" in done.output
    assert done.case("test_budget[1]").state is State.GATED


PINNED = """
    PINNED = "PAGEABLE" not in os.environ
    STREAM = int(os.environ.get("STREAM", 9))

    @pytest.mark.gpu_limit(pageable_copies=0, default_stream_work=0)
    def test_limited(gpu_trace):
        with gpu_trace.region("load", pageable_copies=0, default_stream_work=0):
            fakegpu.copy("HtoD", 64, pinned=PINNED, stream=STREAM)
            fakegpu.copy("DtoH", 64, pinned=PINNED, stream=STREAM)
        fakegpu.launch("k", stream=STREAM)

    @pytest.mark.cutrace(gate="work,pageable_copies,default_stream_work")
    def test_gated():
        fakegpu.copy("HtoD", 64, pinned=PINNED, stream=STREAM)

    def test_plain():
        fakegpu.copy("HtoD", 64, pinned=PINNED, stream=STREAM)
"""


def test_copies_of_pageable_memory_and_work_on_the_default_stream_on_request(suite: Suite) -> None:
    suite.write("test_a.py", PINNED)
    assert suite.run("--cutrace-update").status == 0
    (text,) = suite.golden().values()
    assert text.count("pageable_copies = 0") == text.count("default_stream_work = 0") == 1
    assert suite.run("--cutrace=require").status == 0

    pageable = suite.run("--cutrace", PAGEABLE="1")
    assert pageable.failed == {"test_limited", "test_gated"}
    assert "cutrace: pageable_copies 2 (limit 0), load/pageable_copies 2 (limit 0)" in pageable.output
    assert "cutrace: pageable_copies 0 -> 1" in pageable.output
    default = suite.run("--cutrace", STREAM="7")
    assert default.failed == {"test_limited", "test_gated"}
    assert "cutrace: default_stream_work 3 (limit 0), load/default_stream_work 2 (limit 0)" in default.output


@pytest.mark.parametrize("arguments", ["", ", kernel_launches=1"])
def test_a_region_needs_a_name(suite: Suite, arguments: str) -> None:
    suite.write("test_a.py", f"def test_it(gpu_trace):\n    gpu_trace.region(''{arguments})\n")
    for options in ((), ("--cutrace",)):
        done = suite.run(*options)
        assert done.status == 1
        assert "test_a.py:6: the region has no name: give it one" in done.output
