"""cutrace report: merge, compare and trend of report.json files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from captures import Capture
from cutrace.analysis.marks import begin, end
from cutrace.golden.compare import Row
from cutrace.golden.model import Verdict
from cutrace.reports.jsonfile import read_report, report_text
from cutrace.reports.model import Case, SessionReport, State
from reports.page import Page
from support import cutrace, refused


def written(path: Path, launches: int = 3, **about) -> Path:
    environment = about.pop("environment", "sm_90")
    values = {"kernel_launches": launches, "kernels": {"gemm": launches}, "kernel_time_ns": 100 * launches}
    outcome, rows = about.pop("outcome", ""), about.pop("rows", ())
    case = Case("t.py::a", outcome, rows=rows, state=State.GATED, environment=environment, gpu="GPU", values=values,
                artifacts={"run.bin": "a/run.bin", "trace.pftrace": "a/trace.pftrace"})  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report_text(SessionReport((case,), **about)))
    return path


def run(*arguments, cwd: Path, status: int = 0) -> str:
    done = cutrace("report", *arguments, cwd=cwd)
    assert (done.returncode, done.stderr) == (status, "")
    return done.stdout


def jobs(path: Path) -> list[tuple[str, str]]:
    return [(case.job, case.environment) for case in read_report(path).cases]


def test_jobs_have_the_names_given_or_their_own_or_those_of_files_and_folders(tmp_path):
    a, b = written(tmp_path / "a100" / "report.json", environment="sm_80"), written(tmp_path / "h200.json")
    c = written(tmp_path / "c.json", job="nightly")
    run("merge", a, b, c, "-o", "all.json", cwd=tmp_path)
    assert jobs(tmp_path / "all.json") == [("a100", "sm_80"), ("h200", "sm_90"), ("nightly", "sm_90")]
    run("merge", a, b, "-o", "all.json", "--name", "one", "--name", "two", cwd=tmp_path)
    assert jobs(tmp_path / "all.json") == [("one", "sm_80"), ("two", "sm_90")]
    same = [written(tmp_path / name / "report.json", job="gpu-tests") for name in ("cuda12", "cuda13")]
    run("merge", *same, "-o", "all.json", cwd=tmp_path)
    assert [job for job, _ in jobs(tmp_path / "all.json")] == ["cuda12", "cuda13"]
    run("merge", a, "-o", "all.json", cwd=tmp_path)
    assert jobs(tmp_path / "all.json") == [("", "sm_80")], "a single report needs no label"
    d = written(tmp_path / "other" / "a100" / "report.json")
    run("merge", a, d, "-o", "all.json", cwd=tmp_path)
    assert [job for job, _ in jobs(tmp_path / "all.json")] == [str(a), str(d)]


def test_links_hold_from_the_merged_report_as_far_as_files_are_there(tmp_path):
    a = written(tmp_path / "job" / "report.json")
    (tmp_path / "job" / "a").mkdir()
    (tmp_path / "job" / "a" / "run.bin").touch()
    (tmp_path / "out").mkdir()
    run("merge", a, "-o", "out/all.json", cwd=tmp_path)
    assert read_report(tmp_path / "out" / "all.json").cases[0].artifacts == {"run.bin": "../job/a/run.bin"}


def test_a_merged_report_is_markdown_or_html_by_the_name_of_its_file(tmp_path):
    a, b = written(tmp_path / "a.json"), written(tmp_path / "b.json", environment="sm_80")
    run("merge", a, b, "-o", "all.md", cwd=tmp_path)
    assert (tmp_path / "all.md").read_text().startswith("## cutrace\n\n2 traced, 2 gated")
    run("merge", a, b, "-o", "all.html", cwd=tmp_path)
    assert "2 jobs (a, b)" in (tmp_path / "all.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "all.html", "all.md", "b.json"]


def test_a_summary_for_a_reader_elsewhere(tmp_path):
    """Paths are relative to the folder of the summary, because the reader downloads this folder."""
    row = Row("kernel_launches", "", 3, 4, "exact", Verdict.CHANGED, True, "", True)
    report = written(tmp_path / "jobs" / "h100" / "report.json", outcome="failed", rows=(row,))
    (report.parent / "a").mkdir()
    (report.parent / "a" / "trace.pftrace").touch()
    (report.parent / "proposed").mkdir()
    there = ("--download", "gh run download 7 --dir run-7", "--into", "run-7", "--page", "https://host/page")
    run("merge", report, "-o", "jobs/summary.md", *there, "--max-size", "60KB", cwd=tmp_path)
    made = (tmp_path / "jobs" / "summary.md").read_text()
    assert "\ncutrace open run-7/h100/a/trace.pftrace\n" in made
    assert "\ncutrace golden accept --dry-run run-7/h100/proposed\n" in made
    assert "(https://host/page)" in made


def test_a_merged_page_has_the_timelines_of_the_captures_that_are_there(tmp_path):
    a, b = written(tmp_path / "job" / "report.json"), written(tmp_path / "b.json")
    (tmp_path / "job" / "a").mkdir()
    with Capture(tmp_path / "job" / "a" / "run.bin") as made:
        made.mark(begin("test", "t.py::a"), 1_000, source=1)
        launch = made.launch("gemm")
        made.api("cudaLaunchKernel", 2_000, 3_000, correlation=1)
        made.kernel(launch, 4_000, 5_000, correlation=1)
        made.mark(end("test", "t.py::a"), 6_000, source=1)
    run("merge", a, b, "-o", "all.html", cwd=tmp_path)
    page = Page((tmp_path / "all.html").read_text())
    first, second = page.case(0), page.case(1)
    assert [lane[0] for lane in first["timeline"]["lanes"]][-1] == "stream 7"
    assert [kernel[0] for kernel in first["kernels"]] == ["gemm"]
    assert second["timeline"] is None


def test_a_damaged_capture_leaves_a_merged_page_without_that_timeline(tmp_path):
    a = written(tmp_path / "job" / "report.json")
    (tmp_path / "job" / "a").mkdir()
    (tmp_path / "job" / "a" / "run.bin").touch()
    done = cutrace("report", "merge", a, "-o", "all.html", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("cutrace: t.py::a has no timeline: ")
    assert Page((tmp_path / "all.html").read_text()).case(0)["timeline"] is None


def test_what_changed_is_shown_and_ends_with_status_1(tmp_path):
    a, b = written(tmp_path / "a.json"), written(tmp_path / "b.json", 5)
    assert run("compare", a, a, cwd=tmp_path).startswith("1 test: 0 changed, 0 new, 0 gone; kernel_launches 3,")
    lines = run("compare", a, b, cwd=tmp_path, status=1).splitlines()
    assert lines[0] == "Tests that changed"
    assert lines[2].split() == ["kernel_launches", "3", "5", "+", "gemm", "x2", "t.py::a", "(sm_90)"]
    assert lines[-1].startswith("1 test: 1 changed, 0 new, 0 gone; kernel_launches 3 -> 5,")
    run("compare", a, a, "--fail-on-gone", cwd=tmp_path)
    none = tmp_path / "none.json"
    none.write_text(report_text(SessionReport(())))
    assert "0 changed, 0 new, 1 gone" in run("compare", a, none, cwd=tmp_path)
    run("compare", a, none, "--fail-on-gone", cwd=tmp_path, status=1)
    shown = run("compare", a, b, "--format", "markdown", cwd=tmp_path, status=1)
    assert shown.startswith("### Tests that changed\n\n| what | before | after | details | test |\n")
    found = json.loads(run("compare", a, b, "--format", "json", cwd=tmp_path, status=1))
    assert (found["kind"], found["failed"], found["new"], found["gone"]) == ("cutrace report comparison", True, [], [])
    assert found["changed"][0]["metrics"] == [
        {"metric": "kernel_launches", "region": "", "before": {"gemm": 3}, "after": {"gemm": 5}}
    ]


def test_a_trend_is_in_the_order_of_the_files_or_of_time(tmp_path):
    a = written(tmp_path / "a.json", 5, started="2026-01-02T00:00:00+00:00", commit="bbbbbbbbbb")
    b = written(tmp_path / "b.json", 3, started="2026-01-02T00:30:00+01:00", commit="aaaaaaaaaa")
    run("trend", a, b, "-o", "trend.html", cwd=tmp_path)
    assert "bbbbbbbb to aaaaaaaa" in (tmp_path / "trend.html").read_text()
    run("trend", a, b, "-o", "trend.html", "--by-time", cwd=tmp_path)
    assert "aaaaaaaa to bbbbbbbb" in (tmp_path / "trend.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["merge", "none.json", "-o", "x.json"],
            "cannot read none.json: No such file or directory. Check its name and permissions.",
        ),
        (["merge", "bad.json", "-o", "x.json"], "bad.json is not JSON"),
        (["merge", "odd.json", "-o", "x.json"], "odd.json is not a cutrace report"),
        (["merge", "a.json", "-o", "x.xyz"], "cannot tell the format of x.xyz"),
        (["merge", "a.json", "-o", "none/x.json"], "the folder none does not exist"),
        (["merge", "a.json", "b.json", "-o", "x.json", "--name", "a"], "1 name for 2 files"),
        (["merge", "a.json", "-o", "b.json/x.json"], "b.json is not a folder"),
        (["merge", "a.json", "b.json", "-o", "x.json", "--name", "a", "--name", "a"], "two files are named 'a'"),
        (["merge", "a.json", "-o", "x.html", "--page", "https://a"], "are for a .md file"),
        (["merge", "a.json", "-o", "x.md", "--page", "a.html"], "write one that starts with https://"),
        (["merge", "a.json", "-o", "x.md", "--download", "get"], "--download and --into need each other"),
        (["merge", "a.json", "-o", "x.md", "--max-size", "1K"], "is too small: give 16 KiB or more"),
        (["merge", "a.json", "-o", "x.md", "--max-size", "big"], "'big' is not a size"),
        (
            ["compare", "a.json", "none.json"],
            "cannot read none.json: No such file or directory. Check its name and permissions.",
        ),
        (["trend", "a.json", "-o", "x.html"], "a trend needs two reports or more"),
        (["trend", "a.json", "b.json", "-o", "x.json"], "ends in .html"),
        (["trend", "a.json", "b.json", "-o", "x.html", "--by-time"], "leave out --by-time"),
    ],
)
def test_bad_use_is_one_sentence_and_writes_nothing(tmp_path, arguments, sentence):
    for name in ("a.json", "b.json"):
        written(tmp_path / name)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text("{}")
    refused(cutrace("report", *arguments, cwd=tmp_path), sentence)
    assert len(list(tmp_path.iterdir())) == 4
