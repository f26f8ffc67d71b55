"""Machine code of kernels on a GPU: its properties agree with the driver and with the launches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace

Record = Callable[..., Any]
Needs = Callable[..., None]

PROGRAM = Path(__file__).parent / "programs" / "coded.py"
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def twice(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * 2)

x = torch.zeros(1 << 16, device="cuda")
for _ in range(3):
    twice[(64,)](x, BLOCK=1024)
    twice[(128,)](x, BLOCK=512)
torch.cuda.synchronize()
"""
#: The smallest number of registers of a launch, for any compiler.
LEAST_REGISTERS = 16


def launches(recorded: Any, name: str = "own_") -> np.ndarray:
    """The launch configurations of the kernels with names that start with ``name``, in the order of the kernels."""
    trace = recorded.trace
    kernels = trace.kernels[np.argsort(trace.kernels["start"], kind="stable")]
    names = trace.strings.take(trace.launches["name"][kernels["launch"]])
    own = np.array([str(text).startswith(name) for text in names], bool)
    rows: np.ndarray = trace.launches[kernels["launch"][own]]
    return rows


def codes(recorded: Any) -> dict[int, np.void]:
    return {int(row["code"]): row for row in recorded.trace.kernel_codes}


def hashes(recorded: Any) -> dict[str, int]:
    """The hash of each source of the program."""
    told = recorded.report["launched"]
    return {launch["source"]: int(row["code"]) for launch, row in zip(told, launches(recorded), strict=True)}


@pytest.mark.parametrize("options", [(), ("--unload",)], ids=["kept", "unloaded"])
def test_launches_have_the_code_of_their_function(record: Record, needs: Needs, options: tuple[str, ...]) -> None:
    needs("cuda.bindings")
    recorded = record([sys.executable, PROGRAM, *options], "--code")
    told, rows, known = recorded.report["launched"], launches(recorded), codes(recorded)
    assert len(told) == len(rows)
    for launch, row in zip(told, rows, strict=True):
        assert row["code"], f"the code of {launch} is not known"
        code = known[int(row["code"])]
        assert recorded.trace.strings[int(code["name"])] == launch["name"]
        assert max(int(code["registers"]), LEAST_REGISTERS) == max(launch["registers"], LEAST_REGISTERS), launch
        assert max(int(code["registers"]), LEAST_REGISTERS) == int(row["registers"]), launch
        assert code["static_shared"] == launch["shared"] == row["static_shared"], launch
        assert code["local_per_thread"] == launch["local"], launch
    found = hashes(recorded)
    assert found["wide"] == found["wide again"]
    assert len(set(found.values())) == len(found) - 1
    assert not len(recorded.trace.losses), list(recorded.trace.quality.sentences())
    assert not recorded.trace.notes


def test_hashes_are_equal_over_runs_and_differ_for_another_kernel(record: Record, needs: Needs) -> None:
    needs("cuda.bindings")
    first = hashes(record([sys.executable, PROGRAM], "--code", name="first.bin"))
    again = hashes(record([sys.executable, PROGRAM], "--code", name="again.bin"))
    changed = record([sys.executable, PROGRAM, "--changed"], "--code", name="changed.bin")
    assert first == again
    assert {source for source, code in hashes(changed).items() if code != first[source]} == {"scale"}
    comparison = cutrace.diff(changed.path.with_name("first.bin"), changed.path)
    assert "other code" in str(comparison)


def test_kernels_of_the_runtime_have_code(record: Record, programs: Path) -> None:
    recorded = record([programs / "streams"], "--code")
    known = codes(recorded)
    rows = recorded.trace.launches[np.unique(recorded.trace.kernels["launch"])]
    assert len(rows)
    for row in rows:
        code = known[int(row["code"])]
        assert code["name"] == row["name"]
        assert max(int(code["registers"]), LEAST_REGISTERS) == int(row["registers"])
        assert code["static_shared"] == row["static_shared"]
    recorded.assert_lossless()


def test_specialisations_of_a_triton_kernel_are_told_apart(record: Record, needs: Needs, tmp_path: Path) -> None:
    needs("torch", "triton")
    program = tmp_path / "program.py"
    program.write_text(TRITON)
    recorded = record([sys.executable, program], "--code")
    known = codes(recorded)
    rows = launches(recorded, "twice")
    assert len(rows) == 6
    by_grid = {int(row["grid_x"]): int(row["code"]) for row in rows}
    assert set(by_grid) == {64, 128}
    assert len(set(by_grid.values())) == 2
    for row in rows:
        code = known[int(row["code"])]
        assert max(int(code["registers"]), LEAST_REGISTERS) == int(row["registers"])
        assert code["static_shared"] == row["static_shared"]


def test_a_recording_in_mid_program_knows_functions_that_are_found_in_it(
    python: Callable[..., Any], needs: Needs
) -> None:
    needs("cuda.bindings", "cupy")
    recorded = python(
        "import cupy, cutrace\n"
        "before = cupy.RawKernel('extern \"C\" __global__ void own_before() {}', 'own_before')\n"
        "before((1,), (32,), ())\n"
        "with cutrace.record('run.bin', code=True):\n"
        "    within = cupy.RawKernel('extern \"C\" __global__ void own_within(int* x) { *x = 1; }', 'own_within')\n"
        "    before((1,), (32,), ())\n"
        "    within((1,), (1,), (cupy.zeros(1, cupy.int32),))\n"
        "    cupy.cuda.Device().synchronize()\n"
    )
    assert recorded.status == 0, recorded.stderr
    texts = {name: kernel.text for name, kernel in recorded.trace.codes.by_kernel.items()}
    assert texts["own_before"] == "unknown"
    assert len(texts["own_within"]) == 16
    assert any("modules that were loaded during the recording" in note for note in recorded.trace.notes)
