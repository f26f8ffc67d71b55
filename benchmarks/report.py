"""Make Markdown tables of the results of the overhead benchmark, with the targets and whether they are met.

    python benchmarks/report.py overhead.json [nvtx.json ...]

Added time is computed round by round, against the baseline of the same round, so that a drift of the machine cancels
out. The figure is the median of the rounds, and the spread is from the first to the third quartile. A target on added
times is `unclear` when it is missed by less than twice the standard error of the median.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads import options

WORKLOADS = {
    "launches_1": "empty kernels from C++, 1 thread (a launch)",
    "launches_8": "empty kernels from C++, 8 threads (a launch)",
    "malloc_async": "`cudaMallocAsync` and `cudaFreeAsync` from C++ (a pair)",
    "malloc": "`cudaMalloc` and `cudaFree` from C++ (a pair)",
    "torch_loop": "launch-bound torch loop (an operation)",
    "transformer": "transformer training step (a step)",
    "cuda_graph": "replayed CUDA graph (256 nodes)",
    "graph_capture": "captured and instantiated CUDA graph (256 nodes)",
}
CONFIGS = {
    "none": "no tool",
    "none_python": "no tool, loop called from Python",
    "null": "null collector",
    "cutrace": "cutrace",
    "cutrace_no_nvtx": "cutrace without NVTX",
    "null_kernels": "null collector, kernels only",
    "cutrace_kernels": "cutrace, kernels only",
    "null_waits": "null collector, sync and event too",
    "null_late": "null collector, started when CUDA was in use",
    "late": "cutrace, started when CUDA was in use",
    "newest": "cutrace, the newest rows",
    "triggers": "cutrace, the newest rows with conditions for dumps",
    "torch_profiler": "torch.profiler (CUDA only)",
    "proton": "Proton (trace)",
}

#: (tool, compared with, limit of the ratio of their added times)
RATIOS = (
    ("cutrace", "null", 1.05),
    ("cutrace_kernels", "null_kernels", 1.05),
    ("cutrace", "torch_profiler", 0.6),
    ("cutrace_kernels", "torch_profiler", 0.5),
)
MAX_BYTES_PER_LAUNCH = 64
MAX_MEMORY = 64 << 20
MAX_EXIT_SECONDS = 1.0
MAX_NVTX_NS = 150


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of one figure over the rounds."""

    median: float
    q1: float
    q3: float
    rounds: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Compute the spread of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3, len(values))

    @property
    def error(self) -> float:
        """The standard error of the median. It is computed from the quartiles, as for normally distributed values."""
        return 1.2533 * (self.q3 - self.q1) / 1.349 / math.sqrt(self.rounds)


@dataclass(frozen=True)
class Target:
    """A target: the measured quantity, the figure, the limit, and ``pass``, ``fail`` or ``not measured``."""

    what: str
    figure: str
    limit: str
    verdict: str


class Overheads:
    """The times of a result file, by workload, configuration and round (ns an operation)."""

    def __init__(self, result: dict[str, Any]) -> None:
        further = result.get("collectors", {})
        self.titles = CONFIGS | {label: f"collector of {label}" for label in further}
        self.ratios = RATIOS + tuple((label, "null", 1.05) for label in further)
        self._times: dict[tuple[str, str], dict[int, float]] = {}
        for row in result["measurements"]:
            self._times.setdefault((row["workload"], row["config"]), {})[row["round"]] = row["ns_per_op"]

    def configs(self, workload: str) -> list[str]:
        return [config for config in self.titles if (workload, config) in self._times]

    def workloads(self) -> list[str]:
        return [workload for workload in WORKLOADS if self.configs(workload)]

    def total(self, workload: str, config: str) -> Spread | None:
        values = self._times.get((workload, config))
        return Spread.of(list(values.values())) if values else None

    def added_by_round(self, workload: str, config: str) -> dict[int, float]:
        """Return the difference to the time of the same round without a tool, for the rounds with both times."""
        python = config in ("torch_profiler", "proton") and (workload, "none_python") in self._times
        baseline = self._times.get((workload, "none_python" if python else "none"), {})
        values = self._times.get((workload, config), {})
        return {number: values[number] - baseline[number] for number in values if number in baseline}

    def added(self, workload: str, config: str) -> Spread | None:
        values = list(self.added_by_round(workload, config).values())
        return Spread.of(values) if values else None

    def ratio(self, workload: str, tool: str, other: str) -> float | None:
        """Return the added time of a tool, divided by the added time of another tool. None if one is missing or the
        other tool adds nothing."""
        a, b = self.added(workload, tool), self.added(workload, other)
        return None if a is None or b is None or b.median <= 0 else a.median / b.median

    def verdict(self, workload: str, tool: str, other: str, limit: float) -> str:
        """Return ``pass`` if the tool adds at most ``limit`` times the time of the other tool, else ``fail``,
        ``unclear`` or ``not measured``."""
        a, b = self.added_by_round(workload, tool), self.added_by_round(workload, other)
        excess = [a[number] - limit * b[number] for number in a if number in b]
        if not excess:
            return "not measured"
        spread = Spread.of(excess)
        if spread.median <= 0:
            return "pass"
        return "unclear" if spread.median < 2 * spread.error else "fail"


