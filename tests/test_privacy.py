"""docs/internals/privacy.md without a GPU: the contents of recordings, and the permissions and folders of files."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

import cutrace
from captures import Capture, training_steps
from cutrace.runbin import TABLES, Reader, Writer
from cutrace.runbin.blocks import pack_header
from cutrace.runbin.layout import schema
from cutrace.runbin.redaction import redact
from support import cutrace as run
from support import rows

PROGRAM = "import nvtx\nwith nvtx.annotate('step of /home/alice/model'): pass"


@pytest.fixture(autouse=True)
def _open_to_all():
    """A umask that lets everybody read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_recording_says_what_it_says_it_does(tmp_path: Path) -> None:
    assert run("record", "--", sys.executable, "-c", PROGRAM, "secret-argument", cwd=tmp_path).returncode == 0
    with cutrace.load(tmp_path / "run.bin") as trace:
        (process,) = trace.processes
        assert process.command[-1] == "secret-argument"
        assert process.host == os.uname().nodename
        known = {
            "format", "producer", "pid", "parent_pid", "host", "boot_id", "executable", "command", "clock", "started",
            "ended", "kinds", "options", "cupti_version", "cupti_path", "driver_version", "runtime_version", "nvtx",
            "notes", "tables",
        }  # fmt: skip
        assert set(process.info) <= known


def test_redaction_covers_the_files_of_python_frames(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for correlation, file in enumerate(("/home/alice/ops.py", "customer/ops.py", "train.py", "<string>"), 1):
            c.api("cudaFree", 1, 2, correlation=correlation, stack=c.stack((file, correlation, "f")))
        c.push_pop("customer/range", 1, 2)
    redact(tmp_path / "run.bin", tmp_path / "out.bin")
    with cutrace.load(tmp_path / "out.bin") as trace:
        files = [trace.strings[file] for file in trace.frames["file"][1:].tolist()]
        assert files == ["(path)", "(path)", "train.py", "<string>"]
        assert trace.strings[int(trace.nvtx_ranges["name"][0])] == "customer/range"
        assert trace.python_stacks.place(2) == "(path):2 in f"


def test_no_environment_variable_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-of-the-environment")
    run("record", "--", sys.executable, "-c", PROGRAM, cwd=tmp_path)
    assert b"hunter2-of-the-environment" not in (tmp_path / "run.bin").read_bytes()


def test_a_redacted_recording_holds_nothing_of_whose_it_is(tmp_path: Path) -> None:
    run("record", "--redact", "--", sys.executable, "-c", PROGRAM, "secret-argument", cwd=tmp_path)
    data = (tmp_path / "run.bin").read_bytes()
    for word in ("secret-argument", "alice", os.uname().nodename, str(tmp_path), sys.executable):
        assert word.encode() not in data
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.strings[int(trace.nvtx_ranges["name"][0])] == "step of (path)"
        assert trace.quality.lossless
    assert [path.name for path in tmp_path.iterdir()] == ["run.bin"]


def test_the_collector_itself_leaves_it_out(tmp_path: Path) -> None:
    code = (
        "import os, sys; from cutrace.collect.library import collector; c = collector()\n"
        f"c.start('output={tmp_path / 'a.bin'}\\nredact=1\\nnvtx=1'); c.mark('here'); c.stop()"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code, "secret-argument"]) == 0
    data = (tmp_path / "a.bin").read_bytes()
    assert b"here" in data
    for word in ("secret-argument", os.uname().nodename, str(tmp_path), sys.executable):
        assert word.encode() not in data


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, work = tmp_path / "tmp", tmp_path / "work"
    temporary.mkdir()
    work.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    training_steps(work / "run.bin", steps=1, layers=1)
    shutil.copy(work / "run.bin", work / "copy.bin")
    run("convert", "--redact", "run.bin", "copy.bin", "-o", "a.pftrace", cwd=work)
    run("info", "run.bin", "copy.bin", cwd=work)
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in work.iterdir()) == ["a.pftrace", "copy.bin", "run.bin"]


