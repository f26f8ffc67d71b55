"""Recordings that keep only their newest rows, on the fake GPU: kept rows, counts of dropped rows, and dumps."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cutrace
from cutrace.collect.options import Options
from cutrace.errors import CutraceError
from cutrace.outputs import mode_of_new_files
from support import recorded
from support.fakedriver import FakeDriver

# Launches a numbered kernel every 2 ms until it gets a line to stop. Prints a line after its start, and the number of
# launched kernels.
PROGRAM = """
import os, sys, time
import cutrace, fakegpu
fakegpu.init()
def work(seconds, count=0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fakegpu.launch(f"k{count}")
        count += 1
        time.sleep(0.002)
    fakegpu.synchronize()
    return count
"""


def record(driver: FakeDriver, folder: Path, *options: str, program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", *options, "--", sys.executable, "-c"]
    return subprocess.Popen(
        [*command, PROGRAM + program], cwd=folder, env=driver.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def alone(driver: FakeDriver, folder: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("fakegpu.init()", "") + program], cwd=folder, env=driver.environment(),
        text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.01)


def kernels(capture: Path) -> list[int]:
    """The numbers of the kernels in a capture, sorted. CUPTI delivers buffers in any order, so the order of rows
    varies."""
    with cutrace.load(capture) as trace:
        names = trace.launches[trace.kernels["launch"]]["name"]
        return sorted(int(trace.strings[int(name)].removeprefix("k")) for name in names)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def let_go(capture: Path, table: str = "kernels") -> int:
    with cutrace.load(capture) as trace:
        assert {loss.reason for loss in trace.named_losses} <= {"let_go", "not_closed"}
        return sum(loss.count for loss in trace.named_losses if loss.detail == table)


def test_only_the_last_time_is_kept_and_the_rest_is_counted(fake_driver: FakeDriver, tmp_path: Path) -> None:
    with record(fake_driver, tmp_path, "--last", "400ms", program="print(work(2))") as running:
        launched = int(running.communicate(timeout=60)[0])
    assert running.returncode == 0
    kept = kernels(tmp_path / "run.bin")
    assert kept[-40:] == list(range(launched - 40, launched))
    assert let_go(tmp_path / "run.bin") == launched - len(set(kept)) > 0
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.quality.damage == ()
        assert trace.quality.incomplete == ()
        assert len(trace.processes) == 1
        span = int(trace.kernels["end"].max() - trace.kernels["start"].min()) / 1e9
    assert 0.3 < span < 1.2
    assert files(tmp_path) == ["run.bin"]


def test_a_program_shorter_than_that_is_kept_whole(fake_driver: FakeDriver, tmp_path: Path) -> None:
    with record(fake_driver, tmp_path, "--last", "1m", program="print(work(0.1))") as running:
        launched = int(running.communicate(timeout=60)[0])
    assert kernels(tmp_path / "run.bin") == list(range(launched))
    assert let_go(tmp_path / "run.bin") == 0


def test_the_signal_writes_numbered_dumps(fake_driver: FakeDriver, tmp_path: Path) -> None:
    """Each dump has the rows before its signal, so dumps overlap. An existing file with the same name is kept."""
    (tmp_path / "run-2.bin").write_text("of another run")
    with record(fake_driver, tmp_path, "--last", "1m", program="print('go', flush=True); print(work(3))") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "go\n"
        for dump in (tmp_path / "run-1.bin", tmp_path / "run-3.bin"):
            time.sleep(0.3)
            running.send_signal(signal.SIGUSR2)
            until(dump.exists)
        out, err = running.communicate(timeout=60)
    first, second, whole = (kernels(tmp_path / name) for name in ("run-1.bin", "run-3.bin", "run.bin"))
    assert first == list(range(len(first)))
    assert second == list(range(len(second)))
    assert 0 < len(first) < len(second) < len(whole) == int(out)
    with cutrace.load(tmp_path / "run-1.bin") as trace:
        assert trace.quality.lossless
        assert trace.quality.incomplete == ()
    assert (tmp_path / "run-2.bin").read_text() == "of another run"
    assert f"{tmp_path / 'run-1.bin'} holds the newest rows" in err
    assert (tmp_path / "run-1.bin").stat().st_mode & 0o777 == mode_of_new_files(tmp_path)
    assert files(tmp_path) == ["run-1.bin", "run-2.bin", "run-3.bin", "run.bin"]


def test_the_signal_ends_no_process_that_is_not_recorded(fake_driver: FakeDriver, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cutrace",
        "record",
        "--last",
        "1m",
        "--",
        "sh",
        "-c",
        "echo go; sleep 1; echo end",
    ]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "go\n"
        running.send_signal(signal.SIGUSR2)
        assert running.stdout.read() == "end\n"
    assert running.returncode == 0


def test_the_signal_goes_to_no_process_with_the_pid_of_an_ended_one(tmp_path: Path) -> None:
    """The file of the ended process has the pid of the program, which catches the signal."""
    code = """
import signal, time
caught = []
signal.signal(signal.SIGUSR2, lambda *_: caught.append(1))
capture()
os.kill(os.getppid(), signal.SIGUSR2)
time.sleep(0.5)
os._exit(len(caught))
"""
    command = [sys.executable, "-m", "cutrace", "record", "--last", "1m", "--", *recorded(code)]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60).returncode == 0


def test_a_program_that_handles_the_signal_keeps_it(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
print(work(0.1))
os.kill(os.getpid(), signal.SIGUSR2)
print(seen)
cutrace.dump("mine.bin")
"""
    handler = "import signal\nseen = []\nsignal.signal(signal.SIGUSR2, lambda *_: seen.append('mine'))\n"
    command = [sys.executable, "-m", "cutrace", "record", "--last", "1m", "--", sys.executable, "-c"]
    done = subprocess.run(
        [*command, handler + PROGRAM + program], cwd=tmp_path, env=fake_driver.environment(), text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    launched, seen = done.stdout.splitlines()
    assert seen == "['mine']"
    assert len(kernels(tmp_path / "mine.bin")) == int(launched)
    assert files(tmp_path) == ["mine.bin", "run.bin"]
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert any("SIGUSR2" in note for note in trace.quality.notes)


def test_a_killed_program_leaves_what_was_on_the_disk(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = "print(work(1.5), flush=True); time.sleep(0.6); os.kill(os.getpid(), 9)"
    with record(fake_driver, tmp_path, "--last", "1s", program=program) as running:
        launched = int(running.communicate(timeout=60)[0])
    assert running.returncode == 128 + 9
    kept = kernels(tmp_path / "run.bin")
    assert kept[-40:] == list(range(launched - 40, launched))
    assert let_go(tmp_path / "run.bin") == launched - len(set(kept)) > 0
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.quality.incomplete == (0,)


def test_python_asks_for_a_dump(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
with cutrace.arm("run.bin", last="30s"):
    fakegpu.init()
    assert cutrace.dump("early.bin") is False
    first = work(0.1)
    assert cutrace.dump("first.bin") is True
    os.kill(os.getpid(), 12)
    while not os.path.exists("run-1.bin"):
        time.sleep(0.01)
    print(first, work(0.1, first))
"""
    first, last = map(int, alone(fake_driver, tmp_path, program).split())
    assert kernels(tmp_path / "first.bin") == kernels(tmp_path / "run-1.bin") == list(range(first))
    assert kernels(tmp_path / "run.bin") == list(range(last))
    assert files(tmp_path) == ["first.bin", "run-1.bin", "run.bin"]


def test_a_block_of_a_program_is_kept_likewise(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.init()
with cutrace.record("run.bin", last="0.2s"):
    print(work(1))
"""
    launched = int(alone(fake_driver, tmp_path, program))
    kept = kernels(tmp_path / "run.bin")
    newest = kept[-40:]
    assert newest == list(range(launched - len(newest), launched)) != []
    assert let_go(tmp_path / "run.bin") == launched - len(set(kept)) > 0


def test_what_cannot_be_dumped_says_why(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
def refusal(path):
    try:
        cutrace.dump(path)
    except cutrace.CutraceError as error:
        return str(error)
print(refusal("x.bin"))
fakegpu.init()
with cutrace.record("run.bin"):
    fakegpu.launch("k1")
    print(refusal("x.bin"))
with cutrace.record("run.bin", last="30s"):
    fakegpu.launch("k1")
    print(refusal("nowhere/x.bin"))
    print(cutrace.dump("y.bin"))
"""
    nothing, whole, folder, worked = alone(fake_driver, tmp_path, program).splitlines()
    assert "not recorded" in nothing
    assert "last=30s" in whole
    assert "nowhere/x.bin" in folder
    assert "choose" in folder
    assert worked == "True"
    assert files(tmp_path) == ["run.bin", "y.bin"]


def test_rotation_keeps_the_newest_rows_within_the_size(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
count = 0
largest = 0
for _ in range(30):
    for _ in range(10_000):
        fakegpu.launch(f"k{count}")
        count += 1
    try:
        held = sum(f.stat().st_size for f in pathlib.Path().glob(".run.bin.*/*.bin"))
    except FileNotFoundError:  # deleted since it was listed
        continue
    largest = max(largest, held)
print(count, largest)
"""
    options = ("--max-size", "16MiB", "--rotate")
    with record(fake_driver, tmp_path, *options, program="import pathlib\n" + program) as running:
        out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    launched, largest = map(int, out.split())
    kept = kernels(tmp_path / "run.bin")
    assert kept[-40:] == list(range(launched - 40, launched))
    assert let_go(tmp_path / "run.bin") == launched - len(set(kept)) > 0
    room = 16 << 20
    assert room // 2 < (tmp_path / "run.bin").stat().st_size
    assert largest < room + (4 << 20)
    assert "dropped to keep only the newest" in err


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"last": "0s"}, "1ms or more"),
        ({"last": 1}, "1ms or more"),
        ({"last": -1}, "is not a time"),
        ({"last": "soon"}, "write 1.5s"),
        ({"rotate": True}, "maximum size"),
        ({"rotate": True, "max_size": "1MiB"}, "16 MiB or more"),
        ({"last": "30s", "max_size": "1MiB"}, "16 MiB or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], advice: str) -> None:
    with pytest.raises(CutraceError, match=advice):
        Options.of(**options)  # type: ignore[arg-type]


def test_the_newest_rows_never_fill_a_disk() -> None:
    assert Options.of(last="30s").max_size == 4 << 30
    assert Options.of(last="30s", max_size="1GiB").max_size == 1 << 30
    assert "dump=" not in Options.of().text(output="run.bin", dump="run.bin")
