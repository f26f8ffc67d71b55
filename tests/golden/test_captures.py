"""Comparison of two captures."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import Capture, training_steps
from cutrace.analysis.collection import collect
from cutrace.errors import CutraceError
from cutrace.golden import Verdict
from cutrace.golden.captures import (
    COMPARED,
    EXACT,
    Aspect,
    CaptureComparison,
    CaptureRules,
    compare_captures,
    parse_aspects,
    parse_tolerances,
)
from cutrace.trace.codes import KernelCode

DATA = Path(__file__).parents[1] / "data"


def compared(a: Path, b: Path, **rules) -> CaptureComparison:
    with cutrace.load(a) as before, cutrace.load(b) as after:
        return compare_captures(collect(before, COMPARED), collect(after, COMPARED), CaptureRules(**rules))


def capture(path: Path, *, kernels: int = 12, duration: int = 10_000, grid: int = 8, copy: int = 4096, **more) -> Path:
    """A program that launches a kernel ``kernels`` times and copies once."""
    with Capture(path) as c:
        k = c.launch("_Z4axpyPf", grid=(grid, 1, 1), block=(64, 1, 1), **more.get("launch", {}))
        c.memcpy(100, 600, copy, correlation=100)
        c.api("cudaMemcpyAsync", 10, 50, correlation=100)
        for i in range(kernels):
            at = 1_000 + 100_000 * i
            c.api("cudaLaunchKernel", at, at + 500, correlation=i + 1, status=more.get("status", 0))
            c.kernel(k, at + 600, at + 600 + duration + 10 * i, correlation=i + 1)
        c.add(
            "allocations", time=1_000_000_000_500, bytes=more.get("memory", 1 << 26), operation=1, memory=3, context=1
        )
    return path


def row(comparison: CaptureComparison, section: str, name: str):
    return next(r for r in comparison.rows if (r.section, r.name) == (section, name))


@pytest.mark.parametrize("path", sorted(DATA.glob("*.bin")), ids=lambda p: p.stem)
def test_a_capture_is_as_itself(path):
    found = compared(path, path, fail_on=frozenset(Aspect))
    assert found.rows
    assert not found.changes
    assert not found.failed


def test_more_launches_of_a_kernel_are_a_difference(tmp_path):
    found = compared(capture(tmp_path / "a.bin"), capture(tmp_path / "b.bin", kernels=13))
    assert [(r.section, r.name) for r in found.changes] == [("kernels", "axpy"), ("api", "cudaLaunchKernel")]
    kernel = found.changes[0]
    assert (kernel.before.count, kernel.after.count, kernel.aspects) == (12, 13, {Aspect.COUNTS})
    assert kernel.time_change == 10_120
    assert found.failed


def test_a_tolerance_takes_small_differences_for_none(tmp_path):
    paths = capture(tmp_path / "a.bin"), capture(tmp_path / "b.bin", kernels=13)
    assert not compared(*paths, tolerance={Aspect.COUNTS: 0.1}).changes
    assert compared(*paths, tolerance={Aspect.COUNTS: 0.08}).failed


def test_kernels_that_come_and_go_are_named(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("old"), 10, 20)
    with Capture(tmp_path / "b.bin") as c:
        c.kernel(c.launch("young"), 10, 40)
    found = compared(tmp_path / "a.bin", tmp_path / "b.bin")
    assert [(r.name, r.details) for r in found.changes] == [("young", ("new",)), ("old", ("gone",))]


def test_another_launch_configuration_is_told_field_by_field(tmp_path):
    a = capture(tmp_path / "a.bin")
    b = capture(tmp_path / "b.bin", grid=16, launch={"registers": 40, "dynamic_shared": 1024})
    kernel = row(compared(a, b), "kernels", "axpy")
    assert kernel.aspects == {Aspect.LAUNCHES}
    assert kernel.details == ("grid 8x1x1 -> 16x1x1, registers 32 -> 40, shared 0+0 -> 0+1024",)


def test_configurations_count_by_how_often_they_occur(tmp_path):
    def of(name: str, first: int, second: int) -> Path:
        with Capture(tmp_path / name) as c:
            small, large = c.launch("k", grid=(1, 1, 1)), c.launch("k", grid=(2, 1, 1))
            for i in range(first + second):
                c.kernel(small if i < first else large, 100 * i, 100 * i + 50)
        return tmp_path / name

    assert row(compared(of("a", 3, 1), of("b", 2, 2)), "kernels", "k").aspects == {Aspect.LAUNCHES}
    # With a different number of launches, more launches of each configuration are only a difference of counts.
    assert row(compared(of("c", 2, 2), of("d", 3, 2)), "kernels", "k").aspects == {Aspect.COUNTS}
    gone = row(compared(of("e", 2, 2), of("f", 4, 0)), "kernels", "k")
    assert gone.aspects == {Aspect.LAUNCHES}
    assert gone.details == ("grid 2x1x1 -> 1x1x1",)


def test_bytes_and_failed_calls_are_exact(tmp_path):
    a = capture(tmp_path / "a.bin")
    (copy,) = compared(a, capture(tmp_path / "b.bin", copy=4097)).changes
    assert (copy.section, copy.before.bytes, copy.after.bytes, copy.aspects) == ("copies", 4096, 4097, {Aspect.BYTES})
    (failed,) = compared(a, capture(tmp_path / "c.bin", status=700)).changes
    assert (failed.name, failed.after.count) == ("cudaLaunchKernel (failed)", 12)


def test_slower_kernels_fail_only_when_that_is_asked_for(tmp_path):
    a, b = capture(tmp_path / "a.bin"), capture(tmp_path / "b.bin", duration=15_000)
    found = compared(a, b)
    assert [(r.verdict, r.aspects, r.details) for r in found.changes] == [(Verdict.SLOW, {Aspect.TIME}, ("slower",))]
    assert not found.failed
    assert compared(a, b, fail_on=frozenset({Aspect.TIME})).failed
    assert not compared(a, b, fail_on=frozenset({Aspect.TIME}), tolerance={Aspect.TIME: 1.0}).changes
    # A faster time is a change, but it does not fail.
    found = compared(b, a, fail_on=frozenset({Aspect.TIME}))
    assert [r.details for r in found.changes] == [("faster",)]
    assert not found.failed


def test_times_that_scatter_are_no_difference(tmp_path):
    assert not compared(capture(tmp_path / "a.bin"), capture(tmp_path / "b.bin", duration=10_050)).changes


def test_memory_may_grow_a_little(tmp_path):
    a = capture(tmp_path / "a.bin")
    memory = frozenset({Aspect.MEMORY})
    assert not compared(a, capture(tmp_path / "b.bin", memory=(1 << 26) + 1000), fail_on=memory).changes
    found = compared(a, capture(tmp_path / "c.bin", memory=1 << 27), fail_on=memory)
    assert [(r.section, r.name, r.after.bytes) for r in found.changes] == [("memory", "device", 1 << 27)]
    assert found.failed
    assert not compared(tmp_path / "c.bin", a, fail_on=memory).failed


def test_what_fails_comes_first_then_what_took_most_time(tmp_path):
    a, b = training_steps(tmp_path / "a.bin", steps=3), training_steps(tmp_path / "b.bin", steps=4, layers=7)
    rows = compared(a, b).changes
    assert [r.failed for r in rows] == sorted((r.failed for r in rows), reverse=True)
    times = [abs(r.time_change) for r in rows if r.failed]
    assert times == sorted(times, reverse=True)


def test_aspects_and_tolerances_are_read_from_words():
    assert parse_aspects("exact") == EXACT == parse_aspects("counts, bytes,launches")
    assert parse_aspects("all") == frozenset(Aspect)
    assert parse_aspects("none") == frozenset()
    assert parse_tolerances(["time=10%", "counts=0.5"]) == {Aspect.TIME: 0.1, Aspect.COUNTS: 0.5}
    for bad in ("speed", "counts;time", ""):
        with pytest.raises(CutraceError, match="is not an aspect"):
            parse_aspects(bad)
    for bad in ("time", "time=", "time=-1", "time=fast", "time=inf"):
        with pytest.raises(CutraceError, match="is not a tolerance"):
            parse_tolerances([bad])
    assert parse_tolerances(["time=150%"]) == {Aspect.TIME: 1.5}
    with pytest.raises(CutraceError, match="a tolerance of time of 10 would be 1,000 %: write 10%, or 1000% if it is"):
        parse_tolerances(["time=10"])
    with pytest.raises(CutraceError, match="a tolerance of bytes above 100 % gates nothing"):
        parse_tolerances(["bytes=1000%"])


def with_code(path: Path, *codes: KernelCode, launched: bool = True) -> Path:
    """A program that launches a kernel with each of these codes."""
    with Capture(path) as c:
        for at, code in enumerate(codes):
            c.add("kernel_codes", name="k", code=code.hash, registers=code.registers, local_per_thread=code.local)
            launch = c.launch("k", code=code.hash if launched else 0, registers=code.registers)
            c.kernel(launch, 1000 * at, 1000 * at + 500, correlation=at + 1)
    return path


def code(number: int, registers: int = 32, local: int = 0) -> KernelCode:
    return KernelCode(number, registers, 0, local, 0, 0)


@pytest.mark.parametrize(
    ("before", "after", "details"),
    [
        ((code(1),), (code(1),), ()),
        ((code(1),), (code(2),), ("other code",)),
        ((code(1),), (code(2, 40, 8),), ("other code, registers 32 -> 40, local 0 -> 8",)),
        ((code(1), code(2)), (code(2), code(3)), ("other code",)),
        ((code(1), code(2)), (code(3), code(4)), ("other code (2 gone, 2 new)",)),
        ((code(1), code(1)), (code(1), code(2)), ("other code (0 gone, 1 new)",)),
    ],
)
def test_other_code_is_a_difference(tmp_path, before, after, details):
    a, b = with_code(tmp_path / "a.bin", *before), with_code(tmp_path / "b.bin", *after)
    found = cutrace.diff(a, b).comparison
    assert row(found, "kernels", "k").details == details
    assert (Aspect.CODE in row(found, "kernels", "k").aspects) == bool(details)
    assert cutrace.diff(a, b, fail_on="code").failed == bool(details)


def test_code_that_is_not_known_is_no_difference(tmp_path):
    known, other = with_code(tmp_path / "a.bin", code(1)), with_code(tmp_path / "b.bin", code(2), launched=False)
    without = with_code(tmp_path / "c.bin")
    for a, b in ((known, other), (other, known), (known, without), (without, known)):
        assert all(Aspect.CODE not in row.aspects for row in cutrace.diff(a, b).comparison.rows)
