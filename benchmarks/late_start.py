"""Measure launches under CUPTI when a recording starts in the middle of a program, for each way of enabling CUPTI.

    python benchmarks/late_start.py --out late.json [--cupti LIB_OR_WHEEL]... [--rounds 10] [--only ids,v2] [--fake]

A configuration is a list of steps (``native/late_start.cpp``) and a time: ``early``, inside cuInit(), or ``late``, when
CUDA is in use. Each configuration is first tried once, to count the recorded kernels and API calls of 1,000 launches
and 1,000 queries. Configurations that record everything are then measured, each in one process, in rounds with a
rotating order. Buffers are discarded unread. ``--cupti`` names further copies of libcupti, by file or wheel, in
addition to cutrace's own choice. Needs an NVIDIA GPU, nvcc and cutrace. With ``--fake`` it tries all configurations on
the fake GPU of the tests. The times are then meaningless.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
from programs import Failed, build_late_start

from cutrace.collect import cuda, environment

PROBE = 1000
FIGURES = ("loop_ns", "batch_ns", "query_ns")
KERNEL, DRIVER, RUNTIME = "10", "4", "5"
KINDS = {DRIVER: "driver", RUNTIME: "runtime", "8": "device", "9": "context", KERNEL: "kernel", "37": "stream"}
V2 = 130200


@dataclass(frozen=True)
class Config:
    """A configuration. ``early`` steps are done inside cuInit(), and ``late`` steps when CUDA is in use."""

    name: str
    early: str = ""
    late: str = ""
    timed: bool = True

    @property
    def wants_calls(self) -> bool:
        return any(word in self.early + " " + self.late for word in ("runtime", "driver"))

    @property
    def v2(self) -> bool:
        return self.name.startswith("v2")


_START = "subscribe buffers kernel"
_IDS = "runtime_ids driver_ids"
_MINUS = "runtime driver runtime_unwanted_off driver_unwanted_off"
_EITHER = {
    "kernels": _START,
    "ids": f"{_START} {_IDS}",  # the steps of cutrace inside cuInit()
    "kinds_minus": f"{_START} {_MINUS}",  # the later steps of cutrace
    "callbacks": f"{_START} runtime_callbacks driver_callbacks",
    "v2_kernels": "subscribe_v2 kernel",
    "v2_ids": f"subscribe_v2 kernel {_IDS}",
    "v2_allow": "subscribe_v2 kernel runtime_allow driver_allow",
    "v2_fields": "subscribe_v2 user_defined kernel_fields runtime_allow_fields driver_allow_fields",
}
_LATE = {
    "all": f"{_START} runtime driver",
    "runtime_ids": f"{_START} runtime_ids",
    "driver_ids": f"{_START} driver_ids",
    "runtime_minus": f"{_START} runtime runtime_unwanted_off",
    "driver_minus": f"{_START} driver driver_unwanted_off",
    "ids_first": f"subscribe buffers {_IDS} kernel",
    "kinds_off_ids": f"{_START} runtime driver runtime_off driver_off {_IDS}",
    "domains_ids": f"{_START} runtime_domain driver_domain {_IDS} runtime_domain_off driver_domain_off",
    "one_callback_ids": f"{_START} runtime_one_callback driver_one_callback {_IDS}",
    "callbacks_and_ids": f"{_START} runtime_callbacks driver_callbacks {_IDS}",
    "ids_sync_off": f"{_START} on_38 off_38 {_IDS}",
    "ids_sync": f"{_START} on_38 {_IDS}",
    "ids_internal_launches": f"{_START} on_48 {_IDS}",
    "unsubscribed_ids": f"buffers kernel {_IDS}",
    "runtime_callbacks": f"{_START} runtime_callbacks",
    "v2_minus": f"subscribe_v2 kernel {_MINUS}",
    "v2_runtime_allow": "subscribe_v2 kernel runtime_allow",
    "v2_driver_allow": "subscribe_v2 kernel driver_allow",
    "v2_few_fields": "subscribe_v2 user_defined kernel_few_fields runtime_allow_fields driver_allow_fields",
    "v2_few_fields_callbacks": "subscribe_v2 user_defined kernel_few_fields runtime_callbacks",
}
# Early steps that may make the late steps work.
_SPLIT = {
    "subscribed": "subscribe buffers",
    "one_callback_early": "subscribe buffers runtime_one_callback driver_one_callback",
    "one_id_early": "subscribe buffers runtime_one_id driver_one_id",
    "ids_toggled_early": f"subscribe buffers {_IDS} runtime_ids_off driver_ids_off",
    "kinds_toggled_early": "subscribe buffers runtime driver runtime_off driver_off",
}
_DUMPS = "dump_device dump_context dump_stream"
CONFIGS = (
    Config("none"),
    *(Config(f"{name}, early", early=steps) for name, steps in _EITHER.items()),
    *(Config(f"{name}, late", late=steps) for name, steps in (_EITHER | _LATE).items()),
    *(Config(f"{name}, late ids", early=steps, late=f"kernel {_IDS}") for name, steps in _SPLIT.items()),
    Config("dump, late", late=f"subscribe buffers kernel {_DUMPS}", timed=False),
    Config("v2_dump, late", late=f"subscribe_v2 kernel {_DUMPS}", timed=False),
)


# The measured process


class Calls(Protocol):
    """The loops of late_start_calls.cu. Each returns nanoseconds per call."""

    def launch_loop(self, count: int) -> float: ...

    def launch_batches(self, count: int) -> float: ...

    def queries(self, count: int) -> float: ...


class RealCalls:
    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def _call(self, name: str, count: int) -> float:
        each = ctypes.c_double()
        if status := self._library[name](ctypes.c_uint64(count), ctypes.byref(each)):
            raise SystemExit(f"{name}: CUDA error {status}")
        return each.value

    def launch_loop(self, count: int) -> float:
        return self._call("launch_loop", count)

    def launch_batches(self, count: int) -> float:
        return self._call("launch_batches", count)

    def queries(self, count: int) -> float:
        return self._call("queries", count)


class FakeCalls:
    def launch_loop(self, count: int) -> float:
        import fakegpu

        begun = time.perf_counter_ns()
        for _ in range(count):
            fakegpu.launch(duration_ns=1)
        fakegpu.synchronize()
        return (time.perf_counter_ns() - begun) / count

    def launch_batches(self, count: int) -> float:
        return self.launch_loop(count)

    def queries(self, count: int) -> float:
        import fakegpu

        begun = time.perf_counter_ns()
        for _ in range(count):
            fakegpu.api("cudaGetDevice")
        return (time.perf_counter_ns() - begun) / count


def child(folder: Path, launches: int, late: str) -> None:
    """Answer the requests ``measure`` and ``count`` on stdin, one on each line, each with a line of JSON."""
    calls: Calls = (
        RealCalls(folder / "liblate_start_calls.so") if (folder / "liblate_start_calls.so").exists() else FakeCalls()
    )
    tool = ctypes.CDLL(str(folder / "liblate_start.so"))
    tool.late_start_report.restype = ctypes.c_char_p

    def measure(count: int) -> dict[str, float]:
        return {
            "loop_ns": calls.launch_loop(count),
            "batch_ns": calls.launch_batches(count // 4),
            "query_ns": calls.queries(count // 2),
        }

    calls.launch_loop(max(launches // 10, 1))  # CUDA is in use now
    if late:
        tool.late_start_do(late.encode())
    calls.launch_loop(max(launches // 5, 1))
    print("{}", flush=True)  # ready
    for request in sys.stdin:
        if request.strip() == "measure":
            print(json.dumps(measure(launches)), flush=True)
        else:
            tool.late_start_count()
            calls.launch_loop(PROBE)
            calls.queries(PROBE)
            print(tool.late_start_report().decode(), flush=True)
    os._exit(0)  # skips CUPTI's work at exit


class Measured:
    """A process with one configuration and one libcupti."""

    def __init__(self, folder: Path, config: Config, cupti: Path, launches: int, base: dict[str, str]) -> None:
        variables = {**base, "LATE_START_CUPTI": str(cupti)}
        if config.early:
            variables |= {environment.CUDA: str(folder / "liblate_start.so"), "LATE_START_EARLY": config.early}
        command = [sys.executable, __file__, "--child", str(folder), str(launches), config.late]
        self._process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._answer()

    def ask(self, request: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            print(request, file=self._process.stdin, flush=True)
        except OSError as error:
            raise Failed(str(error)) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(30, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line.startswith("{"):
            self._process.kill()
            raise Failed(f"status {self._process.wait()}: {line}{self._errors()[-300:]}".strip())
        return dict(json.loads(line))

    def _errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


# The campaign


class Campaign:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.launches = PROBE if args.fake else args.launches
        self.base = dict(os.environ)
        for name in (environment.CUDA, environment.NVTX):
            self.base.pop(name, None)
        self.deadline = time.monotonic() + args.budget
        build_late_start(folder, args.arch, fake=args.fake)
        if args.fake:
            from support import fakedriver

            driver = fakedriver.build(folder / "fake")
            self.base = driver.environment(self.base)
            libraries = [driver.libraries / "libcupti.so.13"]
        else:
            default = cuda.find_cupti()
            libraries = [*([default] if default else []), *(_library(path, folder) for path in args.cupti)]
        self.result: dict[str, Any] = {
            "benchmark": "late_start",
            "command": sys.argv,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine.facts(),
            "launches": self.launches,
            "probe_launches": PROBE,
            "rounds": 0,
            "configs": [],
        }
        self.rows: list[dict[str, Any]] = self.result["configs"]
        self.libraries = libraries

    def probe(self) -> None:
        """Try each configuration with each libcupti in a separate process, and count its records."""
        for path in self.libraries:
            version = _version(path)
            for config in self._chosen():
                if (config.name == "none" and self.rows) or (config.v2 and 0 < version < V2):
                    continue
                row: dict[str, Any] = {
                    "config": config.name,
                    "early": config.early,
                    "late": config.late,
                    "path": str(path),
                }
                self.rows.append(row | {"cupti": version, "timed": config.timed, "measurements": []})
        for row, process in self._started(self.rows, PROBE):
            try:
                row["probe"] = process.ask("count")
                row["cupti"] = row["probe"]["cupti"] or row["cupti"]
                row["timed"] &= _as_meant(_config(row), row["probe"])
            except Failed as failure:
                row["failure"] = str(failure)
            process.close()
        self.save()

    def measure(self) -> None:
        running = list(self._started([row for row in self.rows if row["timed"]], self.launches))
        longest = 0.0
        for number in range(self.args.rounds):
            begun = time.monotonic()
            if number and begun + longest > self.deadline:
                print(f"stopped after {number} rounds: --budget is used up", file=sys.stderr)
                break
            turn = number % max(len(running), 1)
            for row, process in running[turn:] + running[:turn]:
                self._ask(row, process, number)
            self.result["rounds"] = number + 1
            self.save()
            longest = max(longest, time.monotonic() - begun)
            print(f"round {number + 1}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
        for _, process in running:
            process.close()

    def _ask(self, row: dict[str, Any], process: Measured, number: int) -> None:
        try:
            row["measurements"].append({"round": number, **process.ask("measure")})
        except Failed as failure:
            row["failure"] = str(failure)

    def _started(self, rows: list[dict[str, Any]], launches: int) -> Iterator[tuple[dict[str, Any], Measured]]:
        """Yield a process for each row, when it is ready."""

        def start(row: dict[str, Any]) -> Measured | None:
            try:
                return Measured(self.folder, _config(row), Path(row["path"]), launches, self.base)
            except Failed as failure:
                row["failure"] = str(failure)
                return None

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for row, process in zip(rows, pool.map(start, rows), strict=True):
                if process is not None:
                    yield row, process

    def _chosen(self) -> list[Config]:
        only = self.args.only
        return [c for c in CONFIGS if not only or c.name == "none" or any(c.name.startswith(name) for name in only)]

    def save(self) -> None:
        if self.args.out:
            self.args.out.write_text(json.dumps(self.result, indent=1) + "\n")


def _config(row: dict[str, Any]) -> Config:
    return Config(row["config"], row["early"], row["late"])


def _version(path: Path) -> int:
    """Return the answer of cuptiGetVersion in another process, since a process must load only one libcupti."""
    program = (
        "import ctypes, sys; version = ctypes.c_uint32(); "
        "ctypes.CDLL(sys.argv[1]).cuptiGetVersion(ctypes.byref(version)); print(version.value)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stderr)
    return int(done.stdout)


def _as_meant(config: Config, probe: dict[str, Any]) -> bool:
    """Return whether all kernels are recorded and, if the configuration wants them, an API call for each."""
    if config.name == "none":
        return True
    records = probe["records"]
    calls = records.get(RUNTIME, 0) + records.get(DRIVER, 0) + probe["callbacks"]
    return records.get(KERNEL, 0) >= PROBE and (not config.wants_calls or calls >= PROBE)


def _library(path: Path, folder: Path) -> Path:
    """Unpack a wheel into ``folder`` and return its libcupti.so. Return other paths unchanged."""
    if path.suffix != ".whl":
        return path
    target = folder / path.stem
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(target)
    return next(target.rglob("libcupti.so.1?"))


def _print(result: dict[str, Any]) -> None:
    """Print a table with medians over the rounds: of times, and of their differences from no tool in the same round."""
    rows = result["configs"]
    none: list[dict[str, float]] = next((row["measurements"] for row in rows if row["config"] == "none"), [])
    print(f"{result['launches']:,} launches, {result['rounds']} rounds; records of {PROBE:,} launches and queries")
    columns = "configuration", "CUPTI", "loop", "launching thread", "query", "records", "bytes a kernel"
    print(f"| {' | '.join(columns)} |\n|---|---|---:|---:|---:|---|---:|")
    for row in rows:
        probe = row.get("probe", {})
        counts = [f"{KINDS.get(kind, kind)} {count:,}" for kind, count in probe.get("records", {}).items()]
        counts += [f"callbacks {probe['callbacks']:,}"] if probe.get("callbacks") else []
        counts += [f"dropped {probe['dropped']:,}"] if probe.get("dropped") else []
        cells = [_cell(row["measurements"], none, figure) for figure in FIGURES]
        size = probe.get("bytes", {}).get(KERNEL, "")
        cupti = cuda.cupti_version_text(row["cupti"]) if row["config"] != "none" else ""
        print(f"| {row['config']} | {cupti} | {' | '.join(cells)} | {', '.join(counts) or 'nothing'} | {size} |")
    for row in rows:
        for problem in (*row.get("probe", {}).get("failures", ()), *([row["failure"]] if "failure" in row else [])):
            print(f"{row['config']}, {cuda.cupti_version_text(row['cupti'])}: {problem}")
        if row.get("probe", {}).get("layouts"):
            print(f"{row['config']}: layouts {json.dumps(row['probe']['layouts'])}")


def _cell(measurements: list[dict[str, float]], none: list[dict[str, float]], figure: str) -> str:
    if not measurements:
        return ""
    beside = {m["round"]: m[figure] for m in none}
    more = [m[figure] - beside[m["round"]] for m in measurements if m["round"] in beside]
    difference = f", {statistics.median(more):+,.0f}" if more else ""
    return f"{statistics.median(m[figure] for m in measurements):,.0f}{difference}"


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    parser = options.parser(__doc__, out=None, rounds=10, launches=200_000, budget=480, only=[], arch="native")
    parser.add_argument("--cupti", type=Path, action="append", default=[], help="a further libcupti.so or its wheel")
    parser.add_argument("--fake", action="store_true", help="try everything on the fake GPU")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="late-start.") as folder:
        try:
            campaign = Campaign(args, Path(folder))
            campaign.probe()
        except Failed as failure:
            print(f"late_start: {failure}", file=sys.stderr)
            return 1
        campaign.measure()
    campaign.save()
    _print(campaign.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
