"""Points and ceilings of rooflines, compared with numbers computed by hand; and the metrics of kernels by name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutrace
from cutrace.analysis.reports import tables
from cutrace.errors import CutraceError
from cutrace.extras.hardware.kernel_metrics import metric_uses
from cutrace.extras.hardware.roofline import Point, Roofline, rooflines
from cutrace.extras.hardware.roofline_page import roofline_section
from cutrace.slicing import Conditions, cut
from profiled import BF16, BYTES, FP32, OP, PEAK, Launch, profiled_capture

TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


def drawn(tmp_path: Path, *launches: Launch, **gpu: int | str) -> Roofline:
    (found,) = several(tmp_path, *launches, **gpu)
    return found


def several(tmp_path: Path, *launches: Launch, **gpu: int | str) -> list[Roofline]:
    with cutrace.load(profiled_capture(tmp_path / "a.bin", *launches, **gpu)) as trace:
        return rooflines(trace)


def only(tmp_path: Path, *launches: Launch, **gpu: int | str) -> Point:
    (point,) = drawn(tmp_path, *launches, **gpu).points
    return point


def fp32(add: float, multiply: float, both: float, moved: float) -> dict[str, float]:
    return {OP.format("fadd"): add, OP.format("fmul"): multiply, OP.format("ffma"): both, BYTES: moved}


def test_a_point_is_operations_over_the_kernels_own_time_and_over_bytes(tmp_path):
    point = only(tmp_path, ("_Z4gemmPf", 2_000, fp32(1_000, 500, 3_000, 1_500) | {"gpu__time_duration.sum": 9_999}))
    assert (point.kernel, point.kind, point.launches, point.time) == ("gemm", "fp32", 1, 2_000)
    assert point.operations == 1_000 + 500 + 2 * 3_000
    assert point.rate == pytest.approx(7_500 / 2e-6)
    assert point.traffic == pytest.approx(1_500 / 2e-6)
    assert point.intensity == 5


def test_launches_of_a_kernel_are_one_point(tmp_path):
    point = only(tmp_path, ("k", 1_000, fp32(100, 0, 0, 10)), ("k", 3_000, fp32(500, 0, 0, 20)))
    assert (point.launches, point.time, point.operations, point.bytes) == (2, 4_000, 600, 30)


def test_bytes_are_reads_and_writes_where_their_sum_is_missing(tmp_path):
    point = only(tmp_path, ("k", 10, FP32 | {"dram__bytes_read.sum": 30.0, "dram__bytes_write.sum": 12.0}))
    assert point.bytes == 42


def test_the_ceilings_of_an_h200_are_its_documented_ones(tmp_path):
    # The counters give the peak of tensor cores for sparse matrices, so it is no ceiling.
    everything = fp32(10, 0, 0, 10) | {BF16: 10.0, BF16 + PEAK: 2e15}
    roof = drawn(tmp_path, ("k", 10, everything))
    ceilings = {ceiling.kind: ceiling for ceiling in roof.ceilings}
    assert set(ceilings) == {"DRAM", "fp32", "tensor bf16"}
    assert not any(ceiling.measured for ceiling in roof.ceilings)
    assert ceilings["DRAM"].rate == 4_916_432_000 * 1000
    assert ceilings["fp32"].rate == 132 * 128 * 2 * 1.98e9
    # NVIDIA states 989.4 TFLOP/s, at a clock of 1,830 MHz.
    assert ceilings["tensor bf16"].rate * 1830 / 1980 == pytest.approx(989.4e12, rel=1e-4)


@pytest.mark.parametrize(
    ("capability", "lanes"), [((7, 5), 64), ((8, 0), 64), ((8, 6), 128), ((8, 9), 128), ((9, 0), 128), ((12, 0), 128)]
)
def test_lanes_depend_on_the_compute_capability(tmp_path, capability, lanes):
    major, minor = capability
    roof = drawn(
        tmp_path, ("k", 10, fp32(1, 0, 0, 1)), compute_major=major, compute_minor=minor, multiprocessors=10,
        core_clock=1_000_000,
    )  # fmt: skip
    assert {c.kind: c.rate for c in roof.ceilings}["fp32"] == 10 * lanes * 2 * 1e9


@pytest.mark.parametrize(
    ("operations", "moved", "ceiling", "share"),
    [
        (2_000, 4_000, "DRAM", 0.4),  # 20 % of the peak, 40 % of the bandwidth
        (8_000, 1_000, "fp32", 0.8),
        (0, 5_000, "DRAM", 0.5),
        (5_000, 0, "fp32", 0.5),
    ],
)
def test_the_share_is_that_of_the_lower_ceiling(tmp_path, operations, moved, ceiling, share):
    """The GPU does 10^13 operations and moves 10^13 bytes per second. The kernel takes 1 ns."""
    peaks = {OP.format("ffma") + PEAK: 5e12, BYTES + PEAK: 1e13}
    point = only(tmp_path, ("k", 1, fp32(operations, 0, 0, moved) | peaks))
    assert (point.ceiling, point.share) == (ceiling, pytest.approx(share))


def test_measured_ceilings_stand_beside_the_documented_ones_and_decide(tmp_path):
    peak = OP.format("ffma") + PEAK
    first, second = (fp32(6e4, 0, 0, 1) | {peak: value} for value in (2.9e13, 3e13))
    roof = drawn(tmp_path, ("k", 1, first), ("k", 1, second))
    assert [(c.kind, c.measured) for c in roof.ceilings] == [("DRAM", False), ("fp32", False), ("fp32", True)]
    assert roof.ceilings[-1].rate == 2 * 3e13
    assert roof.points[0].share == pytest.approx(6e4 * 1e9 / 6e13)


@pytest.mark.parametrize(("rate", "count"), [(0.0, 0), (0.99, 0), (1.0, 1), (2.0, 1)])
def test_a_measured_peak_below_one_operation_a_second_is_no_ceiling(tmp_path, rate, count):
    roof = drawn(tmp_path, ("k", 1, fp32(6e4, 0, 0, 1) | {OP.format("ffma") + PEAK: rate}))
    assert [c.measured for c in roof.ceilings].count(True) == count


def test_each_kind_that_is_a_good_part_of_the_operations_is_a_point(tmp_path):
    metrics = fp32(70, 0, 0, 10) | {BF16: 30.0, OP.format("hadd"): 1.0, OP.format("hmul"): 0.0, OP.format("hfma"): 2.0}
    roof = drawn(tmp_path, ("k", 10, metrics))
    assert [(point.kind, point.operations) for point in roof.points] == [("fp32", 70), ("tensor bf16", 30)]


def test_half_precision_instructions_do_two_numbers_each(tmp_path):
    metrics = {OP.format("hadd"): 10.0, OP.format("hmul"): 20.0, OP.format("hfma"): 30.0, BYTES: 1.0}
    assert only(tmp_path, ("k", 10, metrics)).operations == 2 * 10 + 2 * 20 + 4 * 30


def test_kernels_of_the_longest_time_come_first(tmp_path):
    launches = [(name, time, fp32(1, 0, 0, 1)) for name, time in (("short", 10), ("long", 30), ("middle", 20))]
    assert [point.kernel for point in drawn(tmp_path, *launches).points] == ["long", "middle", "short"]


def test_what_is_missing_is_said(tmp_path):
    roof = drawn(
        tmp_path, ("whole", 10, fp32(1, 0, 0, 1)), ("no bytes", 10, FP32), ("no bytes", 10, FP32),
        ("no operations", 10, {BYTES: 1.0}), ("copy", 10, FP32 | {BYTES: 5.0}), compute_major=99,
    )  # fmt: skip
    assert [point.kernel for point in roof.points] == ["copy", "whole"]
    assert roof.notes == (
        "2 launches lack dram__bytes.sum: profile with --metrics flops",
        "1 launch lacks counts of operations: profile with --metrics flops",
        "operations of fp64, fp16, tensor were not counted: profile with --metrics flops",
        "no ceiling is known for fp32 on NVIDIA H200",
        "1 kernel without operations or bytes of DRAM is in the table only",
    )


def test_a_launch_whose_tensor_operations_were_not_counted_has_no_point(tmp_path):
    used = fp32(1, 0, 0, 1) | {TENSOR: 40.0}
    roof = drawn(
        tmp_path,
        ("hidden", 10, used),
        ("counted", 10, used | {BF16: 9.0}),
        ("none", 10, fp32(1, 0, 0, 1) | {TENSOR: 0.9}),
    )
    assert {point.kernel for point in roof.points} == {"counted", "none"}
    assert roof.notes[0] == "1 launch with uncounted operations of tensor cores left out: profile with --metrics flops"


def test_values_that_are_no_numbers_are_missing(tmp_path):
    roof = drawn(tmp_path, ("k", 10, fp32(1, 0, 0, 1)), ("k", 10, FP32 | {BYTES: math.nan}))
    assert roof.points[0].launches == 1
    assert roof.notes[0].startswith("1 launch lacks dram__bytes.sum")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.fixed_dictionaries({name: st.floats() for name in (*FP32, BF16, BYTES, BYTES + PEAK, BF16 + PEAK)})),
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
)
def test_a_capture_that_holds_anything_is_drawn_or_refused(tmp_path_factory, metrics, gpu):
    facts = dict(zip(("multiprocessors", "core_clock", "memory_bandwidth"), gpu, strict=True))
    path = tmp_path_factory.mktemp("any") / "a.bin"
    launches = [("k" * at, at, values) for at, values in enumerate(metrics)]
    with cutrace.load(profiled_capture(path, *launches, **facts)) as trace:
        try:
            found = rooflines(trace)
        except CutraceError:
            return
    for roof in found:
        assert "<table>" in roofline_section(0, roof)


def test_a_capture_that_says_nothing_is_an_error_with_what_to_do(tmp_path):
    with pytest.raises(CutraceError, match="`cutrace profile --metrics flops -- COMMAND`"):
        several(tmp_path, ("k", 10, {}))
    with pytest.raises(CutraceError, match=r"1 launch lacks dram__bytes.sum: profile with --metrics flops; 1 launch"):
        several(tmp_path, ("k", 10, {"sm__cycles_active.avg": 1.0}))


def test_metrics_by_kernel_have_launches_mean_and_extremes(tmp_path):
    launches = [("_Z4axpyIfEvPT_", 10, {BYTES: value, "sm__x.avg": 1.0}) for value in (1.0, 5.0, 3.0, math.nan)]
    path = profiled_capture(tmp_path / "a.bin", *launches, ("_Z3sumPf", 10, {BYTES: 7.0}))
    with cutrace.load(path) as trace:
        (table,) = tables(trace, ["kernel_metrics"])
        assert table.rows == [
            ("axpy", BYTES, 3, 3.0, 1.0, 5.0, "bytes", "unknown"),
            ("axpy", "sm__x.avg", 4, 1.0, 1.0, 1.0, "", "unknown"),
            ("sum", BYTES, 1, 7.0, 7.0, 7.0, "bytes", "unknown"),
        ]
        assert "kernel_metrics" in [usual.name for usual in tables(trace)]
        assert {use.name for use in metric_uses(trace, lambda name: name)} == {"_Z4axpyIfEvPT_", "_Z3sumPf"}


def test_a_capture_without_metrics_has_no_usual_report_of_them(tmp_path):
    with cutrace.load(profiled_capture(tmp_path / "a.bin", ("k", 10, {}))) as trace:
        assert "kernel_metrics" not in [usual.name for usual in tables(trace)]


def test_metrics_of_chosen_kernels_stay_in_a_slice(tmp_path):
    path = profiled_capture(tmp_path / "a.bin", ("first", 10, {BYTES: 1.0}), ("second", 10, {BYTES: 2.0}))
    cut(path, tmp_path / "b.bin", Conditions(kernel=("second",)))
    with cutrace.load(tmp_path / "b.bin") as trace:
        assert [(use.name, use.max) for use in metric_uses(trace)] == [("second", 2.0)]
