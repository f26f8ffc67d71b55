"""Python stacks of the calls of PyTorch programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Record = Callable[..., Any]
Needs = Callable[..., None]
PROGRAM = Path(__file__).parent / "programs" / "stacked.py"
AGREE = Path(__file__).parents[2] / "benchmarks" / "stacks_agree.py"


def stack_of(trace: Any, number: int) -> list[list[Any]]:
    stacks = trace.python_stacks
    frames = [stacks.frame(frame) for frame in stacks.frames(number)]
    return [[frame.file, frame.function, frame.line] for frame in frames]


def names_of(trace: Any, calls: np.ndarray) -> list[str]:
    return list(trace.strings.take(trace.functions["name"][calls["function"]]))


def test_launches_have_the_stacks_that_the_program_sees(record: Record, needs: Needs) -> None:
    """In eager code, generators, exec, threads, autograd's Python functions and hooks."""
    needs("torch")
    recorded = record([sys.executable, PROGRAM], "--stacks", "launch")
    recorded.assert_lossless()
    trace = recorded.trace
    assert "calls have no Python stack, because their threads run no Python code" in recorded.stderr, (
        "autograd's threads"
    )
    calls = np.sort(trace.api_calls, order="start")
    numbers = trace.python_stacks.of_rows(calls)
    own: dict[str, list[Any]] = {}
    for call, number in zip(calls, numbers.tolist(), strict=True):
        stack = stack_of(trace, number)
        # PyTorch's own launches come from lines of the same files without a call of here().
        if stack and stack in recorded.report["said"].get(str(call["thread"]), ()):
            own.setdefault(str(call["thread"]), []).append(stack)
    assert own == recorded.report["said"]


def test_waits_have_the_line_that_waited(record: Record, needs: Needs) -> None:
    needs("torch")
    recorded = record([sys.executable, PROGRAM], "--stacks", "sync")
    recorded.assert_lossless()
    trace = recorded.trace
    calls = np.sort(trace.api_calls, order="start")
    numbers = trace.python_stacks.of_rows(calls)
    with_stack = names_of(trace, calls[numbers != 0])
    assert all("Synchronize" in name or "Memcpy" in name for name in with_stack)
    lines = [stack_of(trace, number)[-1] for number in numbers[numbers != 0].tolist()]
    waits = [line for file, _, line in lines if file == str(PROGRAM) and line in recorded.report["waited"]]
    assert waits == recorded.report["waited"]


def test_allocations_and_copies_have_stacks(record: Record, needs: Needs) -> None:
    needs("torch")
    recorded = record([sys.executable, PROGRAM], "--stacks", "alloc,copy")
    recorded.assert_lossless()
    trace = recorded.trace
    numbers = trace.python_stacks.of_rows(trace.memcpys)
    assert np.count_nonzero(numbers) > 0
    calls = np.sort(trace.api_calls, order="start")
    allocating = np.array([name.startswith("cudaMalloc") for name in names_of(trace, calls)])
    main_thread = int(next(iter(recorded.report["said"])))
    of_main = calls[allocating & (calls["thread"] == main_thread)]
    assert len(of_main)
    assert np.all(trace.python_stacks.of_rows(of_main) != 0)


@pytest.mark.parametrize("captures", [20_000])
def test_captures_agree_with_python(captures: int) -> None:
    """A smaller run of benchmarks/stacks_agree.py, which makes a million captures."""
    done = subprocess.run([sys.executable, AGREE, "--captures", str(captures)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
