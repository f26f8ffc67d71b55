"""Comparison of runs with a golden file: the rows of the result, and the rows that fail."""

from __future__ import annotations

from typing import Any

import pytest

from cutrace.analysis.definitions import Metrics
from cutrace.golden import (
    Comparison,
    Entry,
    Interval,
    Observed,
    Row,
    Rules,
    Span,
    Verdict,
    compare,
    confirmed,
    environment,
    limits,
    parse_gate,
    parse_ignore,
    parse_tolerance,
    recorded_on,
)
from cutrace.golden.compare import increases
from support.measured import FACTS, NOTHING, entry, run

MIB = 1 << 20
ALL = frozenset({"work", "state", "counter", "time"})
#: The gate that also rejects less work.
LESS_TOO = parse_gate("work,counter,less")
KERNELS = {"softmax_fwd": 1, "vectorized_elementwise": 2}


def against(before: Entry, *runs: Metrics, on: str = "sm_90", **rules: Any) -> Comparison:
    return compare(before, runs, environment=on, rules=Rules(**rules))


def by_hand(**values: Any) -> Entry:
    """An entry as a user edits it."""
    return {"sm_90": Observed({"": values})}


def differing(comparison: Comparison) -> dict[str, Row]:
    return {row.metric: row for row in comparison.rows if row.verdict is not Verdict.SAME}


def test_the_same_again_passes_with_a_row_for_each_total():
    found = against(entry(), run())
    assert not found.failed
    assert found.notes == found.problems == ()
    assert found.unverified == ""
    assert {row.metric: row.verdict for row in found.rows} == dict.fromkeys(
        ["kernel_launches", "memcpy_count", "memcpy_bytes", "memset_count", "memset_bytes", "sync_calls"], Verdict.SAME
    )


# Work

