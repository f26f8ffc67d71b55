"""Programs that do not end by returning from main: none of them hangs, and each leaves a capture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Record = Callable[..., Any]
Needs = Callable[..., None]

LAUNCHER = Path(__file__).with_name("launcher.py").read_text()


def test_returning_from_main_loses_nothing(record: Record, programs: Path) -> None:
    recorded = record([programs / "endings", "return"])
    assert recorded.kernel_counts() == {"tick": recorded.report["kernels"]}
    recorded.assert_lossless()


def test_leaving_without_waiting_for_the_gpu_loses_nothing(record: Record, programs: Path) -> None:
    recorded = record([programs / "endings", "tail"])
    assert recorded.kernel_counts() == {"tick": recorded.report["kernels"]}
    recorded.assert_lossless()


def test_a_killed_program_leaves_what_it_had_done(record: Record, programs: Path) -> None:
    killed_at = 0

    def kill(process: subprocess.Popen[str]) -> str:
        nonlocal killed_at
        assert process.stdout is not None
        line = process.stdout.readline()
        time.sleep(1.0)
        killed_at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.kill(json.loads(line)["pid"], signal.SIGKILL)
        return line

    recorded = record([programs / "endings", "forever"], interact=kill, limit=60)
    assert recorded.status == 128 + signal.SIGKILL
    trace = recorded.trace
    assert not trace.processes[0].complete
    assert len(trace.kernels) >= recorded.reports[-1]["kernels"] // 2
    # Only the last moments may be missing.
    assert killed_at - int(trace.kernels["end"].max()) < 1e9


def test_an_idle_program_that_is_killed_leaves_what_it_had_done(record: Record, programs: Path) -> None:
    def kill(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        time.sleep(2.0)
        os.kill(json.loads(line)["pid"], signal.SIGKILL)
        return line

    recorded = record([programs / "endings", "idle"], interact=kill, limit=60)
    assert recorded.status == 128 + signal.SIGKILL
    assert recorded.kernel_counts() == {"tick": recorded.reports[-1]["kernels"]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_terminating_the_recording_terminates_the_program(
    record: Record, programs: Path, number: signal.Signals
) -> None:
    def terminate(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(number)
        return line

    recorded = record([programs / "endings", "forever"], interact=terminate, limit=60)
    assert recorded.status == 128 + number
    assert len(recorded.trace.kernels) > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_program_keeps_what_was_flushed(record: Record, programs: Path, number: signal.Signals) -> None:
    def kill(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        time.sleep(1.0)
        os.kill(json.loads(line)["pid"], number)
        return line

    recorded = record([programs / "endings", "idle"], interact=kill, limit=60)
    assert recorded.status == 128 + number
    assert recorded.kernel_counts() == {"tick": recorded.reports[-1]["kernels"]}
    assert not recorded.trace.processes[0].complete


ABRUPT = {
    "os.abort()": 128 + signal.SIGABRT,
    "ctypes.string_at(0)": 128 + signal.SIGSEGV,
    "os.kill(os.getpid(), signal.SIGTERM)": 128 + signal.SIGTERM,
    # After an uncaught KeyboardInterrupt Python ends by SIGINT, so C's exit handlers do not run.
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)": 128 + signal.SIGINT,
}


@pytest.mark.parametrize("ending", ABRUPT)
def test_an_abrupt_end_keeps_what_was_flushed(record: Record, ending: str) -> None:
    program = LAUNCHER + f"import os, signal\nstart(); launch(1000); synchronize(); time.sleep(0.5)\n{ending}"
    recorded = record([sys.executable, "-c", program], limit=60)
    assert recorded.status == ABRUPT[ending]
    assert recorded.kernel_counts() == {"k": 1000}
    assert not recorded.trace.quality.damage
    assert not recorded.trace.processes[0].complete


ORDERLY = {"sys.exit(3)": 3, "raise ValueError": 1}


@pytest.mark.parametrize("ending", ORDERLY)
def test_an_end_through_the_interpreter_keeps_everything(record: Record, ending: str) -> None:
    program = LAUNCHER + f"import atexit, sys\nstart(); atexit.register(launch, 10); launch(1000)\n{ending}"
    recorded = record([sys.executable, "-c", program], limit=60)
    assert recorded.status == ORDERLY[ending]
    assert recorded.kernel_counts() == {"k": 1010}
    assert recorded.trace.processes[0].complete
    recorded.assert_lossless()


DAEMONS = """
import threading
def forever():
    use()
    while True:
        launch(1, blocks=7)
