"""`cutrace record --code` on the fake GPU, and the outputs that show the code."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import cutrace
from captures import DATA
from cutrace.collect.options import Options
from cutrace.errors import CutraceError
from support import cutrace as command
from support import refused
from support.fakedriver import FakeDriver

CUBINS = DATA / "cubins"
PROGRAM = """
import sys
from pathlib import Path
import fakegpu

cubin = Path(sys.argv[1]).read_bytes()
fakegpu.load_module(cubin)
for _ in range(3):
    fakegpu.launch("scale", grid=8)
fakegpu.launch("elsewhere")  # of no module that CUPTI told
fakegpu.synchronize()
"""
IN_PROCESS = """
import sys
from pathlib import Path
import cutrace, fakegpu

with cutrace.record("run.bin", code=True):
    fakegpu.load_module(Path(sys.argv[1]).read_bytes())
    fakegpu.launch("scale")
    fakegpu.synchronize()
"""


def run(driver: FakeDriver, folder, *words: object) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, *map(str, words))
    return subprocess.run(words, cwd=folder, env=driver.environment(), capture_output=True, text=True, timeout=60)


def record(driver: FakeDriver, folder, cubin, *options: str) -> None:
    program = [sys.executable, "-c", PROGRAM, cubin]
    done = run(driver, folder, "-m", "cutrace", "record", *options, "--", *program)
    assert done.returncode == 0, done.stderr


def test_launched_kernels_have_the_properties_of_their_code(fake_driver, tmp_path):
    record(fake_driver, tmp_path, CUBINS / "sm_100.cubin", "--code")
    with cutrace.load(tmp_path / "run.bin") as trace:
        by_kernel = trace.codes.by_kernel
        assert set(by_kernel) == {"scale", "elsewhere"}
        (code,) = by_kernel["scale"].codes
        assert (code.registers, code.static_shared, code.local, code.size, code.architecture) == (10, 128, 0, 512, 100)
        assert code.text == "44dc9ac2e148c399"
        assert by_kernel["scale"].text == code.text
        assert by_kernel["elsewhere"].text == "unknown"
        launch = trace.launches[trace.kernels["launch"]]
        assert sorted(launch["code"].tolist()) == [0, code.hash, code.hash, code.hash]
        assert trace.processes[0].info["options"]["code"] == "1"
        assert trace.quality.losses == ()


def test_without_the_option_there_is_no_code(fake_driver, tmp_path):
    record(fake_driver, tmp_path, CUBINS / "sm_100.cubin")
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.codes is None
        assert not trace.launches["code"].any()


def test_a_recording_inside_the_program_says_what_it_does_not_know(fake_driver, tmp_path):
    done = run(fake_driver, tmp_path, "-c", IN_PROCESS, CUBINS / "sm_100.cubin")
    assert done.returncode == 0, done.stderr
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.codes.by_kernel["scale"].text == "unknown"
        assert any("modules that were loaded during the recording" in note for note in trace.notes)


def test_info_and_traces_show_the_code(fake_driver, tmp_path):
    record(fake_driver, tmp_path, CUBINS / "sm_100.cubin", "--code")
    told = command("info", tmp_path / "run.bin").stdout
    assert "Machine code: 1 code of 2 kernel names, 1 with launches whose code is not known" in told
    codes = json.loads(command("info", "--format", "json", tmp_path / "run.bin").stdout)["codes"]
    assert codes["scale"] == {
        "codes": [
            {
                "hash": "44dc9ac2e148c399", "registers": 10, "static_shared": 128, "local": 0, "size": 512,
                "architecture": 100,
            }
        ],
        "candidates": [],
        "unknown": False,
    }  # fmt: skip
    command("convert", tmp_path / "run.bin", "-o", tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    hashes = {event["name"]: event["args"]["code hash"] for event in events if event.get("cat") == "kernel"}
    assert hashes == {"scale": "44dc9ac2e148c399", "elsewhere": "unknown"}


def test_diff_names_kernels_with_other_code(fake_driver, tmp_path):
    before, after = tmp_path / "before.bin", tmp_path / "after.bin"
    record(fake_driver, tmp_path, CUBINS / "sm_80.cubin", "--code", "-o", str(before))
    record(fake_driver, tmp_path, CUBINS / "sm_100.cubin", "--code", "-o", str(after))
    done = command("diff", before, after)
    assert "other code, code bytes 384 -> 512" in done.stdout
    assert done.returncode == 0
    assert command("diff", before, after, "--fail-on", "code").returncode == 1
    assert "other code" not in command("diff", before, before).stdout


def test_code_without_kernels_is_refused():
    with pytest.raises(CutraceError, match="record the kind of activity 'kernel' too"):
        Options.of(code=True, kinds="memcpy")
    done = command("record", "--code", "--kinds", "nvtx", "--", "true")
    refused(done, "machine code needs recorded kernels")
    assert "code=1" in Options.of(code=True).text(output="run.bin").split("\n")
