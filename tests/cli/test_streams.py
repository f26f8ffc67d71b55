"""Outputs of traces: pipes, files behind links, and formats that the file name does not determine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from support import cutrace as run
from support import small_capture


@pytest.fixture
def capture(tmp_path):
    return small_capture(tmp_path / "run.bin")


def piped(*arguments: object, data: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "cutrace", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, cwd=cwd, timeout=60)


def test_what_a_closed_stdout_loses_is_an_error(capture, tmp_path):
    for words in ("stats {0}", "stats -", "convert {0} --format chrome -o -", "--help", "convert {0} -o {1}/x.json"):
        command = f"exec {sys.executable} -m cutrace {words.format(capture, tmp_path)} <&- >&-"
        done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == (0 if "x.json" in words else 2)
        assert done.stderr.count("\n") == 1
        if done.returncode and words != "stats -":
            assert "cannot write to stdout: it is closed" in done.stderr


@pytest.mark.parametrize("words", [["stats"], ["info", "--format", "json"], ["convert", "-o", "-"], ["--help"]])
def test_a_stdout_that_is_full_is_named(capture, words):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "cutrace", *words, capture]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2
    assert done.stderr == b"cutrace: cannot write to stdout: No space left on device. Redirect it to another place.\n"


@pytest.mark.parametrize(
    "verb",
    [
        ("info",),
        ("stats",),
        ("convert", "-o", "out.pftrace"),
        ("slice", "-o", "out.bin"),
        ("convert", "--redact", "-o", "out.bin"),
    ],
)
def test_a_dash_is_a_capture_on_stdin(tmp_path, capture, verb, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    done = piped(*verb, "-", data=capture.read_bytes(), cwd=tmp_path)
    assert done.returncode == 0
    named = piped(*verb, capture, cwd=tmp_path)
    if verb != ("info",):  # a function that prints the name
        assert done.stdout == named.stdout
    assert list(scratch.iterdir()) == []


def test_two_traces_are_compared_with_one_on_stdin(capture):
    done = piped("diff", capture, "-", data=capture.read_bytes())
    assert done.returncode == 0
    assert done.stdout.startswith(b"no difference")


def test_stdin_is_read_once(capture):
    done = piped("info", "-", "-", data=capture.read_bytes())
    assert done.returncode == 2
    assert b"name it once" in done.stderr


def test_what_stdin_holds_is_looked_at_as_a_file_is(capture):
    done = piped("info", "-", data=b"no capture")
    assert done.returncode == 2
    assert done.stderr.startswith(b"cutrace: stdin is text, not a trace")
    assert done.stderr.count(b"\n") == 1
    assert piped("info", "-", data=b"").stderr.startswith(b"cutrace: stdin is empty")
    assert piped("info", "-", data=capture.read_bytes()).stdout.startswith(b"stdin  ")


@pytest.mark.parametrize("form", ["perfetto", "chrome", "sqlite", "capture"])
def test_a_trace_goes_to_stdout_in_the_format_asked_for(tmp_path, capture, form):
    done = piped("convert", capture, "--format", form, "-o", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    (tmp_path / "got").write_bytes(done.stdout)
    with cutrace.load(tmp_path / "got") as trace:
        assert len(trace.kernels) == 2


def test_parts_of_traces_go_through_pipes_as_captures(capture):
    part = piped("slice", "--start", "151ns", capture, "-o", "-")
    assert re.match(rb"cutrace: -: \d+ of \d+ rows: from 151 ns to its end\n", part.stderr)
    done = piped("stats", "-", "--report", "cuda_gpu_kern_sum", "--format", "json", data=part.stdout)
    assert json.loads(done.stdout)["reports"][0]["rows"][0]["count"] == 1
    merged = piped("merge", capture, "-o", "-", "-q")
    assert len(merged.stdout) > 1000
    redacted = piped("convert", "--redact", "--format", "capture", "-", "-o", "-", data=merged.stdout)
    assert redacted.returncode == 0
    assert b"train" in merged.stdout
    assert b"train" not in redacted.stdout


def test_a_folder_cannot_go_to_stdout(capture):
    done = piped("convert", capture, "--format", "parquet", "-o", "-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"cannot go to stdout" in done.stderr


def test_a_reader_that_has_enough_is_no_error(tmp_path, capture):
    command = f"{sys.executable} -m cutrace convert {capture} --format chrome -o - | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{", "")


@pytest.mark.parametrize(
    ("verb", "name"),
    [(("convert",), "trace"), (("slice",), "part"), (("merge",), "job.tar"), (("convert",), "x.json")],
)
def test_a_format_is_named_where_the_output_does_not_tell(tmp_path, capture, verb, name):
    done = run(*verb, capture, "--format", "perfetto", "-o", tmp_path / name)
    assert done.returncode == 0
    assert (tmp_path / name).read_bytes()[0] == 10  # a packet
    cutrace.convert(capture, tmp_path / "same", format="perfetto")


def test_a_format_that_does_not_exist_is_answered_with_one_that_does(tmp_path, capture):
    done = run("convert", capture, "--format", "perfeto", "-o", tmp_path / "x")
    assert done.returncode == 2
    assert "did you mean perfetto?" in done.stderr


def test_tables_go_to_stdout_by_name_too(capture):
    assert run("stats", capture, "-o", "-").stdout == run("stats", capture).stdout


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (("convert",), "x.pftrace"), (("convert",), "x.parquet"), (("slice",), "x.bin"), (("merge",), "x.bin"),
        (("merge",), "x.tar"), (("convert", "--redact"), "x.bin"), (("stats",), "x.txt"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("existing", [False, True])
def test_a_link_stays_and_what_it_names_is_replaced(tmp_path, capture, verb, name, existing):
    (tmp_path / "data").mkdir()
    if name == "x.parquet":
        pytest.importorskip("pyarrow")
        existing = False
    if existing:
        (tmp_path / "data" / "real").write_text("old")
    (tmp_path / name).symlink_to("data/real")
    assert run(*verb, capture, "-o", tmp_path / name).returncode == 0
    assert (tmp_path / name).is_symlink()
    real = tmp_path / "data" / "real"
    assert real.is_dir() or real.read_bytes() not in (b"", b"old")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["data", "run.bin", name])
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["real"]
