"""Recordings that dump themselves, on the fake GPU: the contents, the times and the reasons of dumps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cutrace
from cutrace.collect.options import Options
from cutrace.errors import CutraceError
from cutrace.outputs import mode_of_new_files
from support import cutrace as run
from support.fakedriver import FakeDriver

PROGRAM = """
import os, sys, threading, time
import cutrace, fakegpu, nvtx
def steps(count, slow=(), name="step", each=0.001, pause=0.5):
    for i in range(count):
        with nvtx.annotate(name, payload=i):
            fakegpu.launch(f"k{i}")
            time.sleep(pause if i in slow else each)
    fakegpu.synchronize()
"""


def record(
    driver: FakeDriver, folder: Path, program: str, *options: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", *options, "--", sys.executable, "-c"]
    done = subprocess.run(
        [*command, PROGRAM + program], cwd=folder, env=driver.environment(), text=True, capture_output=True, timeout=60
    )
    assert done.returncode == status, done.stderr
    return done


def milliseconds(reason: str, beginning: str) -> float:
    """The time in a dump's reason, after ``beginning``. On a busy machine the time is longer than the program's
    request."""
    found = re.match(rf"{beginning}([\d.]+) (ms|s) ", reason)
    assert found is not None, reason
    return float(found[1]) * {"ms": 1, "s": 1000}[found[2]]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def numbers(capture: Path) -> list[int]:
    """The numbers of the steps in a capture. They are the payloads of the steps."""
    with cutrace.load(capture) as trace:
        assert trace.quality.damage == ()
        ranges = trace.nvtx_ranges
        steps = ranges[trace.strings.take(ranges["name"]) == "step"]
        return sorted(steps["payload"].astype(int).tolist())


def reasons(capture: Path) -> tuple[str, ...]:
    with cutrace.load(capture) as trace:
        return tuple(reason for process in trace.processes for reason in process.dumped_because)


def test_one_slow_step_of_many_is_dumped_with_its_neighbours(fake_driver: FakeDriver, tmp_path: Path) -> None:
    done = record(fake_driver, tmp_path, "steps(2000, slow=[600])", "--last", "2s", "--dump-when", "nvtx:step > 400ms")
    assert files(tmp_path) == ["run-1.bin", "run.bin"]
    dump = tmp_path / "run-1.bin"
    dumped = numbers(dump)
    assert set(range(590, 620)) < set(dumped)
    assert dumped[-1] < 1999, "it was written while the program ran"
    (reason,) = reasons(dump)
    assert milliseconds(reason, "step took ") >= 500
    assert reason.endswith("(nvtx:step > 400ms)")
    with cutrace.load(dump) as trace:
        (mark,) = trace.nvtx_marks
        assert trace.strings[int(mark["name"])] == f"dump: {reason}"
        slow = trace.nvtx_ranges[trace.nvtx_ranges["payload"] == 600]
        assert mark["time"] == slow["end"][0]
        assert mark["thread"] == slow["thread"][0]
    assert f"{dump} holds the newest rows: {reason}" in done.stderr
    assert f"Dumped because: {reason}" in run("info", dump).stdout
    assert reasons(tmp_path / "run.bin") == ()
    assert dump.stat().st_mode & 0o777 == mode_of_new_files(tmp_path)


def test_the_median_finds_what_no_fixed_time_would(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = "steps(60, each=0.01, slow=[50])"
    record(fake_driver, tmp_path, program, "--last", "10s", "--dump-when", "nvtx:st* > 30.5x median")
    (reason,) = reasons(tmp_path / "run-1.bin")
    assert "the median is" in reason
    assert numbers(tmp_path / "run-1.bin") == list(range(60)), "the end of the program came first"


def test_idle_gpus_and_memory_are_seen(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.launch("a")
time.sleep(0.3)
fakegpu.launch("b")
held = [fakegpu.malloc(1 << 30) for _ in range(3)]
for address in held:
    fakegpu.free(address)
fakegpu.malloc(1 << 30, call="cudaMallocAsync")
"""
    options = ("--dump-when", "gpu idle > 200ms", "--dump-when", "memory > 2GiB", "--dump-when", "memory > 4GiB")
    record(fake_driver, tmp_path, program, "--last", "10s", *options)
    assert files(tmp_path) == ["run-1.bin", "run.bin"]
    memory, idle = sorted(reasons(tmp_path / "run-1.bin"))
    assert memory == "GPU 0 had 3.0 GiB in use (memory > 2GiB)"
    assert milliseconds(idle, "GPU 0 was idle for ") >= 300


