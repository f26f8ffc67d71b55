"""Reports of several jobs and commits: merged, compared, and drawn as trends."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.golden.compare import Row
from cutrace.golden.model import Verdict
from cutrace.reports.jobs import compare, failed, merge, tables, to_json, total, verdict
from cutrace.reports.model import Case, SessionReport, State
from cutrace.reports.trend import trend
from reports.page import Page

VALUES = {
    "kernel_launches": 3, "kernels": {"gemm": 2, "fill": 1}, "memcpy_count": 1, "memcpy_d2h_count": 1,
    "memcpy_bytes": 4, "memcpy_d2h_bytes": 4, "sync_calls": 1, "syncs": {"cudaStreamSynchronize": 1},
    "peak_memory_bytes": 1 << 20, "kernel_time_ns": 1000, "idle_share": 0.5,
}  # fmt: skip
FAILED = Row("sync_calls", "", 1, 2, "exact", Verdict.CHANGED, True, "", True)


def case(test: str = "t.py::a", state: State = State.GATED, **changed) -> Case:
    fields = {
        name: changed.pop(name) for name in ("environment", "job", "outcome", "rows", "regions") if name in changed
    }
    values = {name: value for name, value in {**VALUES, **changed}.items() if value is not None}
    return Case(test, state=state, values=values, **fields)


def changes(before: Case, after: Case) -> list[tuple]:
    [found] = compare(SessionReport((before,)), SessionReport((after,)))
    return [(one.metric, one.region, one.detail) for one in found.metrics]


def test_the_same_test_of_several_jobs_stays_apart():
    one = SessionReport((case(environment="sm_90"),), "xdist", "2026-01-02", 2.0, {"cutrace": "1"}, ("slow",), "abc")
    two = SessionReport((case(environment="sm_80"),), "", "2026-01-01", 3.0, {"cutrace": "1", "pytest": "9"}, (), "abc")
    made = merge([("h200", one), ("a100", two)])
    assert [(c.environment, c.job) for c in made.cases] == [("sm_90", "h200"), ("sm_80", "a100")]
    assert (made.header, made.started, made.duration_s) == ("2 jobs (h200, a100)", "2026-01-01", 5.0)
    assert made.versions == {"cutrace": "1", "pytest": "9"}
    assert (made.notes, made.commit) == (("h200: slow",), "abc")
    again = merge([("merged", made), ("more", two)])
    assert [c.job for c in again.cases] == ["h200", "a100", "more"]
    assert merge([("a", one), ("b", replace(two, commit="def"))]).commit == "abc, def"
    assert merge([("h200", one)]) == replace(one, job="h200")
    counted = replace(one, account="2: 2 compared")
    assert merge([("h200", counted), ("a100", two), ("b", counted)]).account == "h200 2: 2 compared; b 2: 2 compared"


def test_equal_reports_do_not_differ_whatever_their_times():
    assert compare(SessionReport((case(),)), SessionReport((case(kernel_time_ns=9000, idle_share=0.1),))) == []


def test_changed_work_is_named_and_fails():
    more = case(kernel_launches=5, kernels={"gemm": 2, "fill": 3, "copy": 1}, memcpy_count=0, memcpy_d2h_count=None)
    assert changes(case(), more) == [
        ("kernel_launches", "", "+ copy (new), + fill x2"),
        ("memcpy_count", "", "- d2h (gone)"),
    ]
    found = compare(SessionReport((case(),)), SessionReport((more,)))
    assert failed(found)
    [table] = tables(found)
    assert table.rows[0] == ("kernel_launches", "3", "6", "+ copy (new), + fill x2", "t.py::a")


def test_states_of_memory_are_shown_and_do_not_fail():
    found = compare(SessionReport((case(),)), SessionReport((case(peak_memory_bytes=2 << 20),)))
    assert [row[:3] for row in tables(found)[0].rows] == [("peak_memory", "1 MiB", "2 MiB")]
    assert not failed(found)


def test_counters_of_a_project_fail_and_one_that_is_new_is_no_zero():
    assert failed(compare(SessionReport((case(**{"lib.tokens": 7}),)), SessionReport((case(**{"lib.tokens": 8}),))))
    assert changes(case(), case(**{"lib.tokens": 0})) == [("lib.tokens", "", "")]


def test_regions_are_compared_too():
    before = case(regions={"forward": {"kernel_launches": 1, "kernels": {"gemm": 1}}})
    after = case(regions={"forward": {"kernel_launches": 2, "kernels": {"gemm": 2}}})
    assert changes(before, after) == [("kernel_launches", "forward", "+ gemm")]


@pytest.mark.parametrize(
    ("before", "after", "fails"),
    [
        (case(), case(rows=(FAILED,)), True),
        (case(), case(outcome="failed"), True),
        (case(rows=(FAILED,)), case(), False),
        (case(), case(state=State.UNVERIFIED), True),
        (case(), case(state=State.UPDATED), False),
        (case(state=State.UNCONFIRMED), case(), False),
        (case(state=State.TRACED), case(state=State.MISSING), False),
        (case(state=State.TRACED), Case("t.py::a", state=State.UNTRACED), True),
    ],
)
def test_a_worse_state_fails(before, after, fails):
    found = compare(SessionReport((before,)), SessionReport((after,)))
    assert len(found) == 1
    assert tables(found)[0].rows[0][0] == "state"
    assert failed(found) is fails
    assert not [one.metric for one in found[0].metrics], "a test that was not traced has no values to compare"


def test_new_and_gone_tests_are_listed_and_gone_ones_fail_on_request():
    before, after = SessionReport((case("a"), case("b"))), SessionReport((case("b"), case("c", environment="sm_90")))
    found = compare(before, after)
    assert [(t.name, t.rows) for t in tables(found)] == [("new", [("gated", "c (sm_90)")]), ("gone", [("gated", "a")])]
    assert not failed(found)
    assert failed(found, gone=True)
    assert not failed(compare(before, before), gone=True)
    assert not failed([one for one in found if one.after], gone=True)
    assert verdict(before, after, found) == (
        "2 tests: 0 changed, 1 new, 1 gone; kernel_launches 6, memcpy_count 2, sync_calls 2, peak_memory 1 MiB, "
        "kernel_time 2.0us"
    )
    assert to_json(found[0]) == {
        "nodeid": "c", "environment": "sm_90", "job": "", "state": [None, "gated"], "failing": [None, False],
        "failed": False, "metrics": [],
    }  # fmt: skip


def test_environments_are_compared_with_themselves_unless_there_is_one_on_each_side():
    h200, a100 = case(environment="sm_90"), case(environment="sm_80", sync_calls=2, syncs={"cudaStreamSynchronize": 2})
    assert compare(SessionReport((h200, a100)), SessionReport((a100, h200))) == []
    [found] = compare(SessionReport((h200,)), SessionReport((a100,)))
    assert [one.metric for one in found.metrics] == ["sync_calls"]
    new = compare(SessionReport((h200,)), SessionReport((h200, a100)))
    assert [(one.before, one.after) for one in new] == [(None, a100)]


def test_totals_are_sums_and_of_memory_the_highest():
    cases = [case("a"), case("b", peak_memory_bytes=5 << 20), Case("c")]
    assert total(cases, "kernel_launches") == 6
    assert total(cases, "peak_memory_bytes") == 5 << 20


# The page of trends


def history() -> list[tuple[str, SessionReport]]:
    launches = (3, 3, 5)
    return [
        (
            f"{n}.json",
            SessionReport((case("t.py::same"), case("t.py::moved", kernel_launches=k)), commit=f"{n}bcdef0123456789"),
        )
        for n, k in enumerate(launches)
    ]


def test_a_trend_has_totals_and_a_line_for_each_test_that_moved():
    page = Page(trend(history()))
    assert "3 reports, 0bcdef01 to 2bcdef01" in page.words
    assert "kernel launches 6 → 8" in page.words
    assert "2 tests, 1 with changes" in page.words
    assert page.words.index("t.py::moved") < page.words.index("t.py::same")
    totals, tests = trend(history()).split("<tbody>")
    assert totals.count("<figure data-chart>") == 7
    assert tests.count("<polyline") == 1
    launches = json.loads(re.search(r'id="total-kernel launches">(.*?)</script>', totals)[1])
    assert launches["labels"] == ["0bcdef01", "1bcdef01", "2bcdef01"]
    assert launches["series"] == [{"name": "kernel launches", "values": [6, 6, 8]}]
    moved = re.search(r'<polyline points="([^"]+)"', tests)
    assert moved is not None
    assert [point.split(",")[1] for point in moved[1].split()] == ["18.0", "18.0", "2.0"]


def test_a_trend_needs_nothing_from_elsewhere_and_lets_nothing_else_run():
    made = trend(history())
    page = Page(made)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert not re.search(r"(?:https?:)?//[a-z]", re.sub("<script>.*?</script>", "", made, flags=re.DOTALL))
    assert not [a for _, a in page.tags if {"src", "style"} & set(a)]
    assert [a["id"] for tag, a in page.tags if tag == "button"] == ["theme"]


@given(st.text(), st.text())
def test_no_text_becomes_markup_in_a_trend(test, commit):
    plain = Page(
        trend([("a", SessionReport((case("x"),), commit="1")), ("b", SessionReport((case("x"),), commit="2"))])
    )
    page = Page(
        trend([("a", SessionReport((case(test),), commit=commit)), ("b", SessionReport((case(test),), commit=commit))])
    )
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]


def test_tests_that_come_and_go_have_the_points_there_are():
    reports = [SessionReport((case("a"), case("b", sync_calls=n))) for n in range(3)]
    reports.append(SessionReport((case("a"),)))
    made = trend([(str(n), report) for n, report in enumerate(reports)])
    assert made.index("<th scope=row><span class=mono>b</span> <small>gone</small>") > 0
    [line] = re.findall(r'polyline points="([^"]+)"', made.split("<tbody>")[1])
    assert len(line.split()) == 3
    assert trend([("a", SessionReport(())), ("b", SessionReport(()))])
