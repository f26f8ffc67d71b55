"""Measure the cost of recording with cutrace, compared with no tool, a null collector, torch.profiler and Proton.

    python benchmarks/overhead.py --out results.json [--rounds 10] [--quick] [--only launches,torch_loop,...]
        [--collector before=build/libcutrace_collector.so]

Each round runs every pair of workload and configuration once, in an order that rotates. Each runs in a process that has
not used CUDA. The workloads time themselves after a warm-up. Needs an NVIDIA GPU, nvcc, PyTorch with Triton, and
cutrace installed. `python benchmarks/report.py results.json` makes tables of the result.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine
from programs import Failed, Programs, TorchServer, run_native

import cutrace
from cutrace.collect import environment
from cutrace.collect.options import Options, completed
from cutrace.runbin.layout import TABLES

NATIVE_WORKLOADS = ("launches_1", "launches_8")
#: Workloads with an allocation and its release as their operation (native/allocation_main.cu).
ALLOCATION_WORKLOADS = ("malloc_async", "malloc")
TORCH_WORKLOADS = ("torch_loop", "transformer", "cuda_graph", "graph_capture")
THREADS = (1, 8)


@dataclass(frozen=True)
class Config:
    """A tool and its settings. With ``python_launches``, Python also calls the native launch loop. ``library`` is the
    injected build for the tool ``collector``. With ``by_name``, it is measured only if ``--configs`` names it.
    ``before`` is the first action of the native launch loop (native/launch_loop.cu)."""

    name: str
    tool: str
    options: dict[str, Any] = field(default_factory=dict)
    native: bool = True
    python_launches: bool = False
    library: str = ""
    by_name: bool = False
    before: str = ""

    @property
    def record_options(self) -> list[str]:
        """Return the options of `cutrace record`."""
        return [
            word
            for key, values in self.options.items()
            for value in ([values] if isinstance(values, str) else values)
            for word in (f"--{key.replace('_', '-')}", value)
        ]


_KERNELS = {"kinds": "kernel", "api": "none"}
_WAITS = {"kinds": "default,sync,event"}
# Without nvtx, the collector does not note where graph nodes were created.
_NO_NVTX = {"kinds": "kernel,memcpy,memset,api,memory,pool,overhead,device,context,stream,name"}
# Conditions that never become true.
_TRIGGERS = ["nvtx:* > 1h", "nvtx:* > 1000000x median", "gpu idle > 1h", "memory > 8000TiB"]
CONFIGS = (
    Config("none", "none", python_launches=True),
    Config("null", "null"),
    Config("cutrace", "cutrace"),
    Config("null_kernels", "null", _KERNELS),
    Config("cutrace_kernels", "cutrace", _KERNELS),
    Config("cutrace_no_nvtx", "cutrace", _NO_NVTX, native=False),
    Config("null_waits", "null", _WAITS, native=False),
    Config("null_late", "null_late", native=False),
    Config("late", "late", native=False),
    # The names of kernels are noted after the first unload of a module.
    Config("names", "cutrace", before="unload", by_name=True),
    Config("window", "cutrace", {"capture_range": "profiler"}, before="profiler", by_name=True),
    Config("newest", "cutrace", {"last": "10s"}, by_name=True),
    Config("triggers", "cutrace", {"last": "10s", "dump_when": _TRIGGERS}, by_name=True),
    Config("torch_profiler", "torch_profiler", native=False, python_launches=True),
    Config("proton", "proton", native=False, python_launches=True),
)


@dataclass(frozen=True)
class Sizes:
    """The amount of work of each measurement. ``scale`` applies to the PyTorch workloads."""

    launches: int
    warm_up: int
    exit_launches: int
    scale: float


FULL = Sizes(launches=200_000, warm_up=40_000, exit_launches=5_000_000, scale=1.0)
QUICK = Sizes(launches=20_000, warm_up=4_000, exit_launches=200_000, scale=0.1)


class Campaign:
    """All measurements, and the result file, which is rewritten after each round."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.sizes = QUICK if args.quick else FULL
        if args.launches:
            self.sizes = Sizes(args.launches, args.launches // 5, self.sizes.exit_launches, self.sizes.scale)
        self.folder = folder
        self.deadline = time.monotonic() + args.budget
        self.programs = Programs(folder / "build", args.arch)
        self.server = TorchServer(args.out.with_suffix(".log"))
        self.workloads = [w for w in (*NATIVE_WORKLOADS, *TORCH_WORKLOADS) if _chosen(w, args.only)]
        further = [Config(label, "collector", library=path) for label, path in args.collector]
        self.configs = [c for c in CONFIGS if c.name in args.configs or not (args.configs or c.by_name)] + further
        self.threads = [t for t, name in zip(THREADS, NATIVE_WORKLOADS, strict=True) if name in self.workloads]
        self.torch = [w for w in TORCH_WORKLOADS if w in self.workloads]
        self.allocates = any(_chosen(w, args.only) for w in ALLOCATION_WORKLOADS)
        self.result: dict[str, Any] = {
            "benchmark": "overhead",
            "command": sys.argv,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine.facts(),
            "versions": {"cutrace": cutrace.__version__},
            "sizes": asdict(self.sizes),
            "collectors": dict(args.collector),
            "rounds": 0,
            "measurements": [],
            "captures": [],
            "checks": {},
            "exit": {},
            "failures": [],
        }

    def run(self) -> None:
        self.programs.build()
        self._check()
        if _chosen("exit", self.args.only):
            self._attempt("exit", self._exit)
        self.save()
        longest = 0.0
        for number in range(self.args.rounds):
            began = time.monotonic()
            if number and began + longest > self.deadline:
                print(f"stopped after {number} rounds: --budget {self.args.budget:g} s is used up", file=sys.stderr)
                break
            self._round(number)
            self.result["rounds"] = number + 1
            self.save()
            longest = max(longest, time.monotonic() - began)
            print(f"round {number + 1}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        self.server.close()

    def save(self) -> None:
        self.result["versions"].update(self.server.versions)
        temporary = self.args.out.with_suffix(".part")
        temporary.write_text(json.dumps(self.result, indent=1) + "\n")
        temporary.replace(self.args.out)

    def _attempt(self, what: str, measure: Any, *arguments: Any) -> None:
        """Measure. A failure is noted, so that the other measurements continue."""
        try:
            measure(*arguments)
        except (Failed, cutrace.CutraceError, OSError, KeyError) as error:
            print(f"{what}: {error}", file=sys.stderr, flush=True)
            self.result["failures"].append({"what": what, "error": str(error)[-1000:]})

    def _round(self, number: int) -> None:
        turn = number % len(self.configs)
        for config in self.configs[turn:] + self.configs[:turn]:
            if config.native and self.threads:
                self._attempt(f"{config.name}, native, round {number}", self._native, config, number)
            if config.native and self.allocates and not config.before:
                self._attempt(f"{config.name}, allocations, round {number}", self._allocations, config, number)
            if self.torch and not config.before:
                self._attempt(f"{config.name}, torch, round {number}", self._torch, config, number)
            if config.python_launches and self.threads:
                self._attempt(f"{config.name}, Python launches, round {number}", self._python_launches, config, number)

    # One process each

    def _native(self, config: Config, number: int) -> None:
        numbers = (self.sizes.launches, self.sizes.warm_up, *self.threads)
        command = [self.programs.launch_main, *map(str, numbers)]
        lines = self._launch(config, command, timeout=120)
        end = {key: value for line in lines[-2:] for key, value in line.items()}
        if config.tool in ("cutrace", "collector"):
            self._capture(config, number, end)
        for line in lines[:-2]:
            self._add(line, config.name, number, peak_memory=end["peak_memory"], max_rss=end["max_rss"])

    def _allocations(self, config: Config, number: int) -> None:
        pairs, warm_up = self.sizes.launches // 4, self.sizes.warm_up // 4
        command = [self.programs.allocation_main, str(pairs), str(warm_up)]
        lines = self._launch(config, command, timeout=120)
        peak = lines[-1]["max_rss"]
        if config.tool in ("cutrace", "collector") and "memory" in config.options.get("kinds", "default,memory"):
            contents = _describe(self.folder / "run.bin", unknown=False)
            rows = contents["rows"].get("allocations", 0)
            if rows + contents["lost"] < 2 * pairs:
                raise Failed(f"{config.name} recorded {rows} allocations and releases of {pairs} pairs")
        for line in lines[:-2]:
            self._add(line, config.name, number, max_rss=peak)

    def _launch(self, config: Config, command: list[str | Path], timeout: float) -> list[dict[str, Any]]:
        """Run a native program under a configuration; a capture is left at ``self.folder / "run.bin"``."""
        settings = self._settings(config)
        before = {"LAUNCH_LOOP_BEFORE": config.before}
        if config.tool == "cutrace":
            record = ["cutrace", "record", "-o", settings["capture"], *config.record_options, "--"]
            return list(run_native([*record, *command], before, timeout))
        return list(run_native(command, settings.get("environment", {}), timeout))

    def _torch(self, config: Config, number: int) -> None:
        late = config.tool == "late"
        answers = self.server.measure(self._request(config, workloads=self.torch, stop=late), timeout=120)
        if config.tool in ("cutrace", "collector", "late") and not (self.folder / "run.bin").exists():
            # Without a recording, the time would be a time without a tool.
            raise Failed("cutrace recorded nothing in PyTorch")
        for line in answers:
            if "workload" in line:
                self._add(line, config.name, number, peak_memory=_value(answers, "peak_memory"))

    def _python_launches(self, config: Config, number: int) -> None:
        answers = self.server.measure(self._request(config, threads=self.threads), timeout=120)
        name = "none_python" if config.tool == "none" else config.name
        for line in answers:
            if "workload" in line:
                self._add(line, name, number, peak_memory=_value(answers, "peak_memory"))

    def _request(self, config: Config, **more: Any) -> dict[str, Any]:
        return {
            "tool": config.tool,
            "settings": self._settings(config),
            "workloads": [],
            "scale": self.sizes.scale,
            "library": str(self.programs.library),
            "launches": self.sizes.launches,
            "warm_up": self.sizes.warm_up,
            **more,
        }

    def _settings(self, config: Config) -> dict[str, Any]:
        capture = self.folder / "run.bin"
        # Remove the previous recording. Otherwise it would be read if the next recording fails.
        capture.unlink(missing_ok=True)
        if config.tool in ("cutrace", "late"):
            return {"capture": str(capture), "options": config.options}
        options = completed(Options.of(**config.options))
        if config.tool == "collector":
            variables = {environment.CUDA: config.library, environment.NVTX: config.library}
            return {"environment": variables | {environment.OPTIONS: options.text(output=capture)}}
        if config.tool in ("null", "null_late"):
            library = str(self.programs.null_collector)
            variables = {environment.OPTIONS: options.text(directory=self.folder)}
            if config.tool == "null_late":
                return {"environment": variables, "library": library}
            return {"environment": variables | {environment.CUDA: library}}
        return {}

    # Results besides times

    def _check(self) -> None:
        """Check on a small run that each tool records every kernel, and count the kernels of each operation."""
        for config in self.configs:
            if config.tool in ("torch_profiler", "proton") and self.threads:
                self._attempt(f"check of {config.name}", self._check_tool, config)
        for workload in self.torch:
            self._attempt(f"check of {workload}", self._check_workload, workload)

    def _check_tool(self, config: Config) -> None:
        launches = 2000
        request = self._request(config, threads=[1], launches=launches, warm_up=0, stop=True)
        answers = self.server.measure(request, timeout=120)
        seen = _value(answers, "kernels_seen")
        self.result["checks"][config.name] = {"launched": launches, "seen": seen}

    def _check_workload(self, workload: str) -> None:
        request = self._request(Config("cutrace", "cutrace"), workloads=[workload], scale=0.2)
        answers = self.server.measure(request, timeout=120)
        with cutrace.load(self.folder / "run.bin") as trace:
            kernels = trace.count("kernels") / _value(answers, "operations")
        self.result["checks"].setdefault("kernels_per_operation", {})[workload] = round(kernels, 1)

    def _exit(self) -> None:
        """Measure the time from the last line of a program with ten million records to its complete capture."""
        command = [self.programs.launch_main, str(self.sizes.exit_launches), "0", "8"]
        for config in (Config("null", "null"), Config("cutrace", "cutrace")):
            lines = self._launch(config, command, timeout=180)
            end = {key: value for line in lines for key, value in line.items()}
            figures = {
                "seconds": (end["ended_boottime_ns"] - end["exit_boottime_ns"]) / 1e9,
                "peak_memory": end["peak_memory"],
                "max_rss": end["max_rss"],
                "ns_per_op": end["ns_per_op"],
                "kernels": end["kernels"],
            }
            if config.tool == "cutrace":
                figures |= _describe(self.folder / "run.bin", unknown=True)
            self.result["exit"][config.name] = figures

    def _capture(self, config: Config, number: int, end: dict[str, Any]) -> None:
        exit_seconds = (end["ended_boottime_ns"] - end["exit_boottime_ns"]) / 1e9
        row = {"config": config.name, "round": number, "launched": end["kernels"], "exit_seconds": exit_seconds}
        contents = _describe(self.folder / "run.bin", unknown=number == 0)
        if "kernels" not in contents["rows"]:
            raise Failed(f"{config.name} recorded no kernels")
        self.result["captures"].append(row | contents)

    def _add(self, line: dict[str, Any], config: str, number: int, **more: Any) -> None:
        self.result["measurements"].append({"round": number, "config": config, **line, **more})


def _describe(path: Path, *, unknown: bool) -> dict[str, Any]:
    """Return the contents and losses of a capture. With ``unknown``, every row is read to count unknown times."""
    with cutrace.load(path) as trace:
        figures: dict[str, Any] = {
            "bytes": path.stat().st_size,
            "rows": {name: trace.count(name) for name in TABLES if trace.count(name)},
            "table_bytes": {name: trace.count(name) * TABLES[name].row_size for name in TABLES if trace.count(name)},
            "lost": int(trace.losses["count"].sum()) if trace.count("losses") else 0,
            "cupti_version": trace.processes[0].info.get("cupti_version"),
        }
        if unknown:
            figures["unknown"] = dict(trace.quality.unknown)
    return figures


def _value(answers: list[dict[str, Any]], key: str) -> Any:
    return next(line[key] for line in answers if key in line)


def _chosen(workload: str, only: list[str]) -> bool:
    return not only or any(workload.startswith(name) for name in only)


def _labelled(text: str) -> tuple[str, str]:
    label, _, path = text.partition("=")
    if not label or not Path(path).is_file() or label in {c.name for c in CONFIGS}:
        raise argparse.ArgumentTypeError(f"{text}: give LABEL=LIB, a new name and a file that is there")
    return label, str(Path(path).absolute())


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__, out=options.REQUIRED, rounds=10, budget=500, only=[], arch="native")
    names = ", ".join((*NATIVE_WORKLOADS, *ALLOCATION_WORKLOADS, *TORCH_WORKLOADS, "exit"))
    parser.add_argument("--launches", type=int, help="launches of a native measurement (default 200000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to check that everything runs")
    parser.add_argument("--configs", type=options.words, default=[],
                        help=f"some of: {', '.join(c.name for c in CONFIGS)}")  # fmt: skip
    parser.add_argument("--collector", type=_labelled, action="append", default=[], metavar="LABEL=LIB",
                        help="measure this libcutrace_collector.so too, e.g. an older one")  # fmt: skip
    args = parser.parse_args(arguments)
    known = {c.name for c in CONFIGS}
    if unknown := [name for name in args.configs if name not in known]:
        parser.error(f"unknown configuration {unknown[0]}: choose from {', '.join(sorted(known))}")
    if unknown := [name for name in args.only if not any(w.startswith(name) for w in names.split(", "))]:
        parser.error(f"unknown workload {unknown[0]}: choose from {names}")
    for command, reason in (("nvcc", "compile the launch loop"), ("cutrace", "record")):
        if shutil.which(command) is None:
            parser.error(f"{command} is not on PATH: it is needed to {reason}")
    return args


def main(arguments: list[str] | None = None) -> int:
    args = _arguments(arguments)
    with tempfile.TemporaryDirectory(prefix="cutrace-overhead-") as folder:
        campaign = Campaign(args, Path(folder))
        try:
            campaign.run()
        except Failed as error:
            print(f"overhead: {error}", file=sys.stderr)
            return 1
        finally:
            campaign.server.close()
    import report

    print(report.markdown(campaign.result))
    return 1 if campaign.result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
