"""Comparing runs with a golden file: which rows there are, and which of them fail."""

from __future__ import annotations

from typing import Any

import pytest

from cutrace.analysis.metrics import Gate, Metrics
from cutrace.golden import (
    Comparison,
    Golden,
    Interval,
    Row,
    Rules,
    Section,
    Verdict,
    compare,
    confirmed,
    gpu_name,
    limits,
    measured,
    parse_gate,
    parse_tolerance,
    recorded_on,
)
from support.measured import FACTS, H200, TEST, run

MIB = 1 << 20
ALL = parse_gate("exact,memory,time")


def golden(*runs: Metrics) -> Golden:
    """The golden file of these runs, of the plain one if there are none."""
    first = [*runs, run()][0]
    return measured(runs or [first], test=TEST, gpu=H200, recorded=recorded_on(first))


def against(before: Golden, *runs: Metrics, gpu: str = H200, **rules: Any) -> Comparison:
    return compare(before, runs, gpu=gpu, rules=Rules(**rules))


def differing(comparison: Comparison) -> dict[str, Row]:
    return {row.metric: row for row in comparison.rows if row.verdict is not Verdict.SAME}


def test_the_same_again_passes_and_every_metric_has_a_row():
    found = against(golden(), run())
    assert not found.failed
    assert found.notes == found.problems == ()
    assert {row.verdict for row in found.rows} == {Verdict.SAME}
    assert [row.metric for row in found.rows][:3] == ["kernel_launches", "kernels", "graph_launches"]
    assert {row.metric: row.rule for row in found.rows}["peak_memory_bytes"] == "+2 %"


def test_what_is_never_compared_has_no_row():
    assert "idle_share" not in [row.metric for row in against(golden(), run(idle_share=0.9)).rows]


def test_an_added_kernel_fails_and_is_named_at_the_total():
    kernels = {"softmax_fwd": 1, "vectorized_elementwise": 2, "cast_fp32_kernel": 1}
    found = against(golden(), run(kernel_launches=4, kernels=kernels))
    assert found.failed
    assert differing(found) == {
        "kernel_launches": Row(
            "kernel_launches", "", 3, 4, "exact", Verdict.CHANGED, True, "+ cast_fp32_kernel x1 (new)", True
        )
    }


def test_an_added_call_is_named():
    found = differing(against(golden(), run(sync_calls=2, syncs={"cudaStreamSynchronize": 2})))
    assert list(found) == ["sync_calls"]
    assert found["sync_calls"].detail == "+ cudaStreamSynchronize"


def test_one_kernel_for_another_fails_though_the_total_is_the_same():
    found = against(golden(), run(kernels={"softmax_bwd": 1, "vectorized_elementwise": 2}))
    assert found.failed
    assert differing(found)["kernels"].detail == "+ softmax_bwd x1 (new), - softmax_fwd x1 (gone)"


def test_more_of_one_kernel_fails_though_the_total_is_less():
    found = against(golden(), run(kernel_launches=2, kernels={"softmax_fwd": 2}))
    assert found.failed
    assert differing(found)["kernel_launches"].verdict is Verdict.CHANGED
    assert differing(found)["kernel_launches"].detail == "+ softmax_fwd, - vectorized_elementwise x2 (gone)"


def test_a_long_list_of_kernels_is_cut():
    many = {f"k{i}": 1 for i in range(9)}
    found = differing(against(golden(), run(kernel_launches=12, kernels={**run().values["kernels"], **many})))
    assert found["kernel_launches"].detail.endswith("+ k5 x1 (new), and 3 more")


def test_an_added_copy_names_its_direction():
    changed = {"memcpy_count": 2, "memcpy_bytes": 1028, "memcpy_h2d_count": 1, "memcpy_h2d_bytes": 1024}
    found = against(golden(), run(**changed))
    assert found.failed
    assert {name: row.detail for name, row in differing(found).items()} == {
        "memcpy_count": "+ h2d x1 (new)",
        "memcpy_bytes": "h2d 0 B -> 1.0 KiB",
    }


