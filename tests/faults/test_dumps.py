"""Faults while a recording of the newest rows dumps itself."""

from __future__ import annotations

import signal
from pathlib import Path

import cutrace
from cutrace.outputs import mode_of_new_files
from faults.conftest import Measure

BEGIN = """
import glob, nvtx
fakegpu.init()
def slow():
    with nvtx.annotate("step"):
        launch(1)
        time.sleep(0.2)
def until(what):
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        launch(1)
        time.sleep(0.01)
"""
OPTIONS = ("--last", "400ms", "--dump-when", "nvtx:step > 100ms", "--dump-pause", "1ms", "--dump-limit", "1")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_full_disk_costs_the_dump_but_not_the_recording_nor_the_next_dump(measure: Measure, tmp_path: Path) -> None:
    program = """
inject.copies(errno.ENOSPC)
slow()
until(inject.count)
inject.copies()
slow()
until(lambda: glob.glob("run-1.bin"))
launch(100, "last")
"""
    outcome = measure(BEGIN + program, options=OPTIONS)
    assert outcome.status == 0, outcome.stderr
    assert names(tmp_path) == ["run-1.bin", "run.bin"]
    failed, written = (line for line in outcome.stderr.splitlines() if "step took" in line)
    assert "cannot write the dump" in failed
    assert "No space left on device" in failed
    assert "run-1.bin holds the newest rows" in written
    assert outcome.kernels()["last"] == 100
    assert set(outcome.losses) <= {"let_go"}


def test_a_program_that_is_killed_while_it_dumps_leaves_no_half_dump(measure: Measure, tmp_path: Path) -> None:
    program = """
launch(100, "first")
inject.copies_are_held()
slow()
until(inject.copies_begun)
os.kill(os.getpid(), 9)
"""
    outcome = measure(BEGIN + program, options=(*OPTIONS, "--last", "3s"))
    assert outcome.status == 128 + signal.SIGKILL
    assert names(tmp_path) == ["run.bin"]
    assert outcome.kernels()["first"] == 100
    assert not outcome.trace.quality.damage


def test_a_dump_at_the_end_is_complete_on_a_slow_disk(measure: Measure, tmp_path: Path) -> None:
    outcome = measure(BEGIN + "launch(100, 'first'); inject.copies(0, 500); slow()", options=(*OPTIONS, "--last", "1m"))
    assert outcome.status == 0, outcome.stderr
    assert names(tmp_path) == ["run-1.bin", "run.bin"]
    with cutrace.load(tmp_path / "run-1.bin") as dump:
        assert len(dump.kernels) == 101
        assert dump.quality.lossless
        assert dump.processes[0].dumped_because
    assert (tmp_path / "run-1.bin").stat().st_mode & 0o777 == mode_of_new_files(tmp_path)