@pytest.mark.parametrize("held", [True, False])
def test_a_gpu_at_work_is_not_idle(fake_driver: FakeDriver, tmp_path: Path, held: bool) -> None:
    """A kernel of one stream runs during the pauses of another stream. The records of the other stream are delivered
    first. The call of the kernel is known, or is in a buffer that CUPTI has not delivered."""
    program = f"""
fakegpu.launch("before")
fakegpu.synchronize()
fakegpu.hold_buffer({held})
fakegpu.launch("long", stream=8, duration_ns=2_000_000_000)
def shorts():
    for _ in range(3):
        fakegpu.launch("short")
        time.sleep(0.4)
thread = threading.Thread(target=shorts)
thread.start()
thread.join()
fakegpu.synchronize()
fakegpu.hold_buffer(False)
fakegpu.launch("after")
"""
    record(fake_driver, tmp_path, program, "--last", "2s", "--dump-when", "gpu idle > 150ms")
    assert files(tmp_path) == ["run.bin"]


def test_launches_into_a_graph_have_no_work_to_wait_for(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.launch("a")
fakegpu.begin_capture(8)
fakegpu.launch("captured", stream=8)
fakegpu.end_capture(8)
time.sleep(0.3)
fakegpu.launch("b")
"""
    done = record(fake_driver, tmp_path, program, "--last", "10s", "--dump-when", "gpu idle > 200ms")
    (reason,) = reasons(tmp_path / "run-1.bin")
    assert milliseconds(reason, "GPU 0 was idle for ") >= 300
    assert "was not reported" not in done.stderr


@pytest.mark.parametrize("kinds", ["default", "nvtx"])
def test_a_range_that_hangs_is_dumped_meanwhile(fake_driver: FakeDriver, tmp_path: Path, kinds: str) -> None:
    program = """
steps(20)
with nvtx.annotate("step", payload=77):
    while not os.path.exists("run-1.bin"):
        time.sleep(0.01)
"""
    record(
        fake_driver, tmp_path, program, "--last", "4s", "--kinds", kinds, "--dump-when", "nvtx:step > 300ms",
        "--dump-pause", "1ms",
    )  # fmt: skip
    assert files(tmp_path) == ["run-1.bin", "run.bin"], "its end is no second reason"
    (reason,) = reasons(tmp_path / "run-1.bin")
    assert reason.startswith("step has not ended after ")
    assert numbers(tmp_path / "run-1.bin") == list(range(20))
    with cutrace.load(tmp_path / "run-1.bin") as trace, cutrace.load(tmp_path / "run.bin") as whole:
        (mark,) = trace.nvtx_marks
        (hanging,) = whole.nvtx_ranges[whole.nvtx_ranges["payload"] == 77]
        assert hanging["start"] + 2_300_000_000 < mark["time"] < hanging["end"]
        assert mark["thread"] == hanging["thread"]


def test_caps_and_pauses_limit_the_dumps_and_are_told(fake_driver: FakeDriver, tmp_path: Path) -> None:
    options = ("--last", "200ms", "--dump-when", "nvtx:step > 5ms", "--dump-pause", "100ms", "--dump-limit", "2")
    done = record(fake_driver, tmp_path, "steps(100, each=0.01)", *options)
    assert files(tmp_path) == ["run-1.bin", "run-2.bin", "run.bin"]
    assert "since the dump before" in reasons(tmp_path / "run-2.bin")[0]
    assert "in the pause after a dump" in done.stderr
    assert "after its last dump" in done.stderr


def test_a_name_that_no_range_has_is_told(fake_driver: FakeDriver, tmp_path: Path) -> None:
    done = record(fake_driver, tmp_path, "steps(3)", "--last", "1s", "--dump-when", "nvtx:stpe > 1s")
    assert "no NVTX range was named 'stpe'" in done.stderr
    assert "names of ranges: step" in done.stderr
    assert files(tmp_path) == ["run.bin"]


def test_a_process_without_gpu_work_needs_no_ranges(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
if len(sys.argv) == 1:
    steps(3)
    import subprocess
    subprocess.run([sys.executable, "-c", "import fakegpu; fakegpu.init()"], check=True)
"""
    done = record(fake_driver, tmp_path, program, "--last", "1s", "--dump-when", "nvtx:step > 10s")
    assert "2 processes" in done.stderr
    assert "no NVTX range was named" not in done.stderr


def test_each_process_dumps_itself(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
steps(10)
if os.fork() == 0:
    with nvtx.annotate("step", payload=77):
        time.sleep(0.5)
    sys.exit()
os.wait()
"""
    done = record(fake_driver, tmp_path, program, "--last", "10s", "--dump-when", "nvtx:step > 400ms")
    assert files(tmp_path) == ["run-1.bin", "run.bin"], done.stderr
    assert numbers(tmp_path / "run-1.bin") == [77]


def test_python_asks_for_them_likewise(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
with cutrace.arm("armed.bin", last="10s", dump_when="nvtx:step > 400ms"):
    steps(10, slow=[5])
with cutrace.record("run.pftrace", last="10s", dump_when=["nvtx:step > 400ms"], dump_limit=1, dump_pause="1s"):
    steps(10, slow=[5])
"""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program], cwd=tmp_path, env=fake_driver.environment(), text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == ["armed-1.bin", "armed.bin", "run-1.bin", "run.pftrace"]
    for name in ("armed-1.bin", "run-1.bin"):
        assert numbers(tmp_path / name) == list(range(10))
        assert len(reasons(tmp_path / name)) == 1


def test_a_converted_dump_says_why_it_was_made(fake_driver: FakeDriver, tmp_path: Path) -> None:
    from pftrace import decode

    record(fake_driver, tmp_path, "steps(10, slow=[5])", "--last", "10s", "--dump-when", "nvtx:step > 400ms")
    run("convert", tmp_path / "run-1.bin", "-o", tmp_path / "run-1.pftrace")
    (reason,) = reasons(tmp_path / "run-1.bin")
    decoded = decode(tmp_path / "run-1.pftrace")
    assert decoded.attributes["cutrace.dumped_because.0"] == reason
    assert reasons(tmp_path / "run-1.pftrace") == (reason,)
    run("convert", "--redact", tmp_path / "run-1.bin", "-o", tmp_path / "redacted.bin")
    assert reasons(tmp_path / "redacted.bin") == (reason,)


def refused(advice: str, **options: Any) -> None:
    with pytest.raises(CutraceError, match=advice):
        Options.of(**{"last": "10s", **options})


def test_conditions_that_make_no_sense_are_refused() -> None:
    refused("such as `last='30s'`", dump_when="gpu idle > 1s", last=None)
    refused("needs a condition", dump_limit=3)
    refused("1 or more", dump_when="gpu idle > 1s", dump_limit=0)
    refused("pause between dumps", dump_when="gpu idle > 1s", dump_pause=1)
    refused("Did you mean gpu idle > 500ms", dump_when="gpu idel > 1s")
    refused("Did you mean nvtx:NAME > 1.5s", dump_when=["gpu idle > 1s", "nvtxx:step > 1s"])
    for unread in ("power > 700W", "nvtx:step > 5x", "gpu idle > 5 parsecs", "memory > 70GiBs"):
        refused(f"'{unread}' cannot be read. Write nvtx:NAME > 1.5s, nvtx:NAME > 3x median", dump_when=unread)
    refused("semicolons", dump_when="nvtx:a;b > 1s")
    refused("kind of activity 'nvtx'", dump_when="nvtx:step > 1s", nvtx=False)
    refused("kind of activity 'kernel'", dump_when="gpu idle > 1s", kinds="nvtx,memcpy")
    refused("kind of activity 'api'", dump_when="gpu idle > 1s", kinds="kernel")
    refused("kind of activity 'api'", dump_when="gpu idle > 1s", api="none")
    refused("kind of activity 'memory'", dump_when="memory > 1GiB", kinds="kernel")
    assert Options.of(last=1_000_000, dump_when=" memory > 1GiB ", kinds="memory").dump_when == ("memory > 1GiB",)


def test_the_collector_decides_what_can_be_read() -> None:
    for condition in ("nvtx: a > b > 2ms", "nvtx:x > 3.5 x  median", "nvtx:x > 30µs", "gpu \t idle>1s", "memory>1 gib"):
        assert Options.of(last="1s", dump_when=condition).dump_when == (condition,)
    for condition in ("nvtx:x > 0s", "nvtx:x > .5x median", "nvtx:x > 9000000h", "memory > 9000TiB"):
        refused("times are 1ns to a year, sizes up to 8000TiB", dump_when=condition)