start()
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
launch(1000, blocks=1)
synchronize()
time.sleep(0.2)
"""


def test_daemon_threads_that_launch_while_the_interpreter_ends(record: Record) -> None:
    recorded = record([sys.executable, "-c", LAUNCHER + DAEMONS], limit=60)
    assert recorded.status == 0, recorded.stderr
    trace = recorded.trace
    blocks = trace.launches["grid_x"][trace.kernels["launch"]].tolist()
    assert blocks.count(1) == 1000
    assert blocks.count(7) > 100
    assert trace.processes[0].complete


@pytest.mark.parametrize("attempt", range(3))
def test_threads_that_launch_during_exit(record: Record, programs: Path, attempt: int) -> None:
    recorded = record([programs / "leaving", "threads"], limit=60)
    counts = recorded.kernel_counts()
    assert counts["tick"] == recorded.report["tick"]
    assert counts["background"] >= 4 * 200
    assert recorded.trace.processes[0].complete


def test_static_destructors_that_launch(record: Record, programs: Path) -> None:
    recorded = record([programs / "leaving", "destructors"], limit=60)
    counts = recorded.kernel_counts()
    assert {name: counts[name] for name in recorded.report} == recorded.report
    assert recorded.trace.processes[0].complete
    recorded.assert_lossless()


def test_forks_while_a_thread_launches_and_flushes_run(record: Record, programs: Path) -> None:
    recorded = record([programs / "leaving", "forks"], limit=60)
    assert recorded.kernel_counts() == recorded.report
    assert len(recorded.trace.processes) == 1
    assert recorded.trace.processes[0].complete
    recorded.assert_lossless()


def test_aborting(record: Record, programs: Path) -> None:
    recorded = record([programs / "endings", "abort"], limit=60)
    assert recorded.status == 128 + signal.SIGABRT
    assert not recorded.trace.processes[0].complete


def test_leaving_without_exit_handlers(record: Record, programs: Path) -> None:
    recorded = record([programs / "endings", "_exit"], limit=60)
    assert recorded.report["kernels"] == 1000
    assert len(recorded.trace.processes) == 1
    assert recorded.trace.count("kernels") <= 1000


OS_EXIT = """
import os, time, torch
x = torch.zeros(1024, device="cuda")
for _ in range(1000):
    x.add_(1)
torch.cuda.synchronize()
time.sleep(1)
print('{"kernels": 1000}', flush=True)
os._exit(7)
"""


def test_os_exit_keeps_the_status_and_what_was_flushed(record: Record, needs: Needs) -> None:
    needs("torch")
    recorded = record([sys.executable, "-c", OS_EXIT], limit=60)
    assert recorded.status == 7
    assert len(recorded.trace.kernels) >= 1000


def test_a_fork_after_cuda_was_initialised(record: Record, programs: Path) -> None:
    recorded = record([programs / "endings", "fork"], limit=60)
    report = recorded.report
    assert [p.pid for p in recorded.trace.processes] == [report["pid"]]
    assert recorded.kernel_counts() == {"tick": report["kernels"]}
    recorded.assert_lossless()


OS_FORK = """
import os, sys, torch
x = torch.zeros(1024, device="cuda")
x.add_(1)
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
x.add_(1)
torch.cuda.synchronize()
print('{"forked": true}')
"""


def test_a_python_fork_after_cuda_was_initialised(record: Record, needs: Needs) -> None:
    needs("torch")
    recorded = record([sys.executable, "-c", OS_FORK], limit=60)
    assert recorded.report == {"forked": True}
    assert len(recorded.trace.processes) == 1
    assert len(recorded.trace.kernels) >= 2
    recorded.assert_lossless()


def test_a_program_without_cuda_leaves_no_file_and_a_sentence(record: Record) -> None:
    recorded = record([sys.executable, "-c", "raise SystemExit(3)"], limit=30)
    assert recorded.status == 3
    assert not recorded.path.exists()
    assert "nothing was recorded" in recorded.stderr


def test_the_exit_status_of_the_program_is_kept(record: Record, programs: Path) -> None:
    command = f"{programs / 'endings'} return; exit 5"
    recorded = record(["sh", "-c", command])
    assert recorded.status == 5
    assert len(recorded.trace.kernels) == 1000