def test_copies_in_another_direction_fail_though_there_are_as_many():
    changed = {"memcpy_d2h_count": None, "memcpy_d2h_bytes": None, "memcpy_h2d_count": 1, "memcpy_h2d_bytes": 4}
    found = against(golden(), run(**changed))
    assert {name for name, row in differing(found).items() if row.failed} == {"memcpy_h2d_count", "memcpy_h2d_bytes"}


@pytest.mark.parametrize("metric", ["allocations", "frees", "graph_launches", "memset_count", "memset_bytes"])
def test_any_more_of_an_exact_metric_fails(metric):
    found = against(golden(), run(**{metric: run().values[metric] + 1}))
    assert found.failed
    assert list(differing(found)) == [metric]


def test_an_improvement_is_shown_and_fails_only_when_strict():
    less = run(kernel_launches=2, kernels={"softmax_fwd": 1, "vectorized_elementwise": 1})
    row = differing(against(golden(), less))["kernel_launches"]
    assert (row.verdict, row.failed, row.detail) == (Verdict.BETTER, False, "- vectorized_elementwise")
    assert against(golden(), less, strict=True).failed


def test_fewer_releases_are_no_improvement():
    assert against(golden(run(frees=2, allocations=2)), run(frees=1, allocations=2)).failed


NOTHING = {
    "kernel_launches": 0, "kernels": {}, "memcpy_count": 0, "memcpy_bytes": 0, "memcpy_d2h_count": None,
    "memcpy_d2h_bytes": None, "memset_count": 0, "memset_bytes": 0, "streams_used": 0,
}  # fmt: skip


def test_no_work_at_all_is_no_improvement():
    found = against(golden(), run(**NOTHING))
    assert found.failed
    assert "no GPU work was seen" in differing(found)["memset_count"].detail


def test_what_is_not_gated_does_not_fail():
    found = against(golden(), run(sync_calls=9), gate=parse_gate("memory"))
    assert not found.failed
    assert not differing(found)["sync_calls"].gated


def test_a_tolerance_of_an_exact_metric_lets_it_grow_by_that_much():
    tolerance = parse_tolerance("memset_bytes=10%")
    assert not against(golden(), run(memset_bytes=70), tolerance=tolerance).failed
    assert against(golden(), run(memset_bytes=71), tolerance=tolerance).failed


def test_a_metric_that_is_no_longer_measured_fails():
    found = against(golden(), run(sync_calls=None))
    assert found.failed
    assert differing(found)["sync_calls"].detail == "not measured"


def test_a_metric_without_a_golden_value_is_new_and_fails_only_when_strict():
    before = golden(run(streams_used=None))
    row = differing(against(before, run()))["streams_used"]
    assert (row.verdict, row.golden, row.now, row.failed) == (Verdict.NEW, None, 1, False)
    assert against(before, run(), strict=True).failed


def test_a_projects_own_metric_is_exact():
    before = golden(run(**{"ours.tokens": 7}))
    assert not against(before, run(**{"ours.tokens": 7})).failed
    assert against(before, run(**{"ours.tokens": 8})).failed
    assert against(before, run()).failed


MEMORY = {
    "as much": (0, Verdict.SAME),
    "2 % more": (int(640 * MIB * 0.02), Verdict.SAME),
    "more than 2 % more": (int(640 * MIB * 0.02) + 1, Verdict.WORSE),
    "less than 2 % less": (-int(640 * MIB * 0.02), Verdict.SAME),
    "more than 2 % less": (-int(640 * MIB * 0.02) - 1, Verdict.BETTER),
}


@pytest.mark.parametrize("case", MEMORY)
def test_memory_may_grow_by_two_percent(case):
    more, verdict = MEMORY[case]
    found = against(golden(run(peak_memory_bytes=640 * MIB)), run(peak_memory_bytes=640 * MIB + more))
    row = next(row for row in found.rows if row.metric == "peak_memory_bytes")
    assert row.verdict is verdict
    assert found.failed is (verdict is Verdict.WORSE)


def test_memory_may_grow_by_a_mebibyte_however_little_it_was():
    before = golden(run(peak_memory_bytes=1000))
    assert not against(before, run(peak_memory_bytes=1000 + MIB)).failed
    assert against(before, run(peak_memory_bytes=1001 + MIB)).failed


