"""Programs that are recorded on the fake GPU while faults are injected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

import cutrace
from support import cutrace as run
from support.fakedriver import FakeDriver

PRELUDE = """
import ctypes, errno, json, os, signal, sys, threading, time
import cutrace, fakegpu, inject
def launch(count, name="k"):
    for _ in range(count):
        fakegpu.launch(name, duration_ns=1)
"""
#: The time limit of a program (s). No program of these tests takes longer, unless it hangs.
LIMIT = 60


@dataclass(frozen=True)
class Outcome:
    """The result of a program and its recording.

    :param status: the exit status of `cutrace record`: the status of the program, or 128 + n after signal n.
    """

    status: int
    stdout: str
    stderr: str
    path: Path

    @cached_property
    def trace(self) -> cutrace.Trace:
        return cutrace.load(self.path)

    @property
    def losses(self) -> Counter[str]:
        out: Counter[str] = Counter()
        for loss in self.trace.quality.losses:
            out[loss.reason] += loss.count
        return out

    def kernels(self) -> Counter[str]:
        """The number of kernels by name, including kernels without times."""
        launches = np.concatenate([self.trace.kernels["launch"], self.trace.unknown("kernels")["launch"]])
        return Counter(self.trace.strings.take(self.trace.launches["name"][launches]).tolist())

    @property
    def info(self) -> str:
        """The output of ``cutrace info`` for the capture."""
        return run("info", self.path).stdout


Measure = Callable[..., Outcome]


@pytest.fixture
def environment(fake_driver: FakeDriver) -> dict[str, str]:
    """The environment of a program on the fake GPU, with fault injection."""
    env = fake_driver.environment()
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), env["PYTHONPATH"]])
    env["LD_PRELOAD"] = str(fake_driver.libraries / "libfaults.so")
    env.pop("ASAN_OPTIONS", None)
    return env


@pytest.fixture
def measure(environment: dict[str, str], tmp_path: Path) -> Measure:
    """Run a Python program, or a command, under ``cutrace record``, in ``tmp_path``.

    ``within`` is a command that runs ``cutrace record``. Without ``recorder``, the program runs without cutrace.
    """

    def measured(
        program: str | Sequence[str | Path],
        *arguments: object,
        options: Sequence[str] = (),
        within: Sequence[str] = (),
        recorder: bool = True,
        output: str = "run.bin",
        **variables: str,
    ) -> Outcome:
        command = [sys.executable, "-c", PRELUDE + program] if isinstance(program, str) else [*map(str, program)]
        recording = [sys.executable, "-m", "cutrace", "record", "-o", output, *options, "--"] if recorder else []
        process = subprocess.Popen(
            [*within, *recording, *command, *map(str, arguments)],
            env=environment | variables, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=LIMIT + float(os.environ.get("CUTRACE_LONG", 0)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            pytest.fail(f"the program hangs\n{stdout}\n{stderr}")
        return Outcome(process.returncode, stdout, stderr, tmp_path / output)

    return measured
