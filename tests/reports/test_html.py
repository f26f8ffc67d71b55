"""The HTML page: self-contained, safe for any names of tests, and small."""

from __future__ import annotations

import base64
import gzip
import json
import re
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutrace
from cutrace.analysis.metrics import measure
from cutrace.analysis.windows import whole
from cutrace.golden.compare import Row
from cutrace.golden.model import Verdict
from cutrace.reports.html import html
from cutrace.reports.model import AddedWork, CallSite, Case, Kernel, Lane, SessionReport, State, Style, Timeline
from cutrace.reports.timeline import timeline, top_kernels
from reports.page import Page

DATA = Path(__file__).parents[1] / "data"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\x1b[31m\u2028\udc80é<!--{{style}}"


def full(text: str, state: State = State.GATED) -> Case:
    """A case in which all strings are equal to ``text``."""
    row = Row(text, text, 1, 2, text, Verdict.CHANGED, True, text, True)
    picture = Timeline(10, (Lane(text, text, ((0, 5, 0, 0, 1), (2, 3, 0, 1, 0))),), (Style(text, text, "kernel"),), 3)
    return Case(
        text, text, state, text, text, (row,), {text: 1, "kernels": {text: 2}}, {text: {text: 1}}, {text: text},
        (text,), (text,), {text: text}, 1.5, 2, text, text, (Kernel(text, 1, 2, 2, 2),), picture, text, text, text,
        added=(AddedWork(text, text, text, text, (CallSite(text, text, 1, 2),), 3),),
    )  # fmt: skip


def report(*cases: Case, text: str = "") -> SessionReport:
    return SessionReport(cases, text, text, 1.0, {text: text} if text else {}, (text,) if text else ())


@pytest.mark.parametrize("text", [EVIL, "javascript:alert(1)", "x" * 5000, "日本語[😀]"])
def test_no_text_of_a_test_becomes_markup(text):
    made = html(report(full(text), text=text)).encode("utf-8", "backslashreplace").decode()
    page, plain = Page(made), Page(html(report(full("a"), text="a")))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.case(0)["nodeid"] == text
    assert not {name for _, attributes in page.tags for name in attributes if name.startswith("on")}
    for _, address in page.case(0)["links"]:
        assert address.startswith("./")
        assert not set("<>\"'&:") & set(address)


@given(st.text())
def test_any_text_comes_through_the_page_as_it_was(text):
    page = Page(html(report(full(text))))
    assert page.case(0)["nodeid"] == text
    assert page.case(0)["problems"] == [text]
    assert json.loads(page.scripts["styles"]) == [[text, text, "kernel"]]


def test_an_entry_of_the_list_has_the_name_the_place_and_what_drifted():
    row = Row("kernel_launches", "", 1, 2, "", Verdict.CHANGED, True, failed=True)
    case = replace(
        full("a"), nodeid="test_a.py::test_b", job="h200", rows=(row,), problems=(), values={"kernel_launches": 2}
    )
    assert re.findall(r"<span class=(\w+)>([^<]*)</span>", html(report(case))) == [
        ("name", "test_b"), ("file", "h200 · test_a.py"), ("what", "2 kernels"), ("drift", "kernel_launches 1 → 2"),
    ]  # fmt: skip


def test_the_page_needs_nothing_from_elsewhere_and_lets_nothing_else_run():
    made = html(report(full("a")))
    page = Page(made)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    # The button of a trace opens this page in another window.
    assert re.findall(r"(?:https?:)?//[a-z][\w.]*", made) == ["https://ui.perfetto.dev"]
    assert not [a for _, a in page.tags if {"src", "style"} & set(a)]
    assert [a["href"] for tag, a in page.tags if tag == "a"] == ["#t0"]


def test_what_failed_comes_first_and_filters_count_each_state():
    cases = [Case("a::passed", state=State.GATED), Case("a::none", state=State.UNTRACED), full("a::drifted")]
    made = html(report(*cases, Case("a::broken", "failed"), Case("a::open", state=State.UNVERIFIED)))
    page = Page(made)
    assert [page.case(n)["nodeid"] for n in range(5)] == ["a::drifted", "a::broken", "a::open", "a::passed", "a::none"]
    assert "failed 2" in page.words
    assert "gated 2" in page.words
    assert "unverified 1" in page.words
    assert 'data-filter="updated"' not in made


def test_a_test_that_failed_by_itself_comes_after_those_that_changed():
    page = Page(html(report(Case("a::loss", "failed", State.UNVERIFIED), full("a::drifted"))))
    assert [page.case(n)["nodeid"] for n in range(2)] == ["a::drifted", "a::loss"]


def test_regions_that_failed_come_after_the_whole_test():
    row = Row("sync_calls", "forward", 0, 1, "exact", Verdict.CHANGED, True, "", True)
    same = replace(row, region="backward", now=0, verdict=Verdict.SAME, failed=False)
    values = {"sync_calls": 1}
    case = Case("a::b", "failed", State.GATED, rows=(same, row), values=values, regions={"optimizer": values})
    tables = Page(html(report(case))).case(0)["tables"]
    assert [table["region"] for table in tables] == ["", "forward", "backward", "optimizer"]


def test_a_first_run_that_did_more_is_a_note():
    page = Page(html(report(Case("a::warm", notes=("slow",), first_did_more=True))))
    assert page.case(0)["notes"] == ["slow", "the first run did more GPU work than the judged runs"]


@pytest.mark.parametrize(("launches", "words"), [(1, "1 kernel<"), (2, "2 kernels<")])
def test_the_list_counts_kernels(launches, words):
    assert words in html(report(Case("a", values={"kernel_launches": launches})))


def test_a_table_has_golden_and_now_of_each_metric_in_the_order_of_the_documentation():
    rows = (
        Row("sync_calls", "", 1, 2, "exact", Verdict.CHANGED, True, "+ cudaStreamSynchronize", True),
        Row("kernel_time_ns", "", 18000, 18700, "5 %", Verdict.SAME, False),
    )
    values = {"kernel_time_ns": 18700, "idle_share": 0.5, "kernel_launches": 3, "kernels": {"f": 1, "g": 2}}
    [table] = Page(html(report(Case("a", rows=rows, values=values)))).case(0)["tables"]
    assert [(row["name"], row.get("golden"), row["now"]) for row in table["rows"]] == [
        ("kernel_launches", None, "3"),
        ("sync_calls", "1", "2"),
        ("kernel_time", "18.0us", "18.7us"),
        ("idle_share", None, "50.0 %"),
    ]
    assert table["rows"][0]["parts"] == [["g", "2\u00a0\u00d7"], ["f", "1\u00a0\u00d7"]]
    assert table["rows"][1]["mark"] == "bad"
    assert table["rows"][2]["detail"] == "(not gated)"


def test_a_breakdown_stands_in_the_row_of_its_total():
    rows = (
        Row("memcpy_bytes", "", {"d2h": 4}, {"d2h": 8}, "exact", Verdict.CHANGED, True, failed=True),
        Row("kernel_launches", "", 3, 4, "limit", Verdict.WORSE, True, failed=True),
    )
    values = {"memcpy_bytes": 8, "memcpy_d2h_bytes": 8, "sync_calls": 2, "syncs": {"f": 2}, "kernels": {"k": 4}}
    values |= {"memcpy_count": 3, "memcpy_d2h_count": 1, "memcpy_h2d_count": 2}
    [table] = Page(html(report(Case("a", rows=rows, values=values)))).case(0)["tables"]
    assert [(row["name"], row["parts"]) for row in table["rows"]] == [
        ("kernel_launches", [["k", "4\u00a0\u00d7"]]),
        ("memcpy_count", [["h2d", "2\u00a0\u00d7"], ["d2h", "1\u00a0\u00d7"]]),
        ("memcpy_bytes", [["d2h", "8 B"]]),
        ("sync_calls", [["f", "2\u00a0\u00d7"]]),
    ]


def test_updates_better_tests_and_environments_are_told_apart():
    changed = Row("sync_calls", "", 1, 2, "exact", Verdict.CHANGED, True, "+ cudaStreamSynchronize", True)
    less = Row("sync_calls", "", 2, 1, "exact", Verdict.BETTER, True)
    made = html(report(
        Case("a::updated", state=State.UPDATED, rows=(changed,)),
        Case("a::better", state=State.GATED, rows=(less,), gpu="NVIDIA H200", environment="sm_90", recorded_on="CUDA"),
        Case("a::other", state=State.UNVERIFIED, reason="no golden for sm_80", gpu="NVIDIA A100", environment="sm_80"),
        Case("a::once", state=State.UNCONFIRMED),
    ))  # fmt: skip
    page = Page(made)
    assert [page.case(n)["nodeid"] for n in range(4)] == ["a::other", "a::once", "a::updated", "a::better"]
    assert "failed 1" not in page.words
    assert "better 1" in page.words
    assert re.findall(r"<span class=drift>([^<]*)</span>", made) == [
        "no golden for sm_80",
        "from one run; `pytest --cutrace-update` again confirms",
        "updated: sync_calls 1 → 2 (+ cudaStreamSynchronize)",
        "better: sync_calls 2 → 1",
    ]
    assert "sm_80 · a" in page.words
    assert page.case(1)["reason"].startswith("from one run")
    [row] = page.case(2)["tables"][0]["rows"]
    assert (row["verdict"], row["mark"], row["detail"]) == ("updated", "new", "+ cudaStreamSynchronize")
    assert page.case(3)["facts"] == ["NVIDIA H200 (sm_90)", "CUDA"]
    assert [dict(a).get("data-better", "no") for tag, a in page.tags if tag == "li"] == ["no", "no", "no", None]


def test_slices_are_the_distance_to_the_one_before():
    case = Page(html(report(full("a")))).case(0)
    assert case["timeline"] == {"span": 10, "left": 3, "lanes": [["a", "a", [0, 5, 0, 0, 1, 2, 3, 0, 1, 0]]]}


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1 << 5000, {}, -1, 10**30])
def test_odd_values_are_shown_too(value):
    row = Row("busy_ns", "r", value, value, "", Verdict.SAME, False)
    case = Case("a", rows=(row,), values={"busy_ns": value, "kernels": value}, user={"x": value}, duration_s=1e300)
    assert Page(html(report(case))).case(0)["tables"]


