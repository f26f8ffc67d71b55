"""Faults of the file while it is being written."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cutrace.outputs import mode_of_new_files
from faults.conftest import Measure, Outcome

KERNELS = 20_000
FULL = "No space left on device"


def busy(fault: str, after: str = "", before_end: str = "") -> str:
    """A program that launches for half a second. A fault occurs in the middle, after a part was written. ``before_end``
    runs before the last wait for the GPU, ``after`` behind it."""
    return f"""
fakegpu.init()
for i in range({KERNELS // 50}):
    launch(50)
    if i == {KERNELS // 100}:
        time.sleep(0.3)
        {fault}
    time.sleep(0.001)
{before_end}
fakegpu.synchronize()
{after}
"""


# Otherwise the records of the last waits, of the program and of the collector, are refused and counted too.
UNTIL_THERE_IS_ROOM = """
from cutrace.collect.library import collector
stats = collector().stats
inject.writes_are_slow(0)
written = stats().blocks_written
while stats().blocks_written == written:
    time.sleep(0.01)
"""


def accounted(outcome: Outcome, launches: int = KERNELS) -> None:
    """Check that each kernel, each launch and the final wait is in the capture once, or counted as lost."""
    trace = outcome.trace
    recorded = len(trace.kernels) + len(trace.api_calls)
    # Other rows, such as clock snapshots, may be lost, too.
    ours = ("kernels", "api_calls", "activity records")
    lost = sum(loss.count for loss in trace.quality.losses if loss.detail in ours)
    assert recorded + lost == 2 * launches + 1


def test_on_a_full_disk_whole_blocks_are_kept_and_the_rest_is_counted(measure: Measure) -> None:
    outcome = measure(busy("inject.writes_fail(errno.ENOSPC)", "inject.writes_work()"))
    assert outcome.status == 0
    assert outcome.losses["write_error"] > 0
    assert not outcome.trace.quality.damage
    accounted(outcome)
    assert FULL in outcome.stderr
    assert FULL in outcome.info
    assert outcome.trace.processes[0].complete


def test_a_disk_that_stays_full_keeps_what_it_had_room_for(measure: Measure) -> None:
    outcome = measure(busy("inject.writes_fail(errno.ENOSPC)"))
    assert outcome.status == 0
    assert KERNELS // 2 <= len(outcome.trace.kernels) < KERNELS
    assert outcome.stderr.count(FULL) == 1
    assert "was not closed in order" in outcome.info


TMPFS = """
set -e
mount -t tmpfs -o size=1m none "$1"
shift
"$@"
"""


def test_a_real_file_system_that_is_full(measure: Measure, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    # The mount exists only for the process. The capture is copied out of it.
    within = ["unshare", *(() if os.getuid() == 0 else ("-r",)), "-m", "sh", "-c", TMPFS, "sh", str(room)]
    if subprocess.run([*within, "true"], capture_output=True).returncode:
        pytest.skip("no rights to mount a small file system; the tests with injected faults cover the collector")
    keep = ["sh", "-c", 'status=0; "$@" || status=$?; cp room/run.bin run.bin; exit $status', "sh"]
    outcome = measure(busy("pass"), within=[*within, *keep], output="room/run.bin")
    outcome = Outcome(outcome.status, outcome.stdout, outcome.stderr, tmp_path / "run.bin")
    assert outcome.status == 0
    assert FULL in outcome.stderr
    assert 0 < len(outcome.trace.kernels) < KERNELS
    assert not outcome.trace.quality.damage


def test_a_limit_on_the_size_of_files_does_not_end_the_program(measure: Measure) -> None:
    # SIGXFSZ kills a program that writes too large a file. A recording must not cause this signal.
    limits = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, resource.RLIM_INFINITY))\n"
    reset = "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
    lift = limits.format("resource.RLIM_INFINITY")
    outcome = measure(reset + limits.format(100_000) + busy("pass", lift))
    assert outcome.status == 0
    assert "File too large" in outcome.stderr
    assert outcome.losses["write_error"] > 0
    accounted(outcome)

    outcome = measure(reset + limits.format(0) + "fakegpu.init(); launch(10)\n" + lift, output="none.bin")
    assert outcome.status == 0
    assert "File too large" in outcome.stderr


def test_a_capture_that_is_removed_while_it_is_written(measure: Measure) -> None:
    gone = "[os.unlink(f) for f in __import__('glob').glob('.run.bin.*/*.bin')]"
    outcome = measure(busy(gone))
    assert outcome.status == 0
    assert "was removed during the recording" in outcome.stderr
    assert not outcome.path.exists()


def test_a_removed_capture_fails_the_end_of_a_recording_in_process(measure: Measure) -> None:
    program = """
try:
    with cutrace.record("inner.bin"):
        fakegpu.launch("k")
        [os.unlink(f) for f in __import__("glob").glob(".inner.bin.*/*.bin")]
except cutrace.CutraceError as error:
    print(error)
print(os.listdir("."))
"""
    outcome = measure(program, recorder=False)
    assert outcome.status == 0
    assert "was removed during the recording" in outcome.stdout
    assert outcome.stdout.splitlines()[-1] == "[]"


def test_a_file_made_unwritable_goes_on(measure: Measure) -> None:
    closed = "[os.chmod(f, 0) for f in __import__('glob').glob('.run.bin.*/*.bin')]"
    outcome = measure(busy(closed))
    assert outcome.status == 0
    accounted(outcome)
    assert outcome.trace.quality.lossless
    assert outcome.path.stat().st_mode & 0o777 == mode_of_new_files(outcome.path.parent)


def test_a_disk_that_fails_is_said(measure: Measure) -> None:
    for error, sentence in {"EROFS": "Read-only file system", "EIO": "Input/output error"}.items():
        outcome = measure(busy(f"inject.writes_fail(errno.{error})"), output=f"{error}.bin")
        assert outcome.status == 0
        assert sentence in outcome.stderr
        assert len(outcome.trace.kernels) >= KERNELS // 2


def test_interrupted_and_short_writes_lose_nothing(measure: Measure) -> None:
    program = "inject.writes_are_short(1000); inject.writes_are_interrupted(100)\n" + busy("pass")
    outcome = measure(program + "print(inject.count())")
    assert outcome.status == 0
    assert int(outcome.stdout) > 100
    assert outcome.trace.quality.lossless
    accounted(outcome)


def test_a_torn_block_that_cannot_be_cut_off_is_stepped_over(measure: Measure) -> None:
    # The disk is full after half a block, and the file cannot be truncated. The following blocks must be found.
    fault = """inject.writes_are_short(100); inject.writes_fail(errno.ENOSPC, before=1, count=1)
        inject.truncates_fail(errno.EIO)
        launch(50); time.sleep(0.3)
        inject.writes_are_short(0)"""
    outcome = measure(busy(fault))
    assert outcome.status == 0
    assert outcome.trace.quality.damage
    assert sum(d.size for d in outcome.trace.quality.damage) < 1000
    assert len(outcome.trace.kernels) > KERNELS // 2
    assert outcome.losses["write_error"] > 0


def test_a_full_disk_seen_at_close_is_said(measure: Measure) -> None:
    outcome = measure("fakegpu.init(); launch(1000); inject.close_fails(errno.ENOSPC)")
    assert outcome.status == 0
    assert "could not be closed (No space left on device)" in outcome.stderr
    assert len(outcome.trace.kernels) == 1000

    program = """
try:
    with cutrace.record("inner.bin"):
        launch(1000)
        inject.close_fails(errno.ENOSPC)
except cutrace.CutraceError as error:
    print(error)
"""
    outcome = measure(program, recorder=False, output="inner.bin")
    assert "could not be closed (No space left on device)" in outcome.stdout
    assert len(outcome.trace.kernels) == 1000


def test_memory_stays_within_its_limit_and_what_is_refused_is_counted(measure: Measure) -> None:
    program = "inject.writes_are_slow(2_000_000)\n" + busy("pass", before_end=UNTIL_THERE_IS_ROOM)
    program += "print(stats().memory_bytes)"
    outcome = measure(program, options=["--max-memory", "1MiB"])
    assert outcome.status == 0
    assert outcome.losses["memory_limit"] > 0
    assert int(outcome.stdout) < 3 << 20
    accounted(outcome)
    assert "not recorded" in outcome.stderr


SLOW = f"""
import resource
from cutrace.collect.library import collector
inject.writes_are_slow(500_000)
fakegpu.init()
launch(20_000)
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
launched, stats = 20_000, collector().stats
while not stats().records_discarded or launched < int(sys.argv[1]):
    launch(100)
    launched += 100
{UNTIL_THERE_IS_ROOM}
fakegpu.synchronize()
growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
print(json.dumps([launched, growth]))
"""


def test_a_writer_slower_than_the_program_holds_nobody_up(measure: Measure) -> None:
    """Launches while the memory is full, so that records are lost. ``CUTRACE_LONG`` is the number
    of launches in units of 10,000."""
    outcome = measure(SLOW, 10_000 * int(os.environ.get("CUTRACE_LONG", 10)), options=["--max-memory", "8MiB"])
    assert outcome.status == 0
    launched, growth = json.loads(outcome.stdout)
    assert growth < 16 << 10, "KiB"
    assert outcome.losses["memory_limit"] > 0
    accounted(outcome, launched)