CHANGED = {
    "a kernel more": ({"kernels": {**KERNELS, "cast": 1}}, "kernel_launches", "+ cast (new)"),
    "one kernel for another": (
        {"kernels": {"softmax_bwd": 1, "vectorized_elementwise": 2}},
        "kernel_launches",
        "+ softmax_bwd (new), - softmax_fwd (gone)",
    ),
    "more of one kernel, less in total": (
        {"kernels": {"softmax_fwd": 2}},
        "kernel_launches",
        "+ softmax_fwd, - vectorized_elementwise x2 (gone)",
    ),
    "another call": ({"syncs": {"cudaStreamSynchronize": 2}}, "sync_calls", "+ cudaStreamSynchronize"),
    "a copy in another direction": (
        {"memcpy_d2h_count": None, "memcpy_h2d_count": 1},
        "memcpy_count",
        "+ h2d (new), - d2h (gone)",
    ),
    "a greater copy": ({"memcpy_d2h_bytes": 1028}, "memcpy_bytes", "d2h 4 B -> 1 KiB"),
    "a graph": ({"graph_launches": 1}, "graph_launches", ""),
    "another fill": ({"memset_count": 2}, "memset_count", ""),
    "no GPU work at all": (NOTHING, "memset_count", "no GPU work was seen"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_other_work_fails_in_one_row_that_names_it(case):
    changed, metric, detail = CHANGED[case]
    found = against(entry(), run(**changed))
    row = differing(found)[metric]
    assert (row.verdict, row.gated, row.failed, row.detail) == (Verdict.CHANGED, True, True, detail)
    assert found.failed
    assert changed is NOTHING or list(differing(found)) == [metric]


def test_a_row_has_the_values_and_the_rule():
    more = KERNELS | {"cast": 1}
    row = differing(against(entry(), run(kernels=more)))["kernel_launches"]
    assert (row.golden, row.now, row.rule, row.region) == (KERNELS, more, "exact", "")


def test_a_long_list_of_kernels_is_cut():
    found = differing(against(entry(), run(kernels={**KERNELS, **{f"k{i}": 1 for i in range(9)}})))
    assert found["kernel_launches"].detail.endswith("+ k5 (new), and 3 more")


LESS = run(kernels={"softmax_fwd": 1, "vectorized_elementwise": 1})


@pytest.mark.parametrize(
    ("rules", "failed"), [({}, False), ({"gate": parse_gate("work,less")}, True), ({"gate": parse_gate("less")}, False)]
)
def test_doing_less_is_better_and_fails_where_that_is_asked_for(rules, failed):
    found = against(entry(), LESS, **rules)
    row = differing(found)["kernel_launches"]
    assert (row.verdict, row.detail, row.failed) == (Verdict.BETTER, "- vectorized_elementwise", failed)
    assert found.failed is failed


def test_the_worst_of_several_runs_counts_and_how_many_were_like_it():
    found = against(entry(), run(), run(syncs={"cudaStreamSynchronize": 2}), LESS)
    row = differing(found)["sync_calls"]
    assert (row.verdict, row.now, row.failed) == (Verdict.CHANGED, {"cudaStreamSynchronize": 2}, True)
    assert row.detail == "+ cudaStreamSynchronize (in 1 of 3 runs)"
    assert differing(found)["kernel_launches"].detail == "- vectorized_elementwise (in 1 of 3 runs)"


# Counters


@pytest.mark.parametrize(("now", "failed"), [(7, False), (8, True), (6, False), (None, True)])
def test_a_counter_is_exact_and_has_to_be_measured(now, failed):
    before = entry(run(**{"ours.tokens": 7}))
    assert against(before, run(**{"ours.tokens": now})).failed is failed


def test_a_counter_of_zero_holds_and_one_that_is_not_written_down_is_unverified():
    assert against(entry(run(**{"ours.tokens": 0})), run(**{"ours.tokens": 1})).failed
    for now in (0, 1):
        found = against(entry(), run(**{"ours.tokens": now}))
        assert not found.failed
        assert found.unverified == "no golden value of ours.tokens"


# Alternatives


@pytest.mark.parametrize(("now", "verdict"), [(0, "BETTER"), (1, "SAME"), (2, "CHANGED"), (3, "SAME"), (4, "CHANGED")])
@pytest.mark.parametrize("by_name", [False, True])
def test_any_alternative_is_right_and_nothing_between(now, verdict, by_name):
    golden = {"cudaStreamSynchronize": (1, 3)} if by_name else (1, 3)
    found = against(by_hand(sync_calls=golden), run(syncs={"cudaStreamSynchronize": now}), gate=parse_gate("syncs"))
    row = next(row for row in found.rows if row.metric == "sync_calls")
    assert row.verdict is Verdict[verdict]
    assert row.failed is (verdict == "CHANGED")


# Rules

TOLERANCES = {
    "the total": ("kernel_launches=10%", True),
    "the breakdown": ("kernels=10%", True),
    "the class": ("work=10%", True),
    "another metric": ("sync_calls=10%", False),
    "too little": ("kernels=9%", False),
}


@pytest.mark.parametrize("case", TOLERANCES)
def test_a_tolerance_of_a_total_covers_its_breakdown(case):
    words, passes = TOLERANCES[case]
    before = entry(run(kernels={"a": 6, "b": 4}))
    found = against(before, run(kernels={"a": 5, "b": 5, "new": 1}), tolerance=parse_tolerance(words))
    assert found.failed is not passes


def test_a_tolerance_of_a_count_lets_it_grow_by_that_much():
    tolerance = parse_tolerance("memset_bytes=10%")
    assert not against(entry(), run(memset_bytes=70), tolerance=tolerance).failed
    assert against(entry(), run(memset_bytes=71), tolerance=tolerance).failed


@pytest.mark.parametrize("words", ["kernels", "kernel_launches", "work", "sync_calls, kernels"])
def test_a_metric_is_gated_by_its_name_its_total_or_its_class(words):
    assert against(entry(), run(kernels={"other": 9}), gate=parse_gate(words)).failed


def test_what_is_not_gated_is_shown_and_does_not_fail():
    found = against(entry(), run(kernels={"other": 9}, syncs={"a": 1}), gate=parse_gate("memset_count,time"))
    assert not found.failed
    assert {row.metric: row.gated for row in found.rows if row.verdict is Verdict.CHANGED} == {
        "kernel_launches": False,
        "sync_calls": False,
    }


@pytest.mark.parametrize("words", ["kernels", "kernel_launches", "work"])
def test_a_metric_or_a_class_that_is_ignored_has_no_row(words):
    found = against(entry(), run(kernels={"other": 9}), ignore=parse_ignore(words))
    assert not found.failed
    assert "kernel_launches" not in {row.metric for row in found.rows}


def test_names_that_are_ignored_are_left_out_on_both_sides():
    ignore = parse_ignore("kernels:nccl*, syncs:cudaEvent*")
    without, waits = run(), {"cudaStreamSynchronize": 1, "cudaEventSynchronize": 4}
    noisy = run(kernels={**KERNELS, "ncclDevKernel_AllReduce": 2}, syncs=waits)
    for before, now in ((without, noisy), (noisy, without), (noisy, noisy)):
        found = against(entry(before), now, ignore=ignore)
        assert differing(found) == {}
        assert amounts(found)["kernel_launches"] == (3, 3)
    assert against(entry(), noisy, ignore=parse_ignore("kernels:NCCL*")).failed


def amounts(found: Comparison) -> dict[str, tuple[int, int]]:
    return {
        row.metric: (sum(row.golden.values()), sum(row.now.values()))
        for row in found.rows
        if isinstance(row.golden, dict) and isinstance(row.now, dict)
    }


# States

STATES = {
    "within what runs have shown": ("peak_memory_bytes", Span(8 * MIB, 640 * MIB), 100 * MIB, "SAME"),
    "2 % more": ("peak_memory_bytes", Span(0, 100 * MIB), 102 * MIB, "SAME"),
    "more than 2 % more": ("peak_memory_bytes", Span(0, 100 * MIB), 102 * MIB + 1, "WORSE"),
    "a mebibyte more, of however little": ("peak_memory_bytes", Span(0, 1000), 1000 + MIB, "SAME"),
    "more than a mebibyte more": ("peak_memory_bytes", Span(0, 1000), 1001 + MIB, "WORSE"),
    "less than a mebibyte less": ("peak_memory_bytes", Span(9 * MIB, 9 * MIB), 8 * MIB, "SAME"),
    "more than a mebibyte less": ("peak_memory_bytes", Span(9 * MIB, 9 * MIB), 8 * MIB - 1, "BETTER"),
    "less given back than before": ("net_memory_bytes", Span(-100 * MIB, -100 * MIB), -97 * MIB, "WORSE"),
    "an allocation within the range": ("allocations", Span(0, 2), 1, "SAME"),
    "an allocation more": ("allocations", Span(0, 2), 3, "WORSE"),
    "an allocation less": ("allocations", Span(1, 2), 0, "BETTER"),
    "a release less, as of a leak": ("frees", Span(1, 2), 0, "WORSE"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_state_is_compared_with_the_range_that_runs_have_shown(case):
    metric, span, now, verdict = STATES[case]
    before = by_hand(**{metric: span})
    gated = against(before, run(**{metric: now}), gate=parse_gate("state"))
    row = next(row for row in gated.rows if row.metric == metric)
    assert row.verdict is Verdict[verdict]
    assert row.failed is (verdict == "WORSE")
    assert not against(before, run(**{metric: now}), gate=parse_gate("time")).failed


def test_the_highest_state_of_several_runs_counts():
    before = by_hand(peak_memory_bytes=Span(0, 32 * MIB))
    assert against(before, run(), run(peak_memory_bytes=64 * MIB), run(), gate=parse_gate("peak_memory")).failed


def test_a_gated_state_without_a_golden_value_is_unverified():
    found = against(entry(), run(), gate=parse_gate("work,peak_memory"))
    assert not found.failed
    assert found.unverified == "no golden value of peak_memory_bytes"


# Times


def slow(factor: float, count: int = 3) -> list[Metrics]:
    return [run(kernel_time_ns=int((18_700 + i * 10) * factor)) for i in range(count)]


@pytest.mark.parametrize(
    ("factor", "verdict", "failed"), [(3, "SLOW", True), (1.04, "SAME", False), (0.3, "FAST", False)]
)
def test_times_that_are_gated_are_compared_by_statistics(factor, verdict, failed):
    found = against(entry(*slow(1), gate=ALL), *slow(factor), gate=parse_gate("kernel_time"))
    row = next(row for row in found.rows if row.metric == "kernel_time_ns")
    assert (row.verdict, row.rule) == (Verdict[verdict], "5 %")
    assert row.golden == Interval(18_700, 18_710, 18_715, 3)
    assert isinstance(row.now, Interval)
    assert found.failed is failed


def test_times_that_are_not_gated_never_fail():
    assert not against(entry(*slow(1), gate=ALL), *slow(3)).failed


def test_a_slower_time_fails_only_if_the_runs_after_it_agree():
    before = entry(*slow(1), gate=ALL)
    first, again = (against(before, *slow(factor), gate=ALL) for factor in (3, 1))
    assert confirmed(first, first, first).failed
    settled = confirmed(first, first, again)
    assert not settled.failed
    assert differing(settled)["kernel_time_ns"].verdict is Verdict.AMBIGUOUS


# Unreliable and unconfirmed values


def test_numbers_that_cannot_be_trusted_never_pass():
    found = against(entry(), run(problems=("12 records dropped by CUPTI",)), run(), gate=frozenset())
    assert found.failed
    assert found.problems == ("12 records dropped by CUPTI",)
    assert limits([run(problems=("12 records dropped by CUPTI",))], {"sync_calls": 5}).failed


def test_what_was_unstable_is_shown_with_what_was_seen_and_never_fails():
    before = entry(run(), run(syncs={"cudaStreamSynchronize": 3}))
    found = against(before, run(syncs={"cudaStreamSynchronize": 50}), gate=LESS_TOO)
    row = differing(found)["sync_calls"]
    assert (row.verdict, row.golden, row.gated) == (Verdict.UNSTABLE, {"cudaStreamSynchronize": (1, 3)}, False)
    assert not found.failed


def test_nothing_is_gated_by_what_one_run_alone_has_shown():
    found = against(entry(confirmed=False), run(kernels={"other": 1}), gate=LESS_TOO)
    assert not found.failed
    assert found.unconfirmed
    assert differing(found)["kernel_launches"].verdict is Verdict.CHANGED


# Regions

FORWARD = {"forward": {"kernels": {"softmax_fwd": 1}}}


def test_a_region_is_compared_by_itself():
    found = against(entry(run(regions=FORWARD)), run(regions={"forward": {"kernels": {"x": 2}}}))
    (row,) = differing(found).values()
    assert (row.metric, row.region, row.failed) == ("kernel_launches", "forward", True)
    assert row.detail == "+ x x2 (new), - softmax_fwd (gone)"


@pytest.mark.parametrize("runs", [[run()], [run(regions=FORWARD), run()]], ids=["never", "only in one run"])
def test_a_region_that_is_not_entered_is_no_pass(runs):
    found = against(entry(run(regions=FORWARD)), *runs, gate=parse_gate("work,less"))
    assert found.failed
    assert {row.region for row in found.rows if row.failed} == {"forward"}


def test_a_new_region_is_unverified():
    found = against(entry(), run(regions=FORWARD))
    assert not found.failed
    assert found.unverified == "no golden for the region forward"


# Limits


def test_a_limit_holds_without_a_golden_file():
    found = limits([run()], {"kernel_launches": 3, "peak_memory": "32 MiB", "kernel_time": "20us"})
    assert not found.failed
    assert [(row.metric, row.golden, row.now, row.rule) for row in found.rows] == [
        ("kernel_launches", 3, 3, "limit"),
        ("peak_memory_bytes", 32 * MIB, 32 * MIB, "limit"),
        ("kernel_time_ns", 20_000, 18_700, "limit"),
    ]


def test_what_is_over_its_limit_fails_and_says_of_what_it_is_made():
    found = limits([run()], {"kernel_launches": 2})
    assert found.failed
    assert found.rows[0].verdict is Verdict.WORSE
    assert found.rows[0].detail == "over the limit, vectorized_elementwise x2, softmax_fwd"


def test_a_limit_of_a_region_holds_for_the_runs_that_entered_it():
    runs = [run(regions=FORWARD), run()]
    (row,) = limits(runs, {"kernel_launches": 0}, "forward").rows
    assert (row.region, row.failed) == ("forward", True)
    assert row.now == run(regions=FORWARD).regions["forward"]["kernel_launches"]
    (row,) = limits(runs[1:], {"kernel_launches": 0}, "forward").rows
    assert (row.verdict, row.failed) == (Verdict.UNVERIFIED, False)
    assert row.detail == "a region with limits was not entered: forward"


def test_of_several_runs_the_highest_counts_and_of_times_the_median():
    runs = [run(), run(syncs={"cudaStreamSynchronize": 3}, kernel_time_ns=90_000), run()]
    assert limits(runs, {"sync_calls": 2}).failed
    assert not limits(runs, {"kernel_time": "20us"}).failed


@pytest.mark.parametrize(("limit", "failed"), [(0.3, False), (0.25, False), (0.2, True)])
def test_a_limit_of_a_share_is_a_share(limit, failed):
    assert limits([run(idle_share=0.25)], {"idle_share": limit}).failed is failed


def test_what_did_not_occur_is_within_every_limit_and_what_did_not_run_within_none():
    assert not limits([run()], {"memcpy_h2d_count": 0, "idle_share": 0.5}).failed
    assert limits([], {"sync_calls": 1}).rows[0].detail == "not measured"


# Hardware and software of a run


@pytest.mark.parametrize(
    ("capability", "variant", "name"),
    [("9.0", "", "sm_90"), ("9.0", "cuda13", "sm_90-cuda13"), ("12.0+9.0", "", "sm_120+sm_90"), ("", "cuda13", "")],
)
def test_an_environment_is_the_architecture_and_the_variant(capability, variant, name):
    assert environment(run(facts={"compute capability": capability}), variant) == name


def test_driver_and_clock_are_for_reports():
    assert recorded_on(run(facts={**FACTS, "clock": "1980 MHz"})) == "driver 580.159, CUDA 13.0, 1980 MHz"


# Counters of the hardware

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "golden", "now", "verdict"),
    [
        ("instructions", 1000, 1000, Verdict.SAME),
        ("instructions", 1000, 1001, Verdict.CHANGED),
        ("instructions", 1000, 999, Verdict.BETTER),
        ("instructions", (1000, 2000), 2000, Verdict.SAME),
        ("instructions", (1000, 2000), 1500, Verdict.CHANGED),
        ("dram_bytes", GIB, int(1.019 * GIB), Verdict.SAME),
        ("dram_bytes", GIB, int(0.981 * GIB), Verdict.SAME),
        ("dram_bytes", GIB, int(1.021 * GIB), Verdict.CHANGED),
        ("dram_bytes", GIB, int(0.979 * GIB), Verdict.BETTER),
        ("dram_bytes", 0, 8 * MIB, Verdict.SAME),
        ("dram_bytes", 0, 8 * MIB + 1, Verdict.CHANGED),
        ("dram__bytes_read.sum", 0, 8 * MIB, Verdict.SAME),
        ("l2_bytes", 1000, 1020, Verdict.SAME),
        ("l2_bytes", 1000, 1021, Verdict.CHANGED),
        ("mylib.bytes", 1000, 1001, Verdict.CHANGED),
    ],
)
def test_counts_are_exact_and_bytes_within_their_bound(name, golden, now, verdict):
    found = against(by_hand(**{name: golden}), run(**{name: now}))
    (row,) = [row for row in found.rows if row.metric == name]
    assert (row.verdict, row.failed) == (verdict, verdict is Verdict.CHANGED)


@pytest.mark.parametrize(("words", "more", "failed"), [("dram_bytes=0", 1, True), ("counter=5%", GIB // 30, False)])
def test_a_tolerance_of_bytes_of_the_hardware(words, more, failed):
    found = against(by_hand(dram_bytes=GIB), run(dram_bytes=GIB + more), tolerance=parse_tolerance(words))
    assert ("dram_bytes" in {row.metric for row in found.rows if row.failed}) is failed


def test_a_limit_of_a_counter_that_was_not_counted_fails():
    assert [row.detail for row in limits([run()], {"instructions": 5}).rows if row.failed] == ["not measured"]
    assert not limits([run(instructions=5)], {"instructions": 5}).failed
    assert [row.detail for row in limits([run()], {"default_stream_work": 5}).rows if row.failed] == ["not measured"]


# Metrics that rose


def test_names_that_rose_have_their_amounts():
    before = by_hand(kernel_launches={"a": 1, "b": (1, 3), "gone": 2}, sync_calls=0)
    found = against(before, run(kernels={"a": 3, "b": 2, "new": 1, "gone": 1}, memset_count=2))
    rows = differing(found)
    assert increases(rows["kernel_launches"]) == {"a": (1, 3), "b": (3, 2), "new": (0, 1)}
    assert increases(rows["memset_count"]) == {"": (0, 2)}
    (limit,) = limits([run(kernels={"a": 3})], {"kernel_launches": 2}).rows
    assert increases(limit) == {"": (2, 3)}


def test_names_that_are_unknown_in_this_environment_did_not_rise():
    """In another environment, only kernels of the project have golden amounts."""
    before = {"sm_80": Observed({"": {"kernel_launches": {"own_a": 1, "gemm_80": 1}}})}
    rows = differing(against(before, run(kernels={"own_a": 2, "gemm_90": 1}), own=("own_*",)))
    assert increases(rows["kernel_launches"]) == {"own_a": (1, 2)}


def test_an_unknown_name_that_starts_like_one_that_rose_did_not_rise():
    before = {"sm_80": Observed({"": {"kernel_launches": {"gemm_own": 1, "gemm": 1}}})}
    rows = differing(against(before, run(kernels={"gemm_own": 2, "gemm": 2}), own=("*_own",)))
    assert rows["kernel_launches"].detail == "+ gemm_own"
    assert increases(rows["kernel_launches"]) == {"gemm_own": (1, 2)}