def test_styles_are_in_the_page_once_and_a_test_of_a_real_suite_takes_few_bytes():
    with cutrace.load(DATA / "torch_step.bin") as trace:
        window = whole(trace)
        case = Case("a", values=measure(trace, window).values, kernels=top_kernels(trace, window))
        case = replace(case, timeline=timeline(trace, window))
    one, many = (len(html(report(*[replace(case, nodeid=f"t{n}") for n in range(count)]))) for count in (1, 11))
    # 500 cases have to be smaller than 10 MB.
    assert (many - one) / 10 < 18_000
    assert html(SessionReport(()))


def test_a_page_holds_the_traces_of_failed_tests_that_are_there_and_small(tmp_path, monkeypatch):
    monkeypatch.setattr("cutrace.reports.html._TRACE", 1000)
    monkeypatch.setattr("cutrace.reports.html._TRACES", 200)
    contents = {"a": b"trace" * 1000, "b": secrets.token_bytes(2000), "c": secrets.token_bytes(200), "passed": b"trace"}
    cases = []
    for name, content in contents.items():
        path = tmp_path / f"{name}.pftrace"
        path.write_bytes(content)
        outcome = "passed" if name == "passed" else "failed"
        cases.append(Case(f"t.py::{name}", outcome, artifacts={"trace.pftrace": path.name}))
    (tmp_path / "secret").write_bytes(b"secret")
    unusable = ("gone.pftrace", "secret", "nul\0.pftrace", ".pftrace/x.pftrace")
    cases += [Case(f"t.py::{path}", "failed", artifacts={"trace.pftrace": path}) for path in unusable]
    report = SessionReport(tuple(cases))
    scripts = Page(html(report, tmp_path)).scripts
    traces = {name: text for name, text in scripts.items() if name.startswith("p")}
    assert list(traces) == ["p0"]
    assert gzip.decompress(base64.b64decode(json.loads(traces["p0"]))) == contents["a"]
    assert html(report, tmp_path) == html(report, tmp_path)
    assert '"p0"' not in html(report)
