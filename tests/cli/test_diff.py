"""cutrace diff: two captures, for people, for programs and for CI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from captures import Capture, training_steps
from cutrace.golden import golden_path, write_changes
from support import cutrace, on_a_terminal
from support.measured import change

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def captures(tmp_path) -> tuple[Path, Path]:
    return training_steps(tmp_path / "a.bin", steps=3), training_steps(tmp_path / "b.bin", steps=4)


def test_equal_captures_end_with_status_0(captures):
    done = cutrace("diff", captures[0], captures[0])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no difference, ")


def test_differences_are_shown_and_end_with_status_1(captures):
    done = cutrace("diff", *captures)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "Kernels"
    assert lines[1].split()[:4] == ["count", "before", "count", "after"]
    gemm = next(line for line in lines if "kernel::gemm" in line)
    assert gemm.split()[:2] == ["24", "32"]
    assert lines[-1].endswith(" as before")


def test_copies_fit_a_terminal_of_80_columns(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.memcpy(1_000, 15_600, 514 << 10)
    with Capture(tmp_path / "b.bin") as c:
        c.kernel(c.launch("k"), 1_000, 2_000)
    shown = on_a_terminal("diff", tmp_path / "a.bin", tmp_path / "b.bin", status=1, COLUMNS="80", TERM="dumb")
    copies = shown.split("Copies and fills")[1].splitlines()
    assert max(map(len, copies)) <= 80


def test_json_is_for_programs(captures):
    done = cutrace("diff", *captures, "--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["kind"], found["failed"]) == (1, "cutrace diff", True)
    assert (found["before"], found["after"]) == tuple(map(str, captures))
    kernels = found["reports"][0]
    assert kernels["name"] == "kernels"
    gemm = next(row for row in kernels["rows"] if row["name"] == "kernel::gemm")
    assert (gemm["count_before"], gemm["count_after"], gemm["differs"]) == (24, 32, "counts")
    assert gemm["change_ns"] == gemm["time_after_ns"] - gemm["time_before_ns"]


def test_markdown_is_for_job_summaries(captures, tmp_path):
    out = tmp_path / "out.md"
    done = cutrace("diff", *captures, "-o", out)
    assert (done.returncode, done.stdout) == (1, "")
    assert out.read_text().startswith("### Kernels\n\n| count before | count after |")


def test_what_fails_is_for_the_caller_to_say(captures):
    assert cutrace("diff", *captures, "--fail-on", "none").returncode == 0
    assert cutrace("diff", *captures, "--fail-on", "launches,time").returncode == 0
    assert cutrace("diff", *captures, "--tolerance", "counts=50%", "--tolerance", "bytes=50%").returncode == 0
    assert cutrace("diff", *captures, "--fail-on", "bytes").returncode == 1


def test_all_shows_what_is_the_same_too():
    path = DATA / "cuda_core.bin"
    assert "saxpy" not in cutrace("diff", path, path).stdout
    assert "saxpy" in cutrace("diff", path, path, "--all").stdout


def test_each_side_may_be_several_files(tmp_path):
    for name, pid, count in (("a", 1, 2), ("b", 2, 1), ("c", 3, 1)):
        with Capture(tmp_path / f"{name}.bin", pid=pid) as c:
            for i in range(count):
                c.kernel(c.launch("k"), 100 * i, 100 * i + 50)
    a, b, c = (tmp_path / f"{name}.bin" for name in "abc")
    assert cutrace("diff", a, b).returncode == 1
    assert cutrace("diff", a, b, "--with-after", c).returncode == 0


def test_losses_of_either_side_are_said(captures, tmp_path):
    with Capture(tmp_path / "c.bin") as c:
        c.loss(1, 42)
    done = cutrace("diff", captures[0], tmp_path / "c.bin")
    assert f"cutrace: {tmp_path / 'c.bin'}: 42 records that CUPTI dropped" in done.stderr
    done = cutrace("diff", captures[0], tmp_path / "c.bin", "--format", "json")
    assert json.loads(done.stdout)["missing"] == [
        f"{tmp_path / 'c.bin'}: 42 records that CUPTI dropped because it had no buffer"
    ]
    done = cutrace("diff", captures[0], tmp_path / "c.bin", "--format", "markdown")
    *_, note, _, verdict = done.stdout.splitlines()
    assert note.startswith("> ")
    assert note.endswith("42 records that CUPTI dropped because it had no buffer")
    assert "differences" in verdict


def test_notes_of_a_capture_that_is_compared_with_itself_are_said_once(tmp_path):
    with Capture(tmp_path / "c.bin") as c:
        c.loss(1, 42)
    done = cutrace("diff", tmp_path / "c.bin", tmp_path / "c.bin")
    assert done.stderr.count("42 records that CUPTI dropped") == 1


def test_golden_files_are_compared_by_file_and_by_folder(tmp_path):
    nodeid = "tests/test_a.py::test_it"
    before, after = tmp_path / "before", tmp_path / "after"
    write_changes([change(before, nodeid)])
    write_changes([change(after, nodeid, memset_count=2)])
    files = [golden_path(root, nodeid) for root in (before, after)]
    for sides in (files, [before, after]):
        done = cutrace("diff", *sides)
        assert done.returncode == 1
        assert [line.split() for line in done.stdout.splitlines()] == [
            [nodeid],
            ["sm_90", "old", "new"],
            ["memset_count", "1", "2", "CHANGED"],
        ]
        assert json.loads(cutrace("diff", *sides, "--format", "json").stdout)["kind"] == "cutrace golden changes"
    assert cutrace("diff", before, before).stdout == ""
    (tmp_path / "empty").mkdir()
    assert f"{nodeid} is gone" in cutrace("diff", before, tmp_path / "empty").stdout
