"""Compare `cutrace profile` with Nsight Compute on kernels of PyTorch and Triton, with the caches flushed and kept.

    python benchmarks/caches_ncu.py --out caches.json [--metrics SET,...] [--rounds 5]

Runs ``workloads/twenty_kernels.py`` alone, under `cutrace profile --nvtx step2 --caches flush`, and under ncu with its
default control of caches. Then both tools run with the caches kept (``--cache-control none``). ncu runs ``--rounds``
times. Each metric of each launch is compared with ncu's runs:

* a count (instructions, requests, sectors) is equal if ncu gives the same number;
* bytes agree if they differ by at most 2 % from one of ncu's runs;
* another value agrees if it is within 2 % or within ncu's own spread around its range.

Also reports whether all runs computed the same results, and the time of each command. Needs an NVIDIA GPU, ncu, PyTorch
and Triton.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from metrics_ncu import printed, run
from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine

import cutrace
from cutrace.extras.hardware.cupti import Cupti
from cutrace.extras.hardware.host import Chip, first_chip
from cutrace.extras.hardware.sets import chosen

PROGRAM = [sys.executable, str(Path(__file__).parent / "workloads" / "twenty_kernels.py")]
#: A launch: the name of its kernel, and its values by metric.
Launch = tuple[str, dict[str, float]]
#: ncu's --cache-control for our --caches.
CONTROL = {"flush": "all", "keep": "none"}


def by_cutrace(names: list[str], caches: str, capture: Path) -> tuple[dict[str, Any], list[Launch], float]:
    output, took = run(
        ["cutrace", "profile", "-o", str(capture), "--metrics", ",".join(names), "--nvtx", "step2",
         "--caches", caches, "--format", "csv", "--", *PROGRAM]
    )  # fmt: skip
    with cutrace.load(capture) as trace:
        rows = trace.arrow("kernel_metrics").to_pylist()
        kernels = {row["correlation"]: row["name"] for row in trace.arrow("kernels").to_pylist()}
    launches: dict[int, dict[str, float]] = {}
    for row in rows:
        launches.setdefault(row["correlation"], {})[row["name"]] = row["value"]
    return printed(output), [(kernels[number], launches[number]) for number in sorted(launches)], took


def by_ncu(names: list[str], caches: str, folder: Path) -> tuple[dict[str, Any], list[Launch], float]:
    report = folder / "report"
    output, took = run(
        ["ncu", "--metrics", ",".join(names), "--nvtx", "--nvtx-include", "step2/", "--cache-control", CONTROL[caches],
         "--clock-control", "none", "-f", "-o", str(report), *PROGRAM]
    )  # fmt: skip
    # ncu's tables have two decimals; its Python module has the full values.
    sys.path += map(str, Path("/opt/nvidia/nsight-compute").glob("*/extras/python"))
    import ncu_report

    launches = []
    for kernels in ncu_report.load_report(f"{report}.ncu-rep"):
        for kernel in kernels:
            values = {name: kernel[name].as_double() for name in names if name in kernel}
            launches.append((kernel.name(kernel.NameBase_DEMANGLED), values))
    return printed(output), launches, took


def kind(metric: str) -> str:
    if "bytes" in metric and metric.endswith(".sum"):
        return metric
    counts = ("inst_executed", "requests", "sectors_pipe", "branch_targets", "wavefronts", "bank_conflicts")
    if metric.endswith(".sum") and any(part in metric for part in counts):
        return "counts"
    return "others"


def compare(names: list[str], ours: list[Launch], theirs: list[list[Launch]]) -> list[dict[str, Any]]:
    """A row for each metric of each launch, with ncu's range and whether the value of cutrace agrees with it."""
    rows = []
    for number, (kernel, values) in enumerate(ours):
        for name in names:
            of_ncu = [launches[number][1][name] for launches in theirs if name in launches[number][1]]
            if name not in values or not of_ncu:
                continue
            mine, low, high = values[name], min(of_ncu), max(of_ncu)
            what = kind(name)
            nearest = min(of_ncu, key=lambda value: abs(value - mine))
            scale = max(abs(mine), abs(nearest))
            difference = abs(mine - nearest) / scale if scale else 0.0
            if what == "counts":
                agrees = difference == 0
            elif what == "others":
                agrees = difference <= 0.02 or low - (high - low) <= mine <= high + (high - low)
            else:
                agrees = difference <= 0.02
            rows.append({"launch": number, "kernel": kernel[:80], "metric": name, "kind": what, "cutrace": mine,
                         "ncu": [low, high], "difference": difference, "agrees": agrees})  # fmt: skip
    return rows


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED, rounds=5)
    parser.add_argument("--metrics", default="why", help="sets and names (why)")
    parser.add_argument("--keep-rounds", type=int, default=2, help="runs of ncu with the caches kept (2)")
    args = parser.parse_args()
    cupti = Cupti.found()
    with Chip(cupti, first_chip(cupti) or sys.exit("there is no GPU")) as chip:
        names = chosen(chip, args.metrics)
        passes = chip.configure(names).passes
    alone, seconds = run(PROGRAM)
    expected = printed(alone)["results"]
    result: dict[str, Any] = {
        "benchmark": "caches_ncu", "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(), "metrics": len(names), "passes": passes, "seconds_alone": seconds,
    }  # fmt: skip
    for caches, runs in (("flush", args.rounds), ("keep", args.keep_rounds)):
        with tempfile.TemporaryDirectory() as folder:
            capture = Path(folder) / "run.bin"
            printed_by_us, ours, our_seconds = by_cutrace(names, caches, capture)
            capture.replace(args.out.with_name(f"{args.out.stem}-{caches}.bin"))
            theirs = []
            their_seconds = []
            same = [printed_by_us["results"] == expected]
            for _ in range(runs):
                printed_by_ncu, launches, took = by_ncu(names, caches, Path(folder))
                same.append(printed_by_ncu["results"] == expected)
                theirs.append(launches)
                their_seconds.append(took)
        if any(len(launches) != len(ours) for launches in theirs):
            sys.exit(f"cutrace counted {len(ours)} launches, ncu {[len(launches) for launches in theirs]}")
        rows = compare(names, ours, theirs)
        agreement: dict[str, list[int]] = {}
        for row in rows:
            of_kind = agreement.setdefault(row["kind"], [0, 0])
            of_kind[0] += row["agrees"]
            of_kind[1] += 1
        result[caches] = {"launches": len(ours), "agreement": agreement, "same_results": same,
                          "seconds": {"cutrace": our_seconds, "ncu": their_seconds},
                          "rows": [row for row in rows if not row["agrees"]]}  # fmt: skip
        print(f"caches {caches}: {len(ours)} launches, {len(names)} metrics, {passes} passes; same results {same}")
        print(f"  seconds: cutrace {our_seconds:.1f}, ncu {their_seconds}")
        for what, (agreed, total) in sorted(agreement.items()):
            print(f"  {what:60} {agreed} of {total} agree")
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
