"""Failures by their cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutrace.golden import Row, Verdict
from cutrace.reports.causes import by_cause, cause_lines, cause_of, repeated_failure
from cutrace.reports.model import Case, State

ADDED = Row("kernel_launches", "", 3, 4, "exact", Verdict.CHANGED, True, "+ cast x1 (new)", True)
MORE = replace(ADDED, golden=10, now=11)
OTHER = replace(ADDED, detail="+ fill x1 (new)")
COPIED = Row("memcpy_bytes", "", 4, 8, "exact", Verdict.CHANGED, True, "", True)
SLOW = Row("kernel_time_ns", "", 1000, 2000, "5 %", Verdict.SLOW, True, "", True)
LIMIT = Row("kernel_launches", "", 3, 4, "limit", Verdict.WORSE, True, "over the limit, cast x4", True)


def failed(name: str, *rows: Row, **more) -> Case:
    return Case(f"test_a.py::{name}", "failed", State.GATED, rows=rows, **more)


def lines(*cases: Case, **more) -> list[str]:
    made = cause_lines(by_cause(cases), lambda nodeid: f"tests/{nodeid}", lambda ids: f"ARGUMENTS{len(ids)}", **more)
    return [text for text, _ in made]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((ADDED,), (MORE,), True),
        ((ADDED,), (OTHER,), False),
        ((ADDED,), (ADDED, COPIED), False),
        ((ADDED,), (ADDED, replace(ADDED, region="forward")), True),
        ((replace(ADDED, region="forward"),), (replace(ADDED, region="backward"),), False),
        ((COPIED,), (replace(COPIED, golden=16, now=32),), False),
        ((SLOW,), (replace(SLOW, golden=1, now=9),), True),
        ((LIMIT,), (replace(LIMIT, now=5),), False),
        ((ADDED,), (replace(ADDED, failed=False), COPIED), False),
    ],
)
def test_the_same_metrics_and_names_are_the_same_cause(one, other, same):
    assert (cause_of(failed("a", *one)) == cause_of(failed("b", *other))) == same


def test_tests_without_golden_values_have_a_cause_and_others_that_did_not_drift_have_none():
    missing = Case("a", "failed", State.MISSING, reason="there is no golden/a.toml")
    assert cause_of(missing) == "there is no golden/a.toml"
    assert cause_of(Case("a", "failed", State.UNVERIFIED, reason="the test did not pass")) == ""
    assert cause_of(failed("a", replace(ADDED, failed=False))) == ""


def test_a_block_has_the_changes_five_tests_and_a_command():
    cases = [failed(f"test_{number}", ADDED) for number in range(1234)]
    assert lines(failed("other", OTHER), *cases) == [
        "  1,234 tests failed: kernel_launches 3 -> 4 (+ cast)",
        "    tests/test_a.py::test_0",
        "    tests/test_a.py::test_1",
        "    tests/test_a.py::test_2",
        "    tests/test_a.py::test_3",
        "    tests/test_a.py::test_4",
        "    and 1,229 more",
        "    if intended: pytest --cutrace-update ARGUMENTS1234",
    ]
    assert len(lines(*cases, named=False)) == 2
    assert lines(failed("other", OTHER)) == []


def test_a_block_of_different_totals_names_what_they_share():
    assert lines(failed("a", ADDED), failed("b", MORE))[0] == "  2 tests failed: kernel_launches (+ cast)"


def test_the_command_of_a_block_fits_all_its_tests():
    limits = lines(failed("a", LIMIT), failed("b", LIMIT))
    assert limits[3:] == ["    if intended: raise the limit in the test's @pytest.mark.gpu_limit"]
    assert lines(failed("a", SLOW), failed("b", SLOW))[3:] == [
        "    if intended: pytest --cutrace-update=all ARGUMENTS2"
    ]
    unreliable = failed("a", ADDED, problems=("3 records were dropped",))
    assert len(lines(unreliable, unreliable)) == 3


def test_the_causes_of_the_most_tests_come_first_and_few_are_shown():
    cases = []
    for number in range(12):
        row = replace(ADDED, detail=f"+ k{number}")
        cases += [failed(f"test_{number}_{i}", row) for i in range(2 + number)]
    blocks = [line for line in lines(*cases) if "failed:" in line]
    assert len(blocks) == 10
    assert blocks[0] == "  13 tests failed: kernel_launches 3 -> 4 (+ k11)"
    assert lines(*cases)[-1] == "  and 2 causes more"


def test_a_repeated_failure_names_its_own_changes_and_the_first_test():
    assert repeated_failure(failed("b", MORE), "test_a.py::a") == [
        ("cutrace: kernel_launches 10 -> 11 (+ cast): same cause as test_a.py::a", "bad")
    ]
