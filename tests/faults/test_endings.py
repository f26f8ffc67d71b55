"""The endings of Python programs, on the fake GPU. tests/native/test_endings.cpp tests the endings of C++ programs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cutrace
from faults.conftest import LIMIT, PRELUDE, Measure

#: Launches 1000 kernels, waits for a flush, then ends in the tested way.
FLUSHED = """
launch(1000); fakegpu.synchronize()
assert ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).cutrace_flush() == 0
"""

ENDINGS = {
    "os._exit(7)": 7,
    "os.abort()": 128 + signal.SIGABRT,
    "ctypes.string_at(0)": 128 + signal.SIGSEGV,
    "os.kill(os.getpid(), signal.SIGKILL)": 128 + signal.SIGKILL,
    "os.kill(os.getpid(), signal.SIGTERM)": 128 + signal.SIGTERM,
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)": 128 + signal.SIGINT,
    # After an uncaught KeyboardInterrupt Python ends by SIGINT, so C's exit handlers do not run.
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)": 128 + signal.SIGINT,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_abrupt_end_keeps_what_was_flushed(measure: Measure, ending: str) -> None:
    outcome = measure(FLUSHED + ending)
    assert outcome.status == ENDINGS[ending]
    assert outcome.kernels() == {"k": 1000}
    assert not outcome.trace.quality.damage
    assert not outcome.trace.processes[0].complete
    assert not outcome.trace.quality.lossless
    assert [loss.reason for loss in outcome.trace.quality.losses] == ["not_closed"]
    assert "at most its last 100 ms" in outcome.info
    assert "was not closed in order" in outcome.info


ORDERLY = {"pass": 0, "sys.exit(3)": 3, "raise ValueError": 1, "ctypes.CDLL(None).quick_exit(5)": 5}


@pytest.mark.parametrize("ending", ORDERLY)
def test_an_end_through_the_interpreter_keeps_everything(measure: Measure, ending: str) -> None:
    outcome = measure("launch(1000)\n" + ending)
    assert outcome.status == ORDERLY[ending]
    assert outcome.kernels() == {"k": 1000}
    assert outcome.trace.quality.lossless
    assert outcome.trace.processes[0].complete


def test_a_program_that_replaces_itself_leaves_two_captures(measure: Measure) -> None:
    after = 'import fakegpu; [fakegpu.launch("after") for _ in range(500)]'
    outcome = measure(FLUSHED + f"os.execv(sys.executable, [sys.executable, '-c', {after!r}])")
    assert outcome.status == 0
    assert outcome.kernels() == {"k": 1000, "after": 500}
    first, second = outcome.trace.processes
    assert first.pid == second.pid
    assert (first.complete, second.complete) == (False, True)


def test_daemon_threads_that_launch_while_the_interpreter_ends(measure: Measure) -> None:
    program = """
def forever():
    while True:
        fakegpu.launch("daemon", duration_ns=1)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
launch(1000)
time.sleep(0.2)
"""
    outcome = measure(program)
    assert outcome.status == 0
    assert outcome.kernels()["k"] == 1000
    assert outcome.kernels()["daemon"] > 0
    assert outcome.trace.processes[0].complete


def test_work_of_exit_handlers_is_recorded(measure: Measure) -> None:
    program = """
import atexit, weakref
class Late:
    pass
late = Late()
weakref.finalize(late, fakegpu.launch, "finalizer")
atexit.register(fakegpu.launch, "atexit")
class Global:
    def __del__(self, launch=fakegpu.launch):
        launch("destructor")
kept = Global()
launch(10)
"""
    outcome = measure(program)
    assert outcome.status == 0
    assert outcome.kernels() == {"k": 10, "finalizer": 1, "atexit": 1, "destructor": 1}
    assert outcome.trace.processes[0].complete


@pytest.mark.parametrize("how", ["armed = cutrace.arm('run.bin')", "cutrace.record('run.bin').start()"])
def test_a_recording_in_process_ends_with_the_interpreter(measure: Measure, how: str) -> None:
    outcome = measure(f"{how}\nlaunch(1000)", recorder=False)
    assert outcome.status == 0
    assert outcome.kernels() == {"k": 1000}
    assert outcome.trace.processes[0].complete


def test_sub_interpreters(measure: Measure) -> None:
    program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
inner = '''
import fakegpu, cutrace
for _ in range(100):
    fakegpu.launch("inner", duration_ns=1)
cutrace.mark("inside")
'''
launch(100)
for _ in range(3):
    interpreter = interpreters.create()
    failure = interpreters.run_string(interpreter, inner)
    assert failure is None, failure
    interpreters.destroy(interpreter)
launch(100)
"""
    outcome = measure(program)
    if "does not support loading in subinterpreters" in outcome.stderr:
        pytest.skip("this Python's ctypes does not work in sub-interpreters")
    assert outcome.status == 0, outcome.stderr
    assert outcome.kernels() == {"k": 200, "inner": 300}
    assert len(outcome.trace.nvtx_marks) == 3
    assert outcome.trace.processes[0].complete


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_recorder_ends_the_program_and_keeps_the_capture(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    program = PRELUDE + "launch(1000); fakegpu.synchronize(); print('ready', flush=True)\ntime.sleep(30)"
    process = subprocess.Popen(
        [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", "--", sys.executable, "-c", program],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(number)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + number
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert len(trace.kernels) == 1000


def test_a_daemon_that_starts_after_the_recording_says_that_it_has_ended(
    environment: dict[str, str], tmp_path: Path
) -> None:
    daemon = "import os, time\nwhile not os.path.exists('ended'): time.sleep(0.05)\n" + PRELUDE + "launch(1)"
    program = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {daemon!r}], start_new_session=True,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open('said', 'w'))"
    )
    command = [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", "--", sys.executable, "-c", program]
    subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=LIMIT, check=False)
    (tmp_path / "ended").touch()
    said = ""
    end = time.monotonic() + LIMIT
    while "\n" not in said and time.monotonic() < end:
        time.sleep(0.05)
        said = (tmp_path / "said").read_text()
    assert "the recording that this process belongs to has ended" in said
    assert "record this process by itself" in said


def test_a_killed_recorder_leaves_the_capture_in_its_folder(environment: dict[str, str], tmp_path: Path) -> None:
    program = PRELUDE + "launch(1000); fakegpu.synchronize(); print(os.getpid(), flush=True)\ntime.sleep(1)"
    process = subprocess.Popen(
        [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", "--", sys.executable, "-c", program],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    program_pid = int(process.stdout.readline())
    process.kill()
    process.wait(timeout=LIMIT)
    end = time.monotonic() + LIMIT
    while Path("/proc", str(program_pid)).exists() and time.monotonic() < end:
        time.sleep(0.05)
    (part,) = tmp_path.glob(".run.bin.*/*.bin")
    with cutrace.load(part) as trace:
        assert len(trace.kernels) == 1000
        assert trace.processes[0].complete
    assert list(tmp_path.iterdir()) == [part.parent]