def test_memory_given_back_that_was_taken_before_has_a_tolerance_too():
    before = golden(run(net_memory_bytes=-100 * MIB))
    assert not against(before, run(net_memory_bytes=-98 * MIB)).failed
    assert against(before, run(net_memory_bytes=-97 * MIB)).failed


def slow(factor: float, count: int = 3) -> list[Metrics]:
    return [run(kernel_time_ns=int((18_700 + i * 10) * factor)) for i in range(count)]


def test_times_are_shown_and_not_gated():
    found = against(golden(*slow(1)), *slow(3))
    assert not found.failed
    row = differing(found)["kernel_time_ns"]
    assert (row.verdict, row.gated, row.rule) == (Verdict.SLOW, False, "5 %")
    assert row.golden == Interval(18_700, 18_710, 18_715, 3)
    assert isinstance(row.now, Interval)
    assert row.now.n == 3


def test_a_slower_time_fails_when_times_are_gated():
    assert against(golden(*slow(1)), *slow(3), gate=ALL).failed
    assert not against(golden(*slow(1)), *slow(1.04), gate=ALL).failed
    assert not against(golden(*slow(3)), *slow(1), gate=ALL, strict=True).failed


def test_a_slower_time_fails_only_if_the_runs_after_it_agree():
    first, again = against(golden(*slow(1)), *slow(3), gate=ALL), against(golden(*slow(1)), *slow(1), gate=ALL)
    assert confirmed(first, first, first).failed
    settled = confirmed(first, first, again)
    assert not settled.failed
    assert differing(settled)["kernel_time_ns"].verdict is Verdict.AMBIGUOUS


def test_the_worst_of_several_runs_counts_and_how_many_were_like_it():
    found = against(golden(), run(), run(sync_calls=2, syncs={"cudaStreamSynchronize": 2}), run())
    row = differing(found)["sync_calls"]
    assert (row.verdict, row.now, row.failed) == (Verdict.CHANGED, 2, True)
    assert "in 1 of 3 runs" in row.detail


def test_the_highest_memory_of_several_runs_counts():
    assert against(golden(), run(), run(peak_memory_bytes=64 * MIB), run()).failed


# Regions

FORWARD = {"forward": {"kernel_launches": 1, "kernels": {"softmax_fwd": 1}}}


def test_a_region_is_compared_by_itself():
    found = against(golden(run(regions=FORWARD)), run(regions={"forward": {"kernel_launches": 2, "kernels": {"x": 2}}}))
    row = next(row for row in found.rows if row.region)
    assert (row.metric, row.region, row.failed) == ("kernel_launches", "forward", True)
    assert row.detail == "+ x x2 (new), - softmax_fwd x1 (gone)"


def test_a_region_that_is_no_longer_entered_fails():
    found = against(golden(run(regions=FORWARD)), run())
    assert found.failed
    assert {row.detail for row in found.rows if row.failed} == {"the region was not entered"}


def test_a_region_that_only_some_runs_enter_fails():
    assert against(golden(run(regions=FORWARD)), run(regions=FORWARD), run()).failed


def test_a_new_region_is_new():
    found = against(golden(), run(regions=FORWARD))
    assert not found.failed
    assert {row.verdict for row in found.rows if row.region} == {Verdict.NEW}


# GPUs


def test_the_most_specific_section_wins():
    before = Golden(
        TEST,
        Section({"sync_calls": 1, "streams_used": 1}, {"forward": {"kernel_launches": 1, "memset_count": 0}}),
        {"a": Section({"sync_calls": 2}, {"forward": {"kernel_launches": 5}}), "b": Section()},
    )
    on_a, on_b = before.on("a"), before.on("b")
    assert on_a.metrics == {"sync_calls": 2, "streams_used": 1}
    assert on_a.regions == {"forward": {"kernel_launches": 5, "memset_count": 0}}
    assert on_b.metrics == {"sync_calls": 1, "streams_used": 1}
    assert before.on("unheard of") == before.common