def time_table(overheads: Overheads) -> Iterator[str]:
    """Return a row for each workload and configuration."""
    yield "| workload | tool | time, ns (q1 to q3) | added, ns (q1 to q3) |"
    yield "|---|---|---:|---:|"
    for workload in overheads.workloads():
        title = WORKLOADS[workload]
        for config in overheads.configs(workload):
            added = None if config.startswith("none") else overheads.added(workload, config)
            total = _spread(overheads.total(workload, config))
            yield f"| {title} | {overheads.titles[config]} | {total} | {_spread(added)} |"
            title = ""


def ratio_table(overheads: Overheads) -> Iterator[str]:
    """Return the ratios of added times with their verdicts. Rows are workloads, and columns are targets."""
    titles, ratios = overheads.titles, overheads.ratios
    columns = (f"{titles[tool]} / {titles[other]}: at most {limit}" for tool, other, limit in ratios)
    yield f"| added time | {' | '.join(columns)} |"
    yield "|---|" + "---:|" * len(ratios)
    for workload in overheads.workloads():
        cells = []
        for tool, other, limit in ratios:
            # With NVTX, cutrace also notes where graph nodes are created. The null collector never does.
            alike = workload != "graph_capture" or other != "null"
            compared = tool if alike else f"{tool}_no_nvtx"
            verdict = overheads.verdict(workload, compared, other, limit)
            ratio = overheads.ratio(workload, compared, other)
            # A tool without measurable added time has no ratio.
            cell = verdict if ratio is None else f"{ratio:.2f} {verdict}"
            cells.append(cell if alike else f"{cell} (without NVTX)")
        yield f"| {WORKLOADS[workload]} | {' | '.join(cells)} |"


def targets(result: dict[str, Any], nvtx_ns: float | None = None) -> Iterator[Target]:
    """Return the targets that are not ratios, with the measured figures."""
    yield from _capture_targets(result)
    yield from _exit_targets(result)
    figure = None if nvtx_ns is None else f"{nvtx_ns:.0f} ns"
    yield _target("NVTX push and pop", figure, f"< {MAX_NVTX_NS} ns", nvtx_ns is not None and nvtx_ns < MAX_NVTX_NS)


def _capture_targets(result: dict[str, Any]) -> Iterator[Target]:
    captures = [c for c in result["captures"] if c["config"] == "cutrace"]
    if result["exit"].get("cutrace"):
        captures.append({**result["exit"]["cutrace"], "launched": result["exit"]["cutrace"]["kernels"]})
    largest = max((c["bytes"] / c["launched"] for c in captures if "bytes" in c), default=None)
    yield _target(
        "run.bin, bytes for a launch and its kernel",
        None if largest is None else f"{largest:.1f}",
        f"≤ {MAX_BYTES_PER_LAUNCH}",
        largest is not None and largest <= MAX_BYTES_PER_LAUNCH,
    )
    everything = [*result["captures"], *(c for c in [result["exit"].get("cutrace")] if c)]
    missing = [_missing(c) for c in everything]
    launched = sum(c.get("launched", c.get("kernels", 0)) for c in everything)
    figure = f"{sum(missing):,} of {launched:,} kernels" if everything else None
    yield _target("kernels missing from captures, or lost", figure, "0", bool(everything) and not any(missing))


def _missing(capture: dict[str, Any]) -> int:
    launched = capture.get("launched", capture.get("kernels", 0))
    unknown = capture.get("unknown", {}).get("kernels", 0)
    return int(max(capture["lost"], abs(launched - capture["rows"]["kernels"])) + unknown)


