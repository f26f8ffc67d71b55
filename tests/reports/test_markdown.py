"""Markdown for CI job summaries, and JUnit properties."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.golden.compare import Row
from cutrace.golden.model import Verdict
from cutrace.reports.junit import properties
from cutrace.reports.markdown import Download, markdown, text
from cutrace.reports.model import AddedWork, CallSite, Case, Kernel, SessionReport, State

ROW = Row("kernel_launches", "", 3, 4, "exact", Verdict.CHANGED, True, "+ cast_kernel x1 (new)", True)
CASE = Case(
    "t.py::a[1|2]", "failed", State.GATED, gpu="NVIDIA H200", rows=(ROW,), kernels=(Kernel("k", 4, 4000, 900, 1100),),
    values={"kernel_launches": 4, "kernels": {"k": 4}, "idle_share": 0.5}, regions={"forward": {"memset_count": 1}},
    artifacts={"trace.pftrace": "a/trace.pftrace"}, user={"tokens": 7, "what": "x\x00"},
)  # fmt: skip


def test_a_summary_begins_with_figures_and_what_failed():
    made = markdown(
        SessionReport((CASE, Case("t.py::b", state=State.UNTRACED, reason="no GPU work")), "pytest --cutrace")
    )
    assert made.startswith("## cutrace\n\n1 traced, 1 gated (1 failed), 0 unverified, 1 not traced on NVIDIA H200\n")
    assert "### <code>t.py&#58;&#58;a&#91;1&#124;2&#93;</code> on NVIDIA H200" in made
    assert "| <code>kernel_launches</code> | 3 | **4** | exact | &#43; cast_kernel x1 (new) |" in made
    assert "<summary>Not traced: 1 test</summary>" in made
    assert "- 1 x no GPU work: <code>t.py" in made
    assert "| <code>k</code> | 1 | 4 | 4.0us |" in made


def test_a_table_has_as_many_cells_in_each_row():
    lines = [line for line in markdown(SessionReport((CASE,))).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines[:3]} == {6}
    assert {line.count("|") for line in lines[3:]} == {5}


def failed(number: int, row: Row) -> Case:
    return Case(f"t.py::test_{number:04}" + "x" * 100, "failed", State.GATED, rows=(row,), environment="sm_90")


@pytest.mark.parametrize("causes", [50, 1000])
def test_a_summary_is_bounded(causes):
    rows = [replace(ROW, detail=f"+ kernel_{number}" + "y" * 1000) for number in range(causes)]
    made = markdown(SessionReport(tuple(failed(number, rows[number % causes]) for number in range(10_000))))
    assert made.count("###") == 50
    assert ("failed tests more" in made) == (causes > 50)
    assert len(made) < 1 << 20


def test_failures_of_one_cause_are_one_section_that_names_every_test():
    made = markdown(SessionReport((*(failed(number, ROW) for number in range(1000)), CASE)))
    assert "\n### 1,001 tests: kernel_launches 3 -&#62; 4 (+ cast_kernel)\n" in made
    assert made.count("###") == 1
    assert made.count("| <code>kernel_launches</code> |") == 1
    assert made.count("\n- <code>t.py") == 1001
    assert "<summary>Failed for this cause: 1,001 tests</summary>" in made


@given(st.text())
def test_words_are_never_markup(words):
    made = text(words)
    assert not set("<>|`*[]!#~$\n\r@") & set(made.replace("&#", ""))


def test_an_underscore_inside_a_word_stays():
    assert text("sm_90-cuda13 _x_ a__b") == "sm_90-cuda13 &#95;x&#95; a&#95;&#95;b"


def test_junit_properties_are_plain_numbers():
    assert dict(properties(CASE)) == {
        "cutrace.state": "gated",
        "cutrace.gpu": "NVIDIA H200",
        "cutrace.kernel_launches": "4",
        "cutrace.idle_share": "0.5",
        "cutrace.forward.memset_count": "1",
        "cutrace.user.tokens": "7",
        "cutrace.user.what": "x\ufffd",
        "cutrace.failed.kernel_launches": "kernel_launches 3 -> 4 (+ cast_kernel)",
        "cutrace.file.trace.pftrace": "a/trace.pftrace",
    }


def test_the_lines_of_added_work_are_in_each_report():
    site = CallSite("mylib/ops.py:42 in fused_add", "test_ops.py:17", 1, 0)
    case = replace(CASE, added=(AddedWork("kernel_launches", "", "cast", "+ cast", (site,)),))
    # The lines are in a block, because their columns would not be aligned in a list.
    assert "\n```text\n+ cast   mylib/ops.py:42 in fused_add" in markdown(SessionReport((case,)))
    assert ("cutrace.added", "+ cast   mylib/ops.py:42 in fused_add  <- test_ops.py:17") in properties(case)


def test_junit_names_what_was_updated_and_what_got_better_and_no_failure():
    less = Row("kernel_launches", "forward", 10, 1, "exact", Verdict.BETTER, True)
    found = dict(properties(Case("a", state=State.GATED, environment="sm_90", rows=(less,))))
    assert found == {
        "cutrace.state": "gated",
        "cutrace.environment": "sm_90",
        "cutrace.better.forward.kernel_launches": "forward/kernel_launches 10 -> 1",
    }
    found = dict(properties(Case("a", state=State.UPDATED, rows=(ROW,))))
    assert found == {
        "cutrace.state": "updated",
        "cutrace.updated.kernel_launches": "kernel_launches 3 -> 4 (+ cast_kernel)",
    }


def test_an_update_is_listed_with_its_values_and_is_no_failure():
    made = markdown(
        SessionReport((Case("t.py::a", state=State.UPDATED, rows=(ROW,)), Case("t.py::b", state=State.UPDATED)))
    )
    assert "### <code>" not in made
    assert "failed" not in made
    assert "<summary>Updated golden values: 2 tests</summary>" in made
    assert "| <code>t.py&#58;&#58;a</code> | kernel_launches 3 -&#62; 4 (+ cast_kernel) |" in made
    assert "1 test with new values." in made


def test_better_unconfirmed_and_unverified_tests_are_listed_with_their_environments():
    less = Row("kernel_launches", "", 10, 1, "exact", Verdict.BETTER, True, "- gemm x9")
    cases = (
        Case("t.py::a", state=State.GATED, rows=(less,), gpu="H200", environment="sm_90", job="nightly"),
        Case("t.py::b", state=State.UNVERIFIED, reason="no golden for sm_80", gpu="A100", environment="sm_80"),
        Case("t.py::c", state=State.UNCONFIRMED),
    )
    made = markdown(SessionReport(cases, job="gpu", commit="4f1c09e2"))
    assert "gpu, commit 4f1c09e2" in made
    assert "<summary>Better than the golden values: 1 test</summary>" in made
    assert "</code> on H200 (sm_90), nightly | kernel_launches 10 -&#62; 1 (- gemm x9) |" in made
    assert "- 1 x no golden for sm_80: <code>t.py&#58;&#58;b</code> on A100 (sm_80)" in made
    assert "<summary>Not confirmed: 1 test</summary>" in made


DOWNLOAD = Download("gh run download 7 --dir run-7", "run-7", "https://host/a (b)", ("proposed",))


def test_a_reader_elsewhere_can_paste_the_commands_that_open_a_trace_and_accept_candidates():
    made = markdown(SessionReport((CASE,)), DOWNLOAD)
    first = "gh run download 7 --dir run-7\ncutrace golden accept --dry-run run-7/proposed\n"
    assert made.index(f"\n```sh\n{first}```\n") < made.index("###")
    assert "\n```sh\ncutrace open run-7/a/trace.pftrace\n```\n" in made
    assert "\n[All tests, with their timelines](https://host/a%20%28b%29)\n" in made
    assert "```" not in markdown(SessionReport((CASE,)))
    assert "accept" not in markdown(SessionReport((CASE,)), replace(DOWNLOAD, candidates=()))


@pytest.mark.parametrize("path", ["a/```/\n# b/trace.pftrace", "a b/'$(x)'/trace.pftrace"])
def test_a_path_cannot_end_the_block_of_commands(path):
    case = replace(CASE, artifacts={"trace.pftrace": path})
    made = markdown(SessionReport((case,)), DOWNLOAD)
    block = re.search(r"^(`+)sh\n(cutrace open .*)\n\1$", made, re.MULTILINE)
    assert block
    assert "`" * len(block[1]) not in block[2]
    assert len(shlex.split(block[2])) == 3


@pytest.mark.parametrize("limit", [16 << 10, 60_000])
def test_sections_without_room_are_left_out(limit):
    rows = [replace(ROW, detail=f"+ kernel_{number}" + "y" * 1000) for number in range(500)]
    cases = tuple(failed(number, row) for number, row in enumerate(rows))
    made = markdown(SessionReport(cases, notes=("*" * 1000,) * 100), DOWNLOAD, limit)
    assert limit // 2 < len(made.encode()) < limit
    assert "\n## cutrace\n\n500 traced" in "\n" + made
    assert re.search(r"\n\d+ sections left out: see the other reports\n$", made)


def test_tests_that_differ_from_run_to_run_are_named():
    row = replace(ROW, verdict=Verdict.UNSTABLE, failed=False)
    cases = (Case("t.py::warm", first_did_more=True), Case("t.py::cache", rows=(row,)), Case("t.py::same"))
    made = markdown(SessionReport(cases))
    assert "<summary>Different from run to run: 2 tests</summary>" in made
    assert "\n- <code>t.py&#58;&#58;warm</code>: the first run did more GPU work than the judged runs\n" in made
    assert "cache</code>: kernel_launches differs from run to run&#58; it is not compared\n" in made
    assert "same" not in made
