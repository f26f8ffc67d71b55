"""A recording that is cut into several files, on the fake GPU. Each file loads, and together they are complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cutrace
from cutrace.collect.library import collector
from cutrace.errors import CutraceError
from cutrace.trace import Quality
from support import cutrace as command
from support.fakedriver import FakeDriver

PRELUDE = """
import os, sys, time
import cutrace, fakegpu
from cutrace.collect.library import collector
armed = cutrace.arm(sys.argv[1] + "/run.bin")
fakegpu.init()
native = collector()
def cut(name):
    native.synchronize()
    return native.cut(os.path.join(sys.argv[1], name))
"""


def run(driver: FakeDriver, program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, str(folder)],
        env=driver.environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def kernel_names(trace: cutrace.Trace) -> list[str]:
    rows = np.sort(trace.kernels, order="start")
    return [trace.strings[int(name)] for name in trace.launches[rows["launch"]]["name"]]


@pytest.fixture(scope="module")
def parts(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of three cuts and the rest. Each has kernels ``common`` and one kernel with a separate name."""
    folder = tmp_path_factory.mktemp("cuts")
    program = """
for i in range(4):
    fakegpu.launch("common")
    fakegpu.launch(f"own{i}")
    fakegpu.synchronize()
    if i < 3:
        assert cut(f"{i}.bin")
assert armed.stop()
"""
    run(fake_driver, program, folder)
    return [*(folder / f"{i}.bin" for i in range(3)), folder / "run.bin"]


def test_each_part_is_a_capture_without_a_fault(parts: list[Path]) -> None:
    for i, part in enumerate(parts):
        trace = cutrace.load(part)
        assert kernel_names(trace) == ["common", f"own{i}"]
        assert trace.quality == Quality(unknown={}, losses=(), damage=(), incomplete=(), notes=())
        assert trace.devices.size == trace.contexts.size == trace.streams.size == 1
        assert trace.strings[int(trace.devices[0]["name"])] == "NVIDIA FAKE"
        assert {trace.strings[int(name)] for name in trace.functions[trace.api_calls["function"]]["name"]} == {
            "cudaLaunchKernel",
            "cudaDeviceSynchronize",
        }


def test_parts_are_one_process(parts: list[Path]) -> None:
    processes = [cutrace.load(part).processes[0] for part in parts]
    assert len({(p.pid, p.info["started"]) for p in processes}) == 1
    assert all(p.complete for p in processes)


@pytest.mark.parametrize("chosen", [(0, 1, 2, 3), (1, 3), (3, 1, 0)])
def test_parts_can_be_joined(parts: list[Path], tmp_path: Path, chosen: tuple[int, ...]) -> None:
    joined = tmp_path / "joined.bin"
    joined.write_bytes(b"".join(parts[i].read_bytes() for i in chosen))
    trace = cutrace.load(joined)
    assert kernel_names(trace) == [name for i in sorted(chosen) for name in ("common", f"own{i}")]
    assert len(trace.processes) == 1
    assert trace.damage == ()
    assert command("info", joined).returncode == 0
    assert command("convert", joined, "-o", tmp_path / "joined.pftrace").returncode == 0


def test_a_block_that_is_missing_inside_a_part_is_damage(parts: list[Path], tmp_path: Path) -> None:
    from cutrace.runbin import Reader

    with Reader(parts[1]) as reader:
        first, second = reader.blocks[3], reader.blocks[4]
    data = parts[1].read_bytes()
    torn = tmp_path / "torn.bin"
    torn.write_bytes(data[: first.offset] + data[second.offset :])
    (damage,) = cutrace.load(torn).damage
    assert "process 0 lacks 1 block" in str(damage)


def test_a_joined_recording_is_complete_when_its_last_part_is(parts: list[Path], tmp_path: Path) -> None:
    from cutrace.runbin import Reader

    with Reader(parts[1]) as reader:
        end = reader.blocks[-1].offset
    killed = tmp_path / "killed.bin"
    killed.write_bytes(parts[0].read_bytes() + parts[1].read_bytes()[:end])
    assert not cutrace.load(killed).processes[0].complete


def test_nothing_new_is_no_file(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
cutrace.mark("only a mark")
print(cut("a.bin"), os.path.exists(sys.argv[1] + "/a.bin"))
fakegpu.memset(64)
print(cut("a.bin"), os.path.exists(sys.argv[1] + "/a.bin"))
"""
    assert run(fake_driver, program, tmp_path).split() == ["False", "False", "True", "True"]
    assert cutrace.load(tmp_path / "a.bin").nvtx_marks.size == 1


def test_a_path_that_cannot_be_written_is_an_error_and_the_recording_goes_on(
    fake_driver: FakeDriver, tmp_path: Path
) -> None:
    program = """
fakegpu.launch("k")
try:
    cut("no/such/folder/a.bin")
except cutrace.CutraceError as error:
    print(error)
assert cut("a.bin")
"""
    assert "no/such/folder/a.bin" in run(fake_driver, program, tmp_path)
    assert kernel_names(cutrace.load(tmp_path / "a.bin")) == ["k"]


def test_notes_say_who_holds_cupti(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
armed.stop()
print(repr(native.notes()))
fakegpu.hold_cupti()
native.start(f"output={sys.argv[1]}/held.bin")
print(native.notes())
native.synchronize()
native.stop()
print(native.notes())
"""
    before, during, after = run(fake_driver, program, tmp_path).splitlines()
    assert before == "''"
    assert "another tool holds CUPTI" in during
    assert after == during


@pytest.mark.parametrize("recording", ["cutrace.record('held.bin').start()", "cutrace.arm('held.bin')"])
def test_a_recording_without_cupti_is_refused_with_its_reason(
    fake_driver: FakeDriver, tmp_path: Path, recording: str
) -> None:
    program = f"""
armed.stop()
os.chdir(sys.argv[1])
fakegpu.hold_cupti()
try:
    {recording}
except cutrace.CutraceError as error:
    print(error)
assert "CUTRACE_OPTIONS" not in os.environ
"""
    assert "another tool holds CUPTI" in run(fake_driver, program, tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if "held" in path.name]


def test_without_a_recording() -> None:
    native = collector()
    assert not native.running
    native.synchronize()
    with pytest.raises(CutraceError, match="no recording is running"):
        native.cut("/tmp/nothing.bin")
