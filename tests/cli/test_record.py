"""cutrace record: the messages that it prints at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import cutrace, on_a_terminal, recorded, refused


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
    assert "run.bin is from an earlier run" in cutrace("record", "--", "true", cwd=tmp_path).stderr


@pytest.mark.parametrize("change", ["shutil.rmtree(folder)", "os.rename(folder, 'other')"])
def test_a_folder_that_is_removed_or_renamed_is_told(tmp_path, change):
    code = f"import shutil; folder = os.path.dirname(capture()); {change}; os._exit(3)"
    done = cutrace("record", "--", *recorded(code), cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("cutrace: nothing was recorded: the folder of the recording, .run.bin.")
    assert "was removed or renamed" in done.stderr
    assert "no CUDA or NVTX call" not in done.stderr


@pytest.mark.parametrize("verb", ["record", "arm"])
def test_a_recording_inside_a_recording_names_the_outer_one(tmp_path, verb):
    inner = [sys.executable, "-m", "cutrace", verb, "--", "true"]
    done = cutrace("record", "--", *inner, cwd=tmp_path)
    assert "cutrace: this command is inside a recording by `cutrace record`" in done.stderr
    assert "inside a recording" not in cutrace("arm", "--", *inner, cwd=tmp_path).stderr


def test_a_full_stderr_leaves_the_status_of_the_command(tmp_path):
    command = [sys.executable, "-m", "cutrace", "record", "--", *recorded("capture(); os._exit(3)")]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, cwd=tmp_path, stderr=full, timeout=60).returncode == 3


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


def test_one_step_leads_from_a_program_to_a_trace(tmp_path):
    done = cutrace("record", "-o", "run.json", "--", *recorded("capture()"), cwd=tmp_path)
    assert done.returncode == 0
    assert "cutrace: run.bin: 1 process, 0 kernels" in done.stderr
    assert "cutrace: run.json: " in done.stderr
    done = cutrace("record", "-o", "run.pftrace", "--", *recorded("capture()"), cwd=tmp_path)
    assert done.stderr.startswith("cutrace: run.pftrace: 1 process, 0 kernels")
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.bin", "run.json", "run.pftrace"]


@pytest.mark.parametrize("name", ["run.Pftrace", "run", "run.1", "kernels.csv"])
def test_an_output_without_an_ending_is_a_capture(tmp_path, name):
    done = cutrace("record", "-o", name, "--", *recorded("capture()"), cwd=tmp_path)
    assert done.returncode == 0
    assert ": 1 process" in done.stderr
    assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("run.pftrac", "cannot tell the format of run.pftrac: did you mean .pftrace or"),
        ("run.foo", "cannot tell the format of run.foo: let its name end with one of .pftrace"),
        (
            "run.csv",
            "there is no table 'run': name the file after a table, such as kernels.csv, or convert",
        ),
    ],
)
def test_an_ending_of_no_format_is_refused_before_the_command_runs(tmp_path, name, sentence):
    done = cutrace("record", "-o", name, "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_before_the_command_runs(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "pyarrow.py").write_text("raise ImportError\n")
    env = {"PYTHONPATH": str(packages)}
    done = cutrace("record", "-o", "run.parquet", "--", "touch", "ran", cwd=tmp_path, env=env)
    refused(done, "Parquet needs pyarrow: install it with `pip install pyarrow`")
    assert [one.name for one in tmp_path.iterdir()] == ["packages"]


def test_dumps_of_a_recording_that_is_converted_are_captures(tmp_path):
    program = "print(options['dump'])\ncapture()"
    done = cutrace("record", "--last", "1s", "-o", "run.json", "--", *recorded(program), cwd=tmp_path)
    assert done.stdout == f"{tmp_path}/run.bin\n"


def test_on_a_terminal_the_next_commands_are_suggested(tmp_path):
    shown = on_a_terminal("record", "--", *recorded("capture()"), cwd=tmp_path, TERM="dumb")
    assert "next: `cutrace open run.bin` or `cutrace stats run.bin`" in shown


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--stacks", "free"], "choose from sync, alloc, copy, launch"),
        (["--stacks", "launch:1/0"], "write launch:1/N"),
        (["--stacks-min", "20us"], "name the calls with stacks"),
    ],
)
def test_stacks_that_cannot_be_are_refused_before_the_command_runs(tmp_path, options, hint):
    done = cutrace("record", *options, "--", "touch", "ran", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert hint in done.stderr
    assert not (tmp_path / "ran").exists()
