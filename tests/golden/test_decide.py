"""The verdict on a test: its state, its failure, the requested runs, and the written values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cutrace.analysis.definitions import Metrics
from cutrace.golden import Observed, Rules, Span, Update, parse_budget, parse_gate
from cutrace.golden.decide import (
    Decision,
    Expectation,
    GateSettings,
    MeasuredRun,
    Next,
    State,
    after_teardown,
    decide,
    not_passed,
    untraced,
    wants_golden,
)
from support.measured import NOTHING, entry, run

FOLDER = Path("/project")
EXPECTED = Expectation(Rules(), FOLDER / "golden/test_a.toml")
CHECK = GateSettings(folder=FOLDER)
UPDATE = GateSettings(Update(), folder=FOLDER)
#: Runs of the test: equal to its golden file, with an additional kernel, with fewer kernels, without GPU work, with an
#: allocation only, with lost records, and slower.
SAME = run()
MORE = run(kernels={"softmax_fwd": 1, "vectorized_elementwise": 2, "cast": 1})
LESS = run(kernels={"softmax_fwd": 1})
IDLE = replace(run(**NOTHING, syncs={}), gpu_records=0)
ALLOCATING = replace(run(**NOTHING, syncs={}, allocations=1), gpu_records=0)
LOST = run(problems=("records dropped",))
SLOW = run(kernel_time_ns=60_000)
TIMES = Rules(parse_gate("work,time"))
GOLDEN = replace(EXPECTED, entry=entry())
TIMED = replace(EXPECTED, rules=TIMES, entry=entry(gate=TIMES.gate))
LIMITED = replace(EXPECTED, budgets={"": parse_budget({"kernel_launches": 3})})


def measured(metrics: Metrics | None, **more: Any) -> MeasuredRun | None:
    return None if metrics is None else MeasuredRun(metrics, "sm_90", **more)


def decided(expected: Expectation, *runs: Metrics | None, settings: GateSettings = CHECK) -> Decision:
    return decide(expected, [measured(metrics) for metrics in runs], settings)


@dataclass(frozen=True)
class Table:
    """The last decision on a test, and the number of runs of the list that it needed."""

    expected: Expectation
    runs: list[Metrics | None]
    next: Next
    state: State
    reason: str = ""
    settings: GateSettings = CHECK
    #: The kind of written values: "" for none, an update, or a candidate.
    writes: str = ""
    notes: tuple[str, ...] = ()
    confirmed: bool = field(default=True)


SECOND = "the first run differed too: this is the second run"
CASES = {
    # Without a comparison
    "no GPU work": Table(EXPECTED, [IDLE], Next.PASS, State.UNTRACED, "no GPU work"),
    "an allocation": Table(EXPECTED, [ALLOCATING], Next.PASS, State.TRACED),
    "traced": Table(EXPECTED, [SAME], Next.PASS, State.TRACED),
    "a benchmark": Table(replace(EXPECTED, passed_over="it is a benchmark"), [SAME], Next.PASS, State.TRACED,
                         "it is a benchmark"),
    # Checks
    "gated": Table(GOLDEN, [SAME], Next.PASS, State.GATED),
    "gated, requested runs": Table(replace(GOLDEN, warmup=1, repeat=2), [MORE, SAME, SAME], Next.PASS, State.GATED),
    "a warm first run": Table(GOLDEN, [MORE, SAME], Next.PASS, State.GATED, notes=(SECOND,)),
    "changed": Table(GOLDEN, [MORE, MORE], Next.FAIL, State.GATED, writes="candidate", notes=(SECOND,)),
    "changed, cannot be repeated": Table(GOLDEN, [MORE, None, None], Next.FAIL, State.GATED, writes="candidate",
                                         confirmed=False),
    "changed after warm-up": Table(replace(GOLDEN, warmup=1), [SAME, MORE, MORE], Next.FAIL, State.GATED,
                                   writes="candidate"),
    "lost records": Table(GOLDEN, [LOST], Next.FAIL, State.GATED),
    "another environment": Table(replace(EXPECTED, entry=entry(environment="sm_80")), [SAME, SAME], Next.PASS,
                                 State.UNVERIFIED, "no golden for sm_90", writes="candidate"),
    "not confirmed yet": Table(replace(EXPECTED, entry=entry(confirmed=False)), [MORE], Next.PASS, State.UNCONFIRMED,
                               "recorded from one run that could not be repeated"),
    # Neither a candidate nor an update contains a slower time.
    "slower": Table(TIMED, [SLOW, SLOW, SLOW], Next.FAIL, State.GATED),
    "better": Table(GOLDEN, [LESS, LESS], Next.PASS, State.GATED, writes="candidate"),
    "slower once": Table(TIMED, [SLOW, SAME, SLOW], Next.PASS, State.GATED),
    "slower, cannot be repeated": Table(TIMED, [SLOW, None, None], Next.FAIL, State.GATED),
    # Limits
    "within its limit": Table(LIMITED, [SAME], Next.PASS, State.GATED),
    "above its limit": Table(LIMITED, [MORE, MORE], Next.FAIL, State.GATED, notes=(SECOND,)),
    "a limit beside golden values": Table(replace(GOLDEN, budgets=LIMITED.budgets), [SAME], Next.PASS, State.GATED),
    "a limit beside golden values that are not gated": Table(
        replace(GOLDEN, rules=Rules(frozenset()), budgets=LIMITED.budgets), [SAME], Next.PASS, State.UNVERIFIED,
        "nothing is gated: the rules gate none of its golden values"),
    # Missing
    "a marked test": Table(replace(EXPECTED, marked=True), [SAME, SAME], Next.PASS, State.MISSING,
                           "there is no golden/test_a.toml", writes="candidate"),
    "a new test of a module": Table(replace(EXPECTED, siblings=True), [SAME, SAME], Next.PASS, State.MISSING,
                                    "golden/test_a.toml has no values of it", writes="candidate"),
    "runs that settle late": Table(replace(EXPECTED, marked=True), [MORE, SAME, SAME], Next.PASS, State.MISSING,
                                   "there is no golden/test_a.toml", writes="candidate"),
    "without records": Table(replace(EXPECTED, marked=True), [LOST], Next.FAIL, State.MISSING,
                             "there is no golden/test_a.toml"),
    # Updates
    "a new test": Table(EXPECTED, [SAME, SAME], Next.PASS, State.UPDATED, settings=UPDATE, writes="update"),
    "nothing changed": Table(GOLDEN, [SAME], Next.PASS, State.GATED, settings=UPDATE),
    "an intended change": Table(GOLDEN, [MORE, MORE], Next.PASS, State.UPDATED, settings=UPDATE, writes="update"),
    "a change that cannot be repeated": Table(GOLDEN, [MORE, None], Next.PASS, State.UPDATED, settings=UPDATE,
                                              writes="update", confirmed=False),
    "work that vanished": Table(GOLDEN, [IDLE], Next.PASS, State.GATED, settings=UPDATE, notes=(
        "the golden values are kept: no GPU work was seen, and only --cutrace-update=all writes that",)),
    "all of it vanished": Table(GOLDEN, [IDLE, IDLE], Next.PASS, State.UPDATED, writes="update",
                                settings=replace(UPDATE, update=Update("all"))),
    "an update of lost records": Table(GOLDEN, [LOST], Next.FAIL, State.GATED, settings=UPDATE),
    "an update above a limit": Table(replace(GOLDEN, budgets=LIMITED.budgets), [MORE, MORE], Next.FAIL, State.GATED,
                                     settings=UPDATE),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_verdict(name: str) -> None:
    case = CASES[name]
    for count in range(1, len(case.runs)):
        earlier = decided(case.expected, *case.runs[:count], settings=case.settings)
        assert earlier.next is Next.AGAIN, count
    last = decided(case.expected, *case.runs, settings=case.settings)
    final = after_teardown(last, passed=last.next is Next.PASS)
    assert (final.next, final.state, final.reason, final.notes) == (case.next, case.state, case.reason, case.notes)
    new_values = final.new_values
    if new_values is None:
        assert case.writes == ""
    else:
        assert new_values.observed is not None
        assert ("update" if new_values.update else "candidate") == case.writes
        assert new_values.observed.confirmed is case.confirmed


def test_an_update_of_a_test_that_fails_in_its_teardown_writes_nothing() -> None:
    decision = decided(GOLDEN, MORE, MORE, settings=UPDATE)
    final = after_teardown(decision, passed=False)
    assert (final.state, final.new_values) == (State.GATED, None)


def test_a_candidate_of_a_test_that_fails_is_kept() -> None:
    decision = decided(GOLDEN, MORE, MORE)
    assert after_teardown(decision, passed=False) == decision


def test_states_may_need_more_runs_until_they_settle() -> None:
    expected = replace(EXPECTED, marked=True, rules=Rules(parse_gate("work,allocations")))
    runs = [run(allocations=count) for count in (4, 3, 2, 1, 1)]
    for count in range(1, 5):
        assert decided(expected, *runs[:count]).next is Next.AGAIN
    decision = decided(expected, *runs)
    assert decision.next is Next.PASS
    assert decision.new_values is not None
    assert decision.new_values.observed is not None
    assert decision.new_values.observed.values[""]["allocations"] == Span(1, 1)


def test_work_that_does_not_settle_is_unstable_after_three_runs() -> None:
    expected = replace(EXPECTED, marked=True)
    decision = decided(expected, SAME, MORE, SAME)
    assert decision.next is Next.PASS
    assert decision.new_values is not None
    assert decision.new_values.observed is not None
    assert "kernel_launches" in decision.new_values.observed.unstable[""]


def test_what_could_not_be_seen() -> None:
    why = "CUDA was in use before"
    unseen = decide(EXPECTED, [MeasuredRun(IDLE, unseen=why)], CHECK)
    assert (unseen.state, unseen.reason) == (State.UNTRACED, why)
    expected = decide(GOLDEN, [MeasuredRun(IDLE, unseen=why)], CHECK)
    assert (expected.state, expected.reason) == (State.UNVERIFIED, why)
    seen = decide(GOLDEN, [measured(SAME, unseen=why)], CHECK)
    assert (seen.state, seen.notes) == (State.GATED, (why,))


def test_a_first_run_before_cuda_was_in_use_is_replaced() -> None:
    expected = replace(EXPECTED, entry=entry(run(instructions=9)))
    early = measured(SAME, early=True, uncounted={("", "instructions"): "there was no context"})
    assert decide(expected, [early], CHECK).next is Next.AGAIN
    second = measured(run(instructions=9))
    decision = decide(expected, [early, second], CHECK)
    assert decision.state is State.GATED
    assert decision.judged == (second,)
    only = decide(expected, [early, None], CHECK)
    assert (only.state, only.reason) == (State.UNVERIFIED, "counters: there was no context")
    assert only.judged == (early,)


def test_counters_that_could_not_be_read_keep_their_golden_values() -> None:
    expected = replace(EXPECTED, entry=entry(run(instructions=9)))
    runs = [measured(MORE, uncounted={("", "instructions"): "another process counts"})] * 2
    decision = decide(expected, runs, UPDATE)
    assert decision.new_values is not None
    assert decision.new_values.observed is not None
    assert decision.new_values.observed.values[""]["instructions"] == 9
    final = after_teardown(decision, passed=True)
    assert (final.state, final.reason) == (State.UNVERIFIED, "counters: another process counts")


@pytest.mark.parametrize(("ignore", "names"), [((), ["instructions"]), (("instructions",), [])])
def test_counters_that_could_not_be_read_have_rows_unless_they_are_ignored(
    ignore: tuple[str, ...], names: list[str]
) -> None:
    expected = replace(GOLDEN, rules=Rules(ignore=ignore))
    runs = [measured(SAME, uncounted={("", "instructions"): "another process counts"})]
    comparison = decide(expected, runs, CHECK).comparison
    assert comparison is not None
    assert [row.metric for row in comparison.rows if row.detail == "another process counts"] == names


def test_the_environment_is_that_of_the_run_with_the_most_gpus() -> None:
    two = MeasuredRun(run(gpus=("NVIDIA H200", "NVIDIA L40")), "sm_90+sm_89")
    decision = decide(replace(GOLDEN, repeat=2), [two, MeasuredRun(SAME, "sm_90")], CHECK)
    assert decision.environment == "sm_90+sm_89"
    assert decision.reason == "no golden for sm_90+sm_89"


def test_a_body_that_did_not_pass() -> None:
    worked = MeasuredRun(SAME, "sm_90")
    idle = MeasuredRun(IDLE)
    assert not_passed(GOLDEN, worked, skipped=True).state is State.UNVERIFIED
    assert not_passed(GOLDEN, idle, skipped=True).state is State.UNTRACED
    assert not_passed(GOLDEN, idle, skipped=False).state is State.UNVERIFIED
    assert not_passed(EXPECTED, worked, skipped=False).state is State.TRACED
    assert not_passed(EXPECTED, worked, skipped=True).reason == "skipped"
    assert untraced(EXPECTED, "no driver") == Decision(Next.PASS, State.UNTRACED, "no driver")


def test_limits_judge_what_is_not_allowed() -> None:
    allowing = {"": parse_budget({"sync_calls": 0, "allow": ["io.py:*"], "reason": "reads back"})}
    expected = replace(EXPECTED, budgets=allowing)
    more = {name: value for name, value in SAME.values.items() if name not in ("sync_calls", "syncs")}
    allowed = MeasuredRun(SAME, "sm_90", limited=Metrics({**more, "sync_calls": 0, "syncs": {}}))
    assert decide(expected, [allowed], CHECK).next is Next.PASS
    other = {"ops.py:42 in step": 1}
    over = MeasuredRun(SAME, "sm_90", limited=Metrics({**more, "sync_calls": 1, "syncs": other}))
    decision = decide(expected, [over, over], CHECK)
    assert decision.next is Next.FAIL
    assert decision.comparison is not None
    (row,) = decision.comparison.rows
    assert (row.now, row.detail) == (1, "over the limit, ops.py:42 in step")
    golden = decide(replace(expected, entry=entry()), [allowed], CHECK)
    assert golden.comparison is not None
    assert [row.now for row in golden.comparison.rows if row.metric == "sync_calls"] == [
        {"cudaStreamSynchronize": 1},
        0,
    ]


def test_another_comparison_may_replace_ours() -> None:
    def nothing_differs(known: Any, runs: Any, environment: str, rules: Rules) -> Any:
        assert (environment, len(runs)) == ("sm_90", 1)
        return decided(GOLDEN, SAME).comparison

    decision = decide(GOLDEN, [measured(MORE)], CHECK, nothing_differs)
    assert (decision.next, decision.state) == (Next.PASS, State.GATED)


@pytest.mark.parametrize(
    ("expected", "settings", "wanted"),
    [
        (EXPECTED, CHECK, False),
        (EXPECTED, UPDATE, True),
        (EXPECTED, GateSettings(scope="all"), True),
        (EXPECTED, GateSettings(Update(), scope="marked"), False),
        (replace(EXPECTED, siblings=True), CHECK, True),
        (replace(EXPECTED, siblings=True), GateSettings(scope="marked"), False),
        (replace(EXPECTED, marked=True), GateSettings(scope="marked"), True),
        (replace(EXPECTED, entry={"sm_90": Observed()}), CHECK, True),
        (replace(EXPECTED, marked=True, passed_over="a benchmark"), UPDATE, False),
    ],
)
def test_tests_that_should_have_golden_values(expected: Expectation, settings: GateSettings, wanted: bool) -> None:
    assert wants_golden(expected, [MeasuredRun(SAME)], settings) is wanted
