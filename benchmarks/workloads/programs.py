"""Builds and launches the programs that the overhead benchmark times."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NATIVE = HERE.parent / "native"


class Failed(Exception):
    """A program failed. The message has the end of its output."""


class Programs:
    """The native programs, which are built into a folder."""

    def __init__(self, folder: Path, arch: str) -> None:
        self.library = folder / "liblaunch_loop.so"
        self.launch_main = folder / "launch_main"
        self.null_collector = folder / "libcutrace_null.so"
        self.allocation_main = folder / "allocation_main"
        self._folder, self._arch = folder, arch

    def build(self) -> None:
        """Compile everything. Raises :class:`Failed` with the compiler's output."""
        self._folder.mkdir(parents=True, exist_ok=True)
        shared = ["-Xcompiler", "-fPIC", "-shared"]
        std = ["-O2", "-std=c++20"]
        beside = ["-L", self._folder, "-llaunch_loop", "-Xlinker", "-rpath=$ORIGIN"]
        _compile(["nvcc", *std, f"-arch={self._arch}", *shared, "-o", self.library, NATIVE / "launch_loop.cu"])
        _compile(["nvcc", *std, "-o", self.launch_main, NATIVE / "launch_main.cpp", *beside])
        _compile(["nvcc", *std, f"-arch={self._arch}", "-o", self.allocation_main, NATIVE / "allocation_main.cu"])
        includes = _headers()
        _compile(["g++", *std, "-fPIC", "-shared", *includes, "-o", self.null_collector, NATIVE / "null_collector.cpp",
                  "-ldl", "-lpthread"])  # fmt: skip


def build_loops(folder: Path, arch: str) -> None:
    """Compile the loops that soak.py calls, as libraries in ``folder``. Raises :class:`Failed`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("launch_loop", "graph_loop"):
        _compile(["nvcc", "-O2", "-std=c++20", f"-arch={arch}", "-Xcompiler", "-fPIC", "-shared",
                  "-o", folder / f"lib{name}.so", NATIVE / f"{name}.cu"])  # fmt: skip


def build_late_start(folder: Path, arch: str, *, fake: bool) -> None:
    """Compile the parts of late_start.py into ``folder``. With ``fake``, the parts that need nvcc are left out."""
    if not fake:
        _compile(["nvcc", "-O2", "-std=c++20", f"-arch={arch}", "-Xcompiler", "-fPIC", "-shared",
                  "-o", folder / "liblate_start_calls.so", NATIVE / "late_start_calls.cu"])  # fmt: skip
    _compile(["g++", "-O2", "-std=c++20", "-fPIC", "-shared", *_headers(), "-o", folder / "liblate_start.so",
              NATIVE / "late_start.cpp", "-ldl", "-lpthread"])  # fmt: skip


def build_whole_graphs(folder: Path, arch: str) -> Path:
    """Compile the program of whole_graphs.py. Returns its path. Raises :class:`Failed`."""
    program = folder / "whole_graphs"
    _compile(["nvcc", "-O2", "-std=c++20", f"-arch={arch}", *_headers(), "-o", program, NATIVE / "whole_graphs.cu",
              "-lcupti"])  # fmt: skip
    return program


def build_endings(folder: Path) -> Path:
    """Compile the library that endings.py's programs use. Returns its path. Raises :class:`Failed`."""
    library = folder / "libendings_work.so"
    _compile(["g++", "-O2", "-std=c++20", "-fPIC", "-shared", *_headers(), "-o", library,
              NATIVE / "endings_work.cpp", "-ldl", "-lpthread"])  # fmt: skip
    return library


def _headers() -> list[str]:
    finder = NATIVE.parents[1] / "cmake" / "find_headers.py"
    found = subprocess.run([sys.executable, finder], capture_output=True, text=True)
    if found.returncode:
        raise Failed(found.stderr)
    return [f"-I{folder}" for folder in found.stdout.strip().split(";")]


def _compile(command: Sequence[str | Path]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def boottime() -> int:
    """The time of the clock that captures use (ns)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def run_native(command: Sequence[str | Path], environment: dict[str, str], timeout: float) -> Iterator[dict[str, Any]]:
    """Run a program to its end. Yields the JSON lines that it printed, then ``{"max_rss", "ended_boottime_ns"}``.

    ``max_rss`` is the largest peak memory of a process of the run (bytes). Raises :class:`Failed` when the program
    fails or takes longer than ``timeout`` seconds.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(timeout, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    ended = boottime()
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"{Path(command[0]).name} ended with {process.returncode}:\n{output[-2000:]}")
    if "null collector: not recording" in output:
        raise Failed(output[-2000:])
    yield from _json_lines(output.splitlines())
    yield {"max_rss": usage.ru_maxrss * 1024, "ended_boottime_ns": ended}


def _json_lines(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)


class TorchServer:
    """The process of server.py. It is restarted after a child had to be killed."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.versions: dict[str, str] = {}

    def measure(self, request: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
        """Return the answer of a child of the server. Raises :class:`Failed` when the child failed or took too long."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answers: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout
        while not answers or "status" not in answers[-1]:
            answers.append(self._answer(deadline))
        if answers[-1]["status"]:
            raise Failed(f"{request['tool']} in PyTorch ended with {answers[-1]['status']}; see {self._log}")
        return answers

    def close(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    [sys.executable, HERE / "server.py"],
                    # With this, PyTorch counts devices without initialising CUDA, so that the process can fork.
                    env={**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            self._lines: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=_pump, args=(self._process, self._lines), daemon=True).start()
            self.versions = self._answer(time.monotonic() + 120)["versions"]
        return self._process

    def _answer(self, deadline: float) -> dict[str, Any]:
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self.close()
                raise Failed(f"the PyTorch measurement ended or took too long; see {self._log}")
            if line.startswith("{"):
                return dict(json.loads(line))


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
