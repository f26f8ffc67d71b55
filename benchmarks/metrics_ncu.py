"""Compare hardware metrics of `cutrace profile` and Nsight Compute on eight kernels of the same program.

    python benchmarks/metrics_ncu.py --out metrics.json [--metrics SET,...] [--launches 10000]

Runs ``workloads/eight_kernels.py`` alone, under `cutrace profile`, and under ncu (without control of clocks). Both
tools keep the caches. Compares every metric of every set on each kernel's second launch. Metrics that are not counts
differ from launch to launch, so the difference between ncu's own two launches is given, too. It also reports whether
all runs computed the same results, and the time of each run. It divides the DRAM bytes of the copy by the copied bytes.
It measures how one profiled launch slows ``--launches`` other launches. Needs an NVIDIA GPU, ncu, PyTorch, CuPy and
Triton.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine

import cutrace
from cutrace.extras.hardware.cupti import Cupti
from cutrace.extras.hardware.host import Chip, first_chip
from cutrace.extras.hardware.sets import SETS, chosen

PROGRAM = [sys.executable, str(Path(__file__).parent / "workloads" / "eight_kernels.py")]
#: A part of the name of each kernel. The first match counts. Matrix products have names of cuBLAS.
KERNELS = {
    "copy": "known_copy", "reduction": "known_reduction", "divergence": "known_divergence",
    "conflicts": "known_conflicts", "stride": "known_stride", "triton": "known_triton",
    "matmul fp32": "sgemm|f32f32_f32", "matmul bf16": "gemm|nvjet|xmma|cutlass",
}  # fmt: skip
PATTERN = "|".join(KERNELS.values())
COPIED = 4 << 26


def run(command: list[str]) -> tuple[str, float]:
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    sys.stderr.write(done.stderr[-400:] + "\n")
    return done.stdout, time.monotonic() - began


def label(kernel: str) -> str:
    return next(name for name, part in KERNELS.items() if re.search(part, kernel))


def printed(output: str) -> dict[str, Any]:
    """Return the output of the program in its last run."""
    return dict(json.loads([line for line in output.splitlines() if line.startswith('{"results"')][-1]))


def by_cutrace(names: list[str], capture: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, float]]], float]:
    output, took = run(
        ["cutrace", "profile", "-o", str(capture), "--metrics", ",".join(names), "--kernel", f"/{PATTERN}/",
         "--caches", "keep", "--format", "csv", "--", *PROGRAM]
    )  # fmt: skip
    by_kernel: dict[str, list[dict[str, float]]] = {}
    with cutrace.load(capture) as trace:
        rows = trace.arrow("kernel_metrics").to_pylist()
        kernels = {row["correlation"]: row["name"] for row in trace.arrow("kernels").to_pylist()}
    launches: dict[int, dict[str, float]] = {}
    for row in rows:
        launches.setdefault(row["correlation"], {})[row["name"]] = row["value"]
    for correlation, values in launches.items():
        by_kernel.setdefault(label(kernels[correlation]), []).append(values)
    return printed(output), by_kernel, took


def by_ncu(names: list[str], folder: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, float]]], float]:
    report = folder / "report"
    output, took = run(
        ["ncu", "--metrics", ",".join(names), "--kernel-name-base", "mangled", "-k", f"regex:{PATTERN}",
         "--cache-control", "none", "--clock-control", "none", "-f", "-o", str(report), *PROGRAM]
    )  # fmt: skip
    by_kernel: dict[str, list[dict[str, float]]] = {}
    # ncu's tables have two decimals; its Python module has the full values.
    sys.path += map(str, Path("/opt/nvidia/nsight-compute").glob("*/extras/python"))
    import ncu_report

    for kernels in ncu_report.load_report(f"{report}.ncu-rep"):
        for kernel in kernels:
            values = {name: kernel[name].as_double() for name in names if name in kernel}
            by_kernel.setdefault(label(kernel.name(kernel.NameBase_DEMANGLED)), []).append(values)
    return printed(output), by_kernel, took


def compared(names: list[str], ours: dict[str, Any], theirs: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the second launch of each kernel that both tools profiled, by metric."""
    rows = []
    for kernel, launches in ours.items():
        other = theirs.get(kernel)
        if other is None or len(launches) != len(other):
            rows.append({"kernel": kernel, "launches": [len(launches), len(other or ())]})
            continue
        for name in names:
            mine, first, second = launches[-1].get(name), other[-2].get(name), other[-1].get(name)
            if mine is None or first is None or second is None:
                rows.append({"kernel": kernel, "metric": name, "cutrace": mine, "ncu": second})
                continue
            scale = max(abs(mine), abs(second))
            rows.append(
                {
                    "kernel": kernel, "metric": name, "cutrace": mine, "ncu": second,
                    "difference": abs(mine - second) / scale if scale else 0.0,
                    "of_ncu": abs(first - second) / max(abs(first), abs(second)) if first or second else 0.0,
                }
            )  # fmt: skip
    return rows


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED, launches=10_000)
    parser.add_argument("--metrics", default=",".join(SETS), help="sets and names (all sets)")
    args = parser.parse_args()
    cupti = Cupti.found()
    with Chip(cupti, first_chip(cupti) or sys.exit("there is no GPU")) as chip:
        names = chosen(chip, args.metrics)
        passes = chip.configure(names).passes
    alone, seconds = run(PROGRAM)
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "run.bin"
        under_cutrace, ours, cutrace_seconds = by_cutrace(names, capture)
        capture.replace(args.out.with_suffix(".bin"))
        under_ncu, theirs, ncu_seconds = by_ncu(names, Path(folder))
        rows = compared(names, ours, theirs)
        many = [*PROGRAM, "--launches", str(args.launches)]
        recorded = printed(run(["cutrace", "record", "-o", str(capture), "--", *many])[0])["others_ms"]
        filters = f"--kernel known_copy --skip {args.launches // 2} --count 1 --metrics occupancy".split()
        profiled = printed(run(["cutrace", "profile", "-o", str(capture), *filters, "--", *many])[0])
    expected = printed(alone)["results"]
    counted = [row for row in rows if "difference" in row]
    result = {
        "benchmark": "metrics_ncu",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(), "metrics": len(names), "passes": passes,
        "same_results": {"cutrace": under_cutrace["results"] == expected, "ncu": under_ncu["results"] == expected},
        "seconds": {"alone": seconds, "cutrace": cutrace_seconds, "ncu": ncu_seconds},
        "copy": {name: value / COPIED for kernel, launches in ours.items() if kernel == "copy"
                 for name, value in launches[-1].items() if name in ("dram__bytes_read.sum", "dram__bytes_write.sum")},
        "other_launches_ms": {"recorded": recorded, "one_profiled": profiled["others_ms"], "launches": args.launches},
        "rows": rows,
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"{len(names)} metrics, {passes} passes; seconds: {result['seconds']}; same results: {result['same_results']}"
    )
    print(f"DRAM bytes of the copy / copied bytes: {result['copy']}; {result['other_launches_ms']}")
    far = sorted((row for row in counted if row["difference"] > 0.02), key=lambda row: -row["difference"])
    equal = sum(row["difference"] == 0 for row in counted)
    near, rest = len(counted) - len(far), len(rows) - len(counted)
    print(f"{len(counted)} compared, {equal} equal, {near} within 2 %, {rest} not compared")
    for row in far:
        print(f"{row['kernel'][:40]:40} {row['metric']:70} {row['cutrace']:<14.6g} {row['ncu']:<14.6g} "
              f"{row['difference']:.1%} (ncu's two launches {row['of_ncu']:.1%})")  # fmt: skip


if __name__ == "__main__":
    main()
