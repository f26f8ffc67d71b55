"""Writing and reading as JSON does not change cases. Files are complete, and any JSON reader can read them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutrace import CutraceError
from cutrace.golden import Change, Observed, Row
from cutrace.golden.model import Interval, Span, Verdict, plain
from cutrace.reports.jsonfile import case_text, read_case, read_report, report_text, write
from cutrace.reports.model import AddedWork, CallSite, Case, Kernel, SessionReport, State, Timeline

# Short strings suffice. Longer strings and larger values are handled in the same way, and would take most of the time.
WORDS = st.text(max_size=6)
INTERVALS = st.builds(Interval, *[st.integers(0, 1 << 60)] * 4, st.tuples(st.integers(0, 9)))
VALUES = st.one_of(st.integers(-(1 << 70), 1 << 70), st.dictionaries(WORDS, st.integers(), max_size=2))
COUNTS = st.one_of(st.integers(0, 1 << 70), st.lists(st.integers(), min_size=1).map(tuple))
NAMES = st.one_of(WORDS, st.sampled_from(["interval", "span", "min"]))
SPANS = st.builds(Span, st.integers(), st.integers())
PARTS = st.dictionaries(NAMES, COUNTS, max_size=2)
STORED = st.one_of(st.none(), COUNTS, PARTS, SPANS, INTERVALS)
ROWS = st.builds(Row, WORDS, WORDS, STORED, STORED, WORDS, st.sampled_from(Verdict), st.booleans())
SITES = st.builds(CallSite, WORDS, WORDS, st.integers(), st.integers())
ADDED = st.builds(AddedWork, *[WORDS] * 4, st.lists(SITES, max_size=2).map(tuple), st.integers())
CASES = st.builds(
    Case,
    WORDS,
    state=st.sampled_from(State),
    environment=WORDS,
    job=WORDS,
    reason=WORDS,
    rows=st.lists(ROWS, max_size=2).map(tuple),
    values=st.dictionaries(WORDS, VALUES, max_size=3),
    regions=st.dictionaries(WORDS, st.dictionaries(WORDS, VALUES, max_size=2), max_size=2),
    problems=st.lists(WORDS, max_size=2).map(tuple),
    kernels=st.lists(st.builds(Kernel, WORDS, *[st.integers()] * 4), max_size=2).map(tuple),
    added=st.lists(ADDED, max_size=2).map(tuple),
)


@settings(deadline=None)
@given(CASES, WORDS)
def test_a_case_comes_back_from_json_as_it_was_and_a_report_without_pictures_and_changes(case, header):
    assert Case.from_json(json.loads(json.dumps(case.to_json(), allow_nan=False))) == case
    drawn = replace(case, timeline=Timeline(1, (), ()), change=Change(header, Path("a.toml"), header, Observed()))
    report = SessionReport(
        (drawn, Case(header)), header, versions={"cutrace": header}, notes=(header,), commit="abc", job="gpu"
    )
    assert SessionReport.from_json(json.loads(report_text(report))) == replace(report, cases=(case, Case(header)))


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("odd", "made"),
    [
        (math.nan, None),
        (math.inf, None),
        (1 << 2000, "an integer of 2001 bits"),
        (np.int64(7), 7),
        (np.float32("nan"), None),
        (np.array([1, 2]), "[1 2]"),
        ({3: {1}}, {"3": [1]}),
        (b"x", "b'x'"),
        (Rude(), "<Rude>"),
        (State.GATED, "gated"),
    ],
)
def test_what_json_lacks_becomes_what_it_has(odd, made):
    assert plain(odd) == made


def test_what_a_test_recorded_may_be_anything(tmp_path):
    case = Case("a::b", user={"x": math.nan, "y": Rude(), "z": [1, {"k": np.int32(2)}]}, values={"busy_ns": math.nan})
    write(tmp_path / "new" / "metrics.json", case_text(case))
    read = read_case(tmp_path / "new" / "metrics.json")
    assert read.user == {"x": None, "y": "<Rude>", "z": [1, {"k": 2}]}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["metrics.json"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_has_the_mode_of_the_umask_which_stays_as_it_is(tmp_path, monkeypatch, mask):
    def refused(mask: int) -> int:
        raise AssertionError("the umask belongs to the process")

    before = os.umask(mask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", refused)
            write(tmp_path / "report.json", "{}")
    finally:
        assert os.umask(before) == mask
    assert (tmp_path / "report.json").stat().st_mode & 0o777 == 0o666 & ~mask


def test_ids_that_are_no_unicode_are_written_escaped(tmp_path):
    write(tmp_path / "report.json", report_text(SessionReport((Case("a::b[\udc80é]"),))))
    assert read_report(tmp_path / "report.json").cases[0].nodeid == "a::b[\udc80é]"


def test_a_file_of_something_else_says_what_to_do(tmp_path):
    file = tmp_path / "x.json"
    for text, words in [
        ("{", "is not JSON"),
        ("[]", "is not a cutrace report"),
        (case_text(Case("a")), "is not a cutrace"),
    ]:
        file.write_text(text)
        with pytest.raises(CutraceError, match=words):
            read_report(file)
    for number, words in ((99, "update cutrace"), (1, "write it again with this cutrace")):
        file.write_text(report_text(SessionReport(())).replace('"format": 2', f'"format": {number}'))
        with pytest.raises(CutraceError, match=words):
            read_report(file)
    for cases in ('[{"nodeid": "a", "state": "odd"}]', "[7]", '[{"nodeid": "a", "rows": [{}]}]'):
        file.write_text(report_text(SessionReport(())).replace('"cases": []', f'"cases": {cases}'))
        with pytest.raises(CutraceError, match="is damaged"):
            read_report(file)
    with pytest.raises(CutraceError, match="cannot read"):
        read_report(tmp_path / "none.json")
    with pytest.raises(CutraceError, match="cannot write"):
        write(file / "under" / "a file", "")


def test_the_name_of_a_case_is_its_id_without_the_file():
    assert Case("tests/test_a.py::TestA::test_b[x::y/z]").name == "TestA.test_b[x::y/z]"
    assert Case("tests/test_a.py::test_b").name == "test_b"
    assert Case("odd").name == "odd"
    assert Case("tests/test_a.py::test_b").file == "tests/test_a.py"


def test_a_gated_test_whose_numbers_cannot_be_trusted_has_drifted():
    failed = Row("sync_calls", "", 1, 2, "exact", Verdict.CHANGED, True, "", True)
    assert Case("a", state=State.GATED, rows=(failed,)).drifted
    assert Case("a", state=State.GATED, problems=("lost",)).drifted
    assert not Case("a", state=State.TRACED, problems=("lost",)).drifted
    assert SessionReport((Case("a"), Case("b", state=State.GATED, rows=(failed,)))).drifted[0].nodeid == "b"


def test_better_are_gated_rows_that_did_less_and_do_not_fail():
    less = Row("sync_calls", "", 2, 1, "exact", Verdict.BETTER, True)
    rows = (less, replace(less, failed=True), replace(less, gated=False), replace(less, verdict=Verdict.SAME))
    assert Case("a", state=State.GATED, rows=rows).better == (less,)
    assert Case("a", state=State.UPDATED, rows=(less,)).better == ()
    assert [
        case.nodeid for case in SessionReport((Case("a", rows=(less,)), Case("b"), Case("c", rows=rows))).better
    ] == ["a"]


def test_devices_are_gpus_with_their_environment():
    cases = (Case("a", gpu="NVIDIA A100", environment="sm_80"), Case("b", gpu="NVIDIA A100"), Case("c"))
    assert SessionReport(cases).devices == ("NVIDIA A100 (sm_80)", "NVIDIA A100")
