"""Comparison of two sets of runs, and runs that differ from the others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import Capture
from cutrace.extras.fleet.runs import compare

pytest.importorskip("pyarrow")


def runs(folder: Path, lengths: list[int], *, extra: str = "", one_job: bool = False) -> list[Path]:
    """Runs with a kernel of about these lengths (ns), a kernel of 1 us, and ranges with numbers in their names."""
    paths = [folder / f"{folder.name}{number}" / f"run{number}.bin" for number in range(len(lengths))]
    if one_job:
        paths = [folder / path.name for path in paths]
    for number, (path, length) in enumerate(zip(paths, lengths, strict=True)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with Capture(path, pid=100 + number) as c:
            for at in range(10):
                begin = 100_000 * (at + 1)
                c.kernel(c.launch("gemm"), begin, begin + length + at, correlation=3 * at + 1)
                c.kernel(c.launch("copy"), begin + 50_000, begin + 51_000 + number % 3, correlation=3 * at + 2)
                c.push_pop(f"step {at}", begin, begin + 60_000)
            if extra:
                c.kernel(c.launch(extra), 5_000, 6_000, correlation=100)
    return paths


def test_a_regression_is_found_and_nothing_else(tmp_path):
    before = runs(tmp_path / "old", [10_000 + 20 * n for n in range(8)])
    after = runs(tmp_path / "new", [11_000 + 20 * n for n in range(8)], extra="fresh")
    result = cutrace.batch("regressions", after, tmp_path / "out", baseline=before, mode="sequential")
    (sentence,) = result.sentences
    assert sentence.startswith("kernel gemm: 1.099 times slower than in the baseline (95 %: 1.09")
    changed, only = (report.arrow().to_pylist() for report in result.reports)
    assert {row["name"] for row in changed} == {"gemm", "copy", "step #"}
    gemm = changed[0]
    mean_before, mean_after = 10_000 + 70 + 4.5, 11_000 + 70 + 4.5
    assert gemm["baseline_mean_ns"] == pytest.approx(mean_before)
    assert gemm["ratio"] == pytest.approx(mean_after / mean_before)
    assert gemm["at_least"] < gemm["ratio"] < gemm["at_most"]
    assert [(row["name"], row["runs"], row["total_ns"]) for row in only] == [("fresh", "others", 8_000)]
    again = cutrace.batch("regressions", after, tmp_path / "new-out", baseline=before, mode="sequential")
    assert str(again) == str(result)


def test_few_runs_are_compared_but_nothing_is_said(tmp_path):
    before, after = runs(tmp_path / "old", [10_000] * 2), runs(tmp_path / "new", [20_000] * 2)
    result = cutrace.batch("regressions", after, tmp_path / "out", baseline=before, mode="sequential")
    assert result.sentences == []
    assert result.reports[0].arrow()["ratio"].to_pylist()[0] == pytest.approx(2, rel=0.01)


def test_ranks_of_one_job_are_no_runs(tmp_path):
    before = runs(tmp_path / "old", [10_000 + n for n in range(8)], one_job=True)
    after = runs(tmp_path / "new", [10_150 + n for n in range(8)], one_job=True)
    result = cutrace.batch("regressions", after, tmp_path / "out", baseline=before, mode="sequential")
    expected = "kernel gemm: 1.5% slower than in the baseline; one job each, so no statement about chance"
    assert result.sentences == [expected]
    rows = result.reports[0].arrow().to_pylist()
    assert {(row["runs"], row["at_least"], row["at_most"]) for row in rows} == {(1, None, None)}


def test_regressions_need_two_sets(tmp_path):
    paths = runs(tmp_path / "runs", [10_000] * 2)
    with pytest.raises(
        cutrace.CutraceError, match=r"regressions needs `baseline=`: for example `baseline='old/rank0\.bin'`"
    ):
        cutrace.batch("regressions", paths, tmp_path / "out", mode="sequential")
    with pytest.raises(cutrace.CutraceError, match="two sets of runs: all files are in `baseline=`"):
        cutrace.batch("regressions", paths, tmp_path / "out", baseline=paths, mode="sequential")


def test_a_baseline_that_cannot_be_read_is_named(tmp_path):
    paths, out = runs(tmp_path / "runs", [10_000] * 2), tmp_path / "out"
    absent = tmp_path / "nosuch.bin"
    reason = f"none of the files of `baseline=` could be used: cannot read {absent}: No such file."
    with pytest.raises(cutrace.CutraceError, match=f"^regressions compares two sets of runs: {re.escape(reason)}"):
        cutrace.batch("regressions", paths, out, baseline=absent, mode="sequential")
    result = cutrace.batch("all", paths, out, baseline=absent, mode="sequential")
    assert result.failed
    assert result.missing[0].startswith(f"regressions is left out: {reason}")
    names = {table.name for table in result.reports}
    assert ("kernels" in names, "regressions" in names) == (True, False)
    assert "regressions is left out" in (out / "index.html").read_text()


def test_a_baseline_with_the_recordings_of_the_others_is_named(tmp_path):
    paths = runs(tmp_path / "runs", [10_000] * 2)
    copied = tmp_path / "copied.bin"
    shutil.copy(paths[0], copied)
    with pytest.raises(cutrace.CutraceError, match=r"none of the other files could be used: .* the same recording as"):
        cutrace.batch("regressions", paths[0], tmp_path / "out", baseline=copied, mode="sequential")


@pytest.mark.parametrize("count", [4, 6, 20])
def test_intervals_contain_the_ratio_as_often_as_they_say(count):
    random = np.random.default_rng(5)
    inside = 0
    for _ in range(1_000):
        before, after = (random.normal(mean, 0.05 * mean, count) for mean in (100, 120))
        low, high = compare(before, after).ends(0.05)
        inside += low <= 1.2 <= high
    assert 0.93 <= inside / 1_000 <= 0.97


def test_intervals_of_few_runs_are_those_of_the_t_test():
    # Student's t of 6 degrees of freedom exceeds 2.4469 with 5 %, and 5.2076 with 0.2 %.
    before, after = (mean * (1 + 0.01 * np.array([-1, 1, -1, 1])) for mean in (100, 120))
    error = 0.01 * (4 / 3) ** 0.5 * (2 / 4) ** 0.5
    for missed, t in ((0.05, 2.4469), (0.002, 5.2076)):
        _, high = compare(before, after).ends(missed)
        assert np.log(high / 1.2) == pytest.approx(t * error, rel=1e-3)
    still = np.array([100.0, 100.0])
    assert compare(still, 2 * still).ends(0.05) == (2, 2)


def test_jobs_are_runs_where_both_sets_have_several(tmp_path):
    before = [path for n in range(4) for path in runs(tmp_path / f"old{n}", [10_000, 30_000], one_job=True)]
    after = [path for n in range(4) for path in runs(tmp_path / f"new{n}", [10_000, 30_000], one_job=True)]
    result = cutrace.batch("regressions", after, tmp_path / "out", baseline=before, mode="sequential")
    assert {row["runs"] for row in result.reports[0].arrow().to_pylist()} == {4}
    assert result.sentences == []


def test_an_outlier_is_named_and_nobody_else(tmp_path):
    lengths = [10_000 + 20 * n for n in range(12)]
    calm = cutrace.batch("outliers", runs(tmp_path / "calm", lengths), tmp_path / "a", mode="sequential")
    assert calm.sentences == []
    lengths[4] = 13_000
    result = cutrace.batch("outliers", runs(tmp_path / "runs", lengths), tmp_path / "b", mode="sequential")
    (sentence,) = result.sentences
    assert sentence.startswith("run4.bin: kernel gemm takes 1.28 times the median")
    (row,) = result.reports[0].arrow().to_pylist()
    assert (row["run"], row["name"], row["total_ns"]) == ("run4.bin", "gemm", 130_045)


def test_a_run_without_ranges_is_not_compared_by_ranges(tmp_path):
    """JSON contains host slices instead of ranges."""
    paths = runs(tmp_path / "same", [10_000 + 20 * n for n in range(8)])
    other = tmp_path / "other.json"
    cutrace.convert(paths[0], other)
    result = cutrace.batch("outliers", [other, *paths[1:]], tmp_path / "out", mode="sequential")
    assert result.sentences == []


def test_outliers_of_a_host_share_a_sentence(tmp_path):
    paths = []
    for number in range(16):
        path = tmp_path / f"run{number}.bin"
        factor = 1.3 if number // 4 == 1 else 1
        if number == 14:
            factor = 1.5
        with Capture(path, pid=100 + number, host=f"node{number // 4}") as c:
            for at in range(10):
                begin = 100_000 * at
                c.kernel(c.launch("gemm"), begin, begin + round(factor * 10_000) + number, correlation=at + 1)
        paths.append(path)
    sentences = cutrace.batch("outliers", paths, tmp_path / "out", mode="sequential").sentences
    assert sentences == [
        "run14.bin on node3: kernel gemm takes 1.50 times the median",
        "4 of 4 runs of node1: kernel gemm takes 1.30 times the median",
    ]
