"""Programs that end in other ways than by returning from main: none hangs, each leaves what it can."""

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

Record = Callable[..., Any]
Needs = Callable[..., None]


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
    # What is missing is the last moments only.
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


def test_terminating_the_recording_terminates_the_program(record: Record, programs: Path) -> None:
    def terminate(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        return line

    recorded = record([programs / "endings", "forever"], interact=terminate, limit=60)
    assert recorded.status == 128 + signal.SIGTERM
    assert len(recorded.trace.kernels) > 0


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
