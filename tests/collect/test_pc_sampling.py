"""`cutrace record --sample pc` on the fake GPU."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys

import pytest

import cutrace
from cutrace.collect import surroundings
from cutrace.collect.options import Options
from cutrace.collect.sampling import start_sampling
from cutrace.extras.hardware.sources import sampled_lines, stall_uses
from support.fakedriver import FakeDriver

PROGRAM = """
import fakegpu
for _ in range(5):
    fakegpu.launch("_Z4axpyPfi", grid=8, duration_ns=5000)
fakegpu.synchronize()
"""
IN_PROCESS = """
import cutrace, fakegpu
fakegpu.launch("_Z4axpyPfi"); fakegpu.synchronize()  # the context is older than the recording
with cutrace.record("run.bin", sample="pc"):
    for _ in range(5):
        fakegpu.launch("_Z4axpyPfi")
    fakegpu.synchronize()
fakegpu.launch("_Z4axpyPfi"); fakegpu.synchronize()
"""


def run(driver: FakeDriver, folder, *words: str, failures: str = "") -> subprocess.CompletedProcess[str]:
    # The lock file of the GPU is in this folder, so that tests do not wait for each other.
    env = driver.environment() | {"FAKE_CUPTI_FAILURES": failures, "XDG_RUNTIME_DIR": str(folder)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def record(driver: FakeDriver, folder, *options: str, failures: str = "") -> subprocess.CompletedProcess[str]:
    words = ["-m", "cutrace", "record", *options, "--", sys.executable, "-c", PROGRAM]
    return run(driver, folder, *words, failures=failures)


def test_kernels_and_samples_of_a_command_are_in_one_capture(fake_driver, tmp_path):
    done = record(fake_driver, tmp_path, "--sample", "pc=4096")
    assert done.returncode == 0
    assert "5 kernels" in done.stderr
    assert "4 PC sample rows" in done.stderr
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert {(u.function, u.stall): (u.samples, u.not_issued) for u in stall_uses(trace)} == {
            ("axpy", "long_scoreboard"): (40, 25), ("axpy", "selected"): (10, 0), ("axpy", "barrier"): (10, 0),
        }  # fmt: skip
        assert {(u.place.file, u.place.line): u.samples for u in sampled_lines(trace)} == {
            ("/home/user/project/axpy.cu", 20): 5, ("/home/user/project/axpy.cu", 21): 55,
        }  # fmt: skip
        assert trace.processes[0].info["options"]["sample"] == "pc=4096"


def test_a_context_that_is_older_than_the_recording_is_sampled(fake_driver, tmp_path):
    done = run(fake_driver, tmp_path, "-c", IN_PROCESS)
    assert done.returncode == 0, done.stderr
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert sum(use.samples for use in stall_uses(trace)) == 60
        assert len(trace.kernels) == 5


def test_a_redacted_capture_has_no_folders_of_sources(fake_driver, tmp_path):
    assert record(fake_driver, tmp_path, "--sample", "pc", "--redact").returncode == 0
    assert b"/home/user" not in (tmp_path / "run.bin").read_bytes()
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert sum(use.samples for use in stall_uses(trace)) == 60


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ("PCSamplingEnable:35", "only administrators may read counters (ERR_NVGPUCTRPERM)"),
        ("PCSamplingEnable:26", "CUPTI_ERROR_HARDWARE_BUSY"),
        ("PCSamplingGetData:999", "only one process can sample a GPU at a time"),
    ],
)
def test_a_refusal_is_said_at_the_end_and_kernels_are_recorded(fake_driver, tmp_path, failures, message):
    done = record(fake_driver, tmp_path, "--sample", "pc", failures=failures)
    assert done.returncode == 0
    assert message in done.stderr
    assert "5 kernels" in done.stderr


def test_a_gpu_that_another_process_samples_is_left_to_it(fake_driver, tmp_path):
    folder = tmp_path / "cutrace"
    folder.mkdir(mode=0o700)
    with (folder / f"{'11' * 16}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = record(fake_driver, tmp_path, "--sample", "pc")
    assert done.returncode == 0
    assert "only one process can sample a GPU at a time" in done.stderr
    assert "5 kernels" in done.stderr
    assert "PC sample" not in done.stderr


COUNTING = """
import cutrace, fakegpu, subprocess, sys
fakegpu.init()
with cutrace.region("r", counters=["instructions"]):
    print(subprocess.run(sys.argv[1:], capture_output=True, text=True).stderr)
"""


def test_samples_and_counters_exclude_each_other_whatever_the_temporary_folder(fake_driver, tmp_path):
    env = fake_driver.environment() | {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    other = ["env", "-u", "TMPDIR", sys.executable, "-m", "cutrace", "record", "--sample", "pc", "--"]
    command = [sys.executable, "-c", COUNTING, *other, sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "another process of cutrace reads its counters" in done.stdout


SAMPLES = "import cutrace, fakegpu\nfakegpu.init()\nwith cutrace.record('run.bin', sample='pc'):\n    "
COUNTS = "import cutrace, fakegpu\nfakegpu.init()\nwith cutrace.region('r', counters=['instructions']):\n    "


@pytest.mark.parametrize("program", [SAMPLES, COUNTS])
def test_a_forked_child_does_not_hold_the_gpu_for_its_parent(fake_driver, tmp_path, program):
    program += (
        "import os, signal; fakegpu.launch(); fakegpu.synchronize()\n    if os.fork() == 0: os.write(1, b'ready')"
    )
    program += "\n    signal.pause()"
    env = fake_driver.environment() | {"XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout.read(5) == b"ready"
        (lock,) = tmp_path.glob("cutrace/*.lock")
        with lock.open("w") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            process.kill()
            process.wait()
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.killpg(process.pid, signal.SIGKILL)


def test_metrics_and_program_counters_together_are_an_error_before_the_command_runs(fake_driver, tmp_path):
    words = ["-m", "cutrace", "record", "--sample", "pc", "--sample", "metrics", "--", "touch", "ran"]
    done = run(fake_driver, tmp_path, *words)
    assert done.returncode == 2
    assert "give --sample once" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_user_who_may_not_read_counters_is_told_before_the_start(monkeypatch, tmp_path):
    monkeypatch.setattr(surroundings, "counters_restricted", lambda: True)
    monkeypatch.setattr(surroundings, "may_administrate", lambda: False)
    with pytest.raises(cutrace.CutraceError, match=r"program counters cannot be sampled.*ERR_NVGPUCTRPERM"):
        start_sampling(Options.of(sample="pc"), tmp_path)
    assert start_sampling(Options.of(), tmp_path) is None
    assert not list(tmp_path.iterdir())
