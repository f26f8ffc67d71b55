"""Fixtures of the GPU tests: a GPU, the programs of tests/data/make, and recordings of them.

Every program runs in a separate process with a time limit, so that a hang is a failure and does not stop the run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace
from cutrace._native import demangle

MAKE = Path(__file__).parents[1] / "data" / "make"
PROGRAMS = Path(__file__).parent / "programs"
CUTRACE = (sys.executable, "-c", "import sys; from cutrace.cli import main; sys.exit(main())")
LIMIT = 120

#: Modules with programs that count hardware metrics. A GPU lends its counters to one process at a time.
COUNTING = {
    "test_counters",
    "test_instruction_lines",
    "test_nvtx_ranges",
    "test_pc_sampling",
    "test_profile",
    "test_rules",
    "test_sampling",
}

_PROBE = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("the NVIDIA driver is not installed (no libcuda.so.1)")
status, count = cuda.cuInit(0), ctypes.c_int()
if status or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    sys.exit(f"no usable GPU (cuInit gave {status}, {count.value} devices)")
"""


@cache
def why_no_gpu() -> str:
    """The reason why GPU tests cannot run, "" if they can. A separate process tries CUDA, so that this process stays
    free of it."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60)
    return probe.stderr.strip() if probe.returncode else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if item.path.stem in COUNTING:
                item.add_marker(pytest.mark.counters)


@pytest.fixture(scope="session", autouse=True)  # runs before module fixtures, which need a GPU, too
def _needs_gpu() -> None:
    reason = why_no_gpu()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def needs() -> Callable[..., None]:
    """Skip a test unless all these Python modules are installed."""

    def check(*modules: str) -> None:
        for module in modules:
            try:
                found = importlib.util.find_spec(module) is not None
            except ImportError:
                found = False
            if not found:
                pytest.skip(f"{module} is not installed")

    return check


def simple_name(mangled: str) -> str:
    """The name of a kernel without namespaces, template arguments and parameters."""
    name = demangle(mangled).replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name)[0].split("::")[-1].split(" ")[-1]


COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD"}


@dataclass
class Recorded:
    """A recorded program: its exit status, its output and its capture."""

    path: Path
    status: int
    stdout: str
    stderr: str

    @cached_property
    def trace(self) -> cutrace.Trace:
        assert self.path.exists(), f"no capture; status {self.status}, {self.stderr}"
        return cutrace.load(self.path)

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The JSON lines of the program's output, which describe its work."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]

    @property
    def report(self) -> dict[str, Any]:
        assert self.status == 0, f"status {self.status}: {self.stderr}"
        return self.reports[-1]

    def kernel_names(self, kernels: np.ndarray | None = None) -> np.ndarray:
        """The simple names of kernels, by default of all kernels in the capture."""
        rows = self.trace.kernels if kernels is None else kernels
        full = self.trace.strings.take(self.trace.launches["name"][rows["launch"]])
        return np.array([simple_name(name) for name in full], object)

    def kernel_counts(self, kernels: np.ndarray | None = None) -> Counter[str]:
        return Counter(self.kernel_names(kernels).tolist())

    def copies(self) -> dict[str, list[int]]:
        """The number and the bytes of copies by kind."""
        rows = self.trace.memcpys
        kinds = {int(kind): rows[rows["kind"] == kind] for kind in np.unique(rows["kind"])}
        return {COPY_KINDS.get(kind, f"kind {kind}"): [len(of), int(of["bytes"].sum())] for kind, of in kinds.items()}

    def launching_calls(self, work: np.ndarray) -> np.ndarray:
        """For each row of GPU work, return the API call that launched it. Fails if a row has none.

        Driver calls inside a runtime call share its correlation id; the outermost call is returned.
        """
        calls = np.sort(self.trace.api_calls, order=["process", "correlation", "start"])
        key, wanted = (
            rows["process"].astype(np.uint64) << np.uint64(32) | rows["correlation"] for rows in (calls, work)
        )
        assert len(calls), "there are no API calls"
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        missing = np.count_nonzero(key[at] != wanted)
        assert not missing, f"{missing} of {len(work)} rows have no API call"
        return calls[at]

    def call_counts(self, calls: np.ndarray | None = None) -> Counter[str]:
        """The number of API calls by name, by default of all calls in the capture."""
        rows = self.trace.api_calls if calls is None else calls
        return Counter(self.trace.strings.take(self.trace.functions["name"][rows["function"]]).tolist())

    def assert_lossless(self) -> None:
        quality = self.trace.quality
        assert quality.lossless, list(quality.sentences())
        assert not quality.incomplete


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The folder with the Python programs of tests/data/make."""
    return MAKE / "programs"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled programs of tests/data/make and of the folder ``programs`` here."""
    if why_no_gpu():
        pytest.skip(why_no_gpu())
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on PATH: the test programs cannot be compiled")
    folder = tmp_path_factory.mktemp("programs")
    built = subprocess.run([MAKE / "build.sh", folder], capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr
    options = ["-O2", "-std=c++17", f"-arch={os.environ.get('CUDA_ARCH', 'native')}", "-I", MAKE / "programs"]
    for source in PROGRAMS.glob("*.cu"):
        more = ["-rdc=true", "-lcudadevrt", "-lcuda"] if source.stem == "rare" else []
        command = ["nvcc", *options, "-o", folder / source.stem, source, *more]
        built = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert built.returncode == 0, built.stdout + built.stderr
    return folder


Record = Callable[..., Recorded]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """``record(command, *options, limit=seconds, interact=function)``: run a command under `cutrace record`.

    ``interact`` gets the running process, with a pipe as its output, before the wait for its end.
    Processes that remain after the limit or the test are killed.
    """
    started: list[subprocess.Popen[str]] = []

    def run(
        command: Sequence[str | Path],
        *options: str,
        limit: float = LIMIT,
        interact: Callable[[subprocess.Popen[str]], str] | None = None,
        name: str = "run.bin",
    ) -> Recorded:
        path = tmp_path / name
        words: Iterable[str | Path] = (*CUTRACE, "record", "-o", path, *options, "--", *command)
        with (tmp_path / "stderr").open("w+") as stderr:
            process = subprocess.Popen(
                [str(word) for word in words],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                cwd=tmp_path,
            )
            started.append(process)
            said = interact(process) if interact else ""
            try:
                out, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                stderr.seek(0)
                pytest.fail(f"still running after {limit} s: {command}\n{stderr.read()[-2000:]}")
            stderr.seek(0)
            return Recorded(path, process.returncode, said + out, stderr.read())

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Recorded]:
    """``python(source)``: run Python source that records itself into ``run.bin`` in its working folder."""

    def run(source: str, limit: float = LIMIT) -> Recorded:
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, timeout=limit, cwd=tmp_path
        )
        return Recorded(tmp_path / "run.bin", done.returncode, done.stdout, done.stderr)

    return run