def test_a_redacted_trace_holds_no_command_line(tmp_path: Path) -> None:
    training_steps(tmp_path / "run.bin", steps=1, layers=1)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "a.pftrace")
    cutrace.convert(tmp_path / "run.bin", tmp_path / "b.pftrace", redact=True)
    with cutrace.load(tmp_path / "run.bin") as trace:
        word = trace.processes[0].command[-1].encode()
    assert word in (tmp_path / "a.pftrace").read_bytes()
    assert word not in (tmp_path / "b.pftrace").read_bytes()


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
@pytest.mark.parametrize("ending", ["bin", "pftrace", "json", "json.gz", "sqlite", "parquet", "csv"])
def test_every_output_obeys_the_umask(tmp_path: Path, ending: str, mask: int) -> None:
    os.umask(mask)
    capture = training_steps(tmp_path / "run.bin", steps=1)
    output = tmp_path / f"kernels.{ending}"
    cutrace.convert(capture, output)
    assert mode(output) == (0o777 if output.is_dir() else 0o666) & ~mask
    assert {mode(path) for path in output.rglob("*")} <= {0o666 & ~mask}


@pytest.mark.parametrize("mask", [0o027, 0o077])
def test_files_of_every_verb_obey_the_umask(tmp_path: Path, mask: int) -> None:
    os.umask(mask)
    steps = training_steps(tmp_path / "steps.bin", steps=2)
    assert run("record", "--", sys.executable, "-c", PROGRAM, cwd=tmp_path).returncode == 0
    cutrace.slice(steps, tmp_path / "slice.bin", cutrace.Conditions(nvtx=["step 0"]))
    cutrace.merge([steps, tmp_path / "run.bin"], tmp_path / "all.tar")
    cutrace.redact(steps, tmp_path / "redacted.bin")
    cutrace.view(steps, tmp_path / "page.html")
    assert run("stats", "steps.bin", "-o", "stats.csv", cwd=tmp_path).returncode == 0
    steps.unlink()
    made = {path.name: mode(path) for path in tmp_path.iterdir()}
    assert made == dict.fromkeys(
        ["run.bin", "slice.bin", "all.tar", "redacted.bin", "page.html", "stats.csv"], 0o666 & ~mask
    )


def test_a_redacted_capture_has_no_tables_of_newer_versions(tmp_path: Path) -> None:
    """Their contents may be private."""
    path = training_steps(tmp_path / "run.bin", steps=1)
    with Reader(path) as reader:
        last = reader.headers[-1]
    secret = b"/home/alice/secret".ljust(24)
    header = pack_header(
        4000,
        row_size=24,
        rows=1,
        payload=secret,
        pid=int(last["pid"]),
        sequence=int(last["sequence"]) + 1,
        instance=int(last["instance"]),
    )
    with path.open("ab") as file:
        file.write(header + secret)
    redact(path, tmp_path / "red.bin")
    assert b"alice" not in (tmp_path / "red.bin").read_bytes()
    with cutrace.load(path) as whole, cutrace.load(tmp_path / "red.bin") as redacted:
        assert len(whole.kernels) == len(redacted.kernels) > 0


def test_a_redacted_capture_has_no_fields_of_newer_versions(tmp_path: Path) -> None:
    path = tmp_path / "new.bin"
    layouts = schema()
    layouts["nvtx_marks"]["fields"].append(["path", "bytes16", layouts["nvtx_marks"]["row_size"], 1])
    layouts["nvtx_marks"]["row_size"] += 16
    with Writer(path, pid=1) as writer:
        writer.process({"tables": layouts})
        row = rows("nvtx_marks", 1, time=5, thread=1).tobytes() + b"/home/alice/x   "
        writer._block(TABLES["nvtx_marks"].number, row, rows=1, row_size=len(row), first=5, last=5)
    redact(path, tmp_path / "red.bin")
    assert b"alice" not in (tmp_path / "red.bin").read_bytes()
    with cutrace.load(tmp_path / "red.bin") as redacted:
        assert redacted.nvtx_marks["time"].tolist() == [5]
