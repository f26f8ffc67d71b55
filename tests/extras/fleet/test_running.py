"""A batch: complete sums, the same bytes in all modes, and files that are skipped, damaged, or fatal to their
worker."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import cutrace
import dying
from captures import ORIGIN, Capture
from cutrace.extras.fleet import engines, parts
from cutrace.extras.fleet.kernels import KERNELS
from cutrace.extras.fleet.parts import PartFolder
from cutrace.extras.fleet.time_sums import binned, histogram

parquet = pytest.importorskip("pyarrow.parquet")
DATA = Path(__file__).parents[2] / "data"
CAPTURES = sorted(DATA.glob("*.bin"))


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*.parquet"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def ranks(folder: Path, count: int, *, slow: int | None = None) -> list[Path]:
    paths = [folder / f"rank{number}.bin" for number in range(count)]
    for number, path in enumerate(paths):
        with Capture(path, pid=100 + number) as c:
            gemm = c.launch("_Z4gemmPf")
            for step in range(20):
                length = (1_500 if number == slow else 1_000) + (7 * step + 3 * number) % 11
                c.kernel(gemm, 10_000 * step, 10_000 * step + length, correlation=step + 1)
            c.clocks()
    return paths


def states(result: cutrace.Batch) -> list[str]:
    return [file.state for file in result.files]


def test_a_worker_gets_a_report_without_its_tables():
    sent = pickle.loads(pickle.dumps(KERNELS))
    assert (sent.name, sent.map, sent.tables) == (KERNELS.name, KERNELS.map, ())
    assert KERNELS.tables


def test_kernels_of_all_files_have_the_sums_of_each(tmp_path):
    result = cutrace.batch("kernels", CAPTURES, tmp_path / "out", mode="sequential")
    (report,) = result.reports
    count, total = Counter(), Counter()
    for capture in CAPTURES:
        for row in cutrace.stats(capture, "cuda_gpu_kern_sum").arrow().to_pylist():
            count[row["name"]] += row["count"]
            total[row["name"]] += row["total_ns"]
    rows = report.arrow().to_pylist()
    assert {row["kernel"]: row["count"] for row in rows} == count
    assert {row["kernel"]: row["total_ns"] for row in rows} == total
    assert states(result) == ["done"] * len(CAPTURES)
    assert not result.failed


def test_all_modes_write_the_same_bytes(tmp_path):
    sequential = cutrace.batch("kernels", CAPTURES, tmp_path / "a", mode="sequential")
    processes = cutrace.batch("kernels", CAPTURES, tmp_path / "b", workers=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert str(sequential) == str(processes)


def test_dask_writes_the_same_bytes(tmp_path):
    pytest.importorskip("distributed")
    one = cutrace.batch("kernels", CAPTURES, tmp_path / "a", mode="sequential")
    other = cutrace.batch("kernels", CAPTURES, tmp_path / "b", mode="dask", workers=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert str(one) == str(other)


@pytest.mark.parametrize(
    ("report", "how", "sentence"),
    [
        ("kernels", {"name": "saxpy"}, "kernels does not use `name=`: leave it out, or ask for pace"),
        (
            "pace",
            {"name": "k", "baseline": CAPTURES[:1]},
            "pace does not use `baseline=`: leave it out, or",
        ),
        ("regressions", {"name": "k", "baseline": CAPTURES[:1]}, "regressions does not use `name=`"),
        ("regressions", {}, "regressions needs `baseline=`"),
        (
            "kernels",
            {"scheduler": "tcp://head:1"},
            "`scheduler=` has no effect without `mode='dask'`",
        ),
        (
            "kernels",
            {"mode": "sequential", "workers": 2},
            "`workers=` has no effect, because `mode='sequential'` has",
        ),
        ("kernels", {"mode": "dask", "scheduler": "tcp://head:1", "workers": 2}, "the scheduler has its own"),
    ],
)
def test_an_option_that_has_no_effect_is_an_error(tmp_path, report, how, sentence):
    with pytest.raises(cutrace.CutraceError, match=sentence):
        cutrace.batch(report, CAPTURES, tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


def test_a_scheduler_that_cannot_be_reached_is_explained(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "nonsense://here")
    with pytest.raises(cutrace.CutraceError, match="cannot reach the Dask scheduler nonsense://here"):
        cutrace.batch("kernels", CAPTURES, tmp_path / "out", mode="dask")


def test_a_second_run_reads_new_and_changed_files_only(tmp_path):
    paths, out = ranks(tmp_path, 4), tmp_path / "out"
    cutrace.batch("kernels", paths[:3], out, mode="sequential")
    with Capture(paths[1], pid=7) as c:
        c.kernel(c.launch("other"), 0, 5, correlation=1)
    result = cutrace.batch("kernels", paths[1:], out, mode="sequential")
    assert states(result) == ["done", "skipped", "done"]
    whole = cutrace.batch("kernels", paths[1:], tmp_path / "new", mode="sequential")
    assert str(result) == str(whole)
    assert contents(out) == contents(tmp_path / "new")


def test_a_damaged_file_is_listed_and_the_others_count(tmp_path):
    *good, torn = ranks(tmp_path, 3)
    out, bad = tmp_path / "out", tmp_path / "bad.bin"
    bad.write_bytes(b"no capture")
    torn.write_bytes(torn.read_bytes()[:-40])
    result = cutrace.batch("kernels", [*good, bad, torn, tmp_path / "none.bin"], out, mode="sequential")
    assert states(result) == ["done", "done", "damaged", "damaged", "damaged"]
    assert all(file.notes for file in result.files[2:])
    assert result.failed
    manifest = json.loads((out / "kernels.manifest.json").read_text())
    assert [file["state"] for file in manifest["files"]] == states(result)
    again = cutrace.batch("kernels", [*good, torn], out, mode="sequential")
    assert states(again) == ["skipped"] * 3
    assert again.files[2].notes


def test_a_file_of_several_names_counts_once(tmp_path):
    (path,) = ranks(tmp_path, 1)
    link = tmp_path / "rank9.bin"
    link.symlink_to(path)
    names = [path, tmp_path / "." / "x" / ".." / path.name, link]
    result = cutrace.batch("kernels", names, tmp_path / "out", mode="sequential")
    assert [file.source for file in result.files] == [str(path)]
    assert result.reports[0].arrow()["count"].to_pylist() == [20]


def test_names_that_are_no_utf_8_are_read(tmp_path):
    folder = tmp_path / os.fsdecode(b"job \xff")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system has UTF-8 names only")
    paths = [path.rename(path.with_name(os.fsdecode(b"\xfe " + path.name.encode()))) for path in ranks(folder, 2)]
    for report in ("kernels", "outliers"):
        result = cutrace.batch(report, paths, tmp_path / "out", mode="sequential")
        assert states(result) == ["done"] * 2
        assert [table.arrow() for table in result.reports]


def test_labels_of_equal_ranks_and_files_differ(tmp_path):
    paths = []
    for name in ("a", "b", "c"):
        folder = tmp_path / name / "run"
        folder.mkdir(parents=True)
        paths += ranks(folder, 1)
    result = cutrace.batch("overlap", paths, tmp_path / "out", mode="sequential")
    labels = result.reports[0].arrow()["gpu"].to_pylist()
    assert labels == [f"rank 0 ({path}) GPU 0" for path in paths]


def test_a_wrong_pattern_is_no_fault_of_the_files(tmp_path):
    with pytest.raises(cutrace.CutraceError, match=r"^/\(/ is not a regular expression"):
        cutrace.batch("pace", ranks(tmp_path, 1), tmp_path / "out", mode="sequential", name="/(/")


def test_parts_that_another_batch_removed_are_explained(tmp_path):
    paths, out = ranks(tmp_path, 2), tmp_path / "out" / "kernels"
    cutrace.batch("kernels", paths, out.parent, mode="sequential")
    folder = PartFolder(out)
    first, second = folder.parts()
    shutil.rmtree(first.path.parent)
    with pytest.raises(cutrace.CutraceError, match="another batch removed it"):
        first.table()
    folder.keep(set())
    assert not second.path.exists()


@pytest.mark.parametrize("about", ["[1]", '"outcome"', '["outcome"]', "{}", "no JSON"])
def test_files_that_say_nothing_of_their_origin_are_no_parts(tmp_path, about):
    out = tmp_path / "out"
    (capture,) = ranks(tmp_path, 1)
    cutrace.batch("kernels", [capture], out, mode="sequential")
    (part,) = out.rglob("*.parquet")
    table = parquet.read_table(part).replace_schema_metadata({parts._METADATA: about})
    parquet.write_table(table, part.with_name("other.parquet"))
    assert [found.path for found in PartFolder(out / "kernels").parts()] == [part]


def test_nothing_that_can_be_read_is_an_error(tmp_path):
    bad = tmp_path / "a.bin"
    bad.write_bytes(b"no capture")
    with pytest.raises(cutrace.CutraceError, match="none of the files could be used"):
        cutrace.batch("kernels", [bad], tmp_path / "out", mode="sequential")
    with pytest.raises(cutrace.CutraceError, match=r"none of the files could be used: no file matches \S+no\*\.bin"):
        cutrace.batch("kernels", [tmp_path / "no*.bin"], tmp_path / "out", mode="sequential")
    with pytest.raises(cutrace.CutraceError, match="there is no batch report 'kernel'"):
        cutrace.batch("kernel", [bad], tmp_path / "out")


def test_a_worker_that_dies_costs_its_file_one_more_try(tmp_path, monkeypatch):
    paths = ranks(tmp_path, 5)
    paths.append(paths.pop(2).rename(tmp_path / "killer-once-rank2.bin"))
    killer = paths.pop(3).rename(tmp_path / "killer-always-rank4.bin")
    monkeypatch.setattr(engines, "map_on_worker", dying.by_name)
    result = cutrace.batch("kernels", [*paths, killer], tmp_path / "out", workers=2)
    monkeypatch.undo()
    assert states(result) == ["done"] * 4 + ["failed"]
    assert all(file.retried for file in result.files[3:])
    assert [file.bad for file in result.files] == [False] * 4 + [True]
    expected = cutrace.batch("kernels", paths, tmp_path / "calm", mode="sequential")
    assert str(result.reports[0]) == str(expected.reports[0])
    assert result.missing
    assert result.failed
    assert (expected.missing, expected.failed) == ([], False)
    assert not any(file.retried for file in expected.files)
    assert contents(tmp_path / "out") == contents(tmp_path / "calm")


def test_a_slow_rank_is_named_and_nobody_else(tmp_path):
    (tmp_path / "a").mkdir()
    calm = cutrace.batch("kernels", ranks(tmp_path / "a", 8), tmp_path / "calm", mode="sequential")
    assert calm.sentences == []
    (tmp_path / "b").mkdir()
    slow = cutrace.batch("kernels", ranks(tmp_path / "b", 8, slow=5), tmp_path / "slow", mode="sequential")
    assert slow.sentences == ["rank 5: its kernels take 1.50 times as long as those of the median rank"]
    assert slow.reports[0].arrow()["slowest_rank"].to_pylist() == ["rank 5"]


def test_ranks_and_jobs_come_from_the_file_its_name_or_its_folder(tmp_path):
    (tmp_path / "night").mkdir()
    paths = [tmp_path / "night" / name for name in ("x.bin", "rank_7.bin", "y.bin")]
    described = {"environment": {"RANK": "12", "SLURM_JOB_ID": "4711/a"}}
    for path in paths:
        with Capture(path, **(described if path.name == "x.bin" else {})) as c:
            c.kernel(c.launch("k"), 0, 5, correlation=1)
    cutrace.batch("kernels", paths, tmp_path / "out", mode="sequential")
    folders = sorted(str(path.parent.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet"))
    assert folders == ["kernels/job=4711%2Fa/rank=12", "kernels/job=night/rank=2", "kernels/job=night/rank=7"]
    cutrace.batch("kernels", paths, tmp_path / "out", mode="sequential", job="all")
    folders = sorted(str(path.parent.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet"))
    assert folders == [f"kernels/job=all/rank={rank}" for rank in (12, 2, 7)]


def test_processes_of_one_file_that_tell_no_rank_are_numbered(tmp_path):
    shutil.copy(DATA / "ranks.bin", tmp_path / "both.bin")
    result = cutrace.batch("kernels", [tmp_path / "both.bin"], tmp_path / "out", mode="sequential")
    assert {row["ranks"] for row in result.reports[0].arrow().to_pylist()} <= {1, 2}
    assert {path.parent.name for path in (tmp_path / "out").rglob("*.parquet")} == {"rank=0", "rank=1"}
    backwards = tmp_path / "backwards.bin"
    parts = [tmp_path / f"{device}.bin" for device in (1, 0)]
    for part in parts:
        with Capture(part, pid=100 - int(part.stem)) as c:
            c.context(1, int(part.stem))
            c.kernel(c.launch(f"of GPU {part.stem}"), 0, 5, correlation=1, device=int(part.stem))
    backwards.write_bytes(b"".join(part.read_bytes() for part in parts))
    by_gpu = cutrace.batch("kernels", [backwards], tmp_path / "out", mode="sequential").reports[0].arrow().to_pylist()
    assert {(row["kernel"], row["slowest_rank"]) for row in by_gpu} == {
        ("of GPU 0", "rank 0"),
        ("of GPU 1", "rank 1"),
    }


def test_all_reports_share_one_sweep_over_each_process(tmp_path, monkeypatch):
    from cutrace.analysis import collection

    swept = Counter()

    class Counted(collection.Sweep):
        def __init__(self, trace, infos, **how):
            swept[trace.path.name] += 1
            super().__init__(trace, infos, **how)

    monkeypatch.setattr(collection, "Sweep", Counted)
    paths = ranks(tmp_path, 2)
    result = cutrace.batch("all", paths, tmp_path / "out", mode="sequential")
    assert {report.name for report in result.reports} >= {"collectives", "utilization", "gaps", "overlap", "memory"}
    assert swept == {"rank0.bin": 1, "rank1.bin": 1}


def test_bins_are_narrow_and_hold_their_times():
    import numpy as np

    times = np.array([0, 1, 63, 64, 65, 66, 1000, 1023, 1024, (1 << 52) - 1, 1 << 62])
    begins = binned(times)
    assert begins.tolist()[:5] == [0, 1, 63, 64, 64]
    for time, begin in zip(times.tolist()[:-1], begins.tolist()[:-1], strict=True):
        (end,) = histogram("", np.array([begin]), np.array([1])).ends
        assert begin <= time < end
        assert end - begin <= max(begin / 32, 1)


def test_the_documented_example_runs_as_a_script(tmp_path):
    pytest.importorskip("pandas")
    page = (Path(__file__).parents[3] / "docs" / "internals" / "batch.md").read_text()
    script = tmp_path / "report.py"
    script.write_text("print('started')\n" + page.split("```python\n")[1].split("```")[0])
    ranks(tmp_path, 2)
    command = [sys.executable, script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("started") == 1
    assert "gemm" in done.stdout


# All reports

#: The reports that need no option.
REPORTS = ["kernels", "collectives", "utilization", "gaps", "overlap", "memory", "outliers"]


def test_all_reports_come_from_one_reading(tmp_path, monkeypatch):
    opened = []
    load = parts.load

    def counted(source: str, **how: object) -> object:
        opened.append(source)
        return load(source, **how)

    monkeypatch.setattr(parts, "load", counted)
    paths, out = ranks(tmp_path, 8, slow=5), tmp_path / "all"
    result = cutrace.batch("all", paths, out, mode="sequential")
    assert opened == list(map(str, paths))
    monkeypatch.undo()
    alone = [cutrace.batch(name, paths, tmp_path / "alone", mode="sequential") for name in REPORTS]
    assert contents(out) == contents(tmp_path / "alone")
    assert list(map(str, result.reports)) == [str(table) for one in alone for table in one.reports]
    assert result.sentences == [sentence for one in alone for sentence in one.sentences]
    for name in REPORTS:
        of_all = re.sub("<nav .*</nav>", "", (out / f"{name}.html").read_text())
        assert of_all == (tmp_path / "alone" / f"{name}.html").read_text()
        assert states(cutrace.batch(name, paths, out, mode="sequential")) == ["skipped"] * 8
    assert states(cutrace.batch("all", paths, out, mode="sequential")) == ["skipped"] * 8


def test_the_index_has_each_sentence_with_a_link_to_its_page(tmp_path):
    paths, out = ranks(tmp_path, 8, slow=5), tmp_path / "out"
    result = cutrace.batch("all", paths, out, mode="sequential")
    page = (out / "index.html").read_text()
    assert result.sentences
    for sentence in result.sentences:
        assert sentence in page
    for name in REPORTS:
        assert f'href="{name}.html"' in page


def test_pace_and_regressions_join_when_they_have_what_they_need(tmp_path):
    new, out = ranks(tmp_path, 3), tmp_path / "out"
    with_name = cutrace.batch("all", new, out, mode="sequential", name="gemm")
    assert "pace" in [table.name for table in with_name.reports]
    # Another name changes only the parts of pace.
    assert states(cutrace.batch("kernels", new, out, mode="sequential")) == ["skipped"] * 3
    old = tmp_path / "old"
    old.mkdir()
    with Capture(old / "a.bin", pid=900) as c:
        c.kernel(c.launch("_Z4gemmPf"), 0, 900, correlation=1)
    result = cutrace.batch("all", new, out, mode="sequential", baseline=[old / "a.bin"])
    names = [table.name for table in result.reports]
    assert ("regressions" in names, "pace" in names) == (True, False)
    (kernels,) = (table for table in result.reports if table.name == "kernels")
    assert kernels.arrow()["count"].to_pylist() == [60]
    assert len(result.files) == 4
    assert "3 files." in (out / "kernels.html").read_text()
    assert "4 files." in (out / "regressions.html").read_text()


def test_one_manifest_lists_the_files_of_all_reports(tmp_path):
    paths, out = ranks(tmp_path, 2), tmp_path / "out"
    bad = tmp_path / "bad.bin"
    bad.write_bytes(b"no capture")
    result = cutrace.batch("all", [*paths, bad], out, mode="sequential")
    manifest = json.loads((out / "all.manifest.json").read_text())
    assert (manifest["report"], manifest["reports"]) == ("all", REPORTS)
    assert [file["state"] for file in manifest["files"]] == states(result) == ["done", "done", "damaged"]
    assert [path.name for path in out.glob("*.manifest.json")] == ["all.manifest.json"]


def test_files_that_are_all_in_the_baseline_are_explained(tmp_path):
    paths = ranks(tmp_path, 2)
    with pytest.raises(cutrace.CutraceError, match="all files are in `baseline=`: name others"):
        cutrace.batch("all", paths, tmp_path / "out", mode="sequential", baseline=paths)


# What is missing


def busy_ranks(folder: Path, *, lost: int = -1) -> list[Path]:
    """Eight ranks with 100 kernels each. Rank ``lost`` lost half of them."""
    paths = []
    for rank in range(8):
        path = folder / f"rank{rank}.bin"
        with Capture(path, pid=100 + rank) as c:
            gemm = c.launch("_Z4gemmPf")
            for step in range(100):
                if rank != lost or step % 2 == 0:
                    c.kernel(gemm, 10_000 * step, 10_000 * step + 5_000 + rank, correlation=step + 1)
            if rank == lost:
                c.loss(1, 50, "kernel")
            c.clocks()
        paths.append(path)
    return paths


@pytest.mark.parametrize("report", ["kernels", "utilization", "gaps", "overlap", "collectives", "outliers"])
def test_lost_records_reach_every_report(tmp_path, report):
    paths, out = busy_ranks(tmp_path, lost=3), tmp_path / "out"
    for state in ("incomplete", "skipped"):
        result = cutrace.batch(report, paths, out, mode="sequential")
        assert states(result)[3] == state
        assert result.failed
        assert any("50 records that CUPTI dropped" in note for note in result.files[3].notes)
        assert any("50 records that CUPTI dropped" in text and "1 of 8 files" in text for text in result.missing)
        assert not any(file.bad for file in result.files if "rank3" not in file.source)
        page = (out / f"{report}.html").read_text()
        assert "50 records that CUPTI dropped" in page
        assert "Nothing is known to be missing" not in page


def test_a_rank_with_losses_is_not_accused_without_saying_so(tmp_path):
    result = cutrace.batch("utilization", busy_ranks(tmp_path, lost=3), tmp_path / "out", mode="sequential")
    (sentence,) = result.sentences
    assert sentence.startswith("rank 3 (incomplete) GPU 0: busy ")
    outliers = cutrace.batch("outliers", busy_ranks(tmp_path, lost=3), tmp_path / "more", mode="sequential")
    assert all("rank3.bin (incomplete)" in sentence for sentence in outliers.sentences)
    assert outliers.sentences


def test_nothing_is_known_to_be_missing_only_where_it_is_so(tmp_path):
    out = tmp_path / "out"
    result = cutrace.batch("kernels", busy_ranks(tmp_path), out, mode="sequential")
    assert not result.missing
    assert not result.failed
    assert "Nothing is known to be missing" in (out / "kernels.html").read_text()


def test_rows_that_were_let_go_and_notes_are_told_without_a_failure(tmp_path):
    paths, out = busy_ranks(tmp_path), tmp_path / "out"
    with Capture(paths[3], pid=103) as c:
        c.kernel(c.launch("_Z4gemmPf"), 0, 1_000, correlation=1)
        c.loss(12, 700, "kernels")
    with Capture(paths[5], pid=105, notes=["cut out of a longer recording"]) as c:
        c.kernel(c.launch("_Z4gemmPf"), 0, 1_000, correlation=1)
    expected = [
        "700 rows dropped to keep only the newest, in 1 of 8 files",
        "1 of 8 files: with notes, for example: cut out of a longer recording",
    ]
    for _ in range(2):
        result = cutrace.batch("kernels", paths, out, mode="sequential")
        assert (result.missing, result.failed) == (expected, False)
        assert "Nothing is known to be missing" not in (out / "kernels.html").read_text()


def test_a_file_of_another_tool_that_was_cut_in_half_is_incomplete(tmp_path):
    whole, half = tmp_path / "whole.json", tmp_path / "rank1.json"
    cutrace.convert(DATA / "torch_step.bin", whole)
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    result = cutrace.batch("kernels", [DATA / "torch_step.bin", half], tmp_path / "out", mode="sequential")
    assert states(result) == ["done", "incomplete"]
    assert any("cut off" in note for note in result.files[1].notes)


def test_a_rank_that_was_killed_is_incomplete(tmp_path):
    (path,) = ranks(tmp_path, 1)
    killed = tmp_path / "rank1.bin"
    with Capture(tmp_path / "whole.bin", pid=101) as c:
        c.kernel(c.launch("_Z4gemmPf"), 0, 1_000, correlation=1)
        c.flush()
        c.writer._file.flush()
        killed.write_bytes(c.writer._part.read_bytes())
    result = cutrace.batch("kernels", [path, killed], tmp_path / "out", mode="sequential")
    assert states(result) == ["done", "incomplete"]
    assert any(text.startswith("1 process killed") for text in result.missing)
    again = tmp_path / "rank2.bin"
    with Capture(tmp_path / "more.bin", pid=102) as c:
        c.kernel(c.launch("_Z4gemmPf"), 0, 1_000, correlation=1)
        c.flush()
        c.writer._file.flush()
        again.write_bytes(c.writer._part.read_bytes())
    result = cutrace.batch("kernels", [path, killed, again], tmp_path / "out", mode="sequential")
    assert any(text.startswith("2 processes killed") for text in result.missing)


# Duplicates


@pytest.mark.parametrize("report", ["kernels", "utilization", "outliers"])
def test_a_copy_and_a_slice_of_a_recording_count_once(tmp_path, report):
    paths = []
    for number in range(2):
        path = tmp_path / f"rank{number}.bin"
        with Capture(path, pid=100 + number, started=ORIGIN + number) as c:
            gemm = c.launch("_Z4gemmPf")
            for step in range(20):
                c.kernel(gemm, 10_000 * step, 10_000 * step + 1_000, correlation=step + 1)
        paths.append(path)
    copied, part = tmp_path / "rank2.bin", tmp_path / "rank3.bin"
    shutil.copy(paths[0], copied)
    cutrace.slice(paths[1], part, cutrace.Conditions(end="100us"))
    expected = cutrace.batch(report, paths, tmp_path / "a", mode="sequential")
    for _ in range(2):
        result = cutrace.batch(report, [*paths, copied, part], tmp_path / "b", mode="sequential")
        assert list(map(str, result.reports)) == list(map(str, expected.reports))
        assert states(result)[2:] == ["duplicate"] * 2
        assert f"same recording as {paths[0]}" in result.files[2].notes[0]
        assert f"same recording as {paths[1]}" in result.files[3].notes[0]
        assert result.failed
        assert any("2 of 4 files" in sentence for sentence in result.missing)
    assert len(list((tmp_path / "b").rglob("*.parquet"))) == 2


def test_a_whole_file_counts_before_a_cut_copy(tmp_path):
    (whole,) = ranks(tmp_path, 1)
    expected = cutrace.batch("kernels", [whole], tmp_path / "a", mode="sequential")
    cut, at_block = tmp_path / "cut.bin", tmp_path / "at_block.bin"
    cut.write_bytes(whole.read_bytes()[:-200])
    with cutrace.load(whole) as trace:
        end = max(info.offset for info in trace.block_infos("kernels"))
    at_block.write_bytes(whole.read_bytes()[:end])
    for copies in ([cut, whole], [whole, cut], [at_block, whole], [cut, at_block, whole]):
        result = cutrace.batch("kernels", copies, tmp_path / "b", mode="sequential")
        assert list(map(str, result.reports)) == list(map(str, expected.reports))
        for file in result.files:
            if file.source != str(whole):
                assert file.state == "duplicate"
                assert f"same recording as {whole}, or a part of it, and is not counted: leave it out" in file.notes[0]


def test_a_copy_of_a_file_of_another_tool_counts_once(tmp_path):
    whole = tmp_path / "rank0.json"
    cutrace.convert(DATA / "torch_step.bin", whole)
    copied = tmp_path / "rank1.json"
    shutil.copy(whole, copied)
    result = cutrace.batch("kernels", [whole, copied], tmp_path / "out", mode="sequential")
    assert states(result)[1] == "duplicate"


# Absent ranks


def members(folder: Path, ranks: list[int], *, idle: int = -1, **size: str) -> list[Path]:
    paths = []
    for rank in ranks:
        path = folder / f"rank{rank}.bin"
        with Capture(path, pid=100 + rank, environment={"RANK": str(rank), **size}) as c:
            if rank != idle:
                c.kernel(c.launch("k"), 0, 5, correlation=1)
            c.mark("here", 5)
        paths.append(path)
    return paths


@pytest.mark.parametrize("report", ["kernels", "utilization", "gaps", "overlap", "outliers"])
def test_absent_ranks_and_those_without_work_are_told(tmp_path, report):
    paths, out = members(tmp_path, [0, 1, 2, 4, 5, 7], idle=4, WORLD_SIZE="8"), tmp_path / "out"
    for _ in range(2):
        result = cutrace.batch(report, paths, out, mode="sequential")
        assert result.missing == ["ranks 3 and 6 of 8 are absent", "rank 4 is without GPU work"]
        assert "ranks 3 and 6 of 8 are absent" in (out / f"{report}.html").read_text()
        assert "ranks 3 and 6 of 8 are absent" in str(result)


def test_a_rank_in_the_name_of_a_file_without_work_is_told(tmp_path):
    for rank in range(4):
        with Capture(tmp_path / f"rank{rank}.bin", pid=100 + rank) as c:
            if rank != 2:
                c.kernel(c.launch("k"), 0, 5, correlation=1)
            c.mark("here", 5)
    paths = sorted(tmp_path.glob("*.bin"))
    assert cutrace.batch("kernels", paths, tmp_path / "out", mode="sequential").missing == [
        "rank 2 is without GPU work"
    ]


def test_nothing_is_said_of_ranks_that_are_not_known(tmp_path):
    for size in ({}, {"SLURM_STEP_NUM_TASKS": "8"}, {"WORLD_SIZE": "two"}, {"WORLD_SIZE": "3"}):
        paths = members(tmp_path, [0, 1, 2], **size)
        assert not cutrace.batch("kernels", paths, tmp_path / "out", mode="sequential").missing


def test_a_part_has_the_host_and_the_local_rank(tmp_path):
    paths = []
    for rank in range(3):
        variables = {"RANK": str(rank)} | [{}, {"SLURM_LOCALID": "5"}, {"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}][rank]
        with Capture(tmp_path / f"{rank}.bin", host=f"node{rank // 2}", environment=variables) as c:
            c.kernel(c.launch("k"), 0, 5, correlation=1)
        paths.append(tmp_path / f"{rank}.bin")
    cutrace.batch("kernels", paths, tmp_path / "out", mode="sequential")
    found = PartFolder(tmp_path / "out" / "kernels").parts()
    assert [(part.host, part.local_rank) for part in found] == [("node0", None), ("node0", 5), ("node1", 1)]
