"""Recordings that keep only their newest rows: kept rows, counts of dropped rows, and dumps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutrace

Record = Callable[..., Any]
Python = Callable[..., Any]

LAUNCHER = Path(__file__).with_name("launcher.py").read_text()


def groups(capture: Path) -> Counter[int]:
    """The number of kernels in each group of 100 (see launcher.py)."""
    with cutrace.load(capture) as trace:
        assert trace.quality.damage == ()
        return Counter((trace.launches["grid_x"][trace.kernels["launch"]] - 1).tolist())


def let_go(capture: Path) -> int:
    with cutrace.load(capture) as trace:
        assert {loss.reason for loss in trace.named_losses} <= {"let_go", "not_closed"}
        return sum(loss.count for loss in trace.named_losses if loss.detail == "kernels")


def assert_the_newest(capture: Path, launched: int, least: int) -> None:
    """Check that the capture has each of the last ``least`` kernels once, and that missing kernels are counted."""
    kept = groups(capture)
    first = -(-(launched - least) // 100)
    for group in range(first, -(-launched // 100)):
        assert kept[group] == min(100, launched - group * 100), group
    assert sum(kept.values()) + let_go(capture) == launched
    assert let_go(capture) > 0


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.01)


def test_only_the_last_seconds_are_kept_and_the_rest_is_counted(record: Record) -> None:
    program = LAUNCHER + "start(); print(launch_steadily(5))"
    recorded = record([sys.executable, "-c", program], "--last", "2s", limit=60)
    assert recorded.status == 0, recorded.stderr
    assert_the_newest(recorded.path, int(recorded.stdout), least=900)
    trace = recorded.trace
    assert trace.quality.incomplete == ()
    assert len(trace.processes) == 1
    # The capture has two seconds, plus at most an eighth.
    assert 1.9 < int(trace.kernels["end"].max() - trace.kernels["start"].min()) / 1e9 < 2.6
    assert [path.name for path in recorded.path.parent.glob("*.bin")] == ["run.bin"]


def test_the_signal_writes_numbered_dumps_while_the_program_goes_on(record: Record, tmp_path: Path) -> None:
    def ask(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        for dump, wait in (("run-1.bin", 1), ("run-2.bin", 2.5)):
            time.sleep(wait)
            process.send_signal(signal.SIGUSR2)
            until((tmp_path / dump).exists)
        return ""

    program = LAUNCHER + "start(); launch(1); print('go', flush=True); print(launch_steadily(5))"
    recorded = record([sys.executable, "-c", program], "--last", "2s", limit=60, interact=ask)
    assert recorded.status == 0, recorded.stderr
    first, second = (groups(tmp_path / name) for name in ("run-1.bin", "run-2.bin"))
    launched = sum(first.values())
    assert 300 < launched < 1000
    assert let_go(tmp_path / "run-1.bin") == 0
    assert first == Counter({group: min(100, launched - group * 100) for group in range(-(-launched // 100))})
    assert_the_newest(tmp_path / "run-2.bin", sum(second.values()) + let_go(tmp_path / "run-2.bin"), least=900)
    assert_the_newest(recorded.path, int(recorded.stdout), least=900)
    assert f"{tmp_path / 'run-1.bin'} holds the newest rows" in recorded.stderr


KILLED = """
import os
start()
print(launch_steadily(4), flush=True)
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


def test_a_killed_program_leaves_what_was_on_the_disk(record: Record) -> None:
    recorded = record([sys.executable, "-c", LAUNCHER + KILLED], "--last", "2s", limit=60)
    assert recorded.status == 128 + signal.SIGKILL
    # The last half second has no kernels.
    assert_the_newest(recorded.path, int(recorded.stdout), least=650)
    assert recorded.trace.quality.incomplete == (0,)


ASKS = """
import os, signal
import cutrace
with cutrace.arm("run.bin", last="2s"):
    start()
    first = launch_steadily(0.5)
    assert cutrace.dump("first.bin") is True
    os.kill(os.getpid(), signal.SIGUSR2)
    while not os.path.exists("run-1.bin"):
        time.sleep(0.01)
    last = launch_steadily(4)
print(first, last)
"""


def test_python_asks_for_a_dump(python: Python) -> None:
    recorded = python(LAUNCHER + ASKS, limit=60)
    assert recorded.status == 0, recorded.stderr
    first, last = map(int, recorded.stdout.split())
    for name in ("first.bin", "run-1.bin"):
        assert sum(groups(recorded.path.with_name(name)).values()) == first
        assert let_go(recorded.path.with_name(name)) == 0
    assert_the_newest(recorded.path, last, least=900)


BLOCK = """
import cutrace
start()
launch(100)
synchronize()
with cutrace.record("run.bin", last="2s"):
    print(launch_steadily(4) - 100)
"""


def test_a_block_of_a_program_is_kept_likewise(python: Python) -> None:
    recorded = python(LAUNCHER + BLOCK, limit=60)
    assert recorded.status == 0, recorded.stderr
    kept = groups(recorded.path)
    assert all(kept[group] == 100 for group in range(12, 21))
    assert sum(kept.values()) + let_go(recorded.path) == int(recorded.stdout) == 2000


ROTATES = """
import pathlib
start()
largest = 0
for _ in range(60):
    launch(10_000)
    synchronize()
    try:
        held = sum(file.stat().st_size for file in pathlib.Path().glob(".run.bin.*/*.bin"))
    except FileNotFoundError:  # deleted since it was listed
        continue
    largest = max(largest, held)
print(600_000, largest)
"""


def test_rotation_keeps_the_newest_rows_within_the_size(record: Record) -> None:
    program = [sys.executable, "-c", LAUNCHER + ROTATES]
    recorded = record(program, "--max-size", "16MiB", "--rotate", limit=90)
    assert recorded.status == 0, recorded.stderr
    launched, largest = map(int, recorded.stdout.split())
    room = 16 << 20
    # The rows fill at least half of the space, at 64 bytes for a launch and its kernel.
    assert_the_newest(recorded.path, launched, least=room // 2 // 64)
    assert room // 2 < recorded.path.stat().st_size
    assert largest < room + (4 << 20)
    assert "dropped to keep only the newest" in recorded.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_program_leaves_no_files_beside_its_capture(record: Record, number: signal.Signals) -> None:
    def end(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        time.sleep(1)
        os.kill(int(line), number)
        return line

    program = LAUNCHER + "import os\nstart(); print(os.getpid(), flush=True); launch_steadily(20)"
    recorded = record([sys.executable, "-c", program], "--last", "500ms", limit=60, interact=end)
    assert recorded.status == 128 + number
    assert sum(groups(recorded.path).values()) >= 200
    assert sorted(path.name for path in recorded.path.parent.iterdir()) == ["run.bin", "stderr"]
