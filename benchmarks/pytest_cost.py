"""Measure the cost of the pytest plugin: unused, without a GPU, in tests with kernels, and with many parameters.

Prints one JSON object with medians over rounds in which the configurations take turns. ``--parts`` selects from:

``unused``      imports, ``pytest --version`` and a suite of empty tests
``launches``    tests that launch kernels, compared with a collector that discards everything (which needs g++ and the
                CUPTI headers). Needs a GPU, or ``--fake``, which uses the fake GPU of the tests
``parameters``  one test with 3,000 parameters: the size of its golden file, the cost of checking and updating, the time
                of failures of one cause as a multiple of a check, and the time that ``--cutrace`` adds to the start
                of pytest. Needs a GPU or ``--fake``, too
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads import options
from workloads.machine import facts
from workloads.programs import NATIVE, _compile, _headers

TESTS = Path(__file__).parents[1] / "tests"
PARTS = ("unused", "launches", "parameters")
#: Times each test of a suite, and launches kernels through the driver's C API.
CONFTEST = """
import json, os, time
import pytest

times = []

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    begin = time.perf_counter()
    result = yield
    times.append((time.perf_counter() - begin) * 1e3)
    return result

def pytest_sessionfinish():
    with open(os.environ["TIMES"], "w") as file:
        json.dump(times, file)
"""
LAUNCHES = """
import ctypes, os

if os.environ.get("FAKE"):
    import fakegpu

    def run():
        for _ in range({launches}):
            fakegpu.launch("k", duration_ns=100)
        fakegpu.synchronize()
else:
    PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry k() {{ ret; }}\\n"
    cuda = ctypes.CDLL("libcuda.so.1")

    def must(status):
        assert status == 0, status

    must(cuda.cuInit(0))
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    must(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"k"))

    def run():
        launch = cuda.cuLaunchKernel
        for _ in range({launches}):
            must(launch(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None))
        must(cuda.cuCtxSynchronize())

import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    run()
"""
#: Each test launches one kernel. The test with the parameter in CHANGED launches two; ``all`` stands for all tests.
PARAMETERS = """
import os
import pytest

if os.environ.get("FAKE"):
    from fakegpu import launch
else:
    import cupy

    kernels = {{}}

    def launch(name):
        if name not in kernels:
            kernels[name] = cupy.RawKernel('extern "C" __global__ void ' + name + '() {{}}', name)
        kernels[name]((1,), (1,), ())

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    launch("softmax_fwd")
    if os.environ.get("CHANGED") in (str(number), "all"):
        launch("softmax_fwd")
