"""cutrace info: figures of a capture, for people and as JSON."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone

import pytest

from captures import ORIGIN, Capture
from cutrace.runbin import LOSS_REASONS, Writer
from cutrace.runbin.blocks import Damage
from cutrace.trace.quality import Loss, Quality
from support import cutrace, on_a_terminal, rows, small_capture


def info(*arguments) -> dict:
    done = cutrace("info", "--format", "json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_json_has_the_figures_of_the_capture(tmp_path):
    path = small_capture(tmp_path / "a.bin", driver_version=13000, host="box")
    found = info(path)
    assert found["captures"] == [str(path)]
    assert found["bytes"] == path.stat().st_size
    assert (found["start_ns"], found["end_ns"], found["span_ns"]) == (50, 300, 250)
    assert found["rows"] == {"kernels": 2, "api_calls": 2, "launches": 1, "functions": 1, "devices": 1}
    assert found["gpus"] == [
        {
            "name": "NVIDIA H200",
            "uuid": "GPU-01020304-0506-0708-090a-0b0c0d0e0f10",
            "kernels": 2,
            "kernel_ns": 250,
            "busy_ns": 200,
            "compute_ns": 200,
            "utilization": 0.8,
        }
    ]
    process = found["processes"][0]
    assert (process["pid"], process["host"], process["driver_version"], process["complete"]) == (
        100,
        "box",
        13000,
        True,
    )
    assert found["lossless"] is True
    assert found["early_starts"] == {"kernels": {"checked": 2, "count": 0, "largest_ns": 0}}


def test_the_date_is_that_of_the_clock_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        with Capture(tmp_path / "a.bin") as capture:
            capture.mark("here", time=7 * 10**9)
            capture.clocks()
        done = cutrace("info", tmp_path / "a.bin")
    finally:
        monkeypatch.undo()
        time.tzset()
    begin = datetime.fromtimestamp((ORIGIN + 7 * 10**9 + 1_700_000_000 * 10**9) / 1e9, timezone.utc)
    assert begin.strftime(", recorded %Y-%m-%d %H:%M:%S") in done.stdout


def test_a_capture_without_records_has_the_date_of_its_first_snapshot(tmp_path):
    with Capture(tmp_path / "empty.bin") as c:
        c.clocks()
    day = datetime.fromtimestamp(ORIGIN / 1e9 + 1_700_000_000)
    assert f"recorded {day:%Y-%m-%d %H:%M:%S}" in cutrace("info", c.path).stdout


def test_a_capture_without_clocks_has_no_date(tmp_path):
    assert "recorded" not in cutrace("info", small_capture(tmp_path / "a.bin")).stdout


def test_several_captures_are_taken_as_one(tmp_path):
    a, b = small_capture(tmp_path / "a.bin", pid=1), small_capture(tmp_path / "b.bin", pid=2, offset=1000)
    found = info(a, b)
    assert [p["pid"] for p in found["processes"]] == [1, 2]
    assert found["rows"]["kernels"] == 4
    # One GPU, which both processes used.
    assert [(g["kernels"], g["busy_ns"]) for g in found["gpus"]] == [(4, 400)]


def test_what_is_missing_is_said(tmp_path):
    path = tmp_path / "a.bin"
    with Writer(path, pid=1, notes=["CUPTI is used by another tool"]) as writer:
        writer.rows("losses", rows("losses", 1, time=5, count=7, reason=1))
        writer.rows("kernels", rows("kernels", 1, start=0, end=0))
    path.write_bytes(path.read_bytes() + b"torn")
    found = info(path)
    assert found["lossless"] is False
    assert [(x["reason"], x["count"]) for x in found["losses"]] == [("cupti_dropped", 7)]
    assert found["unknown_times"] == {"kernels": 1}
    assert [d["bytes"] for d in found["damage"]] == [4]
    assert found["notes"] == ["CUPTI is used by another tool"]
    text = cutrace("info", path).stdout
    assert "7 records that CUPTI dropped" in text
    assert "CUPTI is used by another tool" in text
    assert "torn" in text


def test_a_damage_of_one_row_is_said_in_the_singular():
    quality = Quality({}, (), (Damage(64, 1, "torn", rows=1),), (), ())
    assert list(quality.sentences()) == ["torn at byte 64 (1 byte, 1 row)"]


@pytest.mark.parametrize(("name", "meaning"), LOSS_REASONS.values())
def test_each_loss_is_counted_in_the_singular_and_in_the_plural(name, meaning):
    noun, rest = meaning.split(" ", 1)
    several = {"process": "processes"}.get(noun, f"{noun}s")
    for count, words in ((1, f"1 {noun}"), (1_200, f"1,200 {several}")):
        quality = Quality({}, (Loss(name, meaning, count, "", 0),), (), (), ())
        assert list(quality.sentences()) == [f"{words} {rest}"]


def test_the_page_for_people_has_processes_gpus_and_tables(tmp_path):
    text = cutrace("info", small_capture(tmp_path / "a[1].bin"), env={"COLUMNS": "120"}).stdout
    for part in ("a[1].bin", "train", "NVIDIA H200", "80.0%", "200ns", "api_calls", "Nothing is known to be missing."):
        assert part in text


def test_a_terminal_of_80_columns_shows_each_gpu_in_one_line(tmp_path):
    shown = on_a_terminal("info", small_capture(tmp_path / "a.bin"), COLUMNS="80", TERM="dumb").splitlines()
    (gpu,) = (line.split() for line in shown if "H200" in line)
    assert gpu == ["NVIDIA", "H200", "GPU-01020304", "2", "250ns", "200ns", "200ns", "80.0%"]


def test_a_file_gets_lines_that_are_not_wrapped(tmp_path):
    note = "a long note " * 20
    Writer(tmp_path / "a.bin", pid=1, notes=[note], host="h" * 100).close()
    lines = cutrace("info", tmp_path / "a.bin").stdout.splitlines()
    assert f"! {note}".rstrip() in (line.rstrip() for line in lines)
    assert any("h" * 100 in line for line in lines)


def test_calls_with_stacks_are_counted(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.api("cudaFree", 1, 2, correlation=1, stack=c.stack(("a.py", 1, "f")))
        c.api("cudaFree", 3, 4, correlation=2)
    assert "Python stacks: 1 of 2 API calls; " in cutrace("info", tmp_path / "a.bin").stdout
    assert info(tmp_path / "a.bin")["rows"]["call_stacks"] == 1
    assert "Python stacks" not in cutrace("info", small_capture(tmp_path / "b.bin")).stdout


def test_a_capture_without_a_gpu_has_no_gpu_table(tmp_path):
    Writer(tmp_path / "a.bin", pid=1).close()
    assert info(tmp_path / "a.bin")["gpus"] == []


def test_a_name_cannot_steer_the_terminal(tmp_path):
    with Writer(tmp_path / "run.bin", pid=1, command=["\x1b]0;owned\x07\x1b[31mevil"], host="h\x1b[2J") as writer:
        writer.process({"notes": ["note \x1b[5m"]})
    done = cutrace("info", tmp_path / "run.bin")
    assert done.returncode == 0
    assert "evil" in done.stdout
    assert not {"\x1b", "\x07"} & set(done.stdout)


def test_a_kind_that_was_refused_is_told_once(tmp_path):
    for name, notes in (("noted.bin", ["CUPTI refused to record memset (ERROR)"]), ("bare.bin", [])):
        with Writer(tmp_path / name, pid=1, notes=notes) as writer:
            writer.losses([("kind_refused", 1, "memset")])
    texts = [cutrace("info", tmp_path / name).stdout for name in ("noted.bin", "bare.bin")]
    assert [text.count("memset") for text in texts] == [1, 1]
    assert not any("Nothing is known to be missing" in text for text in texts)
