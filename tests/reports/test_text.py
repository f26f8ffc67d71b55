"""Terminal output: failures as in the documentation, footers, values with units."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.golden import Change, Interval, Observed, Row, Span, Verdict
from cutrace.reports.model import AddedWork, CallSite, Case, SessionReport, State
from cutrace.reports.text import (
    CLICK,
    TERMINAL_WRITER,
    changes,
    failure_lines,
    footer_lines,
    plain,
    remark,
    short_footer_lines,
    table_lines,
)
from cutrace.reports.values import counts, duration, number_text, pair, short, size, title, value_text
from cutrace.units import first_names


def failure(case: Case) -> str:
    return "\n".join(plain(failure_lines(case)))


def footer(report: SessionReport, **more) -> list[str]:
    return plain(footer_lines(report, **more))


def changed(metric: str, golden, now, detail: str = "", *, gated: bool = True) -> Row:
    return Row(metric, "", golden, now, "exact", Verdict.CHANGED, gated, detail, failed=gated)


KERNEL = changed("kernel_launches", 3, 4, "+ cast_fp32_kernel x1 (new)")
SYNC = changed("sync_calls", 1, 2, "+ cudaStreamSynchronize")
TIME = Row(
    "kernel_time_ns", "", Interval(18400, 18700, 18900, 3), Interval(19000, 19000, 19000, 1), "5 %", Verdict.SAME, False
)
SAME = Row("graph_launches", "", 0, 0, "exact", Verdict.SAME, True)
NODEID = "tests/test_softmax.py::TestSoftmax::test_fwd[float16-1024x4096]"


def softmax(*rows: Row, **more) -> Case:
    return Case(NODEID, "failed", State.GATED, gpu="NVIDIA H200", rows=rows, **more)


def test_a_failure_names_the_metrics_the_kernel_the_call_the_trace_and_the_way_on():
    trace = ".cutrace/tests/test_softmax.py/TestSoftmax.test_fwd/float16-1024x4096/trace.pftrace"
    case = softmax(KERNEL, SAME, SYNC, TIME, artifacts={"trace.pftrace": trace}, environment="sm_90")
    assert failure(case) == "\n".join(
        [
            "cutrace: kernel_launches 3 -> 4 (+ cast_fp32_kernel), sync_calls 1 -> 2 (+ cudaStreamSynchronize)",
            "  TestSoftmax.test_fwd[float16-1024x4096] on NVIDIA H200 (sm_90)",
            "  metric            golden     now   rule",
            "  kernel_launches        3       4   exact   + cast_fp32_kernel x1 (new)",
            "  sync_calls             1       2   exact   + cudaStreamSynchronize",
            "  kernel_time       18.7us  19.0us   5 %     SAME (not gated)",
            f"  trace     {trace}",
            f"  if intended: pytest --cutrace-update '{NODEID}'",
        ]
    )
    styles = [style for _, style in failure_lines(case)]
    assert styles == ["bad", "bold", "dim", "bad", "bad", "", "", ""]


def test_added_work_has_its_lines_behind_the_name_of_the_test():
    here = CallSite("ops.py:42 in fused_add", "test_ops.py:17", 1, 0)
    loop = CallSite("test_ops.py:19 in test_b", "", 1200, 0)
    memory = CallSite("", "", 2, 64 << 20)
    added = (
        AddedWork("kernel_launches", "", "cast", "+ cast", (here,)),
        AddedWork("sync_calls", "", "cudaStreamSynchronize", "cudaStreamSynchronize 1 -> 1,201", (loop, here), 2),
        AddedWork("peak_memory_bytes", "", "", "peak_memory 32 MiB -> 64 MiB", (memory,)),
        AddedWork("kernel_launches", "", "k" * 100, "+ " + "k" * 100, (loop,)),
    )
    lines = failure(softmax(KERNEL, added=added)).splitlines()
    width = lines[3].index("1,200x")
    assert [line[:width].strip() for line in lines[2:7]] == [
        "+ cast",
        "cudaStreamSynchronize 1 -> 1,201",
        "",
        "",
        "peak_memory 32 MiB -> 64 MiB",
    ]
    assert [line[width:] for line in lines[2:8]] == [
        "ops.py:42 in fused_add  <- test_ops.py:17",
        "1,200x test_ops.py:19 in test_b",
        "1x ops.py:42 in fused_add  <- test_ops.py:17",
        "and 2 more places",
        "64 MiB no Python frame",
        "1,200x test_ops.py:19 in test_b",
    ]
    assert len(lines[7][:width].strip()) <= 62


def test_the_first_line_of_a_failure_is_bounded():
    rows = [changed("sync_calls", n, n + 1, "+ " + "very_long_name_" * 40) for n in range(9)]
    first = failure(softmax(*rows)).splitlines()[0]
    assert first.startswith("cutrace: sync_calls 0 -> 1 (+ very_long_name_")
    assert first.endswith(", and 5 more")
    assert len(first) < 500


def test_a_limit_is_named_with_what_broke_it():
    over = Row("kernel_launches", "forward", 3, 4, "limit", Verdict.WORSE, True, "over the limit, fill x4", True)
    assert changes([over]) == ["forward/kernel_launches 4 (limit 3: fill x4)"]
    assert changes([Row("busy_ns", "", 10, 2000, "limit", Verdict.WORSE, True, "over the limit", True)]) == [
        "busy 2.0us (limit 10ns)"
    ]


def test_rows_have_the_style_of_their_verdict():
    rows = [
        KERNEL,
        changed("sync_calls", 1, 2, gated=False),
        Row("memcpy_count", "", 4, 2, "exact", Verdict.BETTER, True),
        Row("memset_count", "", 4, 2, "exact", Verdict.BETTER, True, failed=True),
        SAME,
    ]
    assert [style for _, style in table_lines(rows)] == ["dim", "bad", "warn", "good", "bad", ""]
    assert set(CLICK) == set(TERMINAL_WRITER)


def test_doing_less_that_fails_names_what_became_less():
    less = Row("kernel_launches", "", 10, 1, "exact", Verdict.BETTER, True, "- gemm x9", True)
    lines = failure(softmax(less)).splitlines()
    assert lines[0] == "cutrace: kernel_launches 10 -> 1 (- gemm x9)"
    assert lines[-1] == f"  if intended: pytest --cutrace-update '{NODEID}'"


def test_more_memory_is_replaced_only_by_update_all():
    worse = Row("peak_memory_bytes", "", 32 << 20, 64 << 20, "+2 %", Verdict.WORSE, True, failed=True)
    text = failure(softmax(worse))
    assert "peak_memory   32 MiB  64 MiB   +2 %   WORSE" in text
    assert "--cutrace-update=all " in text


def test_a_broken_limit_is_no_golden_value_to_update():
    limit = Row("kernel_launches", "", 3, 4, "limit", Verdict.WORSE, True, "over the limit", True)
    text = failure(softmax(limit))
    assert "WORSE over the limit" in text
    assert "gpu_limit" in text
    assert "--cutrace-update" not in text


def test_a_broken_limit_of_a_region_says_where_it_is():
    limit = Row("sync_calls", "decode", 0, 1, "limit", Verdict.WORSE, True, "over the limit", True)
    text = failure(softmax(limit))
    assert "cutrace: decode/sync_calls 1 (limit 0)" in text
    assert "if intended: raise the limit in gpu_trace.region('decode')" in text
    assert "gpu_limit" not in text


def test_numbers_that_cannot_be_trusted_are_not_to_be_updated_from():
    text = failure(softmax(KERNEL, problems=("3 records were dropped by CUPTI",)))
    assert text.startswith("cutrace: not verified: 3 records were dropped by CUPTI, kernel_launches 3 -> 4")
    assert "  not verified: 3 records were dropped by CUPTI" in text
    assert "if intended" not in text


def test_rows_of_regions_say_of_which_and_values_align():
    rows = [KERNEL, Row("memset_count", "forward", 1, 12345, "exact", Verdict.CHANGED, True, failed=True)]
    lines = plain(table_lines(rows))
    assert lines[2].startswith("forward/memset_count        1  12,345   exact   CHANGED")
    assert lines[1].index(" 4 ") + 1 == lines[2].index("12,345") + 5
    assert table_lines([]) == []


def test_a_region_does_not_list_the_kernels_of_the_whole_test_again():
    same = replace(KERNEL, region="forward", golden=1, now=2)
    limit = Row("kernel_launches", "", 3, 4, "limit", Verdict.WORSE, True, "over the limit", True)
    other = replace(SYNC, region="forward", detail="+ cudaDeviceSynchronize")
    text = failure(softmax(KERNEL, limit, same, other))
    assert text.count("cast_fp32_kernel") == 2
    assert "forward/kernel_launches 1 -> 2, forward/sync_calls 1 -> 2 (+ cudaDeviceSynchronize)" in text
    assert re.search(r"forward/kernel_launches +1 +2 +exact +CHANGED\n", text)


def test_a_region_over_its_limit_does_not_list_its_golden_value_too():
    golden = replace(SYNC, region="decode", golden=0, now=4)
    limit = replace(golden, rule="limit", verdict=Verdict.WORSE, detail="over the limit, cudaStreamSynchronize x4")
    text = failure(softmax(golden, limit))
    assert text.startswith("cutrace: decode/sync_calls 4 (limit 0: cudaStreamSynchronize x4)\n")
    assert text.count("decode/sync_calls") == 2


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (200, "  unverified: 3 no golden for sm_90; 2 no golden for sm_80; 1 no counters"),
        (65, "  unverified: 3 no golden for sm_90; and 2 more"),
        (40, "  unverified: 3 no golden …0; and 2 more"),
    ],
)
def test_a_quiet_footer_leaves_out_whole_reasons(width, line):
    reasons = ["no golden for sm_90"] * 3 + ["no golden for sm_80"] * 2 + ["no counters"]
    cases = [Case(f"t.py::{number}", state=State.UNVERIFIED, reason=why) for number, why in enumerate(reasons)]
    lines = plain(short_footer_lines(SessionReport(tuple(cases)), width=width))
    assert lines[1] == line


def test_values_that_differ_look_different():
    assert pair("memcpy_bytes", 1 << 20, (1 << 20) + 4) == ("1,048,576 B", "1,048,580 B")
    assert pair("memcpy_bytes", 1 << 20, 1 << 21) == ("1 MiB", "2 MiB")
    assert pair("x_ns", 18_700_001, 18_700_002) == ("18,700,001 ns", "18,700,002 ns")


def test_long_names_lose_their_middle_and_control_characters_their_effect():
    name = "at::native::" + "very_long_" * 20 + "kernel"
    text = remark(changed("kernel_launches", 1, 2, f"+ {name} x1 (new)\x1b[31m\n"))
    assert "…" in text
    assert len(text) < 100
    assert text.startswith("+ at::native::very")
    assert "kernel x1 (new)" in text
    assert text.isprintable()


def test_what_is_not_gated_says_so():
    assert remark(Row("kernel_time_ns", "", 1, 2, "5 %", Verdict.SLOW, False)) == "SLOW (not gated)"
    assert remark(changed("sync_calls", 1, 2, "+ cudaDeviceSynchronize", gated=False)) == (
        "CHANGED + cudaDeviceSynchronize (not gated)"
    )


def test_the_footer_counts_every_test_and_says_why_some_were_not_traced():
    cases = (
        softmax(KERNEL),
        softmax(SAME),
        Case("a::b", state=State.UNVERIFIED, reason="no GPU was found"),
        *(Case(f"a::c{n}", state=State.UNTRACED, reason="no GPU work") for n in range(3)),
        Case("a::d", state=State.UNTRACED, reason="ncu holds CUPTI"),
        Case("a::e", state=State.MISSING, gpu="NVIDIA H200"),
        Case("a::f", state=State.UPDATED, golden="golden/a.toml"),
        Case("a::g", state=State.UPDATED, golden="golden/a.toml"),
        Case("a::h", state=State.UNVERIFIED, reason="no golden for sm_80", values={"kernel_launches": 1}),
        Case("a::i", state=State.UNCONFIRMED),
        softmax(Row("kernel_launches", "", 10, 1, "exact", Verdict.BETTER, True, "- gemm x9")),
    )
    lines = footer(SessionReport(cases), written=[".cutrace/report.html"], proposed=".cutrace/proposed")
    better = "TestSoftmax.test_fwd[float16-1024x4096]: kernel_launches 10 -> 1 (- gemm x9)"
    assert lines == [
        "cutrace: 8 traced, 3 gated (1 failed), 2 unverified, 1 unconfirmed, 4 not traced on NVIDIA H200",
        "  unverified   1  no GPU was found",
        "               1  no golden for sm_80",
        "  unconfirmed  1  from one run; `pytest --cutrace-update` again confirms",
        f"  better       1  {better}",
        "  not traced   3  no GPU work",
        "               1  ncu holds CUPTI",
        "  no golden    1 test: e",
        "  updated      2 tests in 1 file: review before you commit",
        "  candidates   .cutrace/proposed",
        "  accept them  cutrace golden accept .cutrace/proposed",
        "  report       .cutrace/report.html",
    ]
    assert footer(SessionReport(())) == ["cutrace: 0 traced, 0 gated, 0 unverified, 0 not traced"]


def test_candidates_are_named_only_where_there_are_any():
    assert not any("candidates" in line for line in footer(SessionReport((softmax(KERNEL, values={"a": 1}),))))
    assert any(
        "candidates" in line for line in footer(SessionReport((softmax(KERNEL, values={"a": 1}),)), proposed="x")
    )


def test_many_better_tests_are_counted():
    less = Row("kernel_launches", "", 10, 1, "exact", Verdict.BETTER, True)
    lines = footer(SessionReport(tuple(Case(f"a::t{n}", state=State.GATED, rows=(less,)) for n in range(1234))))
    assert lines[1] == "  better  1,234  t0: kernel_launches 10 -> 1"
    assert lines[2] == "                 t1: kernel_launches 10 -> 1"
    assert lines[-1] == "                 and 1,224 more"
    assert len(lines) == 12


def test_long_reasons_stay_aligned():
    long = "a reason that is rather long and says very much about the machine, its driver and its files"
    cases = [Case(f"a::{n}", state=State.UNTRACED, reason="short") for n in range(12)]
    lines = footer(SessionReport((*cases, Case("b", state=State.UNTRACED, reason=long))), width=60)
    assert lines[1:3] == ["  not traced  12  short", "               1  a reason that is rather long and says very"]
    assert lines[3].startswith(" " * 18 + "much about")
    assert all(len(line) <= 60 for line in lines[1:])


def test_an_update_that_worked_is_no_failure():
    case = Case("a::b", state=State.UPDATED, rows=(KERNEL, SAME), golden="golden/a.toml")
    report = SessionReport((case,))
    assert not report.drifted
    assert case.updated == (replace(KERNEL, failed=False),)
    assert "failed" not in "\n".join(footer(report))
    assert [style for _, style in footer_lines(report)] == ["bold", ""]


def test_a_broken_limit_fails_in_an_update_too():
    limit = Row("kernel_launches", "", 3, 4, "limit", Verdict.WORSE, True, "over the limit", True)
    case = Case("a::b", state=State.UPDATED, rows=(limit,))
    assert case.drifted
    assert case.updated == ()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kernel_launches", 12345, "12,345"),
        ("kernel_time_ns", 850, "850ns"),
        ("kernel_time_ns", Interval(1, 18700, 3, 4), "18.7us"),
        ("busy_ns", 999_960, "1.00ms"),
        ("busy_ns", 2_000_000_000, "2.000s"),
        ("peak_memory_bytes", 64 << 20, "64 MiB"),
        ("net_memory_bytes", -(3 << 19), "-1.5 MiB"),
        ("memcpy_bytes", 0, "0 B"),
        ("idle_share", 0.125, "12.5 %"),
        ("copy_bandwidth", 3 << 30, "3 GiB/s"),
        ("kernels", {"a": 2, "b": 1}, "3"),
        ("kernels", {}, "0"),
        ("sync_calls", (1, 2), "1 or 2"),
        ("memcpy_bytes", (4, 1024), "4 B or 1 KiB"),
        ("sync_calls", {"a": (1, 2), "b": 3}, "4 or 5"),
        ("sync_calls", {"a": (1, 2), "b": (3, 9)}, "4 to 11"),
        ("peak_memory_bytes", Span(0, 2 << 20), "0 B to 2 MiB"),
        ("streams_used", Span(0, 3), "0 to 3"),
        ("streams_used", Span(3, 3), "3"),
        ("mylib.tokens", 7, "7"),
        ("mylib.share", 0.5, "0.5"),
        ("mylib.wait_ns", 1500, "1.5us"),
        ("anything", None, "-"),
        ("anything", math.nan, "NaN"),
        ("busy_ns", -math.inf, "-inf"),
        ("busy_ns", 1 << 5000, "2^5000 ns"),
    ],
)
def test_values_have_units(name, value, words):
    assert value_text(name, value) == words


def test_names_of_metrics_go_without_units():
    assert [title(name) for name in ("kernel_time_ns", "peak_memory_bytes", "memcpy_bytes", "_ns")] == [
        "kernel_time", "peak_memory", "memcpy_bytes", "_ns"]  # fmt: skip


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([1 << 64, -(1 << 70), 1 << 20000, math.nan, math.inf, -math.inf]),
    st.floats(),
    st.text(),
    st.dictionaries(st.text(), st.one_of(st.integers(), st.none(), st.floats())),
    st.builds(Interval, *[st.integers()] * 4),
    st.builds(Span, st.integers(), st.integers()),
    st.lists(st.one_of(st.integers(), st.text())).map(tuple),
    st.dictionaries(st.text(), st.lists(st.one_of(st.integers(), st.text())).map(tuple)),
    st.binary(),
)
NAMES = st.one_of(st.sampled_from(["kernels", "busy_ns", "idle_share", "memcpy_bytes", "copy_bandwidth"]), st.text())
ROWS = st.builds(
    Row, NAMES, st.text(), ODD, ODD, st.text(), st.sampled_from(Verdict), st.booleans(), st.text(), st.booleans()
)


@given(NAMES, ODD, ODD)
def test_no_value_is_too_odd(name, golden, now):
    assert all(isinstance(word, str) and word for word in pair(name, golden, now))
    assert all(name.isprintable() for name, _ in counts(golden))


@given(st.lists(ROWS, max_size=4), st.dictionaries(st.text(), ODD), st.text(), st.text())
def test_no_case_is_too_odd(rows, values, nodeid, reason):
    case = Case(nodeid, rows=tuple(rows), values=values, reason=reason, gpu=nodeid, problems=(reason,), notes=(nodeid,))
    assert all(line.isprintable() for line in failure(case).split("\n"))
    report = SessionReport((case, Case(nodeid, state=State.UPDATED, rows=tuple(rows))), notes=(reason,))
    assert all(line.isprintable() for line in [*footer(report), *footer(report, width=40)])


@given(st.floats(min_value=0, max_value=1e15), st.floats(min_value=0, max_value=1e17))
def test_sizes_and_times_are_short(ns, count):
    assert len(duration(ns)) <= 12
    assert len(size(count)) <= 12


@given(st.text(), st.integers(min_value=5, max_value=80))
def test_short_texts_keep_begin_and_end(text, width):
    made = short(text, width)
    assert len(made) <= width
    assert (made == text) == (len(text) <= width and text.isprintable())


def written(*, confirmed: bool) -> Change:
    return Change("test_a.py::test_a", Path("golden/test_a.toml"), "sm_90", Observed(confirmed=confirmed))


def test_the_footer_of_an_update_counts_what_waits_for_a_second_session() -> None:
    once = Case("test_a.py::test_a", state=State.UPDATED, golden="golden/test_a.toml", change=written(confirmed=False))
    twice = replace(once, nodeid="test_a.py::test_b", change=written(confirmed=True))
    lines = footer(SessionReport((once, twice)))[1:]
    assert [line.split()[:2] for line in lines if "unconfirmed" in line] == [["unconfirmed", "1"]]


def test_numbers_have_four_digits_at_least():
    numbers = [0, 12_345, -1, 0.0, 1.5, 0.123456, 9999.4, 9999.5, 10_000.0, 12_345.6, -12_345.6, 1e-7]
    assert [number_text(number) for number in numbers] == [
        "0", "12,345", "-1", "0", "1.5", "0.1235", "9,999", "10,000", "10,000", "12,346", "-12,346", "1e-07",
    ]  # fmt: skip


def test_long_names_keep_their_ends():
    name = "abcdefghijklmnopqrstuvwxyz"
    assert [short(name, width) for width in (26, 25, 10, 4)] == [
        name, "abcdefghijklmnop…stuvwxyz", "abcdef…xyz", "ab…z",
    ]  # fmt: skip
    assert all(len(short(name, width)) == width for width in range(2, 26))
    assert len(short("x" * 61)) == 60 == len(short("x" * 60))


def test_a_list_of_names_ends_with_the_number_of_others():
    names = ["a", "b", "c"]
    assert [first_names(names, most) for most in (4, 3, 2, 1)] == [
        "a, b, c",
        "a, b, c",
        "a, b and 1 more",
        "a and 2 more",
    ]
    assert first_names(["a"] * 2001, 1) == "a and 2,000 more"
    assert first_names([], 2) == ""
