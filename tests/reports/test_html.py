"""The page: whole by itself, safe whatever tests are called, and small."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutrace
from cutrace.analysis.metrics import measure
from cutrace.analysis.windows import whole
from cutrace.golden import Row, Verdict
from cutrace.reports.html import html
from cutrace.reports.model import Case, Kernel, Lane, Report, State, Style, Timeline
from cutrace.reports.timeline import timeline, top_kernels

DATA = Path(__file__).parents[1] / "data"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\x1b[31m\u2028\udc80é<!--{{style}}"


class Page(HTMLParser):
    """What a browser makes of a page: tags with attributes, and the text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.words = ""
        self._script: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id") or "" if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.words += data

    def case(self, number: int) -> dict:
        return json.loads(self.scripts[f"c{number}"])


def full(text: str, state: State = State.GATED) -> Case:
    """A case in which each text is the same."""
    row = Row(text, text, 1, 2, text, Verdict.CHANGED, True, text, True)
    picture = Timeline(10, (Lane(text, text, ((0, 5, 0, 0, 1), (2, 3, 0, 1, 0))),), (Style(text, text, "kernel"),), 3)
    return Case(
        text, text, state, text, text, (row,), {text: 1, "kernels": {text: 2}}, {text: {text: 1}}, {text: text},
        (text,), (text,), {text: text}, 1.5, 2, text, text, (Kernel(text, 1, 2, 2, 2),), picture,
    )  # fmt: skip


def report(*cases: Case, text: str = "") -> Report:
    return Report(cases, text, text, 1.0, {text: text} if text else {}, (text,) if text else ())


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


def test_the_page_needs_nothing_from_elsewhere_and_lets_nothing_else_run():
    made = html(report(full("a")))
    page = Page(made)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"(?:https?:)?//[a-z]", made)
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


def test_a_table_has_golden_and_now_of_each_metric_in_the_order_of_the_documentation():
    rows = (
        Row("sync_calls", "", 1, 2, "exact", Verdict.CHANGED, True, "+ cudaStreamSynchronize", True),
        Row("kernel_time_ns", "", 18000, 18700, "5 %", Verdict.SAME, False),
    )
    values = {"kernel_time_ns": 18700, "idle_share": 0.5, "kernel_launches": 3, "kernels": {"f": 1, "g": 2}}
    [table] = Page(html(report(Case("a", rows=rows, values=values)))).case(0)["tables"]
    assert [(row["name"], row.get("golden"), row["now"]) for row in table["rows"]] == [
        ("kernel_launches", None, "3"),
        ("kernels", None, "3"),
        ("sync_calls", "1", "2"),
        ("kernel_time", "18.0us", "18.7us"),
        ("idle_share", None, "50.0 %"),
    ]
    assert table["rows"][1]["parts"] == [["g", "2"], ["f", "1"]]
    assert table["rows"][2]["mark"] == "bad"
    assert table["rows"][3]["detail"] == "(not gated)"


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
    # 500 of them are to be less than 10 MB.
    assert (many - one) / 10 < 18_000
    assert html(Report(()))