"""
#: Targets of the part ``parameters``.
TARGETS = {
    "bytes_a_test": 300,
    "changed_lines": 2,
    "check_ms": 1.5,
    "update_ms": 4.0,
    "failed_share": 2.0,
    "start_s": 0.1,
}
EMPTY = "import pytest\n\n@pytest.mark.parametrize('number', range({tests}))\ndef test_it(number):\n    pass\n"


class Suites:
    """Runs suites in a folder, each time in a new process."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {**os.environ, **environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self._times = folder / "times.json"

    def write(self, program: str) -> None:
        (self.folder / "conftest.py").write_text(CONFTEST)
        (self.folder / "test_it.py").write_text(program)

    def seconds(self, *arguments: str, status: int = 0, **environment: str) -> float:
        """Run pytest, which has to end with ``status``. Returns its time from start to end (s)."""
        begin = time.perf_counter()
        self._pytest(*arguments, status=status, **environment)
        return time.perf_counter() - begin

    def per_test(self, *arguments: str, **environment: str) -> float:
        """Return the median time of the tests of a session in ms, without the first test."""
        self._pytest(*arguments, **environment)
        return statistics.median(json.loads(self._times.read_text())[1:])

    def _pytest(self, *arguments: str, status: int = 0, **environment: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            env={**self._environment, "TIMES": str(self._times), **environment},
            capture_output=True,
            text=True,
        )
        if done.returncode != status:
            raise SystemExit(f"pytest {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def medians(rounds: int, configurations: dict[str, Callable[[], float]]) -> dict[str, Any]:
    """Return the median of each configuration. Each round runs each configuration once, and every other round in
    reverse order."""
    samples: dict[str, list[float]] = {name: [] for name in configurations}
    for number in range(rounds):
        for name in list(configurations)[:: -1 if number % 2 else 1]:
            samples[name].append(configurations[name]())
    return {name: round(statistics.median(values), 4) for name, values in samples.items()}


def import_cost() -> dict[str, Any]:
    """Return the time of the unused plugin's imports in microseconds, as measured by Python."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pytest", "-p", "pytest_cutrace.plugin", "--markers"],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = re.findall(r"import time:\s+(\d+) \|\s+\d+ \| +(\S+)", done.stderr)
    mine = {name: int(own) for own, name in lines if name.split(".")[0] in ("pytest_cutrace", "cutrace")}
    return {"modules": mine, "total_us": sum(mine.values())}


def main() -> None:
    parser = options.parser(__doc__, rounds=11, launches=1000)
    parser.add_argument("--gpu-rounds", type=int, default=5)
    parser.add_argument("--tests", type=int, default=1000, help="empty tests")
    parser.add_argument("--gpu-tests", type=int, default=30)
    parser.add_argument("--parameters", type=int, default=3000, help="parameters of the test with many (3000)")
    parser.add_argument("--parameter-rounds", type=int, default=3)
    parser.add_argument("--parts", default=",".join(PARTS), help=",".join(PARTS))
    parser.add_argument(
        "--fake", nargs="?", const="", metavar="CACHE", help="take the fake GPU of the tests, built in CACHE"
    )
    chosen = parser.parse_args()
    fake = chosen.fake is not None
    parts = chosen.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    loaded = ("-p", "pytest_cutrace.plugin")
    with tempfile.TemporaryDirectory() as folder:
        environment: dict[str, str] = {}
        if fake:
            sys.path.insert(0, str(TESTS))
            from support.fakedriver import build

            environment = {**build(Path(chosen.fake or f"{folder}/driver")).environment(), "FAKE": "1"}
        here = Path(folder) / "suite"
        here.mkdir()
        (here / "pytest.ini").write_text("[pytest]\n")
        suites = Suites(here, environment)
        result: dict[str, Any] = {"machine": facts(), "fake": fake}
        if "unused" in parts:
            result |= unused(suites, chosen, loaded)
        if fake or result["machine"]["gpu"]:
            if "launches" in parts:
                result["launches_in_a_test"] = launches(suites, chosen, loaded, Path(folder))
            if "parameters" in parts:
                result["parameters"] = parameters(suites, chosen, loaded)
    print(json.dumps(result, indent=1))


def unused(suites: Suites, chosen: argparse.Namespace, loaded: tuple[str, ...]) -> dict[str, Any]:
    """Measure the plugin in sessions that do not use it."""
    result: dict[str, Any] = {"imports_when_unused": import_cost()}
    result["version_s"] = medians(
        chosen.rounds,
        {"without": lambda: suites.seconds("--version"), "with": lambda: suites.seconds(*loaded, "--version")},
    )
    suites.write(EMPTY.format(tests=chosen.tests))
    result["empty_suite_s"] = medians(
        chosen.rounds, {"without": suites.seconds, "with": lambda: suites.seconds(*loaded)}
    )
    configurations: dict[str, Callable[[], float]] = {
        "unused_ms": lambda: suites.per_test(*loaded),
        "cutrace_ms": lambda: suites.per_test(*loaded, "--cutrace"),
    }
    result["empty_test"] = medians(chosen.rounds, configurations)
    return result


def launches(suites: Suites, chosen: argparse.Namespace, loaded: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Measure a test that launches kernels. It runs untraced, under a collector that discards everything, and under the
    plugin, without golden files and with them."""
    suites.write(LAUNCHES.format(launches=chosen.launches, tests=chosen.gpu_tests))
    golden = (*loaded, "--cutrace", "-o", "cutrace_golden_dir=compared")
    suites.per_test(*golden, "--cutrace-update")
    configurations: dict[str, Callable[[], float]] = {
        "untraced_ms": suites.per_test,
        "cutrace_ms": lambda: suites.per_test(*loaded, "--cutrace"),
        "compared_ms": lambda: suites.per_test(*golden),
    }
    if chosen.fake is None:
        from cutrace.collect import Options, completed, environment

        null = folder / "libcutrace_null.so"
        source = NATIVE / "null_collector.cpp"
        _compile(["g++", "-O2", "-std=c++20", "-fPIC", "-shared", *_headers(), "-o", null, source, "-ldl", "-lpthread"])
        options = completed(Options()).text(directory=folder)
        variables = {environment.CUDA: str(null), environment.OPTIONS: options}
        configurations["null_ms"] = lambda: suites.per_test(**variables)
    return {"launches": chosen.launches, **medians(chosen.gpu_rounds, configurations)}


def parameters(suites: Suites, chosen: argparse.Namespace, loaded: tuple[str, ...]) -> dict[str, Any]:
    """Measure the plugin on one test with many parameters: its total time, and the time before the first test."""
    count = chosen.parameters
    traced = (*loaded, "--cutrace")
    suites.write(EMPTY.format(tests=1))
    start = medians(chosen.rounds, {"plain": suites.seconds, "cutrace": lambda: suites.seconds(*traced)})
    suites.write(PARAMETERS.format(tests=count))
    folder = suites.folder / "checked"
    golden = (*traced, "-o", f"cutrace_golden_dir={folder}")
    suites.seconds(*golden, "--cutrace-update")
    files = [path for path in folder.rglob("*") if path.is_file()]
    before = {path: path.read_text() for path in files}

    def update() -> float:
        with tempfile.TemporaryDirectory() as fresh:
            return suites.seconds(*traced, "-o", f"cutrace_golden_dir={fresh}/golden", "--cutrace-update")

    seconds = medians(
        chosen.parameter_rounds,
        {
            "plain": suites.seconds,
            "check": lambda: suites.seconds(*golden),
            "failed": lambda: suites.seconds(*golden, status=1, CHANGED="all"),
            "update": update,
        },
    )
    middle = count // 2
    suites.seconds(*golden, "--cutrace-update", f"test_it.py::test_it[{middle}]", CHANGED=str(middle))
    differences = [
        line
        for path in files
        for line in difflib.ndiff(before[path].splitlines(), path.read_text().splitlines())
        if line[0] in "+-"
    ]
    figures = {
        "bytes_a_test": round(sum(map(len, before.values())) / count, 1),
        "changed_lines": len(differences),
        "check_ms": round((seconds["check"] - seconds["plain"]) / count * 1e3, 3),
        "update_ms": round((seconds["update"] - seconds["plain"]) / count * 1e3, 3),
        "failed_share": round(seconds["failed"] / seconds["check"], 2),
        "start_s": round(start["cutrace"] - start["plain"], 3),
    }
    targets = {name: {"at most": most, "met": figures[name] <= most} for name, most in TARGETS.items()}
    return {
        "tests": count, "golden_files": len(files), **figures, "targets": targets,
        "session_s": seconds, "start_of_session_s": start,
    }  # fmt: skip


if __name__ == "__main__":
    main()