def test_on_another_gpu_only_what_holds_everywhere_is_compared_and_that_is_said():
    found = against(golden(), run(peak_memory_bytes=999 * MIB), gpu="nvidia-a100")
    assert not found.failed
    assert differing(found)["peak_memory_bytes"].verdict is Verdict.NEW
    assert found.notes == (
        "the golden file has no values for nvidia-a100, only for nvidia-h200: "
        "only what holds on every GPU was compared",
    )


def test_another_driver_is_said_before_any_verdict():
    found = against(golden(), run(facts={**FACTS, "driver": "590.48"}))
    assert found.notes == ("recorded with sm_90, driver 580.159, CUDA 13.0; now sm_90, driver 590.48, CUDA 13.0",)


def test_the_key_of_a_gpu_is_a_plain_word():
    assert gpu_name(["NVIDIA H200"]) == "nvidia-h200"
    assert gpu_name(["NVIDIA GeForce RTX 4090 (Laptop)"]) == "nvidia-geforce-rtx-4090-laptop"
    assert gpu_name(["NVIDIA H200", "NVIDIA A100", "NVIDIA H200"]) == "nvidia-a100-and-nvidia-h200-x2"
    assert gpu_name([]) == ""


# What cannot be trusted, and what is left out


def test_numbers_that_cannot_be_trusted_never_pass():
    found = against(golden(), run(problems=("12 records dropped by CUPTI",)), run())
    assert found.failed
    assert found.problems == ("12 records dropped by CUPTI",)
    assert limits([run(problems=("12 records dropped by CUPTI",))], {"sync_calls": 5}).failed


def test_what_was_unstable_when_it_was_recorded_is_shown_and_never_fails():
    before = golden(run(sync_calls=1), run(sync_calls=2))
    found = against(before, run(sync_calls=50), strict=True)
    assert differing(found)["sync_calls"].verdict is Verdict.UNSTABLE
    assert not found.failed


def test_ignored_kernels_are_left_out_on_both_sides():
    with_nccl = run(kernel_launches=5, kernels={**run().values["kernels"], "ncclDevKernel_AllReduce": 2})
    ignore = ("nccl*",)
    assert not against(golden(with_nccl), run(), ignore=ignore).failed
    assert not against(golden(), with_nccl, ignore=ignore).failed
    assert differing(against(golden(with_nccl), with_nccl, ignore=ignore)) == {}
    assert against(golden(), with_nccl, ignore=("NCCL*",)).failed


# Budgets


def test_a_budget_holds_without_a_golden_file():
    found = limits([run()], {"kernel_launches": 3, "peak_memory": "32 MiB", "kernel_time": "20us"})
    assert not found.failed
    assert [(row.metric, row.golden, row.now, row.rule) for row in found.rows] == [
        ("kernel_launches", 3, 3, "limit"),
        ("peak_memory_bytes", 32 * MIB, 32 * MIB, "limit"),
        ("kernel_time_ns", 20_000, 18_700, "limit"),
    ]


@pytest.mark.parametrize("budget", [{"kernel_launches": 2}, {"peak_memory": "31.9 MiB"}, {"kernel_time": "18us"}])
def test_a_budget_that_is_exceeded_fails(budget):
    found = limits([run()], budget)
    assert found.failed
    assert found.rows[0].verdict is Verdict.WORSE


def test_of_several_runs_the_highest_counts_and_of_times_the_median():
    runs = [run(), run(sync_calls=3, kernel_time_ns=90_000), run()]
    assert limits(runs, {"sync_calls": 2}).failed
    assert not limits(runs, {"kernel_time": "20us"}).failed


def test_a_budget_of_what_did_not_occur_or_was_not_measured():
    assert not limits([run()], {"memcpy_h2d_count": 0}).failed
    found = limits([run(idle_share=None)], {"idle_share": 0.5})
    assert found.failed
    assert found.rows[0].detail == "not measured"


def test_gates_are_those_of_the_metrics():
    found = against(golden(), run(), gate=frozenset({Gate.TIME}))
    assert {row.metric for row in found.rows if row.gated} == {"kernel_time_ns", "busy_ns", "api_time_ns"}