def _exit_targets(result: dict[str, Any]) -> Iterator[Target]:
    null, cutrace = result["exit"].get("null"), result["exit"].get("cutrace")
    rows = cutrace["rows"] if cutrace else {}
    records = f"{rows['kernels'] + rows['api_calls']:,} records" if rows else "ten million records"
    more = cutrace["max_rss"] - null["max_rss"] if cutrace and null else None
    yield _target(
        f"host memory beyond the null collector's, {records}",
        None if more is None else f"{more / 2**20:.0f} MiB",
        f"< {MAX_MEMORY >> 20} MiB",
        more is not None and more < MAX_MEMORY,
    )
    seconds = cutrace["seconds"] if cutrace else None
    beside = f" (null collector {null['seconds']:.2f} s)" if null and cutrace else ""
    yield _target(
        f"from exit to the complete file, {records}",
        None if seconds is None else f"{seconds:.2f} s{beside}",
        f"< {MAX_EXIT_SECONDS:g} s",
        seconds is not None and seconds < MAX_EXIT_SECONDS,
    )


def _target(what: str, figure: str | None, limit: str, met: bool) -> Target:
    verdict = "not measured" if figure is None else "pass" if met else "fail"
    return Target(what, figure or "-", limit, verdict)


def markdown(result: dict[str, Any], nvtx_ns: float | None = None) -> str:
    """Return all tables, with a line on the machine and the date."""
    gpu = result["machine"].get("gpu") or {}
    versions = ", ".join(f"{name} {version}" for name, version in sorted(result["versions"].items()))
    host = f"{result['machine']['cpu']} ({result['machine']['cores']} cores)"
    lines = [
        f"{gpu.get('name', 'no GPU')}, driver {gpu.get('driver_version', 'unknown')}, {host}; {versions}; "
        f"{result['rounds']} interleaved rounds, {result['date'][:10]}.",
        "",
        *time_table(Overheads(result)),
        "",
        *ratio_table(Overheads(result)),
        "",
        "| target | measured | limit | |",
        "|---|---:|---:|---|",
        *(f"| {t.what} | {t.figure} | {t.limit} | {t.verdict} |" for t in targets(result, nvtx_ns)),
    ]
    lines += ["", *_checks(result["checks"])]
    if result["failures"]:
        errors = Counter(f["error"].strip() for f in result["failures"])
        lines += ["", "Failures:", *(f"- {count} times: {error}" for error, count in errors.items())]
    return "\n".join(lines)


def together(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Join campaigns on one kind of machine. The result has all rounds and captures, and the worst figures of each
    ``exit`` run."""
    whole = copy.deepcopy(results[0])
    for result in results[1:]:
        for key in ("measurements", "captures"):
            whole[key] += [row | {"round": row["round"] + whole["rounds"]} for row in result[key]]
        whole["rounds"] += result["rounds"]
        whole["failures"] += result["failures"]
        for config, figures in result["exit"].items():
            worst = whole["exit"].setdefault(config, figures)
            for key in ("seconds", "max_rss", "bytes"):
                if key in figures:
                    # Other tools are compared with the null collector, so its smallest memory gives the strictest
                    # limit.
                    choose = min if config == "null" else max
                    worst[key] = choose(worst[key], figures[key])
    return whole


def _checks(checks: dict[str, Any]) -> Iterator[str]:
    """Return the results of the small runs before the measurements."""
    for config, check in checks.items():
        if config in CONFIGS:
            yield f"- {CONFIGS[config]} saw {check['seen']:,} of {check['launched']:,} kernels on a small run."
    for workload, kernels in checks.get("kernels_per_operation", {}).items():
        yield f"- {WORKLOADS[workload]}: {kernels:g} kernels."


def _spread(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:,.0f} ({spread.q1:,.0f} to {spread.q3:,.0f})"


def main(arguments: list[str] | None = None) -> int:
    parser = options.parser(__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="output of overhead.py; several campaigns are joined")
    parser.add_argument("--nvtx", type=Path, help="output of nvtx_cost.py")
    args = parser.parse_args(arguments)
    try:
        result = together([json.loads(path.read_text()) for path in args.results])
        nvtx = json.loads(args.nvtx.read_text()) if args.nvtx else None
    except (OSError, ValueError) as error:
        print(f"report: cannot read the results: {error}", file=sys.stderr)
        return 2
    # The most expensive way to name a range: plain text, registered string, or attributes.
    pairs = nvtx and [figure["median_ns"] for figure in nvtx["cutrace"].values() if isinstance(figure, dict)]
    print(markdown(result, pairs and max(pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
