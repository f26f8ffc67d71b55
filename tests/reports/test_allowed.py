"""Calls that limits allow, in reports."""

from __future__ import annotations

from dataclasses import replace

from cutrace.golden import parse_budget
from cutrace.golden.decide import MeasuredRun
from cutrace.reports.allowed import allowed_calls, without_allowed
from cutrace.reports.model import Case, SessionReport
from cutrace.reports.text import footer_lines, plain
from support.measured import run

BUDGET = parse_budget({"sync_calls": 0, "allow": ["io.py:read", "io.py:7"], "reason": "reads back"})
BUDGETS = {"": BUDGET, "forward": BUDGET, "other": parse_budget({"sync_calls": 0})}
MEASURED = run(syncs={"cudaStreamSynchronize": 3}, regions={"forward": {"syncs": {"cudaMemcpy": 1}}})
PARTLY = MeasuredRun(MEASURED, limited=without_allowed(MEASURED, {"": {"ops.py:1 in f": 1}, "forward": {}}))


def test_calls_are_counted_by_list_and_told_with_the_reason() -> None:
    found = allowed_calls(BUDGETS, PARTLY, [MeasuredRun(MEASURED), None, PARTLY], "")
    assert found.by_list == {"io.py:read, io.py:7": 3}
    assert found.notes == (
        "sync_calls leaves out 2 calls at allowed places: reads back",
        "forward/sync_calls leaves out 1 call at allowed places: reads back",
    )


def test_a_region_that_was_not_entered_stays_so() -> None:
    limited = without_allowed(replace(MEASURED, regions={}), {"forward": {}})
    assert limited is not None
    assert limited.regions == {}


def test_without_stacks_no_call_is_allowed_and_no_list_is_unused() -> None:
    found = allowed_calls(BUDGETS, PARTLY, [PARTLY], "this is no CPython")
    assert found == (("no call is allowed: this is no CPython",), {})


def test_the_footer_names_lists_that_allowed_nothing() -> None:
    cases = (
        Case("t.py::a", allowed={"a.py:*": 0, "b.py:*": 0}),
        Case("t.py::b", allowed={"b.py:*": 2}),
        Case("t.py::c", allowed={"a.py:*": 0}),
    )
    lines = [line.split(maxsplit=1) for line in plain(footer_lines(SessionReport(cases)))]
    assert [text for label, text in lines if label == "allow"] == [
        "no call was made at a.py:* (2 tests): correct or remove it"
    ]
