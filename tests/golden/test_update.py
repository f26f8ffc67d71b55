"""Golden values after an update: the written values and the kept ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.errors import CutraceError
from cutrace.golden import Interval, Module, Observed, Rules, Span, compare, observed, text
from cutrace.golden.update import disputed, own_kernels_changed
from support.measured import entry, run, updated

MIB = 1 << 20
GATE = frozenset({"work", "counter", "state", "time"})
MODES = ["missing", "changed", "all"]
WAIT = "cudaStreamSynchronize"


def waits(count: int, **more: Any):
    return run(syncs={WAIT: count} if count else {}, **more)


def only(known: dict[str, Observed]) -> Observed:
    """The values of the only environment of these tests."""
    (found,) = known.values()
    return found


# Observed values


def test_work_is_observed_by_its_parts_and_what_did_not_happen_is_left_out():
    found = observed([run(kernels={}, memset_bytes=0)])
    assert found == Observed(
        {"": {"memcpy_count": {"d2h": 1}, "memcpy_bytes": {"d2h": 4}, "memset_count": 1, "sync_calls": {WAIT: 1}}}
    )


def test_states_and_times_are_observed_where_they_are_gated():
    runs = [run(kernel_time_ns=3000, allocations=1), run(kernel_time_ns=5000, allocations=2)]
    assert not {"allocations", "kernel_time_ns", "idle_share"} & set(observed(runs).values[""])
    found = observed(runs, Rules(frozenset({"allocations", "kernel_time_ns"}))).values[""]
    assert found["allocations"] == Span(1, 2)
    assert found["kernel_time_ns"] == Interval(3000, 4000, 4500, 2)
    assert "peak_memory_bytes" not in found


def test_what_runs_do_not_agree_on_is_unstable_with_all_that_was_seen():
    found = observed(
        [waits(0, regions={"f": {"memset_count": 1}}), waits(2), waits(3, regions={"f": {"memset_count": 1}})]
    )
    assert found.unstable == {"": {"sync_calls": {WAIT: (0, 3)}}, "f": {"memset_count": (0, 1)}}
    assert "sync_calls" not in found.values[""]


def test_a_counter_that_only_some_runs_have_is_unstable():
    assert observed([run(), run(**{"ours.tokens": 3})]).unstable == {"": {"ours.tokens": 3}}


def test_bytes_of_the_hardware_that_agree_within_their_bound_are_settled():
    runs = [run(instructions=10, dram_bytes=100 << 20), run(instructions=10, dram_bytes=101 << 20)]
    assert observed(runs).values[""]["dram_bytes"] == 101 << 20
    assert disputed(observed(runs)) == ()
    assert disputed(observed([*runs, run(instructions=11, dram_bytes=109 << 20)])) == ("instructions", "dram_bytes")
    old = entry(*runs)
    assert updated(old, run(instructions=10, dram_bytes=100 << 20))[0] == old


def test_runs_that_agree_are_settled_whatever_their_times_and_the_states_that_are_not_gated():
    runs = [run(), run(kernel_time_ns=99_000, allocations=7)]
    assert disputed(observed(runs)) == ()
    assert disputed(observed(runs, Rules(GATE))) == ("allocations",)
    assert disputed(observed([run()])) == ()
    again = [waits(1, regions={"f": {"memset_count": n}}, memset_count=n) for n in (1, 2)]
    assert disputed(observed(again)) == ("memset_count", "f/memset_count")


def test_what_is_ignored_is_not_observed():
    noisy = run(kernels={"softmax_fwd": 1, "vectorized_elementwise": 2, "ncclDevKernel": 2}, memset_count=9)
    ignore = ("kernel_launches:nccl*", "memset_count")
    found = observed([noisy], Rules(ignore=ignore))
    assert found == observed([run()], Rules(ignore=("memset_count",)))


@pytest.mark.parametrize("runs", [[run(problems=("records dropped",))], []])
def test_nothing_is_observed_of_what_cannot_be_trusted(runs):
    with pytest.raises(CutraceError, match=r"nothing is recorded: (records dropped|the test did not run)"):
        observed(runs)


@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(1, 3)), min_size=1, max_size=3),
    st.sampled_from([None, 0, 5]),
)
def test_what_was_observed_passes(kernels, tokens):
    runs = [run(kernels=names, **{"ours.tokens": tokens}, regions={"f": {"kernels": names}}) for names in kernels]
    assert not compare(entry(*runs, gate=GATE), runs, environment="sm_90", rules=Rules(GATE | {"less"})).failed


# Replacement of values

CASES = {
    "another count": ({"memset_count": 2}, {"changed", "all"}),
    "a lower count": ({"memset_count": 0}, {"changed", "all"}),
    "another kernel": ({"kernels": {"x": 1}}, {"changed", "all"}),
    "another counter": ({"ours.tokens": 8}, {"changed", "all"}),
    "more of a state": ({"peak_memory_bytes": 64 * MIB}, {"all"}),
    "less of a state": ({"peak_memory_bytes": 16 * MIB}, {"changed", "all"}),
    "a slower time": ({"kernel_time_ns": 60_000}, {"all"}),
    "a faster time": ({"kernel_time_ns": 8_000}, {"changed", "all"}),
    "much the same": ({"peak_memory_bytes": 33 * MIB, "kernel_time_ns": 19_500}, set()),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_what_an_update_replaces(case, mode):
    changed, modes = CASES[case]
    changed = {"ours.tokens": 7} | changed
    before = entry(run(**{"ours.tokens": 7}), gate=GATE)
    after, notes = updated(before, run(**changed), update=mode, gate=GATE)
    assert (after != before) is (mode in modes)
    assert bool(notes) is (bool(modes) and mode not in modes)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_again_changes_no_byte(mode):
    before = entry(gate=GATE)
    after, notes = updated(
        before, run(facts={"compute capability": "9.0", "driver": "another"}), update=mode, gate=GATE
    )
    assert notes == ()
    assert text(Module("a.py", {"test": after})) == text(Module("a.py", {"test": before}))


def test_what_is_kept_says_how_to_replace_it():
    assert updated(entry(gate=GATE), run(peak_memory_bytes=64 * MIB), gate=GATE)[1] == (
        "peak_memory_bytes keeps its value (WORSE): --cutrace-update=all replaces it",
    )
    assert updated(entry(), waits(2), update="missing")[1] == (
        "sync_calls keeps its value (CHANGED): --cutrace-update replaces it",
    )


def test_missing_adds_what_is_not_there():
    now = waits(9, **{"ours.tokens": 1}, regions={"f": {"memset_count": 1}})
    values = only(updated(entry(), now, update="missing")[0]).values
    assert values["f"] == {"memset_count": 1}
    assert values[""]["ours.tokens"] == 1
    assert values[""]["sync_calls"] == {WAIT: 1}


@pytest.mark.parametrize(
    ("mode", "span"),
    [("all", Span(64 * MIB, 64 * MIB)), ("changed", Span(32 * MIB, 32 * MIB))],
)
def test_worse_ranges_are_replaced_by_all_alone(mode, span):
    after, _ = updated(entry(gate=GATE), run(peak_memory_bytes=64 * MIB), update=mode, gate=GATE)
    assert only(after).values[""]["peak_memory_bytes"] == span


def test_a_better_state_widens_the_range_so_that_both_pass():
    after, _ = updated(entry(gate=GATE), run(peak_memory_bytes=MIB), gate=GATE)
    assert only(after).values[""]["peak_memory_bytes"] == Span(MIB, 32 * MIB)


@pytest.mark.parametrize("words", ["kernels", "kernel_launches,all", "missing,sync_calls"])
def test_an_update_of_some_metrics_leaves_the_others(words):
    now = waits(2, kernels={"x": 1}, memset_count=5, **{"ours.tokens": 1}, peak_memory_bytes=1)
    values = only(updated(entry(gate=GATE), now, update=words, gate=GATE)[0]).values[""]
    replaced = {name for name, value in only(entry(gate=GATE)).values[""].items() if values.get(name) != value}
    assert replaced == (set() if "missing" in words else {"kernel_launches"})
    assert "ours.tokens" not in values


@pytest.mark.parametrize("mode", MODES)
def test_an_update_keeps_the_values_of_ignored_metrics(mode):
    before = {"sm_90": Observed({"": {"memset_count": 3, "sync_calls": {WAIT: 1}}}, {"": {"ours.tokens": (1, 2)}})}
    now = waits(2, kernels={}, memcpy_d2h_count=None, memcpy_d2h_bytes=None, memset_bytes=0, **{"ours.tokens": 5})
    ignored = ("memset_count", "ours.tokens")
    after, _ = updated(before, now, update=mode, ignore=ignored)
    assert only(after).values[""]["memset_count"] == 3
    assert "ours.tokens" not in only(after).values[""]
    assert only(after).unstable == {"": {"ours.tokens": (1, 2)}}


def test_an_update_of_a_class_leaves_the_others():
    after, _ = updated(entry(run(**{"ours.tokens": 1})), waits(2, **{"ours.tokens": 2}), update="counter")
    assert only(after).values[""]["ours.tokens"] == 2
    assert only(after).values[""]["sync_calls"] == {WAIT: 1}


def test_a_test_without_golden_values_gets_all_because_work_that_an_entry_lacks_counts_as_0():
    after, _ = updated(None, waits(2), update="memset_count")
    assert only(after).values[""]["sync_calls"] == {WAIT: 2}


def test_a_region_or_a_counter_that_is_gone_goes_unless_only_what_is_missing_is_added():
    before = entry(run(**{"ours.tokens": 3}, regions={"f": {"memset_count": 1}, "g": {"memset_count": 1}}))
    now = run(regions={"g": {"memset_count": 1}})
    values = only(updated(before, now)[0]).values
    assert list(values) == ["", "g"]
    assert "ours.tokens" not in values[""]
    kept, notes = updated(before, now, update="missing")
    assert kept == before
    assert notes == ("the region f keeps its values: it was not entered",)


def test_states_stay_where_they_are_not_gated_any_more():
    assert updated(entry(gate=GATE), run(peak_memory_bytes=0)) == (entry(gate=GATE), ())


def test_what_is_ignored_stays_as_it_is():
    after, notes = updated(entry(), waits(5), ignore=("sync_calls",), update="all")
    assert (after, notes) == (entry(), ())


# Unstable values


def test_what_became_unstable_is_unstable_and_says_so():
    after, notes = updated(entry(), waits(1), waits(3))
    assert only(after).unstable == {"": {"sync_calls": {WAIT: (1, 3)}}}
    assert "sync_calls" not in only(after).values[""]
    assert notes == ("sync_calls is unstable now: runs did not agree",)


@pytest.mark.parametrize("mode", ["missing", "memset_count"])
def test_what_may_not_be_replaced_does_not_become_unstable(mode):
    assert updated(entry(), waits(1), waits(3), update=mode)[0] == entry()


@pytest.mark.parametrize(
    ("mode", "seen"),
    [("missing", (0, 2)), ("memset_count", (0, 2)), ("changed", (0, 5)), ("all", None)],
)
def test_what_is_unstable_stays_so_until_all_is_replaced(mode, seen):
    before = entry(waits(0), waits(2))
    after, _ = updated(before, waits(5), waits(5), update=mode)
    if seen is None:
        assert only(after) == only(entry(waits(5)))
    else:
        assert only(after).unstable == {"": {"sync_calls": {WAIT: seen}}}


def test_what_is_unstable_and_within_what_was_seen_changes_no_byte():
    before = entry(waits(0), waits(5))
    assert updated(before, waits(3))[0] == before


# A run that cannot be repeated

ONCE = {"confirmed": False}


def test_one_run_is_confirmed_by_a_second_one_that_agrees():
    after, notes = updated(entry(**ONCE), run(), **ONCE)
    assert (after, notes) == (entry(), ())


def test_where_the_second_one_does_not_agree_the_metric_is_unstable():
    after, notes = updated(entry(**ONCE), waits(2), **ONCE)
    assert only(after).confirmed
    assert only(after).unstable == {"": {"sync_calls": {WAIT: (1, 2)}}}
    assert notes == ("sync_calls is unstable now: two sessions did not agree",)


def test_the_metrics_of_a_region_are_confirmed_there():
    one, two = (run(regions={"a/b": {"memset_count": n}}) for n in (1, 2))
    after, _ = updated(entry(one, **ONCE), two, **ONCE)
    assert only(after).unstable == {"a/b": {"memset_count": (1, 2)}}


@pytest.mark.parametrize(
    ("update", "now", "confirmed"),
    [("missing", run(), True), ("missing", waits(2), False), ("kernels", waits(2), False), ("changed", waits(2), True)],
)
def test_two_runs_confirm_what_they_agree_with_or_replace(update, now, confirmed):
    after, _ = updated(entry(**ONCE), now, now, update=update)
    assert only(after).confirmed is confirmed


@pytest.mark.parametrize(("now", "confirmed"), [(run(), True), (waits(2), False)])
def test_one_run_leaves_confirmed_what_it_does_not_change(now, confirmed):
    after, _ = updated(entry(), now, **ONCE)
    assert only(after).confirmed is confirmed


OWN = Rules(own=("ours::*",))


def of_kernels(**kernels: int) -> Observed:
    named = {name.replace("__", "::"): count for name, count in kernels.items()}
    return Observed({"": {"kernel_launches": named, "memset_count": 1}})


def test_own_kernels_change_in_every_environment_that_had_them_so():
    known = {
        "sm_80": of_kernels(ours__a=1, ampere=2),
        "sm_90": of_kernels(ours__a=1, hopper=1),
        "sm_120": of_kernels(ours__a=3),
        "sm_75": Observed({"": {"memset_count": 1}}),
    }
    after = of_kernels(ours__a=2, ours__b=1, other=1)
    changed = own_kernels_changed(known, "sm_90", after, OWN)
    assert changed == {"sm_80": of_kernels(ours__a=2, ours__b=1, ampere=2)}
    assert own_kernels_changed(known, "sm_90", after, Rules()) == {}
    assert own_kernels_changed({"sm_80": of_kernels(x=1)}, "sm_90", after, OWN) == {}


def test_own_kernels_that_are_gone_are_gone_everywhere():
    known = {"sm_80": of_kernels(ours__a=1), "sm_90": of_kernels(ours__a=1)}
    changed = own_kernels_changed(known, "sm_90", of_kernels(), OWN)
    assert changed == {"sm_80": Observed({"": {"memset_count": 1}})}
