"""cutrace record: what it says about what came of it."""

from __future__ import annotations

import sys

import pytest

from support import cutrace, recorded


def test_one_line_says_what_was_recorded(tmp_path):
    done = cutrace("record", "--", *recorded("capture()"), cwd=tmp_path)
    assert done.returncode == 0
    size = (tmp_path / "run.bin").stat().st_size / 1024
    assert done.stderr == f"cutrace: run.bin: 1 process, 0 kernels, {size:.1f} KiB\n"


def test_output_of_the_command_is_left_alone(tmp_path):
    done = cutrace("record", "--", "sh", "-c", "echo out; echo err >&2; exit 5", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "out\n")
    assert done.stderr.startswith("err\ncutrace: nothing was recorded")


def test_nothing_recorded_is_said_with_the_next_step(tmp_path):
    done = cutrace("record", "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "no CUDA or NVTX call" in done.stderr
    assert "cutrace doctor" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_capture_of_an_earlier_run_is_not_taken_for_this_one(tmp_path):
    (tmp_path / "run.bin").write_bytes(b"earlier")
    assert "run.bin is that of an earlier run" in cutrace("record", "--", "true", cwd=tmp_path).stderr


def test_notes_of_the_collector_are_passed_on(tmp_path):
    done = cutrace("record", "--", *recorded("capture(notes=['CUPTI is used by another tool'])"), cwd=tmp_path)
    assert "cutrace: CUPTI is used by another tool\n" in done.stderr


def test_losses_are_said(tmp_path):
    code = (
        "import numpy; from cutrace.runbin import TABLES\n"
        "loss = numpy.zeros(2, TABLES['losses'].dtype); loss['time'] = 1; loss['count'] = 1000; loss['reason'] = 1\n"
        "path = os.path.join(options['directory'], '1-1.bin')\n"
        "with Writer(path, pid=1) as w: w.rows('losses', loss)\n"
    )
    done = cutrace("record", "--", *recorded(code), cwd=tmp_path)
    assert "cutrace: not recorded: 2,000 records that CUPTI dropped" in done.stderr


@pytest.mark.parametrize("name", ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"])
def test_another_tool_in_the_environment_is_named(tmp_path, name):
    done = cutrace("record", "--", "true", cwd=tmp_path, env={name: "/opt/tool/libother.so"})
    assert f"{name} was set to /opt/tool/libother.so by another tool" in done.stderr


def test_options_behind_the_command_are_the_commands(tmp_path):
    done = cutrace("record", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--kinds", "-o", cwd=tmp_path)
    assert done.stdout == "['--kinds', '-o']\n"
